//! The objects that placement reads, reduced to the fields that it uses. Other fields, above all
//! managed fields and pod templates, are skipped by the parser and never stored.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{
    ClusterResourceScope, NamespaceResourceScope,
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference, Time},
        util::intstr::IntOrString,
    },
};
use perennial_core::keeper::keys::Taint;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

macro_rules! trimmed {
    ($name:ident, $scope:ty, $group:literal, $plural:literal) => {
        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = $scope;

            fn kind((): &()) -> Cow<'_, str> {
                stringify!($name).into()
            }
            fn group((): &()) -> Cow<'_, str> {
                $group.into()
            }
            fn version((): &()) -> Cow<'_, str> {
                "v1".into()
            }
            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }
            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }

        /// Required by kube and never called: only patches are sent.
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("a reduced object is never written"))
            }
        }
    };
}

trimmed!(Deployment, NamespaceResourceScope, "apps", "deployments");
trimmed!(ReplicaSet, NamespaceResourceScope, "apps", "replicasets");
trimmed!(StatefulSet, NamespaceResourceScope, "apps", "statefulsets");
trimmed!(Pod, NamespaceResourceScope, "", "pods");
trimmed!(PodDisruptionBudget, NamespaceResourceScope, "policy", "poddisruptionbudgets");
trimmed!(Namespace, ClusterResourceScope, "", "namespaces");

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Deployment {
    #[serde(deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    pub spec: DeploymentSpec,
    pub status: WorkloadStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct DeploymentSpec {
    pub replicas: Option<u32>,
    pub selector: LabelSelector,
    pub strategy: Strategy,
    pub template: Template,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Strategy {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub rolling_update: Option<RollingUpdate>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RollingUpdate {
    pub max_unavailable: Option<IntOrString>,
}

/// Status fields of both Deployments and StatefulSets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WorkloadStatus {
    pub observed_generation: i64,
    pub replicas: u32,
    pub updated_replicas: u32,
    pub available_replicas: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Template {
    pub metadata: TemplateMeta,
    pub spec: TemplateSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct TemplateMeta {
    pub labels: Option<BTreeMap<String, String>>,
    pub annotations: Option<BTreeMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TemplateSpec {
    pub node_selector: Option<BTreeMap<String, String>>,
    pub tolerations: Option<Vec<Toleration>>,
    pub affinity: Option<Affinity>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Toleration {
    pub key: Option<String>,
    pub operator: Option<String>,
    pub value: Option<String>,
    pub effect: Option<String>,
}

impl Toleration {
    /// Returns whether a pod with this toleration may run on a node with the taint. Operators that
    /// are not known here tolerate nothing.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.as_deref().unwrap_or_default();
        let key = self.key.as_deref().unwrap_or_default();
        let value = match self.operator.as_deref() {
            Some("Exists") => true,
            Some("Equal") | None => self.value.as_deref().unwrap_or_default() == taint.value,
            Some(_) => false,
        };
        let any_key = key.is_empty() && self.operator.as_deref() == Some("Exists");
        (effect.is_empty() || effect == taint.effect) && (any_key || key == taint.key && value)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Affinity {
    pub node_affinity: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct StatefulSet {
    #[serde(deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    pub spec: StatefulSetSpec,
    pub status: WorkloadStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct StatefulSetSpec {
    pub replicas: Option<u32>,
    pub selector: LabelSelector,
    pub ordinals: Option<Ordinals>,
    pub template: Template,
    pub update_strategy: UpdateStrategy,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpdateStrategy {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub rolling_update: Option<PartitionedUpdate>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PartitionedUpdate {
    pub partition: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Ordinals {
    pub start: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicaSet {
    #[serde(deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    pub spec: ReplicaSetSpec,
    pub status: ReplicaSetStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReplicaSetSpec {
    pub replicas: Option<u32>,
    pub selector: LabelSelector,
    pub template: Template,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReplicaSetStatus {
    pub observed_generation: i64,
    pub replicas: u32,
    pub available_replicas: u32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    #[serde(deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    pub spec: PodSpec,
    pub status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    pub node_name: Option<String>,
    pub node_selector: Option<BTreeMap<String, String>>,
    pub affinity: Option<Affinity>,
    pub scheduling_gates: Option<Vec<SchedulingGate>>,
    pub volumes: Option<Vec<PodVolume>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodVolume {
    pub persistent_volume_claim: Option<VolumeClaim>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VolumeClaim {
    pub claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SchedulingGate {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodStatus {
    pub phase: Option<String>,
    pub conditions: Option<Vec<PodCondition>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodDisruptionBudget {
    #[serde(deserialize_with = "meta")]
    pub metadata: ObjectMeta,
    pub spec: PdbSpec,
    pub status: PdbStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PdbSpec {
    pub selector: Option<LabelSelector>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PdbStatus {
    pub disruptions_allowed: i32,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Namespace {
    #[serde(deserialize_with = "meta")]
    pub metadata: ObjectMeta,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectMetadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

fn meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let meta = ObjectMetadata::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: meta.name,
        namespace: meta.namespace,
        uid: meta.uid,
        resource_version: meta.resource_version,
        generation: meta.generation,
        labels: meta.labels,
        annotations: meta.annotations,
        owner_references: meta.owner_references,
        creation_timestamp: meta.creation_timestamp,
        deletion_timestamp: meta.deletion_timestamp,
        ..ObjectMeta::default()
    })
}
