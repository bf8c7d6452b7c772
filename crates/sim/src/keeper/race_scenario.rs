//! Histories that provoke races: changes, deletes and returns of a node coincide with stale views
//! and crashes. Everything comes to rest after each round.

use std::time::Duration;

use perennial_core::config::Settings;
use serde_json::{Value, json};

use perennial_testkit::prng::Prng;

use super::{
    REST,
    node_workload::{KEYS, NodeWorkload, manifest_of},
    rest_for,
    scenario::{Fleet, Plan},
};
use crate::{
    actor::Actor,
    server::{
        authn::User,
        fault_plan::FaultRates,
        kinds::NODES,
        world::{Registered, Replica, World},
    },
};

/// The race of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pattern {
    /// A label is changed and changed back and the node deleted, while operators have only the
    /// first change; then they crash.
    ChangedAndBack,
    /// Two changes and a delete within the time of one request; then all operators crash.
    ChangedAndGone,
    /// A change, a delete and a return within the time of one request.
    ChangedAndReturned,
    /// A node is recreated twice while one operator still has its first incarnation.
    TwoLives,
    /// A node is saved to a file, changed, deleted and created again from the file.
    OldManifest,
    /// A record is overwritten by hand.
    BadRecord,
    /// All of these.
    Mixed,
    /// A delete reports a change while the previous change is still being written; then all
    /// operators crash.
    LostRace,
    /// One operator receives the first delete of a node after the second one, and crashes before it
    /// receives that.
    LateEnd,
}

/// Plays a history up to the end of faults. Returns the versions at which it was at rest; `None` if
/// it never was.
///
/// `closely`: races within milliseconds instead of seconds.
pub(super) async fn play(
    world: &World,
    prng: &mut Prng,
    closely: bool,
) -> anyhow::Result<(Fleet, NodeWorkload, Option<Vec<u64>>)> {
    use Pattern as P;
    let all = [P::ChangedAndBack, P::ChangedAndGone, P::ChangedAndReturned, P::TwoLives, P::OldManifest, P::BadRecord];
    let pattern = if closely {
        *prng.pick(&[P::LostRace, P::LateEnd])
    } else if prng.percent(20) {
        P::Mixed
    } else {
        *prng.pick(&all)
    };
    let mut plan = Plan::roll(prng);
    plan.beyond_limits = pattern == P::BadRecord;
    plan.names.truncate(2);
    if plan.collects {
        plan.collects = false;
        plan.settings.keeper.retention = Settings::default().keeper.retention;
    }
    let on = pattern != P::ChangedAndReturned && prng.percent(80);
    plan.registered = Registered { node_create: on, node_delete: on, pods: false };
    if closely {
        plan.registered = Registered { node_create: on, node_delete: pattern == P::LostRace, pods: false };
    }
    if matches!(pattern, P::TwoLives | P::LateEnd) {
        plan.operators = 2;
        plan.election = false;
        plan.settings.controller.leader_election.enabled = false;
    }
    let mut fleet = Fleet::begin(world, plan, prng)?;
    {
        let mut state = world.lock();
        state.replicas = vec![Replica::default(); 2];
        state.fault_rates = FaultRates::default();
        if closely {
            state.latency = (1, 3);
        }
        state.note(Duration::ZERO, || format!("{pattern:?}"));
    }
    let people = NodeWorkload::new(world, &fleet.plan, prng.split());
    let mut rests = Some(Vec::new());
    let mut round = Round { world, people, prng, key: KEYS[0], name: String::new(), lag: 0 };
    for _ in 0..2 + round.prng.below(2) {
        round.begin(&mut fleet).await?;
        match pattern {
            P::ChangedAndBack => round.changed_and_back(&mut fleet).await,
            P::ChangedAndGone => round.changed_and_gone(&mut fleet).await,
            P::ChangedAndReturned => round.changed_and_returned().await,
            P::TwoLives => round.two_lives().await,
            P::OldManifest => round.old_manifest().await,
            P::BadRecord => round.people.vandalise(&round.name).await,
            P::Mixed => round.mixed(&mut fleet).await,
            P::LostRace => round.lost_race(&mut fleet).await,
            P::LateEnd => round.late_end(&mut fleet).await,
        }
        fleet.catch_up()?;
        world.lock().fault_rates = FaultRates::default();
        let rested = rest_for(world, REST).await;
        rests = rests.filter(|_| rested).map(|mut rests| {
            rests.push(world.lock().store.rv());
            rests
        });
    }
    Ok((fleet, round.people, rests))
}

