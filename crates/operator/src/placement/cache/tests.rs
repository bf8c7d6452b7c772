//! Behaviour of the cache: the list protocol, late events, relists and reservations.

use std::{sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use perennial_core::{
    config::Settings,
    placement::{
        Class, GATE, SLOT,
        node_labels::Choice,
        ungate::UngateReason,
        workload::{Place, Workload},
    },
};
use serde_json::{Value, json};

use super::{PlacementCache, Reading, RoomSearched, SharedCache, Step, Watched, key, key_of, shard_key};
use crate::{
    keeper::node::Node,
    placement::{
        objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
        settings::Configured,
        takeover::PodVersions,
    },
    runtime::clock::Clock,
};

struct World {
    configured: Configured,
    cache: PlacementCache,
    now: Timestamp,
}

impl World {
    /// Builds a synced cache that contains only the namespace.
    fn new() -> Self {
        let configured = Configured::new(&Settings::default()).unwrap();
        let mut world = Self { configured, cache: PlacementCache::default(), now: Timestamp::UNIX_EPOCH };
        world.list::<Namespace>(&[json!({"metadata": {"name": "shop"}})]);
        world.list::<Deployment>(&[]);
        world.list::<StatefulSet>(&[]);
        world.list::<ReplicaSet>(&[]);
        world.list::<Pod>(&[]);
        world.list::<PodDisruptionBudget>(&[]);
        world.list::<Node>(&[]);
        world
    }

    fn on<K: Watched>(&mut self, event: Event<K>) -> Vec<String> {
        let reading = Reading { configured: &self.configured, now: self.now, listed: false };
        self.cache.on(event, reading).iter().map(ToString::to_string).collect()
    }

    fn list<K: Watched + serde::de::DeserializeOwned>(&mut self, objects: &[Value]) {
        self.on::<K>(Event::Init);
        for object in objects {
            self.on::<K>(Event::InitApply(read(object)));
        }
        self.on::<K>(Event::InitDone);
    }

    fn apply<K: Watched + serde::de::DeserializeOwned>(&mut self, object: &Value) -> Vec<String> {
        self.on::<K>(Event::Apply(read(object)))
    }

    fn observe(&self) -> Workload {
        self.cache.observe("deployment/shop/web", &self.configured, self.now).unwrap()
    }
}

fn read<K: serde::de::DeserializeOwned>(object: &Value) -> K {
    K::deserialize(object.clone()).unwrap()
}

fn web(version: u64, replicas: u32) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "d", "resourceVersion": version.to_string(), "generation": 3,
                     "annotations": {"perennial.dev/spot-percentage": "70", "other": "x"}, "managedFields": [{"manager": "m"}]},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                 "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}},
                 "template": {"metadata": {"labels": {"app": "web"}, "creationTimestamp": null}, "spec": {"containers": []}}},
        "status": {"observedGeneration": 3, "replicas": replicas},
    })
}

fn set(uid: &str, version: u64, revision: u32, owner: &str) -> Value {
    let owners =
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": owner, "controller": true}]);
    json!({
        "metadata": {"namespace": "shop", "name": uid, "uid": uid, "resourceVersion": version.to_string(), "ownerReferences": owners,
                     "annotations": {"deployment.kubernetes.io/revision": revision.to_string()}},
        "spec": {"replicas": 10},
    })
}

fn pod(version: u64, spec: &Value, conditions: &Value) -> Value {
    let owners =
        json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r1", "uid": "r1", "controller": true}]);
    json!({
        "metadata": {"namespace": "shop", "name": "web-1", "uid": "p", "resourceVersion": version.to_string(), "ownerReferences": owners,
                     "creationTimestamp": "1970-01-01T00:00:00Z", "labels": {"perennial.dev/managed": "true"}},
        "spec": spec,
        "status": {"phase": "Pending", "conditions": conditions},
    })
}

fn gated() -> Value {
    pod(5, &json!({"schedulingGates": [{"name": GATE}]}), &json!([]))
}

