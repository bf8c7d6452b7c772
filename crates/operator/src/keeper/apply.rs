//! All requests of the keeper. Every write is conditional, and every request has a deadline and is
//! within the budget.

mod deletions;
mod error;
mod loaded_record;
mod moves;

pub use self::{
    error::KeeperError,
    loaded_record::{LoadedRecord, NODE_ANNOTATION, resource_version},
    moves::RecordMove,
};

use std::collections::BTreeMap;

use futures::Stream;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use perennial_core::{
    config::names::is_dns_subdomain,
    keeper::{
        collect::{ABSENT_SINCE, MASS_ABSENCE},
        decide::Restore,
        identity::RecordName,
        mark::MARK,
        node_patch::{node_patch, ungate_patch},
        record::{RECORD_KEY, RECORD_LABEL, RECORD_LABEL_VALUE, RECOVERED_KEY, Record, record_selector},
        selection,
        signature::signature_key,
    },
};

use self::deletions::Deletions;
use super::{Priority, node::Node, policies::KeepPolicyResource, record_keys::Signatures};
use crate::runtime::{
    budget::Budget,
    history::newest_version,
    pages::{PAGE, next_token, pages, with_recovery},
    request::{FIELD_MANAGER, RequestFailure, send},
};

/// Page size of lists of records. A record has a KiB or two, but a ConfigMap may have a MiB, and a
/// page of those must fit into memory.
pub const PAGE_OF_RECORDS: u32 = 50;

/// Reads and writes nodes and records.
#[derive(Clone, Debug)]
pub struct KeeperClient {
    nodes: Api<Node>,
    records: Api<ConfigMap>,
    policies: Api<KeepPolicyResource>,
    budget: Budget,
    signatures: Signatures,
    deletions: Deletions,
}

impl KeeperClient {
    pub fn new(client: Client, namespace: &str, budget: Budget, signatures: Signatures) -> Self {
        let (nodes, policies) = (Api::all(client.clone()), Api::all(client.clone()));
        let records = Api::namespaced(client, namespace);
        Self { nodes, records, policies, budget, signatures, deletions: Deletions::default() }
    }

    pub fn signatures(&self) -> &Signatures {
        &self.signatures
    }

    /// Sends requests without a rate limit from now on.
    pub fn lift_limit(&self) {
        self.budget.lift();
    }

    pub fn nodes(&self) -> &Api<Node> {
        &self.nodes
    }

    pub fn records(&self) -> &Api<ConfigMap> {
        &self.records
    }

    /// Reads a node. No request is sent for a name that no node can have: names also come from
    /// reviews, which anyone can send.
    pub async fn read_node(&self, name: &str, priority: Priority) -> Result<Option<selection::Node>, KeeperError> {
        if !is_dns_subdomain(name) {
            return Ok(None);
        }
        let node = self.send(priority, self.nodes.get_opt(name)).await;
        node.map(|node| node.map(Node::into_view))
            .map_err(|source| KeeperError::ReadNode { node: name.to_owned(), source })
    }

    /// Restores a node, if it is still in the state that was decided on.
    pub async fn patch_node(&self, node: &selection::Node, restore: &Restore) -> Result<selection::Node, KeeperError> {
        self.patch(node, node_patch(node, restore)).await
    }

    /// Changes kept keys of a node for a command. Its mark stays: to the operator it is a change by
    /// a user.
    pub async fn change_node(&self, node: &selection::Node, change: &Restore) -> Result<selection::Node, KeeperError> {
        let mut patch = node_patch(node, change);
        if let Some(annotations) = patch.pointer_mut("/metadata/annotations").and_then(serde_json::Value::as_object_mut)
        {
            annotations.remove(MARK);
        }
        self.patch(node, patch).await
    }

    /// Removes the gate taint from a node, if it is still in the state that was decided on.
    pub async fn ungate_node(&self, node: &selection::Node) -> Result<selection::Node, KeeperError> {
        self.patch(node, ungate_patch(node)).await
    }

