//! The configuration file of Spotalis, which is read unchanged: its keys are translated to ours.
//!
//! Keys that Spotalis does not have are left where they are, so that they are refused as unknown.

use serde::Deserialize;
use serde_json::{Map, Value as Tree, json};

use super::selector::LabelSelector;

/// Sections that only a file of Spotalis has.
const SECTIONS: &[&str] = &["operator", "controllers", "observability"];

/// Keys in other sections that only a file of Spotalis has.
const SIGNS: &[&str] =
    &["/controller/leaderElection/id", "/webhook/certName", "/webhook/keyName", "/metrics/bindAddress"];

/// Keys of Spotalis and the keys that they become.
const MOVED: &[(&str, &str)] = &[
    ("operator.namespace", "namespace"),
    ("operator.readOnlyMode", "controller.dryRun"),
    ("operator.leaderElection.enabled", "controller.leaderElection.enabled"),
    ("operator.leaderElection.namespace", "controller.leaderElection.namespace"),
    ("operator.leaderElection.leaseDuration", "controller.leaderElection.leaseDuration"),
    ("operator.disruptionWindow.schedule", "placement.defaults.disruptionSchedule"),
    ("operator.disruptionWindow.duration", "placement.defaults.disruptionDuration"),
    ("controllers.reconcileInterval", "controller.resyncPeriod"),
    ("controllers.maxConcurrentReconciles", "controller.workers"),
    ("controllers.rateLimit.qps", "controller.qps"),
    ("controllers.rateLimit.burst", "controller.burst"),
    ("controllers.watchNamespaces", "controller.namespaceSelector"),
    ("controllers.workloadTiming.cooldownPeriod", "placement.cooldown"),
    ("controllers.nodeClassifier.spotLabels", "nodeLabels.spot"),
    ("controllers.nodeClassifier.onDemandLabels", "nodeLabels.onDemand"),
    ("observability.logging.level", "logging.level"),
    ("observability.logging.format", "logging.format"),
    ("observability.metrics.enabled", "metrics.enabled"),
    ("observability.metrics.bindAddress", "metrics.port"),
    ("controller.reconcileInterval", "controller.resyncPeriod"),
    ("controller.maxConcurrentReconciles", "controller.workers"),
    ("metrics.bindAddress", "metrics.port"),
];

/// Keys of Spotalis without a counterpart: the same by default, or of its implementation.
const IGNORED: &[&str] = &[
    "operator.leaderElection.id",
    "controller.leaderElection.id",
    "controllers.workloadTiming.disruptionRetryInterval",
    "controllers.workloadTiming.disruptionWindowPollInterval",
    "webhook.certName",
    "webhook.keyName",
    "observability.logging.output",
    "observability.logging.addCaller",
    "observability.logging.development",
    "observability.metrics.path",
    "logging.output",
    "logging.addCaller",
    "logging.development",
    "metrics.path",
    "observability.health.enabled",
    "observability.health.bindAddress",
    "observability.health.path",
];

/// Translates a file of Spotalis. Any other file stays as it is.
pub(super) fn translate(mut tree: Tree) -> Tree {
    for class in ["nodeLabels.spot", "nodeLabels.onDemand"] {
        if let Some(value) = take(&mut tree, class) {
            put(&mut tree, class, converted(class, value));
        }
    }
    let has_section = SECTIONS.iter().any(|section| tree.get(section).is_some());
    if !has_section && !SIGNS.iter().any(|sign| tree.pointer(sign).is_some()) {
        return tree;
    }
    for path in IGNORED {
        take(&mut tree, path);
    }
    for (from, to) in MOVED {
        if let Some(value) = take(&mut tree, from) {
            put(&mut tree, to, converted(to, value));
        }
    }
    for section in SECTIONS {
        if tree.get(section).is_some_and(is_empty) {
            take(&mut tree, section);
        }
    }
    if tree.pointer("/placement/annotationPrefixes").is_none() {
        put(&mut tree, "placement.annotationPrefixes", json!(["perennial.dev", "spotalis.io"]));
    }
    tree
}

/// Converts the value of a key to the form of the key that it becomes.
fn converted(to: &str, value: Tree) -> Tree {
    match (to, value) {
        ("controller.qps" | "controller.burst", Tree::Number(number)) => {
            // Rates are written as decimal numbers: 100.0.
            number
                .to_string()
                .split('.')
                .next()
                .and_then(|whole| whole.parse::<u64>().ok())
                .map_or(Tree::Number(number), Tree::from)
        }
        ("metrics.port", Tree::String(address)) => {
            let port = address.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
            port.map_or(Tree::String(address), Tree::from)
        }
        ("logging.format", Tree::String(format)) if format == "console" => json!("text"),
        ("nodeLabels.spot" | "nodeLabels.onDemand", Tree::Array(selectors)) => {
            selectors.into_iter().map(selector_text).collect()
        }
        ("nodeLabels.spot" | "nodeLabels.onDemand", labels @ Tree::Object(_)) => json!([selector_text(labels)]),
        ("controller.namespaceSelector", Tree::Array(names)) if !names.is_empty() => {
            json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": names}]})
        }
        ("controller.namespaceSelector", Tree::Array(_)) => json!({}),
        (_, value) => value,
    }
}

/// Returns a selector, or a mapping of labels, in one line.
fn selector_text(value: Tree) -> Tree {
    let Tree::Object(labels) = &value else { return value };
    let selector =
        LabelSelector::deserialize(&value).or_else(|_| LabelSelector::deserialize(json!({"matchLabels": labels})));
    selector.map_or(value, |selector| json!(selector.to_string()))
}

fn is_empty(tree: &Tree) -> bool {
    tree.as_object().is_some_and(|map| map.values().all(is_empty))
}

fn take(tree: &mut Tree, path: &str) -> Option<Tree> {
    let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut names = parents.split('.').filter(|name| !name.is_empty());
    names.try_fold(tree, |tree, name| tree.get_mut(name))?.as_object_mut()?.remove(name)
}

/// Sets a key, unless the file has it too.
fn put(tree: &mut Tree, path: &str, value: Tree) {
    let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut place = tree;
    for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
        let Some(map) = place.as_object_mut() else { return };
        place = map.entry(parent).or_insert_with(|| Tree::Object(Map::new()));
    }
    if let Some(map) = place.as_object_mut() {
        map.entry(name).or_insert(value);
    }
}
