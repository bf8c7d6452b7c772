//! What a history takes place in: how many operators, which webhooks, which weather; and what goes wrong on the way.

use std::time::Duration;

use jiff::SignedDuration;
use perennial_core::config::{Gate, Merge, Settings};
use tokio::time::Instant;

use crate::{
    dice::Dice,
    operator::Operator,
    server::{
        fault_plan::Weather,
        kinds::KEEP_POLICIES,
        world::{Registered, Replica, World},
    },
};

/// How long records of nodes that are away are kept in histories in which they are collected.
pub const RETENTION: Duration = Duration::from_mins(1);

/// What the seed decided about a history before it began.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was rolled")]
pub struct Plan {
    pub operators: usize,
    /// Without an election every operator works on everything.
    pub election: bool,
    pub registered: Registered,
    pub names: Vec<String>,
    pub steps: usize,
    /// How often something goes wrong instead of somebody doing something, in percent.
    pub trouble: u32,
    pub merge: Merge,
    /// Nodes say only later which machine they are.
    pub says_later: bool,
    /// People do what the design says cannot be made good: records deleted or overwritten by hand, old manifests.
    pub rude: bool,
    /// Records of nodes that are away are collected within the history.
    pub collects: bool,
    pub settings: Settings,
}

pub struct Scene {
    pub world: World,
    pub plan: Plan,
    operators: Vec<Operator>,
    next: usize,
}

impl Plan {
    pub fn roll(dice: &mut Dice) -> Self {
        let operators = 1 + dice.roll(3);
        let webhooks = dice.roll(10);
        let registered = Registered {
            node_create: matches!(webhooks, 0..=5 | 8),
            node_delete: matches!(webhooks, 0..=5 | 9),
            pods: false,
        };
        let mut settings = Settings::default();
        settings.placement.enabled = false;
        settings.controller.workers = 2;
        settings.controller.resync_period = Duration::from_secs(30);
        settings.controller.audit_period = Duration::from_mins(10);
        settings.controller.shards = *dice.pick(&[1, 1, 2]);
        settings.controller.leader_election.enabled = dice.percent(50);
        settings.controller.leader_election.lease_duration = Duration::from_secs(*dice.pick(&[15, 40, 40]));
        if dice.percent(20) {
            settings.keeper.merge = Merge::Overwrite;
        }
        settings.keeper.gate = *dice.pick(&[Gate::Never, Gate::Never, Gate::Needed, Gate::Always]);
        // So many nodes that the budget is short when all of them go.
        let many = dice.percent(15);
        if many {
            (settings.controller.qps, settings.controller.burst) = (5, 5);
        }
        let collects = dice.percent(8);
        if collects {
            settings.keeper.retention = RETENTION;
            settings.controller.audit_period = Duration::from_secs(20);
        }
        Self {
            operators,
            election: settings.controller.leader_election.enabled,
            registered,
            names: (1..=1 + if many { 12 } else { dice.roll(3) }).map(|i| format!("n{i}")).collect(),
            steps: 8 + dice.roll(40),
            trouble: 4 + u32::try_from(dice.roll(16)).unwrap_or_default(),
            merge: settings.keeper.merge,
            says_later: dice.percent(20),
            rude: dice.percent(10),
            collects,
            settings,
        }
    }
}

impl Scene {
    /// What was planned begins.
    pub fn begin(world: &World, plan: Plan, dice: &mut Dice) -> anyhow::Result<Self> {
        {
            let mut state = world.lock();
            state.registered = plan.registered;
            let bad = *dice.pick(&[0, 0, 1, 1, 2, 3, 5, 8]);
            state.weather = Weather::bad(bad);
            state.replicas = vec![Replica::default(); 1 + dice.roll(3)];
            state.no_streaming = dice.percent(25);
            state.latency = *dice.pick(&[(1, 3), (1, 12), (5, 120)]);
            if dice.percent(60) {
                state.missing.push(KEEP_POLICIES.plural);
            }
            state.note(Duration::ZERO, || format!("{plan:?}; weather {bad}"));
        }
        let mut scene = Self { world: world.clone(), plan, operators: Vec::new(), next: 0 };
        let first = if dice.percent(20) { 0 } else { scene.plan.operators };
        for _ in 0..first {
            scene.start_one()?;
        }
        Ok(scene)
    }

    pub fn running(&self) -> usize {
        self.operators.len()
    }

    pub fn start_one(&mut self) -> anyhow::Result<()> {
        // Clocks of replicas differ; nothing may depend on them.
        let skew = SignedDuration::from_hours(i64::from(self.next % 3 == 2));
        let operator = Operator::start(&self.world, self.next, &self.plan.settings, skew)?;
        self.next += 1;
        self.operators.push(operator);
        Ok(())
    }

    /// Ends one of the processes, or all of them, between two steps.
    pub fn crash(&mut self, all: bool, dice: &mut Dice) {
        while !self.operators.is_empty() {
            let at = dice.roll(self.operators.len());
            self.operators.remove(at).crash();
            if !all {
                return;
            }
        }
    }

    /// Everyone who should run runs, and sees what is.
    pub fn catch_up(&mut self) -> anyhow::Result<()> {
        while self.operators.len() < self.plan.operators {
            self.start_one()?;
        }
        for replica in &mut self.world.lock().replicas {
            replica.lag = Duration::ZERO;
        }
        self.world.changed().notify_waiters();
        Ok(())
    }

    /// Something goes wrong.
    pub async fn trouble(&mut self, dice: &mut Dice) -> anyhow::Result<()> {
        match dice.roll(10) {
            0..=2 if !self.operators.is_empty() => {
                let at = dice.roll(self.operators.len());
                self.operators.remove(at).crash();
            }
            3 if !self.operators.is_empty() => {
                let at = dice.roll(self.operators.len());
                self.operators.remove(at).stop().await;
            }
            4..=5 if self.operators.len() < self.plan.operators => self.start_one()?,
            6 if !self.operators.is_empty() => {
                let id = self.operators[dice.roll(self.operators.len())].id;
                let pause = dice.millis(500, 25_000);
                let mut state = self.world.lock();
                state.fault("operator cut off", crate::server::authn::Who::Operator(id));
                state.cut_off.insert(id, Instant::now() + pause);
                drop(state);
                self.world.note(|| format!("operator-{id} is cut off for {pause:?}"));
            }
            7 => {
                let mut state = self.world.lock();
                let at = dice.roll(state.replicas.len());
                state.replicas[at].lag = dice.millis(0, 20_000);
                state.faults.add("API server lags behind");
            }
            8 => {
                let mut state = self.world.lock();
                state.store.compacted = state.store.rv();
                state.faults.add("compaction");
            }
            _ => {
                if self.operators.len() < self.plan.operators {
                    self.start_one()?;
                }
                let mut state = self.world.lock();
                for replica in &mut state.replicas {
                    replica.lag = Duration::ZERO;
                }
                drop(state);
                self.world.changed().notify_waiters();
            }
        }
        Ok(())
    }
}
