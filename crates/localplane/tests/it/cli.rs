//! The command line.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use localplane::{Component, PlaneFolder, PlaneState};

use crate::support::{Folder, eventually, is_alive, localplane, succeed, text};

/// A plane started by `up`. It is stopped when the test ends, also after a failure.
struct Up {
    folder: Folder,
}

impl Up {
    fn new(name: &str) -> Self {
        Self { folder: Folder::new(name) }
    }

    fn dir(&self) -> std::path::PathBuf {
        self.folder.join("plane")
    }

    fn command(&self, act: &str) -> Command {
        let mut command = localplane();
        command.arg(act).arg("--dir").arg(self.dir());
        command
    }

    /// Returns `up` without the slowest components.
    fn up(&self) -> Command {
        let mut command = self.command("up");
        command.args(["--no-scheduler", "--no-controller-manager", "--no-kwok"]);
        command
    }

    fn state(&self) -> PlaneState {
        PlaneFolder::at(self.dir()).state().unwrap().unwrap()
    }

    fn kubectl(&self, args: &[&str]) -> Command {
        let mut command = self.command("kubectl");
        command.arg("--").args(args);
        command
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.command("down").stderr(Stdio::null()).status();
    }
}

fn all_pids(state: &PlaneState) -> Vec<u32> {
    let mut pids: Vec<_> =
        state.components.values().filter_map(|component| component.process).map(|process| process.pid).collect();
    pids.push(state.supervisor.pid);
    pids
}

fn wait_until_gone(pids: &[u32]) {
    eventually("all processes have ended", || {
        let left: Vec<_> = pids.iter().filter(|pid| is_alive(**pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are alive")) }
    });
}

#[test]
fn up_starts_a_complete_cluster_and_down_removes_it() {
    let plane = Up::new("whole");

    let printed = succeed(plane.command("up").args(["--nodes", "2"]));
    let state = plane.state();
    let nodes = succeed(plane.kubectl(&["get", "nodes", "--no-headers"]).stderr(Stdio::inherit()));
    let accounts = succeed(&mut plane.kubectl(&["get", "serviceaccount", "default", "-o", "name"]));
    let status = succeed(&mut plane.command("status"));
    succeed(&mut plane.command("down"));

    assert_eq!(printed, format!("export KUBECONFIG={}/kubeconfig\n", plane.dir().display()));
    assert_eq!(nodes.lines().filter(|line| line.contains(" Ready ")).count(), 2, "{nodes}");
    assert_eq!(accounts, "serviceaccount/default\n");
    for name in ["etcd", "kube-apiserver-0", "kube-controller-manager", "kube-scheduler", "kwok", "supervisor"] {
        assert!(status.contains(name), "{name} is not in\n{status}");
    }
    assert!(all_pids(&state).into_iter().all(|pid| !is_alive(pid)), "down returned too early");
    assert!(!plane.dir().exists());
    assert!(!plane.command("status").output().unwrap().status.success());
}

#[test]
fn a_second_up_reports_the_running_plane_and_prints_the_kubeconfig() {
    let plane = Up::new("second");
    succeed(&mut plane.up());
    let before = plane.state();

    let output = plane.up().arg("--quiet").output().unwrap();

    assert!(output.status.success());
    assert!(text(&output.stderr).contains("already running in"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim_end(), plane.dir().join("kubeconfig").display().to_string());
    assert_eq!(plane.state(), before);
}

#[test]
fn two_ups_at_once_start_one_plane() {
    let plane = Up::new("race");

    let start = || plane.up().arg("--quiet").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (first, second) = (start(), start());
    let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());

    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(second.status.success(), "{}", text(&second.stderr));
    assert_eq!(text(&first.stdout), text(&second.stdout));
    succeed(&mut plane.kubectl(&["get", "namespaces"]));
}

#[test]
fn keep_data_keeps_the_data() {
    let plane = Up::new("keep");
    succeed(&mut plane.up());
    succeed(&mut plane.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]));

    succeed(plane.command("down").arg("--keep-data"));
    succeed(&mut plane.up());

    let value = succeed(&mut plane.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]));
    assert_eq!(value, "b");
}

