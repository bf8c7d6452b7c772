//! Real nodes: pods run, and nothing is left.

use std::{fs, process::Command};

use localplane::{Component, Kubernetes, PlaneFolder, PlaneState, ProcessState, Program, Sources};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Folder, eventually, is_alive, localplane, skip, succeed, text};

/// Returns the reason why this machine cannot run the test. The programs are downloaded or built
/// for it only with `FULL=1`.
fn unavailable(wanted: &[Program]) -> Option<String> {
    if let Err(reason) = localplane::real_nodes_supported() {
        return Some(reason.to_string());
    }
    let full = std::env::var_os("FULL").is_some_and(|value| !value.is_empty());
    let sources = Sources::from_env();
    let sources = if full { sources } else { sources.downloads(None).build(false) };
    let missing = sources.find(Kubernetes::from_env().unwrap(), wanted).err()?;
    Some(format!("{missing}\nSet FULL=1 to build them, or run `localplane fetch --real-nodes`"))
}

fn state(folder: &Folder) -> PlaneState {
    PlaneFolder::at(folder.join("plane")).state().unwrap().unwrap()
}

fn pid_of(state: &PlaneState, component: Component) -> u32 {
    state.components[&component.to_string()].process.unwrap().pid
}

fn kill(pid: u32) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), Signal::KILL).unwrap();
}

/// Returns the cgroups of planes of this supervisor.
fn cgroups(supervisor: u32) -> Vec<String> {
    let name = format!("localplane-{supervisor}-");
    let folders = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let inside = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let all = inside.chain(fs::read_dir("/sys/fs/cgroup").unwrap().flatten());
    let paths = all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&name));
    paths.map(|entry| entry.path().display().to_string()).collect()
}

/// Returns the processes that were started with a path in this folder.
fn processes_in(folder: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(folder)).collect()
}

