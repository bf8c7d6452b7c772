//! Plays many histories on all cores and sums up their results.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use crate::{
    broken_rule::BrokenRule,
    history::{Outcome, play_with},
    server::fault_plan::Counts,
};

/// Maximum number of excused values in a thousand histories, by limit of the design. About twice
/// the number that is usual.
const EXCUSES: [(&str, u64); 5] = [("A", 20), ("B", 200), ("C", 20), ("E", 40), ("F", 500)];
/// Number of histories from which on the number of excuses is compared with its maximum.
const ENOUGH: u64 = 500;

/// Summary of many histories.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub histories: u64,
    pub seconds: u64,
    pub faults: Counts,
    pub seen: Counts,
    pub excuses: Counts,
    /// Histories with violations, by seed.
    pub failed: Vec<Outcome>,
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.histories += 1;
        self.seconds += outcome.seconds;
        self.faults.merge(&outcome.faults);
        self.seen.merge(&outcome.seen);
        self.excuses.merge(&outcome.excuses);
        if !outcome.violations.is_empty() {
            self.failed.push(outcome);
        }
    }

    /// Returns the limits of the design that were needed more often than expected. Empty for too
    /// few histories to tell.
    pub fn over_limit(&self) -> Vec<String> {
        let over = self.excuses.0.iter().filter(|(limit, count)| {
            let most = EXCUSES.iter().find(|(letter, _)| limit.starts_with(letter)).map_or(0, |(_, most)| *most);
            **count * 1000 > most * self.histories
        });
        over.filter(|_| self.histories >= ENOUGH).map(|(limit, count)| format!("{limit} ({count})")).collect()
    }

    /// Returns the summary as text.
    pub fn report(&self) -> String {
        let mut lines = vec![format!("{} histories, {} simulated hours", self.histories, self.seconds / 3600)];
        for (title, counts) in [
            ("faults injected", &self.faults),
            ("what happened", &self.seen),
            ("values that a limit of the design excuses", &self.excuses),
        ] {
            lines.push(format!("{title}:"));
            lines.extend(counts.0.iter().map(|(what, count)| format!("  {count:>10}  {what}")));
        }
        lines.push(format!("{} histories in which a guarantee did not hold", self.failed.len()));
        for outcome in &self.failed {
            for violation in outcome.violations.iter().take(3) {
                lines.push(format!("  SEED={} {violation}", outcome.seed));
            }
        }
        lines.join("\n")
    }
}

/// Plays the histories of these seeds. `tick` is called for each; `enough` ends the run early.
pub fn run(
    seeds: impl Iterator<Item = u64>,
    broken: Option<BrokenRule>,
    threads: usize,
    tick: impl Fn(&Outcome) + Sync,
    enough: impl Fn(&Summary) -> bool + Sync,
) -> anyhow::Result<Summary> {
    let seeds: Vec<u64> = seeds.collect();
    let next = AtomicUsize::new(0);
    let summary = Mutex::new(Summary::default());
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    match play_with(seed, broken, false) {
                        Ok(outcome) => {
                            tick(&outcome);
                            let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
                            summary.add(outcome);
                            if enough(&summary) {
                                next.store(seeds.len(), Ordering::Relaxed);
                            }
                        }
                        Err(error) => {
                            *failure.lock().unwrap_or_else(PoisonError::into_inner) =
                                Some(error.context(format!("SEED={seed}")));
                            next.store(seeds.len(), Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut summary = summary.into_inner().unwrap_or_else(PoisonError::into_inner);
    summary.failed.sort_by_key(|outcome| outcome.seed);
    Ok(summary)
}
