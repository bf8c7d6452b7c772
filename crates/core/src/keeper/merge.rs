//! The three-way merge of a node, its record and the keys that the node was given before.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    hash::Digest,
    keys::{Kept, Key},
    mark::Mark,
};
use crate::config::settings::Merge;

/// The last value of a key that node and record agreed on.
enum Base<'a> {
    Agreed(Option<&'a String>),
    /// The key belongs to the node, whatever its value is now.
    Nodes,
    /// The node was given a later state than the record holds, or has changed the key since.
    Newer,
}

fn base<'a>(mark: Option<&'a Mark>, key: &Key, in_record: Option<&'a String>, record: &RecordKeys<'_>) -> Base<'a> {
    match mark {
        Some(mark) if mark.is_newer_than(record.version) && !mark.withheld.contains(key) => Base::Newer,
        Some(mark) if mark.belongs_to_node(key) => Base::Nodes,
        // The given keys are not listed: they are those of the record, or unknown if the record has
        // changed since.
        Some(mark) if mark.unlisted && !mark.withheld.contains(key) => {
            if mark.from == record.digest {
                Base::Agreed(in_record)
            } else {
                Base::Nodes
            }
        }
        Some(mark) => Base::Agreed(mark.given.get(key)),
        None => Base::Agreed(None),
    }
}

/// The keys that a node should have, and its new mark.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) kept: Kept,
    pub(super) mark: Mark,
    /// Some key belongs to the node.
    pub(super) decided: bool,
}

/// A record as it is merged with a node.
#[derive(Debug)]
pub(super) struct RecordKeys<'a> {
    pub(super) visible: &'a Kept,
    /// Keys that stay on the node as they are and are in no set of the mark.
    pub(super) withheld: &'a BTreeSet<Key>,
    /// Digest of the whole content.
    pub(super) digest: Digest,
    /// Version of the state that the record was written from.
    pub(super) version: u64,
}

/// Merges a node with the visible part of its record.
pub(super) fn merge(node: &Kept, mark: Option<&Mark>, record: &RecordKeys<'_>, how: Merge) -> Merged {
    let withheld = record.withheld;
    let mut keys: BTreeSet<&Key> = node.keys().chain(record.visible.keys()).collect();
    if let Some(mark) = mark {
        keys.extend(mark.given.keys().chain(&mark.own).chain(&mark.same));
    }

    let mut kept = Kept::new();
    let mut given = BTreeMap::new();
    let (mut own, mut same) = (BTreeSet::new(), BTreeSet::new());
    let mut decided = false;
    for key in keys {
        let (on_node, in_record) = (node.get(key), record.visible.get(key));
        if withheld.contains(key) {
            kept.extend(on_node.map(|value| (key.clone(), value.clone())));
            continue;
        }
        let (value, touched) = match base(mark, key, in_record, record) {
            Base::Nodes if how == Merge::Overwrite && in_record.is_some() => (in_record, true),
            Base::Agreed(base) if on_node == base => (in_record, false),
            Base::Agreed(base) if how == Merge::Overwrite && in_record != base => (in_record, true),
            Base::Newer | Base::Nodes | Base::Agreed(_) => (on_node, true),
        };
        decided |= touched;
        kept.extend(value.map(|value| (key.clone(), value.clone())));
        let later = mark.filter(|mark| mark.is_newer_than(record.version)).and_then(|mark| mark.given.get(key));
        if let Some(later) = later.filter(|later| Some(*later) == value) {
            given.insert(key.clone(), later.clone());
        } else if touched && value == on_node {
            if on_node == in_record {
                same.insert(key.clone())
            } else {
                own.insert(key.clone())
            };
        } else if let Some(value) = in_record {
            given.insert(key.clone(), value.clone());
        }
    }
    let mark = Mark {
        from: record.digest.clone(),
        complete: withheld.is_empty(),
        given,
        own,
        same,
        unlisted: false,
        withheld: withheld.clone(),
        version: mark.filter(|mark| mark.is_newer_than(record.version)).map_or(0, |mark| mark.version),
    };
    Merged { kept, mark, decided }
}
