//! The keys that a node would have if it were deleted now and created again on the same machine.
//!
//! Contains no rule of its own: the answer is that of [`decide`] for the deletion and for the
//! creation of the node.

use std::{borrow::Cow, fmt, sync::Arc};

use super::{
    admission::kubelet_may_set,
    case::{Case, CaseContext, Phase},
    decide::{Decision, decide},
    keys::{Kept, Key},
    policy_set::PolicySet,
    record::{Record, RecordFault},
    selection::Node,
    stored_record::Stored,
};
use crate::config::settings::Identity;

/// The keys that the next incarnation of a node would be restored with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextIncarnation {
    pub given: Kept,
    /// Keys that a kubelet may not set in its create request. Restored by a patch.
    pub later: Vec<Key>,
    pub withheld: Vec<Key>,
}

/// Why the next incarnation of a node would be restored with nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NothingRestored {
    Ignored,
    Unidentified(Identity),
    NewerRecord,
    Contested(Vec<String>),
    Quarantined(RecordFault),
    EmptyRecord,
    NoRecord,
    /// The record holds only keys of another machine, or keys that the policy does not keep.
    NoneForThisNode,
}

impl fmt::Display for NothingRestored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ignored => f.write_str("an annotation or label excludes the node"),
            Self::Unidentified(identity) => write!(f, "the node has no {identity} yet, so it has no record"),
            Self::NewerRecord => f.write_str("its record was written by a newer version of the operator"),
            Self::Contested(rivals) => write!(f, "{} has the same identity", rivals.join(", ")),
            Self::Quarantined(fault) => write!(f, "its record is quarantined: {fault}"),
            Self::EmptyRecord => f.write_str("its record is empty"),
            Self::NoRecord => f.write_str("there is no record"),
            Self::NoneForThisNode => f.write_str("no key of its record is kept for this machine by the policy"),
        }
    }
}

/// Returns the keys that the next incarnation of a node would have, or why there are none.
pub fn next_incarnation(case: &Case) -> Result<NextIncarnation, NothingRestored> {
    if case.is_ignored() {
        return Err(NothingRestored::Ignored);
    }
    if case.node().is_some() && case.identity.is_none() {
        return Err(NothingRestored::Unidentified(case.policy.identity.clone()));
    }
    if case.has_newer_record() {
        return Err(NothingRestored::NewerRecord);
    }
    if !case.rivals.is_empty() {
        return Err(NothingRestored::Contested(case.rivals.iter().map(|rival| rival.name.clone()).collect()));
    }
    let written = match case.node().map(|_| decide(&case.deleted())) {
        Some(Decision::WriteRecord(_, next)) => Some(*next),
        _ => None,
    };
    let Some(record) = written.or_else(|| case.record().map(Cow::into_owned)) else {
        let fault = case.stored().and_then(Stored::fault).cloned();
        return Err(fault.map_or(NothingRestored::NoRecord, NothingRestored::Quarantined));
    };
    if record.kept.is_empty() && record.withheld.is_empty() {
        return Err(NothingRestored::EmptyRecord);
    }
    let policies = PolicySet::from(case.policy().clone());
    let context = CaseContext { policies: &policies, now: case.now, by: &case.by };
    let bare = bare_node(case, &record);
    let stored = Some(Arc::new(Stored::Good(Box::new(record))));
    let creating = Case::new(Phase::Creating { by_kubelet: false }, Some(bare), stored, Vec::new(), &context);
    match decide(&creating) {
        Decision::PatchNode(whole) if !whole.set.is_empty() => {
            let later = whole.set.keys().filter(|key| !kubelet_may_set(key)).cloned().collect();
            Ok(NextIncarnation { given: whole.set, later, withheld: whole.withheld.into_iter().collect() })
        }
        _ => Err(NothingRestored::NoneForThisNode),
    }
}