    async fn patch(&self, node: &selection::Node, patch: serde_json::Value) -> Result<selection::Node, KeeperError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patched = self.send(Priority::Restore, self.nodes.patch(&node.name, &params, &Patch::Merge(patch))).await;
        patched.map(Node::into_view).map_err(|source| KeeperError::PatchNode { node: node.name.clone(), source })
    }

    pub async fn read_record(
        &self,
        name: &RecordName,
        priority: Priority,
    ) -> Result<Option<LoadedRecord>, KeeperError> {
        let found = self.send(priority, self.records.get_opt(&name.0)).await;
        let Some(found) = found.map_err(|source| KeeperError::ReadRecord { record: name.0.clone(), source })? else {
            return Ok(None);
        };
        let held = self.held(found);
        // The keys are read again before a record with an unknown key is quarantined.
        if let Some(key) = &held.unknown_key {
            let looked = self.signatures.look_for(key).await;
            looked.map_err(|source| KeeperError::Keys { record: name.0.clone(), source })?;
            return Ok(Some(self.held(held.config_map)));
        }
        Ok(Some(held))
    }

    /// Replaces the record that was read, or creates the first one. A concurrent write is a
    /// conflict.
    pub async fn write_record(
        &self,
        held: Option<&LoadedRecord>,
        record: &Record,
        priority: Priority,
    ) -> Result<LoadedRecord, KeeperError> {
        self.write_record_with(held, record, BTreeMap::new(), priority).await
    }

    async fn write_record_with(
        &self,
        held: Option<&LoadedRecord>,
        record: &Record,
        annotations: BTreeMap<String, String>,
        priority: Priority,
    ) -> Result<LoadedRecord, KeeperError> {
        let name = record.name().0;
        let newer = self.after_all_seen(held, record);
        let record = newer.as_ref().unwrap_or(record);
        let text = record.encode().map_err(|source| KeeperError::TooLarge { record: name.clone(), source })?;
        let key = held.map_or(RECORD_KEY, |held| held.stored().write_key());
        let signature = self.signatures.sign(&name, key, &text);
        let signature = signature.map_err(|source| KeeperError::Sign { record: name.clone(), source })?;
        let mut config_map = next_config_map(&name, held, record, (key, text, signature));
        config_map.metadata.annotations.get_or_insert_default().extend(annotations);
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = if held.is_some() {
            self.send(priority, self.records.replace(&name, &params, &config_map)).await
        } else {
            self.send(priority, self.records.create(&params, &config_map)).await
        };
        written.map(|map| self.held(map)).map_err(|source| KeeperError::WriteRecord { record: name, source })
    }

    fn held(&self, config_map: ConfigMap) -> LoadedRecord {
        LoadedRecord::new(config_map, &self.signatures)
    }

    /// Returns the record with a sequence after all that were seen, if an older record was put
    /// back.
    fn after_all_seen(&self, held: Option<&LoadedRecord>, record: &Record) -> Option<Record> {
        let uid = held?.config_map.metadata.uid.as_deref()?;
        let seen = self.signatures.newest_sequence(&record.name().0, uid);
        (record.sequence <= seen).then(|| Record { sequence: seen + 1, ..record.clone() })
    }

    /// Signs the valid records in a ConfigMap, unchanged, with the newest key.
    pub async fn sign_record(&self, held: &LoadedRecord) -> Result<LoadedRecord, KeeperError> {
        let name = held.name();
        let mut next = held.config_map.clone();
        next.metadata.managed_fields = None;
        let data = next.data.get_or_insert_default();
        for &key in &held.unsigned {
            let Some(text) = data.get(key) else { continue };
            let signature = self.signatures.sign(name, key, text);
            let signature = signature.map_err(|source| KeeperError::Sign { record: name.to_owned(), source })?;
            data.extend(signature.map(|signature| (signature_key(key).to_owned(), signature)));
        }
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let written = self.send(Priority::Collect, self.records.replace(name, &params, &next)).await;
        written.map(|map| self.held(map)).map_err(|source| KeeperError::WriteRecord { record: name.to_owned(), source })
    }

    /// Sets or removes annotations of a record's ConfigMap, if it has not changed since it was
    /// read.
    pub async fn annotate_record(
        &self,
        held: &LoadedRecord,
        annotations: &BTreeMap<&str, Option<String>>,
    ) -> Result<LoadedRecord, KeeperError> {
        let patch = serde_json::json!({ "metadata": {
            "resourceVersion": held.config_map.metadata.resource_version,
            "annotations": annotations,
        }});
        self.patch_record(held, patch).await
    }

    /// Restores the label of a record's ConfigMap, if it has not changed since it was read.
    pub async fn label_record(&self, held: &LoadedRecord) -> Result<LoadedRecord, KeeperError> {
        let patch = serde_json::json!({ "metadata": {
            "resourceVersion": held.config_map.metadata.resource_version,
            "labels": { RECORD_LABEL: RECORD_LABEL_VALUE },
        }});
        self.patch_record(held, patch).await
    }

    async fn patch_record(&self, held: &LoadedRecord, patch: serde_json::Value) -> Result<LoadedRecord, KeeperError> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let written =
            self.send(Priority::Collect, self.records.patch(held.name(), &params, &Patch::Merge(patch))).await;
        written
            .map(|map| self.held(map))
            .map_err(|source| KeeperError::WriteRecord { record: held.name().to_owned(), source })
    }

    /// Writes the status of a KeepPolicy.
    pub async fn report_policy(&self, name: &str, patch: serde_json::Value) -> Result<(), RequestFailure> {
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        self.send(Priority::Collect, self.policies.patch_status(name, &params, &patch)).await.map(drop)
    }

    /// Returns the current resourceVersion of the API server: later than every deleted node.
    pub async fn now(&self) -> Result<u64, KeeperError> {
        let newest = self.send(Priority::Restore, newest_version(&self.nodes)).await;
        let newest = newest.map_err(|source| KeeperError::List { what: "nodes", source })?;
        Ok(newest.unwrap_or_default())
    }

    /// Returns all records, page by page. A failure that may pass, or a compaction of the list,
    /// delays it. After a compaction, the rest is newer than the beginning.
    pub fn all_records(&self) -> impl Stream<Item = Result<Vec<LoadedRecord>, KeeperError>> {
        let params = ListParams::default().labels(&record_selector()).limit(PAGE_OF_RECORDS);
        let list = move |params: ListParams| async move { self.list_records(&params).await };
        pages(params, move |params| with_recovery(params, list, KeeperError::recovery))
    }

    /// Returns all nodes, page by page, like [`KeeperClient::all_records`].
    pub fn all_nodes(&self) -> impl Stream<Item = Result<Vec<selection::Node>, KeeperError>> {
        let list = move |params: ListParams| async move { self.list_nodes(&params).await };
        pages(ListParams::default().limit(PAGE), move |params| with_recovery(params, list, KeeperError::recovery))
    }

    /// Returns a page of records and the token of the next one.
    pub async fn list_records(&self, params: &ListParams) -> Result<(Vec<LoadedRecord>, Option<String>), KeeperError> {
        let page = self.send(Priority::Collect, self.records.list(params)).await;
        let page = page.map_err(|source| KeeperError::List { what: "records", source })?;
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
    pub async fn list_nodes(&self, params: &ListParams) -> Result<(Vec<selection::Node>, Option<String>), KeeperError> {
        let page = self.send(Priority::Collect, self.nodes.list(params)).await;
        let page = page.map_err(|source| KeeperError::List { what: "nodes", source })?;
        let next = next_token(&page.metadata);
        Ok((page.items.into_iter().map(Node::into_view).collect(), next))
    }

    /// Deletes a record, if it has not changed since it was read.
    pub async fn delete_record(&self, held: &LoadedRecord) -> Result<(), KeeperError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: held.config_map.metadata.resource_version.clone(),
                uid: held.config_map.metadata.uid.clone(),
            }),
            ..DeleteParams::default()
        };
        self.deletions.expect(held);
        let deleted = self.send(Priority::Collect, self.records.delete(held.name(), &params)).await;
        let deleted = deleted.map_err(|source| KeeperError::DeleteRecord { record: held.name().to_owned(), source });
        if deleted.as_ref().is_err_and(KeeperError::is_rejection) {
            self.deletions.take(held);
        }
        deleted.map(drop)
    }

    /// Returns whether this process deleted a record whose deletion was observed. Forgets it.
    pub fn take_deletion(&self, held: &LoadedRecord) -> bool {
        self.deletions.take(held)
    }

    /// Whether this process has deleted a record, and the watch has not delivered that yet.
    pub fn is_deleting(&self, name: &RecordName) -> bool {
        self.deletions.contains(&name.0)
    }

    /// Returns the names of the records that this process has deleted, as far as the watch has not
    /// delivered that yet.
    pub fn deleted_names(&self) -> Vec<String> {
        self.deletions.names()
    }

    async fn send<T>(
        &self,
        priority: Priority,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, RequestFailure> {
        send(&self.budget, priority, request).await
    }
}

/// Returns the ConfigMap to write. Data, labels and annotations of others are kept.
fn next_config_map(
    name: &str,
    held: Option<&LoadedRecord>,
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
    annotations.remove(MASS_ABSENCE);
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
