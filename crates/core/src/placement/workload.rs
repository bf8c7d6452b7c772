//! A workload with everything that a placement decision depends on.
//!
//! Owns the shapes only. The operator fills them from its cache, tests from a simulated cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::Class;
use super::node_labels::{Choice, NodeLabels};
use super::spec::{AnnotationProblem, Spec, Strength};
use super::state::PlacementState;

/// Placement settings of the operator, the same for every workload.
#[derive(Debug, Clone)]
pub struct PlacementSettings {
    pub labels: NodeLabels,
    /// Minimum time between two moves of one workload.
    pub cooldown: SignedDuration,
    /// Age at which any replica ungates a pod whose owner's Lease is stale, and at which damping
    /// ends.
    pub gate_timeout: SignedDuration,
    /// Maximum time that spot pods of a rollout wait for its on-demand pods to become Ready.
    pub hold_timeout: SignedDuration,
}

impl Default for PlacementSettings {
    fn default() -> Self {
        Self {
            labels: NodeLabels::default(),
            cooldown: SignedDuration::from_secs(30),
            gate_timeout: SignedDuration::from_secs(30),
            hold_timeout: SignedDuration::from_mins(5),
        }
    }
}

/// The placement that the annotations of a workload and its namespace request. `Ok(None)`: the
/// workload is not managed.
pub type RequestedSpec = Result<Option<Spec>, Vec<AnnotationProblem>>;

/// One workload as it was observed: the input of [`decide`](super::decide::decide). Pods of other
/// owners are ignored.
#[derive(Debug, Clone)]
pub struct Workload {
    pub view: WorkloadView,
    pub spec: RequestedSpec,
    pub replica_sets: Vec<ReplicaSetView>,
    pub pods: Vec<PodView>,
    /// The PodDisruptionBudgets that select the workload's pods.
    pub pdbs: Vec<PdbView>,
    pub pending: PendingWrites,
    /// The nodes of the cluster, as far as the workload's pods may use them.
    pub nodes: ClusterNodes,
    pub settings: Arc<PlacementSettings>,
    pub now: Timestamp,
}

/// Nodes of the cluster by class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterNodes {
    pub spot: ClassNodes,
    pub on_demand: ClassNodes,
    /// Nodes of neither class.
    pub other: u32,
}

/// Nodes of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassNodes {
    pub total: u32,
    /// Time at which the newest node that may run a pod of the workload became usable: Ready,
    /// schedulable, and matched by the pod template.
    pub usable_since: Option<Timestamp>,
    /// Time at which room for a pod of the workload was last found on a node.
    pub room_found: Option<Timestamp>,
}

impl ClusterNodes {
    pub fn of(&self, class: Class) -> ClassNodes {
        match class {
            Class::Spot => self.spot,
            Class::OnDemand => self.on_demand,
        }
    }
}

impl Workload {
    /// Returns the spec of a managed workload.
    pub fn managed_spec(&self) -> Option<&Spec> {
        self.spec.as_ref().ok()?.as_ref()
    }

    /// Returns the state kept in the workload's annotation; an unreadable one counts as empty.
    pub fn state(&self) -> PlacementState {
        self.view.state()
    }
}

/// A workload whose annotations request placement: the input of every step of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Managed<'a> {
    pub spec: &'a Spec,
    pub view: &'a WorkloadView,
    pub replica_sets: &'a [ReplicaSetView],
    pub pods: &'a [PodView],
    pub pdbs: &'a [PdbView],
    pub pending: &'a PendingWrites,
    pub nodes: ClusterNodes,
    pub settings: &'a PlacementSettings,
    pub now: Timestamp,
}

impl<'a> Managed<'a> {
    pub(super) fn new(workload: &'a Workload, spec: &'a Spec) -> Self {
        let Workload { view, replica_sets, pods, pdbs, pending, nodes, settings, now, .. } = workload;
        Self { spec, view, replica_sets, pods, pdbs, pending, nodes: *nodes, settings, now: *now }
    }
}

/// Kind of the controller of a workload's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Deployment,
    /// A ReplicaSet that no Deployment controls.
    ReplicaSet,
    StatefulSet {
        /// `spec.ordinals.start`.
        start: u32,
    },
    /// Any other controller. Only its pods are read, so its desired number of replicas is unknown:
    /// its pods are placed by counts and never moved.
    Other {
        api_version: Arc<str>,
        kind: Arc<str>,
    },
}

impl Kind {
    /// Returns the Kubernetes kind.
    pub fn as_str(&self) -> &str {
        match self {
            Kind::Deployment => "Deployment",
            Kind::ReplicaSet => "ReplicaSet",
            Kind::StatefulSet { .. } => "StatefulSet",
            Kind::Other { kind, .. } => kind,
        }
    }

    pub fn api_version(&self) -> &str {
        match self {
            Kind::Other { api_version, .. } => api_version,
            Kind::Deployment | Kind::ReplicaSet | Kind::StatefulSet { .. } => "apps/v1",
        }
    }

    /// Returns whether the number of replicas that the controller aims at is known.
    pub fn has_known_size(&self) -> bool {
        !matches!(self, Kind::Other { .. })
    }
}

