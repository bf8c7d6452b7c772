//! The KeepPolicies and the policy of the configuration, with everything that they decide.

use std::cmp::Reverse;

use perennial_core::{
    config::{Patterns, duration},
    keeper::selection::{CONFIG_POLICY, Policy},
};
use serde_json::{Value, json};

use super::{Dashboard, shell_quoted};

/// Returns all policies. The first one that selects a node applies to it.
pub(super) fn policies(dashboard: &Dashboard) -> Value {
    let keeper = &dashboard.parts.keeper;
    let (policies, cache) = (keeper.policies(), keeper.cache());
    let (mut valid, mut invalid) = (Vec::new(), Vec::new());
    for (name, entry) in policies.entries() {
        let command = format!("kubectl get keeppolicy {} -o yaml", shell_quoted(&name));
        match entry.read {
            Ok(policy) => {
                let mut value = decides(&policy.policy);
                let (nodes, records) = cache.matched(&name);
                value["priority"] = json!(policy.priority);
                value["selector"] = json!(policy.selector.to_string());
                value["nodes"] = json!(nodes);
                value["records"] = json!(records);
                value["command"] = json!(command);
                valid.push((Reverse(policy.priority), name, value));
            }
            Err(problems) => invalid.push(json!({"name": name, "problems": problems, "command": command})),
        }
    }
    valid.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    let config = policies.current().configured();
    let (nodes, records) = cache.matched(CONFIG_POLICY);
    let mut last = decides(&config);
    last["nodes"] = json!(nodes);
    last["records"] = json!(records);
    let items: Vec<Value> = valid.into_iter().map(|(.., value)| value).chain([last]).chain(invalid).collect();
    json!({"items": items, "known": policies.are_known()})
}

/// Returns the settings that a policy decides.
fn decides(policy: &Policy) -> Value {
    let list = |patterns: &Patterns| patterns.as_slice().iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "name": policy.name,
        "config": policy.name == CONFIG_POLICY,
        "keep": list(&policy.keep),
        "drop": list(&policy.drop),
        "annotations": list(&policy.annotations),
        "taints": list(&policy.taints),
        "cordon": policy.cordon,
        "merge": policy.merge.to_string(),
        "identity": policy.identity.to_string(),
        "protected": list(&policy.protected),
        "retention": duration::print(policy.retention),
        "history": policy.history,
        "dropManagers": list(&policy.drop_managers),
        "withheld": policy.withheld,
    })
}
