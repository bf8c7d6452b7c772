//! Holds, and the time at which a record is deleted by garbage collection.

use jiff::Timestamp;
use perennial_core::keeper::{
    case::{Case, CaseContext},
    collect::{Candidate, CollectionTime, collection_time},
    policy_set::PolicySet,
};
use serde_json::{Value, json};

use super::{format::span, inspected_node::InspectedNode};
use crate::keeper::apply::LoadedRecord;

/// Hold of a record, and the time at which it is deleted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLifetime {
    pub(crate) hold: bool,
    time: CollectionTime,
    /// `keeper.maxAbsent`, beyond which it is deleted earlier. 0: there is no limit.
    max_absent: u32,
    /// True if the existence of the node was read.
    node_known: bool,
}

impl RecordLifetime {
    /// Returns `None` without a record.
    pub(crate) fn of(look: &InspectedNode) -> Option<Self> {
        let held = look.held.as_ref()?;
        let candidate = Candidate::new(&look.case, held.annotations());
        Some(Self::new(held, &Candidate { present: look.node().is_some(), ..candidate }))
    }

    /// Returns the lifetime of a record whose node was not read. Garbage collection notes an absent
    /// node.
    pub(crate) fn of_record(held: &LoadedRecord, policies: &PolicySet) -> Self {
        let context = CaseContext { policies, now: Timestamp::now(), by: "cli" };
        let candidate = Candidate::new(&Case::absent(Some(held.share()), &context), held.annotations());
        let lifetime = Self::new(held, &Candidate { present: candidate.absent_since.is_none(), ..candidate });
        Self { node_known: false, ..lifetime }
    }

    fn new(held: &LoadedRecord, candidate: &Candidate) -> Self {
        Self { hold: held.is_on_hold(), ..Self::of_candidate(candidate) }
    }

    /// Returns the lifetime of a record of which only these figures are known.
    pub(crate) fn of_candidate(candidate: &Candidate) -> Self {
        Self { hold: candidate.held, time: collection_time(candidate), max_absent: 0, node_known: true }
    }

    /// Sets the limit of absent records, which may delete it earlier.
    pub(crate) fn limited(self, max_absent: u32) -> Self {
        Self { max_absent, ..self }
    }

    /// Returns the cell of a column `HOLD`.
    pub(crate) fn hold_cell(lifetime: Option<&Self>) -> String {
        if lifetime.is_some_and(|lifetime| lifetime.hold) { "yes" } else { "-" }.to_owned()
    }

    /// Returns the cell of a column `COLLECTED`: the time until the record is deleted.
    pub(crate) fn cell(lifetime: Option<&Self>, now: Timestamp) -> String {
        match lifetime.map(|lifetime| lifetime.time) {
            None | Some(CollectionTime::Present) => "-".to_owned(),
            Some(CollectionTime::AfterNote(limit)) => format!(">{}", seconds_span(limit.as_secs())),
            Some(CollectionTime::At(at)) => span(at.as_second().saturating_sub(now.as_second())),
            Some(CollectionTime::Held | CollectionTime::Quarantined | CollectionTime::Unlimited) => "never".to_owned(),
        }
    }

    /// Returns the time as words that follow "is deleted".
    pub(crate) fn words(&self, now: Timestamp) -> String {
        let earlier = match self.max_absent {
            0 => String::new(),
            limit => {
                format!(", or earlier: with more than {limit} absent records (keeper.maxAbsent) the oldest go first")
            }
        };
        match self.time {
            CollectionTime::Present => "never: its node exists".to_owned(),
            CollectionTime::AfterNote(limit) => {
                format!("{} after garbage collection finds its node absent{earlier}", seconds_span(limit.as_secs()))
            }
            CollectionTime::At(at) => {
                let left = at.as_second().saturating_sub(now.as_second());
                let mass = "later while most nodes are absent";
                if left <= 0 {
                    format!("by the next garbage collection; {mass}")
                } else {
                    format!("in {}{earlier}; {mass}", span(left))
                }
            }
            CollectionTime::Held => "never: the record is held".to_owned(),
            CollectionTime::Quarantined => "never: the record is quarantined".to_owned(),
            CollectionTime::Unlimited if self.max_absent > 0 => format!("never by its age{earlier}"),
            CollectionTime::Unlimited => "never: the retention is unlimited".to_owned(),
        }
    }

    /// Returns a sentence for an explanation. `None` if nothing is special about the record.
    pub(crate) fn sentence(&self, now: Timestamp) -> Option<String> {
        if self.hold {
            return Some("It is excluded from garbage collection by a hold.".to_owned());
        }
        if matches!(self.time, CollectionTime::Present) {
            return None;
        }
        let words = self.words(now);
        Some(match words.strip_prefix("never") {
            Some(why) => format!("It is never deleted{why}."),
            None => format!("It is deleted {words}."),
        })
    }

    pub(crate) fn to_json(self) -> Value {
        let (at, never) = match self.time {
            CollectionTime::At(at) => (Some(at), None),
            CollectionTime::Present => (None, self.node_known.then_some("the node exists")),
            CollectionTime::AfterNote(_) => (None, None),
            CollectionTime::Held => (None, Some("held")),
            CollectionTime::Quarantined => (None, Some("quarantined")),
            CollectionTime::Unlimited => (None, Some("unlimited retention")),
        };
        json!({"at": at, "never": never})
    }
}

fn seconds_span(seconds: u64) -> String {
    span(i64::try_from(seconds).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_absent_records_may_delete_a_record_earlier() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let words = |time: CollectionTime, limit: u32| {
            RecordLifetime { hold: false, time, max_absent: 0, node_known: true }.limited(limit).words(now)
        };
        let later = CollectionTime::At(Timestamp::from_second(1_000_000 + 3 * 86_400).unwrap());
        assert_eq!(words(later, 0), "in 3d; later while most nodes are absent");
        for time in [later, CollectionTime::AfterNote(std::time::Duration::from_hours(72)), CollectionTime::Unlimited] {
            let limited = words(time, 50);
            assert!(limited.contains("or earlier: with more than 50 absent records (keeper.maxAbsent)"), "{limited}");
        }
        assert_eq!(words(CollectionTime::Held, 50), "never: the record is held");
    }

    #[test]
    fn a_sentence_about_the_deletion_is_english() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (time, sentence) in [
            (CollectionTime::Quarantined, Some("It is never deleted: the record is quarantined.")),
            (CollectionTime::Unlimited, Some("It is never deleted: the retention is unlimited.")),
            (
                CollectionTime::At(now),
                Some("It is deleted by the next garbage collection; later while most nodes are absent."),
            ),
            (CollectionTime::Present, None),
        ] {
            let lifetime = RecordLifetime { hold: false, time, max_absent: 0, node_known: true };
            assert_eq!(lifetime.sentence(now).as_deref(), sentence);
        }
    }
}