#[test]
fn a_pod_affects_its_workload_in_whichever_order_they_arrive() {
    let mut world = World::new();
    assert!(world.apply::<Pod>(&gated()).is_empty(), "its owner is not cached yet");
    assert!(world.apply::<ReplicaSet>(&set("r1", 2, 1, "d")).is_empty());

    assert_eq!(world.apply::<Deployment>(&web(1, 10)), ["deployment/shop/web"]);

    let workload = world.observe();
    assert_eq!((workload.pods.len(), workload.replica_sets.len()), (1, 1));
    assert!(workload.pods[0].gated && workload.replica_sets[0].newest);
    assert_eq!(workload.view.max_unavailable, 2);
    assert_eq!(
        world.cache.workload("deployment/shop/web").unwrap().annotations.len(),
        1,
        "other annotations are not cached"
    );
    assert_eq!(workload.view.template, Choice::Any);
    assert_eq!(shard_key(&key_of(&workload.view)), "shop/web");
}

#[test]
fn of_two_versions_the_newer_one_stays() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(7, 20));
    assert!(world.apply::<Deployment>(&web(6, 10)).is_empty(), "an old event affects nothing");
    assert_eq!(world.observe().view.replicas, 20);
}

#[test]
fn a_relist_removes_the_objects_that_it_lacks() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.apply::<Pod>(&gated());

    world.list::<Pod>(&[]);

    assert!(world.observe().pods.is_empty());
}

/// A pod without the label is not watched: only a list of its workload reveals that it is gone.
#[test]
fn a_pod_that_a_later_list_of_its_workload_lacks_is_gone_unless_it_is_newer() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.apply::<Pod>(&gated());
    let cache = &mut world.cache;

    cache.retain_pods_of(&["d", "r2"], 9, |_| false);
    cache.retain_pods_of(&["d", "r1"], 9, |_| true);
    cache.retain_pods_of(&["d", "r1"], 4, |_| false);
    assert_eq!(world.observe().pods.len(), 1, "of another owner, still listed, or newer than the list");

    world.cache.retain_pods_of(&["d", "r1"], 5, |_| false);
    assert!(world.observe().pods.is_empty());
}

#[test]
fn an_orphaned_replica_set_and_its_pods_leave_the_deployment() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.apply::<ReplicaSet>(&set("r2", 3, 2, "d"));
    world.apply::<Pod>(&gated());
    assert_eq!(
        world.observe().replica_sets.iter().filter(|set| set.newest).map(|set| &*set.uid).collect::<Vec<_>>(),
        ["r2"]
    );

    assert_eq!(world.apply::<ReplicaSet>(&set("r1", 9, 1, "another")), ["deployment/shop/web"]);

    let workload = world.observe();
    assert_eq!((workload.replica_sets.len(), workload.pods.len()), (1, 0));
}

#[test]
fn a_pod_is_unschedulable_since_it_was_first_seen_so() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    let waiting = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
    world.apply::<Pod>(&pod(5, &json!({"schedulingGates": [{"name": GATE}]}), &waiting));
    assert_eq!(world.observe().pods[0].unschedulable, None);

    world.now += SignedDuration::from_mins(9);
    let first = world.now;
    let stuck = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let spot = json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}});
    world.apply::<Pod>(&pod(6, &spot, &stuck));
    world.now += SignedDuration::from_mins(1);
    world.apply::<Pod>(&pod(7, &spot, &stuck));

    let workload = world.observe();
    assert_eq!(workload.pods[0].unschedulable, Some(first));
    assert_eq!(workload.pods[0].choice, Choice::Only(Class::Spot));
}

