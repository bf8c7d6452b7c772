//! Several nodes that are there at once and say that they are the same one.
//!
//! Nobody can tell who of them is right. So nobody is given anything. The one that the record was taken from is captured as before, and what
//! the others leave behind does not become its own.

use super::record::Record;

/// Whether a node that is there is left alone. `others`: how many more claim its identity.
pub fn refuses(uid: &str, record: Option<&Record>, others: usize) -> bool {
    others > 0 && record.is_none_or(|record| record.node.uid != uid)
}

/// Whether the last state of a node is left alone: the one that the record was taken from is there, under another name.
///
/// `claims`: whether a node with this UID is there and claims the same identity.
pub fn refuses_last(uid: &str, record: Option<&Record>, claims: impl FnOnce(&str) -> bool) -> bool {
    record.is_some_and(|record| record.node.uid != uid && claims(&record.node.uid))
}
