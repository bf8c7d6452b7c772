//! Class and state of every node. A cluster may have very many nodes, so names are stored as keyed
//! hashes: the probability that two of a hundred thousand nodes collide is one in four thousand
//! million. Labels and taints are stored only for the nodes that became usable last: they are the
//! evidence that a class has capacity again.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{BuildHasher, RandomState},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelector;
use perennial_core::{
    keeper::keys::Taint,
    placement::{
        Class,
        node_labels::schemes::{SchemeClasses, SchemeSet},
        workload::{ClassNodes, ClusterNodes, NodeView},
    },
};

use super::{
    super::{node_affinity, objects::Toleration},
    room::RoomFindings,
};
use crate::runtime::map::HashMap;

/// Maximum number of nodes of which labels and taints are stored.
const MAX_RECENT: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Nodes {
    entries: HashMap<u64, ClassifiedNode>,
    counts: [u32; 3],
    /// By time at which the node became usable, and its hash.
    recent: BTreeMap<(Timestamp, u64), UsableNode>,
    keys: RandomState,
    /// Label schemes that the nodes indicate. Only grows: an autoscaled group may be empty at
    /// times.
    detected: SchemeSet,
}

/// Meaning of a node's labels.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeLabelling {
    pub classes: SchemeClasses,
    /// The label schemes that they indicate.
    pub schemes: SchemeSet,
}

#[derive(Clone, Copy, Debug)]
struct ClassifiedNode {
    view: NodeView,
    classes: SchemeClasses,
    /// The node is part of the current list, or of the last complete one.
    listed: bool,
    usable_since: Option<Timestamp>,
}

/// A node that accepts pods. Its class depends on the label schemes in use, which change when more
/// nodes are known.
#[derive(Clone, Debug)]
pub struct UsableNode {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Taints that keep pods away from a spot node. Spot pods get tolerations for the others.
    pub spot_taints: Vec<Taint>,
    /// Taints that keep pods away from any other node.
    pub taints: Vec<Taint>,
}

/// Constraints of a workload's pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodConstraints<'a> {
    /// Room on nodes, as far as it was searched for.
    pub room: Option<&'a RoomFindings>,
    pub selector: &'a BTreeMap<String, String>,
    /// Their required node affinity.
    pub affinity: Option<&'a NodeSelector>,
    pub tolerations: &'a [Toleration],
}

/// Change of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeChange {
    pub changed: bool,
    pub became_usable: bool,
}

impl Nodes {
    pub(super) fn get(&self, name: &str) -> Option<NodeView> {
        self.entries.get(&self.keys.hash_one(name)).map(|node| node.view)
    }

    /// Stores a node. `usable`: the node accepts pods, since `at` if it did not before, or if its labels
    /// meant another class.
    pub(super) fn put(
        &mut self,
        name: &str,
        (view, labelling): (NodeView, NodeLabelling),
        usable: Option<UsableNode>,
        at: Timestamp,
    ) -> NodeChange {
        self.detected = self.detected | labelling.schemes;
        let hash = self.keys.hash_one(name);
        let before = self.entries.get(&hash).copied();
        let known = before.filter(|before| before.classes == labelling.classes).and_then(|before| before.usable_since);
        let usable_since = usable.as_ref().map(|_| known.unwrap_or(at));
        self.forget(hash);
        if let (Some(node), Some(since)) = (usable, usable_since) {
            self.recent.insert((since, hash), node);
            if self.recent.len() > MAX_RECENT {
                self.recent.pop_first();
            }
        }
        self.entries.insert(hash, ClassifiedNode { view, classes: labelling.classes, listed: true, usable_since });
        self.counts[place(view.class)] += 1;
        NodeChange {
            changed: before.map(|node| node.view) != Some(view),
            became_usable: usable_since.is_some() && known.is_none(),
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.forget(self.keys.hash_one(name));
    }

    fn forget(&mut self, hash: u64) {
        if let Some(old) = self.entries.remove(&hash) {
            let count = &mut self.counts[place(old.view.class)];
            *count = count.saturating_sub(1);
            if let Some(since) = old.usable_since {
                self.recent.remove(&(since, hash));
            }
        }
    }

    pub(super) fn detected(&self) -> SchemeSet {
        self.detected
    }

    /// Gives every node its class by other label schemes. A node is usable since the same time as
    /// before, so that it does not look new.
    pub(super) fn reclassify(&mut self, active: SchemeSet) {
        self.counts = [0; 3];
        for node in self.entries.values_mut() {
            node.view.class = node.classes.class(active);
            self.counts[place(node.view.class)] += 1;
        }
    }

    /// Returns the number of nodes of each class.
    pub(super) fn counts(&self) -> ClusterNodes {
        let [spot, on_demand, other] = self.counts;
        let nodes = |total| ClassNodes { total, ..ClassNodes::default() };
        ClusterNodes { spot: nodes(spot), on_demand: nodes(on_demand), other }
    }

    /// Returns the number of nodes of each class, and when the newest one that these pods may use
    /// became usable.
    pub(super) fn for_pods(&self, pods: PodConstraints<'_>) -> ClusterNodes {
        let newest = |class| self.usable(class, pods).next().map(|(since, _)| since);
        let mut nodes = self.counts();
        nodes.spot.usable_since = newest(Class::Spot);
        nodes.on_demand.usable_since = newest(Class::OnDemand);
        nodes
    }

    /// Returns the nodes of a class that these pods may use, the newest first, and since when.
    pub(super) fn usable<'a>(
        &'a self,
        class: Class,
        pods: PodConstraints<'a>,
    ) -> impl Iterator<Item = (Timestamp, &'a UsableNode)> {
        let is_class = move |hash: &u64| self.entries.get(hash).is_some_and(|entry| entry.view.class == Some(class));
        let found = self.recent.iter().rev();
        let found = found.filter(move |((_, hash), node)| is_class(hash) && pods.may_use(node, class));
        found.map(|((since, _), node)| (*since, node))
    }

