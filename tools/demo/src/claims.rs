//! Checks claims: each is polled against the observations of [`crate::observer`] until it holds or
//! 30 seconds have passed. A claim that does not hold ends the demo with a failure.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use crate::{observer::Observed, stage::Stage, terminal::took};

/// Maximum time until a claim holds.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);

/// A claim that does not hold.
#[derive(Debug)]
pub(crate) struct BrokenClaim {
    pub(crate) claim: String,
    seen: String,
}

impl std::fmt::Display for BrokenClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.seen)
    }
}

impl std::error::Error for BrokenClaim {}

impl Stage {
    /// Waits until the claim holds, and prints it with the duration that `holds` returns.
    pub(crate) async fn claim(
        &mut self,
        claim: &str,
        holds: impl Fn(&Observed) -> Option<Duration>,
    ) -> anyhow::Result<()> {
        let after = self.until(claim, holds).await?;
        self.holds(claim, &took(after));
        Ok(())
    }

    /// Waits until the claim holds, and fails if it stops holding within `lasts`.
    pub(crate) async fn lasting_claim(
        &mut self,
        claim: &str,
        lasts: Duration,
        holds: impl Fn(&Observed) -> bool,
    ) -> anyhow::Result<()> {
        self.until(claim, |seen| holds(seen).then_some(Duration::ZERO)).await?;
        let until = Instant::now() + lasts;
        while Instant::now() < until {
            if !holds(&self.observer.look()) {
                return Err(self.broken(claim));
            }
            tokio::time::sleep(POLL * 10).await;
        }
        self.holds(claim, &format!("watched for {}", took(lasts)));
        Ok(())
    }

    /// Prints and counts a claim that the chapter has checked.
    pub(crate) fn holds(&mut self, claim: &str, measured: &str) {
        self.checked += 1;
        self.terminal.holds(claim, measured);
    }

    /// Waits until the condition holds without printing a claim.
    pub(crate) async fn until<T>(&self, claim: &str, holds: impl Fn(&Observed) -> Option<T>) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let began = Instant::now();
            if let Some(found) = holds(&self.observer.look()) {
                return Ok(found);
            }
            if began > deadline {
                return Err(self.broken(claim));
            }
            // Looking at a thousand nodes takes CPU time from the operator: poll less often.
            tokio::time::sleep(POLL.max(began.elapsed() * 20)).await;
        }
    }

    /// Builds the error of a claim, with a few observed nodes.
    pub(crate) fn broken(&self, claim: &str) -> anyhow::Error {
        let seen = self.observer.look();
        let mut nodes: Vec<_> = seen.nodes.iter().collect();
        nodes.sort_by_key(|(name, _)| *name);
        let mut text = format!("observed {} nodes and {} records, among them:", nodes.len(), seen.records.len());
        for (name, life) in nodes.iter().take(5) {
            let record = seen.record(name).map_or_else(|| "none".to_owned(), |labels| format!("{labels:?}"));
            let _ = write!(text, "\n  {name}: labels {:?}, record {record}", life.labels);
        }
        BrokenClaim { claim: claim.to_owned(), seen: text }.into()
    }
}
