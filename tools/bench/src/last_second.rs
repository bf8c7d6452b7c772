//! Last-second changes: each node is changed by the request before its delete.

use futures::StreamExt;
use kube::api::ListParams;
use perennial_harness::{TestCluster, Webhooks, eventually_within};
use serde_json::json;

use crate::{
    Size,
    contender::Contender,
    fleet::{Fleet, each, number},
    report::{Goal, Report, progress},
};

const AT_ONCE: usize = 64;
const KEY: &str = "bench.example.com/last-second";

pub(crate) async fn measure(size: Size, report: &mut Report) {
    let count = size.last_second;
    report.part(&format!(
        "Last-second changes: {count} nodes, each changed by the request before its delete, {AT_ONCE} at a time"
    ));
    let mut contenders = Contender::PERENNIAL.to_vec();
    if size.peers > 0 {
        contenders.extend([Contender::Plain, Contender::Kopf]);
    }
    let mut rows = Vec::new();
    for contender in contenders {
        let Some(lost) = lost(contender, count).await else { continue };
        rows.push(vec![contender.name().to_owned(), lost.to_string()]);
        report.raw(&format!("lastSecond/{}", contender.name()), json!(lost));
        if contender == Contender::Perennial(Webhooks::On) {
            report.goal("last-second changes lost, webhooks on", &lost.to_string(), Goal::none(lost));
        }
    }
    report.table(&["contender", "changes lost"], &rows);
}

async fn lost(contender: Contender, count: usize) -> Option<usize> {
    progress(&format!("  {} …", contender.name()));
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let running = contender.start(&cluster).await?;
    each(0..count, 32, |number| fleet.create_labelled(number)).count().await;
    contender.wait_until_kept(&cluster, count).await;
    each(0..count, AT_ONCE, async |number| {
        fleet.patch(number, &json!({"metadata": {"labels": {KEY: number.to_string()}}})).await;
        fleet.delete(number).await;
    })
    .count()
    .await;
    fleet.wait_until_gone(&cluster).await;
    each(0..count, 32, |number| fleet.create_bare(number)).count().await;

    let missing = async || {
        let nodes = cluster.nodes().list_metadata(&ListParams::default()).await.expect("listing nodes").items;
        let has = |node: &kube::core::PartialObjectMeta<_>| {
            let number = number(node.metadata.name.as_deref().unwrap_or_default()).to_string();
            node.metadata.labels.as_ref().is_some_and(|labels| labels.get(KEY) == Some(&number))
        };
        count - nodes.iter().filter(|node| has(node)).count()
    };
    // A lost change never arrives: stop waiting when the count does not change any more.
    let mut seen = (usize::MAX, std::time::Instant::now());
    eventually_within(std::time::Duration::from_mins(10), "every change is back", async || {
        let now = missing().await;
        if now != seen.0 {
            seen = (now, std::time::Instant::now());
        }
        if now == 0 || seen.1.elapsed().as_secs() >= 15 { Ok(()) } else { Err(now) }
    })
    .await;
    let lost = missing().await;
    drop(running);
    let patch = json!({"metadata": {"finalizers": null}});
    each(0..count, AT_ONCE, |number| fleet.patch(number, &patch)).count().await;
    each(0..count, AT_ONCE, |number| fleet.delete(number)).count().await;
    Some(lost)
}
