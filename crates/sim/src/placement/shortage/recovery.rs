//! The end of a history with shortages: there is capacity for the target, and nothing forbids moves.

use serde_json::{Value, json};

use super::{
    super::{
        WORKLOADS, kind,
        workload_controllers::{NAMESPACE, number},
    },
    AMPLE, PAUSED, PERCENTAGE, Shortage, WITHIN,
    feature::Feature,
};
use crate::{
    oracle::placement::{Goal, target},
    server::kinds::PDBS,
};

impl Shortage {
    /// Removes everything that forbids a move.
    pub(super) async fn permit_everything(&mut self) {
        for name in ["web", "db"] {
            let percentage = *self.prng.pick(&["0", "50", "70", "90", "100"]);
            let known = self.play.person.get(kind(name == "web"), NAMESPACE, name);
            let has = known.is_some_and(|known| known["metadata"]["annotations"].get(PERCENTAGE).is_some());
            let mut annotations = json!({PAUSED: null});
            if !has {
                annotations[PERCENTAGE] = json!(percentage);
            }
            self.annotate(name, annotations).await;
            drop(self.play.person.delete(&PDBS, NAMESPACE, Some(name), Value::Null).await);
        }
    }

    /// Capacity for the target is there, and nothing forbids to use it.
    pub(super) async fn recover(&mut self) {
        let blocked = self.has(Feature::BudgetOfZero) && self.prng.percent(50);
        if blocked {
            // Running pods stay where they are.
            for name in ["web", "db"] {
                self.annotate(name, json!({PAUSED: null})).await;
            }
        } else {
            self.permit_everything().await;
        }
        if !self.keeps_partition {
            self.partition(0).await;
        }
        if blocked {
            self.set_room("on-demand", AMPLE).await;
            self.set_room("spot", AMPLE).await;
            self.reach(Goal::Running, WITHIN, "capacity is back, budgets allow no move").await;
            self.permit_everything().await;
        }
        let (spot, on_demand) = if self.prng.percent(50) { (AMPLE, AMPLE) } else { self.enough() };
        self.set_room("on-demand", on_demand).await;
        self.set_room("spot", spot).await;
        self.reach(Goal::Exact { moves_stateful: self.moves_stateful }, WITHIN, "capacity is back").await;
    }

    /// Returns the room per node that is just enough for the target and the surge of a rollout.
    fn enough(&self) -> (usize, usize) {
        let (mut spot, mut on_demand) = (4, 4);
        for (name, is_deployment) in WORKLOADS {
            let Some(workload) = self.play.person.get(kind(is_deployment), NAMESPACE, name) else { continue };
            let all = usize::try_from(number(&workload, "/spec/replicas")).unwrap_or_default();
            let wanted = usize::try_from(target(&workload)).unwrap_or_default();
            spot += wanted;
            on_demand += all - wanted;
            if !is_deployment && !self.moves_stateful {
                // Its pods stay where they are.
                (spot, on_demand) = (spot + all, on_demand + all);
            }
        }
        (spot.div_ceil(2), on_demand.div_ceil(2))
    }
}
