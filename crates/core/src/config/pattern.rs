//! Patterns over label, annotation and taint keys.
//!
//! `example.com/disk` matches that key. `*` matches any text, slashes included. A pattern that ends
//! in a slash matches all keys of the domain: `example.com/` is `example.com/*`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pattern over keys. Its text is canonical: without `**` and without a trailing slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(String);

/// The reason why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("a pattern must not be empty; use `*` to match every key")]
    Empty,
    #[error("a pattern may contain letters, digits, `-`, `_`, `.`, `/` and `*`, but not {0:?}")]
    Character(char),
    #[error("a key has at most one slash, so this pattern can never match")]
    Slashes,
    #[error("a key has at most 317 characters, so this pattern can never match")]
    Long,
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if let Some(odd) = text.chars().find(|&c| !(c.is_ascii_alphanumeric() || "-_./*".contains(c))) {
            return Err(PatternError::Character(odd));
        }
        if text.matches('/').count() > 1 {
            return Err(PatternError::Slashes);
        }
        let mut canonical = String::with_capacity(text.len() + 1);
        for c in text.chars() {
            if !(c == '*' && canonical.ends_with('*')) {
                canonical.push(c);
            }
        }
        if canonical.ends_with('/') {
            canonical.push('*');
        }
        if canonical.chars().filter(|&c| c != '*').count() > 253 + 1 + 63 {
            return Err(PatternError::Long);
        }
        Ok(Self(canonical))
    }

    /// Returns whether a key matches. Linear in the length of the key and without allocation:
    /// called for every key of every node.
    pub fn matches(&self, key: &str) -> bool {
        let mut pieces = self.0.split('*');
        let Some(mut rest) = pieces.next().and_then(|first| key.strip_prefix(first)) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            let Some(at) = rest.find(piece) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last)
    }

    /// Returns whether every key that `other` matches is also matched by `self`. May return false
    /// although that is so, but never true although it is not: a `*` of `other` only matches a `*`
    /// of `self`.
    pub fn covers(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse(text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A list of patterns. Matches the keys that any of them matches.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Patterns(Vec<Pattern>);

impl Patterns {
    /// Parses a built-in list. Texts that are not patterns are left out; a test ensures that there
    /// are none.
    pub fn of(texts: &[&str]) -> Self {
        texts.iter().filter_map(|text| Pattern::parse(text).ok()).collect()
    }

    pub fn matches(&self, key: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(key))
    }

    pub fn as_slice(&self) -> &[Pattern] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Pattern> for Patterns {
    fn from_iter<I: IntoIterator<Item = Pattern>>(patterns: I) -> Self {
        Self(patterns.into_iter().collect())
    }
}

impl From<Vec<Pattern>> for Patterns {
    fn from(patterns: Vec<Pattern>) -> Self {
        Self(patterns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("disk", "disk", true)]
    #[case("disk", "disk2", false)]
    #[case("disk", "mydisk", false)]
    #[case("*", "", true)]
    #[case("*", "example.com/disk", true)]
    #[case("example.com/", "example.com/disk", true)]
    #[case("example.com/", "example.com", false)]
    #[case("example.com/", "sub.example.com/disk", false)]
    #[case("example.com/*", "example.com/disk", true)]
    #[case("team-*", "team-a", true)]
    #[case("team-*", "team-", true)]
    #[case("team-*", "a-team-b", false)]
    #[case("*.example.com/*", "a.b.example.com/x", true)]
    #[case("*.example.com/*", "example.com/x", false)]
    #[case("*/agent-not-ready", "ebs.csi.aws.com/agent-not-ready", true)]
    #[case("a*b*c", "a-b-b-c", true)]
    #[case("a*b*c", "a-c-b", false)]
    #[case("ab*ba", "aba", false)]
    #[case("a**b", "ab", true)]
    fn keys_are_matched(#[case] pattern: &str, #[case] key: &str, #[case] expected: bool) {
        assert_eq!(Pattern::parse(pattern).unwrap().matches(key), expected);
    }

    #[rstest]
    #[case("", PatternError::Empty)]
    #[case("a b", PatternError::Character(' '))]
    #[case("a/b/c", PatternError::Slashes)]
    #[case("zürich/*", PatternError::Character('ü'))]
    fn patterns_that_can_never_match_are_refused(#[case] text: &str, #[case] error: PatternError) {
        assert_eq!(Pattern::parse(text), Err(error));
    }

    #[test]
    fn a_very_long_pattern_is_refused() {
        assert_eq!(Pattern::parse(&"a".repeat(318)), Err(PatternError::Long));
    }

    #[rstest]
    #[case("karpenter.sh/*", "karpenter.sh/", true)]
    #[case("karpenter.sh/*", "karpenter.sh/nodepool", true)]
    #[case("karpenter.sh/nodepool", "karpenter.sh/*", false)]
    #[case("*", "*", true)]
    fn one_pattern_covers_another(#[case] wide: &str, #[case] narrow: &str, #[case] expected: bool) {
        assert_eq!(Pattern::parse(wide).unwrap().covers(&Pattern::parse(narrow).unwrap()), expected);
    }

    fn naive(pattern: &[u8], key: &[u8]) -> bool {
        match (pattern, key) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => naive(rest, key) || (!key.is_empty() && naive(pattern, &key[1..])),
            ([p, rest @ ..], [k, left @ ..]) if p == k => naive(rest, left),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn any_text_parses_or_is_refused(text in any::<String>(), key in any::<String>()) {
            if let Ok(pattern) = Pattern::parse(&text) {
                pattern.matches(&key);
                prop_assert_eq!(Pattern::parse(pattern.as_str()), Ok(pattern));
            }
        }

        #[test]
        fn matching_agrees_with_the_obvious_definition(text in "[ab*]{1,7}", key in "[ab]{0,9}") {
            let pattern = Pattern::parse(&text).unwrap();
            prop_assert_eq!(pattern.matches(&key), naive(text.as_bytes(), key.as_bytes()));
        }

        #[test]
        fn a_covered_pattern_matches_nothing_more(wide in "[ab*]{1,5}", narrow in "[ab*]{1,5}", key in "[ab]{0,7}") {
            let (wide, narrow) = (Pattern::parse(&wide).unwrap(), Pattern::parse(&narrow).unwrap());
            prop_assert!(!(wide.covers(&narrow) && narrow.matches(&key)) || wide.matches(&key));
        }
    }
}
