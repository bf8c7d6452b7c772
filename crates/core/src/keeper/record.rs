//! Records: the kept keys of one node, as JSON in one ConfigMap.
//!
//! # Guarantees
//! Decoding returns a verified [`Record`], or an [`Invalid`] with the reason and the newest history
//! entry that can still be trusted. An encoded record is never larger than [`RECORD_LIMIT`].

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    hash::Digest,
    keys::{Content, Kept},
    machine::Machine,
    provenance::{Provenance, Sealed},
};

/// Label of the ConfigMaps that hold records.
pub const RECORD_LABEL: &str = "perennial.dev/record";
/// Value of [`RECORD_LABEL`]: the version of the format.
pub const RECORD_LABEL_VALUE: &str = "v1";

/// Returns the label selector of all records.
pub fn record_selector() -> String {
    format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")
}
/// Key of the record in the data of its ConfigMap.
pub const RECORD_KEY: &str = "record.json";
/// Key of the record while the bytes under [`RECORD_KEY`] are quarantined. Those are kept as they
/// are.
pub const RECOVERED_KEY: &str = "recovered.json";
/// Maximum size of a record in bytes. A ConfigMap holds 1 MiB.
pub const RECORD_LIMIT: usize = 900 * 1024;
/// Version of the format that this operator writes. It reads every version up to it.
const VERSION: u64 = 1;
/// Upper bound of sequences. A record with a larger one is forged, and could have no successor.
const SEQUENCE_LIMIT: u64 = 1 << 53;

/// The node that a record was last written from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    pub name: String,
    pub uid: String,
    #[serde(rename = "resourceVersion", with = "text")]
    pub resource_version: u64,
    /// Digest of the mark that the node had. Empty without a mark.
    pub mark: String,
    #[serde(flatten)]
    pub machine: Machine,
}

/// The kept keys of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Increases by one with every write.
    pub sequence: u64,
    pub node: Origin,
    /// Identity that the record belongs to, unless it is the name of the node.
    pub identity: Option<String>,
    /// The policy that it was captured under, and the labels that policies select on.
    pub provenance: Provenance,
    pub kept: Kept,
    /// Written from a node that was deleted before it was settled: `kept` is the result of the
    /// merge, `before` the content that the node was merged into.
    pub folded: bool,
    pub before: Kept,
    /// Protected keys of other machines that had this identity, kept for those machines only.
    pub withheld: Vec<Withheld>,
    pub captured_at: Timestamp,
    pub captured_by: String,
    /// Newest first.
    pub history: Vec<HistoryEntry>,
}

/// Protected keys of a machine that no longer holds the identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withheld {
    #[serde(flatten)]
    pub machine: Machine,
    #[serde(flatten)]
    pub content: Content,
}

/// Former content of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub sequence: u64,
    #[serde(rename = "capturedAt")]
    pub captured_at: Timestamp,
    #[serde(default)]
    pub uid: String,
    #[serde(flatten)]
    pub machine: Machine,
    #[serde(flatten)]
    pub content: Content,
    #[serde(default)]
    pub checksum: Digest,
}

/// Bytes that are not a valid record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    pub why: RecordFault,
    /// The newest history entry with a valid checksum.
    pub good: Option<Box<HistoryEntry>>,
}

/// Why a record is quarantined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    #[error("it has no {RECORD_KEY}")]
    Missing,
    #[error("it is not JSON: {0}")]
    NotJson(String),
    #[error("it has version {0}, and this operator reads up to version {max}", max = VERSION)]
    Version(String),
    #[error("it does not match the schema of records: {0}")]
    Shape(String),
    #[error("its checksum does not match its content")]
    Checksum,
    #[error("it belongs to {0}")]
    Swapped(String),
    #[error("it has no signature")]
    Unsigned,
    #[error("its signature with key {0:?} does not match its content and name")]
    Forged(String),
    #[error("it is signed with key {0:?}, which is not in the Secret")]
    UnknownKey(String),
    #[error("its sequence decreased from {seen} to {found}: an older record was put back")]
    Replayed { found: u64, seen: u64 },
}

