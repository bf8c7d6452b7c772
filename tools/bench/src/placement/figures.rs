//! Placement figures as JSON and as a report.

use perennial_core::placement::slots::Split;
use serde::Serialize;
use serde_json::json;

use super::{FLOOR, PERCENTAGE};
use crate::{
    latency::Latency,
    report::{Goal, Report},
};

/// A number of replicas at which the workload was stable.
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

/// Result of the run in which the shard owner was killed.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Killed {
    pub kills: u32,
    pub stops: Vec<Stop>,
    /// Time until each stop was exact in seconds.
    pub seconds: Vec<f64>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlacementFigures {
    pub stops: Vec<Stop>,
    /// Evictions during the stops.
    pub moves: f64,
    pub killed: Killed,
    /// Seconds until 1,000 pods were bound.
    pub unmanaged: Vec<f64>,
    pub managed: Vec<f64>,
    /// CPU time of the operator for 1,000 pods up and down in seconds.
    pub cpu: Vec<f64>,
    /// Requests of the operator in each managed burst, up and down.
    pub requests: Vec<f64>,
    pub burst: Latency,
    pub steady: Latency,
    pub writes_per_deployment_pod: f64,
    pub writes_per_stateful_pod: f64,
    /// Bytes.
    pub memory: u64,
    pub workloads: u32,
    pub pods: u32,
    /// Seconds since the change of the annotation.
    pub first_eviction: Vec<f64>,
}

impl PlacementFigures {
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.managed) / median(&self.unmanaged)
    }

    /// Adds the figures to the report.
    pub(crate) fn show(&self, report: &mut Report) {
        let wrong = |stops: &[Stop]| {
            let each = stops.iter().map(|stop| format!("{} at {}", stop.wrong, stop.replicas));
            each.collect::<Vec<_>>().join(", ")
        };
        let exact = |stops: &[Stop]| Goal {
            limit: "0 at every stop".to_owned(),
            met: !stops.is_empty() && stops.iter().all(|stop| stop.wrong == 0),
        };
        report.goal("replicas in the wrong class, 0→1,000→137→612→3", &wrong(&self.stops), exact(&self.stops));
        let killed = format!("{} ({} kills)", wrong(&self.killed.stops), self.killed.kills);
        let name = "the same with two replicas, the owner killed in the middle";
        report.goal(name, &killed, exact(&self.killed.stops));
        let (managed, unmanaged, ratio) = (median(&self.managed), median(&self.unmanaged), self.ratio());
        let bound = format!("{managed:.1} s over {unmanaged:.1} s = {ratio:.2} ×");
        report.goal("1,000 pods bound, managed over unmanaged", &bound, Goal::at_most(ratio, 1.3, "1.3 ×"));
        for (what, latency, p50, p99) in [
            ("webhook p50 / p99, burst 100→1,000", &self.burst, 10.0, 100.0),
            ("webhook p50 / p99, 20 pods a second", &self.steady, 2.0, 10.0),
        ] {
            let met = latency.p50 <= p50 && latency.p99 <= p99;
            let goal = Goal { limit: format!("{p50} / {p99} ms"), met };
            report.goal(what, &format!("within {} / {} ms", latency.p50, latency.p99), goal);
        }
        let (deployment, stateful) = (self.writes_per_deployment_pod, self.writes_per_stateful_pod);
        let goal = Goal { limit: "1 / 0".to_owned(), met: deployment <= 1.0 && stateful <= 0.0 };
        report.goal(
            "operator's writes per Deployment pod / StatefulSet pod",
            &format!("{deployment:.3} / {stateful:.3}"),
            goal,
        );
        #[expect(clippy::cast_precision_loss, reason = "bytes of memory")]
        let memory = self.memory as f64 / 1_048_576.0;
        let what = format!("peak memory with {} workloads and {} pods", self.workloads, self.pods);
        report.goal(&what, &format!("{memory:.1} MiB"), Goal::at_most(memory, 100.0, "100 MiB"));
        let slowest = self.first_eviction.iter().copied().fold(0.0, f64::max);
        let goal = Goal::at_most(slowest, 5.0, "5 s");
        report.goal("annotation change to the first eviction, slowest of 3", &format!("{slowest:.2} s"), goal);
        report.table(
            &["figure", "measured"],
            &[
                vec!["evictions on the way 0→1,000→137→612→3".to_owned(), format!("{:.0}", self.moves)],
                vec![
                    "seconds to 1,000 bound, unmanaged".to_owned(),
                    self.unmanaged.iter().map(|time| format!("{time:.1}")).collect::<Vec<_>>().join(", "),
                ],
                vec![
                    "seconds to 1,000 bound, managed".to_owned(),
                    self.managed.iter().map(|time| format!("{time:.1}")).collect::<Vec<_>>().join(", "),
                ],
                vec![
                    "operator's processor time for 1,000 pods up and down".to_owned(),
                    format!("{:.1} s", median(&self.cpu)),
                ],
                vec![
                    "operator's requests for 1,000 pods up and down".to_owned(),
                    self.requests.iter().map(|requests| format!("{requests:.0}")).collect::<Vec<_>>().join(", "),
                ],
                vec![
                    "webhook as the API server sees it, mean: burst / 20 a second".to_owned(),
                    format!("{:.1} / {:.1} ms", self.burst.outside, self.steady.outside),
                ],
            ],
        );
        report.raw("placement", json!(self));
    }
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
