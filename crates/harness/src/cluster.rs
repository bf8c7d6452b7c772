//! A Kubernetes cluster for one test.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
};

use k8s_openapi::api::{
    admissionregistration::v1::{
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration,
    },
    coordination::v1::Lease,
    core::v1::{ConfigMap, Event, Namespace, Node},
};
use kube::{
    Api, Client, Config, Resource,
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use localplane::Plane;
use perennial_core::keeper::record::record_selector;
use serde::de::DeserializeOwned;

use tokio::sync::OnceCell;

use crate::{Operator, Webhooks, audit_log::AuditLog, plane_pool::PlaneLoan, real_nodes, skip};

/// Perennial's namespace on the shared cluster.
const SHARED_NAMESPACE: &str = "perennial-shared";

/// Reason of a skipped test.
const NEEDS_REAL_NODES: &str = "needs real nodes: root, and programs that `localplane fetch --real-nodes` builds";

const NEEDS_KUBE_PROXY: &str = "needs real nodes, nft, and kube-proxy, which `localplane fetch --real-nodes` builds";

/// A real Kubernetes without nodes, with a namespace for Perennial. Other tests never use it at the
/// same time.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct TestCluster {
    client: Client,
    namespace: String,
    /// Namespace of the test's workloads.
    workspace: String,
    /// Admin kubeconfig with that namespace as the default.
    kubeconfig: PathBuf,
    pub(crate) operators: AtomicUsize,
    /// Number of capacity nodes so far; part of their names.
    pub(crate) capacities: AtomicUsize,
    /// User of the operators and its kubeconfig: see [`TestCluster::with_shipped_roles`]. Admin
    /// otherwise.
    pub(crate) operator_user: Option<(String, PathBuf)>,
    // Last field: dropped after everything that runs on it.
    plane: PlaneLoan,
}

impl TestCluster {
    pub async fn new() -> Self {
        Self::on(PlaneLoan::take()).await
    }

    /// Starts a cluster that runs pods, with scheduler, controller manager, and kwok for the
    /// kubelets.
    pub async fn full() -> Self {
        Self::on(PlaneLoan::full()).await
    }

