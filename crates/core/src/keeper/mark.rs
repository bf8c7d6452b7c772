//! The mark: the annotation that says what an incarnation was given. It is written in the same request as the labels,
//! so a node that has it has them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    hash::Digest,
    keys::{Kept, Key},
};

/// The annotation that holds the mark.
pub const MARK: &str = "perennial.dev/restored";

/// A mark of more bytes than this is written without `given`: all annotations of an object share 256 KiB.
pub const MARK_LIMIT: usize = 128 * 1024;

/// What an incarnation was given.
///
/// A key that was withheld (it may not ride in a kubelet's create, or belongs to another machine) is in none of the
/// sets, and then `complete` is false.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// The digest of the record's content that was given.
    pub from: Digest,
    /// Nothing of that record is still to come.
    pub complete: bool,
    /// Record keys that were applied, or that the record had removed.
    pub given: Kept,
    /// Keys that the node had decided otherwise: they stay the node's.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub own: BTreeSet<Key>,
    /// Keys that the node brought itself with the very value of the record: the node's as well, but no news to it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub same: BTreeSet<Key>,
    /// `given` was too large to be written down: it is what `from` held, but for `withheld`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unlisted: bool,
    /// Keys that were withheld. Written down only where `given` is not: otherwise they are those that are nowhere.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub withheld: BTreeSet<Key>,
}

impl Mark {
    /// What cannot be read is no mark: the node then counts as not given anything.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        Self::parse(annotations.get(MARK)?)
    }

    /// Returns the digest of the mark among these annotations, as records hold it. Empty without a mark.
    pub fn digest_of(annotations: &BTreeMap<String, String>) -> String {
        Self::read(annotations).map(|mark| Digest::of([mark.render()]).to_string()).unwrap_or_default()
    }

    /// The annotation's value. Past the limit it does without `given`: then a record that moves on changes nothing on
    /// this incarnation that it was given.
    pub fn render(&self) -> String {
        if self.unlisted {
            return render(self);
        }
        let text = render(&Self { withheld: BTreeSet::new(), ..self.clone() });
        if text.len() <= MARK_LIMIT {
            return text;
        }
        render(&Self { given: Kept::new(), unlisted: true, ..self.clone() })
    }

    /// Whether this key was given or left to the node, as opposed to withheld or unknown at the time.
    pub fn covers(&self, key: &Key) -> bool {
        self.belongs_to_node(key)
            || if self.unlisted { !self.withheld.contains(key) } else { self.given.contains_key(key) }
    }

    /// Whether the node itself decides about this key.
    pub fn belongs_to_node(&self, key: &Key) -> bool {
        self.own.contains(key) || self.same.contains(key)
    }
}

fn render(mark: &Mark) -> String {
    serde_json::to_string(mark).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_as_it_was_written() {
        let mark = Mark {
            from: Digest::of(["x"]),
            complete: true,
            given: Kept::from([(Key::label("team"), "ml".into()), (Key::Annotation("a".into()), "b".into())]),
            own: BTreeSet::from([Key::label("zone")]),
            ..Mark::default()
        };
        assert_eq!(
            mark.render(),
            r#"{"from":"028f0df5b8596fbcd10c9720b7a4784f","complete":true,"given":{"team":"ml","annotation:a":"b"},"own":["zone"]}"#
        );
        assert_eq!(Mark::parse(&mark.render()), Some(mark));
    }

    #[test]
    fn a_huge_mark_leaves_out_what_it_gave() {
        let given: Kept = (0..10_000).map(|i| (Key::Label(format!("example.com/key-{i}")), "value".into())).collect();
        let mark = Mark { from: Digest::of(["x"]), complete: true, given, ..Mark::default() };
        assert!(mark.render().len() < 100);
        assert!(Mark::parse(&mark.render()).is_some_and(|m| m.complete && m.given.is_empty() && m.unlisted));
    }

    #[test]
    fn garbage_is_no_mark() {
        for text in ["", "true", "[]x", "{\"from\":1}", "\u{0}"] {
            assert_eq!(Mark::parse(text), None, "{text}");
        }
    }
}
