//! The one place where the keeper reads and writes: nodes and records, each write conditional, each request with a
//! deadline and within the budget.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions},
};
use perennial_core::keeper::{
    collect::ABSENT_SINCE,
    identity::RecordName,
    mark::MARK,
    node_patch::{node_patch, ungate_patch},
    plan::Restore,
    record::{Fault, RECORD_KEY, RECORD_LABEL, RECORD_LABEL_VALUE, RECOVERED_KEY, Record, TooLarge},
    selection,
    signature::signature_key,
    stored_record::Stored,
};

use super::{
    Priority,
    node::Node,
    policies::Resource,
    record_keys::{CannotSign, KeysError, Signatures},
};
use crate::runtime::{
    budget::Budget,
    error_category::Category,
    request::{FIELD_MANAGER, Failure, ask},
};

/// A record is a KiB or two, but anybody who may write ConfigMaps can make it a MiB: a page of those has to fit into memory.
pub const PAGE_OF_RECORDS: u32 = 50;

/// A record's ConfigMap as it was read: what the next write is conditional on.
#[derive(Clone, Debug)]
pub struct Held {
    pub stored: Stored,
    config_map: ConfigMap,
    /// Some of it is signed with this key, which is not known: the keys may have changed.
    unknown_key: Option<String>,
    /// Keys of its data under which there is a good record that the key which signs now has not signed.
    unsigned: Vec<&'static str>,
}

impl Held {
    /// Reads a ConfigMap that holds the record of this name.
    pub fn new(config_map: ConfigMap, signatures: &Signatures) -> Self {
        let empty = BTreeMap::new();
        let data = config_map.data.as_ref().unwrap_or(&empty);
        let name = config_map.metadata.name.clone().unwrap_or_default();
        let uid = config_map.metadata.uid.as_deref().unwrap_or_default();
        let version = (uid, resource_version(&config_map));
        let signature = |key: &str| data.get(signature_key(key)).map(String::as_str);
        let (unknown_key, unsigned) = (RefCell::new(None), RefCell::new(Vec::new()));
        let stored = Stored::verified(
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
                // Only what is believed anyway may be signed: a signature makes it believed for good.
                if signatures.is_behind(signature(key)) {
                    unsigned.borrow_mut().push(key);
                }
                Ok(())
            },
        );
        let (unsigned, unknown_key) = (unsigned.into_inner(), unknown_key.into_inner());
        let mut held = Self { stored, config_map, unknown_key, unsigned };
        held.forget_another_order();
        held
    }

    /// A record is written after the state of the node that it holds. One that says otherwise was carried here from another
    /// cluster, as it was: the numbers of that cluster's order mean nothing here, and no state of a node is older than it.
    fn forget_another_order(&mut self) {
        let written_at = self.resource_version();
        if let Stored::Good(record) = &mut self.stored
            && written_at > 0
            && record.node.resource_version > written_at
        {
            record.node.resource_version = 0;
        }
    }

    pub fn name(&self) -> &str {
        self.config_map.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn resource_version(&self) -> u64 {
        resource_version(&self.config_map)
    }

    /// The node that the record is for, as far as the ConfigMap says.
    pub fn node_name(&self) -> &str {
        if let Stored::Good(record) = &self.stored {
            return &record.node.name;
        }
        let named = self.annotations().get(NODE_ANNOTATION).map(String::as_str);
        named.or_else(|| self.name().strip_prefix("node-")).unwrap_or_default()
    }

    /// It says that it is a record. Others' ConfigMaps may have any name.
    pub fn is_labelled(&self) -> bool {
        let labels = self.config_map.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get(RECORD_LABEL)).is_some_and(|value| value == RECORD_LABEL_VALUE)
    }

    /// It holds a good record that the key which signs now has not signed.
    pub fn is_unsigned(&self) -> bool {
        !self.unsigned.is_empty()
    }

    /// An audit wrote down that its node is absent.
    pub fn is_noted_absent(&self) -> bool {
        self.annotations().contains_key(ABSENT_SINCE)
    }

    pub fn annotations(&self) -> &BTreeMap<String, String> {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        self.config_map.metadata.annotations.as_ref().unwrap_or(&NONE)
    }
}

/// What a request failed at.
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
    #[error("record {record} was not written")]
    TooLarge { record: String, source: TooLarge },
    #[error("record {record} was not signed, and so not written")]
    Sign { record: String, source: CannotSign },
    #[error("it is not known whether record {record} can be trusted")]
    Keys { record: String, source: KeysError },
}

