//! The ConfigMap of a record, read and verified.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use perennial_core::keeper::{
    collect::{ABSENT_SINCE, HOLD},
    identity::RecordName,
    keys::TRUE,
    record::{RECORD_LABEL, RECORD_LABEL_VALUE, RecordFault},
    signature::signature_key,
    stored_record::Stored,
};

use crate::keeper::record_keys::Signatures;

/// Annotation of a record: the node that it was last written from.
pub const NODE_ANNOTATION: &str = "perennial.dev/node";

/// Returns the resourceVersion of a ConfigMap as a number; 0 if it is not one.
pub fn resource_version(config_map: &ConfigMap) -> u64 {
    config_map.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The ConfigMap of a record as it was read. The next write is conditional on it.
#[derive(Clone, Debug)]
pub struct LoadedRecord {
    stored: Arc<Stored>,
    pub(super) config_map: ConfigMap,
    /// An unknown key that signed some of it: the keys may have changed.
    pub(super) unknown_key: Option<String>,
    /// Data keys of valid records that the newest signing key has not signed.
    pub(super) unsigned: Vec<&'static str>,
}

impl LoadedRecord {
    /// Reads and verifies the ConfigMap of a record.
    pub fn new(config_map: ConfigMap, signatures: &Signatures) -> Self {
        let empty = BTreeMap::new();
        let data = config_map.data.as_ref().unwrap_or(&empty);
        let name = config_map.metadata.name.clone().unwrap_or_default();
        let uid = config_map.metadata.uid.as_deref().unwrap_or_default();
        let version = (uid, resource_version(&config_map));
        let signature = |key: &str| data.get(signature_key(key)).map(String::as_str);
        let (unknown_key, unsigned) = (RefCell::new(None), RefCell::new(Vec::new()));
        let mut stored = Stored::verified(
            data,
            |record| record.name() == RecordName(name.clone()),
            |key, text| {
                let verified = signatures.verify(&name, key, text, signature(key));
                if let Err(RecordFault::UnknownKey(key)) = &verified {
                    unknown_key.replace(Some(key.clone()));
                }
                verified
            },
            |key, record| {
                signatures.accept((&name, key), version, record)?;
                // Only verified records may be signed again: a signature makes them trusted for
                // good.
                if signatures.is_behind(signature(key)) {
                    unsigned.borrow_mut().push(key);
                }
                Ok(())
            },
        );
        let (unsigned, unknown_key) = (unsigned.into_inner(), unknown_key.into_inner());
        forget_foreign_version(&mut stored, resource_version(&config_map));
        Self { stored: Arc::new(stored), config_map, unknown_key, unsigned }
    }

    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Returns the record for a [`Case`](perennial_core::keeper::case::Case).
    pub fn share(&self) -> Arc<Stored> {
        Arc::clone(&self.stored)
    }

    pub fn name(&self) -> &str {
        self.config_map.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn namespace(&self) -> &str {
        self.config_map.metadata.namespace.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> Option<&str> {
        self.config_map.metadata.uid.as_deref()
    }

    pub fn resource_version(&self) -> u64 {
        resource_version(&self.config_map)
    }

    /// Returns the time at which the record was first written.
    pub fn created(&self) -> Option<Timestamp> {
        self.config_map.metadata.creation_timestamp.as_ref().map(|time| time.0)
    }

    /// Returns the name of the node, as far as the ConfigMap contains it.
    pub fn node_name(&self) -> &str {
        if let Stored::Good(record) = self.stored() {
            return &record.node.name;
        }
        let named = self.annotations().get(NODE_ANNOTATION).map(String::as_str);
        named.or_else(|| self.name().strip_prefix("node-")).unwrap_or_default()
    }

    /// Whether it has the label of records. Other ConfigMaps may have any name.
    pub fn is_labelled(&self) -> bool {
        let labels = self.config_map.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(RECORD_LABEL)).is_some_and(|value| value == RECORD_LABEL_VALUE)
    }

    /// Whether it contains a valid record that the newest signing key has not signed.
    pub fn is_unsigned(&self) -> bool {
        !self.unsigned.is_empty()
    }

    /// Whether it has the annotation `absent-since`.
    pub fn is_noted_absent(&self) -> bool {
        self.annotations().contains_key(ABSENT_SINCE)
    }

    /// Returns the time since which garbage collection finds no node for it.
    pub fn absent_since(&self) -> Option<Timestamp> {
        self.annotations().get(ABSENT_SINCE)?.parse().ok()
    }

    /// Whether it is excluded from garbage collection.
    pub fn is_on_hold(&self) -> bool {
        self.annotations().get(HOLD).is_some_and(|value| value == TRUE)
    }

    pub fn annotations(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.config_map.metadata.annotations.as_ref().unwrap_or(&NONE)
    }
}

/// Clears the recorded resourceVersion of a node if it is later than the record itself. Such a
/// record was copied from another cluster, whose resourceVersions have no meaning here: no state of
/// a node is older than it.
fn forget_foreign_version(stored: &mut Stored, written_at: u64) {
    if let Stored::Good(record) = stored
        && written_at > 0
        && record.node.resource_version > written_at
    {
        record.node.resource_version = 0;
    }
}
