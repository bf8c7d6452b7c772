//! Histories of placement: workloads grow, shrink and roll out, spot nodes go, operators crash, and in the end every replica is
//! where its slot says.

pub mod controllers;

use std::time::Duration;

use jiff::SignedDuration;
use perennial_core::{
    config::Settings,
    placement::{STATE, state::PlacementState},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::controllers::{CAPACITY, Controllers, NAMESPACE, number};
use crate::{
    client::Actor,
    dice::Dice,
    history::Outcome,
    operator::Operator,
    oracle::placement::{Marks, judge},
    server::{
        authn::Who,
        fault_plan::Weather,
        kinds::{DEPLOYMENTS, KEEP_POLICIES, Kind, NAMESPACES, NODES, PDBS, PODS, STATEFUL_SETS},
        store::text,
        world::{Registered, Replica, World},
    },
};

/// Nothing of ours is written to pods and workloads for so long: everything is at rest.
const REST: Duration = Duration::from_secs(100);
const PATIENCE: Duration = Duration::from_hours(1);
const WORKLOADS: [(&str, bool); 2] = [("web", true), ("db", false)];

/// What the seed decided.
#[derive(Clone, Debug)]
pub struct Plan {
    pub operators: usize,
    pub settings: Settings,
    pub spot: i64,
    pub floor: i64,
}

struct Play {
    world: World,
    plan: Plan,
    dice: Dice,
    operators: Vec<Operator>,
    next: usize,
    person: Actor,
}

/// Plays a history and judges it.
pub async fn play(world: &World, dice: &mut Dice) -> anyhow::Result<Outcome> {
    let mut play = Play::begin(world, dice, false).await?;
    let controllers = tokio::spawn(Controllers::new(world, dice.split()).run());
    for _ in 0..6 + dice.roll(20) {
        let pause = play.dice.millis(50, 15_000);
        tokio::time::sleep(pause).await;
        play.act().await?;
    }
    play.calm()?;
    let mut marks = Marks { rests: Vec::new(), rollouts: Vec::new(), rested: play.rest().await };
    marks.rests.push(world.lock().store.rv());
    if marks.rested {
        // Everything is right, and some or all of it is seen late: that is nobody's excuse.
        if dice.percent(50) {
            for replica in &mut world.lock().replicas {
                replica.lag = dice.millis(0, 4000);
            }
        }
        play.allow_unavailable(i64::try_from(dice.roll(3)).unwrap_or_default()).await;
        let from = world.lock().store.rv();
        play.roll_out("probe").await;
        marks.rested &= play.rest().await;
        marks.rollouts.push((from, world.lock().store.rv()));
        marks.rests.push(world.lock().store.rv());
        for _ in 0..2 {
            play.delete_pod().await;
            marks.rested &= play.rest().await;
            marks.rests.push(world.lock().store.rv());
            play.scale("web").await;
            marks.rested &= play.rest().await;
            marks.rests.push(world.lock().store.rv());
            play.grow_twice().await;
            marks.rested &= play.rest().await;
            marks.rests.push(world.lock().store.rv());
        }
    }
    controllers.abort();
    let mut state = world.lock();
    Ok(judge(&mut state, &marks))
}

/// Plays a history that aims: a workload grows again before anybody has seen the pods by which it grew first, while everything else is seen
/// at once.
pub async fn play_drill(world: &World, dice: &mut Dice) -> anyhow::Result<Outcome> {
    let mut play = Play::begin(world, dice, true).await?;
    let controllers = tokio::spawn(Controllers::new(world, dice.split()).run());
    let mut marks = Marks { rests: Vec::new(), rollouts: Vec::new(), rested: play.rest().await };
    marks.rests.push(world.lock().store.rv());
    for _ in 0..6 {
        let late = dice.roll(2);
        world.lock().replicas[late].lag = dice.millis(1200, 4000);
        play.grow_twice().await;
        marks.rested &= play.rest().await;
        marks.rests.push(world.lock().store.rv());
        world.lock().replicas[late].lag = Duration::ZERO;
        world.changed().notify_waiters();
        play.scale("web").await;
        marks.rested &= play.rest().await;
        marks.rests.push(world.lock().store.rv());
    }
    controllers.abort();
    let mut state = world.lock();
    Ok(judge(&mut state, &marks))
}

impl Play {
    async fn begin(world: &World, dice: &mut Dice, aims: bool) -> anyhow::Result<Self> {
        let mut settings = Settings::default();
        settings.controller.workers = 2;
        settings.controller.resync_period = Duration::from_secs(30);
        settings.controller.leader_election.enabled = dice.percent(60);
        settings.placement.cooldown = Duration::from_secs(3);
        let mut plan = Plan {
            operators: 1 + dice.roll(2),
            settings,
            spot: *dice.pick(&[0, 30, 50, 70, 90, 100]),
            floor: i64::try_from(dice.roll(4)).unwrap_or_default(),
        };
        {
            let mut state = world.lock();
            state.registered = Registered { pods: dice.percent(85), ..Registered::default() };
            state.weather = Weather::bad(*dice.pick(&[0, 0, 1, 2, 4]));
            state.replicas = vec![Replica::default(); 1 + dice.roll(2)];
            state.no_streaming = dice.percent(20);
            state.missing.push(KEEP_POLICIES.plural);
            if aims {
                plan.operators = 1;
                plan.settings.controller.leader_election.enabled = true;
                state.registered.pods = true;
                state.weather = Weather::default();
                state.replicas = vec![Replica::default(); 2];
            }
            state.note(Duration::ZERO, || format!("{plan:?}"));
        }
        let person = Actor::new(world, Who::Person);
        drop(person.create(&NAMESPACES, "", json!({"metadata": {"name": NAMESPACE}})).await);
        let mut scene = Self { world: world.clone(), plan, dice: dice.split(), operators: Vec::new(), next: 0, person };
        for class in ["spot", "on-demand"] {
            for i in 0..3 {
                scene.add_node(&format!("{class}-{i}"), class).await;
            }
        }
        for _ in 0..scene.plan.operators {
            scene.start()?;
        }
        for (name, is_deployment) in WORKLOADS {
            scene.create(name, is_deployment).await;
        }
        Ok(scene)
    }

    async fn add_node(&self, name: &str, class: &str) {
        let node = json!({"metadata": {"name": name, "labels": {CAPACITY: class}}});
        drop(self.person.create(&NODES, "", node).await);
    }

    async fn create(&mut self, name: &str, is_deployment: bool) {
        let object = json!({
            "metadata": {"name": name, "annotations": {
                "perennial.dev/spot-percentage": self.plan.spot.to_string(),
                "perennial.dev/min-on-demand": self.plan.floor.to_string(),
                "perennial.dev/move-statefulset-pods": "true",
            }},
            "spec": {
                "replicas": self.dice.roll(9),
                "selector": {"matchLabels": {"app": name}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1 + self.dice.roll(3), "maxUnavailable": 0}},
                "template": {"metadata": {"labels": {"app": name, "revision": "r1"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        });
        drop(self.person.create(kind(is_deployment), NAMESPACE, object).await);
    }

    fn start(&mut self) -> anyhow::Result<()> {
        // Clocks of replicas differ; nothing may depend on them.
        let skew = SignedDuration::from_hours(i64::from(self.next % 3 == 2));
        let operator = Operator::start(&self.world, self.next, &self.plan.settings, skew)?;
        self.next += 1;
        self.operators.push(operator);
        Ok(())
    }

    async fn act(&mut self) -> anyhow::Result<()> {
        match self.dice.roll(14) {
            0..=4 => {
                let name = if self.dice.percent(60) { "web" } else { "db" };
                self.scale(name).await;
            }
            5..=6 => {
                let revision = format!("r{}", 1 + self.dice.roll(3));
                self.roll_out(&revision).await;
            }
            7 => self.delete_pod().await,
            8 => {
                // A spot node is taken away; another comes.
                let name = format!("spot-{}", self.dice.roll(3));
                drop(self.person.delete(&NODES, "", Some(&name), Value::Null).await);
                let pause = self.dice.millis(100, 3000);
                tokio::time::sleep(pause).await;
                self.add_node(&name, "spot").await;
            }
            9 => {
                let most = 1 + self.dice.roll(2);
                let pdb = json!({"metadata": {"name": "web"}, "spec": {"maxUnavailable": most, "selector": {"matchLabels": {"app": "web"}}}});
                drop(self.person.create(&PDBS, NAMESPACE, pdb).await);
            }
            10 if !self.operators.is_empty() => {
                let at = self.dice.roll(self.operators.len());
                self.operators.remove(at).crash();
            }
            11 if !self.operators.is_empty() => {
                let id = self.operators[self.dice.roll(self.operators.len())].id;
                let until = Instant::now() + self.dice.millis(500, 20_000);
                let mut state = self.world.lock();
                state.fault("operator cut off", Who::Operator(id));
                state.cut_off.insert(id, until);
            }
            12 => {
                let mut state = self.world.lock();
                let at = self.dice.roll(state.replicas.len());
                state.replicas[at].lag = self.dice.millis(0, 6000);
                state.faults.add("API server lags behind");
            }
            _ if self.operators.len() < self.plan.operators => self.start()?,
            _ => {
                // Somebody decides otherwise about spot.
                self.plan.spot = *self.dice.pick(&[0, 30, 50, 70, 90, 100]);
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
        let patch = json!({"spec": {"replicas": self.dice.roll(11)}});
        drop(self.person.patch(kind(name == "web"), NAMESPACE, name, patch).await);
    }

    /// Grows, and grows again before the first pods are seen everywhere.
    async fn grow_twice(&mut self) {
        let now = self.person.get(&DEPLOYMENTS, NAMESPACE, "web").map_or(0, |web| number(&web, "/spec/replicas"));
        let mut replicas = now;
        for _ in 0..2 {
            replicas += 1 + i64::try_from(self.dice.roll(3)).unwrap_or_default();
            let patch = json!({"spec": {"replicas": replicas}});
            drop(self.person.patch(&DEPLOYMENTS, NAMESPACE, "web", patch).await);
            let pause = self.dice.millis(100, 700);
            tokio::time::sleep(pause).await;
        }
    }

    /// How many pods may be missing in a rollout.
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
            let pod = self.dice.pick(&pods).clone();
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
            state.weather = Weather::default();
            state.cut_off.clear();
            state.registered.pods = true;
            for replica in &mut state.replicas {
                replica.lag = Duration::ZERO;
            }
        }
        self.world.note(|| "the weather clears".to_owned());
        self.world.changed().notify_waiters();
        while self.operators.len() < self.plan.operators {
            self.start()?;
        }
        Ok(())
    }

    /// When the cooldown after a workload's last move is over.
    fn cooled_at(&self, workload: &Value) -> Option<Duration> {
        let text = workload["metadata"]["annotations"].get(STATE)?.as_str()?;
        let moved = PlacementState::read(Some(text)).0.last_move?;
        let at = moved.at.duration_since(self.world.start_of_day()).try_into().unwrap_or(Duration::ZERO);
        // The clock of whoever wrote it may be off.
        Some(at.min(self.world.elapsed()) + self.plan.settings.placement.cooldown * (1 << moved.stalled.min(10)))
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
                // Where moves changed nothing, the next one is a long time off.
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
