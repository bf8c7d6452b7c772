//! `KeepPolicy`: settings of the keeper for the nodes that it selects, over those of the
//! configuration.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::{Map, Value, json};

use super::selection::Policy;
use crate::config::{Keeper, LabelSelector, Layers, load};

/// A policy for the nodes that it selects.
#[derive(Clone, Debug, PartialEq)]
pub struct KeepPolicy {
    pub name: String,
    /// If several policies select a node, the highest priority applies, then the first name.
    pub priority: i64,
    pub selector: LabelSelector,
    pub policy: Arc<Policy>,
}

impl KeepPolicy {
    /// Parses the spec of a policy over the settings of the configuration. Returns all problems at
    /// once, each with its path.
    pub fn parse(name: &str, spec: &Value, base: &Keeper) -> Result<Self, Vec<String>> {
        let Some(spec) = spec.as_object() else { return Err(vec!["spec: expected a map".to_owned()]) };
        let mut keeper = spec.clone();
        let selector = keeper.remove("nodeSelector").unwrap_or_else(|| json!({}));
        let mut problems = Vec::new();
        let priority = match keeper.remove("priority") {
            None => 0,
            Some(value) => value.as_i64().unwrap_or_else(|| {
                problems.push(format!("spec.priority: expected a whole number, not {value}"));
                0
            }),
        };
        for key in keeper.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            problems.push(format!("spec.{key}: unknown key"));
        }
        keeper.retain(|key, _| KEYS.contains(&key.as_str()));

        // Read as a config file, so that rules and messages are the same.
        let file = json!({ "keeper": keeper, "controller": { "namespaceSelector": selector } });
        match load(&Layers { file: Some(file.to_string()), ..Layers::default() }) {
            Ok(loaded) if problems.is_empty() => {
                let chosen = overlay(base, &loaded.settings.keeper, &keeper);
                let policy = Arc::new(Policy { name: name.to_owned(), ..Policy::from_settings(&chosen) });
                let selector = loaded.settings.controller.namespace_selector;
                Ok(Self { name: name.to_owned(), priority, selector, policy })
            }
            Ok(_) => Err(problems),
            Err(error) => {
                problems.extend(error.problems.iter().map(|problem| {
                    let path =
                        problem.path.replace("controller.namespaceSelector", "nodeSelector").replace("keeper.", "");
                    format!("spec.{path}: {}", problem.message)
                }));
                Err(problems)
            }
        }
    }
}

/// Keys of a policy. They have the meaning of the same keys of the configuration.
const KEYS: &[&str] = &["keep", "drop", "annotations", "taints", "cordon", "merge", "identity", "retention"];

/// Returns the settings of the configuration, replaced by those that the policy sets.
fn overlay(base: &Keeper, said: &Keeper, keys: &Map<String, Value>) -> Keeper {
    let mut keeper = base.clone();
    let has = |key: &str| keys.contains_key(key);
    if has("keep") {
        keeper.keep = said.keep.clone();
    }
    if has("drop") {
        keeper.drop = said.drop.clone();
    }
    if has("annotations") {
        keeper.annotations = said.annotations.clone();
    }
    if has("taints") {
        keeper.taints = said.taints.clone();
    }
    if has("cordon") {
        keeper.cordon = said.cordon;
    }
    if has("merge") {
        keeper.merge = said.merge;
    }
    if has("identity") {
        keeper.identity = said.identity.clone();
    }
    if has("retention") {
        keeper.retention = said.retention;
    }
    keeper
}

/// Returns the policy for a node with these labels.
pub fn choose<'a>(policies: &'a [KeepPolicy], labels: &BTreeMap<String, String>) -> Option<&'a KeepPolicy> {
    let matching = policies.iter().filter(|policy| policy.selector.matches(labels));
    matching.min_by(|a, b| b.priority.cmp(&a.priority).then_with(|| a.name.cmp(&b.name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::Settings, keeper::keys::Key};

    fn base() -> Keeper {
        Settings::default().keeper
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_policy_changes_what_it_says_and_leaves_the_rest_to_the_config() {
        let spec = json!({"keep": ["example.com/"], "cordon": true, "priority": 3});
        let policy = KeepPolicy::parse("gpu", &spec, &base()).unwrap();
        assert!(policy.policy.keeps(&Key::label("example.com/x")) && !policy.policy.keeps(&Key::label("team")));
        assert!(policy.policy.keeps(&Key::Cordon));
        assert_eq!((policy.priority, policy.policy.name.as_str()), (3, "gpu"));
        assert_eq!(policy.policy.merge, base().merge);
    }

    #[test]
    fn all_that_is_wrong_is_said_with_its_path() {
        let spec = json!({"keep": "x y", "merge": "sometimes", "prio": 1, "nodeSelector": {"matchExpressions": [{"key": "a"}]}});
        let problems = KeepPolicy::parse("bad", &spec, &base()).unwrap_err();
        for path in ["spec.prio:", "spec.merge:", "spec.nodeSelector"] {
            assert!(problems.iter().any(|problem| problem.starts_with(path)), "{path} in {problems:?}");
        }
    }

    #[test]
    fn the_highest_priority_that_matches_is_chosen() {
        let policy = |name: &str, priority: i64, selector: Value| {
            KeepPolicy::parse(name, &json!({"priority": priority, "nodeSelector": selector}), &base()).unwrap()
        };
        let all = [
            policy("everyone", 0, json!({})),
            policy("gpu-b", 5, json!({"matchLabels": {"gpu": "yes"}})),
            policy("gpu-a", 5, json!({"matchLabels": {"gpu": "yes"}})),
            policy("db", 9, json!({"matchLabels": {"db": "yes"}})),
        ];
        assert_eq!(choose(&all, &labels(&[("gpu", "yes")])).unwrap().name, "gpu-a");
        assert_eq!(choose(&all, &labels(&[])).unwrap().name, "everyone");
        assert!(choose(&all[1..], &labels(&[])).is_none());
    }
}