/// Returns the node as its kubelet creates it: the same machine with the same identity, and nothing
/// that was kept of it.
fn bare_node(case: &Case, record: &Record) -> Node {
    let machine = case.node().map_or_else(|| record.node.machine.clone(), |node| node.machine.clone());
    // The record is the one of its identity, so any name will do. No record contains its UID.
    let mut bare = Node { name: "next".to_owned(), uid: "next".to_owned(), machine, ..Node::default() };
    let recorded = || record.identity.as_deref()?.split_once('=').map(|(_, value)| value.to_owned());
    match &case.policy.identity {
        Identity::Label(key) => {
            let value = case.node.labels.get(key).cloned().or_else(recorded);
            bare.labels.extend(value.map(|value| (key.clone(), value)));
        }
        Identity::Annotation(key) => {
            let value = case.node.annotations.get(key).cloned().or_else(recorded);
            bare.annotations.extend(value.map(|value| (key.clone(), value)));
        }
        Identity::Auto | Identity::Name | Identity::ProviderId | Identity::SystemUuid | Identity::MachineId => {}
    }
    bare
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::keeper::{
        case::Rival,
        machine::Machine,
        selection::{IGNORE, Policy},
        stored_record::Substitute,
        testing::{Defaults, kept, labels, policy},
    };

    fn node(pairs: &str) -> Node {
        Node { name: "n1".into(), uid: "u1".into(), resource_version: 7, labels: labels(pairs), ..Node::default() }
    }

    fn next(node: Option<&Node>, stored: Option<Stored>, identity: Identity) -> Result<Kept, NothingRestored> {
        let defaults = Defaults(Policy { identity, ..policy() }.into());
        let stored = stored.map(Arc::new);
        let case = match node {
            Some(node) => Case::live(node.clone(), stored, Vec::new(), &defaults.context()),
            None => Case::absent(stored, &defaults.context()),
        };
        next_incarnation(&case).map(|next| next.given)
    }

    fn record_of(node: &Node) -> Box<Record> {
        let case = Case::live(node.clone(), None, Vec::new(), &Defaults::default().context());
        match decide(&case) {
            Decision::WriteRecord(_, record) => record,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_labelled_node_returns_with_its_labels() {
        let here = node("team=ml");
        assert_eq!(next(Some(&here), None, Identity::Name), Ok(kept("team=ml")));
        assert_eq!(next(None, Some(Stored::Good(record_of(&here))), Identity::Name), Ok(kept("team=ml")));
    }

    #[test]
    fn a_node_that_is_identified_by_a_label_returns_with_the_others() {
        let here = node("asset=a7 team=ml");
        assert_eq!(next(Some(&here), None, Identity::Label("asset".into())), Ok(kept("team=ml")));
    }

    #[test]
    fn nothing_is_promised_without_a_way_to_restore_it() {
        let here = node("team=ml");
        let good = Stored::Good(record_of(&here));
        let newer = Stored::Bad { fault: RecordFault::Version("9".into()), good: Substitute::Nothing };
        let lost = Stored::Bad { fault: RecordFault::Checksum, good: Substitute::Nothing };
        let empty = Stored::Good(Box::new(Record { kept: Kept::new(), ..*record_of(&here) }));
        let mut shy = here.clone();
        shy.annotations = BTreeMap::from([(IGNORE.to_owned(), "true".to_owned())]);

        let by_provider = Identity::ProviderId;
        assert_eq!(next(Some(&here), None, by_provider.clone()), Err(NothingRestored::Unidentified(by_provider)));
        assert_eq!(next(Some(&shy), Some(good.clone()), Identity::Name), Err(NothingRestored::Ignored));
        assert_eq!(next(Some(&here), Some(newer), Identity::Name), Err(NothingRestored::NewerRecord));
        assert_eq!(next(None, Some(lost), Identity::Name), Err(NothingRestored::Quarantined(RecordFault::Checksum)));
        assert_eq!(next(None, Some(empty), Identity::Name), Err(NothingRestored::EmptyRecord));
        assert_eq!(next(Some(&node("")), None, Identity::Name), Err(NothingRestored::NoRecord));
        let rivals = vec![Rival { name: "n2".into(), holds_record: false }];
        let contested = Case::live(here, Some(Arc::new(good)), rivals, &Defaults::default().context());
        assert_eq!(next_incarnation(&contested), Err(NothingRestored::Contested(vec!["n2".into()])));
    }

    #[test]
    fn protected_keys_follow_the_create_and_stay_with_their_machine() {
        let role = "node-role.kubernetes.io/gpu";
        let mut here = node(&format!("{role}=x team=ml"));
        here.machine = Machine { system_uuid: "s".into(), ..Machine::default() };
        let case = Case::live(here, None, Vec::new(), &Defaults::default().context());
        let next = next_incarnation(&case).unwrap();
        assert_eq!((next.later, next.withheld), (vec![Key::label(role)], Vec::new()));
    }
}
