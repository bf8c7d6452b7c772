//! `KeepPolicy`: settings of the keeper for the nodes that it selects, over those of the
//! configuration.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::{Value, json};

use super::selection::Policy;
use crate::config::{Identity, Keeper, LabelSelector, Merge, Patterns, duration::DurationText, read, selector};

/// A policy for the nodes that it selects.
#[derive(Clone, Debug, PartialEq)]
pub struct KeepPolicy {
    pub name: String,
    /// If several policies select a node, the highest priority applies, then the first name.
    pub priority: i64,
    pub selector: LabelSelector,
    pub policy: Arc<Policy>,
}

/// Settings of the nodes that the policy selects. Fields that are not set are as in the operator's
/// config file.
// The doc comments are the descriptions of the CustomResourceDefinition; the validations in CEL are
// the API server's.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping")]
pub struct KeepPolicySpec {
    /// If several policies select a node, the one with the highest priority applies; among equals
    /// the first by name.
    #[serde(default)]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    priority: i32,
    /// Nodes that the policy applies to. Empty: all nodes. A returning node is also selected by the
    /// labels that it had when it was captured.
    #[schemars(with = "Option<selector::SelectorMapping>")]
    node_selector: Option<LabelSelector>,
    /// Label keys to keep: keys, prefixes that end in a slash, or patterns with *.
    #[schemars(transform = limit_patterns)]
    keep: Option<Patterns>,
    /// Label keys not to keep, although a pattern of keep matches them.
    #[schemars(transform = limit_patterns)]
    drop: Option<Patterns>,
    /// Label keys not to keep, in addition to drop.
    #[schemars(transform = limit_patterns)]
    drop_also: Option<Patterns>,
    /// Annotation keys to keep.
    #[schemars(transform = limit_patterns)]
    annotations: Option<Patterns>,
    /// Taint keys to keep. Startup taints are never kept.
    #[schemars(transform = limit_patterns)]
    taints: Option<Patterns>,
    /// Keep whether a node is cordoned, with the reason (annotation perennial.dev/cordon-reason).
    cordon: Option<bool>,
    /// Value that wins if a returning node has another one than its record: that of the node
    /// (keepExisting) or that of the record (overwrite).
    merge: Option<Merge>,
    /// Property by which a returning node is recognized: auto (the instance on AWS, otherwise the
    /// name), name, providerID, systemUUID, machineID, label:KEY or annotation:KEY.
    #[schemars(length(max = 400), extend("x-kubernetes-validations" = [{
        "rule": "self in ['auto', 'name', 'providerID', 'systemUUID', 'machineID'] || self.matches('^(label|annotation):.+$')",
        "message": "expected auto, name, providerID, systemUUID, machineID, label:KEY or annotation:KEY",
    }]))]
    identity: Option<Identity>,
    /// How long a record is kept after its node disappeared: 30d, 720h, 1h30m.
    #[serde(default, deserialize_with = "positive")]
    #[schemars(with = "Option<String>", length(max = 32), extend("x-kubernetes-validations" = [{
        "rule": "self != '' && self.matches('^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$')",
        "message": "expected a duration such as 30d, 720h or 1h30m",
    }]))]
    retention: Option<Duration>,
}

fn limit_patterns(schema: &mut Schema) {
    schema.insert("maxItems".to_owned(), json!(256));
    schema.insert("items".to_owned(), json!({ "type": "string", "minLength": 1, "maxLength": 317 }));
    let rule = json!({
        "rule": "self.all(p, !p.matches('[\\\\s,=]'))",
        "message": "a pattern is a key, a prefix that ends in a slash, or has * for anything; it has no space, comma or =",
    });
    schema.insert("x-kubernetes-validations".to_owned(), json!([rule]));
}

fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    match DurationText::deserialize(deserializer)? {
        Duration::ZERO => Err(D::Error::custom("must be longer than 0s")),
        duration => Ok(Some(duration)),
    }
}

