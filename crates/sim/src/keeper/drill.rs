//! Histories that aim: what seldom happens at once in an ordinary history happens at once here. People change their minds, nodes leave and
//! return, and some operators still see the past or crash in that very moment. Everything comes to rest after each round.

use std::time::Duration;

use perennial_core::config::Settings;
use serde_json::{Value, json};

use super::{
    REST,
    people::{KEYS, People, manifest_of},
    rest_for,
    scene::{Plan, Scene},
};
use crate::{
    client::Actor,
    dice::Dice,
    server::{
        authn::Who,
        fault_plan::Weather,
        kinds::NODES,
        world::{Registered, Replica, World},
    },
};

/// What a round is about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pattern {
    /// A label is changed and changed back, and the node leaves, while operators see only the first of it; then they crash.
    ChangedAndBack,
    /// Two changes and a delete within the time of one request; then all operators crash.
    ChangedAndGone,
    /// A change, a delete and a return within the time of one request.
    ChangedAndReturned,
    /// A node lives twice while one operator still sees its first life.
    TwoLives,
    /// A node is saved as a file, changed, deleted and made again from the file.
    OldManifest,
    /// A record is written over.
    BadRecord,
    /// A little of everything.
    Mixed,
    /// A delete brings a change while the change before it is still being written; then all operators crash.
    LostRace,
    /// One operator hears of the end of a node's first life when the second one is over, and crashes before it hears of that.
    LateEnd,
}

/// Plays the part of a history before the weather clears. The versions at which everything was at rest; none where it never was.
///
/// `closely`: at moments of a few milliseconds; otherwise of seconds.
pub(super) async fn play(
    world: &World,
    dice: &mut Dice,
    closely: bool,
) -> anyhow::Result<(Scene, People, Option<Vec<u64>>)> {
    use Pattern as P;
    let all = [P::ChangedAndBack, P::ChangedAndGone, P::ChangedAndReturned, P::TwoLives, P::OldManifest, P::BadRecord];
    let pattern = if closely {
        *dice.pick(&[P::LostRace, P::LateEnd])
    } else if dice.percent(20) {
        P::Mixed
    } else {
        *dice.pick(&all)
    };
    let mut plan = Plan::roll(dice);
    plan.rude = pattern == P::BadRecord;
    plan.names.truncate(2);
    if plan.collects {
        plan.collects = false;
        plan.settings.keeper.retention = Settings::default().keeper.retention;
    }
    let on = pattern != P::ChangedAndReturned && dice.percent(80);
    plan.registered = Registered { node_create: on, node_delete: on, pods: false };
    if closely {
        plan.registered = Registered { node_create: on, node_delete: pattern == P::LostRace, pods: false };
    }
    if matches!(pattern, P::TwoLives | P::LateEnd) {
        plan.operators = 2;
        plan.election = false;
        plan.settings.controller.leader_election.enabled = false;
    }
    let mut scene = Scene::begin(world, plan, dice)?;
    {
        let mut state = world.lock();
        state.replicas = vec![Replica::default(); 2];
        state.weather = Weather::default();
        if closely {
            state.latency = (1, 3);
        }
        state.note(Duration::ZERO, || format!("{pattern:?}"));
    }
    let people = People::new(world, &scene.plan, dice.split());
    let mut rests = Some(Vec::new());
    let mut round = Round { world, people, dice, key: KEYS[0], name: String::new(), lag: 0 };
    for _ in 0..2 + round.dice.roll(2) {
        round.begin(&mut scene).await?;
        match pattern {
            P::ChangedAndBack => round.changed_and_back(&mut scene).await,
            P::ChangedAndGone => round.changed_and_gone(&mut scene).await,
            P::ChangedAndReturned => round.changed_and_returned().await,
            P::TwoLives => round.two_lives().await,
            P::OldManifest => round.old_manifest().await,
            P::BadRecord => round.people.vandalise(&round.name).await,
            P::Mixed => round.mixed(&mut scene).await,
            P::LostRace => round.lost_race(&mut scene).await,
            P::LateEnd => round.late_end(&mut scene).await,
        }
        scene.catch_up()?;
        world.lock().weather = Weather::default();
        let rested = rest_for(world, REST).await;
        rests = rests.filter(|_| rested).map(|mut rests| {
            rests.push(world.lock().store.rv());
            rests
        });
    }
    Ok((scene, round.people, rests))
}

struct Round<'a> {
    world: &'a World,
    people: People,
    dice: &'a mut Dice,
    key: &'static str,
    name: String,
    /// How late the past is seen, in milliseconds.
    lag: u64,
}

