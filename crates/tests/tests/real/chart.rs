//! The chart, installed by helm: its webhooks are called at the addresses of pods with HTTP/1.1, as
//! in production.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DeleteParams};
use localplane::Component;
use perennial_harness::{Helm, TestCluster, chart, eventually, is_full_run};
use tokio::task::JoinSet;

use crate::{
    image,
    pods::{Load, NAMESPACE, NODE, Reviews, create_at_intervals, reviews_are_answered, rolled_out},
};

/// Number of clients that create nodes at the same time.
const CLIENTS: usize = 4;

/// Extent of the test.
struct Extent {
    /// Seconds between creates, for each API server: connections of one server do not disturb
    /// those of another.
    intervals: &'static [&'static [u64]],
    rounds: usize,
    at_once: usize,
    rollouts: usize,
}

/// Around 5 seconds, after which HTTP servers often close idle connections.
const SHORT: Extent = Extent { intervals: &[&[4], &[5], &[6]], rounds: 3, at_once: 10, rollouts: 2 };

/// 1,000 creates for each interval.
const LONG: Extent =
    Extent { intervals: &[&[1, 10], &[2, 9], &[3, 8], &[4, 7], &[5, 6]], rounds: 50, at_once: 20, rollouts: 50 };

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_review_of_operator_pods_fails_open_and_they_restore_their_own_node() {
    let extent = if is_full_run() { LONG } else { SHORT };
    let Some(cluster) = TestCluster::with_real_nodes_and_servers(1, extent.intervals.len()).await else { return };
    let notes = install(&cluster).await;
    assert!(notes.contains("registers its node again only when it restarts"), "{notes}");

    idle_connections_stay_open(&cluster, &extent).await;
    rollouts_answer_every_review(&cluster, extent.rollouts).await;
    the_node_of_both_replicas_is_restored(&cluster).await;
}

/// The API server calls the webhooks at a ClusterIP, which kube-proxy maps to a pod for each
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_review_over_a_cluster_ip_fails_open_in_rollouts() {
    let Some(cluster) = TestCluster::with_kube_proxy(1).await else { return };
    install(&cluster).await;

    rollouts_answer_every_review(&cluster, if is_full_run() { LONG.rollouts } else { 1 }).await;
}

/// Installs the chart, waits until reviews are answered, and returns the notes.
pub(crate) async fn install(cluster: &TestCluster) -> String {
    image::load(cluster);
    let place = chart().display().to_string();
    let words = ["install", "perennial", &place, "--namespace", NAMESPACE, "--create-namespace", "--wait"];
    let installed = Helm::V4.on(cluster, &[&words[..], &["--timeout", "3m"]].concat()).await.expect_success();
    rolled_out(cluster);
    reviews_are_answered(cluster).await;
    installed
}

async fn idle_connections_stay_open(cluster: &TestCluster, extent: &Extent) {
    let before: Vec<_> = (0..extent.intervals.len()).map(|server| Reviews::of(cluster, server)).collect();
    let mut servers = JoinSet::new();
    for (server, intervals) in extent.intervals.iter().enumerate() {
        let client = cluster.client_of_server(server).await;
        let (rounds, at_once) = (extent.rounds, extent.at_once);
        servers.spawn(async move {
            for interval in *intervals {
                create_at_intervals(&client, Duration::from_secs(*interval), rounds, at_once).await;
            }
        });
    }
    servers.join_all().await;

    for (server, before) in before.into_iter().enumerate() {
        let sent = before.assert_answered_since(cluster, server);
        assert!(sent > 0.5, "API server {server} sent no review");
    }
}

/// Before the node is deleted: a kubelet that starts reports its pods as not ready for a moment, and
/// reviews without an endpoint fail open.
async fn rollouts_answer_every_review(cluster: &TestCluster, rollouts: usize) {
    let before = Reviews::of(cluster, 0);
    let load = Load::start(&cluster.client(), CLIENTS);
    for _ in 0..rollouts {
        let created = load.created();
        cluster.kubectl(&format!("rollout restart deployment/perennial -n {NAMESPACE}"));
        rolled_out(cluster);
        assert!(load.created() > created, "there was no load");
    }
    let created = load.end().await;

    let sent = before.assert_answered_since(cluster, 0);
    assert!(sent >= f64::from(u32::try_from(created).unwrap()), "{sent} reviews of {created} creates");
}

/// The node is deleted while both replicas run on it.
async fn the_node_of_both_replicas_is_restored(cluster: &TestCluster) {
    let nodes: Api<Node> = Api::all(cluster.client());
    cluster.label(NODE, "team", "ml").await;
    eventually("the label is recorded", async || {
        let record = cluster.try_kubectl(&format!("get configmap node-{NODE} -n {NAMESPACE} -o jsonpath={{.data}}"));
        if record.stdout.contains(r#"\"team\":\"ml\""#) { Ok(()) } else { Err(record.stdout + &record.stderr) }
    })
    .await;

    nodes.delete(NODE, &DeleteParams::default()).await.unwrap();
    cluster.plane().restart(Component::Kubelet(0)).unwrap();

    eventually("the label is back", async || match nodes.get_opt(NODE).await.unwrap() {
        Some(node) if node.metadata.labels.as_ref().is_some_and(|labels| labels.get("team") == Some(&"ml".into())) => {
            Ok(())
        }
        other => Err(format!("{:?}", other.and_then(|node| node.metadata.labels))),
    })
    .await;
}
