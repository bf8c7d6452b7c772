//! Backoff of a watch that fails: the pause doubles with each failure.

use std::time::Duration;

use kube::runtime::watcher::Event;
use tokio::time::Instant;

use super::jitter::{Jitter, nominal_pause};

/// Backoff of one watch. Only a complete list or an event of the watch ends it: a list that begins,
/// or whose first pages arrive, may still fail.
#[derive(Debug)]
pub struct WatchBackoff {
    first: Duration,
    longest: Duration,
    /// Number of failures in a row.
    failures: u32,
    not_before: Option<Instant>,
}

impl WatchBackoff {
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: 0, not_before: None }
    }

    /// Returns whether the watch has failed since its last complete list or event.
    pub fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Begins the pause after a failure. Returns the pause.
    pub fn failed(&mut self, jitter: Option<&Jitter>) -> Duration {
        let pause = match jitter {
            Some(jitter) => jitter.backoff(self.failures, self.first, self.longest),
            None => nominal_pause(self.failures, self.first, self.longest),
        };
        self.failures += 1;
        self.not_before = Some(Instant::now() + pause);
        pause
    }

    /// Records an event of the watch. A complete list or a change ends the backoff.
    pub fn delivered<K>(&mut self, event: &Event<K>) {
        if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
            (self.failures, self.not_before) = (0, None);
        }
    }

    /// Waits until the watch may be requested again.
    pub async fn wait(&self) {
        if let Some(not_before) = self.not_before {
            tokio::time::sleep_until(not_before).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_keeps_failing_is_backed_off_until_its_list_is_complete() {
        let mut backoff = WatchBackoff::new(Duration::from_millis(500), Duration::from_secs(15));
        let (start, mut requests) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_mins(10) {
            backoff.wait().await;
            requests += 1;
            backoff.delivered(&Event::<()>::Init);
            backoff.delivered(&Event::InitApply(()));
            backoff.failed(None);
        }
        assert!((40..=50).contains(&requests), "{requests} requests in ten minutes");

        backoff.delivered(&Event::<()>::InitDone);
        let idle = Instant::now();
        backoff.wait().await;
        assert_eq!(idle.elapsed(), Duration::ZERO);
        assert!(!backoff.is_failing());
    }
}
