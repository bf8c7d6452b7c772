//! Freshness of the data: the API server answers, and delivers nodes, records, workloads and pods.
//! Otherwise everything that is shown may be outdated.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::{sync::Mutex, time::Instant};

use super::Dashboard;
use crate::runtime::{
    error_category::{self, Category},
    health::Health,
};

/// Time for which an answer counts.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Deadline of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Resources whose data is on every page. What is not readable of others is reported by Leases.
const SHOWN: [&str; 2] = ["nodes", "records"];
/// Resources of the pages about workloads.
const SHOWN_OF_WORKLOADS: [&str; 4] = ["deployments", "statefulsets", "replicasets", "pods"];

/// The API server does not answer, or does not deliver what is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Stale {
    /// Time of the last good answer. `None` if there was none yet.
    pub(super) since: Option<Timestamp>,
    pub(super) title: String,
    pub(super) why: String,
}

/// Why the data is stale.
#[derive(Debug)]
struct StaleCause {
    title: String,
    why: String,
    /// Time since which it fails.
    lasted: Duration,
}

impl StaleCause {
    fn no_answer(why: String) -> Self {
        Self { title: "The API server does not answer".to_owned(), why, lasted: Duration::ZERO }
    }

    /// Returns the first shown resource that cannot be read. Workloads that were never listed are
    /// not shown, so they are not outdated.
    fn unreadable(health: &Health, workloads_are_shown: bool) -> Option<Self> {
        let of_workloads = SHOWN_OF_WORKLOADS.into_iter().filter(|_| workloads_are_shown);
        SHOWN.into_iter().chain(of_workloads).find_map(|resource| {
            let (lasted, category) = health.failing(resource)?;
            let title = format!("The API server does not deliver {resource}");
            Some(Self { title, why: format!("reads of {resource} fail: {category}"), lasted })
        })
    }
}

/// The last question to the API server, and its last answer.
#[derive(Debug, Default)]
pub(super) struct ApiFreshness(Mutex<Asked>);

#[derive(Debug, Default)]
struct Asked {
    at: Option<Instant>,
    /// Time of the last good answer.
    answered: Option<Timestamp>,
    stale: Option<Stale>,
}

impl Asked {
    fn note(&mut self, at: Instant, now: Timestamp, failure: Option<StaleCause>) {
        self.at = Some(at);
        let Some(StaleCause { title, why, lasted }) = failure else {
            (self.answered, self.stale) = (Some(now), None);
            return;
        };
        // A resource counts as unreadable only after some failures.
        if let Ok(begun) = now.checked_sub(lasted) {
            self.answered = self.answered.map(|answered| answered.min(begun));
        }
        self.stale = Some(Stale { since: self.answered, title, why });
    }
}

impl Dashboard {
    /// Returns since when the API server does not answer, or does not deliver what is shown. `None`
    /// if it does.
    pub(super) async fn stale(&self) -> Option<Stale> {
        let mut asked = self.freshness.0.lock().await;
        if asked.at.is_none_or(|at| at.elapsed() >= ASK_EVERY) {
            let question = self.parts.keeper.client().apiserver_version();
            let failure = match tokio::time::timeout(ANSWER_WITHIN, question).await {
                Err(_) => Some(StaleCause::no_answer(format!("no answer within {} s", ANSWER_WITHIN.as_secs()))),
                // A refusal is an answer, too.
                Ok(Err(error)) if Category::of(&error) == Category::Unreachable => {
                    Some(StaleCause::no_answer(error_category::message(&error)))
                }
                Ok(_) => {
                    let workloads = self.parts.placer.as_ref().is_some_and(|placer| placer.is_synced());
                    StaleCause::unreadable(&self.health, workloads)
                }
            };
            asked.note(Instant::now(), Timestamp::now(), failure);
        }
        asked.stale.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn the_time_of_the_last_answer_is_kept_until_the_next_one() {
        let (mut asked, at) = (Asked::default(), Instant::now());
        asked.note(at, time(1), None);
        assert_eq!(asked.stale, None);

        asked.note(at, time(2), Some(StaleCause::no_answer("refused".to_owned())));
        asked.note(at, time(3), Some(StaleCause::no_answer("refused".to_owned())));
        let stale = asked.stale.clone().unwrap();
        assert_eq!((stale.since, stale.why.as_str()), (Some(time(1)), "refused"));

        asked.note(at, time(4), None);
        assert_eq!(asked.stale, None);
    }

    #[tokio::test(start_paused = true)]
    async fn data_is_stale_since_the_first_failed_read() {
        let (mut asked, at, health) = (Asked::default(), Instant::now(), Health::new());
        health.read("nodes");
        asked.note(at, time(100), StaleCause::unreadable(&health, false));
        assert_eq!(asked.stale, None);

        for _ in 0..3 {
            health.unread("nodes", Category::Server);
        }
        // A resource that no page shows does not make it stale.
        health.unread("leases", Category::Forbidden);
        assert!(StaleCause::unreadable(&health, false).is_none(), "it may be a moment");
        tokio::time::advance(Duration::from_secs(10)).await;
        for now in [110, 112] {
            asked.note(at, time(now), StaleCause::unreadable(&health, false));
            let stale = asked.stale.clone().unwrap();
            assert_eq!((stale.since, stale.title.as_str()), (Some(time(100)), "The API server does not deliver nodes"));
        }

        health.read("nodes");
        asked.note(at, time(120), StaleCause::unreadable(&health, false));
        assert_eq!(asked.stale, None);
    }

    #[tokio::test(start_paused = true)]
    async fn workloads_that_are_shown_can_be_stale() {
        for resource in SHOWN_OF_WORKLOADS {
            let health = Health::new();
            for _ in 0..3 {
                health.unread(resource, Category::Server);
            }
            tokio::time::advance(Duration::from_secs(10)).await;
            for _ in 0..3 {
                health.unread(resource, Category::Server);
            }
            let failure = StaleCause::unreadable(&health, true).expect("it is stale");
            assert_eq!(failure.title, format!("The API server does not deliver {resource}"));
            assert!(StaleCause::unreadable(&health, false).is_none(), "{resource} was never listed");
        }
    }
}
