//! The state of a node and its record, derived from the decision about them, for commands and the
//! dashboard.

use std::{collections::BTreeSet, fmt};

use super::{
    case::Case,
    decide::{Decision, Reason, RecordWrite, Restore, decide, protected},
    keys::Key,
    record::Record,
};
use crate::config::settings::Identity;

/// The state of a node and its record in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeepState {
    Current,
    Pending,
    Unsettled,
    Waiting,
    Away,
    NoRecord,
    Ignored,
    Unidentified,
    Contested,
    NewerRecord,
}

impl KeepState {
    /// All states, in the order in which lists show them.
    pub const ALL: [Self; 10] = [
        Self::Current,
        Self::Pending,
        Self::Unsettled,
        Self::Waiting,
        Self::Away,
        Self::NoRecord,
        Self::Ignored,
        Self::Unidentified,
        Self::Contested,
        Self::NewerRecord,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Current => "Current",
            Self::Pending => "Pending",
            Self::Unsettled => "Unsettled",
            Self::Waiting => "Waiting",
            Self::Away => "Away",
            Self::NoRecord => "NoRecord",
            Self::Ignored => "Ignored",
            Self::Unidentified => "Unidentified",
            Self::Contested => "Contested",
            Self::NewerRecord => "NewerRecord",
        }
    }
}

impl fmt::Display for KeepState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The state of a node and its record, with its details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepStatus {
    /// There is a record and no node.
    Away,
    /// The node is excluded from management.
    Ignored,
    /// The node lacks the field that identifies it.
    Unidentified(Identity),
    /// The record was written by a newer version of the operator.
    NewerRecord,
    /// These other live nodes have the same identity.
    Contested(Vec<String>),
    /// Nothing is kept of the node, and there is no record.
    NoRecord,
    /// Node and record agree.
    Current,
    /// The record holds a newer state of the node.
    Older,
    /// These keys belong to a machine that the node is not known to be yet.
    Waiting(BTreeSet<Key>),
    /// The record is about to be written.
    Pending(RecordWrite, Box<Record>),
    /// The node is about to be patched.
    Unsettled(Box<Restore>),
}

impl KeepStatus {
    pub fn of(case: &Case) -> Self {
        match decide(case) {
            Decision::Nothing(reason) => Self::at_rest(case, reason),
            Decision::WriteRecord(kind, record) => Self::Pending(kind, record),
            Decision::PatchNode(restore) => Self::Unsettled(Box::new(restore)),
        }
    }

    fn at_rest(case: &Case, reason: Reason) -> Self {
        match reason {
            Reason::Absent => Self::Away,
            Reason::Ignored => Self::Ignored,
            Reason::Unidentified => Self::Unidentified(case.policy.identity.clone()),
            Reason::NewerRecord => Self::NewerRecord,
            Reason::Contested => Self::Contested(case.rivals.iter().map(|rival| rival.name.clone()).collect()),
            Reason::NoRecord => Self::NoRecord,
            Reason::Current => Self::Current,
            Reason::Older => Self::Older,
            Reason::MachineUnknown => {
                Self::Waiting(case.record().map(|record| protected(&record.kept, &case.policy)).unwrap_or_default())
            }
        }
    }

    pub fn state(&self) -> KeepState {
        match self {
            Self::Away => KeepState::Away,
            Self::Ignored => KeepState::Ignored,
            Self::Unidentified(_) => KeepState::Unidentified,
            Self::NewerRecord => KeepState::NewerRecord,
            Self::Contested(_) => KeepState::Contested,
            Self::NoRecord => KeepState::NoRecord,
            Self::Current | Self::Older => KeepState::Current,
            Self::Waiting(_) => KeepState::Waiting,
            Self::Pending(..) => KeepState::Pending,
            Self::Unsettled(_) => KeepState::Unsettled,
        }
    }

    /// Returns the state as one sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Away => "away: its record is given back when it returns".to_owned(),
            Self::Ignored => "ignored: an annotation or label excludes it".to_owned(),
            Self::Unidentified(identity) => format!("unidentified: it does not say its {identity} yet"),
            Self::NewerRecord => "left alone: its record was written by a newer version of the operator".to_owned(),
            Self::Contested(rivals) => {
                format!("contested: {} has the same identity, so nothing is restored", rivals.join(", "))
            }
            Self::NoRecord => "nothing is kept of it".to_owned(),
            Self::Current => "current: node and record agree".to_owned(),
            Self::Older => "current: the record holds a newer state".to_owned(),
            Self::Waiting(_) => {
                "waiting: the remaining keys belong to a machine that it has not reported to be".to_owned()
            }
            Self::Pending(..) => "changed: about to be captured".to_owned(),
            Self::Unsettled(restore) => {
                format!("unsettled: {} key(s) are still to be given", restore.set.len() + restore.remove.len())
            }
        }
    }

    /// Whether a write by the operator is outstanding.
    pub fn is_due(&self) -> bool {
        matches!(self, Self::Pending(..) | Self::Unsettled(_))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::Arc};

    use super::*;
    use crate::keeper::{
        case::Rival,
        selection::{IGNORE, Node},
        stored_record::Stored,
        testing::{Defaults, labels},
    };

    fn node(pairs: &str) -> Node {
        Node { name: "n1".into(), uid: "u1".into(), resource_version: 7, labels: labels(pairs), ..Node::default() }
    }

    fn status(node: Option<&Node>, stored: Option<&Arc<Stored>>, rivals: &[Rival]) -> KeepStatus {
        let defaults = Defaults::default();
        KeepStatus::of(&match node {
            Some(node) => Case::live(node.clone(), stored.cloned(), rivals.to_vec(), &defaults.context()),
            None => Case::absent(stored.cloned(), &defaults.context()),
        })
    }

    fn record_of(node: &Node) -> Arc<Stored> {
        match status(Some(node), None, &[]) {
            KeepStatus::Pending(_, record) => Arc::new(Stored::Good(record)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_state_follows_the_decision() {
        let labelled = node("team=ml");
        let stored = record_of(&labelled);
        let bare = Node { uid: "u2".into(), resource_version: 9, ..node("") };
        let mut ignored = labelled.clone();
        ignored.annotations = BTreeMap::from([(IGNORE.to_owned(), "true".to_owned())]);
        let rivals = [Rival { name: "n2".to_owned(), holds_record: false }];

        assert_eq!(status(Some(&labelled), None, &[]).state(), KeepState::Pending);
        assert_eq!(status(Some(&labelled), Some(&stored), &[]).state(), KeepState::Current);
        assert_eq!(status(Some(&bare), Some(&stored), &[]).state(), KeepState::Unsettled);
        assert_eq!(status(Some(&bare), Some(&stored), &rivals).state(), KeepState::Contested);
        assert_eq!(status(Some(&labelled), Some(&stored), &rivals).state(), KeepState::Current);
        assert_eq!(status(Some(&ignored), Some(&stored), &[]).state(), KeepState::Ignored);
        assert_eq!(status(Some(&bare), None, &[]).state(), KeepState::NoRecord);
        assert_eq!(status(None, Some(&stored), &[]).state(), KeepState::Away);
    }
}
