//! All requests of the keeper. Every write is conditional, and every request has a deadline and is
//! within the budget.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use perennial_core::keeper::{
    collect::ABSENT_SINCE,
    decide::Restore,
    identity::RecordName,
    mark::MARK,
    node_patch::{node_patch, ungate_patch},
    record::{Fault, RECORD_KEY, RECORD_LABEL, RECORD_LABEL_VALUE, RECOVERED_KEY, Record, TooLarge},
    selection,
    signature::signature_key,
    stored_record::Stored,
};

use super::{
    Priority,
    node::Node,
    policies::KeepPolicyResource,
    record_keys::{CannotSign, KeysError, Signatures},
};
use crate::runtime::{
    budget::Budget,
    error_category::Category,
    pages::next_token,
    request::{FIELD_MANAGER, Failure, ask},
};

/// Page size of lists of records. A record has a KiB or two, but a ConfigMap may have a MiB, and a
/// page of those must fit into memory.
pub const PAGE_OF_RECORDS: u32 = 50;

/// The ConfigMap of a record as it was read. The next write is conditional on it.
#[derive(Clone, Debug)]
pub struct Held {
    stored: Arc<Stored>,
    config_map: ConfigMap,
    /// An unknown key that signed some of it: the keys may have changed.
    unknown_key: Option<String>,
    /// Data keys of valid records that the newest signing key has not signed.
    unsigned: Vec<&'static str>,
}

impl Held {
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
                let vouched = signatures.vouch(&name, key, text, signature(key));
                if let Err(Fault::UnknownKey(key)) = &vouched {
                    unknown_key.replace(Some(key.clone()));
                }
                vouched
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

