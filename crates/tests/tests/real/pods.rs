//! The operator's pods, and the reviews that the API server sends them.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use localplane::Component;
use perennial_harness::{Metrics, TestCluster, eventually};
use tokio::task::JoinSet;

pub(crate) const NAMESPACE: &str = "perennial-system";
pub(crate) const NODE: &str = "real-0";

/// Creates a node as a dry run, which sends a review and stores nothing.
pub(crate) async fn dry_create(client: &Client, name: &str) {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    Api::<Node>::all(client.clone()).create(&dry_run, &Node { metadata, ..Node::default() }).await.unwrap();
}

/// Waits until a rollout is complete.
pub(crate) fn rolled_out(cluster: &TestCluster) {
    cluster.kubectl(&format!("rollout status deployment/perennial -n {NAMESPACE} --timeout=180s"));
}

/// Waits until every API server sends its reviews to the pods.
pub(crate) async fn reviews_are_answered(cluster: &TestCluster) {
    for server in 0..cluster.plane().apiservers() {
        let client = cluster.client_of_server(server).await;
        eventually(format!("reviews of API server {server} are answered"), async || {
            let before = Reviews::of(cluster, server);
            dry_create(&client, "first").await;
            let after = Reviews::of(cluster, server);
            if after.sent > before.sent && after.failed_open <= before.failed_open { Ok(()) } else { Err("not yet") }
        })
        .await;
    }
}

/// Counters of one API server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reviews {
    /// Reviews of creates of nodes.
    pub(crate) sent: f64,
    /// Reviews that failed, so that the request went on without them.
    pub(crate) failed_open: f64,
}

impl Reviews {
    pub(crate) fn of(cluster: &TestCluster, server: usize) -> Self {
        let url = cluster.plane().url(server);
        let metrics = Metrics::new(cluster.kubectl(&format!("get --raw /metrics --server={url}")));
        let creates = [("name", "nodes.create.perennial.dev")];
        Self {
            sent: metrics.sum("apiserver_admission_webhook_request_total", &creates),
            failed_open: metrics.sum("apiserver_admission_webhook_fail_open_count", &[]),
        }
    }

    /// Fails the test if a review failed open since `self`. Returns the number of reviews sent.
    #[track_caller]
    pub(crate) fn assert_answered_since(self, cluster: &TestCluster, server: usize) -> f64 {
        let now = Self::of(cluster, server);
        let failed = now.failed_open - self.failed_open;
        let log = fs::read_to_string(cluster.plane().log_path(Component::ApiServer(server))).unwrap_or_default();
        let lines: Vec<_> = log.lines().filter(|line| line.contains("failing open")).collect();
        let sent = now.sent - self.sent;
        assert!(failed < 0.5, "{failed} of {sent} reviews failed open:\n{}", lines.join("\n"));
        sent
    }
}

/// Clients that create nodes without a pause until they are stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    created: Arc<AtomicUsize>,
    clients: JoinSet<()>,
}

impl Load {
    pub(crate) fn start(client: &Client, clients: usize) -> Self {
        let mut load = Self { stop: Arc::default(), created: Arc::default(), clients: JoinSet::new() };
        for number in 0..clients {
            let (client, stop, created) = (client.clone(), Arc::clone(&load.stop), Arc::clone(&load.created));
            load.clients.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    dry_create(&client, &format!("load-{number}")).await;
                    created.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        load
    }

    pub(crate) fn created(&self) -> usize {
        self.created.load(Ordering::Relaxed)
    }

    /// Ends the load and returns the number of creates.
    pub(crate) async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await;
        self.created.load(Ordering::Relaxed)
    }
}

/// Creates nodes in rounds with a pause between them, so that all connections are idle for that
/// time. Each round opens or reuses as many connections as it has creates.
pub(crate) async fn create_at_intervals(client: &Client, interval: Duration, rounds: usize, at_once: usize) {
    for round in 0..rounds {
        if round > 0 {
            // The pause is the subject of the test.
            tokio::time::sleep(interval).await;
        }
        let creates = (0..at_once).map(|number| {
            let client = client.clone();
            async move { dry_create(&client, &format!("idle-{number}")).await }
        });
        creates.collect::<JoinSet<_>>().join_all().await;
    }
}

/// A running container of the operator.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) pod: String,
    pub(crate) restarts: u64,
    /// Its process, as this machine sees it.
    pub(crate) pid: Option<u32>,
}

impl Container {
    /// Returns the running containers.
    pub(crate) fn all(cluster: &TestCluster) -> Vec<Self> {
        let selector = "-l app.kubernetes.io/name=perennial --field-selector=status.phase=Running";
        let pods = cluster.kubectl(&format!("get pods -n {NAMESPACE} {selector} -o json"));
        let pods: serde_json::Value = serde_json::from_str(&pods).unwrap();
        let running = pods["items"].as_array().unwrap().iter().filter(|pod| {
            let status = &pod["status"]["containerStatuses"][0];
            status["name"] == "perennial" && status["state"]["running"].is_object()
        });
        running
            .map(|pod| Self {
                pod: pod["metadata"]["name"].as_str().unwrap().to_owned(),
                restarts: pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap(),
                pid: process_of(pod["metadata"]["uid"].as_str().unwrap()),
            })
            .collect()
    }
}

/// Finds the operator in the cgroup of a pod.
fn process_of(pod: &str) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").trim() == "perennial" && read("cgroup").contains(pod)
    })
}