#[test]
fn a_leaving_node_affects_the_workloads_on_it() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    let node = |taints: Value| json!({"metadata": {"name": "n", "labels": {"karpenter.sh/capacity-type": "spot"}}, "spec": {"taints": taints}});
    world.apply::<Node>(&node(json!([])));
    world.apply::<Pod>(&pod(5, &json!({"nodeName": "n"}), &json!([])));
    assert_eq!(world.observe().pods[0].node.unwrap().class, Some(Class::Spot));

    let disrupted = node(json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]));
    assert_eq!(world.apply::<Node>(&disrupted), ["deployment/shop/web"]);
    assert!(world.apply::<Node>(&disrupted).is_empty(), "a heartbeat changes nothing");

    assert!(world.observe().pods[0].node.unwrap().leaving);
}

#[test]
fn namespaces_select_managed_workloads_and_system_namespaces_never_do() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    assert!(world.observe().spec.unwrap().is_some());

    assert!(!world.configured.selects("kube-system", &[].into()));
    assert!(!world.configured.selects("perennial-system", &[].into()));
    world.on::<Namespace>(Event::Delete(read(&json!({"metadata": {"name": "shop"}}))));

    assert!(world.observe().spec.unwrap().is_none());
}

#[test]
fn a_budget_counts_when_it_selects_the_pods() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    let budget = |name: &str, app: &str, allowed: i32| {
        json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"selector": {"matchLabels": {"app": app}}},
               "status": {"disruptionsAllowed": allowed}})
    };
    world.apply::<PodDisruptionBudget>(&budget("ours", "web", 0));
    world.apply::<PodDisruptionBudget>(&budget("theirs", "db", 0));
    assert_eq!(world.observe().pdbs.iter().map(|pdb| &*pdb.name).collect::<Vec<_>>(), ["ours"]);

    assert_eq!(world.apply::<PodDisruptionBudget>(&budget("ours", "web", 1)), ["deployment/shop/web"]);
    assert!(world.apply::<PodDisruptionBudget>(&budget("ours", "web", 2)).is_empty());

    world.apply::<PodDisruptionBudget>(&budget("ours", "web", 0));
    let elsewhere = budget("ours", "db", 0);
    assert_eq!(world.apply::<PodDisruptionBudget>(&elsewhere), ["deployment/shop/web"], "it selects other pods now");
    assert!(world.observe().pdbs.is_empty());
    assert!(world.apply::<PodDisruptionBudget>(&elsewhere).is_empty());
}

#[test]
fn nothing_is_affected_before_every_list_is_read() {
    let configured = Configured::new(&Settings::default()).unwrap();
    let mut world = World { configured, cache: PlacementCache::default(), now: Timestamp::UNIX_EPOCH };
    assert!(world.apply::<Deployment>(&web(1, 10)).is_empty());
    assert!(world.cache.all_affected().is_empty());
    let ready = World::new();
    assert!(ready.cache.is_synced());
    assert!(ready.cache.all_affected().iter().map(Arc::clone).next().is_none());
}

/// A ReplicaSet with an open slot, in the first term.
fn with_an_open_slot() -> World {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    let place = Place { class: Class::Spot, slot: 4 };
    world.cache.reservations().offer([("r1".to_owned(), vec![place])].into(), 1);
    world
}

#[test]
fn reservations_survive_a_change_of_their_replica_set_but_not_of_its_owner() {
    let mut world = with_an_open_slot();
    world.apply::<ReplicaSet>(&set("r1", 3, 1, "d"));
    assert!(world.cache.reservations().reserve("r1", 1, world.now).is_some());

    let mut world = with_an_open_slot();
    world.apply::<ReplicaSet>(&set("r1", 4, 1, "another"));
    assert!(world.cache.reservations().reserve("r1", 1, world.now).is_none());
}

#[test]
fn a_pod_with_a_reservation_is_expected_until_the_watch_delivers_it() {
    let mut world = with_an_open_slot();
    let sets = world.observe().replica_sets;
    world.cache.reservations().reserve("r1", 1, world.now).unwrap();
    assert_eq!(world.cache.reservations().expected(&sets, world.now).len(), 1);

    let mut seen = pod(5, &json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}), &json!([]));
    seen["metadata"]["annotations"] = json!({SLOT: "4"});
    world.apply::<Pod>(&seen);

    assert!(world.cache.reservations().expected(&sets, world.now).is_empty());
}

