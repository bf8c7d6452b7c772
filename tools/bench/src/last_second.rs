//! Last-second changes: each node is changed by the request before its delete.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::ListParams;
use perennial_harness::{Requests, TestCluster, Webhooks, eventually_within, node_count_or};
use serde_json::{Value, json};

use crate::{
    Size,
    contender::Contender,
    fleet::{Fleet, each, number},
    mass::{reads, writes},
    peers::no_op::NoOpWebhook,
    report::{Goal, Report, progress},
};

const AT_ONCE: usize = 64;
const KEY: &str = "bench.example.com/last-second";

pub(crate) async fn measure(size: Size, report: &mut Report) {
    let count = node_count_or(size.last_second);
    report.part(&format!(
        "Last-second changes: {count} nodes, each changed by the request before its delete, {AT_ONCE} at a time"
    ));
    let mut contenders = Contender::PERENNIAL.to_vec();
    if size.peers > 0 {
        contenders.extend([Contender::Plain, Contender::Kopf]);
    }
    let mut rows = Vec::new();
    for contender in contenders {
        let on = contender == Contender::Perennial(Webhooks::On);
        let floors = if on { Some(floors(count).await) } else { None };
        let Some(result) = run(contender, count).await else { continue };
        let ratio = floors.map(|floors| result.seconds / floors.no_op);
        rows.push(vec![
            contender.name().to_owned(),
            result.lost.to_string(),
            format!("{:.2} s", result.seconds),
            floors.map_or_else(String::new, |floors| format!("{:.2} s / {:.2} s", floors.bare, floors.no_op)),
            format!("{:.1} + {:.1}", result.writes, result.reads),
        ]);
        report.raw(&format!("lastSecond/{}", contender.name()), json!(result.lost));
        report.raw(
            &format!("lastSecond/{}/cost", contender.name()),
            json!({
                "seconds": result.seconds, "floor": floors.map(|floors| floors.bare),
                "noOpFloor": floors.map(|floors| floors.no_op),
                "writesPerLife": result.writes, "readsPerLife": result.reads, "requests": result.requests,
            }),
        );
        if on {
            report.goal("last-second changes lost, webhooks on", &result.lost.to_string(), Goal::none(result.lost));
            let writes = Goal::at_most(result.writes, 2.1, "2.1");
            report.goal("writes of a node's life with a last-second change", &format!("{:.2}", result.writes), writes);
            let reads = Goal::at_most(result.reads, 4.0, "4");
            report.goal("reads of a node's life with a last-second change", &format!("{:.2}", result.reads), reads);
        }
        if let Some(ratio) = ratio {
            let goal = Goal::at_most(ratio, 1.3, "1.3 × a no-op webhook");
            report.goal("mass delete after last-second changes, webhooks on", &format!("{ratio:.2} ×"), goal);
        }
    }
    report.table(
        &[
            "contender",
            "changes lost",
            "PATCH and delete of all nodes",
            "floor: driver alone / no-op webhook",
            "requests per node life, writes + reads",
        ],
        &rows,
    );
}

/// Seconds in which the driver alone changes and deletes the nodes, and with a webhook that changes
/// nothing.
#[derive(Clone, Copy, Debug)]
struct Floors {
    bare: f64,
    no_op: f64,
}

async fn floors(count: usize) -> Floors {
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    each(0..count, 32, |number| fleet.create_labelled(number)).count().await;
    let bare = change_and_delete(&fleet, count).await;
    let webhook = NoOpWebhook::start(&cluster).await;
    each(0..count, 32, |number| fleet.create_labelled(number)).count().await;
    let no_op = change_and_delete(&fleet, count).await;
    webhook.stop().await;
    Floors { bare, no_op }
}

/// Changes each node and deletes it with the next request. Returns the duration in seconds.
async fn change_and_delete(fleet: &Fleet, count: usize) -> f64 {
    let start = Instant::now();
    each(0..count, AT_ONCE, async |number| {
        fleet.patch(number, &json!({"metadata": {"labels": {KEY: number.to_string()}}})).await;
        fleet.delete(number).await;
    })
    .count()
    .await;
    start.elapsed().as_secs_f64()
}

/// Losses and cost of one run.
#[derive(Clone, Debug)]
struct Outcome {
    lost: usize,
    /// Duration of the changes and deletes.
    seconds: f64,
    /// Requests per node by the contender, from the first create to the return.
    writes: f64,
    reads: f64,
    /// All requests by verb and resource, with those of the driver.
    requests: Value,
}

async fn run(contender: Contender, count: usize) -> Option<Outcome> {
    progress(&format!("  {} …", contender.name()));
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let running = contender.start(&cluster).await?;
    let born = cluster.requests().await;
    each(0..count, 32, |number| fleet.create_labelled(number)).count().await;
    contender.wait_until_kept(&cluster, count).await;
    let seconds = change_and_delete(&fleet, count).await;
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
    let mut seen = (usize::MAX, Instant::now());
    eventually_within(Duration::from_mins(10), "every change is back", async || {
        let now = missing().await;
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        if now == 0 || seen.1.elapsed().as_secs() >= 15 { Ok(()) } else { Err(now) }
    })
    .await;
    let lost = missing().await;
    let after = cluster.requests().await;
    drop(running);
    let patch = json!({"metadata": {"finalizers": null}});
    each(0..count, AT_ONCE, |number| fleet.patch(number, &patch)).count().await;
    each(0..count, AT_ONCE, |number| fleet.delete(number)).count().await;
    // The driver itself writes each node four times: two creates, a PATCH and a delete.
    let writes = per_node(writes(&born, &after), count) - 4.0;
    let reads = per_node(reads(&born, &after), count);
    Some(Outcome { lost, seconds, writes, reads, requests: by_verb(&born, &after) })
}

/// Returns the requests by verb and resource, and the writes of records that conflicted.
fn by_verb(born: &Requests, after: &Requests) -> Value {
    let counts = ["GET", "POST", "PUT", "PATCH", "DELETE", "LIST"].into_iter().flat_map(|verb| {
        let since = move |resource| after.count(verb, resource) - born.count(verb, resource);
        ["nodes", "configmaps"].map(|resource| (format!("{verb} {resource}"), json!(since(resource))))
    });
    let conflicts = |requests: &Requests| {
        requests.samples().sum("apiserver_request_total", &[("resource", "configmaps"), ("code", "409")])
    };
    let conflicts = ("conflicts".to_owned(), json!(conflicts(after) - conflicts(born)));
    Value::Object(counts.chain([conflicts]).collect())
}

#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn per_node(requests: u64, count: usize) -> f64 {
    requests as f64 / count as f64
}
