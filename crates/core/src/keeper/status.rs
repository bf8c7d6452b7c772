//! Where a node stands with its record: what the operator would do about it now, as a value that commands print.
//!
//! Owns no rule of its own: [`super::plan`] decides, this only asks it in the order in which the controller does.

use std::collections::BTreeSet;

use super::{
    identity::Identified,
    keys::Key,
    plan::{Act, Context, Plan, Restore, Why, live},
    record::Record,
    selection::{Node, ignored},
    stored_record::Stored,
};
use crate::config::settings::Identity;

/// Where a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is a record and no node.
    Away,
    /// The node asks to be left alone.
    Ignored,
    /// The node does not say yet who it is.
    Unidentified(Identity),
    /// The record was written by a newer operator: it is left alone.
    Newer,
    /// Other live nodes have the same identity.
    Contested(Vec<String>),
    /// Nothing is kept of the node, and there is no record.
    NothingKept,
    /// Node and record agree.
    Current,
    /// The record knows a newer state of the node.
    Older,
    /// The rest belongs to a machine that the node has not shown to be.
    Waits(BTreeSet<Key>),
    /// The record is about to be written.
    Pending(Act, Box<Record>),
    /// The node is about to be given something.
    Unsettled(Box<Restore>),
}

/// Every word that [`Standing::word`] says, in the order in which people want to hear of them.
pub const WORDS: &[&str] = &[
    "Current",
    "Pending",
    "Unsettled",
    "Waiting",
    "Away",
    "NoRecord",
    "Ignored",
    "Unidentified",
    "Contested",
    "NewerRecord",
];

impl Standing {
    /// What the operator would do about this node with this record. `rivals` are other live nodes of its identity.
    pub fn of(node: Option<&Node>, stored: Option<&Stored>, rivals: &[String], context: &Context<'_>) -> Self {
        let Some(node) = node else { return Self::Away };
        if ignored(node) {
            return Self::Ignored;
        }
        let policy = context.policy;
        if Identified::of(&policy.identity, node).is_none() {
            return Self::Unidentified(policy.identity.clone());
        }
        if stored.and_then(Stored::fault).is_some_and(super::record::Fault::is_newer) {
            return Self::Newer;
        }
        let seen = policy.select(node);
        let record = stored.and_then(|stored| stored.effective(&seen));
        let owner = record.as_ref().is_some_and(|record| record.node.uid == node.uid);
        if !rivals.is_empty() && !owner {
            return Self::Contested(rivals.to_vec());
        }
        match live(&seen, record.as_ref(), context) {
            Plan::Nothing(Why::NothingKept) => Self::NothingKept,
            Plan::Nothing(Why::Current) => Self::Current,
            Plan::Nothing(Why::Older) => Self::Older,
            Plan::Nothing(Why::MachineUnknown) => Self::Waits(
                record
                    .iter()
                    .flat_map(|record| record.kept.keys())
                    .filter(|key| policy.protects(key))
                    .cloned()
                    .collect(),
            ),
            Plan::Write(act, record) => Self::Pending(act, record),
            Plan::Restore(restore) => Self::Unsettled(Box::new(restore)),
        }
    }

    /// One word for tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Away => "Away",
            Self::Ignored => "Ignored",
            Self::Unidentified(_) => "Unidentified",
            Self::Newer => "NewerRecord",
            Self::Contested(_) => "Contested",
            Self::NothingKept => "NoRecord",
            Self::Current | Self::Older => "Current",
            Self::Waits(_) => "Waiting",
            Self::Pending(..) => "Pending",
            Self::Unsettled(_) => "Unsettled",
        }
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        match self {
            Self::Away => "away: its record is given back when it returns".to_owned(),
            Self::Ignored => "ignored: it asks to be left alone".to_owned(),
            Self::Unidentified(identity) => format!("unidentified: it does not say its {identity} yet"),
            Self::Newer => "left alone: its record was written by a newer operator".to_owned(),
            Self::Contested(rivals) => {
                format!("contested: {} has the same identity, so nothing is restored", rivals.join(", "))
            }
            Self::NothingKept => "nothing is kept of it".to_owned(),
            Self::Current => "current: node and record agree".to_owned(),
            Self::Older => "current: the record knows a newer state".to_owned(),
            Self::Waits(_) => "waiting: the rest is for a machine that it has not shown to be".to_owned(),
            Self::Pending(..) => "changed: about to be captured".to_owned(),
            Self::Unsettled(restore) => {
                format!("unsettled: {} key(s) are still to be given", restore.set.len() + restore.remove.len())
            }
        }
    }

    /// Something is to be done, and the operator has yet to do it.
    pub fn is_due(&self) -> bool {
        matches!(self, Self::Pending(..) | Self::Unsettled(_))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;

    use super::*;
    use crate::{
        config::settings::Settings,
        keeper::selection::{IGNORE, Policy},
    };

    fn node(labels: &[(&str, &str)]) -> Node {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Node { name: "n1".into(), uid: "u1".into(), resource_version: 7, labels, ..Node::default() }
    }

    fn standing(node: Option<&Node>, stored: Option<&Stored>, rivals: &[String]) -> Standing {
        let policy = Policy::from_settings(&Settings::default().keeper);
        let context = Context { policy: &policy, identity: None, now: Timestamp::UNIX_EPOCH, by: "cli" };
        Standing::of(node, stored, rivals, &context)
    }

    fn record_of(node: &Node) -> Stored {
        match standing(Some(node), None, &[]) {
            Standing::Pending(_, record) => Stored::Good(record),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_words_follow_the_plan() {
        let labelled = node(&[("team", "ml")]);
        let stored = record_of(&labelled);
        let bare = Node { uid: "u2".into(), resource_version: 9, ..node(&[]) };
        let mut shy = labelled.clone();
        shy.annotations = BTreeMap::from([(IGNORE.to_owned(), "true".to_owned())]);
        let rivals = ["n2".to_owned()];

        assert_eq!(standing(Some(&labelled), None, &[]).word(), "Pending");
        assert_eq!(standing(Some(&labelled), Some(&stored), &[]).word(), "Current");
        assert_eq!(standing(Some(&bare), Some(&stored), &[]).word(), "Unsettled");
        assert_eq!(standing(Some(&bare), Some(&stored), &rivals).word(), "Contested");
        assert_eq!(standing(Some(&labelled), Some(&stored), &rivals).word(), "Current");
        assert_eq!(standing(Some(&shy), Some(&stored), &[]).word(), "Ignored");
        assert_eq!(standing(Some(&bare), None, &[]).word(), "NoRecord");
        assert_eq!(standing(None, Some(&stored), &[]).word(), "Away");
    }
}
