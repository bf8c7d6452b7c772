//! Lifetime of planes and their folders.

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
    let started = thread::spawn(|| {
        let plane = Plane::builder().start().unwrap();
        let started = (plane.dir().to_owned(), pids(&plane));
        let caught = panic::catch_unwind(panic::AssertUnwindSafe(move || {
            let _plane = plane;
            panic!("a failing test");
        }));
        assert!(caught.is_err());
        started
    });
    let (dir, pids) = started.join().unwrap();

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
fn a_plane_in_a_persistent_folder_keeps_its_data() {
    let folder = Folder::new("own");
    let dir = folder.join("plane");
    let first = Plane::builder().dir(&dir).start().unwrap();
    kubectl_ok(&first, &["create", "configmap", "kept", "--from-literal=a=b"]);
    let url = first.url(0);
    let running = Plane::builder().dir(&dir).start().unwrap_err();
    drop(first);

    let second = Plane::builder().dir(&dir).start().unwrap();

    assert!(running.to_string().contains("already running in"), "{running}");
    assert_eq!(second.url(0), url);
    assert_eq!(kubectl_ok(&second, &["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]), "b");
}

#[test]
fn the_next_plane_removes_an_abandoned_folder() {
    let plane = Plane::builder().start().unwrap();
    let planes = plane.dir().parent().unwrap().to_owned();
    let abandoned = planes.join(format!("abandoned-{}", std::process::id()));
    let kept = planes.join(format!("kept-{}", std::process::id()));
    fs::create_dir_all(&abandoned).unwrap();
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("kept"), "").unwrap();

    let _next = Plane::builder().start().unwrap();

    assert!(!abandoned.exists());
    assert!(kept.exists(), "a kept folder stays");
    assert!(plane.dir().exists() && plane.pid(Component::Etcd).is_some(), "a running plane stays");
    fs::remove_dir_all(kept).unwrap();
}
