//! What the watches say, taken into memory, and which workloads are to be looked at for it.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::ObjectMeta, util::intstr::IntOrString};
use kube::{Resource as _, runtime::watcher::Event};
use perennial_core::placement::{
    CLASS, Class, DELETION_COST, FALLBACK, GATE, PREFERRED, SELECTION, SLOT, STATE,
    labels::{Choice, NodeLabels},
    spec::Strength,
    view::{Kind, NodeView, PodView, WorkloadView},
};

use super::Key;
use super::{
    index::{Index, NamespaceEntry, PdbEntry, PodEntry, Reading, SetEntry, Workload, controller, key, version},
    objects::{
        Deployment, Namespace, Pod, PodDisruptionBudget, PodSpec, ReplicaSet, StatefulSet, Template, WorkloadStatus,
    },
    settings::Configured,
};
use crate::keeper::node::Node;

/// On the pods of managed workloads: they alone are watched.
pub const MANAGED: &str = "perennial.dev/managed";

const REVISION: &str = "deployment.kubernetes.io/revision";
/// Taints of nodes that are about to go.
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

/// What to look at next.
pub type Asks = Vec<Key>;

/// The caches, and which of them are complete.
#[derive(Debug, Default)]
pub struct View {
    pub index: Index,
    listings: [Listing; 7],
}

#[derive(Debug, Default)]
struct Listing {
    seen: Option<HashSet<String>>,
    done: bool,
}

#[derive(Clone, Copy)]
enum What {
    Namespaces,
    Deployments,
    StatefulSets,
    ReplicaSets,
    Pods,
    Pdbs,
    Nodes,
}

/// How long a pod that waits for its place may wait for others that come with it; so too a ReplicaSet whose pods are about to come.
const TOGETHER: Duration = Duration::from_millis(4);
/// How long anything else may wait. In a burst each pod changes several times, and so do the counts of its owners: one look
/// at the workload is enough for many of these.
const AT_LEISURE: Duration = Duration::from_millis(200);

/// A kind of objects that the view takes in.
pub trait Observed: Sized {
    /// How long its workload may wait for a look at what changed.
    fn patience(&self) -> Duration {
        AT_LEISURE
    }

    fn put(self, view: &mut View, reading: &Reading<'_>) -> Asks;
    fn remove(self, view: &mut View) -> Asks;
    fn identity(&self) -> String;
    fn begin(view: &mut View);
    fn seen(view: &mut View, identity: String);
    fn end(view: &mut View);
}

impl View {
    /// Every list has been read: what is not here is not there.
    pub fn is_synced(&self) -> bool {
        self.listings.iter().all(|listing| listing.done)
    }

    pub fn on<K: Observed>(&mut self, event: Event<K>, reading: Reading<'_>) -> Asks {
        match event {
            Event::Init => {
                K::begin(self);
                Asks::new()
            }
            Event::InitApply(object) => {
                K::seen(self, object.identity());
                drop(object.put(self, &Reading { listed: true, ..reading }));
                Asks::new()
            }
            Event::InitDone => {
                K::end(self);
                self.everything()
            }
            Event::Apply(object) => {
                let asks = object.put(self, &reading);
                if self.is_synced() { asks } else { Asks::new() }
            }
            Event::Delete(object) => {
                let asks = object.remove(self);
                if self.is_synced() { asks } else { Asks::new() }
            }
        }
    }

    /// Every workload, once all is known.
    pub fn everything(&self) -> Asks {
        if !self.is_synced() {
            return Asks::new();
        }
        self.index.workloads().map(|workload| Arc::clone(&workload.key)).collect()
    }

    fn ask_owner(&self, uid: &str) -> Asks {
        self.index.key_of_owner(uid).cloned().into_iter().collect()
    }

    fn start(&mut self, what: What) {
        self.listings[what as usize].seen = Some(HashSet::new());
    }

    fn note(&mut self, what: What, identity: String) {
        if let Some(seen) = &mut self.listings[what as usize].seen {
            seen.insert(identity);
        }
    }

    fn finish(&mut self, what: What) -> HashSet<String> {
        let listing = &mut self.listings[what as usize];
        listing.done = true;
        listing.seen.take().unwrap_or_default()
    }
}

macro_rules! listed {
    ($what:ident, |$index:ident, $seen:ident| $retain:expr) => {
        fn begin(view: &mut View) {
            view.start(What::$what);
        }

        fn seen(view: &mut View, identity: String) {
            view.note(What::$what, identity);
        }

        fn end(view: &mut View) {
            let $seen = view.finish(What::$what);
            let $index = &mut view.index;
            $retain;
        }
    };
}

impl Observed for Namespace {
    fn put(self, view: &mut View, reading: &Reading<'_>) -> Asks {
        let name = self.metadata.name.clone().unwrap_or_default();
        view.index.put_namespace(&name, namespace_entry(self.metadata, reading.configured));
        view.index.keys_in(&name)
    }

