//! Cache entries, and their conversion from the objects of the API.

mod workloads;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::NodeSelector,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource as _, core::Selector};
use perennial_core::{
    keeper::keys::Taint,
    placement::{
        CLASS, Class, DELETION_COST, FALLBACK, GATE, PREFERRED, REFUSED, SELECTION, SLOT, STATE,
        node_labels::{Choice, schemes::SchemeClasses},
        spec::Strength,
        workload::{NodeView, PodView, WorkloadView},
    },
};

pub use self::workloads::{deployment, may_be_managed, other_controller, replica_set, stateful_set};
use super::{
    super::{
        WorkloadKey,
        objects::{Pod, PodDisruptionBudget, PodSpec, ReplicaSet, Toleration},
        settings::Configured,
    },
    nodes::{NodeLabelling, UsableNode},
    version,
};
use crate::keeper::node::Node;

/// Label of the pods of managed workloads. Only pods with this label are watched.
pub const MANAGED: &str = "perennial.dev/managed";

const REVISION: &str = "deployment.kubernetes.io/revision";
/// Taints of nodes that are about to be removed.
const LEAVING: &[&str] = &[
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "karpenter.sh/interruption",
    "ToBeDeletedByClusterAutoscaler",
    "aws-node-termination-handler/spot-itn",
    "cloud.google.com/impending-node-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
];

/// Returns whether an annotation forbids the eviction of its pod. Karpenter also accepts a duration.
fn forbids_eviction(key: &str, value: &str) -> bool {
    match key {
        "karpenter.sh/do-not-disrupt" => value != "false",
        "cluster-autoscaler.kubernetes.io/safe-to-evict" => value == "false",
        _ => false,
    }
}

/// Context in which an object is read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub configured: &'a Configured,
    pub now: Timestamp,
    /// The object is part of a list, so its conditions may be old.
    pub listed: bool,
}

/// A controller of pods.
#[derive(Clone, Debug)]
pub struct WorkloadEntry {
    pub key: WorkloadKey,
    pub view: WorkloadView,
    /// Classes that the pod template allows, by label scheme.
    pub classes: SchemeClasses,
    /// Annotations with a prefix of placement.
    pub annotations: BTreeMap<String, String>,
    pub selector: Selector,
    pub template_labels: BTreeMap<String, String>,
    /// `nodeSelector`, required node affinity and tolerations of the pod template.
    pub node_selector: BTreeMap<String, String>,
    pub node_affinity: Option<NodeSelector>,
    pub tolerations: Vec<Toleration>,
}

#[derive(Clone, Debug)]
pub struct SetEntry {
    pub uid: String,
    /// UID of the Deployment that controls it. Without one, the ReplicaSet is a workload itself.
    pub owner: Option<String>,
    pub owner_name: Option<String>,
    pub resource_version: u64,
    pub revision: u64,
    pub replicas: u32,
    pub observed: bool,
}

