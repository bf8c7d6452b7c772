//! Growth: memory, CPU, start, capture and restore times of one process by number of nodes.

mod absent;

pub(crate) use absent::{AbsentSize, measure as measure_absent};

use std::time::{Duration, Instant};

use futures::StreamExt;
use perennial_harness::{Operator, OperatorBuilder, TestCluster, eventually_within};
use serde_json::json;
use tokio::time::MissedTickBehavior;

use crate::{
    Size,
    contender::Usage,
    fleet::{Fleet, count, each, wait_for_records},
    plot::{Line, lines},
    report::{Goal, Report, progress},
    watcher::Complete,
};

/// Status updates per second, as from the kubelets of a large cluster.
const HEARTBEATS: u32 = 350;
/// Maximum number of concurrent status updates: if the API server stalls, the driver waits instead
/// of overloading it.
const UNDER_WAY: usize = 64;

struct Step {
    nodes: usize,
    capture: Duration,
    ready: Duration,
    memory: f64,
    /// Status updates per second while the CPU was measured.
    updates: f64,
    cpu: f64,
}

pub(crate) async fn measure(size: Size, report: &mut Report) {
    let most = size.growth.last().copied().unwrap_or_default();
    report.part(&format!("Growth: one process and up to {most} nodes with 10 labels and a record each"));
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let mut steps = Vec::new();
    let mut filled = 0;
    for &nodes in size.growth {
        progress(&format!("  {nodes} nodes …"));
        each(filled..nodes, 32, |number| fleet.create_labelled(number)).count().await;
        filled = nodes;
        let (operator, _) = start(&cluster).await;
        let since = Instant::now();
        wait_for_records(&cluster, nodes).await;
        let capture = since.elapsed();
        operator.stop().await;

        // A new process with as many records: the cost of a restart, including its peak.
        let (operator, ready) = start(&cluster).await;
        wait_until_current(&operator).await;
        let (updates, cpu) = steady(&fleet, &operator, nodes, size.seconds).await;
        let memory = Usage::of(operator.pid()).peak_mebibytes();
        steps.push(Step { nodes, capture, ready, memory, updates, cpu });
        if nodes == most {
            mass_return(&cluster, &fleet, &operator, size.growth_return, report).await;
        }
        operator.stop().await;
    }
    show(&steps, report);
}

async fn start(cluster: &TestCluster) -> (Operator, Duration) {
    wait_until_ready(cluster.operator()).await
}

/// Starts an operator. Returns it with the time until it is ready.
async fn wait_until_ready(builder: OperatorBuilder) -> (Operator, Duration) {
    let since = Instant::now();
    let operator = builder.start_unready().await;
    eventually_within(Duration::from_mins(5), "the operator is ready", async || {
        if operator.get("/readyz").0 == 200 { Ok(()) } else { Err("it is not") }
    })
    .await;
    (operator, since.elapsed())
}

async fn wait_until_current(operator: &Operator) {
    eventually_within(Duration::from_mins(5), "every record is up to date", async || {
        let ratio = operator.metrics().sum("perennial_nodes_current_ratio", &[]);
        if ratio >= 1.0 { Ok(()) } else { Err(ratio) }
    })
    .await;
}

/// Returns status updates per second, and the operator's CPU usage in percent of one core.
async fn steady(fleet: &Fleet, operator: &Operator, nodes: usize, seconds: u64) -> (f64, f64) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / HEARTBEATS);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let beats = u32::try_from(seconds).unwrap_or(u32::MAX) * HEARTBEATS;
    let (before, since) = (Usage::of(operator.pid()), Instant::now());
    let ticks = futures::stream::unfold(pace, |mut pace| async {
        pace.tick().await;
        Some(((), pace))
    });
    let paced = ticks.zip(futures::stream::iter(0..beats));
    let updates = paced.map(|((), beat)| fleet.heartbeat(beat as usize % nodes, u64::from(beat)));
    updates.buffer_unordered(UNDER_WAY).for_each(|()| std::future::ready(())).await;
    let used = Usage::of(operator.pid()).cpu.saturating_sub(before.cpu);
    let elapsed = since.elapsed().as_secs_f64();
    (f64::from(beats) / elapsed, 100.0 * used.as_secs_f64() / elapsed)
}