    fn remove(self, view: &mut View) -> Asks {
        view.index.remove_namespace(self.metadata.name.as_deref().unwrap_or_default());
        Asks::new()
    }

    fn identity(&self) -> String {
        self.metadata.name.clone().unwrap_or_default()
    }

    listed!(Namespaces, |index, seen| index.retain_namespaces(|name| seen.contains(name)));
}

impl Observed for Deployment {
    fn put(self, view: &mut View, reading: &Reading<'_>) -> Asks {
        put_workload(view, deployment(self, reading.configured))
    }

    fn remove(self, view: &mut View) -> Asks {
        remove_workload(view, "Deployment", &self.metadata)
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    listed!(Deployments, |index, seen| index.retain_workloads("Deployment", |uid| seen.contains(uid)));
}

impl Observed for StatefulSet {
    fn put(self, view: &mut View, reading: &Reading<'_>) -> Asks {
        put_workload(view, stateful_set(self, reading.configured))
    }

    fn remove(self, view: &mut View) -> Asks {
        remove_workload(view, "StatefulSet", &self.metadata)
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    listed!(StatefulSets, |index, seen| index.retain_workloads("StatefulSet", |uid| seen.contains(uid)));
}

impl Observed for ReplicaSet {
    /// Its controller has not seen yet how many pods it is to have: when they come, their places should be known.
    fn patience(&self) -> Duration {
        if set_entry(self).observed { AT_LEISURE } else { TOGETHER }
    }

    fn put(self, view: &mut View, _: &Reading<'_>) -> Asks {
        let set = set_entry(&self);
        let uid = set.uid.clone();
        // An orphaned one is gone for its former owner.
        let mut asks = view.ask_owner(&uid);
        if view.index.put_set(set) {
            asks.extend(view.ask_owner(&uid));
            asks.dedup();
            asks
        } else {
            Asks::new()
        }
    }

    fn remove(self, view: &mut View) -> Asks {
        let uid = uid(&self.metadata);
        let asks = view.ask_owner(&uid);
        view.index.remove_set(&uid);
        asks
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    listed!(ReplicaSets, |index, seen| index.retain_sets(|uid| seen.contains(uid)));
}

impl Observed for Pod {
    fn patience(&self) -> Duration {
        if is_gated(&self.spec) { TOGETHER } else { AT_LEISURE }
    }

    fn put(self, view: &mut View, reading: &Reading<'_>) -> Asks {
        let before = view.index.pod(&uid(&self.metadata));
        let pod = pod_entry(self, before, reading);
        let owner = pod.view.owner.clone();
        if view.index.put_pod(pod) { view.ask_owner(&owner) } else { Asks::new() }
    }

    fn remove(self, view: &mut View) -> Asks {
        let gone = view.index.remove_pod(&uid(&self.metadata));
        gone.map(|pod| view.ask_owner(&pod.view.owner)).unwrap_or_default()
    }

    fn identity(&self) -> String {
        uid(&self.metadata)
    }

    listed!(Pods, |index, seen| index.retain_pods(|uid| seen.contains(uid)));
}

impl Observed for PodDisruptionBudget {
    fn put(self, view: &mut View, _: &Reading<'_>) -> Asks {
        let (namespace, name) = names(&self.metadata);
        let allowed = u32::try_from(self.status.disruptions_allowed).unwrap_or_default();
        let budget = PdbEntry { selector: self.spec.selector, allowed };
        let before = view.index.put_pdb(&namespace, &name, budget.clone());
        // Only a budget that opens is worth a look, and one that has let go of a workload.
        let opens = allowed > 0 && before.as_ref().is_none_or(|before| before.allowed == 0);
        let lets_go = before.is_some_and(|before| before.selector != budget.selector);
        if opens || lets_go { view.index.keys_in(&namespace) } else { Asks::new() }
    }

    fn remove(self, view: &mut View) -> Asks {
        let (namespace, name) = names(&self.metadata);
        view.index.remove_pdb(&namespace, &name);
        view.index.keys_in(&namespace)
    }

    fn identity(&self) -> String {
        let (namespace, name) = names(&self.metadata);
        format!("{namespace}/{name}")
    }

    listed!(Pdbs, |index, seen| index.retain_pdbs(|name| seen.contains(name)));
}

/// The keeper's watch is the only one of nodes, and goes on with them: here they are only looked at.
impl Observed for &Node {
    fn put(self, view: &mut View, reading: &Reading<'_>) -> Asks {
        let name = name(self);
        let changed = view.index.put_node(name, node_view(self, reading.labels()));
        if changed && !reading.listed { view.index.keys_on(name).into_iter().collect() } else { Asks::new() }
    }

    fn remove(self, view: &mut View) -> Asks {
        view.index.remove_node(name(self));
        view.index.keys_on(name(self)).into_iter().collect()
    }

    fn identity(&self) -> String {
        name(self).to_owned()
    }

    fn begin(view: &mut View) {
        view.index.begin_nodes();
    }