#[test]
fn children_die_with_a_supervisor_that_is_killed() {
    for tether in ["death-signal", "guard"] {
        let plane = Up::new(tether);
        succeed(plane.up().env("LOCALPLANE_TETHER", tether));
        let state = plane.state();
        let pids = all_pids(&state);
        assert_eq!(pids.len(), 3, "etcd, an API server and the supervisor");
        assert!(pids.iter().all(|pid| is_alive(*pid)));

        succeed(Command::new("kill").args(["-KILL", &state.supervisor.pid.to_string()]));

        wait_until_gone(&pids);
    }
}

#[test]
fn a_paused_child_dies_with_its_supervisor_too() {
    let plane = Up::new("paused");
    succeed(&mut plane.up());
    let state = plane.state();
    let etcd = state.components[&Component::Etcd.to_string()].process.unwrap();
    succeed(Command::new("kill").args(["-STOP", &etcd.pid.to_string()]));

    succeed(Command::new("kill").args(["-KILL", &state.supervisor.pid.to_string()]));

    wait_until_gone(&all_pids(&state));
}

#[test]
fn the_supervisor_restarts_a_crashed_component() {
    let plane = Up::new("crash");
    succeed(&mut plane.up());
    let server = Component::ApiServer(0).to_string();
    let before = plane.state().components[&server].process.unwrap();

    succeed(Command::new("kill").args(["-KILL", &before.pid.to_string()]));

    eventually("a new API server answers", || {
        let now = plane.state().components[&server].process;
        let output = plane.kubectl(&["get", "namespaces", "--request-timeout=5s"]).output().unwrap();
        if now.is_some_and(|now| now != before) && output.status.success() { Ok(()) } else { Err(text(&output.stderr)) }
    });
}

#[test]
fn removing_the_folder_stops_the_plane() {
    let plane = Up::new("removed");
    succeed(&mut plane.up());
    let pids = all_pids(&plane.state());

    // Retried because etcd may write at the same time.
    eventually("the folder is removed", || fs::remove_dir_all(plane.dir()).map_err(|error| error.to_string()));

    // A new plane in the same folder is not confused with the old one.
    succeed(&mut plane.up());
    wait_until_gone(&pids);
    succeed(&mut plane.kubectl(&["get", "namespaces"]));
}

#[test]
fn a_failed_up_shows_the_log_of_the_component_and_leaves_nothing_running() {
    let plane = Up::new("failed");

    let output = plane.up().arg("--apiserver-arg=--no-such-flag").output().unwrap();

    let error = text(&output.stderr);
    assert!(!output.status.success());
    assert!(error.contains("kube-apiserver-0 exited during startup"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
    wait_until_gone(&all_pids(&plane.state()));
}

#[test]
fn a_kubeconfig_for_any_identity_is_printed() {
    let plane = Up::new("identity");
    succeed(&mut plane.up());
    let kubeconfig = plane.folder.join("kubelet");

    let args = ["--user", "system:node:n1", "--group", "system:nodes"];
    fs::write(&kubeconfig, succeed(plane.command("kubeconfig").args(args))).unwrap();

    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let who = succeed(&mut plane.kubectl(&[&kubeconfig, "auth", "whoami", "-o", "json"]));
    assert!(who.contains("system:node:n1") && who.contains("system:nodes"), "{who}");
}

#[test]
fn down_without_a_plane_succeeds_and_removes_no_other_files() {
    let plane = Up::new("none");
    fs::create_dir_all(plane.dir()).unwrap();
    fs::write(plane.dir().join("precious"), "mine").unwrap();

    let output = plane.command("down").output().unwrap();

    assert!(output.status.success());
    assert!(text(&output.stderr).contains("no plane is running"), "{}", text(&output.stderr));
    assert!(Path::new(&plane.dir().join("precious")).exists());
}
