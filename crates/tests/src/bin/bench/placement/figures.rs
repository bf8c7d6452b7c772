//! The figures, for programs and for people.

use std::fmt::Write as _;

use perennial_core::placement::slots::Split;
use perennial_tests::{Requests, Samples};
use serde::Serialize;

use super::{FLOOR, PERCENTAGE};

const WEBHOOK: &str = "mutate/pods";
/// The edges of the operator's histogram, in milliseconds.
const EDGES: [(&str, f64); 17] = [
    ("0.001", 1.0),
    ("0.002", 2.0),
    ("0.003", 3.0),
    ("0.004", 4.0),
    ("0.005", 5.0),
    ("0.006", 6.0),
    ("0.008", 8.0),
    ("0.01", 10.0),
    ("0.015", 15.0),
    ("0.02", 20.0),
    ("0.03", 30.0),
    ("0.05", 50.0),
    ("0.1", 100.0),
    ("0.25", 250.0),
    ("0.5", 500.0),
    ("1.0", 1_000.0),
    ("2.0", 2_000.0),
];

/// One size at which everything stood still.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stop {
    pub replicas: u32,
    pub spot: usize,
    pub on_demand: usize,
    /// Replicas in the wrong class.
    pub wrong: usize,
}

impl Stop {
    pub(crate) fn of(replicas: u32, (spot, on_demand): (usize, usize)) -> Self {
        let wanted = Split::new(PERCENTAGE, FLOOR).spot(replicas) as usize;
        Self { replicas, spot, on_demand, wrong: spot.abs_diff(wanted) }
    }
}

/// How long pods waited for the webhook: half and nearly all of them no longer than this, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub requests: f64,
    pub p50: f64,
    pub p99: f64,
    /// The mean as the API server saw it, with TLS and the way there and back.
    pub outside: f64,
}

impl Latency {
    pub(crate) fn between(before: &(Samples, Requests), after: &(Samples, Requests)) -> Self {
        let of = |name: &str, labels: &[(&str, &str)]| after.0.sum(name, labels) - before.0.sum(name, labels);
        let requests = of("controller_runtime_webhook_latency_seconds_count", &[("webhook", WEBHOOK)]);
        let within =
            |edge| of("controller_runtime_webhook_latency_seconds_bucket", &[("webhook", WEBHOOK), ("le", edge)]);
        let quantile = |share: f64| {
            EDGES.iter().find(|(edge, _)| within(edge) >= share * requests).map_or(f64::INFINITY, |(_, ms)| *ms)
        };
        let outside = |what: &str| {
            let name = format!("apiserver_admission_webhook_admission_duration_seconds_{what}");
            let of = |requests: &Requests| requests.samples().sum(&name, &[("operation", "CREATE")]);
            of(&after.1) - of(&before.1)
        };
        let mean = outside("sum") / outside("count").max(1.0) * 1_000.0;
        Self { requests, p50: quantile(0.5), p99: quantile(0.99), outside: mean }
    }
}

/// What happened with two replicas whose owner was killed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Killed {
    pub kills: u32,
    pub stops: Vec<Stop>,
    /// How long it took until each stop was exact.
    pub seconds: Vec<f64>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlacementFigures {
    pub stops: Vec<Stop>,
    /// Evictions on the way through the stops.
    pub moves: f64,
    pub killed: Killed,
    /// Seconds to 1,000 pods bound.
    pub unmanaged: Vec<f64>,
    pub managed: Vec<f64>,
    /// The operator's processor time for 1,000 pods up and down, in seconds.
    pub cpu: Vec<f64>,
    pub burst: Latency,
    pub steady: Latency,
    pub writes_per_deployment_pod: f64,
    pub writes_per_stateful_pod: f64,
    /// Bytes.
    pub memory: u64,
    pub workloads: u32,
    pub pods: u32,
    /// Seconds from the change of an annotation.
    pub first_eviction: Vec<f64>,
}

impl PlacementFigures {
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.managed) / median(&self.unmanaged)
    }

    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("\n## Placement\n\n| figure | measured | at most |\n|---|---|---|\n");
        let mut row = |name: &str, measured: String, limit: &str| {
            let _ = writeln!(text, "| {name} | {measured} | {limit} |");
        };
        let wrong = |stops: &[Stop]| {
            let each = stops.iter().map(|stop| format!("{} at {}", stop.wrong, stop.replicas));
            each.collect::<Vec<_>>().join(", ")
        };
        row("replicas in the wrong class, 0→1,000→137→612→3", wrong(&self.stops), "0 at every stop");
        row("evictions for it", format!("{:.0}", self.moves), "");
        let killed = format!("{} ({} kills)", wrong(&self.killed.stops), self.killed.kills);
        row("the same with two replicas, the owner killed in the middle", killed, "0 after takeover");
        let (managed, unmanaged) = (median(&self.managed), median(&self.unmanaged));
        let bound = format!("{managed:.1} s over {unmanaged:.1} s = {:.2} ×", self.ratio());
        row("1,000 pods bound, managed over unmanaged", bound, "1.3 ×");
        row("operator's processor time for 1,000 pods up and down", format!("{:.1} s", median(&self.cpu)), "");
        for (what, latency, limit) in [
            ("webhook p50 / p99, burst 100→1,000", &self.burst, "10 / 100 ms"),
            ("webhook p50 / p99, 20 pods a second", &self.steady, "2 / 10 ms"),
        ] {
            let Latency { requests, p50, p99, outside } = latency;
            let measured = format!(
                "within {p50} / {p99} ms of {requests:.0} requests ({outside:.1} ms on average as the API server sees it)"
            );
            row(what, measured, limit);
        }
        let writes = format!("{:.3} / {:.3}", self.writes_per_deployment_pod, self.writes_per_stateful_pod);
        row("operator's writes per Deployment pod / StatefulSet pod", writes, "1 / 0");
        let memory = format!("{} MiB", self.memory.div_ceil(1_048_576));
        let what = format!("peak memory with {} workloads and {} pods", self.workloads, self.pods);
        row(&what, memory, "100 MiB with 2,000 and 20,000");
        let slowest = self.first_eviction.iter().copied().fold(0.0, f64::max);
        row("annotation change to the first eviction, slowest", format!("{slowest:.2} s"), "5 s");
        text
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
