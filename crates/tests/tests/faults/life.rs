//! The lives of a few nodes, with something of everything that people and machines do to nodes, and what has to come of it.
//!
//! Wherever a change would be lost if nobody had seen it, the script waits until it is recorded: that is what is promised
//! without webhooks, and it makes the end the same whatever fails on the way.

use std::time::Duration;

use futures::future::join_all;
use perennial_harness::{Labels, TestCluster, eventually_within, labels};
use serde_json::Value;

/// Things fail on purpose here, and are tried again after pauses that grow.
const PATIENCE: Duration = Duration::from_mins(3);

/// Plays all lives so many times over, side by side, and waits until the cluster is as people wanted it.
pub(crate) async fn play(cluster: &TestCluster, times: usize) {
    join_all((0..times).map(|number| life(cluster, number))).await;
    assert_end(cluster, times).await;
}

/// Until every node and its record are as people wanted them, twice: the second time after Perennial has seen one more change of
/// each, so that nothing that it still had in mind comes later.
async fn assert_end(cluster: &TestCluster, times: usize) {
    for fence in [None, Some("1")] {
        join_all((0..times).flat_map(ends).map(|(node, wanted)| async move {
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

/// The nodes of a life, and what may be on them in the end.
fn ends(number: usize) -> [(String, Vec<Labels>); 4] {
    let name = |node: &str| format!("{node}-{number}");
    [
        (name("bare"), vec![labels([("team", "ml")])]),
        (name("own"), vec![labels([("team", "ops"), ("rack", "r1"), ("tier", "gold")])]),
        (name("empty"), vec![Labels::new()]),
        // What an incarnation of a moment brought is kept if anybody saw it.
        (name("flaps"), vec![labels([("team", "data")]), labels([("team", "data"), ("rack", "r7")])]),
    ]
}

async fn life(cluster: &TestCluster, number: usize) {
    let name = |node: &str| format!("{node}-{number}");
    let bare = async {
        // It leaves, returns bare, is given its labels, loses one by a person's hand, and is not given it again.
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
        // It returns with values of its own: these win, and the rest is given back.
        let node = name("own");
        born(cluster, &node, &[("team", "web"), ("tier", "gold")]).await;
        returns(cluster, &node, &[("team", "ops"), ("rack", "r1")]).await;
        let wanted = labels([("team", "ops"), ("rack", "r1"), ("tier", "gold")]);
        is_recorded(cluster, &node, std::slice::from_ref(&wanted)).await;
        returns(cluster, &node, &[]).await;
    };
    let empty = async {
        // A person takes its last label: it returns with none.
        let node = name("empty");
        born(cluster, &node, &[("team", "web")]).await;
        cluster.unlabel(&node, "team").await;
        is_recorded(cluster, &node, &[Labels::new()]).await;
        returns(cluster, &node, &[]).await;
    };
    let flaps = async {
        // It is deleted again before anybody may have given it anything.
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

/// Until a node is as one of these, and its record says the same.
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
