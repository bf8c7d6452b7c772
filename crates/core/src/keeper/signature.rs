//! Signatures of records: HMAC-SHA-256 over the bytes of a record and their location, with keys
//! from a Secret.
//!
//! # Guarantees
//! A signature is valid only for the same bytes under the same data key of the same ConfigMap in
//! the same namespace. Keys have names: the last one by name signs, all of them verify.
//!
//! # Caveats
//! An older record of the same node that is put back has a valid signature. It is recognized by its
//! sequence, which the reader must remember, also while the record is deleted ([`Newest`]).

use std::{
    collections::BTreeMap,
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
};

use hmac::{Hmac, KeyInit, Mac};
use jiff::{SignedDuration, Timestamp};
use sha2::Sha256;

use super::{
    hash::hex,
    record::{RECORD_KEY, Record, RecordFault, brief},
};
use crate::{CLOCK_TOLERANCE, config::settings::Hmac as Mode};

/// Name of the Secret with the keys.
pub const SECRET: &str = "perennial-record-keys";
/// Minimum size of a key in bytes.
pub const KEY_BYTES: usize = 32;
/// Separates these signatures from other uses of the same key.
const PURPOSE: &str = "perennial.dev/record signature v1";

/// Returns the data key of the signature of a data key.
pub fn signature_key(key: &str) -> &'static str {
    if key == RECORD_KEY { "record.json.hmac" } else { "recovered.json.hmac" }
}

/// The location of signed bytes.
#[derive(Clone, Copy, Debug)]
pub struct SignedLocation<'a> {
    pub namespace: &'a str,
    /// Name of the ConfigMap.
    pub name: &'a str,
    /// Key of its data.
    pub key: &'a str,
}

/// Signing keys by name. Never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys(BTreeMap<String, Vec<u8>>);

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    #[error("there is no key")]
    None,
    #[error("the key {name:?} has {bytes} bytes; the minimum is {KEY_BYTES}")]
    Short { name: String, bytes: usize },
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Keys {
    pub fn new(keys: impl IntoIterator<Item = (String, Vec<u8>)>) -> Result<Self, BadKeys> {
        let keys: BTreeMap<String, Vec<u8>> = keys.into_iter().collect();
        if keys.is_empty() {
            return Err(BadKeys::None);
        }
        match keys.iter().find(|(_, key)| key.len() < KEY_BYTES) {
            Some((name, key)) => Err(BadKeys::Short { name: name.clone(), bytes: key.len() }),
            None => Ok(Self(keys)),
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Signs with the last key by name: `NAME:HEX`. Returns `None` without keys.
    pub fn sign(&self, place: &SignedLocation<'_>, text: &str) -> Option<String> {
        let (name, key) = self.0.last_key_value()?;
        let mac = mac(key, place, text)?.finalize().into_bytes();
        Some(format!("{name}:{}", hex(&mac)))
    }

    /// Whether a signature was made with the newest key.
    pub fn is_current(&self, signature: Option<&str>) -> bool {
        let by = signature.and_then(|signature| signature.rsplit_once(':')).map(|(name, _)| name);
        self.0.last_key_value().map(|(name, _)| name.as_str()) == by
    }

    /// Verifies the bytes at a location according to the mode.
    pub fn verify(
        &self,
        mode: Mode,
        place: &SignedLocation<'_>,
        text: &str,
        signature: Option<&str>,
    ) -> Result<(), RecordFault> {
        match (mode, signature) {
            (Mode::None, _) | (Mode::Sign, None) => Ok(()),
            (Mode::Require, None) => Err(RecordFault::Unsigned),
            (Mode::Sign | Mode::Require, Some(signature)) => self.check(place, text, signature),
        }
    }

    fn check(&self, place: &SignedLocation<'_>, text: &str, signature: &str) -> Result<(), RecordFault> {
        let (name, digits) = signature.rsplit_once(':').unwrap_or(("", signature));
        // The name comes from the ConfigMap, and may be as large as that.
        let key = self.0.get(name).ok_or_else(|| RecordFault::UnknownKey(brief(name)))?;
        let forged = || RecordFault::Forged(brief(name));
        let mac = mac(key, place, text).ok_or_else(forged)?;
        mac.verify_slice(&bytes(digits).ok_or_else(forged)?).map_err(|_| forged())
    }
}

fn mac(key: &[u8], place: &SignedLocation<'_>, text: &str) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in [PURPOSE, place.namespace, place.name, place.key, text] {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part.as_bytes());
    }
    Some(mac)
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    if !hex.is_ascii() || hex.len() % 2 == 1 {
        return None;
    }
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()
}

/// The newest record seen under one data key of one ConfigMap, also after that was deleted. Texts are
/// held as hashes: there is one for every record, and a record may contain texts of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newest {
    uid: u64,
    resource_version: u64,
    sequence: u64,
    captured_at: Timestamp,
    /// The writer.
    captured_by: u64,
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

impl Newest {
    /// `uid` and `resource_version` are those of the ConfigMap.
    pub fn new(uid: &str, resource_version: u64, record: &Record) -> Self {
        Self {
            uid: hash(uid),
            resource_version,
            sequence: record.sequence,
            captured_at: record.captured_at,
            captured_by: hash(&record.captured_by),
        }
    }

    /// Whether it was seen in the ConfigMap with this UID.
    pub fn is_in(&self, uid: &str) -> bool {
        self.uid == hash(uid)
    }

    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Compares another read of the same data key. A later version of the same object with a
    /// smaller sequence is an older record that was put back; an earlier version is a late event.
    ///
    /// In an object that was deleted and created again, sequences restart. There, a record with a
    /// smaller sequence that was captured before the newest one is an older record.
    pub fn see(&mut self, read: Self) -> Result<(), RecordFault> {
        let Self { uid, resource_version, sequence, .. } = read;
        if self.uid != uid {
            // The clocks of two writers may differ a little.
            let tolerance = if self.captured_by == read.captured_by { SignedDuration::ZERO } else { CLOCK_TOLERANCE };
            let is_older = self.captured_at.duration_since(read.captured_at) > tolerance;
            if resource_version > self.resource_version && sequence < self.sequence && is_older {
                return Err(RecordFault::Replayed { found: sequence, seen: self.sequence });
            }
            if resource_version > self.resource_version {
                *self = read;
            }
            return Ok(());
        }
        if resource_version > self.resource_version && sequence < self.sequence {
            return Err(RecordFault::Replayed { found: sequence, seen: self.sequence });
        }
        if resource_version > self.resource_version {
            *self = read;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