    /// Creates a namespace on a cluster that tests share. The test has its own nodes, and its
    /// workloads run on these nodes only. One operator manages all of them: see
    /// [`TestCluster::shared_operator`].
    pub async fn shared() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let plane = PlaneLoan::shared();
        let workspace = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let text = std::fs::read_to_string(plane.kubeconfig_path()).expect("the admin's kubeconfig");
        let mut config = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
        for context in config.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
            context.namespace = Some(workspace.clone());
        }
        let kubeconfig = plane.dir().join(format!("{workspace}.kubeconfig"));
        std::fs::write(&kubeconfig, serde_json::to_string(&config).expect("a kubeconfig")).expect("writing it");
        let client = connect_by(config).await;
        create_namespace(&client, &workspace).await;
        let namespace = SHARED_NAMESPACE.to_owned();
        let (operators, capacities) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let cluster =
            Self { client, namespace, workspace, kubeconfig, operators, capacities, operator_user: None, plane };
        cluster.shared_operator().await;
        cluster
    }

    /// Returns the operator that manages all workloads on the shared cluster. It evicts without
    /// delay and has only the placement role.
    pub async fn shared_operator(&self) -> &'static Operator {
        static OPERATOR: OnceCell<Operator> = OnceCell::const_new();
        let started = OPERATOR.get_or_init(async || {
            create_namespace(&self.client, SHARED_NAMESPACE).await;
            let builder = self.operator().webhooks(Webhooks::On).set("controller.roles", "placement,webhooks");
            // No replica takes over, and on a busy machine a short Lease would expire now and then.
            let builder = builder.set("controller.leaderElection.leaseDuration", "15s");
            builder.set("placement.cooldown", "1s").start().await
        });
        started.await
    }

    /// Starts a cluster with two API servers on one etcd.
    pub async fn with_two_servers() -> Self {
        Self::on(PlaneLoan::own(Plane::builder().apiservers(2), None)).await
    }

    /// Starts a cluster with controllers but without kubelets: the test runs the pods.
    pub async fn without_kubelets() -> Self {
        Self::on(PlaneLoan::own(Plane::builder().controller_manager(true), None)).await
    }

    /// Starts a cluster with scheduler, controller manager and real nodes (`real-0`, `real-1`, …).
    /// Counts the test as skipped and returns `None` where that is not possible: see [`real_nodes`].
    pub async fn with_real_nodes(count: usize) -> Option<Self> {
        Self::with_real_nodes_and_servers(count, 1).await
    }

    /// Like [`TestCluster::with_real_nodes`], with several API servers on one etcd. Pods reach the
    /// first one.
    pub async fn with_real_nodes_and_servers(count: usize, servers: usize) -> Option<Self> {
        if let Err(reason) = real_nodes::available() {
            skip(NEEDS_REAL_NODES, &reason);
            return None;
        }
        Some(Self::on_real_nodes(Plane::builder().apiservers(servers).real_nodes(count)).await)
    }

    /// Like [`TestCluster::with_real_nodes`], with kube-proxy: the API server calls webhooks at the
    /// ClusterIP of their Service.
    pub async fn with_kube_proxy(count: usize) -> Option<Self> {
        if let Err(reason) = real_nodes::available().and_then(|()| real_nodes::kube_proxy_available()) {
            skip(NEEDS_KUBE_PROXY, &reason);
            return None;
        }
        Some(Self::on_real_nodes(Plane::builder().real_nodes(count).kube_proxy(true)).await)
    }

    async fn on_real_nodes(builder: localplane::Builder) -> Self {
        let plane = PlaneLoan::own(builder.controller_manager(true).scheduler(true), None);
        let client = connect_as_admin(&plane).await;
        Self::with_client(plane, client).await
    }

    pub(crate) async fn on(plane: PlaneLoan) -> Self {
        let client = connect_as_admin(&plane).await;
        // Left by the previous test on this plane. Namespaces stay, because no controller here
        // finishes their deletion.
        clear::<Node>(&client).await;
        clear::<ValidatingWebhookConfiguration>(&client).await;
        clear::<MutatingWebhookConfiguration>(&client).await;
        clear::<ValidatingAdmissionPolicyBinding>(&client).await;
        clear::<ValidatingAdmissionPolicy>(&client).await;
        clear_leases(&client).await;
        clear_records(&client).await;
        let events: Api<Event> = Api::default_namespaced(client.clone());
        events.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("deleting events");
        Self::with_client(plane, client).await
    }

    async fn with_client(plane: PlaneLoan, client: Client) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let namespace = format!("perennial-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        create_namespace(&client, &namespace).await;
        let (workspace, kubeconfig) = ("default".to_owned(), plane.kubeconfig_path());
        let (operators, capacities) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { client, namespace, workspace, kubeconfig, operators, capacities, operator_user: None, plane }
    }

    /// Client with admin permissions.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Client with admin permissions of the API server with this number.
    pub async fn client_of_server(&self, number: usize) -> Client {
        let config = self.plane.kubeconfig_for_server(number, "admin", &["system:masters"]);
        connect(&config.expect("a kubeconfig")).await
    }

    /// Client of any user.
    pub async fn client_of(&self, user: &str, groups: &[&str]) -> Client {
        connect(&self.plane.kubeconfig_for(user, groups).expect("a kubeconfig")).await
    }

    /// Client of a node's kubelet.
    pub async fn as_kubelet(&self, node: &str) -> Client {
        self.client_of(&format!("system:node:{node}"), &["system:nodes"]).await
    }

    /// Client of a service account in Perennial's namespace, with its own token.
    pub async fn client_of_account(&self, account: &str) -> Client {
        let kubeconfig = self.plane.kubeconfig_for_service_account(&self.namespace, account).expect("a kubeconfig");
        connect(&kubeconfig).await
    }

    /// Perennial's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Namespace of the test's workloads.
    pub fn workspace(&self) -> &str {
        &self.workspace
    }

    /// Label value of this test's nodes and workloads on the shared cluster.
    pub(crate) fn pool(&self) -> Option<&str> {
        matches!(self.plane, PlaneLoan::Shared(_)).then_some(self.workspace.as_str())
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    pub(crate) fn audit_log(&self) -> Option<&AuditLog> {
        self.plane.audit()
    }
}

async fn connect_as_admin(plane: &PlaneLoan) -> Client {
    let config = std::fs::read_to_string(plane.kubeconfig_path()).expect("the admin's kubeconfig");
    connect(&config).await
}

async fn create_namespace(client: &Client, name: &str) {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let object = Namespace { metadata, ..Namespace::default() };
    Api::all(client.clone()).create(&PostParams::default(), &object).await.expect("creating a namespace");
}

async fn connect(kubeconfig: &str) -> Client {
    connect_by(Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig")).await
}

async fn connect_by(kubeconfig: Kubeconfig) -> Client {
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a kubeconfig that is complete");
    Client::try_from(config).expect("a client")
}

/// Deletes the Leases of the previous test's operators, which seem alive for a few seconds.
async fn clear_leases(client: &Client) {
    let all: Api<Lease> = Api::all(client.clone());
    let old = ListParams::default().labels("app.kubernetes.io/managed-by=perennial");
    for lease in all.list_metadata(&old).await.expect("listing leases").items {
        let (namespace, name) = (lease.metadata.namespace.unwrap_or_default(), lease.metadata.name.unwrap_or_default());
        let api: Api<Lease> = Api::namespaced(client.clone(), &namespace);
        // It may just have been released.
        let _ = api.delete(&name, &DeleteParams::default()).await;
    }
}

/// Deletes records in the namespaces of earlier tests: commands look for installations in all
/// namespaces.
async fn clear_records(client: &Client) {
    let all: Api<ConfigMap> = Api::all(client.clone());
    let old = ListParams::default().labels(&record_selector());
    let found = all.list_metadata(&old).await.expect("listing records");
    let namespaces: BTreeSet<String> = found.items.into_iter().filter_map(|record| record.metadata.namespace).collect();
    for namespace in namespaces {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        api.delete_collection(&DeleteParams::default(), &old).await.expect("deleting records");
    }
}

async fn clear<K>(client: &Client)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = Api::all(client.clone());
    api.delete_collection(&DeleteParams::default(), &ListParams::default()).await.expect("clearing the plane");
}
