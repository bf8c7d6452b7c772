//! A small cluster: the Deployment and ReplicaSet controllers, the scheduler and the kubelets as
//! far as placement depends on them, and an operator that executes decisions, sometimes on a stale
//! view and sometimes only in part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use perennial_testkit::prng::Prng;
use serde_json::Value;

use crate::placement::decide::decide;
use crate::placement::decision::{Action, PlacementDecision, RoomSearch};
use crate::placement::node_labels::Choice;
use crate::placement::spec::Spec;
use crate::placement::state::PlacementState;
use crate::placement::workload::{
    ClusterNodes, EXPECTED_FOR, Kind, PdbView, PendingWrites, Place, PlacementSettings, PodView, ReplicaSetView,
    Workload, WorkloadView, deletion_cost,
};
use crate::placement::{CLASS, Class, DELETION_COST, FALLBACK, GATE, SLOT, STATE};

pub(super) const TICK: SignedDuration = SignedDuration::from_secs(5);

#[derive(Clone)]
pub(super) struct Sim {
    pub spec: Spec,
    pub settings: PlacementSettings,
    pub now: Timestamp,
    pub replicas: u32,
    pub sets: Vec<ReplicaSetView>,
    pub pods: Vec<PodView>,
    pub state: Option<String>,
    pub pending: PendingWrites,
    pub pdbs: Vec<PdbView>,
    pub prng: Prng,
    pub max_unavailable: u32,
    pub max_surge: u32,
    /// Maximum number of pods on spot and on on-demand capacity.
    pub spot_room: usize,
    pub on_demand_room: usize,
    pub nodes: ClusterNodes,
    /// The room on existing nodes was reason for an eviction.
    room_used: bool,
    /// Ticks from bound to Ready.
    pub start_ticks: BTreeMap<Class, i64>,
    /// Percentage of pods that the webhook misses, of decisions executed in part, of decisions on
    /// the former view.
    pub missed: u32,
    pub cut: u32,
    pub stale: u32,
    /// Percentage of creates that the owner itself admits, and of these, of creates that are
    /// refused after admission.
    pub direct: u32,
    pub refused: u32,
    open: BTreeMap<String, Vec<Place>>,
    /// Pods that the owner expects, with the UID of those that were created.
    expected: Vec<(Option<String>, PodView)>,
    former: Option<(Vec<PodView>, Vec<ReplicaSetView>)>,
    serial: u64,
    pub evictions: u32,
    pub deletes: u32,
    pub writes: u32,
    pub last: PlacementDecision,
}

impl Sim {
    pub(super) fn new(spec: Spec, replicas: u32, seed: u64) -> Self {
        let mut sim = Self {
            spec,
            settings: PlacementSettings::default(),
            now: Timestamp::from_second(1_700_000_000).unwrap(),
            replicas,
            sets: Vec::new(),
            pods: Vec::new(),
            state: None,
            pending: PendingWrites::default(),
            pdbs: Vec::new(),
            prng: Prng::new(seed),
            max_unavailable: 0,
            max_surge: 1,
            spot_room: usize::MAX,
            on_demand_room: usize::MAX,
            nodes: ClusterNodes::default(),
            room_used: false,
            start_ticks: BTreeMap::from([(Class::Spot, 1), (Class::OnDemand, 1)]),
            missed: 0,
            cut: 0,
            stale: 0,
            direct: 0,
            refused: 0,
            open: BTreeMap::new(),
            expected: Vec::new(),
            former: None,
            serial: 0,
            evictions: 0,
            deletes: 0,
            writes: 0,
            last: PlacementDecision::default(),
        };
        sim.rollout();
        sim
    }

    pub(super) fn serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Changes the pod template.
    pub(super) fn rollout(&mut self) {
        for set in &mut self.sets {
            set.newest = false;
        }
        let uid = format!("rs-{}", self.serial());
        self.sets.push(ReplicaSetView { uid, replicas: 0, newest: true, observed: true });
    }

    pub(super) fn undo(&mut self) {
        let last = self.sets.len() - 1;
        if last > 0 {
            self.sets[last].newest = false;
            self.sets[last - 1].newest = true;
        }
    }

    pub(super) fn live(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().filter(|pod| pod.occupies())
    }

    pub(super) fn count(&self, class: Class) -> u32 {
        let strength = self.spec.strength;
        u32::try_from(self.live().filter(|pod| !pod.gated && pod.counts_as(strength) == Some(class)).count()).unwrap()
    }

    pub(super) fn ready_on_demand(&self) -> u32 {
        let on_demand = |pod: &&PodView| pod.ready && pod.node.is_some_and(|n| n.class == Some(Class::OnDemand));
        u32::try_from(self.live().filter(on_demand).count()).unwrap()
    }

    pub(super) fn available(&self) -> u32 {
        u32::try_from(self.live().filter(|pod| pod.ready).count()).unwrap()
    }

    pub(super) fn owned(&self, uid: &str) -> u32 {
        u32::try_from(self.live().filter(|pod| pod.owner == uid).count()).unwrap()
    }