/// A controller of pods with the fields that a decision depends on.
#[derive(Debug, Clone)]
pub struct WorkloadView {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    pub resource_version: String,
    /// Owner UID of the pods, except those of a Deployment, which are owned by its ReplicaSets.
    pub uid: String,
    pub generation: i64,
    pub observed_generation: i64,
    /// `spec.replicas`; the number of existing pods if that is unknown.
    pub replicas: u32,
    /// `status.replicas`, `status.updatedReplicas`, `status.availableReplicas`.
    pub current: u32,
    pub updated: u32,
    pub available: u32,
    /// Number of updated replicas at which a rollout has ended: all, or those above the partition
    /// of a StatefulSet.
    pub updated_target: u32,
    /// `maxUnavailable` as a number, rounded down as the Deployment controller does. 0 for a
    /// StatefulSet.
    pub max_unavailable: u32,
    /// Classes that the pod template's own constraints allow.
    pub template: Choice,
    /// Value of the annotation [`super::STATE`].
    pub state: Option<String>,
}

impl WorkloadView {
    /// Returns the state kept in the workload's annotation; an unreadable one counts as empty.
    pub fn state(&self) -> PlacementState {
        PlacementState::read(self.state.as_deref()).0
    }
}

#[derive(Debug, Clone)]
pub struct ReplicaSetView {
    pub uid: String,
    /// `spec.replicas`.
    pub replicas: u32,
    /// The ReplicaSet has the Deployment's current pod template.
    pub newest: bool,
    /// Its status is up to date with its spec.
    pub observed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeView {
    pub class: Option<Class>,
    /// The node is being drained or disrupted, or is already gone.
    pub leaving: bool,
}

#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a pod, each read on its own")]
pub struct PodView {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// UID of its controller.
    pub owner: String,
    pub created: Timestamp,
    pub deleting: bool,
    /// Failed or Succeeded.
    pub finished: bool,
    /// The pod has the gate [`super::GATE`].
    pub gated: bool,
    pub ready: bool,
    /// Classes that its constraints allow, those written by Perennial included:
    /// [`NodeLabels::choice`].
    pub choice: Choice,
    /// The annotations [`super::CLASS`], [`super::SLOT`], [`super::FALLBACK`] and
    /// [`super::DELETION_COST`].
    pub class: Option<Class>,
    pub slot: Option<u32>,
    pub fallback: bool,
    pub cost: Option<String>,
    /// The node that it is bound to.
    pub node: Option<NodeView>,
    /// Time since which it is bound, and time since which it is unschedulable.
    pub scheduled: Option<Timestamp>,
    pub unschedulable: Option<Timestamp>,
    /// `spec.affinity.nodeAffinity`; needed for gated pods only.
    pub node_affinity: Option<Value>,
    /// Ordinal of a StatefulSet pod.
    pub ordinal: Option<u32>,
    /// The pod got its slot in its own create request and is not in the cache yet.
    pub expected: bool,
    /// The pod must not be evicted: an annotation for Karpenter or the cluster autoscaler.
    pub protected: bool,
    /// The annotation [`super::REFUSED`].
    pub refused: Option<Class>,
    /// The scheduler found no node because of a volume, among other reasons.
    pub volume_verdict: bool,
    /// Classes in which its volumes can be used. None: not read. Pods of StatefulSets only.
    pub volume: Option<Choice>,
}

/// Time for which a pod that got its slot in its own create request counts before it appears in the
/// cache. The create may have been refused after admission.
pub const EXPECTED_FOR: SignedDuration = SignedDuration::from_secs(10);

impl PodView {
    /// Builds the stand-in of a pod that was assigned `place` at `since` and is not in the cache
    /// yet.
    pub fn expected(owner: &str, place: Place, since: Timestamp) -> Self {
        Self {
            name: String::new(),
            uid: format!("expected/{owner}/{}", place.slot),
            resource_version: String::new(),
            owner: owner.to_owned(),
            created: since,
            deleting: false,
            finished: false,
            gated: false,
            ready: false,
            choice: Choice::Only(place.class),
            class: Some(place.class),
            slot: Some(place.slot),
            fallback: false,
            cost: None,
            node: None,
            scheduled: None,
            unschedulable: None,
            node_affinity: None,
            ordinal: None,
            expected: true,
            protected: false,
            refused: None,
            volume_verdict: false,
            volume: Some(Choice::Any),
        }
    }

    /// Returns whether the pod counts as a replica of its workload.
    pub fn occupies(&self) -> bool {
        !self.deleting && !self.finished
    }

    /// Returns the class that the pod counts for: the class that it requires, else (for `preferred`
    /// workloads) the class that it was assigned, else the class of its node.
    pub fn counts_as(&self, strength: Strength) -> Option<Class> {
        let assigned = if strength == Strength::Preferred { self.class } else { None };
        self.choice.class().or(assigned).or(self.node.and_then(|node| node.class))
    }

    /// Returns whether another writer sets its deletion cost. Perennial always writes the cost of
    /// the slot.
    pub fn foreign_cost(&self) -> bool {
        self.cost.as_deref().is_some_and(|cost| self.slot.is_none_or(|slot| cost != deletion_cost(slot)))
    }
}

pub(super) fn deletion_cost(slot: u32) -> String {
    (-i64::from(slot)).to_string()
}

/// A slot and the class that its pod gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub class: Class,
    pub slot: u32,
}

/// A PodDisruptionBudget that selects the workload's pods.
#[derive(Debug, Clone)]
pub struct PdbView {
    pub name: String,
    pub disruptions_allowed: u32,
}

/// Perennial's own writes that the cache does not contain yet.
#[derive(Debug, Clone, Default)]
pub struct PendingWrites {
    /// UIDs of pods that were evicted or deleted.
    pub removed: BTreeSet<String>,
    pub state: Option<PlacementState>,
    /// When the last eviction of this process was answered. A request may be on its way for longer
    /// than a cooldown.
    pub evicted_at: Option<Timestamp>,
}