#[test]
fn real_nodes_run_pods_and_leave_nothing_after_sigkill() {
    if let Some(reason) = unavailable(&Program::NODE) {
        skip("needs real nodes: root, and programs that `localplane fetch --real-nodes` builds", &reason);
        return;
    }
    let folder = Folder::new("real");
    let dir = folder.join("plane");
    let run = |act: &str, args: &[&str]| succeed(localplane().args(act.split(' ')).arg("--dir").arg(&dir).args(args));
    let kubectl = |args: &[&str]| run("kubectl", &[&["--"], args].concat());
    // Fake nodes beside them, and kube-proxy with its rules where this machine has nft.
    let proxy = kube_proxy_unavailable();
    if let Some(reason) = &proxy {
        skip("needs nft and kube-proxy, which `localplane fetch --real-nodes` builds, for a part", reason);
    }
    let proxy: &[&str] = if proxy.is_none() { &["--kube-proxy"] } else { &[] };
    run("up", &[&["--real-nodes", "2", "--nodes", "2"], proxy].concat());
    let nodes = kubectl(&["get", "nodes", "--output=name"]);
    assert_eq!(nodes.lines().count(), 4, "{nodes}");

    // One pod on each node, from an image that was loaded.
    run("image load", &[dir.join("nodes/pause.tar").to_str().unwrap()]);
    for node in ["real-0", "real-1"] {
        let place = format!(r#"--overrides={{"spec":{{"nodeName":"{node}"}}}}"#);
        let image = "--image=localhost/localplane-pause:1";
        kubectl(&["run", node, image, "--image-pull-policy=Never", &place]);
    }
    kubectl(&["wait", "--for=condition=Ready", "pod/real-0", "pod/real-1", "--timeout=60s"]);
    // The API server reaches the kubelet, which answers for its container.
    assert_eq!(kubectl(&["logs", "real-1"]), "");

    // A kubelet that ends is started again.
    let before = state(&folder);
    kill(pid_of(&before, Component::Kubelet(0)));
    eventually("another kubelet runs", || {
        let now = state(&folder).components[&Component::Kubelet(0).to_string()].process;
        let pid = now.filter(ProcessState::is_alive).map(|process| process.pid);
        if pid.is_some_and(|pid| pid != pid_of(&before, Component::Kubelet(0))) {
            Ok(())
        } else {
            Err(format!("{pid:?}"))
        }
    });

    let last = state(&folder);
    assert!(!cgroups(last.supervisor.pid).is_empty());
    kill(last.supervisor.pid);

    let path = dir.display().to_string();
    eventually("everything ends", || {
        let alive: Vec<_> =
            last.components.iter().filter(|(_, state)| state.process.is_some_and(|p| is_alive(p.pid))).collect();
        let left = (alive, processes_in(&path), cgroups(last.supervisor.pid));
        if left.0.is_empty() && left.1.is_empty() && left.2.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&path), "{mounts}");
    let links = text(&Command::new("ip").args(["-brief", "link"]).output().unwrap().stdout);
    assert!(!links.lines().any(|link| link.starts_with("real-") || link.starts_with("nodes ")), "{links}");
    if !proxy.is_empty() {
        // The rules are in the network of the nodes, never in that of the machine.
        let tables = text(&Command::new("nft").args(["list", "tables"]).output().unwrap().stdout);
        assert!(!tables.contains("kube-proxy"), "{tables}");
    }
}

/// Returns the reason why kube-proxy cannot run here, where real nodes can.
fn kube_proxy_unavailable() -> Option<String> {
    let missing = || unavailable(&[Program::KubeProxy]);
    localplane::kube_proxy_supported().err().map(|reason| reason.to_string()).or_else(missing)
}

#[test]
fn a_cluster_ip_is_reached_from_a_node_with_kube_proxy() {
    if let Some(reason) = unavailable(&Program::NODE).or_else(kube_proxy_unavailable) {
        skip("needs real nodes, nft, and kube-proxy, which `localplane fetch --real-nodes` builds", &reason);
        return;
    }
    let folder = Folder::new("proxy");
    let dir = folder.join("plane");
    let run = |act: &str, args: &[&str]| succeed(localplane().args(act.split(' ')).arg("--dir").arg(&dir).args(args));
    let kubectl = |args: &[&str]| run("kubectl", &[&["--"], args].concat());
    run("up", &["--real-nodes", "1", "--no-kwok", "--kube-proxy"]);
    let reaches = |address: &str| {
        let script = format!("exec 3<>/dev/tcp/{address}/443");
        let target = format!("--target={}", pid_of(&state(&folder), Component::Node(0)));
        Command::new("nsenter")
            .arg(target)
            .args(["--net", "--", "timeout", "2", "bash", "-c", &script])
            .output()
            .unwrap()
            .status
            .success()
    };

    // A Service with the API server as its endpoint, at an address that no interface has.
    assert!(!reaches("10.96.7.7"));
    let path = "{.endpoints[0].addresses[0]} {.ports[0].port}";
    let endpoint = kubectl(&["get", "endpointslice", "kubernetes", "-o", &format!("jsonpath={path}")]);
    let (address, port) = endpoint.split_once(' ').unwrap();
    let objects = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: other}}\n\
         spec: {{clusterIP: 10.96.7.7, ports: [{{name: https, port: 443, targetPort: {port}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: other, labels: {{kubernetes.io/service-name: other}}}}\n\
         endpoints: [{{addresses: [{address}]}}]\nports: [{{name: https, port: {port}}}]\n"
    );
    let file = folder.join("objects.yaml");
    fs::write(&file, objects).unwrap();
    kubectl(&["apply", "-f", file.to_str().unwrap()]);

    eventually("the ClusterIP is reached", || if reaches("10.96.7.7") { Ok(()) } else { Err("not yet".to_owned()) });
    run("down", &[]);
}

#[test]
fn a_machine_that_cannot_run_real_nodes_gets_the_reason() {
    let folder = Folder::new("unsupported");
    let mut up = localplane();
    up.args(["up", "--real-nodes", "1", "--dir"]).arg(folder.join("plane")).env("PATH", folder.path());

    let refused = up.output().unwrap();

    let errors = text(&refused.stderr);
    assert!(!refused.status.success());
    assert!(errors.contains("cannot run real nodes: "), "{errors}");
    assert!(errors.contains("needs root") || errors.contains("not found in PATH"), "{errors}");
}