    /// Returns the place that the owner assigns in a create request.
    fn assign(&mut self, owner: &str) -> Option<Place> {
        let places = if self.prng.percent(self.direct) { self.open.get_mut(owner)? } else { return None };
        (!places.is_empty()).then(|| places.remove(0))
    }

    pub(super) fn create(&mut self, owner: String) {
        let serial = self.serial();
        let place = self.assign(&owner);
        if let Some(place) = place {
            let refused = self.prng.percent(self.refused);
            let unseen = self.prng.percent(50);
            if refused || unseen {
                let uid = (!refused).then(|| format!("uid-{serial}"));
                self.expected.push((uid, PodView::expected(&owner, place, self.now)));
            }
            if refused {
                return;
            }
        }
        let gated = place.is_none() && !self.prng.percent(self.missed);
        let scramble = self.prng.below(1_000_000);
        self.pods.push(PodView {
            name: format!("web-{scramble:06}-{serial}"),
            uid: format!("uid-{serial}"),
            resource_version: serial.to_string(),
            owner,
            created: self.now,
            deleting: false,
            finished: false,
            gated,
            ready: false,
            choice: place.map_or(Choice::Any, |place| Choice::Only(place.class)),
            class: place.map(|place| place.class),
            slot: place.map(|place| place.slot),
            fallback: false,
            cost: place.map(|place| deletion_cost(place.slot)),
            node: None,
            scheduled: None,
            unschedulable: None,
            node_affinity: None,
            ordinal: None,
            expected: false,
            protected: false,
            refused: None,
            volume_verdict: false,
            volume: Some(Choice::Any),
        });
    }

    pub(super) fn view(&self) -> WorkloadView {
        let newest = self.sets.iter().find(|set| set.newest).unwrap();
        WorkloadView {
            kind: Kind::Deployment,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            resource_version: "1".to_owned(),
            uid: "deployment".to_owned(),
            generation: 1,
            observed_generation: 1,
            replicas: self.replicas,
            current: u32::try_from(self.live().count()).unwrap(),
            updated: self.owned(&newest.uid),
            available: self.available(),
            updated_target: self.replicas,
            max_unavailable: self.max_unavailable,
            template: Choice::Any,
            state: self.state.clone(),
        }
    }

    pub(super) fn workload(&self) -> Workload {
        Workload {
            view: self.view(),
            spec: Ok(Some(self.spec.clone())),
            replica_sets: self.sets.clone(),
            pods: self.seen(),
            pdbs: self.pdbs.clone(),
            pending: self.pending.clone(),
            nodes: self.nodes,
            settings: Arc::new(self.settings.clone()),
            now: self.now,
        }
    }

    pub(super) fn decide(&self) -> PlacementDecision {
        decide(&self.workload())
    }

    /// Returns the pods in the owner's cache: some are missing and expected.
    fn seen(&self) -> Vec<PodView> {
        let unseen: BTreeSet<&str> = self.expected.iter().filter_map(|(uid, _)| uid.as_deref()).collect();
        let shown = self.pods.iter().filter(|pod| !unseen.contains(pod.uid.as_str()));
        shown.chain(self.expected.iter().map(|(_, pod)| pod)).cloned().collect()
    }

    /// Decides and executes as the operator does: in order, conditionally, possibly on a stale view
    /// and in part.
    pub(super) fn operate(&mut self) {
        // Expected pods that do not appear are given up.
        let now = self.now;
        self.expected.retain(|(_, pod)| now < pod.created + EXPECTED_FOR);
        let stale = self.prng.percent(self.stale);
        let mut workload = self.workload();
        if let Some((pods, sets)) = self.former.take().filter(|_| stale) {
            (workload.pods, workload.replica_sets, workload.pending) = (pods, sets, PendingWrites::default());
        }
        let mut decided = decide(&workload);
        if let Some(search) = &decided.room_search
            && self.find_room(search)
        {
            workload.nodes = self.nodes;
            decided = decide(&workload);
        }
        self.former = Some((self.seen(), self.sets.clone()));
        self.open.clone_from(&decided.open);
        // The watch catches up.
        self.expected.retain(|(uid, _)| uid.is_none());
        let cut = if self.prng.percent(self.cut) {
            self.prng.below(decided.actions.len() + 1)
        } else {
            decided.actions.len()
        };
        for action in &decided.actions[..cut] {
            self.execute(action);
        }
        self.last = decided;
    }

    /// Searches for room as the operator does. Returns whether there is some that counts.
    fn find_room(&mut self, search: &RoomSearch) -> bool {
        let found = self.room(search.class) > 0;
        let counts = found && (search.again || !self.room_used);
        self.room_used &= found;
        let nodes = match search.class {
            Class::Spot => &mut self.nodes.spot,
            Class::OnDemand => &mut self.nodes.on_demand,
        };
        nodes.room_found = counts.then_some(self.now);
        self.room_used |= counts;
        counts
    }

