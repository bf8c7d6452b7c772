//! Histories of the keeper: nodes are labelled, deleted and recreated, operators crash, and at the
//! end every label must be in place.

mod fresh_install;
pub mod node_workload;
mod race_scenario;
pub mod scenario;

use std::time::Duration;

use tokio::task::JoinSet;

use perennial_testkit::prng::Prng;

use crate::{
    broken_rule::BrokenRule,
    history::Outcome,
    keeper::{
        node_workload::NodeWorkload,
        scenario::{Fleet, Plan},
    },
    oracle,
    server::{
        fault_plan::FaultRates,
        kinds::{CONFIG_MAPS, NODES},
        world::World,
    },
};

/// At rest: no write of the operator for this long, which is longer than any backoff.
const REST: Duration = Duration::from_secs(130);
/// Time until an overdue gate is found.
const GATE_SLACK: Duration = Duration::from_mins(1);
const PATIENCE: Duration = Duration::from_mins(40);

/// Plays a history and checks it.
pub async fn play(world: &World, prng: &mut Prng, seed: u64) -> anyhow::Result<Outcome> {
    let mut plan = Plan::roll(prng);
    plan.widen(seed, world.broken().is_none_or(BrokenRule::is_about_policies));
    let mut fleet = Fleet::begin(world, plan, prng)?;
    let mut people = NodeWorkload::new(world, &fleet.plan, prng.split());
    let mut acts = JoinSet::new();
    for step in 0..fleet.plan.steps {
        fleet.begin_refusals(step);
        fleet.restore(step).await?;
        let pause = people.pause();
        tokio::time::sleep(pause).await;
        while acts.try_join_next().is_some() {}
        if people.prng.percent(fleet.plan.trouble) {
            fleet.trouble(&mut people.prng).await?;
        } else if fleet.plan.policies && people.prng.percent(15) {
            people.change_policy(&mut acts);
        } else {
            people.act(&mut acts);
        }
    }
    while acts.join_next().await.is_some() {}
    fleet.restore(fleet.plan.steps).await?;
    finish(world, fleet, people, Some(Vec::new())).await
}

/// Plays a history that provokes stale views, or `closely` races, and checks it.
pub async fn play_race(world: &World, prng: &mut Prng, closely: bool) -> anyhow::Result<Outcome> {
    let (fleet, people, rests) = race_scenario::play(world, prng, closely).await?;
    finish(world, fleet, people, rests).await
}

/// Ends the faults, waits for rest and checks the history.
///
/// `rests`: versions at which it was at rest before; `None` if it never was.
async fn finish(
    world: &World,
    mut fleet: Fleet,
    mut people: NodeWorkload,
    rests: Option<Vec<u64>>,
) -> anyhow::Result<Outcome> {
    fleet.calm()?;
    fleet.notice_restore().await?;
    let refused = world.lock().records_refused;
    if let Some(until) = refused {
        tokio::time::sleep_until(until).await;
    }
    let calm_at = world.elapsed();
    let rested = rests.is_some() && rest(world).await;
    let mut rests = rests.unwrap_or_default();
    rests.push(world.lock().store.rv());
    let mut marks = oracle::Marks { calm_at, rests, probes: Vec::new(), rested };
    if marks.rested {
        // A node that leaves and returns unchanged must cost at most one write.
        for name in people.present() {
            let from = world.lock().store.rv();
            people.leave_and_return(&name).await;
            let rested = rest_for(world, Duration::from_secs(45)).await;
            marks.rested &= rested;
            marks.probes.push((name, from, world.lock().store.rv()));
        }
        // A node that never reports its machine stays gated until the timeout.
        marks.rested &= rest_for(world, REST.max(fleet.plan.settings.keeper.gate_timeout + GATE_SLACK)).await;
        marks.rests.push(world.lock().store.rv());
    }
    let mut outcome = oracle::keeper::judge(&mut world.lock(), &fleet.plan, &marks);
    if marks.rested && outcome.violations.is_empty() {
        outcome.violations = fresh_install::compare(world, &mut fleet).await?;
    }
    fleet.check();
    Ok(outcome)
}

async fn rest(world: &World) -> bool {
    rest_for(world, REST).await
}

/// Waits until the operator has written nothing to nodes and records for a while. Returns false if
/// it never stops.
async fn rest_for(world: &World, quiet: Duration) -> bool {
    let start = world.elapsed();
    loop {
        let last = {
            let state = world.lock();
            let ours = |kind| std::ptr::eq(kind, &NODES) || std::ptr::eq(kind, &CONFIG_MAPS);
            let last = state.store.log.iter().rev().find(|change| change.by.is_operator() && ours(change.kind));
            last.map_or(start, |change| change.at.max(start))
        };
        let now = world.elapsed();
        if now >= last + quiet {
            return true;
        }
        if now > start + PATIENCE {
            return false;
        }
        tokio::time::sleep((last + quiet).saturating_sub(now)).await;
    }
}

impl Fleet {
    /// Ends all faults and starts missing operators.
    fn calm(&mut self) -> anyhow::Result<()> {
        {
            let mut state = self.world.lock();
            state.fault_rates = FaultRates::default();
            state.cut_off.clear();
            for replica in &mut state.replicas {
                replica.lag = Duration::ZERO;
            }
        }
        self.world.note(|| "faults end".to_owned());
        self.world.changed().notify_waiters();
        while self.running() < self.plan.operators {
            self.start_one()?;
        }
        Ok(())
    }
}
