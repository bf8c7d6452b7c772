//! Step models of the Deployment controller, the ReplicaSet controller, the scheduler and the
//! kubelets, as far as placement depends on them.

use super::sim::{Sim, TICK};
use crate::placement::Class;
use crate::placement::node_labels::Choice;
use crate::placement::workload::{NodeView, PodView};

impl Sim {
    pub(super) fn deployment_controller(&mut self) {
        let Some(newest) = self.sets.iter().position(|set| set.newest) else { return };
        let old: u32 = self.sets.iter().filter(|set| !set.newest).map(|set| set.replicas).sum();
        let old_pods = self.live().filter(|pod| pod.owner != self.sets[newest].uid).count();
        if old == 0 && old_pods == 0 {
            self.sets[newest].replicas = self.replicas;
            return;
        }
        let room = (self.replicas + self.max_surge).saturating_sub(old + self.sets[newest].replicas);
        let wanted = (self.sets[newest].replicas + room).min(self.replicas);
        self.sets[newest].replicas = wanted;
        let needed = self.replicas.saturating_sub(self.max_unavailable);
        let unready_new = wanted.saturating_sub(self.ready_of(newest));
        let total = old + wanted;
        let mut spare = total.saturating_sub(needed + unready_new);
        for index in 0..self.sets.len() {
            if self.sets[index].newest {
                continue;
            }
            let healthy = self.ready_of(index);
            let unhealthy = self.sets[index].replicas.saturating_sub(healthy).min(spare);
            let gone = (unhealthy + self.available().saturating_sub(needed).min(spare - unhealthy))
                .min(self.sets[index].replicas);
            self.sets[index].replicas -= gone;
            spare -= gone;
        }
    }

    fn ready_of(&self, set: usize) -> u32 {
        let uid = &self.sets[set].uid;
        u32::try_from(self.live().filter(|pod| pod.ready && pod.owner == *uid).count()).unwrap()
    }

    pub(super) fn replica_set_controller(&mut self) {
        for (uid, wanted) in self.sets.iter().map(|set| (set.uid.clone(), set.replicas)).collect::<Vec<_>>() {
            let have = self.owned(&uid);
            for _ in have..wanted {
                self.create(uid.clone());
            }
            let mut order: Vec<usize> =
                (0..self.pods.len()).filter(|i| self.pods[*i].owner == uid && self.pods[*i].occupies()).collect();
            order.sort_by_key(|i| {
                let pod = &self.pods[*i];
                let cost = pod.cost.as_deref().map_or(0, |cost| cost.parse::<i64>().unwrap());
                (pod.node.is_some(), pod.ready, cost, std::cmp::Reverse(pod.created))
            });
            for index in order.into_iter().take(usize::try_from(have.saturating_sub(wanted)).unwrap()) {
                self.pods[index].deleting = true;
            }
        }
    }

    /// Returns the number of pods that a class can still take.
    pub(super) fn room(&self, class: Class) -> usize {
        let most = if class == Class::Spot { self.spot_room } else { self.on_demand_room };
        most.saturating_sub(self.live().filter(|pod| pod.node.is_some_and(|node| node.class == Some(class))).count())
    }

    pub(super) fn scheduler(&mut self) {
        let (mut spot, mut on_demand) = (self.room(Class::Spot), self.room(Class::OnDemand));
        for index in 0..self.pods.len() {
            let toss = if self.prng.percent(50) { Class::Spot } else { Class::OnDemand };
            let serial = self.serial();
            let pod = &mut self.pods[index];
            if pod.gated || pod.node.is_some() || !pod.occupies() {
                continue;
            }
            let class = match pod.choice {
                Choice::Only(class) => class,
                _ if spot == 0 => Class::OnDemand,
                _ if on_demand == 0 => Class::Spot,
                _ => toss,
            };
            let room = if class == Class::Spot { &mut spot } else { &mut on_demand };
            if *room == 0 {
                if pod.unschedulable.is_none() {
                    (pod.resource_version, pod.unschedulable) = (serial.to_string(), Some(self.now));
                }
                continue;
            }
            *room -= 1;
            pod.resource_version = serial.to_string();
            (pod.node, pod.scheduled) = (Some(NodeView { class: Some(class), leaving: false }), Some(self.now));
            pod.unschedulable = None;
        }
    }

    pub(super) fn kubelets(&mut self) {
        let (ticks, now) = (self.start_ticks.clone(), self.now);
        for pod in self.pods.iter_mut().filter(|pod| pod.occupies() && !pod.ready) {
            let (Some(NodeView { class: Some(class), .. }), Some(at)) = (pod.node, pod.scheduled) else { continue };
            let due = at + TICK * i32::try_from(ticks[&class]).unwrap();
            pod.ready = now >= due;
        }
        self.pods.retain(PodView::occupies);
    }
}