#[test]
fn a_list_that_starts_again_counts_from_its_last_start() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.on::<ReplicaSet>(Event::Init);
    world.on::<ReplicaSet>(Event::InitApply(read(&set("r1", 2, 1, "d"))));

    world.list::<ReplicaSet>(&[set("r2", 3, 2, "d")]);

    let uids: Vec<String> = world.observe().replica_sets.into_iter().map(|set| set.uid).collect();
    assert_eq!(uids, ["r2"]);
}

#[test]
fn an_object_stays_while_a_list_is_incomplete() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.on::<Deployment>(Event::Init);
    assert_eq!(world.observe().view.replicas, 10);
    world.on::<Deployment>(Event::InitDone);
    assert!(world.cache.workload("deployment/shop/web").is_none());
}

#[test]
fn a_relist_leaves_no_ghosts_of_any_kind() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.apply::<Pod>(&pod(5, &json!({"nodeName": "n"}), &json!([])));
    world.apply::<Node>(
        &json!({"metadata": {"name": "n", "labels": {"karpenter.sh/capacity-type": "spot"}}, "spec": {}}),
    );
    let pdb = json!({"metadata": {"namespace": "shop", "name": "b"}, "spec": {"selector": {"matchLabels": {"app": "web"}}},
                     "status": {"disruptionsAllowed": 1}});
    world.apply::<PodDisruptionBudget>(&pdb);
    assert!(!world.observe().pods[0].node.unwrap().leaving);

    world.list::<Node>(&[]);
    assert!(world.observe().pods[0].node.unwrap().leaving, "a node that is not listed is gone");
    world.list::<PodDisruptionBudget>(&[]);
    assert!(world.observe().pdbs.is_empty());
    world.list::<ReplicaSet>(&[]);
    let workload = world.observe();
    assert!(workload.replica_sets.is_empty() && workload.pods.is_empty());
    world.list::<Namespace>(&[]);
    assert!(world.observe().spec.unwrap().is_none());
    world.list::<Deployment>(&[]);
    assert!(world.cache.all_affected().is_empty());
}

#[test]
fn late_events_of_pods_and_replica_sets_change_nothing() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 7, 2, "d"));
    world.apply::<Pod>(&pod(9, &json!({}), &json!([])));

    assert!(world.apply::<ReplicaSet>(&set("r1", 6, 1, "another")).is_empty());
    assert!(world.apply::<Pod>(&gated()).is_empty());

    let workload = world.observe();
    assert_eq!(workload.replica_sets.len(), 1);
    assert!(!workload.pods[0].gated);
}

fn list<K: Watched + serde::de::DeserializeOwned>(cache: &SharedCache, objects: &[Value]) {
    cache.on::<K>(Event::Init);
    for object in objects {
        cache.on::<K>(Event::InitApply(read(object)));
    }
    cache.on::<K>(Event::InitDone);
}

/// A synced cache with a Deployment of two replicas, its ReplicaSet and one gated pod.
fn shared() -> SharedCache {
    let cache = SharedCache::new(Configured::new(&Settings::default()).unwrap(), Clock::system());
    list::<Namespace>(&cache, &[json!({"metadata": {"name": "shop"}})]);
    list::<Deployment>(&cache, &[web(1, 2)]);
    list::<ReplicaSet>(&cache, &[set("r1", 2, 1, "d")]);
    list::<Pod>(&cache, &[gated()]);
    list::<StatefulSet>(&cache, &[]);
    list::<PodDisruptionBudget>(&cache, &[]);
    list::<Node>(&cache, &[]);
    cache
}