impl KeepPolicy {
    /// Parses the spec of a policy over the settings of the configuration. Returns all problems at
    /// once, each with its path.
    pub fn parse(name: &str, spec: &Value, base: &Keeper) -> Result<Self, Vec<String>> {
        let spec: KeepPolicySpec = read::read(&read::without_nulls(spec.clone())).map_err(|refusals| {
            let path = |path: String| if path.is_empty() { path } else { format!(".{path}") };
            refusals
                .into_iter()
                .map(|refusal| format!("spec{}: {}", path(refusal.path), refusal.message))
                .collect::<Vec<_>>()
        })?;
        let base = base.clone();
        // A list of its own replaces all of the configuration.
        let drop_also = if spec.drop.is_some() { Patterns::default() } else { base.drop_also };
        let keeper = Keeper {
            keep: spec.keep.unwrap_or(base.keep),
            drop: spec.drop.unwrap_or(base.drop),
            drop_also: spec.drop_also.unwrap_or(drop_also),
            annotations: spec.annotations.unwrap_or(base.annotations),
            taints: spec.taints.unwrap_or(base.taints),
            cordon: spec.cordon.unwrap_or(base.cordon),
            merge: spec.merge.unwrap_or(base.merge),
            identity: spec.identity.unwrap_or(base.identity),
            retention: spec.retention.unwrap_or(base.retention),
            ..base
        };
        Ok(Self {
            name: name.to_owned(),
            priority: i64::from(spec.priority),
            selector: spec.node_selector.unwrap_or_default(),
            policy: Arc::new(Policy { name: name.to_owned(), ..Policy::from_settings(&keeper) }),
        })
    }
}

/// Returns the policy that applies to a node with these labels.
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
    fn fields_that_are_not_set_are_as_in_the_config_file() {
        let spec = json!({"keep": ["example.com/"], "cordon": true, "priority": 3});
        let policy = KeepPolicy::parse("gpu", &spec, &base()).unwrap();
        assert!(policy.policy.keeps(&Key::label("example.com/x")) && !policy.policy.keeps(&Key::label("team")));
        assert!(policy.policy.keeps(&Key::Cordon));
        assert_eq!((policy.priority, policy.policy.name.as_str()), (3, "gpu"));
        assert_eq!(policy.policy.merge, base().merge);
    }

    #[test]
    fn a_policy_adds_to_the_dropped_keys_or_replaces_them() {
        let base = Keeper { drop_also: Patterns::of(&["corp.example.com/*"]), ..base() };
        let keeps = |spec: Value| {
            let policy = KeepPolicy::parse("p", &spec, &base).unwrap().policy;
            ["karpenter.sh/nodepool", "corp.example.com/x", "scratch", "team"].map(|key| policy.keeps(&Key::label(key)))
        };
        assert_eq!(keeps(json!({})), [false, false, true, true]);
        assert_eq!(keeps(json!({"dropAlso": ["scratch"]})), [false, true, false, true]);
        assert_eq!(keeps(json!({"drop": ["team"]})), [true, true, true, false]);
        assert_eq!(keeps(json!({"drop": ["team"], "dropAlso": ["scratch"]})), [true, true, false, false]);
    }

    #[test]
    fn all_problems_are_reported_with_their_paths() {
        let spec = json!({"keep": "x y", "merge": "sometimes", "prio": 1, "nodeSelector": {"matchExpressions": [{"key": "a"}]}});
        let problems = KeepPolicy::parse("bad", &spec, &base()).unwrap_err();
        for path in ["spec.prio:", "spec.merge:", "spec.nodeSelector"] {
            assert!(problems.iter().any(|problem| problem.starts_with(path)), "{path} in {problems:?}");
        }
    }

    #[test]
    fn the_highest_priority_that_matches_is_chosen() {
        let policy = |name: &str, priority: i32, selector: Value| {
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

    #[test]
    fn durations_are_as_in_the_config_file() {
        let retention = |text: &str| KeepPolicy::parse("p", &json!({"retention": text}), &base());
        assert_eq!(retention("30d").unwrap().policy.retention, retention("720h").unwrap().policy.retention);
        assert_eq!(retention("0s").unwrap_err(), ["spec.retention: must be longer than 0s"]);
        assert!(retention("30m1h").is_err());
    }
}
