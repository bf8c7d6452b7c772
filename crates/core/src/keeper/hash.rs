//! Digests, by which a node and a record are compared without exchanging label sets.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The first 128 bits of a SHA-256 over length-prefixed parts, as 32 hex digits.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Digest(String);

impl Digest {
    pub fn of<T: AsRef<[u8]>>(parts: impl IntoIterator<Item = T>) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            let part = part.as_ref();
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part);
        }
        Self(hex(&hasher.finalize()[..16]))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a prefix for use in object names.
    pub fn short(&self) -> &str {
        self.0.get(..16).unwrap_or(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_the_same_in_every_version() {
        assert_eq!(Digest::of(["team", "ml"]).as_str(), "475397be9003b4597c3a4b95b70bc3f3");
        assert_eq!(Digest::of([] as [&str; 0]).as_str(), "e3b0c44298fc1c149afbf4c8996fb924");
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(Digest::of(["ab", "c"]), Digest::of(["a", "bc"]));
    }
}
