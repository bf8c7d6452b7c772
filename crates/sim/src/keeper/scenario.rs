//! The configuration of a keeper history, its operators, and the process and network faults that
//! hit them.

use std::time::Duration;

use jiff::SignedDuration;
use perennial_core::{
    config::{Gate, Merge, Patterns, Settings},
    keeper::keys::Key,
};
use tokio::time::Instant;

use perennial_testkit::prng::Prng;

use super::node_workload::{ANNOTATION, CORDON, LABELS, TAINT};
use crate::{
    once_failed,
    operator::Operator,
    server::{
        fault_plan::FaultRates,
        kinds::{KEEP_POLICIES, NODES},
        store::What,
        world::{Registered, Replica, World},
    },
};

/// Retention in histories that collect records.
pub const RETENTION: Duration = Duration::from_mins(1);

/// Time in which the watches of operators deliver what has happened before a restore of etcd.
const OBSERVED_WITHIN: Duration = Duration::from_secs(15);
/// Time in which an operator without faults detects a restore of etcd and starts again.
const NOTICED_WITHIN: Duration = Duration::from_secs(40);

/// Configuration of a history, drawn from the seed.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was rolled")]
pub struct Plan {
    pub operators: usize,
    /// Without an election every operator works on all nodes.
    pub election: bool,
    pub registered: Registered,
    pub names: Vec<String>,
    /// Keys that are kept and that people change.
    pub keys: Vec<&'static str>,
    pub steps: usize,
    /// Probability of a fault instead of a workload step, in percent.
    pub trouble: u32,
    pub merge: Merge,
    /// Nodes report their providerID late.
    pub reports_machine_late: bool,
    /// Includes actions beyond the limits of the design: records deleted or overwritten by hand,
    /// old manifests.
    pub beyond_limits: bool,
    /// Records of absent nodes are collected within the history.
    pub collects: bool,
    /// Step at which a policy begins to refuse writes of records, and for how long it does.
    pub refusals: Option<(usize, Duration)>,
    /// Step before which a backup of etcd is made, and the step before which it is restored.
    pub restore: Option<(usize, usize)>,
    /// KeepPolicies are created, changed, broken and deleted.
    pub policies: bool,
    /// KeepPolicies identify nodes by different fields. Every name stays on its machine then, so
    /// that each of them identifies the same node.
    pub identities: bool,
    pub settings: Settings,
}

pub struct Fleet {
    pub world: World,
    pub plan: Plan,
    operators: Vec<Operator>,
    next: usize,
    /// ResourceVersion of the backup of etcd.
    backup: u64,
}

impl Plan {
    pub fn roll(prng: &mut Prng) -> Self {
        let operators = 1 + prng.below(3);
        let webhooks = prng.below(10);
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
        settings.controller.shards = *prng.pick(&[1, 1, 2]);
        settings.controller.leader_election.enabled = prng.percent(50);
        settings.controller.leader_election.lease_duration = Duration::from_secs(*prng.pick(&[15, 40, 40]));
        if prng.percent(20) {
            settings.keeper.merge = Merge::Overwrite;
        }
        settings.keeper.gate = *prng.pick(&[Gate::Never, Gate::Never, Gate::Needed, Gate::Always]);
        // Enough nodes to exhaust the rate limit when all are deleted.
        let many = prng.percent(15);
        if many {
            (settings.controller.qps, settings.controller.burst) = (5, 5);
        }
        let collects = prng.percent(8);
        if collects {
            settings.keeper.retention = RETENTION;
            settings.controller.audit_period = Duration::from_secs(20);
        }
        Self {
            operators,
            election: settings.controller.leader_election.enabled,
            registered,
            names: (1..=1 + if many { 12 } else { prng.below(3) }).map(|i| format!("n{i}")).collect(),
            keys: LABELS.to_vec(),
            steps: 8 + prng.below(40),
            trouble: 4 + u32::try_from(prng.below(16)).unwrap_or_default(),
            merge: settings.keeper.merge,
            reports_machine_late: prng.percent(20),
            beyond_limits: prng.percent(10),
            collects,
            refusals: None,
            restore: None,
            policies: false,
            identities: false,
            settings,
        }
    }

    /// Adds lasting faults to some histories and, if it `varies`, another configuration. They are
    /// drawn apart from everything else, so that the other histories stay as they are.
    pub fn widen(&mut self, seed: u64, varies: bool) {
        let mut prng = Prng::new(!seed);
        if prng.percent(15) {
            let step = prng.below(self.steps);
            self.refusals = Some((step, prng.millis(20_000, 1_200_000)));
        } else if prng.percent(10) {
            let backup = prng.below(self.steps);
            self.restore = Some((backup, backup + 1 + prng.below(self.steps - backup)));
        }
        // Histories that failed once stay as they were.
        if varies && !once_failed::contains(seed) {
            self.vary(&mut prng);
        }
    }

    /// Draws what is kept besides labels, and whether there are KeepPolicies.
    fn vary(&mut self, prng: &mut Prng) {
        self.policies = prng.percent(25);
        self.identities = self.policies && prng.percent(60) && !self.beyond_limits;
        if prng.percent(60) {
            return;
        }
        self.keys.extend([ANNOTATION, TAINT, CORDON].into_iter().filter(|_| prng.percent(60)));
        let keeper = &mut self.settings.keeper;
        for key in &self.keys {
            match Key::parse(key) {
                Key::Annotation(key) => keeper.annotations = Patterns::of(&[key.as_str()]),
                Key::Taint { key, .. } => keeper.taints = Patterns::of(&[key.as_str()]),
                Key::Cordon => keeper.cordon = true,
                Key::Label(_) => {}
            }
        }
    }
}

