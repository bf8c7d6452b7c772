//! The mark: an annotation that lists the keys that an incarnation was given. It is written in the
//! same request as the keys, so a node with the mark has the keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    hash::Digest,
    keys::{Kept, Key},
};

/// Name of the annotation.
pub const MARK: &str = "perennial.dev/restored";

/// Maximum size of a mark with `given`, in bytes.
pub const MARK_LIMIT: usize = 128 * 1024;
/// Maximum size of the keys and values of all annotations of an object, in bytes. The API server
/// refuses more.
pub const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// Part of it that a mark with `given` leaves to others.
pub(super) const SPARED: usize = 32 * 1024;

/// The keys that an incarnation was given.
///
/// A withheld key (it must not be in a kubelet's create, or belongs to another machine) is in none
/// of the sets, and then `complete` is false.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mark {
    /// Digest of the content of the record that was given.
    pub from: Digest,
    /// No key of that record is still to be given.
    pub complete: bool,
    /// Keys of the record that were set, or that the record had removed.
    pub given: Kept,
    /// Keys with a value of the node's own, which is kept.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub own: BTreeSet<Key>,
    /// Keys that the node had set itself to the value of the record. They belong to the node, and
    /// the record holds them already.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub same: BTreeSet<Key>,
    /// `given` was too large and is omitted: it is the content of `from` without `withheld`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unlisted: bool,
    /// Keys that were withheld. Written only if `given` is omitted or `version` is set; otherwise
    /// they are the keys in none of the sets.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub withheld: BTreeSet<Key>,
    /// ResourceVersion of the last state that was given before it was in the record, or 0. An older
    /// record decides only about withheld keys: what the node has is newer.
    #[serde(skip_serializing_if = "is_zero")]
    pub version: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(version: &u64) -> bool {
    *version == 0
}

impl Mark {
    /// Returns `None` for an invalid mark: the node then counts as not restored.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        Self::parse(annotations.get(MARK)?)
    }

    /// Returns the digest of the mark among these annotations, as records hold it. Empty without a
    /// mark.
    pub fn digest_of(annotations: &BTreeMap<String, String>) -> String {
        Self::read(annotations).map(|mark| Digest::of([mark.render()]).to_string()).unwrap_or_default()
    }

    /// Returns the value of the annotation. Above the limit `given` is omitted: a later version of
    /// the record then changes none of the given keys on this incarnation.
    pub fn render(&self) -> String {
        self.render_within(MARK_LIMIT)
    }

    /// Returns the value of the annotation for a node that will have these annotations, and the
    /// size of all of them.
    pub fn render_beside<'a>(&self, others: impl Iterator<Item = (&'a str, &'a str)>) -> (String, usize) {
        let others = others.filter(|(key, _)| *key != MARK);
        let taken = MARK.len() + others.map(|(key, value)| key.len() + value.len()).sum::<usize>();
        let text = self.render_within(MARK_LIMIT.min(ANNOTATIONS_LIMIT.saturating_sub(SPARED + taken)));
        let size = taken + text.len();
        (text, size)
    }

    fn render_within(&self, limit: usize) -> String {
        if self.unlisted {
            return render(self);
        }
        let withheld = if self.version > 0 { self.withheld.clone() } else { BTreeSet::new() };
        let text = render(&Self { withheld, ..self.clone() });
        if text.len() <= limit {
            return text;
        }
        render(&Self { given: Kept::new(), unlisted: true, ..self.clone() })
    }

    /// Whether this key was given or left to the node, and not withheld or unknown at the time.
    pub fn covers(&self, key: &Key) -> bool {
        self.belongs_to_node(key)
            || if self.unlisted { !self.withheld.contains(key) } else { self.given.contains_key(key) }
    }

    /// Whether the node was given a later last state than the one that a record was written from.
    pub fn is_newer_than(&self, version: u64) -> bool {
        self.version > version
    }

    /// Whether the value of the node takes precedence for this key.
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
    fn a_huge_mark_leaves_out_the_given_keys() {
        let given: Kept = (0..10_000).map(|i| (Key::Label(format!("example.com/key-{i}")), "value".into())).collect();
        let mark = Mark { from: Digest::of(["x"]), complete: true, given, ..Mark::default() };
        assert!(mark.render().len() < 100);
        assert!(Mark::parse(&mark.render()).is_some_and(|m| m.complete && m.given.is_empty() && m.unlisted));
    }

    #[test]
    fn a_mark_beside_large_annotations_leaves_out_the_given_keys() {
        let given: Kept = (0..1000).map(|i| (Key::Label(format!("example.com/key-{i}")), "value".into())).collect();
        let mark = Mark { from: Digest::of(["x"]), complete: true, given, ..Mark::default() };
        let blob = |size: usize| "x".repeat(size);

        let (text, size) = mark.render_beside([("blob", blob(1000).as_str())].into_iter());
        assert_eq!((text.as_str(), size), (mark.render().as_str(), MARK.len() + 1004 + text.len()));

        let (text, size) = mark.render_beside([("blob", blob(220 * 1024).as_str()), (MARK, "old")].into_iter());
        assert!(text.len() < 100 && size < ANNOTATIONS_LIMIT);
        assert!(Mark::parse(&text).is_some_and(|mark| mark.render() == text), "it is the same mark later");
        assert!(mark.render_beside([("blob", blob(262_144).as_str())].into_iter()).1 > ANNOTATIONS_LIMIT);
    }

    #[test]
    fn garbage_is_no_mark() {
        for text in ["", "true", "[]x", "{\"from\":1}", "\u{0}"] {
            assert_eq!(Mark::parse(text), None, "{text}");
        }
    }
}
