//! Leases, certificates and webhook configurations on a real API server.

// clippy does not recognise helpers as tests, but they fail by panics as well.
#![allow(clippy::unwrap_used, clippy::panic)]

mod certificates;
mod configuration;
mod members;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use localplane::Plane;
use std::time::{Duration, Instant};

/// Admin client without kube's default retry.
pub(crate) async fn client() -> kube::Client {
    client_of("kubernetes-admin", &["system:masters"]).await
}

/// Client of any user.
pub(crate) async fn client_of(user: &'static str, groups: &'static [&'static str]) -> kube::Client {
    let plane = || Plane::shared().unwrap().kubeconfig_for(user, groups).unwrap();
    let kubeconfig = Kubeconfig::from_yaml(&tokio::task::spawn_blocking(plane).await.unwrap()).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    // Without kube's default retry, which would delay a renewal by minutes.
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

/// Creates a namespace for one test.
pub(crate) async fn namespace(client: &kube::Client, name: &str) -> String {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    name.to_owned()
}

/// Polls until the check succeeds and returns the elapsed time. Panics at the deadline with the
/// last error.
pub(crate) async fn eventually<T>(
    within: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> (T, Duration) {
    let start = Instant::now();
    loop {
        match look().await {
            Ok(value) => return (value, start.elapsed()),
            Err(seen) if start.elapsed() > within => panic!("not within {within:?}: {what}; last seen: {seen}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}