#[derive(Clone, Debug)]
pub struct PodEntry {
    /// Without the state of its node, which is looked up on use.
    pub view: PodView,
    /// Classes that its constraints allow, by label scheme.
    pub classes: SchemeClasses,
    pub namespace: String,
    pub node: Option<Arc<str>>,
    /// The pod has the label [`MANAGED`], so it is watched.
    pub labelled: bool,
    /// Strength with which its class was to be selected when it was gated.
    pub strength: Strength,
    /// Names of its PersistentVolumeClaims. Empty for pods of other controllers than StatefulSets.
    pub claims: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct PdbEntry {
    /// None selects no pods.
    pub selector: Option<Selector>,
    pub allowed: u32,
}

#[derive(Clone, Debug, Default)]
pub struct NamespaceEntry {
    /// Workloads of the namespace may be managed.
    pub selected: bool,
    pub annotations: BTreeMap<String, String>,
}

/// Returns the owner that controls an object.
pub fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Returns whether an owner is one of these kinds of the group `apps`. Other groups have kinds of
/// the same names.
pub fn is_apps(owner: &OwnerReference, kinds: &[&str]) -> bool {
    owner.api_version.starts_with("apps/") && kinds.contains(&owner.kind.as_str())
}

pub(super) fn names(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

pub(super) fn uid(meta: &ObjectMeta) -> String {
    meta.uid.clone().unwrap_or_default()
}

pub fn namespace_entry(meta: &ObjectMeta, configured: &Configured) -> NamespaceEntry {
    let empty = BTreeMap::new();
    let labels = meta.labels.as_ref().unwrap_or(&empty);
    let selected = configured.selects(meta.name.as_deref().unwrap_or_default(), labels);
    NamespaceEntry { selected, annotations: relevant(meta, configured) }
}

/// Returns whether an annotation is a setting of placement.
fn is_setting(key: &str, configured: &Configured) -> bool {
    configured.reads(key) && key != STATE
}

/// Returns the annotations with a prefix of placement. A label `enabled` counts as an annotation.
fn relevant(meta: &ObjectMeta, configured: &Configured) -> BTreeMap<String, String> {
    let own = |key: &String| is_setting(key, configured);
    let labels = meta.labels.iter().flatten().filter(|(key, _)| own(key) && key.ends_with("/enabled"));
    let annotations = meta.annotations.iter().flatten().filter(|(key, _)| own(key));
    labels.chain(annotations).map(|(key, value)| (key.clone(), value.clone())).collect()
}

pub(super) fn set_entry(set: &ReplicaSet) -> SetEntry {
    let meta = &set.metadata;
    let revision = meta.annotations.as_ref().and_then(|annotations| annotations.get(REVISION)?.parse().ok());
    let owner = controller(meta).filter(|owner| is_apps(owner, &["Deployment"]));
    SetEntry {
        uid: uid(meta),
        owner: owner.map(|owner| owner.uid.clone()),
        owner_name: owner.map(|owner| owner.name.clone()),
        resource_version: version(meta.resource_version.as_deref().unwrap_or_default()),
        revision: revision.unwrap_or_default(),
        replicas: set.spec.replicas.unwrap_or(1),
        observed: set.status.observed_generation >= meta.generation.unwrap_or_default(),
    }
}

pub(super) fn pdb_entry(pdb: PodDisruptionBudget) -> PdbEntry {
    let allowed = u32::try_from(pdb.status.disruptions_allowed).unwrap_or_default();
    PdbEntry { selector: pdb.spec.selector.and_then(|selector| selector.try_into().ok()), allowed }
}

/// Returns the state of a node, the classes that its labels mean, and the label schemes that they
/// indicate.
pub(super) fn node_view(node: &Node, configured: &Configured) -> (NodeView, NodeLabelling) {
    let empty = BTreeMap::new();
    let labels = node.meta().labels.as_ref().unwrap_or(&empty);
    let schemes = &configured.schemes;
    let labelling = NodeLabelling { classes: schemes.classes_of_node(labels), schemes: schemes.detect(labels) };
    let leaving = node.meta().deletion_timestamp.is_some()
        || node.unschedulable()
        || node.taints().iter().any(|taint| LEAVING.contains(&taint.key.as_str()));
    (NodeView { class: labelling.classes.class(configured.active), leaving }, labelling)
}

/// Returns the node as evidence of capacity, if it accepts pods. The API server taints nodes that
/// are not Ready.
pub(super) fn usable_node(node: &Node, view: NodeView, configured: &Configured) -> Option<UsableNode> {
    let keeps_away = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    let taints: Vec<Taint> = node.taints().iter().filter(keeps_away).cloned().collect();
    if view.leaving || taints.iter().any(|taint| taint.key.starts_with("node.kubernetes.io/")) {
        return None;
    }
    let spot_taints = taints.iter().filter(|taint| !configured.tolerates_spot(taint)).cloned().collect();
    let name = node.meta().name.clone().unwrap_or_default();
    Some(UsableNode { name, labels: node.meta().labels.clone().unwrap_or_default(), spot_taints, taints })
}

pub(super) fn is_gated(spec: &PodSpec) -> bool {
    spec.scheduling_gates.iter().flatten().any(|gate| gate.name == GATE)
}

/// Converts a pod. `before` is its former entry.
pub fn pod_entry(pod: Pod, before: Option<&PodEntry>, reading: &Reading<'_>) -> PodEntry {
    let Pod { metadata, spec, status } = pod;
    let owner = controller(&metadata);
    let annotation = |name: &str| metadata.annotations.as_ref().and_then(|annotations| annotations.get(name));
    let condition = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.kind == kind);
    let empty = BTreeMap::new();
    let gated = is_gated(&spec);
    let node_affinity = spec.affinity.and_then(|affinity| affinity.node_affinity);
    let created = metadata.creation_timestamp.as_ref().map_or(reading.now, |time| time.0);
    let scheduling = condition("PodScheduled");
    let changed = scheduling.and_then(|condition| condition.last_transition_time.as_ref()).map(|time| time.0);
    let stuck = scheduling.is_some_and(|c| c.status == "False" && c.reason.as_deref() == Some("Unschedulable"));
    // From gated to unschedulable the condition stays False and its transition time does not
    // change, so the time at which the pod became unschedulable is the time at which it was first
    // seen.
    let first_seen = if reading.listed { changed.unwrap_or(created).max(created) } else { reading.now };
    let is_ordinal = owner.is_some_and(|owner| is_apps(owner, &["StatefulSet"]));
    let claims = spec.volumes.into_iter().flatten().filter_map(|volume| volume.persistent_volume_claim);
    let claims: Vec<String> = claims.filter(|_| is_ordinal).map(|claim| claim.claim_name).collect();
    // The texts of the scheduler differ between versions, and all of them contain the word.
    let verdict = scheduling.and_then(|condition| condition.message.as_deref()).unwrap_or_default();
    let volume_verdict = stuck && verdict.to_ascii_lowercase().contains("volume");
    let classes =
        reading.configured.schemes.permitted(spec.node_selector.as_ref().unwrap_or(&empty), node_affinity.as_ref());
    let view = PodView {
        name: metadata.name.clone().unwrap_or_default(),
        uid: uid(&metadata),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        owner: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
        created,
        deleting: metadata.deletion_timestamp.is_some(),
        finished: matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")),
        gated,
        ready: condition("Ready").is_some_and(|condition| condition.status == "True"),
        choice: classes.choice(reading.configured.active),
        class: annotation(CLASS).and_then(|text| Class::parse(text)),
        slot: annotation(SLOT).and_then(|text| text.parse().ok()),
        fallback: annotation(FALLBACK).is_some_and(|text| text == "true"),
        cost: annotation(DELETION_COST).cloned(),
        node: None,
        scheduled: changed.filter(|_| scheduling.is_some_and(|condition| condition.status == "True")),
        unschedulable: stuck.then(|| before.and_then(|before| before.view.unschedulable).unwrap_or(first_seen)),
        node_affinity: node_affinity.filter(|_| gated),
        ordinal: metadata.name.as_deref().filter(|_| is_ordinal).and_then(|name| name.rsplit_once('-')?.1.parse().ok()),
        expected: false,
        refused: annotation(REFUSED).and_then(|text| Class::parse(text)),
        volume_verdict,
        volume: claims.is_empty().then_some(Choice::Any),
        protected: metadata.annotations.iter().flatten().any(|(key, value)| forbids_eviction(key, value)),
    };
    let labelled = metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED));
    let node = spec.node_name.filter(|name| !name.is_empty()).map(Arc::from);
    let preferred = annotation(SELECTION).is_some_and(|text| text == PREFERRED);
    let strength = if preferred { Strength::Preferred } else { Strength::Required };
    PodEntry { view, classes, namespace: metadata.namespace.unwrap_or_default(), node, labelled, strength, claims }
}