    pub fn resource_version(&self) -> u64 {
        resource_version(&self.config_map)
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

/// A request that failed, or was not sent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not read node {node}")]
    ReadNode { node: String, source: Failure },
    #[error("could not patch node {node}")]
    PatchNode { node: String, source: Failure },
    #[error("could not read record {record}")]
    ReadRecord { record: String, source: Failure },
    #[error("could not write record {record}")]
    WriteRecord { record: String, source: Failure },
    #[error("could not delete record {record}")]
    DeleteRecord { record: String, source: Failure },
    #[error("could not list {what}")]
    List { what: &'static str, source: Failure },
    #[error("could not write record {record}")]
    TooLarge { record: String, source: TooLarge },
    #[error("could not sign record {record}; it was not written")]
    Sign { record: String, source: CannotSign },
    #[error("could not verify record {record}")]
    Keys { record: String, source: KeysError },
}

impl Error {
    /// Returns the failed request. `None` if none was sent.
    fn failure(&self) -> Option<&Failure> {
        match self {
            Self::ReadNode { source, .. }
            | Self::PatchNode { source, .. }
            | Self::ReadRecord { source, .. }
            | Self::WriteRecord { source, .. }
            | Self::DeleteRecord { source, .. }
            | Self::List { source, .. } => Some(source),
            Self::TooLarge { .. } | Self::Sign { .. } | Self::Keys { .. } => None,
        }
    }

    pub fn category(&self) -> Category {
        match self {
            // The keys may be readable in the next attempt.
            Self::Keys { .. } => Category::Server,
            _ => self.failure().map_or(Category::Refused, Failure::category),
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        self.failure()?.retry_after()
    }

    /// Returns the missing permission of a forbidden request.
    pub fn missing_permission(&self) -> Option<&'static str> {
        if self.category() != Category::Forbidden {
            return None;
        }
        Some(match self {
            Self::ReadNode { .. } => "get nodes",
            Self::PatchNode { .. } => "patch nodes",
            Self::ReadRecord { .. } => "get configmaps in Perennial's namespace",
            Self::WriteRecord { .. } => "create and update configmaps in Perennial's namespace",
            Self::DeleteRecord { .. } => "delete configmaps in Perennial's namespace",
            Self::List { .. } => "list nodes, and configmaps in Perennial's namespace",
            Self::TooLarge { .. } | Self::Sign { .. } | Self::Keys { .. } => return None,
        })
    }
}

/// Reads and writes nodes and records.
#[derive(Clone, Debug)]
pub struct Cluster {
    nodes: Api<Node>,
    records: Api<ConfigMap>,
    policies: Api<KeepPolicyResource>,
    budget: Budget,
    signatures: Signatures,
}

impl Cluster {
    pub fn new(client: Client, namespace: &str, budget: Budget, signatures: Signatures) -> Self {
        let (nodes, policies) = (Api::all(client.clone()), Api::all(client.clone()));
        Self { nodes, records: Api::namespaced(client, namespace), policies, budget, signatures }
    }

    pub fn signatures(&self) -> &Signatures {
        &self.signatures
    }

    pub fn nodes(&self) -> &Api<Node> {
        &self.nodes
    }

    pub fn records(&self) -> &Api<ConfigMap> {
        &self.records
    }

    pub async fn read_node(&self, name: &str, priority: Priority) -> Result<Option<selection::Node>, Error> {
        let node = self.ask(priority, self.nodes.get_opt(name)).await;
        node.map(|node| node.map(Node::into_view)).map_err(|source| Error::ReadNode { node: name.to_owned(), source })
    }

    /// Restores a node, if it is still in the state that was decided on.
    pub async fn patch_node(&self, node: &selection::Node, restore: &Restore) -> Result<selection::Node, Error> {
        self.patch(node, node_patch(node, restore)).await
    }

    /// Changes kept keys of a node for a command. Its mark stays: to the operator it is a change by
    /// a user.
    pub async fn change_node(&self, node: &selection::Node, change: &Restore) -> Result<selection::Node, Error> {
        let mut patch = node_patch(node, change);
        if let Some(annotations) = patch.pointer_mut("/metadata/annotations").and_then(serde_json::Value::as_object_mut)
        {
            annotations.remove(MARK);
        }
        self.patch(node, patch).await
    }

    /// Removes the gate taint from a node, if it is still in the state that was decided on.
    pub async fn ungate_node(&self, node: &selection::Node) -> Result<selection::Node, Error> {
        self.patch(node, ungate_patch(node)).await
    }

    async fn patch(&self, node: &selection::Node, patch: serde_json::Value) -> Result<selection::Node, Error> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patched = self.ask(Priority::Restore, self.nodes.patch(&node.name, &params, &Patch::Merge(patch))).await;
        patched.map(Node::into_view).map_err(|source| Error::PatchNode { node: node.name.clone(), source })
    }

    pub async fn read_record(&self, name: &RecordName, priority: Priority) -> Result<Option<Held>, Error> {
        let found = self.ask(priority, self.records.get_opt(&name.0)).await;
        let Some(found) = found.map_err(|source| Error::ReadRecord { record: name.0.clone(), source })? else {
            return Ok(None);
        };
        let held = self.held(found);
        // The keys are read again before a record with an unknown key is quarantined.
        if let Some(key) = &held.unknown_key {
            let looked = self.signatures.look_for(key).await;
            looked.map_err(|source| Error::Keys { record: name.0.clone(), source })?;
            return Ok(Some(self.held(held.config_map)));
        }
        Ok(Some(held))
    }

    /// Replaces the record that was read, or creates the first one. A concurrent write is a
    /// conflict.
    pub async fn write_record(&self, held: Option<&Held>, record: &Record, priority: Priority) -> Result<Held, Error> {
        let name = record.name().0;
        let newer = self.after_all_seen(held, record);
        let record = newer.as_ref().unwrap_or(record);
        let text = record.encode().map_err(|source| Error::TooLarge { record: name.clone(), source })?;
        let key = held.map_or(RECORD_KEY, |held| held.stored.write_key());
        let signature = self.signatures.sign(&name, key, &text);
        let signature = signature.map_err(|source| Error::Sign { record: name.clone(), source })?;
        let config_map = next_config_map(&name, held, record, (key, text, signature));
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = if held.is_some() {
            self.ask(priority, self.records.replace(&name, &params, &config_map)).await
        } else {
            self.ask(priority, self.records.create(&params, &config_map)).await
        };
        written.map(|map| self.held(map)).map_err(|source| Error::WriteRecord { record: name, source })
    }

    fn held(&self, config_map: ConfigMap) -> Held {
        Held::new(config_map, &self.signatures)
    }

    /// Returns the record with a sequence after all that were seen, if an older record was put
    /// back.
    fn after_all_seen(&self, held: Option<&Held>, record: &Record) -> Option<Record> {
        let uid = held?.config_map.metadata.uid.as_deref()?;
        let seen = self.signatures.newest_sequence(&record.name().0, uid);
        (record.sequence <= seen).then(|| Record { sequence: seen + 1, ..record.clone() })
    }

    /// Signs the valid records in a ConfigMap, unchanged, with the newest key.
    pub async fn sign_record(&self, held: &Held) -> Result<Held, Error> {
        let name = held.name();
        let mut next = held.config_map.clone();
        next.metadata.managed_fields = None;
        let data = next.data.get_or_insert_default();
        for &key in &held.unsigned {
            let Some(text) = data.get(key) else { continue };
            let signature = self.signatures.sign(name, key, text);
            let signature = signature.map_err(|source| Error::Sign { record: name.to_owned(), source })?;
            data.extend(signature.map(|signature| (signature_key(key).to_owned(), signature)));
        }
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = self.ask(Priority::Collect, self.records.replace(name, &params, &next)).await;
        written.map(|map| self.held(map)).map_err(|source| Error::WriteRecord { record: name.to_owned(), source })
    }

    /// Sets or removes annotations of a record's ConfigMap, if it has not changed since it was
    /// read.
    pub async fn annotate_record(
        &self,
        held: &Held,
        annotations: &BTreeMap<&str, Option<String>>,
    ) -> Result<Held, Error> {
        let patch = serde_json::json!({ "metadata": {
            "resourceVersion": held.config_map.metadata.resource_version,
            "annotations": annotations,
        }});
        self.patch_record(held, patch).await
    }

    /// Restores the label of a record's ConfigMap, if it has not changed since it was read.
    pub async fn label_record(&self, held: &Held) -> Result<Held, Error> {
        let patch = serde_json::json!({ "metadata": {
            "resourceVersion": held.config_map.metadata.resource_version,
            "labels": { RECORD_LABEL: RECORD_LABEL_VALUE },
        }});
        self.patch_record(held, patch).await
    }

    async fn patch_record(&self, held: &Held, patch: serde_json::Value) -> Result<Held, Error> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let written = self.ask(Priority::Collect, self.records.patch(held.name(), &params, &Patch::Merge(patch))).await;
        written
            .map(|map| self.held(map))
            .map_err(|source| Error::WriteRecord { record: held.name().to_owned(), source })
    }