impl Round<'_> {
    fn person(&self) -> Actor {
        Actor::new(self.world, Who::Person)
    }

    async fn sleep(&mut self, least: u64, most: u64) {
        tokio::time::sleep(self.dice.millis(least, most.max(least))).await;
    }

    async fn set(&mut self, value: &Value) {
        let patch = json!({"metadata": {"labels": {self.key: value}}});
        drop(self.person().patch(&NODES, "", &self.name, patch).await);
    }

    fn value(&mut self) -> Value {
        if self.dice.percent(20) { Value::Null } else { json!(self.people.value(&self.name, self.key, 1)) }
    }

    /// What the key has now.
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
        drop(Actor::new(self.world, Who::Kubelet).create(&NODES, "", node).await);
    }

    /// Everyone knows the node and what it has.
    async fn begin(&mut self, scene: &mut Scene) -> anyhow::Result<()> {
        scene.catch_up()?;
        self.name.clone_from(self.dice.pick(&scene.plan.names));
        self.key = KEYS[self.dice.roll(2)];
        self.lag = 1500 + self.dice.roll(7500) as u64;
        if self.people.node(&self.name).is_none() {
            self.register().await;
            self.sleep(1000, 12_000).await;
        }
        if self.dice.percent(50) {
            self.change().await;
        }
        self.sleep(2000, 15_000).await;
        Ok(())
    }

    /// From here on these see the past: one of the API servers, or all.
    fn fall_behind(&mut self, all: bool) {
        let mut state = self.world.lock();
        let one = self.dice.roll(state.replicas.len());
        for (at, replica) in state.replicas.iter_mut().enumerate() {
            replica.lag = Duration::from_millis(if all || at == one { self.lag } else { 0 });
        }
        state.faults.add("API server lags behind");
    }

    async fn changed_and_back(&mut self, scene: &mut Scene) {
        let before = self.label();
        self.fall_behind(true);
        let start = self.world.elapsed();
        self.change().await;
        let pause = self.dice.millis(200, self.lag - 800);
        tokio::time::sleep(pause).await;
        self.set(&before).await;
        self.sleep(0, 300).await;
        self.delete().await;
        // They have seen the change, and not yet that it was taken back.
        let seen = start + Duration::from_millis(self.lag) + self.dice.millis(20, 300).max(pause / 2);
        self.sleep_until(seen).await;
        scene.crash(true, self.dice);
    }

    async fn changed_and_gone(&mut self, scene: &mut Scene) {
        if self.dice.percent(50) {
            self.fall_behind(false);
        }
        // The first change is being captured when the delete brings the second one: all of it within a few requests.
        let (_, request) = self.world.lock().latency;
        self.change().await;
        self.sleep(0, 6 * request).await;
        self.change().await;
        self.sleep(0, request / 2).await;
        self.delete().await;
        self.sleep(0, 3 * request).await;
        scene.crash(true, self.dice);
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
        if self.dice.percent(70) {
            self.delete().await;
        }
        self.sleep(self.lag, 2 * self.lag).await;
    }

    async fn old_manifest(&mut self) {
        // It has what it was given, and nothing else.
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

    async fn mixed(&mut self, scene: &mut Scene) {
        let all = self.dice.percent(50);
        self.fall_behind(all);
        if self.dice.percent(40) {
            self.world.lock().weather = Weather { slow: 250, slowest: self.lag, ..Weather::default() };
        }
        let pause = if self.dice.percent(50) { 15 } else { self.lag };
        for _ in 0..self.dice.roll(3) {
            self.change().await;
            self.sleep(0, pause).await;
        }
        if self.dice.percent(75) {
            self.delete().await;
            self.sleep(0, pause.min(1500)).await;
            if self.dice.percent(60) {
                self.register().await;
                self.sleep(0, pause).await;
                self.change().await;
            }
        }
        self.sleep(0, 2 * self.lag).await;
        if self.dice.percent(50) {
            let all = self.dice.percent(50);
            scene.crash(all, self.dice);
        }
        self.sleep(0, 3000).await;
    }

    async fn lost_race(&mut self, scene: &mut Scene) {
        let before = self.label();
        let first = self.value_unlike(&[&before]);
        let second = self.value_unlike(&[&before, &first]);
        self.fall_behind(true);
        self.world.lock().record_writes_take = Duration::from_millis(300);
        self.set(&first).await;
        // It is seen, the node is looked at once more, and the write is on its way.
        let under_way = self.world.elapsed() + Duration::from_millis(self.lag) + self.dice.millis(15, 60);
        self.sleep_until(under_way).await;
        self.set(&second).await;
        self.delete().await;
        scene.crash(true, self.dice);
        self.world.lock().record_writes_take = Duration::ZERO;
    }

    async fn late_end(&mut self, scene: &mut Scene) {
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
        let heard = end + Duration::from_millis(self.lag) + self.dice.millis(100, 250);
        self.sleep_until(heard).await;
        scene.crash(true, self.dice);
    }
}
