//! Node patches: the request bodies of a restore and of the removal of the gate taint.

use serde_json::{Map, Value, json};

use super::{
    admission::is_gate,
    decide::Restore,
    keys::{Key, TRUE, Taint},
    mark::MARK,
    selection::Node,
};

/// Renders a merge patch that applies only to the state of the node that was decided on (409
/// otherwise).
pub fn node_patch(node: &Node, restore: &Restore) -> Value {
    let mut labels = Map::new();
    let mut annotations = Map::new();
    let mut spec = Map::new();
    for (key, value) in changes(restore) {
        match key {
            Key::Label(key) => drop(labels.insert(key.clone(), json!(value))),
            Key::Annotation(key) => drop(annotations.insert(key.clone(), json!(value))),
            Key::Cordon => drop(spec.insert("unschedulable".into(), json!(value.map(|value| value == TRUE)))),
            Key::Taint { .. } => {}
        }
    }
    let kept = node.annotations.iter().filter(|(key, _)| !annotations.contains_key(*key));
    let kept = kept.map(|(key, value)| (key.as_str(), value.as_str()));
    let set = annotations.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
    let (mark, _) = restore.mark.render_beside(kept.chain(set));
    annotations.insert(MARK.into(), json!(mark));
    let mut taints = taints(&node.taints, restore);
    if !restore.waits {
        taints.retain(|taint| !is_gate(taint));
    }
    if taints != node.taints {
        spec.insert("taints".into(), json!(taints));
    }

    let mut metadata = json!({
        "uid": node.uid,
        "resourceVersion": node.resource_version.to_string(),
        "annotations": annotations,
    });
    if !labels.is_empty() {
        metadata["labels"] = Value::Object(labels);
    }
    let mut patch = json!({ "metadata": metadata });
    if !spec.is_empty() {
        patch["spec"] = Value::Object(spec);
    }
    patch
}

/// Renders a merge patch that removes the gate taint from a node.
pub fn ungate_patch(node: &Node) -> Value {
    let taints: Vec<&Taint> = node.taints.iter().filter(|taint| !is_gate(taint)).collect();
    json!({
        "metadata": { "uid": node.uid, "resourceVersion": node.resource_version.to_string() },
        "spec": { "taints": taints },
    })
}

fn changes(restore: &Restore) -> impl Iterator<Item = (&Key, Option<&String>)> {
    let set = restore.set.iter().map(|(key, value)| (key, Some(value)));
    set.chain(restore.remove.iter().map(|key| (key, None)))
}

/// Returns the taints of the node with the restored ones. A merge patch replaces the whole list, so
/// taints of others are included as they are. The resourceVersion in the patch ensures that none
/// was added in between.
pub fn taints(present: &[Taint], restore: &Restore) -> Vec<Taint> {
    let mut taints = present.to_vec();
    for (key, value) in changes(restore) {
        let Key::Taint { key, effect } = key else { continue };
        taints.retain(|taint| taint.key != *key || taint.effect != *effect);
        taints.extend(value.map(|value| Taint {
            key: key.clone(),
            value: value.clone(),
            effect: effect.clone(),
            time_added: None,
        }));
    }
    taints
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::keeper::{keys::Kept, mark::Mark};

    #[test]
    fn the_patch_names_the_state_it_was_decided_on_and_touches_only_its_keys() {
        let taint =
            |key: &str| Taint { key: key.into(), value: String::new(), effect: "NoSchedule".into(), time_added: None };
        let node = Node {
            name: "n1".into(),
            uid: "u1".into(),
            resource_version: 7,
            taints: vec![taint("theirs")],
            ..Node::default()
        };
        let restore = Restore {
            set: Kept::from([
                (Key::label("example.com/team"), "ml".into()),
                (Key::Taint { key: "gpu".into(), effect: "NoSchedule".into() }, String::new()),
            ]),
            remove: BTreeSet::from([Key::label("old"), Key::Cordon]),
            mark: Mark::default(),
            withheld: BTreeSet::new(),
            waits: false,
        };
        assert_eq!(
            node_patch(&node, &restore),
            json!({
                "metadata": {
                    "uid": "u1",
                    "resourceVersion": "7",
                    "labels": {"example.com/team": "ml", "old": null},
                    "annotations": {MARK: Mark::default().render()},
                },
                "spec": {
                    "unschedulable": null,
                    "taints": [{"key": "theirs", "effect": "NoSchedule"}, {"key": "gpu", "effect": "NoSchedule"}],
                },
            })
        );
    }

    #[test]
    fn taints_that_did_not_change_are_not_in_the_patch() {
        let restore = Restore {
            set: Kept::new(),
            remove: BTreeSet::new(),
            mark: Mark::default(),
            withheld: BTreeSet::new(),
            waits: false,
        };
        assert!(node_patch(&Node::default(), &restore).get("spec").is_none());
    }
}
