//! Histories of placement with finite capacity: both classes run short and recover while people
//! change everything that they may change. Each seed switches features on and off.
//!
//! A history has three stages: random steps with faults, a lasting shortage without faults, and
//! capacity for the target. In the last two, the oracle limits the time until every pod runs, or is
//! in its class.

mod feature;
mod recovery;

use std::time::Duration;

use perennial_testkit::prng::Prng;
use serde_json::{Value, json};

use self::feature::{FEATURES, Feature};
use super::{
    Play, WORKLOADS, kind,
    workload_controllers::{CAPACITY, Controllers, NAMESPACE},
};
use crate::{
    history::Outcome,
    once_failed,
    oracle::placement::{Bound, Goal, PlacementMarks, judge, unmet_now},
    server::{
        kinds::{NODES, PDBS, PODS, STATEFUL_SETS},
        world::World,
    },
};

/// Time in which a goal must be reached without faults. Probes of a class that was short for
/// minutes may be this far apart.
const WITHIN: Duration = Duration::from_mins(40);
/// Room that is more than enough.
const AMPLE: usize = 40;
const PERCENTAGE: &str = "perennial.dev/spot-percentage";
const FLOOR: &str = "perennial.dev/min-on-demand";
const PAUSED: &str = "perennial.dev/paused";

/// The lasting shortage of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasting {
    None,
    /// On-demand has room for everything.
    NoSpot,
    /// No spot, and on-demand has room for only a few pods.
    Both,
    /// No spot, and a StatefulSet starts.
    StartWithoutSpot,
}

struct Shortage {
    play: Play,
    prng: Prng,
    features: Vec<Feature>,
    lasting: Lasting,
    fallback_after: u64,
    /// Pods of the StatefulSet may be moved.
    moves_stateful: bool,
    /// Two revisions of the StatefulSet last: moves do not wait for the end of its rollout.
    keeps_partition: bool,
    marks: PlacementMarks,
}

/// Plays a history and checks it.
pub async fn play(world: &World, seed: u64) -> anyhow::Result<Outcome> {
    let mut prng = Prng::new(seed ^ 0x5307);
    let mut history = Shortage::begin(world, &mut prng).await?;
    // Drawn apart, so that histories that once failed stay as they were.
    history.keeps_partition = !once_failed::contains(seed) && Prng::new(seed ^ 0x9a27).percent(50);
    let controllers = tokio::spawn(Controllers::new(world, prng.split()).run());
    for _ in 0..4 + prng.below(14) {
        let pause = prng.millis(50, 40_000);
        tokio::time::sleep(pause).await;
        history.act().await?;
    }
    history.play.calm()?;
    world.lock().refused_selector = None;
    history.restart_refused().await;
    history.last().await;
    history.recover().await;
    controllers.abort();
    for operator in &mut history.play.operators {
        operator.check();
    }
    let mut state = world.lock();
    Ok(judge(&mut state, &history.marks))
}

impl Shortage {
    async fn begin(world: &World, prng: &mut Prng) -> anyhow::Result<Self> {
        let play = Play::set_up(world, prng, false).await;
        let features = FEATURES.into_iter().filter(|_| prng.percent(45)).collect();
        let lasting =
            *prng.pick(&[Lasting::None, Lasting::NoSpot, Lasting::NoSpot, Lasting::Both, Lasting::StartWithoutSpot]);
        let mut history = Self {
            play,
            features,
            lasting,
            fallback_after: *prng.pick(&[10, 30, 120]),
            moves_stateful: prng.percent(75),
            keeps_partition: false,
            prng: prng.split(),
            marks: PlacementMarks { rested: true, ..PlacementMarks::default() },
        };
        let described = format!("{:?}, lasting shortage: {:?}", history.features, history.lasting);
        world.note(|| described);
        for class in ["spot", "on-demand"] {
            for i in 0..2 {
                let room = *history.prng.pick(&[3, 5, 8, AMPLE]);
                history.put_node(&format!("{class}-{i}"), Some(class), room).await;
            }
        }
        if history.has(Feature::NodesOfNoClass) {
            history.put_node("other-0", None, 4).await;
        }
        for _ in 0..history.play.plan.operators {
            history.play.start()?;
        }
        for (name, is_deployment) in WORKLOADS {
            history.create(name, is_deployment).await;
        }
        Ok(history)
    }

    fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    async fn create(&mut self, name: &str, is_deployment: bool) {
        let prng = &mut self.prng;
        let policy = *prng.pick(&["OrderedReady", "OrderedReady", "Parallel"]);
        let (surge, replicas) = (1 + prng.below(3), *prng.pick(&[1, 1, 2, 3, 5, 7]));
        let object = json!({
            "metadata": {"name": name, "annotations": {
                PERCENTAGE: prng.pick(&["0", "30", "50", "70", "90", "100"]),
                FLOOR: prng.below(3).to_string(),
                "perennial.dev/move-statefulset-pods": self.moves_stateful.to_string(),
                "perennial.dev/fallback-after": format!("{}s", self.fallback_after),
            }},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "podManagementPolicy": policy,
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": 0}},
                "template": {
                    "metadata": {"labels": {"app": name, "revision": "r1"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        });
        drop(self.play.person.create(kind(is_deployment), NAMESPACE, object).await);
    }

    /// Creates a Ready node, or changes its room.
    async fn put_node(&self, name: &str, class: Option<&str>, room: usize) {
        let person = &self.play.person;
        if person.get(&NODES, "", name).is_none() {
            let labels = class.map_or_else(|| json!({}), |class| json!({CAPACITY: class}));
            drop(person.create(&NODES, "", json!({"metadata": {"name": name, "labels": labels}})).await);
        }
        let status = json!({"status": {
            "allocatable": {"pods": room.to_string()},
            "conditions": [{"type": "Ready", "status": "True"}],
        }});
        drop(person.patch_status(&NODES, "", name, status).await);
        drop(person.patch(&NODES, "", name, json!({"spec": {"taints": null}})).await);
    }

    async fn set_room(&self, class: &str, room: usize) {
        for i in 0..2 {
            self.put_node(&format!("{class}-{i}"), Some(class), room).await;
        }
    }

    async fn lose_spot(&self) {
        for i in 0..2 {
            drop(self.play.person.delete(&NODES, "", Some(&format!("spot-{i}")), Value::Null).await);
        }
    }

    async fn annotate(&self, name: &str, annotations: Value) {
        let patch = json!({"metadata": {"annotations": annotations}});
        drop(self.play.person.patch(kind(name == "web"), NAMESPACE, name, patch).await);
    }

    async fn act(&mut self) -> anyhow::Result<()> {
        if self.features.is_empty() {
            return Ok(());
        }
        let feature = *self.prng.pick(&self.features);
        let name = if self.prng.percent(50) { "web" } else { "db" };
        match feature {
            Feature::SpotComesAndGoes if self.prng.percent(50) => self.lose_spot().await,
            Feature::SpotComesAndGoes => {
                let room = *self.prng.pick(&[1, 3, AMPLE]);
                self.set_room("spot", room).await;
            }
            Feature::OnDemandFillsUp => {
                let room = *self.prng.pick(&[0, 1, 2, 4, AMPLE]);
                self.set_room("on-demand", room).await;
            }
            Feature::Pauses => {
                let paused = if self.prng.percent(60) { json!("true") } else { Value::Null };
                self.annotate(name, json!({PAUSED: paused})).await;
            }
            Feature::PercentageChanges => self.change_percentage(name).await,
            Feature::FloorChanges => {
                let floor = self.prng.below(5).to_string();
                self.annotate(name, json!({FLOOR: floor})).await;
            }
            Feature::BudgetOfZero => {
                let pdb = json!({"metadata": {"name": name}, "spec": {
                    "maxUnavailable": 0, "selector": {"matchLabels": {"app": name}},
                }});
                drop(self.play.person.create(&PDBS, NAMESPACE, pdb).await);
            }
            Feature::AnnotationsRemoved => self.annotate(name, json!({PERCENTAGE: null, FLOOR: null})).await,
            Feature::NodesOfNoClass => {
                drop(self.play.person.delete(&NODES, "", Some("other-0"), Value::Null).await);
                self.put_node("other-0", None, 4).await;
            }
            Feature::PolicyRefuses => {
                let class = *self.prng.pick(&[None, Some((CAPACITY, "spot")), Some((CAPACITY, "on-demand"))]);
                self.play.world.lock().refused_selector = class;
            }
            Feature::RollOuts => self.roll_out(name).await,
            Feature::Scaling => {
                let replicas = self.prng.below(9);
                self.scale(name, replicas).await;
            }
            Feature::OperatorsCrash if self.play.operators.len() < self.play.plan.operators => self.play.start()?,
            Feature::OperatorsCrash => self.play.operators.remove(0).crash(),
            Feature::PodsDeleted => self.play.delete_pod().await,
            Feature::PartitionChanges => {
                let partition = self.prng.below(4);
                self.partition(partition).await;
            }
        }
        Ok(())
    }

    async fn partition(&self, partition: usize) {
        let patch = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": partition}}}});
        drop(self.play.person.patch(&STATEFUL_SETS, NAMESPACE, "db", patch).await);
    }

    async fn scale(&self, name: &str, replicas: usize) {
        let patch = json!({"spec": {"replicas": replicas}});
        drop(self.play.person.patch(kind(name == "web"), NAMESPACE, name, patch).await);
    }

    async fn roll_out(&mut self, name: &str) {
        let revision = format!("r{}", 1 + self.prng.below(3));
        let patch = json!({"spec": {"template": {"metadata": {"labels": {"revision": revision}}}}});
        drop(self.play.person.patch(kind(name == "web"), NAMESPACE, name, patch).await);
    }

    /// Restarts the workloads if the class of a pod was refused: no pod is moved to that class then,
    /// so a person does that after a policy was changed.
    async fn restart_refused(&mut self) {
        let mark = "/metadata/annotations/perennial.dev~1refused";
        let refused = self.play.world.lock().store.all(&PODS, NAMESPACE).any(|pod| pod.pointer(mark).is_some());
        if !refused {
            return;
        }
        let patch = json!({"spec": {"template": {"metadata": {"labels": {"revision": "restarted"}}}}});
        for (name, is_deployment) in WORKLOADS {
            drop(self.play.person.patch(kind(is_deployment), NAMESPACE, name, patch.clone()).await);
        }
    }

    async fn change_percentage(&mut self, name: &str) {
        let percentage = *self.prng.pick(&["0", "0", "50", "70", "100"]);
        self.annotate(name, json!({PERCENTAGE: percentage})).await;
    }

    /// Plays the lasting shortage.
    async fn last(&mut self) {
        match self.lasting {
            Lasting::None => {}
            Lasting::NoSpot => {
                self.set_room("on-demand", AMPLE).await;
                self.lose_spot().await;
                let pause = self.prng.millis(0, 90_000);
                tokio::time::sleep(pause).await;
                let name = *self.prng.pick(&["web", "db"]);
                if self.has(Feature::Pauses) {
                    self.annotate(name, json!({PAUSED: "true"})).await;
                }
                if self.has(Feature::PercentageChanges) {
                    self.change_percentage(name).await;
                }
                if self.has(Feature::AnnotationsRemoved) {
                    self.annotate(name, json!({PERCENTAGE: null, FLOOR: null})).await;
                }
                self.reach(Goal::Running, WITHIN, "spot is lost").await;
                if self.prng.percent(40) {
                    // Long enough for probes, which fail.
                    tokio::time::sleep(Duration::from_mins(5)).await;
                    self.reach(Goal::Running, WITHIN, "spot is still lost").await;
                }
            }
            Lasting::Both => {
                self.lose_spot().await;
                let room = self.prng.below(3);
                self.set_room("on-demand", room).await;
                if self.has(Feature::PodsDeleted) {
                    self.play.delete_pod().await;
                }
                let pause = self.prng.millis(10_000, 400_000);
                tokio::time::sleep(pause).await;
            }
            Lasting::StartWithoutSpot => self.start_without_spot().await,
        }
    }

    /// A StatefulSet starts while spot is lost: one `fallback-after` must be enough for all pods.
    async fn start_without_spot(&mut self) {
        self.permit_everything().await;
        self.set_room("on-demand", AMPLE).await;
        self.set_room("spot", AMPLE).await;
        self.scale("db", 0).await;
        self.reach(Goal::Running, WITHIN, "capacity is back").await;
        self.lose_spot().await;
        // Pods of the Deployment fall back meanwhile.
        tokio::time::sleep(Duration::from_mins(1)).await;
        let replicas = 3 + self.prng.below(5);
        self.scale("db", replicas).await;
        let each = Duration::from_secs(15) * u32::try_from(replicas).unwrap_or(1);
        // A probe may be due meanwhile, and waits as long again.
        let within = Duration::from_secs(2 * self.fallback_after + 60) + each;
        self.reach(Goal::Running, within, "a StatefulSet starts without spot").await;
    }

    /// Waits until a goal is reached and holds, or its time is over. The oracle judges the end.
    async fn reach(&mut self, goal: Goal, within: Duration, since: &'static str) {
        let world = self.play.world.clone();
        world.note(|| format!("{since}: expecting {goal:?}"));
        let start = world.elapsed();
        let mut met_at = None;
        loop {
            let now = world.elapsed();
            let met = unmet_now(&world.lock(), goal).is_empty();
            met_at = met.then(|| met_at.unwrap_or(now));
            let over = now > start + within && met_at.is_none();
            if over || met_at.is_some_and(|met| now >= met + goal.holds()) {
                let rv = world.lock().store.rv();
                self.marks.bounds.push(Bound { rv, goal, since, within });
                return;
            }
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }
}
