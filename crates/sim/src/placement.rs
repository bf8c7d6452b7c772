//! Histories of placement: workloads scale and roll out, spot nodes are deleted, operators crash,
//! and at the end every replica is in the class of its slot.

pub mod shortage;
mod stateful_sets;
pub mod workload_controllers;

use std::time::Duration;

use jiff::SignedDuration;
use perennial_core::{
    config::Settings,
    placement::{STATE, state::PlacementState},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use perennial_testkit::prng::Prng;

use self::workload_controllers::{CAPACITY, Controllers, NAMESPACE, number};
use crate::{
    actor::Actor,
    history::Outcome,
    operator::Operator,
    oracle::placement::{PlacementMarks, judge},
    server::{
        authn::User,
        fault_plan::FaultRates,
        kinds::{DEPLOYMENTS, KEEP_POLICIES, Kind, NAMESPACES, NODES, PDBS, PODS, STATEFUL_SETS},
        store::text,
        world::{Registered, Replica, World},
    },
};

/// At rest: no write of the operator to pods and workloads for this long.
const REST: Duration = Duration::from_secs(100);
const PATIENCE: Duration = Duration::from_hours(1);
const WORKLOADS: [(&str, bool); 2] = [("web", true), ("db", false)];

/// Configuration of a history, drawn from the seed.
#[derive(Clone, Debug)]
pub struct PlacementPlan {
    pub operators: usize,
    pub settings: Settings,
    pub spot: i64,
    pub floor: i64,
}

struct Play {
    world: World,
    plan: PlacementPlan,
    prng: Prng,
    operators: Vec<Operator>,
    next: usize,
    person: Actor,
}

/// Plays a history and checks it.
pub async fn play(world: &World, prng: &mut Prng) -> anyhow::Result<Outcome> {
    let mut play = Play::begin(world, prng, false).await?;
    let controllers = tokio::spawn(Controllers::new(world, prng.split()).run());
    for _ in 0..6 + prng.below(20) {
        let pause = play.prng.millis(50, 15_000);
        tokio::time::sleep(pause).await;
        play.act().await?;
    }
    play.calm()?;
    let mut marks = PlacementMarks { rested: true, ..PlacementMarks::default() };
    play.come_to_rest(&mut marks).await;
    if marks.rested {
        // Lag of API servers excuses nothing.
        if prng.percent(50) {
            for replica in &mut world.lock().replicas {
                replica.lag = prng.millis(0, 4000);
            }
        }
        play.allow_unavailable(i64::try_from(prng.below(3)).unwrap_or_default()).await;
        let from = world.lock().store.rv();
        play.roll_out("probe").await;
        play.come_to_rest(&mut marks).await;
        marks.rollouts.push((from, world.lock().store.rv()));
        for _ in 0..2 {
            play.delete_pod().await;
            play.come_to_rest(&mut marks).await;
            play.scale("web").await;
            play.come_to_rest(&mut marks).await;
            play.grow_twice().await;
            play.come_to_rest(&mut marks).await;
        }
    }
    controllers.abort();
    Ok(play.judge(&marks))
}

/// Plays a history that provokes a race: a workload scales up again before the watch has delivered
/// the pods of the first scale-up.
pub async fn play_race(world: &World, prng: &mut Prng) -> anyhow::Result<Outcome> {
    let mut play = Play::begin(world, prng, true).await?;
    let controllers = tokio::spawn(Controllers::new(world, prng.split()).run());
    let mut marks = PlacementMarks { rested: true, ..PlacementMarks::default() };
    play.come_to_rest(&mut marks).await;
    for _ in 0..6 {
        let late = prng.below(2);
        world.lock().replicas[late].lag = prng.millis(1200, 4000);
        play.grow_twice().await;
        play.come_to_rest(&mut marks).await;
        world.lock().replicas[late].lag = Duration::ZERO;
        world.changed().notify_waiters();
        play.scale("web").await;
        play.come_to_rest(&mut marks).await;
    }
    controllers.abort();
    Ok(play.judge(&marks))
}

impl Play {
    async fn begin(world: &World, prng: &mut Prng, aims: bool) -> anyhow::Result<Self> {
        let mut fleet = Self::set_up(world, prng, aims).await;
        for class in ["spot", "on-demand"] {
            for i in 0..3 {
                fleet.add_node(&format!("{class}-{i}"), class).await;
            }
        }
        for _ in 0..fleet.plan.operators {
            fleet.start()?;
        }
        for (name, is_deployment) in WORKLOADS {
            fleet.create(name, is_deployment).await;
        }
        Ok(fleet)
    }

    /// Draws the configuration, and creates the namespace.
    async fn set_up(world: &World, prng: &mut Prng, aims: bool) -> Self {
        let mut settings = Settings::default();
        settings.controller.workers = 2;
        settings.controller.resync_period = Duration::from_secs(30);
        settings.controller.leader_election.enabled = prng.percent(60);
        settings.placement.cooldown = Duration::from_secs(3);
        let mut plan = PlacementPlan {
            operators: 1 + prng.below(2),
            settings,
            spot: *prng.pick(&[0, 30, 50, 70, 90, 100]),
            floor: i64::try_from(prng.below(4)).unwrap_or_default(),
        };
        {
            let mut state = world.lock();
            state.registered = Registered { pods: prng.percent(85), ..Registered::default() };
            state.fault_rates = FaultRates::bad(*prng.pick(&[0, 0, 1, 2, 4]));
            state.replicas = vec![Replica::default(); 1 + prng.below(2)];
            state.no_streaming = prng.percent(20);
            state.missing.push(KEEP_POLICIES.plural);
            if aims {
                plan.operators = 1;
                plan.settings.controller.leader_election.enabled = true;
                state.registered.pods = true;
                state.fault_rates = FaultRates::default();
                state.replicas = vec![Replica::default(); 2];
            }
            state.note(Duration::ZERO, || format!("{plan:?}"));
        }
        let person = Actor::new(world, User::Person);
        drop(person.create(&NAMESPACES, "", json!({"metadata": {"name": NAMESPACE}})).await);
        Self { world: world.clone(), plan, prng: prng.split(), operators: Vec::new(), next: 0, person }
    }

    async fn add_node(&self, name: &str, class: &str) {
        let node = json!({"metadata": {"name": name, "labels": {CAPACITY: class}}});
        drop(self.person.create(&NODES, "", node).await);
        // The node is Ready at once. Its room is not limited.
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        drop(self.person.patch_status(&NODES, "", name, status).await);
        drop(self.person.patch(&NODES, "", name, json!({"spec": {"taints": null}})).await);
    }

    async fn create(&mut self, name: &str, is_deployment: bool) {
        let object = json!({
            "metadata": {"name": name, "annotations": {
                "perennial.dev/spot-percentage": self.plan.spot.to_string(),
                "perennial.dev/min-on-demand": self.plan.floor.to_string(),
                "perennial.dev/move-statefulset-pods": "true",
            }},
            "spec": {
                "replicas": self.prng.below(9),
                "selector": {"matchLabels": {"app": name}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1 + self.prng.below(3), "maxUnavailable": 0}},
                "template": {"metadata": {"labels": {"app": name, "revision": "r1"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        });
        drop(self.person.create(kind(is_deployment), NAMESPACE, object).await);
    }

    fn start(&mut self) -> anyhow::Result<()> {
        // Clocks of replicas differ.
        let skew = SignedDuration::from_hours(i64::from(self.next % 3 == 2));
        let operator = Operator::start(&self.world, self.next, &self.plan.settings, skew, false)?;
        self.next += 1;
        self.operators.push(operator);
        Ok(())
    }

    async fn act(&mut self) -> anyhow::Result<()> {
        match self.prng.below(14) {
            0..=4 => {
                let name = if self.prng.percent(60) { "web" } else { "db" };
                self.scale(name).await;
            }
            5..=6 => {
                let revision = format!("r{}", 1 + self.prng.below(3));
                self.roll_out(&revision).await;
            }
            7 => self.delete_pod().await,
            8 => {
                // A spot node is replaced.
                let name = format!("spot-{}", self.prng.below(3));
                drop(self.person.delete(&NODES, "", Some(&name), Value::Null).await);
                let pause = self.prng.millis(100, 3000);
                tokio::time::sleep(pause).await;
                self.add_node(&name, "spot").await;
            }
            9 => {
                let most = 1 + self.prng.below(2);
                let pdb = json!({"metadata": {"name": "web"}, "spec": {"maxUnavailable": most, "selector": {"matchLabels": {"app": "web"}}}});
                drop(self.person.create(&PDBS, NAMESPACE, pdb).await);
            }
            10 if !self.operators.is_empty() => {
                let at = self.prng.below(self.operators.len());
                self.operators.remove(at).crash();
            }
            11 if !self.operators.is_empty() => {
                let id = self.operators[self.prng.below(self.operators.len())].id;
                let until = Instant::now() + self.prng.millis(500, 20_000);
                let mut state = self.world.lock();
                state.fault("operator cut off", User::Operator(id));
                state.cut_off.insert(id, until);
            }
            12 => {
                let mut state = self.world.lock();
                let at = self.prng.below(state.replicas.len());
                state.replicas[at].lag = self.prng.millis(0, 6000);
                state.faults.add("API server lags behind");
            }
            _ if self.operators.len() < self.plan.operators => self.start()?,
            _ => {
                // The spot percentage changes.
                self.plan.spot = *self.prng.pick(&[0, 30, 50, 70, 90, 100]);
                let patch =
                    json!({"metadata": {"annotations": {"perennial.dev/spot-percentage": self.plan.spot.to_string()}}});
                for (name, is_deployment) in WORKLOADS {
                    drop(self.person.patch(kind(is_deployment), NAMESPACE, name, patch.clone()).await);
                }
            }
        }
        Ok(())
    }

    async fn scale(&mut self, name: &str) {
        let patch = json!({"spec": {"replicas": self.prng.below(11)}});
        drop(self.person.patch(kind(name == "web"), NAMESPACE, name, patch).await);
    }

    /// Scales up twice, the second time before the watch has delivered the first pods.
    async fn grow_twice(&mut self) {
        let now = self.person.get(&DEPLOYMENTS, NAMESPACE, "web").map_or(0, |web| number(&web, "/spec/replicas"));
        let mut replicas = now;
        for _ in 0..2 {
            replicas += 1 + i64::try_from(self.prng.below(3)).unwrap_or_default();
            let patch = json!({"spec": {"replicas": replicas}});
            drop(self.person.patch(&DEPLOYMENTS, NAMESPACE, "web", patch).await);
            let pause = self.prng.millis(100, 700);
            tokio::time::sleep(pause).await;
        }
    }

    /// Sets maxUnavailable.
    async fn allow_unavailable(&self, pods: i64) {
        let patch = json!({"spec": {"strategy": {"rollingUpdate": {"maxUnavailable": pods}}}});
        drop(self.person.patch(&DEPLOYMENTS, NAMESPACE, "web", patch).await);
    }

    async fn delete_pod(&mut self) {
        let pods: Vec<String> = {
            let state = self.world.lock();
            state.store.all(&PODS, NAMESPACE).map(|pod| text(pod, "/metadata/name").to_owned()).collect()
        };
        if !pods.is_empty() {
            let pod = self.prng.pick(&pods).clone();
            drop(self.person.delete(&PODS, NAMESPACE, Some(&pod), Value::Null).await);
        }
    }

    async fn roll_out(&mut self, revision: &str) {
        let patch = json!({"spec": {"template": {"metadata": {"labels": {"revision": revision}}}}});
        drop(self.person.patch(&DEPLOYMENTS, NAMESPACE, "web", patch).await);
    }

    fn calm(&mut self) -> anyhow::Result<()> {
        {
            let mut state = self.world.lock();
            state.fault_rates = FaultRates::default();
            state.cut_off.clear();
            state.registered.pods = true;
            for replica in &mut state.replicas {
                replica.lag = Duration::ZERO;
            }
        }
        self.world.note(|| "faults end".to_owned());
        self.world.changed().notify_waiters();
        while self.operators.len() < self.plan.operators {
            self.start()?;
        }
        Ok(())
    }

    /// Returns the end of the cooldown after the last move of a workload.
    fn cooled_at(&self, workload: &Value) -> Option<Duration> {
        let text = workload["metadata"]["annotations"].get(STATE)?.as_str()?;
        let moved = PlacementState::read(Some(text)).0.last_move?;
        let at = moved.at.duration_since(self.world.start_of_day()).try_into().unwrap_or(Duration::ZERO);
        // The clock of the writer may be ahead.
        Some(at.min(self.world.elapsed()) + self.plan.settings.placement.cooldown * (1 << moved.stalled.min(10)))
    }

    /// Waits for the rest, and marks it.
    async fn come_to_rest(&self, marks: &mut PlacementMarks) {
        marks.rested &= self.rest().await;
        marks.rests.push(self.world.lock().store.rv());
    }

    fn judge(&mut self, marks: &PlacementMarks) -> Outcome {
        for operator in &mut self.operators {
            operator.check();
        }
        judge(&mut self.world.lock(), marks)
    }

    async fn rest(&self) -> bool {
        let start = self.world.elapsed();
        loop {
            let last = {
                let state = self.world.lock();
                let ours = |kind: &Kind| [&PODS, &DEPLOYMENTS, &STATEFUL_SETS].iter().any(|k| std::ptr::eq(*k, kind));
                let moves =
                    state.store.log.iter().rev().find(|change| {
                        ours(change.kind) && (change.by.is_operator() || std::ptr::eq(change.kind, &PODS))
                    });
                let last = moves.map_or(start, |change| change.at.max(start));
                // The cooldown doubles while moves change nothing.
                let workloads =
                    state.store.all(&DEPLOYMENTS, NAMESPACE).chain(state.store.all(&STATEFUL_SETS, NAMESPACE));
                let cooled = workloads.filter_map(|workload| self.cooled_at(workload)).max().unwrap_or_default();
                last.max(cooled.saturating_sub(REST / 2))
            };
            let now = self.world.elapsed();
            if now >= last + REST {
                return true;
            }
            if now > start + PATIENCE {
                return false;
            }
            tokio::time::sleep((last + REST).saturating_sub(now)).await;
        }
    }
}

fn kind(is_deployment: bool) -> &'static Kind {
    if is_deployment { &DEPLOYMENTS } else { &STATEFUL_SETS }
}
