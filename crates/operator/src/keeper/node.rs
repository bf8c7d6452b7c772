//! The wire format of a Node, reduced to the fields that Perennial reads. Other fields are skipped
//! while parsing; of managedFields only the managers of labels are read.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    ClusterResourceScope,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use perennial_core::keeper::{keys::Taint, machine::Machine, selection, writers::Writers};
use serde::{Deserialize, Serialize};

/// A Node with the fields that Perennial reads.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Wire")]
pub struct Node {
    metadata: ObjectMeta,
    taints: Vec<Taint>,
    unschedulable: bool,
    machine: Machine,
    writers: Writers,
    ready: Option<bool>,
}

impl Node {
    /// Returns its condition Ready. `None` if it is unknown.
    pub fn ready(&self) -> Option<bool> {
        self.ready
    }

    pub fn taints(&self) -> &[Taint] {
        &self.taints
    }

    pub fn unschedulable(&self) -> bool {
        self.unschedulable
    }

    /// Returns the node as [`Case`](perennial_core::keeper::case::Case) holds it.
    pub fn into_view(self) -> selection::Node {
        let resource_version = self.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
        selection::Node {
            name: self.metadata.name.unwrap_or_default(),
            uid: self.metadata.uid.unwrap_or_default(),
            resource_version: resource_version.unwrap_or_default(),
            labels: self.metadata.labels.unwrap_or_default(),
            annotations: self.metadata.annotations.unwrap_or_default(),
            taints: self.taints,
            unschedulable: self.unschedulable,
            machine: self.machine,
            created: self.metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
            terminating: self.metadata.deletion_timestamp.is_some(),
            writers: self.writers,
        }
    }
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default)]
    metadata: NodeMeta,
    #[serde(default)]
    spec: NodeSpec,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeMeta {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    managed_fields: Writers,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeStatus {
    node_info: Option<NodeInfo>,
    conditions: Option<Vec<NodeCondition>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl NodeCondition {
    fn is_true(&self) -> Option<bool> {
        match self.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeInfo {
    #[serde(rename = "systemUUID")]
    system_uuid: String,
    #[serde(rename = "machineID")]
    machine_id: String,
}

impl From<Wire> for Node {
    fn from(wire: Wire) -> Self {
        let info = wire.status.node_info.unwrap_or_default();
        let conditions = wire.status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|condition| condition.kind == "Ready").and_then(NodeCondition::is_true);
        Self {
            metadata: ObjectMeta {
                name: wire.metadata.name,
                uid: wire.metadata.uid,
                resource_version: wire.metadata.resource_version,
                labels: wire.metadata.labels,
                annotations: wire.metadata.annotations,
                creation_timestamp: wire.metadata.creation_timestamp,
                deletion_timestamp: wire.metadata.deletion_timestamp,
                ..ObjectMeta::default()
            },
            writers: wire.metadata.managed_fields,
            taints: wire.spec.taints.unwrap_or_default(),
            unschedulable: wire.spec.unschedulable.unwrap_or_default(),
            machine: Machine {
                provider_id: wire.spec.provider_id.unwrap_or_default(),
                system_uuid: info.system_uuid,
                machine_id: info.machine_id,
            },
            ready,
        }
    }
}

/// Required by kube, and never used: only patches are sent.
impl Serialize for Node {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("a trimmed Node is never written"))
    }
}

impl kube::Resource for Node {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }
    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }
    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }
    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