/// Maximum number of characters of a text from a record in a message.
const BRIEF: usize = 120;

/// Returns a text from a record as messages quote it. Records may contain texts of any size.
pub(super) fn brief(text: &str) -> String {
    match text.char_indices().nth(BRIEF) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

impl RecordFault {
    /// Whether the record was written by a newer version of the operator. Such a record is never
    /// touched.
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Version(found) if found.parse::<u64>().is_ok_and(|found| found > VERSION))
    }
}

/// The record would be too large even without its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record would have {0} bytes; the limit is {RECORD_LIMIT}")]
pub struct TooLarge(pub usize);

impl Record {
    /// Whether the record has no content. It then orders late events after the removal of the last
    /// key.
    pub fn is_tombstone(&self) -> bool {
        self.kept.is_empty() && self.withheld.is_empty()
    }

    /// Returns the labels that the record holds.
    pub fn labels(&self) -> BTreeMap<String, String> {
        Content::from(&self.kept).labels
    }

    /// Returns this record as an entry of the history of its successor.
    pub fn entry(&self) -> HistoryEntry {
        let mut entry = HistoryEntry {
            sequence: self.sequence,
            captured_at: self.captured_at,
            uid: self.node.uid.clone(),
            machine: self.node.machine.clone(),
            content: Content::from(&self.kept),
            checksum: Digest::default(),
        };
        entry.checksum = entry.sum();
        entry
    }

    /// Returns JSON of at most [`RECORD_LIMIT`] bytes. The oldest history entries are dropped
    /// first.
    pub fn encode(&self) -> Result<String, TooLarge> {
        let mut wire = Wire::from(self);
        wire.checksum = wire.sum();
        loop {
            let text = serde_json::to_string(&wire).unwrap_or_default();
            if text.len() <= RECORD_LIMIT {
                return Ok(text);
            }
            if wire.history.pop().is_none() {
                return Err(TooLarge(text.len()));
            }
        }
    }

    /// Returns the record as a JSON value with its checksum.
    pub fn to_value(&self) -> serde_json::Value {
        let mut wire = Wire::from(self);
        wire.checksum = wire.sum();
        serde_json::to_value(&wire).unwrap_or_default()
    }

    /// Reads a record from a user's file. Its checksum is not verified.
    pub fn from_value(mut value: serde_json::Value) -> Result<Self, RecordFault> {
        check_version(&value)?;
        if let Some(map) = value.as_object_mut() {
            map.insert("checksum".to_owned(), serde_json::Value::String(String::new()));
        }
        let mut wire: Wire =
            serde_json::from_value(value).map_err(|error| RecordFault::Shape(brief(&error.to_string())))?;
        check_sequence(wire.sequence)?;
        wire.captured_under = wire.captured_under.map(Sealed::trusted);
        Ok(wire.into())
    }

    /// Reads and verifies a record.
    pub fn decode(text: &str) -> Result<Self, Invalid> {
        let value: serde_json::Value = serde_json::from_str(text)
            .map_err(|e| Invalid { why: RecordFault::NotJson(brief(&e.to_string())), good: None })?;
        check_version(&value).map_err(|why| Invalid { why, good: None })?;
        let good = newest_good(&value);
        let wire: Wire = match serde_json::from_value(value) {
            Ok(wire) => wire,
            Err(e) => return Err(Invalid { why: RecordFault::Shape(brief(&e.to_string())), good }),
        };
        if wire.checksum != wire.sum() {
            return Err(Invalid { why: RecordFault::Checksum, good });
        }
        match check_sequence(wire.sequence) {
            Ok(()) => Ok(wire.into()),
            Err(why) => Err(Invalid { why, good }),
        }
    }
}