    /// Starts a list. Nodes are marked as they arrive: a set of all names would need as much memory
    /// again.
    pub(super) fn begin_list(&mut self) {
        self.entries.values_mut().for_each(|node| node.listed = false);
    }

    /// Ends a list: nodes that it did not contain are gone.
    pub(super) fn end_list(&mut self) {
        let gone: HashSet<u64> = self.entries.iter().filter(|(_, node)| !node.listed).map(|(hash, _)| *hash).collect();
        for hash in gone {
            self.forget(hash);
        }
        self.entries.shrink_to_fit();
    }
}

fn place(class: Option<Class>) -> usize {
    match class {
        Some(Class::Spot) => 0,
        Some(Class::OnDemand) => 1,
        None => 2,
    }
}

impl PodConstraints<'_> {
    fn may_use(&self, node: &UsableNode, class: Class) -> bool {
        let selected = self.selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let selected =
            selected && self.affinity.is_none_or(|required| node_affinity::matches(required, &node.name, &node.labels));
        let is_full = self.room.is_some_and(|room| room.is_full(&node.name));
        let taints = if class == Class::Spot { &node.spot_taints } else { &node.taints };
        selected && !is_full && taints.iter().all(|taint| self.tolerations.iter().any(|one| one.tolerates(taint)))
    }
}

#[cfg(test)]
mod tests {
    use perennial_core::{config::NodeLabelSettings, placement::node_labels::schemes::LabelSchemes};

    use super::*;

    const SPOT: NodeView = NodeView { class: Some(Class::Spot), leaving: false };

    fn labelled(view: NodeView) -> (NodeView, NodeLabelling) {
        (view, NodeLabelling::default())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn usable(pool: &str, taint: Option<&str>) -> UsableNode {
        let taint = taint.map(|key| Taint {
            key: key.to_owned(),
            value: String::new(),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
        let taints: Vec<Taint> = taint.into_iter().collect();
        UsableNode {
            name: String::new(),
            labels: [("pool".to_owned(), pool.to_owned())].into(),
            spot_taints: taints.clone(),
            taints,
        }
    }

    fn newest(nodes: &Nodes, pool: &str, tolerations: &[Toleration]) -> Option<i64> {
        let selector = [("pool".to_owned(), pool.to_owned())].into();
        let nodes = nodes.for_pods(PodConstraints { room: None, selector: &selector, affinity: None, tolerations });
        nodes.spot.usable_since.map(Timestamp::as_second)
    }

    #[test]
    fn a_node_is_evidence_for_pods_that_may_use_it_since_it_is_usable() {
        let mut nodes = Nodes::default();
        assert!(!nodes.put("a", labelled(SPOT), None, at(1)).became_usable, "not Ready yet");
        assert!(nodes.put("a", labelled(SPOT), Some(usable("x", None)), at(5)).became_usable);
        assert!(!nodes.put("a", labelled(SPOT), Some(usable("x", None)), at(9)).became_usable);
        assert_eq!(newest(&nodes, "x", &[]), Some(5));
        assert_eq!(newest(&nodes, "y", &[]), None);

        nodes.put("b", labelled(SPOT), Some(usable("x", Some("gpu"))), at(7));
        assert_eq!(newest(&nodes, "x", &[]), Some(5), "the taint is not tolerated");
        let gpu =
            Toleration { key: Some("gpu".to_owned()), operator: Some("Exists".to_owned()), ..Toleration::default() };
        assert_eq!(newest(&nodes, "x", &[gpu]), Some(7));
    }

    #[test]
    fn a_node_that_gets_the_label_of_a_class_is_evidence_since_then() {
        let schemes = LabelSchemes::new(&NodeLabelSettings::default()).unwrap();
        let active = schemes.active(SchemeSet::default());
        let labelled = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let classes = schemes.classes_of_node(&labels);
            let labelling = NodeLabelling { classes, schemes: schemes.detect(&labels) };
            (NodeView { class: classes.class(active), leaving: false }, labelling)
        };
        let spot = [("karpenter.sh/capacity-type", "spot")];
        let mut nodes = Nodes::default();
        nodes.put("a", labelled(&[]), Some(usable("x", None)), at(1));
        assert!(nodes.put("a", labelled(&spot), Some(usable("x", None)), at(5)).became_usable);
        assert_eq!(newest(&nodes, "x", &[]), Some(5));
        assert!(!nodes.put("a", labelled(&spot), Some(usable("x", None)), at(9)).became_usable);
        assert_eq!(newest(&nodes, "x", &[]), Some(5));
    }

    #[test]
    fn nodes_are_counted_by_class_through_changes_and_lists() {
        let mut nodes = Nodes::default();
        let other = NodeView { class: None, leaving: false };
        nodes.put("a", labelled(SPOT), Some(usable("x", None)), at(1));
        nodes.put("b", labelled(other), None, at(1));
        assert_eq!((nodes.counts().spot.total, nodes.counts().other), (1, 1));
        nodes.put("a", labelled(other), None, at(2));
        assert_eq!((nodes.counts().spot.total, nodes.counts().other), (0, 2));
        assert_eq!(newest(&nodes, "x", &[]), None);
        nodes.begin_list();
        nodes.put("b", labelled(SPOT), None, at(3));
        nodes.end_list();
        assert_eq!((nodes.counts().spot.total, nodes.counts().other), (1, 0));
        nodes.remove("b");
        assert_eq!(nodes.counts(), ClusterNodes::default());
    }
}
