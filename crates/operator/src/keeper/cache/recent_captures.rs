//! Nodes that needed a capture recently: the write of their record may still be in flight.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{
    keeper::NodeKey,
    runtime::{client::READ_TIMEOUT, map::HashMap},
};

/// The version of the last state of each node that needed a capture.
#[derive(Debug, Default)]
pub(super) struct RecentCaptures(HashMap<NodeKey, (u64, Instant)>);

impl RecentCaptures {
    /// A node needs a capture in the state of this version.
    pub(super) fn push(&mut self, node: &NodeKey, version: u64) {
        self.0.insert(Arc::clone(node), (version, Instant::now()));
    }

    /// Whether a node needed a capture in a state after the recorded one.
    pub(super) fn has_later(&self, node: &str, recorded: Option<u64>) -> bool {
        self.0.get(node).is_some_and(|(version, _)| recorded.is_none_or(|recorded| *version > recorded))
    }

    /// Drops nodes whose captures have ended: no connection waits for an answer longer than this.
    pub(super) fn expire(&mut self) {
        self.0.retain(|_, (_, at)| at.elapsed() < READ_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_capture_may_be_in_flight_until_the_record_holds_it_or_its_time_is_over() {
        let mut captures = RecentCaptures::default();
        captures.push(&Arc::from("n1"), 7);
        assert!(captures.has_later("n1", Some(5)) && captures.has_later("n1", None));
        assert!(!captures.has_later("n1", Some(7)) && !captures.has_later("n2", None));

        tokio::time::advance(READ_TIMEOUT).await;
        captures.expire();

        assert!(!captures.has_later("n1", Some(5)));
    }
}