fn check_version(record: &serde_json::Value) -> Result<(), RecordFault> {
    let found = record.get("version").cloned().unwrap_or_default();
    if found.as_u64().is_some_and(|found| (1..=VERSION).contains(&found)) {
        return Ok(());
    }
    Err(RecordFault::Version(brief(&found.to_string())))
}

fn check_sequence(sequence: u64) -> Result<(), RecordFault> {
    if sequence < SEQUENCE_LIMIT {
        return Ok(());
    }
    Err(RecordFault::Shape(format!("sequence {sequence} exceeds the maximum")))
}

impl HistoryEntry {
    pub fn is_good(&self) -> bool {
        self.sequence < SEQUENCE_LIMIT && self.checksum == self.sum()
    }

    fn sum(&self) -> Digest {
        sum_of(&Self { checksum: Digest::default(), ..self.clone() })
    }
}

/// Reads the history entry by entry, so that an invalid one does not hide the others.
fn newest_good(record: &serde_json::Value) -> Option<Box<HistoryEntry>> {
    let entries = record.get("history")?.as_array()?;
    entries
        .iter()
        .filter_map(|entry| HistoryEntry::deserialize(entry).ok())
        .filter(HistoryEntry::is_good)
        .max_by_key(|e| e.sequence)
        .map(Box::new)
}

fn sum_of(value: &impl Serialize) -> Digest {
    Digest::of([serde_json::to_vec(value).unwrap_or_default()])
}

/// The JSON of a record. History entries have checksums of their own, so that they survive a
/// corrupt record.
#[derive(Clone, Serialize, Deserialize)]
struct Wire {
    version: u64,
    sequence: u64,
    node: Origin,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "capturedUnder")]
    captured_under: Option<Sealed>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    taints: Vec<super::keys::Taint>,
    #[serde(default)]
    unschedulable: bool,
    #[serde(default)]
    folded: bool,
    #[serde(default)]
    before: Content,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    withheld: Vec<Withheld>,
    #[serde(rename = "capturedAt")]
    captured_at: Timestamp,
    #[serde(default, rename = "capturedBy")]
    captured_by: String,
    checksum: Digest,
    #[serde(default)]
    history: Vec<HistoryEntry>,
}

impl Wire {
    fn sum(&self) -> Digest {
        // Versions that do not know `captured_under` verify the sum without it.
        let (checksum, history) = (Digest::default(), Vec::new());
        sum_of(&Self { checksum, history, captured_under: None, ..self.clone() })
    }
}

impl From<&Record> for Wire {
    fn from(record: &Record) -> Self {
        let Content { labels, annotations, taints, unschedulable } = Content::from(&record.kept);
        Self {
            version: VERSION,
            sequence: record.sequence,
            node: record.node.clone(),
            identity: record.identity.clone(),
            captured_under: Sealed::new(&record.provenance),
            labels,
            annotations,
            taints,
            unschedulable,
            folded: record.folded,
            before: Content::from(&record.before),
            withheld: record.withheld.clone(),
            captured_at: record.captured_at,
            captured_by: record.captured_by.clone(),
            checksum: Digest::default(),
            history: record.history.clone(),
        }
    }
}

impl From<Wire> for Record {
    fn from(wire: Wire) -> Self {
        let Wire { labels, annotations, taints, unschedulable, .. } = wire;
        Self {
            sequence: wire.sequence,
            node: wire.node,
            identity: wire.identity,
            provenance: wire.captured_under.map(Sealed::verified).unwrap_or_default(),
            kept: Content { labels, annotations, taints, unschedulable }.into(),
            folded: wire.folded,
            before: wire.before.into(),
            withheld: wire.withheld,
            captured_at: wire.captured_at,
            captured_by: wire.captured_by,
            history: wire.history.into_iter().filter(HistoryEntry::is_good).collect(),
        }
    }
}

/// Serializes resourceVersions as strings, as Kubernetes does.
mod text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() { Ok(0) } else { text.parse().map_err(D::Error::custom) }
    }
}

#[cfg(test)]
mod tests;
