//! The records of absent nodes, of which there may be a million: names of autoscaled nodes never
//! return.
//!
//! The most recent ones have an entry like every other record. Of the rest only a hash of the name
//! is cached, in at most 24 bytes. When a node arrives whose record may be one of them,
//! the record is read, and has an entry from then on.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
};

use perennial_core::config::Identity;

use super::{
    entries::{RecordEntry, hash},
    index::Index,
};

/// Maximum number of bytes for an absent record without an entry.
#[cfg(test)]
const BYTES_EACH: usize = 24;
/// Minimum number of absent records with an entry. The dashboard lists these, and a node that
/// returns soon is restored without a read of its record. There may be three times as many.
pub(super) const RECENT: usize = 4096;
/// The bit of a hash that marks a record without content.
const TOMBSTONE: u64 = 1;

/// Returns a hash as it is.
#[derive(Debug, Default)]
struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Only called for integers of other sizes, which are not used.
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Hashes of names, with the number of records by identity.
#[derive(Debug, Default)]
struct Names {
    hashes: HashSet<u64, BuildHasherDefault<Unhashed>>,
    tombstones: usize,
    /// For identities other than the name of the node.
    identities: BTreeMap<Identity, usize>,
}

impl Names {
    fn insert(&mut self, name: &str, entry: &RecordEntry) {
        let tombstone = entry.fingerprint.is_tombstone();
        if self.hashes.insert(hash(&name) & !TOMBSTONE | u64::from(tombstone)) {
            self.tombstones += usize::from(tombstone);
            if let Some(identity) = &entry.identity {
                *self.identities.entry((**identity).clone()).or_default() += 1;
            }
        }
    }

    fn contains(&self, name: &str) -> bool {
        let key = hash(&name) & !TOMBSTONE;
        !self.hashes.is_empty() && (self.hashes.contains(&key) || self.hashes.contains(&(key | TOMBSTONE)))
    }

    fn remove(&mut self, name: &str, identity: Option<&Identity>) -> bool {
        if self.hashes.is_empty() {
            return false;
        }
        let key = hash(&name) & !TOMBSTONE;
        let tombstone = self.hashes.remove(&(key | TOMBSTONE));
        self.tombstones -= usize::from(tombstone);
        let removed = tombstone | self.hashes.remove(&key);
        if removed
            && let Some(identity) = identity
            && let Some(count) = self.identities.get_mut(identity)
        {
            *count -= 1;
            if *count == 0 {
                self.identities.remove(identity);
            }
        }
        removed
    }
}

/// The absent records without an entry.
#[derive(Debug, Default)]
pub(super) struct AbsentRecords {
    names: Names,
    /// Those from before the list that is being delivered, as far as it does not contain them yet.
    before: Names,
}

impl AbsentRecords {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.names.contains(name) || self.before.contains(name)
    }

    /// Whether the list that is being delivered contains a record.
    pub(super) fn lists(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    pub(super) fn len(&self) -> usize {
        self.names.hashes.len() + self.before.hashes.len()
    }

    pub(super) fn tombstones(&self) -> usize {
        self.names.tombstones + self.before.tombstones
    }

    /// Returns the identities other than the name of the node.
    pub(super) fn identities(&self) -> impl Iterator<Item = &Identity> {
        self.names.identities.keys().chain(self.before.identities.keys())
    }

    /// Returns the number of records that are not filed under the name of their node.
    pub(super) fn identified(&self) -> usize {
        self.names.identities.values().chain(self.before.identities.values()).sum()
    }

    /// Removes a record. `identity` is the one that it is filed under, unless that is the name of
    /// the node.
    pub(super) fn remove(&mut self, name: &str, identity: Option<&Identity>) -> bool {
        self.names.remove(name, identity) | self.before.remove(name, identity)
    }

    pub(super) fn begin_list(&mut self) {
        let names = std::mem::take(&mut self.names);
        if self.before.hashes.is_empty() {
            self.before = names;
        } else {
            // The last list was interrupted.
            self.before.hashes.extend(names.hashes);
            self.before.tombstones = self.before.hashes.iter().filter(|hash| **hash & TOMBSTONE != 0).count();
            for (identity, count) in names.identities {
                *self.before.identities.entry(identity).or_default() += count;
            }
        }
    }

    /// Ends a list. Returns the number of records with content that it did not contain.
    pub(super) fn end_list(&mut self) -> usize {
        let before = std::mem::take(&mut self.before);
        self.names.hashes.shrink_to_fit();
        before.hashes.len() - before.tombstones
    }

    /// Returns the memory of the hashes: 8 bytes and a control byte for each slot.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        (self.names.hashes.capacity() * 8).div_ceil(7).next_power_of_two() * 9
    }
}

