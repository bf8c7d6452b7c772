//! The caches: what the watches say, in whatever order, becomes what decisions are made on.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kube::runtime::watcher::Event;
use perennial_core::{
    config::Settings,
    placement::{
        Class, GATE, SLOT,
        node_labels::Choice,
        workload::{Place, Workload},
    },
};
use serde_json::{Value, json};

use super::{
    index::{Reading, key_of, shard_key},
    objects::{Deployment, Namespace, Pod, PodDisruptionBudget, ReplicaSet, StatefulSet},
    observe::{Observed, View},
    settings::Configured,
};
use crate::keeper::node::Node;

struct World {
    configured: Configured,
    view: View,
    now: Timestamp,
}

impl World {
    /// All lists are read, and empty but for the namespace.
    fn new() -> Self {
        let configured = Configured::new(&Settings::default()).unwrap();
        let mut world = Self { configured, view: View::default(), now: Timestamp::UNIX_EPOCH };
        world.list::<Namespace>(&[json!({"metadata": {"name": "shop"}})]);
        world.list::<Deployment>(&[]);
        world.list::<StatefulSet>(&[]);
        world.list::<ReplicaSet>(&[]);
        world.list::<Pod>(&[]);
        world.list::<PodDisruptionBudget>(&[]);
        world.list::<Node>(&[]);
        world
    }

    fn on<K: Observed>(&mut self, event: Event<K>) -> Vec<String> {
        let reading = Reading { configured: &self.configured, now: self.now, listed: false };
        self.view.on(event, reading).iter().map(ToString::to_string).collect()
    }

    fn list<K: Observed + serde::de::DeserializeOwned>(&mut self, objects: &[Value]) {
        self.on::<K>(Event::Init);
        for object in objects {
            self.on::<K>(Event::InitApply(read(object)));
        }
        self.on::<K>(Event::InitDone);
    }

    fn apply<K: Observed + serde::de::DeserializeOwned>(&mut self, object: &Value) -> Vec<String> {
        self.on::<K>(Event::Apply(read(object)))
    }

    fn look(&self) -> Workload {
        self.view.index.observe("deployment/shop/web", &self.configured, self.now).unwrap()
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
fn a_pod_asks_for_its_workload_whichever_came_first() {
    let mut world = World::new();
    assert!(world.apply::<Pod>(&gated()).is_empty(), "its owner is not known yet");
    assert!(world.apply::<ReplicaSet>(&set("r1", 2, 1, "d")).is_empty());

    assert_eq!(world.apply::<Deployment>(&web(1, 10)), ["deployment/shop/web"]);

    let look = world.look();
    assert_eq!((look.pods.len(), look.replica_sets.len()), (1, 1));
    assert!(look.pods[0].gated && look.replica_sets[0].newest);
    assert_eq!(look.view.max_unavailable, 2);
    assert_eq!(
        world.view.index.workload("deployment/shop/web").unwrap().annotations.len(),
        1,
        "what says nothing about placement is not kept"
    );
    assert_eq!(look.view.template, Choice::Any);
    assert_eq!(shard_key(&key_of(&look.view)), "shop/web");
}

#[test]
fn of_two_versions_the_newer_stays() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(7, 20));
    assert!(world.apply::<Deployment>(&web(6, 10)).is_empty(), "an old event is nothing to look at");
    assert_eq!(world.look().view.replicas, 20);
}

#[test]
fn what_a_new_list_does_not_have_is_gone() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.apply::<Pod>(&gated());

    world.list::<Pod>(&[]);

    assert!(world.look().pods.is_empty());
}

/// One that never had our label is in no watch: only reading its workload again shows that it is gone.
#[test]
fn a_pod_that_a_later_list_of_its_workload_lacks_is_gone_unless_it_is_newer() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.apply::<Pod>(&gated());
    let index = &mut world.view.index;

    index.retain_pods_of(&["d", "r2"], 9, |_| false);
    index.retain_pods_of(&["d", "r1"], 9, |_| true);
    index.retain_pods_of(&["d", "r1"], 4, |_| false);
    assert_eq!(world.look().pods.len(), 1, "another's, still there, or made after the list");

    world.view.index.retain_pods_of(&["d", "r1"], 5, |_| false);
    assert!(world.look().pods.is_empty());
}

#[test]
fn an_orphaned_replica_set_and_its_pods_are_no_longer_the_deployments() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    world.apply::<ReplicaSet>(&set("r2", 3, 2, "d"));
    world.apply::<Pod>(&gated());
    assert_eq!(
        world.look().replica_sets.iter().filter(|set| set.newest).map(|set| &*set.uid).collect::<Vec<_>>(),
        ["r2"]
    );

    assert_eq!(world.apply::<ReplicaSet>(&set("r1", 9, 1, "another")), ["deployment/shop/web"]);

    let look = world.look();
    assert_eq!((look.replica_sets.len(), look.pods.len()), (1, 0));
}