impl Error {
    /// The request that failed; none where it was not even sent.
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
            // The keys may be readable the next time.
            Self::Keys { .. } => Category::Server,
            _ => self.failure().map_or(Category::Refused, Failure::category),
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        self.failure()?.retry_after()
    }

    /// The permission that is missing, where that is what failed.
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
    policies: Api<Resource>,
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

    /// Gives a node what the plan says, if it is still the node that was decided on.
    pub async fn patch_node(&self, node: &selection::Node, restore: &Restore) -> Result<selection::Node, Error> {
        self.patch(node, node_patch(node, restore)).await
    }

    /// Changes kept keys of a node at a person's word. Its mark stays: to us it is a change like any other.
    pub async fn change_node(&self, node: &selection::Node, change: &Restore) -> Result<selection::Node, Error> {
        let mut patch = node_patch(node, change);
        if let Some(annotations) = patch.pointer_mut("/metadata/annotations").and_then(serde_json::Value::as_object_mut)
        {
            annotations.remove(MARK);
        }
        self.patch(node, patch).await
    }

    /// Takes our taint from a node, if it is still the node that was decided on.
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
        // Before a record is not believed for the key that signed it, that key is looked for.
        if let Some(key) = &held.unknown_key {
            let looked = self.signatures.look_for(key).await;
            looked.map_err(|source| Error::Keys { record: name.0.clone(), source })?;
            return Ok(Some(self.held(held.config_map)));
        }
        Ok(Some(held))
    }

    /// Writes a record over the one that was read, or as the first. A record that somebody else wrote meanwhile is a
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

    /// Beside an older record that was put back, what is written next is newer than all that was ever seen there.
    fn after_all_seen(&self, held: Option<&Held>, record: &Record) -> Option<Record> {
        let uid = held?.config_map.metadata.uid.as_deref()?;
        let seen = self.signatures.newest_sequence(&record.name().0, uid);
        (record.sequence <= seen).then(|| Record { sequence: seen + 1, ..record.clone() })
    }

    /// Signs the good records in a ConfigMap, as they are, with the key that signs now.
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

    /// Sets or removes annotations of a record's ConfigMap, if it is still the one that was read.
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

    /// Puts our label back on a record's ConfigMap, if it is still the one that was read.
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

    /// The API server's resourceVersion now: later than every node that is gone by now.
    pub async fn now(&self) -> Result<u64, Error> {
        let page = self.ask(Priority::Restore, self.nodes.list_metadata(&ListParams::default().limit(1))).await;
        let page = page.map_err(|source| Error::List { what: "nodes", source })?;
        Ok(page.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default())
    }

    /// One page of records, and where the next begins.
    pub async fn list_records(&self, params: &ListParams) -> Result<(Vec<Held>, Option<String>), Error> {
        let page = self.ask(Priority::Collect, self.records.list(params)).await;
        let page = page.map_err(|source| Error::List { what: "records", source })?;
        let mut records = Vec::with_capacity(page.items.len());
        for found in page.items {
            let held = self.held(found);
            // Where it cannot be looked for, the record is a bad one for now: nothing is done about those.
            let looked = match &held.unknown_key {
                Some(key) => self.signatures.look_for(key).await.is_ok(),
                None => false,
            };
            records.push(if looked { self.held(held.config_map) } else { held });
        }
        Ok((records, page.metadata.continue_.filter(|token| !token.is_empty())))
    }

    /// One page of nodes, and where the next begins.
    pub async fn list_nodes(&self, params: &ListParams) -> Result<(Vec<selection::Node>, Option<String>), Error> {
        let page = self.ask(Priority::Collect, self.nodes.list(params)).await;
        let page = page.map_err(|source| Error::List { what: "nodes", source })?;
        Ok((
            page.items.into_iter().map(Node::into_view).collect(),
            page.metadata.continue_.filter(|token| !token.is_empty()),
        ))
    }

    /// Deletes a record, if it is still the one that was read.
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

/// The ConfigMap to write: everything that was there and is not ours stays.
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
    // What is written comes from a node that was seen.
    annotations.remove(ABSENT_SINCE);
    let data = next.data.get_or_insert_default();
    if key == RECORD_KEY {
        data.remove(RECOVERED_KEY);
        data.remove(signature_key(RECOVERED_KEY));
    }
    data.insert(key.to_owned(), text);
    // A signature of what was there before would be a wrong one.
    data.remove(signature_key(key));
    data.extend(signature.map(|signature| (signature_key(key).to_owned(), signature)));
    next
}

/// The node that a record was last written from, for people who look at ConfigMaps.
pub const NODE_ANNOTATION: &str = "perennial.dev/node";

/// The resourceVersion of a ConfigMap as a number; 0 where it has none that is one.
pub fn resource_version(config_map: &ConfigMap) -> u64 {
    config_map.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or_default()
}
