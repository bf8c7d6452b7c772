//! A cluster of a test's own.

use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{Event, Namespace, Node},
};
use kube::{
    Api, Client, Config, Resource,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use localplane::Plane;
use serde::de::DeserializeOwned;

use crate::{audit::AuditLog, planes::Borrowed};

/// A real Kubernetes without nodes, and a namespace for Perennial. Gone for others when it is dropped.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct TestCluster {
    client: Client,
    namespace: String,
    pub(crate) operators: AtomicUsize,
    // Last: what runs on it goes first.
    plane: Borrowed,
}

impl TestCluster {
    pub async fn new() -> Self {
        Self::on(Borrowed::take()).await
    }

    /// One with everything that makes pods run: scheduler, controller manager, and kwok for the kubelets.
    pub async fn whole() -> Self {
        Self::on(Borrowed::whole()).await
    }

    /// One with the controllers of Kubernetes, but without anything that runs pods: the test does that itself.
    pub async fn without_kubelets() -> Self {
        Self::on(Borrowed::own(Plane::builder().controller_manager(true), None)).await
    }

    pub(crate) async fn on(plane: Borrowed) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let config = std::fs::read_to_string(plane.kubeconfig_path()).expect("the admin's kubeconfig");
        let client = connect(&config).await;
        // Whoever had the plane before left these. Namespaces stay: nobody here would finish deleting one.
        clear::<Node>(&client).await;
        clear::<ValidatingWebhookConfiguration>(&client).await;
        clear::<MutatingWebhookConfiguration>(&client).await;
        let events: Api<Event> = Api::default_namespaced(client.clone());
        events.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("deleting events");

        let namespace = format!("perennial-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
        let object = Namespace { metadata, ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &object).await.expect("creating a namespace");
        Self { client, namespace, operators: AtomicUsize::new(0), plane }
    }

    /// The admin's client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The client of anyone.
    pub async fn client_of(&self, user: &str, groups: &[&str]) -> Client {
        connect(&self.plane.kubeconfig_for(user, groups).expect("a kubeconfig")).await
    }

    /// The client of a node's kubelet.
    pub async fn as_kubelet(&self, node: &str) -> Client {
        self.client_of(&format!("system:node:{node}"), &["system:nodes"]).await
    }

    /// Perennial's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    pub(crate) fn audit_log(&self) -> Option<&AuditLog> {
        self.plane.audit.as_ref()
    }
}

async fn connect(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a kubeconfig that is complete");
    Client::try_from(config).expect("a client")
}

async fn clear<K>(client: &Client)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("clearing the plane");
}