struct Round<'a> {
    world: &'a World,
    people: NodeWorkload,
    prng: &'a mut Prng,
    key: &'static str,
    name: String,
    /// Lag of stale API servers, in milliseconds.
    lag: u64,
}

impl Round<'_> {
    fn person(&self) -> Actor {
        Actor::new(self.world, User::Person)
    }

    async fn sleep(&mut self, least: u64, most: u64) {
        tokio::time::sleep(self.prng.millis(least, most.max(least))).await;
    }

    async fn set(&mut self, value: &Value) {
        let patch = json!({"metadata": {"labels": {self.key: value}}});
        drop(self.person().patch(&NODES, "", &self.name, patch).await);
    }

    fn value(&mut self) -> Value {
        if self.prng.percent(20) { Value::Null } else { json!(self.people.value(&self.name, self.key, 1)) }
    }

    /// Current value of the key.
    fn label(&self) -> Value {
        let node = self.people.node(&self.name);
        node.and_then(|node| node["metadata"]["labels"].get(self.key).cloned()).unwrap_or(Value::Null)
    }

    fn value_unlike(&mut self, others: &[&Value]) -> Value {
        loop {
            let value = self.value();
            if !others.contains(&&value) {
                return value;
            }
        }
    }

    async fn sleep_until(&self, at: Duration) {
        tokio::time::sleep(at.saturating_sub(self.world.elapsed())).await;
    }

    async fn change(&mut self) {
        let value = self.value();
        self.set(&value).await;
    }

    async fn delete(&mut self) {
        drop(self.person().delete(&NODES, "", Some(&self.name), Value::Null).await);
    }

    async fn register(&mut self) {
        let node = self.people.manifest(&self.name);
        drop(Actor::new(self.world, User::Kubelet).create(&NODES, "", node).await);
    }

    /// Waits until every operator has the current node.
    async fn begin(&mut self, fleet: &mut Fleet) -> anyhow::Result<()> {
        fleet.catch_up()?;
        self.name.clone_from(self.prng.pick(&fleet.plan.names));
        self.key = KEYS[self.prng.below(2)];
        self.lag = 1500 + self.prng.below(7500) as u64;
        if self.people.node(&self.name).is_none() {
            self.register().await;
            self.sleep(1000, 12_000).await;
        }
        if self.prng.percent(50) {
            self.change().await;
        }
        self.sleep(2000, 15_000).await;
        Ok(())
    }

    /// Makes one API server lag, or all.
    fn fall_behind(&mut self, all: bool) {
        let mut state = self.world.lock();
        let one = self.prng.below(state.replicas.len());
        for (at, replica) in state.replicas.iter_mut().enumerate() {
            replica.lag = Duration::from_millis(if all || at == one { self.lag } else { 0 });
        }
        state.faults.add("API server lags behind");
    }

    async fn changed_and_back(&mut self, fleet: &mut Fleet) {
        let before = self.label();
        self.fall_behind(true);
        let start = self.world.elapsed();
        self.change().await;
        let pause = self.prng.millis(200, self.lag - 800);
        tokio::time::sleep(pause).await;
        self.set(&before).await;
        self.sleep(0, 300).await;
        self.delete().await;
        // Operators have the change, and not yet its revert.
        let seen = start + Duration::from_millis(self.lag) + self.prng.millis(20, 300).max(pause / 2);
        self.sleep_until(seen).await;
        fleet.crash(true, self.prng);
    }

    async fn changed_and_gone(&mut self, fleet: &mut Fleet) {
        if self.prng.percent(50) {
            self.fall_behind(false);
        }
        // The first change is being captured when the delete reports the second one.
        let (_, request) = self.world.lock().latency;
        self.change().await;
        self.sleep(0, 6 * request).await;
        self.change().await;
        self.sleep(0, request / 2).await;
        self.delete().await;
        self.sleep(0, 3 * request).await;
        fleet.crash(true, self.prng);
    }

    async fn changed_and_returned(&mut self) {
        self.change().await;
        self.sleep(0, 20).await;
        self.delete().await;
        self.sleep(0, 10).await;
        self.register().await;
    }

    async fn two_lives(&mut self) {
        self.fall_behind(false);
        self.change().await;
        self.sleep(0, 400).await;
        self.delete().await;
        self.sleep(0, 100).await;
        self.register().await;
        self.sleep(0, 400).await;
        self.change().await;
        self.sleep(0, 400).await;
        if self.prng.percent(70) {
            self.delete().await;
        }
        self.sleep(self.lag, 2 * self.lag).await;
    }

    async fn old_manifest(&mut self) {
        // The node has its restored labels only.
        self.delete().await;
        self.sleep(2000, 6000).await;
        self.register().await;
        self.sleep(2000, 6000).await;
        let Some(saved) = self.people.node(&self.name).map(|node| manifest_of(&node)) else { return };
        self.change().await;
        self.sleep(0, 6000).await;
        self.delete().await;
        self.sleep(0, 6000).await;
        drop(self.person().create(&NODES, "", saved).await);
    }

    async fn mixed(&mut self, fleet: &mut Fleet) {
        let all = self.prng.percent(50);
        self.fall_behind(all);
        if self.prng.percent(40) {
            self.world.lock().fault_rates = FaultRates { slow: 250, slowest: self.lag, ..FaultRates::default() };
        }
        let pause = if self.prng.percent(50) { 15 } else { self.lag };
        for _ in 0..self.prng.below(3) {
            self.change().await;
            self.sleep(0, pause).await;
        }
        if self.prng.percent(75) {
            self.delete().await;
            self.sleep(0, pause.min(1500)).await;
            if self.prng.percent(60) {
                self.register().await;
                self.sleep(0, pause).await;
                self.change().await;
            }
        }
        self.sleep(0, 2 * self.lag).await;
        if self.prng.percent(50) {
            let all = self.prng.percent(50);
            fleet.crash(all, self.prng);
        }
        self.sleep(0, 3000).await;
    }

    async fn lost_race(&mut self, fleet: &mut Fleet) {
        let before = self.label();
        let first = self.value_unlike(&[&before]);
        let second = self.value_unlike(&[&before, &first]);
        self.fall_behind(true);
        self.world.lock().record_writes_take = Duration::from_millis(300);
        self.set(&first).await;
        // The change was delivered, the node read again, and the write sent.
        let under_way = self.world.elapsed() + Duration::from_millis(self.lag) + self.prng.millis(15, 60);
        self.sleep_until(under_way).await;
        self.set(&second).await;
        self.delete().await;
        fleet.crash(true, self.prng);
        self.world.lock().record_writes_take = Duration::ZERO;
    }

    async fn late_end(&mut self, fleet: &mut Fleet) {
        let before = self.label();
        let first = self.value_unlike(&[&before]);
        let second = self.value_unlike(&[&before, &first]);
        self.lag += 2000;
        self.fall_behind(false);
        self.set(&first).await;
        self.delete().await;
        let end = self.world.elapsed();
        self.sleep(300, 600).await;
        self.register().await;
        self.sleep(400, 900).await;
        self.set(&second).await;
        self.delete().await;
        let heard = end + Duration::from_millis(self.lag) + self.prng.millis(100, 250);
        self.sleep_until(heard).await;
        fleet.crash(true, self.prng);
    }
}
