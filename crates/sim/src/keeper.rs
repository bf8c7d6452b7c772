//! Histories of the keeper: nodes come and go, people label them, operators crash, and in the end everything is where it belongs.

mod drill;
pub mod people;
pub mod scene;

use std::time::Duration;

use tokio::task::JoinSet;

use crate::{
    dice::Dice,
    history::Outcome,
    keeper::{
        people::People,
        scene::{Plan, Scene},
    },
    oracle,
    server::{
        fault_plan::Weather,
        kinds::{CONFIG_MAPS, NODES},
        world::World,
    },
};

/// Nothing of ours is written for so long: then everything is at rest. Longer than the longest pause of any loop.
const REST: Duration = Duration::from_secs(130);
/// An overdue gate is lifted at the next round of whoever looks for it.
const GATE_SLACK: Duration = Duration::from_mins(1);
const PATIENCE: Duration = Duration::from_mins(40);

/// Plays a history and judges it.
pub async fn play(world: &World, dice: &mut Dice) -> anyhow::Result<Outcome> {
    let plan = Plan::roll(dice);
    let mut scene = Scene::begin(world, plan, dice)?;
    let mut people = People::new(world, &scene.plan, dice.split());
    let mut acts = JoinSet::new();
    for _ in 0..scene.plan.steps {
        let pause = people.pause();
        tokio::time::sleep(pause).await;
        while acts.try_join_next().is_some() {}
        if people.dice.percent(scene.plan.trouble) {
            scene.trouble(&mut people.dice).await?;
        } else {
            people.act(&mut acts);
        }
    }
    while acts.join_next().await.is_some() {}
    finish(world, scene, people, Some(Vec::new())).await
}

/// Plays a history that is aimed at stale views, or `closely` at races, and judges it.
pub async fn play_drill(world: &World, dice: &mut Dice, closely: bool) -> anyhow::Result<Outcome> {
    let (scene, people, rests) = drill::play(world, dice, closely).await?;
    finish(world, scene, people, rests).await
}

/// The weather clears, everything comes to rest, and it is judged.
///
/// `rests`: where it was at rest before; none where it never was.
async fn finish(
    world: &World,
    mut scene: Scene,
    mut people: People,
    rests: Option<Vec<u64>>,
) -> anyhow::Result<Outcome> {
    scene.calm()?;
    let calm_at = world.elapsed();
    let rested = rests.is_some() && rest(world).await;
    let mut rests = rests.unwrap_or_default();
    rests.push(world.lock().store.rv());
    let mut marks = oracle::Marks { calm_at, rests, probes: Vec::new(), rested };
    if marks.rested {
        // Whoever leaves and returns unchanged is served without ado.
        for name in people.present() {
            let from = world.lock().store.rv();
            people.leave_and_return(&name).await;
            let rested = rest_for(world, Duration::from_secs(45)).await;
            marks.rested &= rested;
            marks.probes.push((name, from, world.lock().store.rv()));
        }
        // A node that never says which machine it is stays closed until the gate's timeout.
        marks.rested &= rest_for(world, REST.max(scene.plan.settings.keeper.gate_timeout + GATE_SLACK)).await;
        marks.rests.push(world.lock().store.rv());
    }
    let mut state = world.lock();
    Ok(oracle::keeper::judge(&mut state, &scene.plan, &marks))
}

async fn rest(world: &World) -> bool {
    rest_for(world, REST).await
}

/// Waits until we have written nothing to nodes and records for a while. False: it never ends.
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

impl Scene {
    /// The weather clears, everyone is there and reachable.
    fn calm(&mut self) -> anyhow::Result<()> {
        {
            let mut state = self.world.lock();
            state.weather = Weather::default();
            state.cut_off.clear();
            for replica in &mut state.replicas {
                replica.lag = Duration::ZERO;
            }
        }
        self.world.note(|| "the weather clears".to_owned());
        self.world.changed().notify_waiters();
        while self.running() < self.plan.operators {
            self.start_one()?;
        }
        Ok(())
    }
}