    /// Writes the status of a KeepPolicy.
    pub async fn report_policy(&self, name: &str, patch: serde_json::Value) -> Result<(), Failure> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        self.ask(Priority::Collect, self.policies.patch_status(name, &params, &patch)).await.map(drop)
    }

    /// Returns the current resourceVersion of the API server: later than every deleted node.
    pub async fn now(&self) -> Result<u64, Error> {
        let page = self.ask(Priority::Restore, self.nodes.list_metadata(&ListParams::default().limit(1))).await;
        let page = page.map_err(|source| Error::List { what: "nodes", source })?;
        Ok(page.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default())
    }

    /// Returns a page of records and the token of the next one.
    pub async fn list_records(&self, params: &ListParams) -> Result<(Vec<Held>, Option<String>), Error> {
        let page = self.ask(Priority::Collect, self.records.list(params)).await;
        let page = page.map_err(|source| Error::List { what: "records", source })?;
        let next = next_token(&page.metadata);
        let mut records = Vec::with_capacity(page.items.len());
        for found in page.items {
            let held = self.held(found);
            // If the keys cannot be read, the record counts as quarantined for now.
            let looked = match &held.unknown_key {
                Some(key) => self.signatures.look_for(key).await.is_ok(),
                None => false,
            };
            records.push(if looked { self.held(held.config_map) } else { held });
        }
        Ok((records, next))
    }

    /// Returns a page of nodes and the token of the next one.
    pub async fn list_nodes(&self, params: &ListParams) -> Result<(Vec<selection::Node>, Option<String>), Error> {
        let page = self.ask(Priority::Collect, self.nodes.list(params)).await;
        let page = page.map_err(|source| Error::List { what: "nodes", source })?;
        let next = next_token(&page.metadata);
        Ok((page.items.into_iter().map(Node::into_view).collect(), next))
    }

    /// Deletes a record, if it has not changed since it was read.
    pub async fn delete_record(&self, held: &Held) -> Result<(), Error> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: held.config_map.metadata.resource_version.clone(),
                uid: held.config_map.metadata.uid.clone(),
            }),
            ..DeleteParams::default()
        };
        let deleted = self.ask(Priority::Collect, self.records.delete(held.name(), &params)).await;
        deleted.map(drop).map_err(|source| Error::DeleteRecord { record: held.name().to_owned(), source })
    }

    async fn ask<T>(
        &self,
        priority: Priority,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        ask(&self.budget, priority, request).await
    }
}

/// Returns the ConfigMap to write. Data, labels and annotations of others are kept.
fn next_config_map(
    name: &str,
    held: Option<&Held>,
    record: &Record,
    (key, text, signature): (&str, String, Option<String>),
) -> ConfigMap {
    let mut next = held.map_or_else(
        || ConfigMap {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            ..ConfigMap::default()
        },
        |held| held.config_map.clone(),
    );
    next.metadata.managed_fields = None;
    let labels = next.metadata.labels.get_or_insert_default();
    labels.insert(RECORD_LABEL.to_owned(), RECORD_LABEL_VALUE.to_owned());
    let annotations = next.metadata.annotations.get_or_insert_default();
    annotations.insert(NODE_ANNOTATION.to_owned(), record.node.name.clone());
    // The record is written from a node that exists or existed a moment ago.
    annotations.remove(ABSENT_SINCE);
    let data = next.data.get_or_insert_default();
    if key == RECORD_KEY {
        data.remove(RECOVERED_KEY);
        data.remove(signature_key(RECOVERED_KEY));
    }
    data.insert(key.to_owned(), text);
    // The signature of the former content is not valid for the new one.
    data.remove(signature_key(key));
    data.extend(signature.map(|signature| (signature_key(key).to_owned(), signature)));
    next
}

/// Annotation of a record: the node that it was last written from.
pub const NODE_ANNOTATION: &str = "perennial.dev/node";

/// Returns the resourceVersion of a ConfigMap as a number; 0 if it is not one.
pub fn resource_version(config_map: &ConfigMap) -> u64 {
    config_map.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
}
