//! Latency of admission while nodes are created and deleted at a steady rate.

use std::time::{Duration, Instant};

use futures::StreamExt;
use perennial_harness::{TestCluster, Webhooks, record_name};
use serde_json::json;
use tokio::{task::JoinSet, time::MissedTickBehavior};

use crate::{
    Size,
    fleet::{Fleet, each, name},
    latency::Latency,
    report::{Goal, Report},
};

/// Node creates and deletes per second.
const RATE: u64 = 200;
const NODES: usize = 200;

pub(crate) async fn measure(size: Size, report: &mut Report) {
    report.part(&format!("Admission at {RATE} node creates and deletes a second, for {} s", size.seconds));
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let operator = cluster.start(Webhooks::On).await;
    each(0..NODES, 32, |number| fleet.create_labelled(number)).count().await;
    cluster.wait_for_records(NODES).await;
    each(0..NODES, 32, |number| fleet.delete(number)).count().await;

    let before = (operator.metrics(), cluster.requests().await);
    let mut pace = tokio::time::interval(Duration::from_secs(1) * 2 / u32::try_from(RATE).unwrap_or(u32::MAX));
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let records = cluster.records();
    let mut lives = JoinSet::new();
    for turn in 0..size.seconds * RATE / 2 {
        pace.tick().await;
        let (fleet, records) = (fleet.clone(), records.clone());
        lives.spawn(async move {
            // A name is reused after two seconds.
            let number = usize::try_from(turn).unwrap_or_default() % NODES;
            fleet.create_bare(number).await;
            fleet.delete(number).await;
            // Baseline: one read of a record by the driver, the least that admission of a delete
            // does.
            let since = Instant::now();
            records.get(&record_name(&name(number))).await.expect("reading a record");
            since.elapsed()
        });
    }
    let mut reads = lives.join_all().await;
    reads.sort_unstable();
    let read = |percent: usize| reads[(reads.len() - 1) * percent / 100].as_secs_f64() * 1_000.0;
    let after = (operator.metrics(), cluster.requests().await);
    let mut rows = Vec::new();
    for webhook in ["mutate/nodes", "validate/nodes"] {
        let Latency { requests, p50, p99, .. } = Latency::between(webhook, &before, &after);
        let goal = Goal::at_most(p99, 10.0, "p99 10 ms");
        report.goal(&format!("admission, {webhook}, p50 / p99"), &format!("within {p50} / {p99} ms"), goal);
        rows.push(vec![webhook.to_owned(), format!("{p50} ms"), format!("{p99} ms"), format!("{requests:.0}")]);
        report.raw(&format!("admission/{webhook}"), json!({"p50": p50, "p99": p99, "requests": requests}));
    }
    let (p50, p99) = (read(50), read(99));
    let this = "for comparison: reads of a record by the driver".to_owned();
    rows.push(vec![this, format!("{p50:.1} ms"), format!("{p99:.1} ms"), reads.len().to_string()]);
    report.raw("admission/read", json!({"p50": p50, "p99": p99, "requests": reads.len()}));
    report.table(&["webhook", "p50 within", "p99 within", "requests"], &rows);
}
