//! A mass return: all nodes are deleted and created again, bare.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use perennial_tests::{TestCluster, Webhooks, eventually_within, ten_labels};
use serde_json::json;

use crate::{Report, Size, watcher::Complete};

const AT_ONCE: usize = 16;

/// What one return took and cost.
struct Return {
    /// From the first create to the last label.
    whole: Duration,
    /// From each create's answer to its labels, sorted.
    waits: Vec<Duration>,
    /// Creates whose own answer had the labels.
    in_create: usize,
    node_writes: u64,
    record_writes: u64,
    record_reads: u64,
}

pub(crate) async fn measure(size: Size, report: &mut Report) {
    let count = size.nodes;
    report.part(&format!("Mass return of {count} nodes with 10 labels each, {AT_ONCE} requests at a time"));
    let cluster = TestCluster::new().await;
    let bare = create_all(&cluster, count).await.0;
    cluster.delete_all_nodes().await;
    let driver = create_and_patch(&cluster, count).await;
    cluster.delete_all_nodes().await;
    let seconds = |time: Duration| format!("{:.2} s", time.as_secs_f64());
    report.figure("bare creates, no operator", &seconds(bare), "", json!(bare.as_secs_f64()));
    report.figure("create and PATCH by the driver itself", &seconds(driver), "", json!(driver.as_secs_f64()));

    for webhooks in [Webhooks::Off, Webhooks::On] {
        let cluster = TestCluster::new().await;
        let operator = cluster.start(webhooks).await;
        cluster.create_many(count, ten_labels).await;
        cluster.wait_for_records(count).await;
        let back = give_back(&cluster, count).await;
        let on = webhooks == Webhooks::On;
        let name = |what: &str| format!("{what}, webhooks {}", if on { "on" } else { "off" });
        let (floor, limit) = if on { (bare, "1.5 × the bare creates") } else { (driver, "1.3 × create and PATCH") };
        let ratio = back.whole.as_secs_f64() / floor.as_secs_f64();
        let whole = format!("{} = {ratio:.2} ×", seconds(back.whole));
        report.figure(&name("first create to last label"), &whole, limit, json!(ratio));
        let quantile =
            |q: usize| back.waits.get(back.waits.len().saturating_sub(1) * q / 100).copied().unwrap_or_default();
        let waits = format!("{} / {} ms", quantile(50).as_millis(), quantile(99).as_millis());
        report.figure(
            &name("a node's labels after its create's answer, p50 / p99"),
            &waits,
            "",
            json!(quantile(99).as_secs_f64()),
        );
        if on {
            report.figure(
                "labels in the create's own answer",
                &format!("{} of {count}", back.in_create),
                "all (100%)",
                json!(back.in_create),
            );
        }
        // What the driver created and deleted itself is not ours.
        let writes = format!("{} node + {} record", back.node_writes, back.record_writes);
        let limit = if on { "0".to_owned() } else { format!("{count} node + 0 record") };
        report.figure(&name("operator's writes"), &writes, &limit, json!([back.node_writes, back.record_writes]));
        report.figure(
            &name("operator's reads of records"),
            &back.record_reads.to_string(),
            "",
            json!(back.record_reads),
        );
        let peak = format!("{:.1} MiB", mebibytes(operator.peak_rss()));
        report.figure(&name("operator's peak memory"), &peak, "30 MiB at 5,000", json!(operator.peak_rss()));
        let lost = count - cluster.complete_nodes().await.0;
        report.figure(&name("nodes with wrong or lost labels"), &lost.to_string(), "0", json!(lost));
        cluster.delete_all_nodes().await;
    }
}

#[expect(clippy::cast_precision_loss)]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

/// How long the creates took, and each node's UID with the time of its answer and whether it had its labels.
async fn create_all(cluster: &TestCluster, count: usize) -> (Duration, Vec<(String, Instant, bool)>) {
    let start = Instant::now();
    let creates = (0..count).map(|number| async move {
        let node = cluster.node(&format!("node-{number:05}")).create().await;
        let complete = node.metadata.labels == Some(ten_labels(number));
        (node.metadata.uid.unwrap_or_default(), Instant::now(), complete)
    });
    let answers = stream::iter(creates).buffer_unordered(AT_ONCE).collect().await;
    (start.elapsed(), answers)
}

async fn create_and_patch(cluster: &TestCluster, count: usize) -> Duration {
    let start = Instant::now();
    let creates = (0..count).map(|number| async move {
        let name = format!("node-{number:05}");
        cluster.node(&name).create().await;
        cluster.patch_node(&name, json!({"metadata": {"labels": ten_labels(number)}})).await;
    });
    stream::iter(creates).buffer_unordered(AT_ONCE).for_each(async |()| ()).await;
    start.elapsed()
}

async fn give_back(cluster: &TestCluster, count: usize) -> Return {
    cluster.delete_all_nodes().await;
    let before = cluster.requests().await;
    let (complete, watch) = Complete::watch(cluster);
    let start = Instant::now();
    let (_, answers) = create_all(cluster, count).await;
    eventually_within(Duration::from_mins(5), "every node has its labels", async || {
        let missing = answers.iter().filter(|(uid, _, _)| complete.when(uid).is_none()).count();
        if missing == 0 { Ok(()) } else { Err(missing) }
    })
    .await;
    watch.abort();
    let after = cluster.requests().await;
    let ends = answers.iter().filter_map(|(uid, answered, _)| Some((*answered, complete.when(uid)?)));
    let mut waits: Vec<Duration> =
        ends.clone().map(|(answered, end)| end.saturating_duration_since(answered)).collect();
    waits.sort_unstable();
    let last = ends.map(|(_, end)| end).max().unwrap_or(start);
    let writes = |resource: &str| {
        let writes = after.writes_since(&before, resource);
        writes.iter().filter(|(verb, _)| **verb != "POST" || resource != "nodes").map(|(_, count)| count).sum()
    };
    Return {
        whole: last - start,
        waits,
        in_create: answers.iter().filter(|(_, _, complete)| *complete).count(),
        node_writes: writes("nodes"),
        record_writes: writes("configmaps"),
        record_reads: after.count("GET", "configmaps") - before.count("GET", "configmaps"),
    }
}
