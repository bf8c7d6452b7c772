//! A scenario with every kind of change of nodes, and its expected final state.
//!
//! Where an unobserved change would be lost, the script waits until it is recorded: that is the
//! guarantee without webhooks, and it makes the final state deterministic under any fault.

use std::time::Duration;

use futures::future::join_all;
use perennial_harness::{Labels, Operator, TestCluster, Webhooks, eventually_within, labels};
use serde_json::Value;

/// Faults are injected, and retries back off.
const PATIENCE: Duration = Duration::from_mins(3);

/// Coverage of incarnations by the watches of an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observed {
    Always,
    /// The operator crashes, or its watch is interrupted without webhooks, or the review of a
    /// deletion failed open: the labels of an incarnation that exists only in this time are
    /// lost (limit F).
    NotAlways,
}

impl Observed {
    /// Returns whether every incarnation was observed although the watch was interrupted: with
    /// webhooks, each deletion is captured, unless its review failed open.
    pub(crate) fn by_admission(webhooks: Webhooks, operator: &Operator) -> Self {
        let reviews =
            |labels: &[(&str, &str)]| operator.metrics().sum("controller_runtime_webhook_requests_total", labels);
        // Counts are exact: no review is in flight once the scenario has ended.
        let failed_open = reviews(&[]) - reviews(&[("code", "200")]);
        if webhooks == Webhooks::On && failed_open < 0.5 { Self::Always } else { Self::NotAlways }
    }
}

/// Runs the scenario `times` times concurrently and waits for the expected final state.
pub(crate) async fn play(cluster: &TestCluster, times: usize, observed: impl Fn() -> Observed) {
    join_all((0..times).map(|number| life(cluster, number))).await;
    assert_end(cluster, times, observed()).await;
}

/// Waits until every node and record has the expected labels, twice: the second time after another
/// change of each node, so that no pending work follows.
async fn assert_end(cluster: &TestCluster, times: usize, observed: Observed) {
    for fence in [None, Some("1")] {
        join_all((0..times).flat_map(|number| ends(number, observed)).map(|(node, wanted)| async move {
            let mut wanted: Vec<Labels> = wanted;
            if let Some(fence) = fence {
                cluster.label(&node, "fence", fence).await;
                for wanted in &mut wanted {
                    wanted.insert("fence".to_owned(), fence.to_owned());
                }
            }
            is_recorded(cluster, &node, &wanted).await;
        }))
        .await;
    }
}

/// Returns the nodes of a scenario with their allowed final labels.
fn ends(number: usize, observed: Observed) -> [(String, Vec<Labels>); 4] {
    let name = |node: &str| format!("{node}-{number}");
    let mut flaps = vec![labels([("team", "data"), ("rack", "r7")])];
    if observed == Observed::NotAlways {
        flaps.push(labels([("team", "data")]));
    }
    [
        (name("bare"), vec![labels([("team", "ml")])]),
        (name("own"), vec![labels([("team", "ops"), ("rack", "r1"), ("tier", "gold")])]),
        (name("empty"), vec![Labels::new()]),
        (name("flaps"), flaps),
    ]
}

async fn life(cluster: &TestCluster, number: usize) {
    let name = |node: &str| format!("{node}-{number}");
    let bare = async {
        // Deleted, created without labels, restored; then a label is removed and stays removed.
        let node = name("bare");
        born(cluster, &node, &[("team", "ml"), ("tier", "gold")]).await;
        returns(cluster, &node, &[]).await;
        has(cluster, &node, &[("team", "ml"), ("tier", "gold")]).await;
        cluster.unlabel(&node, "tier").await;
        is_recorded(cluster, &node, &[labels([("team", "ml")])]).await;
        returns(cluster, &node, &[]).await;
        has(cluster, &node, &[("team", "ml")]).await;
    };
    let own = async {
        // Created with its own values: these win, and the rest is restored.
        let node = name("own");
        born(cluster, &node, &[("team", "web"), ("tier", "gold")]).await;
        returns(cluster, &node, &[("team", "ops"), ("rack", "r1")]).await;
        let wanted = labels([("team", "ops"), ("rack", "r1"), ("tier", "gold")]);
        is_recorded(cluster, &node, std::slice::from_ref(&wanted)).await;
        returns(cluster, &node, &[]).await;
    };
    let empty = async {
        // Its last label is removed: it returns without labels.
        let node = name("empty");
        born(cluster, &node, &[("team", "web")]).await;
        cluster.unlabel(&node, "team").await;
        is_recorded(cluster, &node, &[Labels::new()]).await;
        returns(cluster, &node, &[]).await;
    };
    let flaps = async {
        // Deleted again before it may be restored.
        let node = name("flaps");
        born(cluster, &node, &[("team", "data")]).await;
        returns(cluster, &node, &[("rack", "r7")]).await;
        returns(cluster, &node, &[]).await;
    };
    tokio::join!(bare, own, empty, flaps);
}

async fn born(cluster: &TestCluster, node: &str, with: &[(&str, &str)]) {
    cluster.node(node).labels(with.iter().copied()).create().await;
    is_recorded(cluster, node, &[labels(with.iter().copied())]).await;
}

async fn returns(cluster: &TestCluster, node: &str, with: &[(&str, &str)]) {
    cluster.delete_node(node).await;
    cluster.node(node).labels(with.iter().copied()).create().await;
}

async fn has(cluster: &TestCluster, node: &str, wanted: &[(&str, &str)]) {
    let wanted = labels(wanted.iter().copied());
    eventually_within(PATIENCE, format!("node {node} has {wanted:?}"), async || {
        let seen = cluster.labels(node).await;
        if seen == wanted { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// Waits until the node has one of these label sets, and its record contains the same.
async fn is_recorded(cluster: &TestCluster, node: &str, wanted: &[Labels]) {
    eventually_within(PATIENCE, format!("node {node} and its record have one of {wanted:?}"), async || {
        let seen = cluster.labels(node).await;
        let recorded = cluster.record(node).await.map(|record| recorded(&record));
        let right = wanted.contains(&seen) && recorded == Some(seen.clone());
        if right { Ok(()) } else { Err(format!("the node has {seen:?}, the record {recorded:?}")) }
    })
    .await;
}

fn recorded(record: &Value) -> Labels {
    serde_json::from_value(record["labels"].clone()).unwrap_or_default()
}
