//! Cache entries, and their conversion from the objects of the API.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
    util::intstr::IntOrString,
};
use kube::{Resource as _, core::Selector};
use perennial_core::placement::{
    CLASS, Class, DELETION_COST, FALLBACK, GATE, PREFERRED, SELECTION, SLOT, STATE,
    node_labels::{Choice, NodeLabels},
    spec::Strength,
    workload::{Kind, NodeView, PodView, WorkloadView},
};

use super::{
    super::{
        Key,
        objects::{Deployment, Pod, PodDisruptionBudget, PodSpec, ReplicaSet, StatefulSet, Template, WorkloadStatus},
        settings::Configured,
    },
    key, version,
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

/// Context in which an object is read.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    pub configured: &'a Configured,
    pub now: Timestamp,
    /// The object is part of a list, so its conditions may be old.
    pub listed: bool,
}

impl Reading<'_> {
    pub(super) fn labels(&self) -> &NodeLabels {
        &self.configured.settings.labels
    }
}

/// A Deployment or StatefulSet.
#[derive(Clone, Debug)]
pub struct WorkloadEntry {
    pub key: Key,
    pub view: WorkloadView,
    /// Annotations with a prefix of placement.
    pub annotations: BTreeMap<String, String>,
    pub selector: Selector,
    pub template_labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct SetEntry {
    pub uid: String,
    /// UID of the Deployment that controls it.
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
    pub namespace: String,
    pub node: Option<Arc<str>>,
    /// The pod has the label [`MANAGED`], so it is watched.
    pub labelled: bool,
    /// Strength with which its class was to be selected when it was gated.
    pub strength: Strength,
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

pub(super) fn names(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

pub(super) fn uid(meta: &ObjectMeta) -> String {
    meta.uid.clone().unwrap_or_default()
}

pub fn namespace_entry(meta: ObjectMeta, configured: &Configured) -> NamespaceEntry {
    let selected = configured.selects(meta.name.as_deref().unwrap_or_default(), &meta.labels.unwrap_or_default());
    NamespaceEntry { selected, annotations: relevant(meta.annotations, configured) }
}

fn relevant(annotations: Option<BTreeMap<String, String>>, configured: &Configured) -> BTreeMap<String, String> {
    let all = annotations.unwrap_or_default().into_iter();
    all.filter(|(key, _)| configured.reads(key) && key != STATE).collect()
}

pub fn deployment(deployment: Deployment, configured: &Configured) -> WorkloadEntry {
    let Deployment { metadata, spec, status } = deployment;
    let replicas = spec.replicas.unwrap_or(1);
    let recreate = spec.strategy.kind.as_deref() == Some("Recreate");
    let limit = spec.strategy.rolling_update.and_then(|rolling| rolling.max_unavailable);
    let max_unavailable = if recreate { replicas } else { share(limit.as_ref(), replicas) };
    let size = Size { kind: Kind::Deployment, replicas, max_unavailable };
    workload(metadata, size, &status, spec.template, configured).selecting(spec.selector)
}

pub fn stateful_set(set: StatefulSet, configured: &Configured) -> WorkloadEntry {
    let StatefulSet { metadata, spec, status } = set;
    let kind = Kind::StatefulSet { start: spec.ordinals.unwrap_or_default().start };
    let size = Size { kind, replicas: spec.replicas.unwrap_or(1), max_unavailable: 0 };
    workload(metadata, size, &status, spec.template, configured).selecting(spec.selector)
}

#[derive(Clone, Copy)]
struct Size {
    kind: Kind,
    replicas: u32,
    max_unavailable: u32,
}

fn workload(
    metadata: ObjectMeta,
    size: Size,
    status: &WorkloadStatus,
    template: Template,
    configured: &Configured,
) -> WorkloadEntry {
    let (namespace, name) = names(&metadata);
    let view = WorkloadView {
        kind: size.kind,
        namespace,
        name,
        resource_version: metadata.resource_version.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation,
        replicas: size.replicas,
        current: status.replicas,
        updated: status.updated_replicas,
        available: status.available_replicas,
        max_unavailable: size.max_unavailable,
        template: template_choice(&template, &configured.settings.labels),
        state: metadata.annotations.as_ref().and_then(|annotations| annotations.get(STATE)).cloned(),
    };
    WorkloadEntry {
        key: key(size.kind.as_str(), &view.namespace, &view.name),
        view,
        annotations: relevant(metadata.annotations, configured),
        selector: Selector::default(),
        template_labels: template.metadata.labels.unwrap_or_default(),
    }
}

impl WorkloadEntry {
    fn selecting(self, selector: LabelSelector) -> Self {
        // The API server validates selectors. Pods are checked for their owner, so a wider
        // selection is only slower.
        Self { selector: selector.try_into().unwrap_or_default(), ..self }
    }
}

fn template_choice(template: &Template, labels: &NodeLabels) -> Choice {
    let none = BTreeMap::new();
    let selector = template.spec.node_selector.as_ref().unwrap_or(&none);
    labels.choice(selector, template.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()))
}

/// Returns `maxUnavailable` as a number, rounded down; the default is 25%.
fn share(limit: Option<&IntOrString>, replicas: u32) -> u32 {
    match limit {
        Some(IntOrString::Int(count)) => u32::try_from(*count).unwrap_or_default(),
        Some(IntOrString::String(text)) => {
            let percent: u64 = text.trim_end_matches('%').parse().unwrap_or_default();
            u32::try_from(u64::from(replicas) * percent / 100).unwrap_or(replicas)
        }
        None => replicas / 4,
    }
}

pub(super) fn set_entry(set: &ReplicaSet) -> SetEntry {
    let meta = &set.metadata;
    let revision = meta.annotations.as_ref().and_then(|annotations| annotations.get(REVISION)?.parse().ok());
    let owner = controller(meta).filter(|owner| owner.kind == "Deployment");
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

pub(super) fn node_view(node: &Node, labels: &NodeLabels) -> NodeView {
    let empty = BTreeMap::new();
    let leaving = node.meta().deletion_timestamp.is_some()
        || node.unschedulable()
        || node.taints().iter().any(|taint| LEAVING.contains(&taint.key.as_str()));
    NodeView { class: labels.class_of_node(node.meta().labels.as_ref().unwrap_or(&empty)), leaving }
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
        choice: reading.labels().choice(spec.node_selector.as_ref().unwrap_or(&empty), node_affinity.as_ref()),
        class: annotation(CLASS).and_then(|text| Class::parse(text)),
        slot: annotation(SLOT).and_then(|text| text.parse().ok()),
        fallback: annotation(FALLBACK).is_some_and(|text| text == "true"),
        cost: annotation(DELETION_COST).cloned(),
        node: None,
        scheduled: changed.filter(|_| scheduling.is_some_and(|condition| condition.status == "True")),
        unschedulable: stuck.then(|| before.and_then(|before| before.view.unschedulable).unwrap_or(first_seen)),
        node_affinity: node_affinity.filter(|_| gated),
        ordinal: owner
            .filter(|owner| owner.kind == "StatefulSet")
            .and_then(|_| metadata.name.as_deref()?.rsplit_once('-')?.1.parse().ok()),
        expected: false,
    };
    let labelled = metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(MANAGED));
    let node = spec.node_name.filter(|name| !name.is_empty()).map(Arc::from);
    let preferred = annotation(SELECTION).is_some_and(|text| text == PREFERRED);
    let strength = if preferred { Strength::Preferred } else { Strength::Required };
    PodEntry { view, namespace: metadata.namespace.unwrap_or_default(), node, labelled, strength }
}
