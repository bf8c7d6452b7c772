//! Minimum permissions of the operator's account, by feature.
//!
//! A test runs the operator with exactly these permissions and compares them with the requests in
//! the audit log. It fails on an unused and on a missing verb.

use perennial_core::keeper::signature;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Features, labels,
    policies::{GROUP, RECORDS},
};
use crate::admission::{certificates, configuration::NAME};

/// A rule of an RBAC role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    pub api_groups: [&'static str; 1],
    pub resources: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<&'static str>,
    pub verbs: Vec<&'static str>,
}

impl Rule {
    fn new(group: &'static str, resources: &[&'static str], verbs: &[&'static str]) -> Self {
        Self { api_groups: [group], resources: resources.to_vec(), resource_names: Vec::new(), verbs: verbs.to_vec() }
    }

    fn named(mut self, name: &'static str) -> Self {
        self.resource_names = vec![name];
        self
    }
}

/// Rules of the ClusterRole, and of the Role in Perennial's namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Permissions {
    pub cluster: Vec<Rule>,
    pub namespaced: Vec<Rule>,
}

/// Name of the Role and its binding in the namespace of the Leases, if that is another one.
const LEASES: &str = "perennial-leases";
const WEBHOOKS: &[&str] = &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
const ADMISSION: &str = "admissionregistration.k8s.io";

impl Permissions {
    /// Returns all permissions for these features.
    pub fn of(features: Features) -> Self {
        let mut parts = vec![Self::keeper()];
        parts.push(if features.webhooks { Self::webhooks() } else { Self::no_webhooks() });
        if features.own_certificates {
            parts.push(Self::certificates());
        }
        if features.placement {
            parts.push(Self::placement());
        }
        if features.signatures {
            parts.push(Self::signatures());
        }
        Self {
            cluster: parts.iter().flat_map(|part| part.cluster.clone()).collect(),
            namespaced: parts.iter().flat_map(|part| part.namespaced.clone()).collect(),
        }
    }

    /// Returns the permissions for records, policies, Leases and Events.
    pub fn keeper() -> Self {
        Self {
            cluster: vec![
                Rule::new("", &["nodes"], &["get", "list", "watch", "patch"]),
                Rule::new("perennial.dev", &["keeppolicies"], &["list", "watch"]),
                Rule::new("perennial.dev", &["keeppolicies/status"], &["patch"]),
                Rule::new("", &["events"], &["create"]),
            ],
            namespaced: vec![
                Rule::new("", &["configmaps"], &["get", "list", "watch", "create", "update", "patch", "delete"]),
                leases(),
            ],
        }
    }

    /// Returns the permissions for Perennial's webhook configurations. They are installed without
    /// webhooks: `create` cannot be restricted to a name, so the account does not have it.
    pub fn webhooks() -> Self {
        Self { cluster: vec![Rule::new(ADMISSION, WEBHOOKS, &["get", "update"]).named(NAME)], namespaced: Vec::new() }
    }

    /// Returns the permissions to remove existing webhook configurations if webhooks are disabled.
    pub fn no_webhooks() -> Self {
        Self { cluster: vec![Rule::new(ADMISSION, WEBHOOKS, &["delete"]).named(NAME)], namespaced: Vec::new() }
    }

    /// Returns the permissions for the Secret with the CA of the webhooks.
    pub fn certificates() -> Self {
        Self {
            cluster: Vec::new(),
            namespaced: vec![
                Rule::new("", &["secrets"], &["get", "update"]).named(certificates::SECRET),
                Rule::new("", &["secrets"], &["create"]),
            ],
        }
    }

    /// Returns the permissions for the Secret with the record keys, which the operator only reads.
    pub fn signatures() -> Self {
        Self { cluster: Vec::new(), namespaced: vec![Rule::new("", &["secrets"], &["get"]).named(signature::SECRET)] }
    }

    /// Returns the permissions to read workloads, to place, move and replace their pods, and to
    /// annotate workloads.
    pub fn placement() -> Self {
        Self {
            cluster: vec![
                Rule::new("", &["namespaces"], &["get", "list", "watch"]),
                Rule::new("", &["pods"], &["list", "watch", "patch", "delete"]),
                Rule::new("", &["pods/eviction"], &["create"]),
                Rule::new("apps", &["deployments", "replicasets", "statefulsets"], &["get", "list", "watch", "patch"]),
                Rule::new("policy", &["poddisruptionbudgets"], &["list", "watch"]),
                Rule::new("", &["persistentvolumeclaims", "persistentvolumes"], &["get"]),
            ],
            namespaced: Vec::new(),
        }
    }

    /// Returns the roles and their bindings to the account of the same name.
    pub fn objects(&self, account: &str, namespace: &str) -> Vec<Value> {
        let subject = (account, namespace);
        let own = || json!({ "name": account, "namespace": namespace });
        let [role, binding] = bound("Role", &own(), &self.namespaced, subject);
        let [cluster_role, cluster_binding] = bound("ClusterRole", &json!({ "name": account }), &self.cluster, subject);
        vec![cluster_role, cluster_binding, role, binding]
    }
}

/// Returns the Role for Leases in a namespace other than that of the account, and its binding.
pub(super) fn lease_objects(account: &str, namespace: &str, leases_in: &str) -> [Value; 2] {
    bound("Role", &json!({ "name": LEASES, "namespace": leases_in }), &[leases()], (account, namespace))
}

/// Returns a role of this kind and its binding to an account, which has a name and a namespace.
fn bound(kind: &str, metadata: &Value, rules: &[Rule], (account, namespace): (&str, &str)) -> [Value; 2] {
    let object = |kind: &str| {
        let mut metadata = metadata.clone();
        metadata["labels"] = labels();
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata })
    };
    let mut role = object(kind);
    role["rules"] = json!(rules);
    let mut binding = object(&format!("{kind}Binding"));
    binding["roleRef"] = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": metadata["name"] });
    binding["subjects"] = json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]);
    [role, binding]
}

/// Returns the rule for the Leases of replicas and shards.
fn leases() -> Rule {
    Rule::new("coordination.k8s.io", &["leases"], &["get", "list", "watch", "create", "update", "delete"])
}

/// Returns the rule of `perennial uninstall` for the Leases.
fn delete_leases() -> Rule {
    Rule::new("coordination.k8s.io", &["leases"], &["deletecollection"])
}

/// Returns the permissions for Leases in another namespace: those of the operator, and those of an
/// uninstall.
#[cfg(test)]
pub(super) fn leases_elsewhere() -> [Permissions; 2] {
    [leases(), delete_leases()].map(|rule| Permissions { cluster: Vec::new(), namespaced: vec![rule] })
}

/// Returns the permissions of `perennial uninstall`, which runs with a separate account.
pub fn uninstall() -> Permissions {
    Permissions {
        cluster: vec![
            Rule::new("", &["nodes"], &["list", "patch"]),
            Rule::new("perennial.dev", &["keeppolicies"], &["list"]),
            Rule::new("", &["pods"], &["list", "patch", "delete"]),
            Rule::new(ADMISSION, WEBHOOKS, &["delete"]).named(NAME),
        ],
        namespaced: vec![
            Rule::new("apps", &["deployments/scale"], &["patch"]).named(NAME),
            delete_leases(),
            Rule::new("", &["secrets"], &["delete"]).named(certificates::SECRET),
            Rule::new("", &["configmaps"], &["deletecollection"]),
            // A virtual resource that the admission policy for records checks.
            Rule::new(GROUP, &[RECORDS], &["delete"]),
        ],
    }
}
