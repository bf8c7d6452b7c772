//! The state of a node and its record, derived from the decision about them, for commands and the
//! dashboard.

use std::{collections::BTreeSet, fmt};

use super::{
    case::Case,
    decide::{Decision, Reason, RecordWrite, Restore, decide, protected},
    keys::Key,
    next_incarnation::{NothingRestored, next_incarnation},
    record::{Record, RecordFault},
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

    /// Whether the node exists and is not excluded from management.
    pub const fn is_managed(self) -> bool {
        !matches!(self, Self::Away | Self::Ignored)
    }

    /// Whether the record holds everything that is kept of the node, and the node has everything in
    /// its record. A node of which nothing is kept is current. This is the only definition.
    pub const fn is_current(self) -> bool {
        matches!(self, Self::Current | Self::NoRecord)
    }
}

/// Number of nodes in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts([usize; KeepState::ALL.len()]);

impl NodeCounts {
    pub fn add(&mut self, state: KeepState) {
        self.0[state as usize] += 1;
    }

    pub fn of(&self, state: KeepState) -> usize {
        self.0[state as usize]
    }

    /// Number of nodes that exist and are not excluded from management.
    pub fn managed(&self) -> usize {
        self.sum(KeepState::is_managed)
    }

    /// Number of managed nodes that are current.
    pub fn current(&self) -> usize {
        self.sum(KeepState::is_current)
    }

    /// Number of nodes in states that a predicate selects.
    pub fn sum(&self, is_counted: impl Fn(KeepState) -> bool) -> usize {
        self.iter().filter(|(state, _)| is_counted(*state)).map(|(_, count)| count).sum()
    }

    /// Returns the states that nodes are in, with the number of nodes.
    pub fn iter(&self) -> impl Iterator<Item = (KeepState, usize)> + '_ {
        KeepState::ALL.into_iter().map(|state| (state, self.of(state))).filter(|(_, count)| *count > 0)
    }

    /// Fraction of the managed nodes that are current; 1 without nodes.
    #[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 nodes")]
    pub fn current_ratio(&self) -> f64 {
        if self.managed() == 0 { 1.0 } else { self.current() as f64 / self.managed() as f64 }
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
    /// There is a record and no node. With the reason why nothing is restored when it returns, if
    /// that is so.
    Away(Option<NothingRestored>),
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
    /// Node and record agree. With the fault of the stored record, if another one is used instead.
    Current(Option<RecordFault>),
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
            Reason::Absent => Self::Away(next_incarnation(case).err()),
            Reason::Ignored => Self::Ignored,
            Reason::Unidentified => Self::Unidentified(case.policy.identity.clone()),
            Reason::NewerRecord => Self::NewerRecord,
            Reason::Contested => Self::Contested(case.rivals.iter().map(|rival| rival.name.clone()).collect()),
            Reason::NoRecord => Self::NoRecord,
            Reason::Current => Self::Current(case.stored().and_then(|stored| stored.fault()).cloned()),
            Reason::Older => Self::Older,
            Reason::MachineUnknown => {
                Self::Waiting(case.record().map(|record| protected(&record.kept, &case.policy)).unwrap_or_default())
            }
        }
    }

    pub fn state(&self) -> KeepState {
        match self {
            Self::Away(_) => KeepState::Away,
            Self::Ignored => KeepState::Ignored,
            Self::Unidentified(_) => KeepState::Unidentified,
            Self::NewerRecord => KeepState::NewerRecord,
            Self::Contested(_) => KeepState::Contested,
            Self::NoRecord => KeepState::NoRecord,
            Self::Current(_) | Self::Older => KeepState::Current,
            Self::Waiting(_) => KeepState::Waiting,
            Self::Pending(..) => KeepState::Pending,
            Self::Unsettled(_) => KeepState::Unsettled,
        }
    }

    /// Returns the state as one sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Away(None) => "away: its record is restored when it returns".to_owned(),
            Self::Away(Some(NothingRestored::EmptyRecord)) => "away: nothing is kept of it".to_owned(),
            Self::Away(Some(why)) => format!("away: nothing is restored when it returns: {why}"),
            Self::Ignored => "ignored: an annotation or label excludes it".to_owned(),
            Self::Unidentified(identity) => {
                format!("unidentified: it has no {identity} yet, so nothing is captured or restored")
            }
            Self::NewerRecord => "not changed: its record was written by a newer version of the operator".to_owned(),
            Self::Contested(rivals) => {
                format!("contested: {} has the same identity, so nothing is restored", rivals.join(", "))
            }
            Self::NoRecord => "nothing is kept of it".to_owned(),
            Self::Current(None) => "current: node and record agree".to_owned(),
            Self::Current(Some(fault)) => {
                format!(
                    "current: its record is quarantined ({fault}), and a copy that replaces it agrees with the node"
                )
            }
            Self::Older => "current: the record holds a newer state".to_owned(),
            Self::Waiting(_) => {
                "waiting: the remaining keys belong to a machine that it has not reported to be".to_owned()
            }
            Self::Pending(..) => "changed: about to be captured".to_owned(),
            Self::Unsettled(restore) => {
                format!("unsettled: {} key(s) not restored yet", restore.set.len() + restore.remove.len())
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
        keys::Kept,
        selection::{IGNORE, Node},
        stored_record::{Stored, Substitute},
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

    #[test]
    fn a_sentence_claims_no_more_than_the_record_holds() {
        let labelled = node("team=ml");
        let stored = record_of(&labelled);
        let Stored::Good(record) = &*stored else { panic!("a record") };
        let empty = Arc::new(Stored::Good(Box::new(Record { kept: Kept::new(), ..(**record).clone() })));
        let bad = |good| Arc::new(Stored::Bad { fault: RecordFault::Checksum, good });
        let replaced = bad(Substitute::Recovered(record.clone()));
        let lost = bad(Substitute::Nothing);

        assert!(status(None, Some(&stored), &[]).sentence().contains("is restored when it returns"));
        assert_eq!(status(None, Some(&empty), &[]).sentence(), "away: nothing is kept of it");
        assert!(status(None, Some(&lost), &[]).sentence().contains("nothing is restored when it returns"));
        assert!(status(None, Some(&replaced), &[]).sentence().contains("is restored when it returns"));
        let sentence = status(Some(&labelled), Some(&replaced), &[]).sentence();
        assert!(sentence.contains("its record is quarantined") && !sentence.contains("record agree"), "{sentence}");
    }

    #[test]
    fn every_state_is_counted_once_and_current_nodes_are_managed() {
        let mut counts = NodeCounts::default();
        for state in KeepState::ALL {
            counts.add(state);
        }
        assert_eq!((counts.managed(), counts.current()), (KeepState::ALL.len() - 2, 2));
        assert!(KeepState::ALL.into_iter().all(|state| counts.of(state) == 1));
        assert!(KeepState::ALL.into_iter().filter(|state| state.is_current()).all(KeepState::is_managed));
        assert!((NodeCounts::default().current_ratio() - 1.0).abs() < 1e-9);
    }
}