#[test]
fn the_time_without_a_place_counts_from_when_it_was_first_seen() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    let waiting = json!([{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]);
    world.apply::<Pod>(&pod(5, &json!({"schedulingGates": [{"name": GATE}]}), &waiting));
    assert_eq!(world.look().pods[0].unschedulable, None);

    world.now += SignedDuration::from_mins(9);
    let first = world.now;
    let stuck = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let spot = json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}});
    world.apply::<Pod>(&pod(6, &spot, &stuck));
    world.now += SignedDuration::from_mins(1);
    world.apply::<Pod>(&pod(7, &spot, &stuck));

    let look = world.look();
    assert_eq!(look.pods[0].unschedulable, Some(first));
    assert_eq!(look.pods[0].choice, Choice::Only(Class::Spot));
}

#[test]
fn a_node_that_is_going_is_told_to_the_workloads_on_it() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    let node = |taints: Value| json!({"metadata": {"name": "n", "labels": {"karpenter.sh/capacity-type": "spot"}}, "spec": {"taints": taints}});
    world.apply::<Node>(&node(json!([])));
    world.apply::<Pod>(&pod(5, &json!({"nodeName": "n"}), &json!([])));
    assert_eq!(world.look().pods[0].node.unwrap().class, Some(Class::Spot));

    let disrupted = node(json!([{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]));
    assert_eq!(world.apply::<Node>(&disrupted), ["deployment/shop/web"]);
    assert!(world.apply::<Node>(&disrupted).is_empty(), "a heartbeat changes nothing");

    assert!(world.look().pods[0].node.unwrap().leaving);
}

#[test]
fn namespaces_decide_who_is_managed_and_the_systems_own_never_is() {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    assert!(world.look().spec.unwrap().is_some());

    assert!(!world.configured.selects("kube-system", &[].into()));
    assert!(!world.configured.selects("perennial-system", &[].into()));
    world.on::<Namespace>(Event::Delete(read(&json!({"metadata": {"name": "shop"}}))));

    assert!(world.look().spec.unwrap().is_none());
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
    assert_eq!(world.look().pdbs.iter().map(|pdb| &*pdb.name).collect::<Vec<_>>(), ["ours"]);

    assert_eq!(world.apply::<PodDisruptionBudget>(&budget("ours", "web", 1)), ["deployment/shop/web"]);
    assert!(world.apply::<PodDisruptionBudget>(&budget("ours", "web", 2)).is_empty());

    world.apply::<PodDisruptionBudget>(&budget("ours", "web", 0));
    let elsewhere = budget("ours", "db", 0);
    assert_eq!(world.apply::<PodDisruptionBudget>(&elsewhere), ["deployment/shop/web"], "it has let go of it");
    assert!(world.look().pdbs.is_empty());
    assert!(world.apply::<PodDisruptionBudget>(&elsewhere).is_empty());
}

#[test]
fn nothing_is_asked_for_before_every_list_is_read() {
    let configured = Configured::new(&Settings::default()).unwrap();
    let mut world = World { configured, view: View::default(), now: Timestamp::UNIX_EPOCH };
    assert!(world.apply::<Deployment>(&web(1, 10)).is_empty());
    assert!(world.view.everything().is_empty());
    let ready = World::new();
    assert!(ready.view.is_synced());
    assert!(ready.view.everything().iter().map(Arc::clone).next().is_none());
}

/// A ReplicaSet with a place open, in the first term.
fn with_an_open_place() -> World {
    let mut world = World::new();
    world.apply::<Deployment>(&web(1, 10));
    world.apply::<ReplicaSet>(&set("r1", 2, 1, "d"));
    let place = Place { class: Class::Spot, slot: 4 };
    world.view.index.places.open([("r1".to_owned(), vec![place])].into(), 1);
    world
}

#[test]
fn places_survive_a_change_of_their_replica_set_but_not_of_its_owner() {
    let mut world = with_an_open_place();
    world.apply::<ReplicaSet>(&set("r1", 3, 1, "d"));
    assert!(world.view.index.places.give("r1", 1, world.now).is_some());

    let mut world = with_an_open_place();
    world.apply::<ReplicaSet>(&set("r1", 4, 1, "another"));
    assert!(world.view.index.places.give("r1", 1, world.now).is_none());
}

#[test]
fn a_pod_that_was_given_a_place_is_expected_until_the_watch_shows_it() {
    let mut world = with_an_open_place();
    let sets = world.look().replica_sets;
    world.view.index.places.give("r1", 1, world.now).unwrap();
    assert_eq!(world.view.index.places.expected(&sets, world.now).len(), 1);

    let mut seen = pod(5, &json!({"nodeSelector": {"karpenter.sh/capacity-type": "spot"}}), &json!([]));
    seen["metadata"]["annotations"] = json!({SLOT: "4"});
    world.apply::<Pod>(&seen);

    assert!(world.view.index.places.expected(&sets, world.now).is_empty());
}
