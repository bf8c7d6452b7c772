//! What is looked at from time to time: pods that nobody came for, and the gauges.

use futures::FutureExt;
use perennial_core::placement::{
    release::{Why, bystander_frees_at},
    spec::Strength,
    view::PodView,
};

use super::{
    controller::{Placer, Standing},
    execute::side_by_side,
    index::shard_key,
};
use crate::runtime::{
    labels::{Class as ClassLabel, ClassLabels},
    reporter::Retry,
};

impl Placer {
    /// Frees pods that have waited too long, whosever they are: no pod stays gated because its owner is away.
    pub async fn free_overdue(&self) {
        let now = self.clock.now();
        let overdue: Vec<(String, PodView, Why, Strength)> = {
            let state = self.lock();
            let index = &state.view.index;
            let gated = index.pods().filter(|pod| pod.view.gated && pod.view.occupies());
            gated
                .filter_map(|pod| {
                    let key = index.key_of_owner(&pod.view.owner);
                    let attended = key.is_some_and(|key| self.is_attended(key));
                    let due = bystander_frees_at(pod.view.created, attended, &self.configured.settings);
                    if due > now {
                        return None;
                    }
                    let why = if attended { Why::Timeout } else { Why::Ownerless };
                    let workload = key.and_then(|key| index.workload(key));
                    let spec = workload.and_then(|w| index.spec(w, &self.configured.prefixes).ok().flatten());
                    let strength = spec.map_or(pod.strength, |spec| spec.strength);
                    Some((pod.namespace.clone(), pod.view.clone(), why, strength))
                })
                .collect()
        };
        if overdue.is_empty() {
            return;
        }
        let freeing =
            overdue.iter().map(|(namespace, pod, why, strength)| self.free(namespace, pod, *why, *strength).boxed());
        let freed = side_by_side(freeing.collect()).await;
        for ((_, pod, ..), answer) in overdue.iter().zip(freed) {
            if let Err(error) = answer {
                self.report(&pod.name, &error, Retry::default());
            }
        }
    }

    /// Brings the gauges up to date.
    pub fn survey(&self) {
        let (mut spot, mut on_demand, mut drift, mut short) = (0, 0, 0, 0);
        {
            let state = self.lock();
            for (key, Standing { counts, short: is_short }) in &state.standings {
                if self.ownership.is_ours(self.ownership.shard_of(shard_key(key))) {
                    spot += i64::from(counts.spot);
                    on_demand += i64::from(counts.on_demand);
                    drift += i64::from(counts.drift);
                    short += i64::from(*is_short);
                }
            }
        }
        let replicas = |class| self.metrics.placement_replicas.get_or_create_owned(&ClassLabels { class });
        replicas(ClassLabel::Spot).set(spot);
        replicas(ClassLabel::OnDemand).set(on_demand);
        self.metrics.placement_drift.set(drift);
        self.metrics.fallback_active.set(short);
        self.reconciler.report_depth();
    }
}
