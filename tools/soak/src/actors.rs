//! Actors: users and their nodes, another controller, and a workload that is scaled.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use perennial_harness::{Labels, eventually_within};
use perennial_testkit::prng::Prng;
use serde_json::{Value, json};

use crate::Soak;

/// Number of nodes.
pub(crate) const COUNT: u64 = 24;
/// Replicas are killed and paused at the same time.
const PATIENCE: Duration = Duration::from_mins(3);
/// Label of another controller: not kept by default.
const FOREIGN: &str = "feature.node.kubernetes.io/beat";
const KEYS: [&str; 5] = ["team", "tier", "example.com/rack", "example.com/pool", "owner"];

/// Replaces and relabels one node at random. The expected labels are tracked here.
pub(crate) async fn churn_node(soak: Soak, number: u64) {
    let mut prng = Prng::new(soak.seed.wrapping_add(number));
    let (cluster, name) = (&soak.cluster, format!("life-{number:03}"));
    let mut wanted = Labels::new();
    cluster.node(&name).create().await;
    while !soak.is_over() {
        tokio::time::sleep(prng.millis(50, 1499)).await;
        let key = *prng.pick(&KEYS);
        match prng.below(10) {
            0..4 => {
                let value = prng.below(1000).to_string();
                cluster.label(&name, key, &value).await;
                wanted.insert(key.to_owned(), value);
                soak.tally.add(|tally| &tally.changes);
            }
            4..6 => {
                cluster.unlabel(&name, key).await;
                wanted.remove(key);
                soak.tally.add(|tally| &tally.changes);
            }
            6..9 => {
                is_kept(&soak, &name, &wanted).await;
                cluster.delete_node(&name).await;
                tokio::time::sleep(prng.millis(0, 2999)).await;
                let mut returns = cluster.node(&name);
                if prng.percent(30) {
                    // The new incarnation has its own value, which wins.
                    let value = prng.below(1000).to_string();
                    returns = returns.label(key, &value);
                    wanted.insert(key.to_owned(), value);
                }
                returns.create().await;
                has(&soak, &name, &wanted).await;
                soak.tally.add(|tally| &tally.returns);
            }
            _ => {
                // Deleted again before it can be restored.
                is_kept(&soak, &name, &wanted).await;
                for _ in 0..=prng.below(3) {
                    cluster.delete_node(&name).await;
                    cluster.node(&name).create().await;
                }
                has(&soak, &name, &wanted).await;
                soak.tally.add(|tally| &tally.returns);
            }
        }
    }
    is_kept(&soak, &name, &wanted).await;
}

async fn labels_of(soak: &Soak, node: &str) -> Labels {
    let mut labels = soak.cluster.labels(node).await;
    labels.remove(FOREIGN);
    labels
}

async fn has(soak: &Soak, node: &str, wanted: &Labels) {
    eventually_within(PATIENCE, format!("node {node} has {wanted:?}"), async || {
        let seen = labels_of(soak, node).await;
        if seen == *wanted { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
    soak.tally.add(|tally| &tally.checks);
}

/// Waits until the node and its record have the expected labels.
async fn is_kept(soak: &Soak, node: &str, wanted: &Labels) {
    has(soak, node, wanted).await;
    eventually_within(PATIENCE, format!("the record of {node} holds {wanted:?}"), async || {
        let record = soak.cluster.record(node).await;
        let recorded = record.as_ref().map(labels_in);
        // A node that never had labels has no record.
        let right = recorded.as_ref().map_or(wanted.is_empty(), |recorded| recorded == wanted);
        if right { Ok(()) } else { Err(format!("{recorded:?}")) }
    })
    .await;
    has(soak, node, wanted).await;
}

fn labels_in(record: &Value) -> Labels {
    serde_json::from_value(record["labels"].clone()).unwrap_or_default()
}

/// Another controller that updates all nodes continuously.
pub(crate) async fn update_continuously(soak: Soak) {
    let mut beat = 0u64;
    while !soak.is_over() {
        beat += 1;
        for number in 0..COUNT {
            let patch = json!({"metadata": {"labels": {FOREIGN: beat.to_string()}}});
            let name = format!("life-{number:03}");
            // The node may not exist.
            let _ = soak.cluster.nodes().patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

/// Scales a workload up and down, and waits for the exact split at each step.
pub(crate) async fn scale_workload(soak: Soak) {
    let mut prng = Prng::new(soak.seed ^ 0xdead);
    let cluster = &soak.cluster;
    cluster
        .deployment("web")
        .annotate("spot-percentage", "60")
        .annotate("min-on-demand", "1")
        .replicas(3)
        .create()
        .await;
    while !soak.is_over() {
        let replicas = u32::try_from(prng.below(12)).unwrap_or_default();
        cluster.scale("web", replicas).await;
        let spot = (replicas * 60 / 100).min(replicas.saturating_sub(1));
        let count = |number: u32| usize::try_from(number).expect("a small number");
        cluster.wait_for_split("web", count(spot), count(replicas - spot)).await;
        soak.tally.add(|tally| &tally.scalings);
        tokio::time::sleep(prng.millis(100, 3999)).await;
    }
}
