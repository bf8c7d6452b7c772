//! Mass return: nodes are labelled, all of them are deleted, and created again without user labels.

use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams, core::PartialObjectMeta};
use perennial_harness::{Requests, TestCluster, Webhooks, eventually_within};
use serde_json::{Value, json};

use crate::{
    contender::{Contender, Usage},
    fleet::{AT_ONCE, Fleet, State, each, number, state},
    floor::{self, Baseline, Floor, Work, mean},
    plot::{Line, bars, lines},
    report::{Goal, Report},
    watcher::Complete,
};

/// Duration and cost of one return.
#[derive(Debug)]
pub(crate) struct Return {
    count: usize,
    /// From the first create to the last restored label.
    whole: Duration,
    /// From the response of each create to its labels, sorted.
    waits: Vec<Duration>,
    /// Number of creates whose response had the labels.
    in_create: usize,
    wrong: usize,
    resurrected: usize,
    /// Writes to nodes and to stored label sets during the return.
    node_writes: u64,
    store_writes: u64,
    /// GETs of nodes and of stored label sets during the return.
    reads: u64,
    /// Requests per node over the whole cycle: labelled, changed, deleted, restored.
    life: f64,
    usage: Usage,
    /// CPU time of all processes during the return. More meaningful than the duration on
    /// a busy machine.
    work: Work,
}

/// Measures mass returns. `peers` is the number of nodes of the return that includes the peers.
pub(crate) async fn measure(sizes: &[usize], peers: usize, report: &mut Report) {
    for &count in sizes {
        report.part(&format!("Mass return of {count} nodes with 10 labels, {AT_ONCE} requests at a time"));
        let mut back = Vec::new();
        let mut contenders = Contender::PERENNIAL.to_vec();
        if count == peers {
            contenders.extend([Contender::Plain, Contender::Kopf]);
        }
        for contender in contenders {
            let with_webhooks = contender == Contender::Perennial(Webhooks::On);
            let baseline = if with_webhooks { Baseline::Create } else { Baseline::CreateAndPatch };
            let before = floor::measure(count, baseline).await;
            let no_op_before =
                if with_webhooks { Some(floor::measure(count, Baseline::NoOpWebhook).await.0) } else { None };
            let Some(result) = live(contender, count).await else { continue };
            let no_op = match no_op_before {
                Some(before) => Some([before, floor::measure(count, Baseline::NoOpWebhook).await.0]),
                None => None,
            };
            let after = floor::measure(count, baseline).await;
            let work = f64::midpoint(before.1, after.1);
            back.push((contender, result, Floor { times: [before.0, after.0], work, no_op }));
        }
        show(count, &back, report);
    }
}

/// Runs one cycle of all nodes with a contender.
async fn live(contender: Contender, count: usize) -> Option<Return> {
    crate::report::progress(&format!("  {} …", contender.name()));
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let running = contender.start(&cluster).await?;
    let born = cluster.requests().await;
    each(0..count, AT_ONCE, |number| fleet.create_raw(number)).count().await;
    each(0..count, AT_ONCE, |number| fleet.label(number)).count().await;
    contender.wait_until_kept(&cluster, count).await;
    each(0..count, AT_ONCE, |number| fleet.delete(number)).count().await;
    fleet.wait_until_gone(&cluster).await;

    let before = cluster.requests().await;
    let (complete, watch) = Complete::watch(&cluster);
    let work = Work::so_far(&cluster, Some(running.pid()));
    let start = Instant::now();
    let answers: Vec<(String, Instant, bool)> = each(0..count, AT_ONCE, async |number| {
        let node = fleet.create_bare(number).await;
        let has_all = state(node.metadata.labels.as_ref(), number) == State::Complete;
        (node.metadata.uid.unwrap_or_default(), Instant::now(), has_all)
    })
    .collect()
    .await;
    // A contender that loses labels is never complete: stop waiting when the count does not change
    // any more.
    let mut seen = (0, Instant::now());
    eventually_within(Duration::from_mins(20), "every node has its labels", async || {
        let now = complete.count();
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        if now >= count || seen.1.elapsed() > Duration::from_secs(30) { Ok(()) } else { Err(now) }
    })
    .await;
    let work = Work::so_far(&cluster, Some(running.pid())).since(work);
    watch.abort();
    let after = cluster.requests().await;
    let (wrong, resurrected) = faults(&cluster).await;
    let usage = Usage::of(running.pid());
    drop(running);

    let ends = answers.iter().filter_map(|(uid, answered, _)| Some((*answered, complete.when(uid)?)));
    let mut waits: Vec<Duration> =
        ends.clone().map(|(answered, end)| end.saturating_duration_since(answered)).collect();
    waits.sort_unstable();
    let last = ends.map(|(_, end)| end).max().unwrap_or(start);
    let result = Return {
        count,
        whole: last - start,
        waits,
        in_create: answers.iter().filter(|(_, _, has_all)| *has_all).count(),
        wrong,
        resurrected,
        node_writes: writes_to(&before, &after, "nodes").saturating_sub(count as u64),
        store_writes: writes_to(&before, &after, "configmaps"),
        reads: reads(&before, &after),
        life: life(&born, &after, count),
        usage,
        work,
    };
    clear(&cluster, &fleet, contender, count).await;
    Some(result)
}