/// Decides in the first term and expects a decision.
fn decided(cache: &SharedCache) -> Workload {
    match cache.decide(&key("Deployment", "shop", "web"), 1) {
        Step::Decided { decided, .. } => decided.0,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_workload_is_stale_until_its_pods_were_read_in_this_term() {
    let (cache, key) = (shared(), key("Deployment", "shop", "web"));
    assert!(matches!(cache.decide(&key, 1), Step::Stale { .. }));
    cache.mark_read(&key, 1);
    decided(&cache);
    assert!(matches!(cache.decide(&key, 2), Step::Stale { .. }), "a new term of ownership");
    cache.forget(&key);
    assert!(matches!(cache.decide(&key, 1), Step::Stale { .. }), "the workload had another owner");
}

#[tokio::test(start_paused = true)]
async fn a_lasting_mismatch_with_the_status_makes_a_workload_stale() {
    let (cache, key) = (shared(), key("Deployment", "shop", "web"));
    cache.mark_read(&key, 1);
    // The status counts two pods, the cache has one.
    let delay = |cache: &SharedCache| match cache.decide(&key, 1) {
        Step::Decided { recheck, .. } => recheck,
        _ => None,
    };
    assert_eq!(delay(&cache), Some(Duration::from_secs(2)));
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(matches!(cache.decide(&key, 1), Step::Stale { .. }));
    cache.mark_read(&key, 1);
    assert_eq!(delay(&cache), Some(Duration::from_secs(4)), "a read without effect doubles the patience");
}

#[tokio::test(start_paused = true)]
async fn a_removal_is_pending_until_it_is_delivered_or_expires() {
    let (cache, key) = (shared(), key("Deployment", "shop", "web"));
    cache.mark_read(&key, 1);
    cache.mark_removed("p");
    assert!(decided(&cache).pending.removed.contains("p"));

    tokio::time::advance(Duration::from_mins(2)).await;
    cache.mark_read(&key, 1);
    assert!(decided(&cache).pending.removed.is_empty());
}

#[test]
fn the_answer_to_a_write_does_not_bring_a_removed_pod_back() {
    let cache = shared();
    cache.store_pod(read(&pod(6, &json!({}), &json!([]))));
    assert!(!cache.observe("deployment/shop/web").unwrap().pods[0].gated, "the answer is newer");
    cache.remove_pod("p");
    cache.store_pod(read(&pod(7, &json!({}), &json!([]))));
    assert!(cache.observe("deployment/shop/web").unwrap().pods.is_empty());
}

#[test]
fn a_gated_pod_is_overdue_sooner_without_an_owner() {
    let cache = shared();
    let reasons = |attended: bool| cache.overdue(|_| attended).iter().map(|pod| pod.reason).collect::<Vec<_>>();
    assert_eq!(reasons(false), [UngateReason::Ownerless]);
    assert_eq!(reasons(true), [UngateReason::Timeout]);
}

/// A spot node of EKS, created long ago.
fn eks_node(name: &str) -> Value {
    json!({"metadata": {"name": name, "creationTimestamp": "1970-01-01T00:00:00Z",
                        "labels": {"eks.amazonaws.com/capacityType": "SPOT"}}, "spec": {}})
}

/// A Deployment for which spot is short since 01:00.
fn short() -> Value {
    let state = json!({"breaker": {"is": "open", "since": "1970-01-01T01:00:00Z", "probe": "1970-01-01T02:00:00Z",
                                   "attempt": 0}});
    let mut object = web(1, 10);
    object["metadata"]["annotations"]["perennial.dev/placement-state"] = json!(state.to_string());
    object
}

/// The label scheme is known only after the first node was read. A later heartbeat of that node must
/// not make it look like new capacity.
#[test]
fn a_node_that_was_listed_before_its_class_was_known_is_not_new() {
    let cache = SharedCache::new(Configured::new(&Settings::default()).unwrap(), Clock::system());
    list::<Namespace>(&cache, &[json!({"metadata": {"name": "shop"}})]);
    list::<Deployment>(&cache, &[short()]);
    list::<ReplicaSet>(&cache, &[set("r1", 2, 1, "d")]);
    list::<Pod>(&cache, &[]);
    list::<StatefulSet>(&cache, &[]);
    list::<PodDisruptionBudget>(&cache, &[]);
    list::<Node>(&cache, &[eks_node("a"), eks_node("b")]);

    cache.on::<Node>(Event::Apply(read(&eks_node("a"))));

    let spot = cache.observe("deployment/shop/web").unwrap().nodes.spot;
    assert_eq!(spot.total, 2);
    assert_eq!(spot.usable_since, Some(Timestamp::UNIX_EPOCH));
}

#[test]
fn a_node_without_room_is_no_evidence_and_room_on_any_node_is() {
    let mut world = World::new();
    let key = key("Deployment", "shop", "web");
    world.apply::<Deployment>(&short());
    world.now = Timestamp::from_second(7_200).unwrap();
    let spot =
        |name: &str| json!({"metadata": {"name": name, "labels": {"karpenter.sh/capacity-type": "spot"}}, "spec": {}});
    world.apply::<Node>(&spot("new"));
    assert_eq!(world.observe().nodes.spot.usable_since, Some(world.now));
    let searched = |world: &World, again| world.cache.nodes_to_search(&key, Class::Spot, again, 5);
    assert_eq!(searched(&world, false), ["new"]);

    let full = RoomSearched { full: vec!["new".to_owned()], found: None };
    world.cache.store_room(&key, Class::Spot, full, world.now);
    assert_eq!(world.observe().nodes.spot.usable_since, None);
    assert!(searched(&world, true).is_empty());

    let later = Timestamp::from_second(7_800).unwrap();
    let found = RoomSearched { full: Vec::new(), found: Some("new".to_owned()) };
    world.cache.store_room(&key, Class::Spot, found, later);
    assert_eq!(world.observe().nodes.spot.room_found, Some(later));
    assert_eq!(searched(&world, true), ["new"], "a node is full for a limited time");
    assert!(searched(&world, false).is_empty(), "its room was evidence already");
    assert!(world.cache.nodes_to_search(&key, Class::OnDemand, true, 5).is_empty());
}

fn controlled_by(kind: &str, api_version: &str, name: &str, uid: &str) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}])
}

