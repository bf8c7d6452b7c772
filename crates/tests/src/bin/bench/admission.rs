//! How long admission takes while nodes come and go at a steady pace.

use std::time::Duration;

use perennial_tests::{TestCluster, Webhooks, ten_labels};
use serde_json::json;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use crate::{Report, Size};

/// Creates and deletes a second, together.
const RATE: u64 = 200;

pub(crate) async fn measure(size: Size, report: &mut Report) {
    report.part(&format!("Admission at {RATE} node creates and deletes a second, for {} s", size.seconds));
    let cluster = std::sync::Arc::new(TestCluster::new().await);
    let operator = cluster.start(Webhooks::On).await;
    cluster.create_many(200, ten_labels).await;
    cluster.wait_for_records(200).await;
    cluster.delete_all_nodes().await;

    let before = operator.metrics();
    let mut pace = tokio::time::interval(Duration::from_secs(1) * 2 / u32::try_from(RATE).unwrap_or(u32::MAX));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut lives = JoinSet::new();
    for turn in 0..size.seconds * RATE / 2 {
        pace.tick().await;
        let cluster = std::sync::Arc::clone(&cluster);
        lives.spawn(async move {
            let name = format!("node-{:05}", turn % 200);
            // A node that is still there from the last turn is a create less; at this pace there is none.
            if cluster.node(&name).try_create().await.is_ok() {
                cluster.delete_node(&name).await;
            }
        });
    }
    lives.join_all().await;
    let after = operator.metrics();
    for webhook in ["mutate/nodes", "validate/nodes"] {
        let of = |name: &str, labels: &[(&str, &str)]| after.sum(name, labels) - before.sum(name, labels);
        let count = of("controller_runtime_webhook_latency_seconds_count", &[("webhook", webhook)]);
        let within = |limit: &str| {
            of("controller_runtime_webhook_latency_seconds_bucket", &[("webhook", webhook), ("le", limit)])
        };
        let edges = [
            "0.001", "0.002", "0.003", "0.004", "0.005", "0.006", "0.008", "0.01", "0.015", "0.02", "0.03", "0.05",
            "0.1",
        ];
        let quantile = |share: f64| edges.iter().find(|edge| within(edge) >= share * count).copied().unwrap_or("more");
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        let measured = format!("within {p50} / {p99} s, of {count:.0} requests");
        report.figure(&format!("{webhook}, p50 / p99"), &measured, "p99 0.010 s", json!([p50, p99]));
    }
}
