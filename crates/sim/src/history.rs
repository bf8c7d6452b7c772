//! Plays the history of one seed.

use perennial_testkit::prng::Prng;

use crate::{
    broken_rule::BrokenRule,
    keeper, once_failed,
    oracle::Violation,
    panics, placement,
    server::{fault_plan::Counts, world::World},
    story,
};

/// Result of one history.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub seed: u64,
    pub violations: Vec<Violation>,
    pub faults: Counts,
    pub seen: Counts,
    pub excuses: Counts,
    /// Equal for equal histories.
    pub digest: u64,
    /// Log of the history, if `verbose`.
    pub lines: Vec<String>,
    /// Account of the history in plain words, if `verbose`.
    pub story: Vec<String>,
    /// Length in simulated seconds.
    pub seconds: u64,
}

/// Returns whether the history of a seed is about placement: every fifth one.
pub fn is_placement(seed: u64) -> bool {
    seed % 5 == 4
}

/// Returns whether the history of a seed has shortages of capacity, if it is about placement. Drawn
/// apart from everything else. Histories that failed once stay as they were.
fn has_shortages(seed: u64, broken: Option<BrokenRule>) -> bool {
    match broken {
        Some(rule) => rule.is_about_shortages(),
        None if once_failed::contains(seed) => once_failed::has_shortages(seed),
        None => Prng::new(!seed).percent(70),
    }
}

/// Plays a history. With `verbose` its log is in the outcome.
pub fn play(seed: u64, verbose: bool) -> anyhow::Result<Outcome> {
    play_with(seed, None, verbose)
}

/// Plays a history with a broken rule.
pub fn play_with(seed: u64, broken: Option<BrokenRule>, verbose: bool) -> anyhow::Result<Outcome> {
    panics::collect();
    panics::take();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    let mut outcome = runtime.block_on(async {
        let mut prng = Prng::new(seed);
        let world = World::new(prng.split(), verbose, broken);
        // Three of twenty histories provoke stale views and races.
        let mut outcome = match seed % 20 {
            4 | 9 | 19 if has_shortages(seed, broken) => placement::shortage::play(&world, seed).await?,
            4 | 9 | 19 => placement::play(&world, &mut prng).await?,
            14 => placement::play_race(&world, &mut prng).await?,
            6 => keeper::play_race(&world, &mut prng, false).await?,
            16 => keeper::play_race(&world, &mut prng, true).await?,
            _ => keeper::play(&world, &mut prng, seed).await?,
        };
        let mut state = world.lock();
        let found = state.journal.violations.drain(..).map(|(guarantee, what)| Violation { guarantee, what });
        outcome.violations.extend(found);
        let panics = panics::take().into_iter();
        outcome.violations.extend(panics.map(|what| Violation { guarantee: "G8", what }));
        outcome.digest = state.digest();
        outcome.faults = state.faults.clone();
        outcome.seen.merge(&state.seen);
        outcome.lines.clone_from(&state.journal.lines);
        if verbose {
            let is_note = |line: &&String| !line.contains(" -> ");
            let notes: Vec<String> = outcome.lines.iter().filter(is_note).cloned().collect();
            outcome.story = story::tell(&state, &notes, &outcome.violations);
        }
        outcome.seconds = world.elapsed().as_secs();
        // Webhooks hold operators, operators hold the world, and the world holds webhooks: without
        // this, none is freed.
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        drop(hooks);
        anyhow::Ok(outcome)
    })?;
    runtime.shutdown_background();
    outcome.seed = seed;
    Ok(outcome)
}
