//! ConfigMaps of other tools with the labels of one node, and Perennial's own records.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{Format, ImportEntry, ImportInput, check_keys, entry, labels, time};
use crate::keeper::{
    keys::{Kept, Key},
    record::{RECORD_KEY, RECOVERED_KEY, Record},
};

const PREFIX: &str = "node-labels-";
const STATE: &str = "state.json";
const PRESERVED: &str = "preserved_labels_json";
/// The longer one comes first, since it contains the shorter.
const SLASHES: [&str; 2] = ["---SLASH---", "-SLASH-"];
/// Prefixes of the names of ConfigMaps with slash keys; the rest is the name of the node.
const STORAGE: [&str; 2] = ["label_storage.", "label-storage."];
/// Entries of such ConfigMaps that are bookkeeping of the tool, not labels.
const BOOKKEEPING: [&str; 5] =
    ["label_version", "resource_version", "last_store_resource_version", "node_name", "transaction_type"];
/// Minimum length of a hash in a name.
const HASH: usize = 8;

pub(super) fn read(object: &Map<String, Value>, origin: &str, known: &BTreeSet<String>, found: &mut ImportInput) {
    let none = Map::new();
    let data = object.get("data").and_then(Value::as_object).unwrap_or(&none);
    let name = object.get("metadata").and_then(|metadata| metadata.get("name")).and_then(Value::as_str);
    let name = name.unwrap_or_default();
    let stored = STORAGE.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    if data.contains_key(RECORD_KEY) {
        found.take(origin, record(object, data, origin));
    } else if data.contains_key(STATE) && name.starts_with(PREFIX) {
        found.take(origin, state(data, origin));
    } else if data.contains_key(PRESERVED) {
        found.take(origin, preserved(name, data, origin, known));
    } else if data.keys().any(|key| SLASHES.iter().any(|slash| key.contains(slash)))
        || ((known.contains(stored) || stored != name) && !data.is_empty())
    {
        found.take(origin, slashed(stored, data, origin));
    } else {
        found.unknown += 1;
    }
}

fn text<'a>(data: &'a Map<String, Value>, key: &str) -> Result<&'a str, String> {
    data.get(key).and_then(Value::as_str).ok_or_else(|| format!("its {key} is not text"))
}

fn record(object: &Map<String, Value>, data: &Map<String, Value>, origin: &str) -> Result<ImportEntry, String> {
    let read = |key: &str| Record::decode(text(data, key)?).map_err(|invalid| invalid.why.to_string());
    let record = match read(RECORD_KEY) {
        Ok(record) => record,
        Err(why) => read(RECOVERED_KEY).map_err(|_| format!("the record cannot be trusted: {why}"))?,
    };
    let annotations = object.get("metadata").and_then(|metadata| metadata.get("annotations"));
    let hold = annotations.and_then(|annotations| annotations.get(crate::keeper::collect::HOLD));
    let mut entry = of_record(record, Format::Record, origin)?;
    entry.hold = hold.and_then(Value::as_str) == Some("true");
    Ok(entry)
}

/// Returns the entry of a complete record.
pub(super) fn of_record(record: Record, format: Format, origin: &str) -> Result<ImportEntry, String> {
    let mut entry = entry(&record.node.name, record.kept.clone(), format, origin)?;
    // A rollback restores from the history, a machine that returns from what was withheld for it.
    check_keys(&record.before)?;
    let history =
        record.history.iter().map(|past| (format!("sequence {} of its history", past.sequence), &past.content));
    let withheld = record.withheld.iter().map(|other| ("its withheld keys".to_owned(), &other.content));
    for (place, content) in history.chain(withheld) {
        check_keys(&Kept::from(content.clone())).map_err(|why| format!("{place}: {why}"))?;
    }
    entry.machine = Some(record.node.machine.clone());
    entry.captured_at = Some(record.captured_at);
    entry.record = Some(Box::new(record));
    Ok(entry)
}

fn state(data: &Map<String, Value>, origin: &str) -> Result<ImportEntry, String> {
    let state: Value =
        serde_json::from_str(text(data, STATE)?).map_err(|error| format!("its {STATE} is not JSON: {error}"))?;
    let node = state.get("nodeName").and_then(Value::as_str).ok_or("its state.json has no nodeName")?;
    let kept = labels(state.get("labels").ok_or("its state.json has no labels")?)?;
    let mut entry = entry(node, kept, Format::StateJson, origin)?;
    entry.captured_at = time(state.get("capturedAt"));
    Ok(entry)
}

fn preserved(
    name: &str,
    data: &Map<String, Value>,
    origin: &str,
    known: &BTreeSet<String>,
) -> Result<ImportEntry, String> {
    let kept: Value = serde_json::from_str(text(data, PRESERVED)?)
        .map_err(|error| format!("its {PRESERVED} is not JSON: {error}"))?;
    let named = ["node_name", "nodeName", "node"].iter().find_map(|key| data.get(*key).and_then(Value::as_str));
    let node = match named {
        Some(node) => node,
        None => hashed(name, known).ok_or(
            "it names its node by a hash only, and no node or record has that hash; \
             create the node, then import again",
        )?,
    };
    entry(node, labels(&kept)?, Format::PreservedLabels, origin)
}

/// Returns the node whose name has the hash that a ConfigMap is named after.
fn hashed<'a>(name: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let hash = name.strip_prefix(PREFIX).filter(|hash| hash.len() >= HASH)?;
    known.iter().map(String::as_str).find(|node| sha256(node).starts_with(hash))
}

pub(super) fn sha256(text: &str) -> String {
    use std::fmt::Write as _;
    Sha256::digest(text.as_bytes()).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn slashed(node: &str, data: &Map<String, Value>, origin: &str) -> Result<ImportEntry, String> {
    let mut kept = Kept::new();
    for (key, value) in data.iter().filter(|(key, _)| !BOOKKEEPING.contains(&key.as_str())) {
        let value = value.as_str().ok_or_else(|| format!("the value of {key} is not text"))?;
        let key = SLASHES.iter().fold(key.clone(), |key, slash| key.replace(slash, "/"));
        kept.insert(Key::Label(key), value.to_owned());
    }
    entry(node, kept, Format::SlashKeys, origin)
}