impl Index {
    /// Whether a record exists, with or without an entry.
    pub(super) fn has_record(&self, name: &str) -> bool {
        self.records.contains_key(name) || self.absent.contains(name)
    }

    /// Drops the entries of absent records like [`Index::trim`], at most once for this many calls:
    /// each looks at every record, and those that must keep their entry may be many.
    pub(super) fn trim_now_and_then(&mut self) {
        self.untrimmed += 1;
        if self.untrimmed >= RECENT {
            self.trim();
        }
    }

    /// Drops the entries of absent records, except for the most recent ones, if there are too many.
    pub(super) fn trim(&mut self) {
        self.untrimmed = 0;
        if !self.nodes_are_listed || self.records.len() <= self.nodes.len() + 2 * RECENT {
            return;
        }
        let mut absent: Vec<(u64, Arc<str>)> = self
            .records
            .iter()
            .filter(|(name, record)| self.is_dispensable(name, record))
            .map(|(name, record)| (record.resource_version.max(record.left_at), Arc::clone(name)))
            .collect();
        let surplus = absent.len().saturating_sub(RECENT);
        if surplus == 0 {
            return;
        }
        absent.select_nth_unstable(surplus - 1);
        for (_, name) in absent.into_iter().take(surplus) {
            let Some(entry) = self.records.remove(&name) else { continue };
            self.count_identity(entry.identity.as_deref(), None);
            let is_old = self.records_are_listed_again && !entry.listed;
            let names = if is_old { &mut self.absent.before } else { &mut self.absent.names };
            names.insert(&name, &entry);
        }
    }

    /// Whether an entry may be dropped: no live node has, or may have, the record, and nothing has
    /// to be done about it.
    fn is_dispensable(&self, name: &Arc<str>, record: &RecordEntry) -> bool {
        !record.fingerprint.is_bad()
            && !record.unsigned
            && !self.has_live_node(name, record)
            && !self.lookups.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use perennial_core::keeper::{fingerprint::RecordFingerprint, stored_record::Stored};

    use super::*;

    fn entry(version: u64) -> RecordEntry {
        let stored = Stored::read(&BTreeMap::new(), |_| true);
        RecordEntry {
            fingerprint: RecordFingerprint::new(&stored),
            resource_version: version,
            unsigned: false,
            absence_noted: true,
            listed: false,
            identity: None,
            left_at: 0,
            node: Arc::from("n"),
        }
    }

    #[test]
    fn an_absent_record_takes_at_most_24_bytes() {
        let mut absent = AbsentRecords::default();
        for i in 0..200_000 {
            absent.names.insert(&format!("node-ip-10-0-{}-{}.eu-west-1.compute.internal", i / 256, i % 256), &entry(1));
            assert!(i < 1000 || absent.bytes() <= BYTES_EACH * absent.len(), "{} for {i}", absent.bytes());
        }
        assert_eq!(absent.len(), 200_000);
    }

    #[test]
    fn a_list_replaces_the_names_before_it() {
        let mut absent = AbsentRecords::default();
        for name in ["node-a", "node-b"] {
            absent.names.insert(name, &entry(1));
        }

        absent.begin_list();
        absent.names.insert("node-b", &entry(2));
        assert!(absent.contains("node-a"), "it may still come");
        absent.end_list();

        assert!(absent.contains("node-b") && !absent.contains("node-a"));
        assert!(absent.remove("node-b", None) && !absent.remove("node-b", None));
        assert_eq!(absent.len(), 0);
    }
}
