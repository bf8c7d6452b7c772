//! Several nodes that are there at once and say that they are the same one.
//!
//! Nobody can tell who of them is right. So nobody is given anything. The one that the record was taken from is captured as before, and what
//! the others leave behind does not become its own.

use super::record::Record;

/// Whether a node that is there is left alone. `others`: how many more claim its identity.
pub fn refuses(uid: &str, record: Option<&Record>, others: usize) -> bool {
    others > 0 && record.is_none_or(|record| record.node.uid != uid)
}

/// Whether the last state of a node is left alone: the one that the record is of is there, under another name.
///
/// `is_held`: whether another node is there that claims the same identity, and that the record was taken from (this UID) or has given
/// all that it has.
pub fn refuses_last(uid: &str, record: Option<&Record>, is_held: impl FnOnce(&str) -> bool) -> bool {
    record.is_some_and(|record| record.node.uid != uid && is_held(&record.node.uid))
}
