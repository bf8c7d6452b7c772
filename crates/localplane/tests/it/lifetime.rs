//! How long planes and their folders live: no longer than those who started them.

use std::{fs, panic, thread};

use localplane::{Component, Plane};

use crate::support::{Folder, is_alive, kubectl_ok};

fn pids(plane: &Plane) -> Vec<u32> {
    plane.components().into_iter().filter_map(|component| plane.pid(component)).collect()
}

#[test]
fn a_dropped_plane_leaves_nothing_behind() {
    let plane = Plane::builder().start().unwrap();
    let (dir, pids) = (plane.dir().to_owned(), pids(&plane));
    assert!(dir.join("kubeconfig").exists() && pids.len() == 2);

    drop(plane);

    assert!(!dir.exists());
    assert!(pids.into_iter().all(|pid| !is_alive(pid)));
}

#[test]
fn a_panic_ends_the_plane_and_keeps_its_logs() {
    let told = thread::spawn(|| {
        let plane = Plane::builder().start().unwrap();
        let told = (plane.dir().to_owned(), pids(&plane));
        let caught = panic::catch_unwind(panic::AssertUnwindSafe(move || {
            let _plane = plane;
            panic!("as a failing test does");
        }));
        assert!(caught.is_err());
        told
    });
    let (dir, pids) = told.join().unwrap();

    assert!(pids.into_iter().all(|pid| !is_alive(pid)));
    assert!(dir.join("logs/kube-apiserver-0.log").exists());
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_plane_outlives_the_thread_that_started_it() {
    let plane = thread::spawn(|| Plane::builder().start().unwrap()).join().unwrap();

    kubectl_ok(&plane, &["get", "namespaces"]);
    assert!(pids(&plane).into_iter().all(is_alive));
}

#[test]
fn a_plane_in_a_folder_of_its_own_goes_on_with_its_data() {
    let folder = Folder::new("own");
    let dir = folder.join("plane");
    let first = Plane::builder().dir(&dir).start().unwrap();
    kubectl_ok(&first, &["create", "configmap", "kept", "--from-literal=a=b"]);
    let url = first.url(0);
    let running = Plane::builder().dir(&dir).start().unwrap_err();
    drop(first);

    let second = Plane::builder().dir(&dir).start().unwrap();

    assert!(running.to_string().contains("runs in") && running.to_string().contains("already"), "{running}");
    assert_eq!(second.url(0), url);
    assert_eq!(kubectl_ok(&second, &["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]), "b");
}

#[test]
fn an_abandoned_folder_goes_when_the_next_plane_starts() {
    let plane = Plane::builder().start().unwrap();
    let planes = plane.dir().parent().unwrap().to_owned();
    let abandoned = planes.join(format!("abandoned-{}", std::process::id()));
    let kept = planes.join(format!("kept-{}", std::process::id()));
    fs::create_dir_all(&abandoned).unwrap();
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("kept"), "").unwrap();

    let _next = Plane::builder().start().unwrap();

    assert!(!abandoned.exists());
    assert!(kept.exists(), "what somebody kept stays");
    assert!(plane.dir().exists() && plane.pid(Component::Etcd).is_some(), "what lives stays");
    fs::remove_dir_all(kept).unwrap();
}