/// Returns the requests per node without the driver's own: two creates, one PATCH and one delete
/// per node. Lists and watches are not counted.
#[expect(clippy::cast_precision_loss, reason = "counts of requests")]
fn life(born: &Requests, after: &Requests, count: usize) -> f64 {
    let all = writes(born, after) + reads(born, after);
    all.saturating_sub(4 * count as u64) as f64 / count as f64
}

/// Returns the number of reads of nodes and of stored label sets. Lists are not counted.
pub(crate) fn reads(before: &Requests, after: &Requests) -> u64 {
    ["nodes", "configmaps"].into_iter().map(|what| after.count("GET", what) - before.count("GET", what)).sum()
}

/// Returns the number of writes to nodes and to stored label sets.
pub(crate) fn writes(before: &Requests, after: &Requests) -> u64 {
    ["nodes", "configmaps"].into_iter().map(|what| writes_to(before, after, what)).sum()
}

fn writes_to(before: &Requests, after: &Requests, resource: &str) -> u64 {
    after.writes_since(before, resource).values().sum()
}

async fn faults(cluster: &TestCluster) -> (usize, usize) {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(cluster.client());
    let list = nodes.list(&ListParams::default()).await.expect("listing nodes").items;
    let states: Vec<State> = list
        .iter()
        .map(|node| state(node.metadata.labels.as_ref(), number(node.metadata.name.as_deref().unwrap_or_default())))
        .collect();
    let of = |wanted: State| states.iter().filter(|state| **state == wanted).count();
    (of(State::Wrong), of(State::Resurrected))
}

/// Removes all nodes, and finalizers of contenders that have ended.
async fn clear(cluster: &TestCluster, fleet: &Fleet, contender: Contender, count: usize) {
    if matches!(contender, Contender::Plain | Contender::Kopf) {
        let patch = json!({"metadata": {"finalizers": null}});
        each(0..count, 64, |number| fleet.patch(number, &patch)).count().await;
    }
    each(0..count, 64, |number| fleet.delete(number)).count().await;
    fleet.wait_until_gone(cluster).await;
}

impl Return {
    fn wait(&self, percent: usize) -> Duration {
        self.waits.get(self.waits.len().saturating_sub(1) * percent / 100).copied().unwrap_or_default()
    }

    fn raw(&self) -> Value {
        json!({
            "nodes": self.count,
            "seconds": self.whole.as_secs_f64(),
            "p50": self.wait(50).as_secs_f64(), "p99": self.wait(99).as_secs_f64(), "max": self.wait(100).as_secs_f64(),
            "inCreate": self.in_create, "wrong": self.wrong, "resurrected": self.resurrected,
            "nodeWrites": self.node_writes, "storeWrites": self.store_writes, "reads": self.reads, "requestsPerLife": self.life,
            "cpuSeconds": self.usage.cpu.as_secs_f64(), "peakMemory": self.usage.peak_memory,
        })
    }
}

