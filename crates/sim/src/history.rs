//! One history: a seed, and everything that follows from it.

use crate::{
    broken_rule::BrokenRule,
    dice::Dice,
    keeper,
    oracle::Violation,
    placement,
    server::{fault_plan::Counts, world::World},
};

/// What came of one history.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub seed: u64,
    pub violations: Vec<Violation>,
    pub faults: Counts,
    pub seen: Counts,
    pub excuses: Counts,
    /// The same for the same seed.
    pub digest: u64,
    /// What happened, where that was asked for.
    pub lines: Vec<String>,
    /// How long it was, in simulated seconds.
    pub seconds: u64,
}

/// Plays a history. With `verbose` it can be read afterwards.
pub fn play(seed: u64, verbose: bool) -> anyhow::Result<Outcome> {
    play_with(seed, None, verbose)
}

/// Plays a history while a rule is broken on purpose.
pub fn play_with(seed: u64, broken: Option<BrokenRule>, verbose: bool) -> anyhow::Result<Outcome> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let mut outcome = runtime.block_on(async {
        let mut dice = Dice::new(seed);
        let world = World::new(dice.split(), verbose, broken);
        // Every fifth history is about placement; three of twenty aim at stale views and races.
        let mut outcome = match seed % 20 {
            4 | 9 | 19 => placement::play(&world, &mut dice).await?,
            14 => placement::play_drill(&world, &mut dice).await?,
            6 => keeper::play_drill(&world, &mut dice, false).await?,
            16 => keeper::play_drill(&world, &mut dice, true).await?,
            _ => keeper::play(&world, &mut dice).await?,
        };
        let state = world.lock();
        outcome.digest = state.digest();
        outcome.faults = state.faults.clone();
        outcome.seen.merge(&state.seen);
        outcome.lines.clone_from(&state.journal.lines);
        outcome.seconds = world.elapsed().as_secs();
        anyhow::Ok(outcome)
    })?;
    runtime.shutdown_background();
    outcome.seed = seed;
    Ok(outcome)
}