    /// Whatever is taken in is marked there: a set of all names would take as much room again.
    fn seen(_: &mut View, _: String) {}

    fn end(view: &mut View) {
        view.index.end_nodes();
        view.listings[What::Nodes as usize].done = true;
    }
}

impl Observed for Node {
    fn put(self, view: &mut View, reading: &Reading<'_>) -> Asks {
        (&self).put(view, reading)
    }

    fn remove(self, view: &mut View) -> Asks {
        (&self).remove(view)
    }

    fn identity(&self) -> String {
        name(self).to_owned()
    }

    fn begin(view: &mut View) {
        <&Self>::begin(view);
    }

    fn seen(view: &mut View, identity: String) {
        <&Self>::seen(view, identity);
    }

    fn end(view: &mut View) {
        <&Self>::end(view);
    }
}

fn name(node: &Node) -> &str {
    node.meta().name.as_deref().unwrap_or_default()
}

fn put_workload(view: &mut View, workload: Workload) -> Asks {
    let key = Arc::clone(&workload.key);
    if view.index.put_workload(workload) { vec![key] } else { Asks::new() }
}

/// Its gated pods, if any are left, are looked at once more.
fn remove_workload(view: &mut View, kind: &str, meta: &ObjectMeta) -> Asks {
    let (namespace, name) = names(meta);
    let key = key(kind, &namespace, &name);
    view.index.remove_workload(&key);
    vec![key]
}

fn names(meta: &ObjectMeta) -> (String, String) {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn uid(meta: &ObjectMeta) -> String {
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

pub fn deployment(deployment: Deployment, configured: &Configured) -> Workload {
    let Deployment { metadata, spec, status } = deployment;
    let replicas = spec.replicas.unwrap_or(1);
    let recreate = spec.strategy.kind.as_deref() == Some("Recreate");
    let limit = spec.strategy.rolling_update.and_then(|rolling| rolling.max_unavailable);
    let max_unavailable = if recreate { replicas } else { share(limit.as_ref(), replicas) };
    workload(metadata, Kind::Deployment, replicas, max_unavailable, spec.selector, spec.template, &status, configured)
}

pub fn stateful_set(set: StatefulSet, configured: &Configured) -> Workload {
    let StatefulSet { metadata, spec, status } = set;
    let kind = Kind::StatefulSet { start: spec.ordinals.unwrap_or_default().start };
    let replicas = spec.replicas.unwrap_or(1);
    workload(metadata, kind, replicas, 0, spec.selector, spec.template, &status, configured)
}

#[expect(clippy::too_many_arguments, reason = "the parts of one object, each used once")]
fn workload(
    metadata: ObjectMeta,
    kind: Kind,
    replicas: u32,
    max_unavailable: u32,
    selector: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector,
    template: Template,
    status: &WorkloadStatus,
    configured: &Configured,
) -> Workload {
    let kind_name = if kind == Kind::Deployment { "Deployment" } else { "StatefulSet" };
    let (namespace, name) = names(&metadata);
    let view = WorkloadView {
        kind,
        resource_version: metadata.resource_version.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        generation: metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation,
        replicas,
        current: status.replicas,
        updated: status.updated_replicas,
        available: status.available_replicas,
        max_unavailable,
        template: template_choice(&template, &configured.settings.labels),
        state: metadata.annotations.as_ref().and_then(|annotations| annotations.get(STATE)).cloned(),
    };
    Workload {
        key: key(kind_name, &namespace, &name),
        kind: kind_name,
        namespace,
        name,
        view,
        annotations: relevant(metadata.annotations, configured),
        selector,
        template_labels: template.metadata.labels.unwrap_or_default(),
    }
}

fn template_choice(template: &Template, labels: &NodeLabels) -> Choice {
    let none = BTreeMap::new();
    let selector = template.spec.node_selector.as_ref().unwrap_or(&none);
    labels.choice(selector, template.spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()))
}

/// `maxUnavailable` as a number, rounded down; a quarter where it is not said.
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

fn set_entry(set: &ReplicaSet) -> SetEntry {
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

fn node_view(node: &Node, labels: &NodeLabels) -> NodeView {
    let empty = BTreeMap::new();
    let leaving = node.meta().deletion_timestamp.is_some()
        || node.unschedulable()
        || node.taints().iter().any(|taint| LEAVING.contains(&taint.key.as_str()));
    NodeView { class: labels.class_of_node(node.meta().labels.as_ref().unwrap_or(&empty)), leaving }
}

fn is_gated(spec: &PodSpec) -> bool {
    spec.scheduling_gates.iter().flatten().any(|gate| gate.name == GATE)
}

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
    // From gated to unschedulable the condition stays False, and so does the time of its last transition: it says too little.
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
    let wish = annotation(SELECTION).is_some_and(|text| text == PREFERRED);
    let strength = if wish { Strength::Preferred } else { Strength::Required };
    PodEntry { view, namespace: metadata.namespace.unwrap_or_default(), node, labelled, strength }
}
