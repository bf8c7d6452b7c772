//! Conversion of workloads: of the controllers that are watched, and of those that are known only by
//! their pods.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::NodeSelector,
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};
use kube::core::Selector;
use perennial_core::placement::{
    STATE,
    node_labels::schemes::SchemeClasses,
    workload::{Kind, WorkloadView},
};
use serde::Deserialize as _;

use super::{
    super::{
        super::{
            objects::{Deployment, ReplicaSet, StatefulSet, Template, TemplateMeta, WorkloadStatus},
            settings::Configured,
        },
        key_of,
    },
    REVISION, WorkloadEntry, controller, is_apps, is_setting, names, relevant,
};

pub fn deployment(deployment: Deployment, configured: &Configured) -> WorkloadEntry {
    let Deployment { metadata, spec, status } = deployment;
    let replicas = spec.replicas.unwrap_or(1);
    let recreate = spec.strategy.kind.as_deref() == Some("Recreate");
    let limit = spec.strategy.rolling_update.and_then(|rolling| rolling.max_unavailable);
    let max_unavailable = if recreate { replicas } else { share(limit.as_ref(), replicas) };
    let size = Size { kind: Kind::Deployment, replicas, updated_target: replicas, max_unavailable };
    workload(metadata, size, &status, spec.template, configured).selecting(spec.selector)
}

pub fn stateful_set(set: StatefulSet, configured: &Configured) -> WorkloadEntry {
    let StatefulSet { metadata, spec, status } = set;
    let kind = Kind::StatefulSet { start: spec.ordinals.unwrap_or_default().start };
    let replicas = spec.replicas.unwrap_or(1);
    let strategy = spec.update_strategy;
    // Revisions below the partition, or with OnDelete, may last.
    let updated_target = match strategy.rolling_update {
        _ if strategy.kind.as_deref() == Some("OnDelete") => 0,
        Some(rolling) => replicas.saturating_sub(rolling.partition),
        None => replicas,
    };
    let size = Size { kind, replicas, updated_target, max_unavailable: 0 };
    workload(metadata, size, &status, spec.template, configured).selecting(spec.selector)
}

/// Converts a ReplicaSet that no Deployment controls: a bare one, or one of another controller. An
/// orphan of a Deployment has copies of the Deployment's annotations, which do not count.
pub fn replica_set(set: &ReplicaSet, configured: &Configured) -> Option<WorkloadEntry> {
    if controller(&set.metadata).is_some_and(|owner| is_apps(owner, &["Deployment"])) {
        return None;
    }
    let ReplicaSet { mut metadata, spec, status } = set.clone();
    if let Some(annotations) = metadata.annotations.as_mut().filter(|all| all.contains_key(REVISION)) {
        annotations.retain(|key, _| !is_setting(key, configured));
    }
    let replicas = spec.replicas.unwrap_or(1);
    let size = Size { kind: Kind::ReplicaSet, replicas, updated_target: replicas, max_unavailable: 0 };
    let status = WorkloadStatus {
        observed_generation: status.observed_generation,
        replicas: status.replicas,
        updated_replicas: status.replicas,
        available_replicas: status.available_replicas,
    };
    Some(workload(metadata, size, &status, spec.template, configured).selecting(spec.selector))
}

/// Kinds of controllers whose pods are never placed.
const UNMANAGED_KINDS: [&str; 3] = ["Job", "DaemonSet", "Node"];

/// Returns whether pods of a controller of this kind may be placed.
pub fn may_be_managed(owner: &OwnerReference) -> bool {
    !UNMANAGED_KINDS.contains(&owner.kind.as_str())
}

/// Builds the workload of a pod whose controller is of a kind that Perennial does not read: its
/// settings are the annotations that the pod has from its template. Of two pods the newer one
/// counts.
pub fn other_controller(pod: &ObjectMeta, namespace: &str, configured: &Configured) -> Option<WorkloadEntry> {
    let owner = controller(pod)?;
    let known = is_apps(owner, &["ReplicaSet", "StatefulSet"]) || !may_be_managed(owner);
    let annotations: BTreeMap<String, String> = pod
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| is_setting(key, configured))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if known || !annotations.keys().any(|key| key.ends_with("/spot-percentage") || key.ends_with("/enabled")) {
        return None;
    }
    let created = pod.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
    let metadata = ObjectMeta {
        namespace: Some(namespace.to_owned()),
        name: Some(owner.name.clone()),
        uid: Some(owner.uid.clone()),
        resource_version: Some(created.to_string()),
        annotations: Some(annotations),
        ..ObjectMeta::default()
    };
    let kind = Kind::Other { api_version: owner.api_version.as_str().into(), kind: owner.kind.as_str().into() };
    let size = Size { kind, replicas: 0, updated_target: 0, max_unavailable: 0 };
    let labels = TemplateMeta { labels: pod.labels.clone(), annotations: None };
    let template = Template { metadata: labels, ..Template::default() };
    Some(workload(metadata, size, &WorkloadStatus::default(), template, configured))
}

struct Size {
    kind: Kind,
    replicas: u32,
    updated_target: u32,
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
    // Annotations of the pod template count too. Those of the workload itself override them.
    let inherited = template.metadata.annotations.iter().flatten().filter(|(key, _)| is_setting(key, configured));
    let mut annotations: BTreeMap<String, String> =
        inherited.map(|(key, value)| (key.clone(), value.clone())).collect();
    annotations.extend(relevant(&metadata, configured));
    let classes = template_classes(&template, configured);
    let node_affinity = required_affinity(&template);
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
        updated_target: size.updated_target,
        max_unavailable: size.max_unavailable,
        template: classes.choice(configured.active),
        state: metadata.annotations.as_ref().and_then(|annotations| annotations.get(STATE)).cloned(),
    };
    WorkloadEntry {
        key: key_of(&view),
        view,
        classes,
        annotations,
        selector: Selector::default(),
        template_labels: template.metadata.labels.unwrap_or_default(),
        node_selector: template.spec.node_selector.unwrap_or_default(),
        node_affinity,
        tolerations: template.spec.tolerations.unwrap_or_default(),
    }
}

impl WorkloadEntry {
    fn selecting(self, selector: LabelSelector) -> Self {
        // The API server validates selectors. Pods are checked for their owner, so a wider
        // selection is only slower.
        Self { selector: selector.try_into().unwrap_or_default(), ..self }
    }
}

fn template_classes(template: &Template, configured: &Configured) -> SchemeClasses {
    let none = BTreeMap::new();
    let selector = template.spec.node_selector.as_ref().unwrap_or(&none);
    let affinity = template.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    configured.schemes.permitted(selector, affinity)
}

fn required_affinity(template: &Template) -> Option<NodeSelector> {
    let affinity = template.spec.affinity.as_ref()?.node_affinity.as_ref()?;
    NodeSelector::deserialize(affinity.get("requiredDuringSchedulingIgnoredDuringExecution")?).ok()
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