async fn mass_return(cluster: &TestCluster, fleet: &Fleet, operator: &Operator, many: usize, report: &mut Report) {
    each(0..many, 64, |number| fleet.delete(number)).count().await;
    let (complete, watch) = Complete::watch(cluster);
    // The watch lists every remaining node before it delivers new ones.
    eventually_within(Duration::from_mins(5), "the driver's watch is up to date", async || {
        let (seen, nodes) = (complete.count(), count(&cluster.nodes()).await);
        if seen >= nodes { Ok(()) } else { Err(format!("{seen} of {nodes}")) }
    })
    .await;
    let already = complete.count();
    let since = Instant::now();
    each(0..many, 16, |number| fleet.create_bare(number)).count().await;
    let created = since.elapsed();
    eventually_within(Duration::from_mins(10), "all are back", async || {
        let back = complete.count() - already;
        if back >= many { Ok(()) } else { Err(back) }
    })
    .await;
    let (whole, memory) = (since.elapsed(), Usage::of(operator.pid()).peak_mebibytes());
    watch.abort();
    report.paragraph(&format!(
        "A mass return of {many} of them, webhooks off: created in {:.1} s, all labels back {:.1} s after the first create; peak memory {memory:.1} MiB.",
        created.as_secs_f64(),
        whole.as_secs_f64(),
    ));
    report.raw("growth/return", json!({"nodes": many, "seconds": whole.as_secs_f64(), "created": created.as_secs_f64(), "peakMebibytes": memory}));
}

fn show(steps: &[Step], report: &mut Report) {
    let rows: Vec<Vec<String>> = steps
        .iter()
        .map(|step| {
            vec![
                step.nodes.to_string(),
                format!("{:.1} s", step.ready.as_secs_f64()),
                format!("{:.1} s", step.capture.as_secs_f64()),
                format!("{:.1} MiB", step.memory),
                format!("{:.1} % at {:.0}", step.cpu, step.updates),
            ]
        })
        .collect();
    let updates = format!("CPU of one core at (aimed: {HEARTBEATS}) status updates a second");
    report.table(
        &["nodes", "start to ready", "time to capture the new ones", "peak memory, start included", &updates],
        &rows,
    );
    let raw = |step: &Step| {
        json!({
            "nodes": step.nodes, "readySeconds": step.ready.as_secs_f64(), "captureSeconds": step.capture.as_secs_f64(),
            "peakMebibytes": step.memory, "updatesPerSecond": step.updates, "cpuPercent": step.cpu,
        })
    };
    report.raw("growth", steps.iter().map(raw).collect());
    if let Some(last) = steps.iter().find(|step| step.nodes == 100_000) {
        let memory = Goal::at_most(last.memory, 64.0, "64 MiB");
        report.goal("peak memory, 100,000 nodes", &format!("{:.1} MiB", last.memory), memory);
        let mut cpu = Goal::at_most(last.cpu, 5.0, "5 % of a core");
        // At a lower rate the figure is not valid.
        cpu.met &= last.updates >= 0.95 * f64::from(HEARTBEATS);
        report.goal(
            "CPU, 100,000 nodes, 350 status updates a second",
            &format!("{:.1} % at {:.0}", last.cpu, last.updates),
            cpu,
        );
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of nodes")]
    let line = |name: &str, value: fn(&Step) -> f64| Line {
        name: name.to_owned(),
        points: steps.iter().map(|step| (step.nodes as f64, value(step))).collect(),
    };
    let title = "Peak memory by nodes";
    report.plot("growth-memory", title, lines(title, "nodes", "MiB", &[line("peak memory", |step| step.memory)]));
    let title = "CPU by nodes, 350 status updates a second";
    report.plot("growth-cpu", title, lines(title, "nodes", "% of a core", &[line("CPU", |step| step.cpu)]));
}
