//! Faults: stop, kill, restart, pause.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use localplane::{Component, Plane, Program, Sources};

use crate::support::{Folder, eventually, is_alive, kubectl, kubectl_ok, text};

/// A shared plane for tests that break it. It is complete at the start of each test.
fn plane_to_break() -> MutexGuard<'static, Plane> {
    static PLANE: OnceLock<Mutex<Plane>> = OnceLock::new();
    let plane = PLANE.get_or_init(|| Mutex::new(Plane::builder().start().unwrap()));
    let plane = plane.lock().unwrap_or_else(PoisonError::into_inner);
    plane.start_again().unwrap();
    plane
}

#[test]
fn data_survives_a_stop_and_a_start() {
    let plane = plane_to_break();
    kubectl_ok(&plane, &["create", "configmap", "kept", "--from-literal=a=b"]);
    let url = plane.url(0);
    let pids: Vec<_> = plane.components().into_iter().map(|component| plane.pid(component).unwrap()).collect();

    plane.stop();
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "all processes have ended");
    assert!(!kubectl(&plane, &["get", "configmaps", "--request-timeout=2s"]).status.success());
    plane.start_again().unwrap();

    assert_eq!(plane.url(0), url, "existing kubeconfigs stay valid");
    assert_eq!(kubectl_ok(&plane, &["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]), "b");
}

#[test]
fn only_restart_starts_a_killed_api_server() {
    let plane = plane_to_break();
    let server = Component::ApiServer(0);
    let pid = plane.pid(server).unwrap();

    plane.kill(server).unwrap();
    assert!(!is_alive(pid));
    assert_eq!(plane.pid(server), None);
    assert!(!kubectl(&plane, &["get", "namespaces", "--request-timeout=2s"]).status.success());
    plane.restart(server).unwrap();

    assert_ne!(plane.pid(server), Some(pid));
    kubectl_ok(&plane, &["get", "namespace", "kube-system"]);
}

#[test]
fn a_killed_etcd_loses_nothing() {
    let plane = plane_to_break();
    kubectl_ok(&plane, &["create", "configmap", "acknowledged", "--from-literal=a=b"]);

    plane.kill(Component::Etcd).unwrap();
    plane.restart(Component::Etcd).unwrap();

    // The API server reconnects.
    let value = eventually("the API server answers again", || {
        let output =
            kubectl(&plane, &["get", "configmap", "acknowledged", "-o", "jsonpath={.data.a}", "--request-timeout=5s"]);
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    });
    assert_eq!(value, "b");
}

#[test]
fn a_compacted_etcd_keeps_serving() {
    let plane = plane_to_break();
    kubectl_ok(&plane, &["create", "configmap", "newer", "--from-literal=a=b"]);

    plane.compact().unwrap();

    kubectl_ok(&plane, &["get", "configmap", "newer"]);
    kubectl_ok(&plane, &["create", "configmap", "newest", "--from-literal=a=b"]);
}

#[test]
fn arguments_of_one_start_do_not_apply_to_the_next() {
    let plane = plane_to_break();
    let server = Component::ApiServer(0);
    let args = || std::fs::read_to_string(format!("/proc/{}/cmdline", plane.pid(server).unwrap())).unwrap();

    plane.restart_with(server, &["--max-requests-inflight=123".to_owned()]).unwrap();
    assert!(args().contains("--max-requests-inflight=123"));
    plane.restart(server).unwrap();

    assert!(!args().contains("--max-requests-inflight=123"));
}

#[test]
fn a_paused_api_server_answers_nothing_until_it_is_resumed() {
    let plane = plane_to_break();
    let server = Component::ApiServer(0);
    let pid = plane.pid(server);

    plane.pause(server).unwrap();
    let paused = kubectl(&plane, &["get", "namespaces", "--request-timeout=1s"]);
    plane.resume(server).unwrap();

    assert!(!paused.status.success(), "{}", text(&paused.stdout));
    kubectl_ok(&plane, &["get", "namespaces"]);
    assert_eq!(plane.pid(server), pid, "same process");
}

#[test]
fn two_api_servers_share_one_cluster_and_one_may_fail() {
    let plane = Plane::builder().apiservers(2).start().unwrap();
    let folder = Folder::new("second");
    let second = folder.join("kubeconfig");
    std::fs::write(&second, plane.kubeconfig_for_server(1, "admin", &["system:masters"]).unwrap()).unwrap();
    assert_ne!(plane.url(0), plane.url(1));

    kubectl_ok(&plane, &["create", "configmap", "shared", "--from-literal=a=b"]);
    plane.kill(Component::ApiServer(0)).unwrap();

    let args = ["get", "configmap", "shared", "-o", "jsonpath={.data.a}"];
    let output = plane.kubectl().env("KUBECONFIG", &second).args(args).output().unwrap();
    assert_eq!(text(&output.stdout), "b", "{}", text(&output.stderr));
}

#[test]
fn a_fault_in_a_missing_component_is_an_error() {
    let plane = plane_to_break();

    let error = plane.kill(Component::Scheduler).unwrap_err();

    assert_eq!(error.to_string(), "this plane has no kube-scheduler");
    assert!(plane.restart(Component::ApiServer(7)).is_err());
}

#[test]
fn pods_run_on_fake_nodes() {
    let plane = Plane::builder().everything().nodes(2).start().unwrap();

    kubectl_ok(&plane, &["create", "deployment", "web", "--image=web", "--replicas=4"]);
    kubectl_ok(&plane, &["rollout", "status", "deployment/web", "--timeout=60s"]);

    let nodes = kubectl_ok(&plane, &["get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"]);
    let mut nodes: Vec<_> = nodes.split(' ').collect();
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes, ["node-0", "node-1"]);
}

#[test]
fn a_port_conflict_is_retried_with_other_ports() {
    let real = Sources::from_env().find(localplane::Kubernetes::from_env().unwrap(), &[Program::Etcd]).unwrap();
    let assets = Folder::new("taken");
    let marker = assets.join("failed-once");
    assets.script(
        "etcd",
        &format!(
            "if [ ! -e {marker} ]; then touch {marker}; echo 'listen tcp: bind: address already in use' >&2; exit 1; fi
exec {real} \"$@\"",
            marker = marker.display(),
            real = real.path(Program::Etcd).unwrap().display()
        ),
    );

    let plane = Plane::builder().sources(Sources::from_env().folder(assets.path())).start().unwrap();

    assert!(marker.exists(), "the first start failed");
    kubectl_ok(&plane, &["get", "namespaces"]);
}

#[test]
fn an_api_server_that_does_not_start_shows_its_log() {
    let error = Plane::builder().args(Program::KubeApiserver, ["--no-such-flag"]).start().unwrap_err().to_string();

    assert!(error.contains("kube-apiserver-0 exited during startup"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag"), "{error}");
}