    pub(super) fn execute(&mut self, action: &Action) {
        match action {
            Action::Save { patch, state, .. } => {
                let text = patch["metadata"]["annotations"][STATE].as_str().unwrap().to_owned();
                assert_eq!(PlacementState::read(Some(&text)), (state.clone(), true));
                self.state = Some(text);
                self.writes += 1;
            }
            Action::Place { pod, patch, .. }
            | Action::Ungate { pod, patch, .. }
            | Action::Relabel { pod, patch, .. } => {
                self.patch(&pod.uid, patch);
            }
            Action::Evict { pod, .. } => {
                let floor = self.spec.split.floor().of(self.replicas).min(self.replicas);
                let Some(target) = self.pods.iter_mut().find(|p| p.uid == pod.uid && p.occupies()) else { return };
                target.deleting = true;
                let guarded = target.ready && target.node.is_some_and(|n| n.class == Some(Class::OnDemand));
                self.evictions += 1;
                let ready = self.ready_on_demand();
                assert!(!guarded || ready >= floor, "our eviction left {ready} Ready on-demand, floor {floor}");
            }
            Action::Delete { pod, .. } => {
                let target = self.pods.iter_mut().find(|p| p.uid == pod.uid);
                if let Some(target) = target.filter(|target| target.node.is_none()) {
                    target.deleting = true;
                    self.deletes += 1;
                }
            }
            Action::Hold { .. } | Action::Wait { .. } | Action::Report(_) => {}
        }
    }

    /// Applies a patch to a pod as the API server does.
    fn patch(&mut self, uid: &str, patch: &Value) {
        let serial = self.serial();
        let labels = self.settings.labels.clone();
        let Some(pod) = self.pods.iter_mut().find(|pod| pod.uid == uid && pod.occupies()) else { return };
        if patch["metadata"]["resourceVersion"] != pod.resource_version.as_str() {
            return;
        }
        pod.resource_version = serial.to_string();
        self.writes += 1;
        if let Some(selector) = patch["spec"]["nodeSelector"].as_object() {
            assert!(pod.gated, "nodeSelector is immutable on a pod without gates");
            let selector: BTreeMap<String, String> =
                selector.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect();
            pod.choice = labels.choice(&selector, None);
        }
        if let Some(gates) = patch["spec"]["schedulingGates"].as_array() {
            assert_eq!(gates[0], serde_json::json!({"$patch": "delete", "name": GATE}));
            pod.gated = false;
        }
        let empty = serde_json::Map::new();
        for (key, value) in patch["metadata"]["annotations"].as_object().unwrap_or(&empty) {
            let text = value.as_str().map(str::to_owned);
            match key.as_str() {
                SLOT => pod.slot = text.map(|text| text.parse().unwrap()),
                CLASS => pod.class = text.and_then(|text| Class::parse(&text)),
                FALLBACK => pod.fallback = text.is_some(),
                DELETION_COST => pod.cost = text,
                other => panic!("unexpected annotation written: {other}"),
            }
        }
    }

    /// Executes a decision as the operator does while the watch lags behind: answers to patches are
    /// in the cache at once, removals and the state are pending.
    pub(super) fn execute_unseen(&mut self, decision: &PlacementDecision) {
        for action in &decision.actions {
            match action {
                Action::Evict { pod, .. } | Action::Delete { pod, .. } => {
                    self.pending.removed.insert(pod.uid.clone());
                }
                Action::Save { state, .. } => self.pending.state = Some(state.clone()),
                other => self.execute(other),
            }
        }
    }

    pub(super) fn world(&mut self) {
        self.now += TICK;
        self.deployment_controller();
        if self.direct > 0 {
            self.operate();
        }
        self.replica_set_controller();
        self.scheduler();
        self.kubelets();
    }

    pub(super) fn tick(&mut self) {
        self.world();
        self.operate();
    }

    pub(super) fn run(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.tick();
        }
    }

    /// Runs until nothing has changed for some ticks. Panics if that does not happen.
    pub(super) fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..6_000 {
            self.tick();
            let newest = self.sets.iter().find(|set| set.newest).map(|set| set.uid.clone()).unwrap_or_default();
            let rolling = self.live().any(|pod| pod.owner != newest);
            let unready = self.available() != self.replicas;
            let counts = &self.last.counts;
            let busy = rolling || unready || !self.last.is_quiet() || counts.drift + counts.fallback > 0;
            quiet = if busy { 0 } else { quiet + 1 };
            if quiet > 3 {
                return;
            }
        }
        panic!("never at rest: {:?} {:?}", self.last.counts, self.last.actions.iter().take(5).collect::<Vec<_>>());
    }

    pub(super) fn assert_exact(&self) {
        assert_eq!(self.count(Class::Spot), self.spec.split.spot(self.replicas), "spot at {}", self.replicas);
        assert_eq!(
            self.count(Class::OnDemand),
            self.spec.split.on_demand(self.replicas),
            "on-demand at {}",
            self.replicas
        );
    }
}