fn pod_of_fleet(uid: &str, version: u64) -> Value {
    let mut pod = pod(version, &json!({"nodeName": "n1"}), &json!([]));
    pod["metadata"]["name"] = json!(uid);
    pod["metadata"]["uid"] = json!(uid);
    pod["metadata"]["ownerReferences"] = controlled_by("Fleet", "example.com/v1", "web", "f");
    pod["metadata"]["annotations"] = json!({"perennial.dev/spot-percentage": "70"});
    pod
}

#[test]
fn a_replica_set_without_a_deployment_is_a_workload_itself() {
    let mut world = World::new();
    let mut bare = set("r1", 2, 1, "d");
    bare["metadata"]["ownerReferences"] = controlled_by("Rollout", "argoproj.io/v1alpha1", "web", "x");
    bare["spec"]["template"]["metadata"]["annotations"] = json!({"perennial.dev/spot-percentage": "70"});
    assert_eq!(world.apply::<ReplicaSet>(&bare), ["replicaset/shop/r1"]);
    assert_eq!(world.apply::<Pod>(&gated()), ["replicaset/shop/r1"]);

    let workload = world.cache.observe("replicaset/shop/r1", &world.configured, world.now).unwrap();
    assert_eq!((workload.pods.len(), workload.replica_sets.len()), (1, 1));
    assert_eq!(workload.managed_spec().unwrap().split.spot(10), 7);

    // An orphan has copies of the annotations of its Deployment.
    let mut orphan = set("r2", 3, 1, "d");
    orphan["metadata"]["ownerReferences"] = json!([]);
    orphan["metadata"]["annotations"]["perennial.dev/spot-percentage"] = json!("70");
    world.apply::<ReplicaSet>(&orphan);
    let workload = world.cache.observe("replicaset/shop/r2", &world.configured, world.now).unwrap();
    assert!(workload.managed_spec().is_none());

    // A Deployment adopts it.
    world.apply::<Deployment>(&web(3, 10));
    world.apply::<ReplicaSet>(&set("r1", 4, 1, "d"));
    assert!(world.cache.workload("replicaset/shop/r1").is_none());
    assert_eq!(world.observe().pods.len(), 1);
}