fn show(count: usize, back: &[(Contender, Return, Floor)], report: &mut Report) {
    report.paragraph(
        "The floor is the time of the driver alone, measured before and after each contender: bare creates for webhooks on, \
         create and PATCH for the others. × is relative to the mean of both. The no-op webhook is Perennial's server with \
         the same TLS, whose answers change nothing.",
    );
    let rows: Vec<Vec<String>> = back
        .iter()
        .map(|(contender, result, floor)| {
            vec![
                contender.name().to_owned(),
                floor.times.map(|seconds| format!("{seconds:.2}")).join(" / ") + " s",
                format!("{:.2} s = {:.2} ×", result.whole.as_secs_f64(), result.whole.as_secs_f64() / floor.seconds()),
                floor.no_op.map_or_else(String::new, |times| {
                    let ratio = result.whole.as_secs_f64() / mean(times);
                    format!("{} s: {ratio:.2} ×", times.map(|seconds| format!("{seconds:.2}")).join(" / "))
                }),
                [50, 99, 100].map(|q| result.wait(q).as_millis().to_string()).join(" / "),
                format!("{:.1}", result.life),
                format!("{} + {}", result.node_writes, result.store_writes),
                format!("{} / {}", result.wrong, result.resurrected),
                format!("{:.1} s", result.usage.cpu.as_secs_f64()),
                format!(
                    "{:.1} + {:.1} + {:.1} s = {:.2} ×",
                    result.work.server.as_secs_f64(),
                    result.work.driver.as_secs_f64(),
                    result.work.keeper.as_secs_f64(),
                    result.work.all() / floor.work
                ),
                format!("{:.1} MiB", result.usage.peak_mebibytes()),
            ]
        })
        .collect();
    report.table(
        &[
            "contender",
            "floor, before / after",
            "first create to last label",
            "no-op webhook, before / after",
            "a node's labels after its create, p50 / p99 / max, ms",
            "requests per node life",
            "writes in the return, nodes + store",
            "wrong / resurrected",
            "CPU of the whole life",
            "CPU of the return: server + driver + keeper",
            "peak memory",
        ],
        &rows,
    );
    for (contender, result, floor) in back {
        report.raw(&format!("mass/{count}/{}", contender.name()), result.raw());
        report.raw(
            &format!("mass/{count}/{}/floor", contender.name()),
            json!({"seconds": floor.times, "cpuSeconds": floor.work, "noOpSeconds": floor.no_op}),
        );
    }
    goals(count, back, report);
    let curves: Vec<Line> = back.iter().map(|(contender, result, _)| curve(*contender, result)).collect();
    let title = format!("{count} nodes return: share that has its labels, by seconds after their create");
    report.plot(&format!("return-{count}"), &title, lines(&title, "seconds after the create's answer", "%", &curves));
    if back.len() > 2 {
        let memory: Vec<(String, f64)> =
            back.iter().map(|(who, result, _)| (who.name().to_owned(), result.usage.peak_mebibytes())).collect();
        let title = format!("Peak memory with {count} nodes");
        report.plot(&format!("memory-{count}"), &title, bars(&title, "MiB", &memory));
    }
}

fn goals(count: usize, back: &[(Contender, Return, Floor)], report: &mut Report) {
    for (contender, result, floor) in back {
        let Contender::Perennial(webhooks) = contender else { continue };
        let on = *webhooks == Webhooks::On;
        let name = |what: &str| format!("{what}, {count} nodes, webhooks {}", if on { "on" } else { "off" });
        let ratio = result.whole.as_secs_f64() / floor.seconds();
        if count >= 5_000 {
            if let Some(times) = floor.no_op {
                let ratio = result.whole.as_secs_f64() / mean(times);
                let goal = Goal::at_most(ratio, 1.1, "1.1 × a no-op webhook");
                report.goal(&name("mass return"), &format!("{ratio:.2} ×"), goal);
            } else {
                let goal = Goal::at_most(ratio, 1.3, "1.3 × create and PATCH");
                report.goal(&name("mass return"), &format!("{ratio:.2} ×"), goal);
                let wait = result.wait(99).as_secs_f64();
                report.goal(&name("restore p99"), &format!("{wait:.2} s"), Goal::at_most(wait, 2.0, "2 s"));
            }
        }
        if count == 5_000 {
            let memory = result.usage.peak_mebibytes();
            report.goal(&name("peak memory"), &format!("{memory:.1} MiB"), Goal::at_most(memory, 30.0, "30 MiB"));
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of requests")]
        let writes = (result.node_writes + result.store_writes) as f64 / count as f64;
        let limit = if on { 0.0 } else { 1.0 };
        let goal = Goal::at_most(writes, limit, format!("{limit:.0}"));
        report.goal(&name("writes for an unchanged node's return"), &format!("{writes:.3}"), goal);
        report.goal(&name("wrong or lost labels"), &result.wrong.to_string(), Goal::none(result.wrong));
        report.goal(&name("resurrected labels"), &result.resurrected.to_string(), Goal::none(result.resurrected));
        if on {
            let missing = count - result.in_create;
            report.goal(&name("creates whose answer had no labels"), &missing.to_string(), Goal::none(missing));
        }
    }
    let p99 = |wanted: &[Contender]| {
        let all = back.iter().filter(|(who, ..)| wanted.contains(who)).map(|(_, result, _)| result.wait(99));
        all.min().map(|wait| wait.as_secs_f64())
    };
    if let (Some(ours), Some(best)) =
        (p99(&[Contender::Perennial(Webhooks::Off)]), p99(&[Contender::Plain, Contender::Kopf]))
    {
        let ratio = ours / best.max(1e-6);
        let goal = Goal::at_most(ratio, 0.8, "0.8 ×");
        report.goal("restore p99 beside the best peer, webhooks off", &format!("{ratio:.2} ×"), goal);
    }
}

/// Share of nodes that have their labels by time since their create, in 100 points.
fn curve(contender: Contender, result: &Return) -> Line {
    let points = (0..=100u32).map(|percent| (result.wait(percent as usize).as_secs_f64(), f64::from(percent)));
    Line { name: contender.name().to_owned(), points: points.collect() }
}