impl Fleet {
    /// Starts the operators of a history.
    pub fn begin(world: &World, plan: Plan, prng: &mut Prng) -> anyhow::Result<Self> {
        {
            let mut state = world.lock();
            state.registered = plan.registered;
            let bad = *prng.pick(&[0, 0, 1, 1, 2, 3, 5, 8]);
            state.fault_rates = FaultRates::bad(bad);
            state.replicas = vec![Replica::default(); 1 + prng.below(3)];
            state.no_streaming = prng.percent(25);
            state.latency = *prng.pick(&[(1, 3), (1, 12), (5, 120)]);
            if prng.percent(60) && !plan.policies {
                state.missing.push(KEEP_POLICIES.plural);
            }
            state.note(Duration::ZERO, || format!("{plan:?}; fault_rates {bad}"));
        }
        let mut fleet = Self { world: world.clone(), plan, operators: Vec::new(), next: 0, backup: 0 };
        let first = if prng.percent(20) { 0 } else { fleet.plan.operators };
        for _ in 0..first {
            fleet.start_one()?;
        }
        Ok(fleet)
    }

    pub fn running(&self) -> usize {
        self.operators.len()
    }

    pub fn start_one(&mut self) -> anyhow::Result<()> {
        // Clocks of replicas differ.
        let skew = SignedDuration::from_hours(i64::from(self.next % 3 == 2));
        let operator = Operator::start(&self.world, self.next, &self.plan.settings, skew, self.plan.restore.is_some())?;
        self.next += 1;
        self.operators.push(operator);
        Ok(())
    }

    /// Crashes one operator, or all.
    pub fn crash(&mut self, all: bool, prng: &mut Prng) {
        while !self.operators.is_empty() {
            let at = prng.below(self.operators.len());
            self.operators.remove(at).crash();
            if !all {
                return;
            }
        }
    }

    /// Crashes all operators.
    pub fn end_all(&mut self) {
        for operator in self.operators.drain(..) {
            operator.crash();
        }
    }

    /// Crashes all operators and starts a single new one.
    pub fn replace_all(&mut self) -> anyhow::Result<()> {
        self.end_all();
        self.start_one()
    }

    /// Begins to refuse writes of records, if this is the step for it.
    pub fn begin_refusals(&self, step: usize) {
        let Some((_, pause)) = self.plan.refusals.filter(|(at, _)| *at == step) else { return };
        self.world.lock().records_refused = Some(Instant::now() + pause);
        self.world.note(|| format!("writes of records are refused for {pause:?}"));
    }

    /// Makes a backup of etcd or restores it, if this is the step for it, and starts those
    /// operators again that noticed.
    pub async fn restore(&mut self, step: usize) -> anyhow::Result<()> {
        let Some((backup, restore)) = self.plan.restore else { return Ok(()) };
        if step == backup {
            self.backup = self.world.lock().store.rv();
        }
        if step == restore {
            self.world.lock().cut_off.clear();
            self.catch_up()?;
            tokio::time::sleep(OBSERVED_WITHIN).await;
            let mut state = self.world.lock();
            let lost = state.store.between(self.backup, u64::MAX);
            // An operator detects a restore by a node that it has observed, or by its Lease.
            if lost.iter().any(|change| std::ptr::eq(change.kind, &NODES) && change.what != What::Deleted) {
                state.restore(self.backup);
            }
            drop(state);
            self.world.changed().notify_waiters();
        }
        self.restart_after_restore().await
    }

    async fn restart_after_restore(&mut self) -> anyhow::Result<()> {
        while let Some(at) = self.operators.iter().position(Operator::noticed_restore) {
            self.operators.remove(at).stop().await;
            self.start_one()?;
        }
        Ok(())
    }

    /// Waits until every operator that ran at the restore has noticed it, without faults.
    pub async fn notice_restore(&mut self) -> anyhow::Result<()> {
        if self.plan.restore.is_none() {
            return Ok(());
        }
        let since = Instant::now();
        while since.elapsed() < NOTICED_WITHIN {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.restart_after_restore().await?;
        }
        Ok(())
    }

    /// Reports operators whose tasks have ended early.
    pub fn check(&mut self) {
        for operator in &mut self.operators {
            operator.check();
        }
    }

    /// Starts missing operators and ends the lag of API servers.
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

    /// Injects a fault: crash, restart, network partition, lag or compaction.
    pub async fn trouble(&mut self, prng: &mut Prng) -> anyhow::Result<()> {
        match prng.below(10) {
            0..=2 if !self.operators.is_empty() => {
                let at = prng.below(self.operators.len());
                self.operators.remove(at).crash();
            }
            3 if !self.operators.is_empty() => {
                let at = prng.below(self.operators.len());
                self.operators.remove(at).stop().await;
            }
            4..=5 if self.operators.len() < self.plan.operators => self.start_one()?,
            6 if !self.operators.is_empty() => {
                let id = self.operators[prng.below(self.operators.len())].id;
                let pause = prng.millis(500, 25_000);
                let mut state = self.world.lock();
                state.fault("operator cut off", crate::server::authn::User::Operator(id));
                state.cut_off.insert(id, Instant::now() + pause);
                drop(state);
                self.world.note(|| format!("operator-{id} is cut off for {pause:?}"));
            }
            7 => {
                let mut state = self.world.lock();
                let at = prng.below(state.replicas.len());
                state.replicas[at].lag = prng.millis(0, 20_000);
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