#[test]
fn an_owner_of_another_kind_is_known_by_its_pods() {
    let mut world = World::new();
    assert_eq!(world.apply::<Pod>(&pod_of_fleet("p1", 5)), ["fleet.example.com/shop/web"]);
    world.apply::<Pod>(&pod_of_fleet("p2", 6));

    let key = "fleet.example.com/shop/web";
    let workload = world.cache.observe(key, &world.configured, world.now).unwrap();
    assert_eq!((workload.view.replicas, workload.view.current, workload.pods.len()), (2, 2, 2));
    assert_eq!(*key_of(&workload.view), *key);
    assert!(workload.managed_spec().is_some());

    world.on::<Pod>(Event::Delete(read(&pod_of_fleet("p1", 7))));
    world.on::<Pod>(Event::Delete(read(&pod_of_fleet("p2", 8))));
    assert!(world.cache.workload(key).is_none(), "its last pod is gone");
    let mut job = pod_of_fleet("p3", 9);
    job["metadata"]["ownerReferences"] = controlled_by("Job", "batch/v1", "task", "j");
    assert!(world.apply::<Pod>(&job).is_empty());
}

/// The annotations of a pod template count, and those of the workload override them.
#[test]
fn annotations_of_the_pod_template_count() {
    let mut world = World::new();
    let mut deployment = web(1, 10);
    deployment["metadata"]["annotations"] = json!({"perennial.dev/min-on-demand": "5"});
    deployment["spec"]["template"]["metadata"]["annotations"] =
        json!({"perennial.dev/spot-percentage": "70", "perennial.dev/min-on-demand": "3"});
    world.apply::<Deployment>(&deployment);
    assert_eq!(world.observe().managed_spec().unwrap().split.spot(10), 5);
}

fn versions(as_of: u64, pods: &[(&str, u64)]) -> PodVersions {
    let mut versions = PodVersions { as_of, ..PodVersions::default() };
    let listed = pods.iter().map(|(uid, version)| ((*uid).to_owned(), *version)).collect();
    versions.by_owner.insert("r1".to_owned(), listed);
    versions
}

/// A new owner trusts its cache only if it is as new as a list and contains every pod.
#[test]
fn cached_pods_are_current_if_they_are_as_new_as_a_list() {
    let cache = SharedCache::new(Configured::new(&Settings::default()).unwrap(), Clock::system());
    cache.on::<Namespace>(Event::Apply(read(&json!({"metadata": {"name": "shop"}}))));
    let mut deployment = web(1, 1);
    deployment["status"]["replicas"] = json!(1);
    cache.on::<Deployment>(Event::Apply(read(&deployment)));
    cache.on::<ReplicaSet>(Event::Apply(read(&set("r1", 2, 1, "d"))));
    cache.on::<Pod>(Event::Apply(read(&gated())));
    let workload = cache.observe("deployment/shop/web").unwrap();

    for (listed, current) in [
        (versions(9, &[("p", 5)]), true),
        (versions(4, &[]), true),
        (versions(9, &[("p", 6)]), false),
        (versions(9, &[]), false),
        (versions(9, &[("p", 5), ("q", 7)]), false),
    ] {
        assert_eq!(cache.is_current(&workload, &listed), current, "{listed:?}");
    }
    deployment["metadata"]["resourceVersion"] = json!("10");
    deployment["status"]["replicas"] = json!(2);
    cache.on::<Deployment>(Event::Apply(read(&deployment)));
    let workload = cache.observe("deployment/shop/web").unwrap();
    assert!(!cache.is_current(&workload, &versions(9, &[("p", 5)])), "a pod has no label");
}
