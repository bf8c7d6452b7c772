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
        parts.push(if features.placement { Self::placement() } else { Self::no_placement() });
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
                Rule::new("coordination.k8s.io", &["leases"], &["get", "list", "watch", "create", "update", "delete"]),
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
                Rule::new("apps", &["deployments", "statefulsets"], &["get", "list", "watch", "patch"]),
                Rule::new("apps", &["replicasets"], &["get", "list", "watch"]),
                Rule::new("policy", &["poddisruptionbudgets"], &["list", "watch"]),
            ],
            namespaced: Vec::new(),
        }
    }

    /// Returns the permissions to release pods if placement is disabled: to remove gates, and to
    /// replace pods that wait in a class.
    pub fn no_placement() -> Self {
        Self { cluster: vec![Rule::new("", &["pods"], &["list", "patch", "delete"])], namespaced: Vec::new() }
    }

    /// Returns the roles and their bindings to the account of the same name.
    pub fn objects(&self, account: &str, namespace: &str) -> Vec<Value> {
        let object = |kind: &str, mut metadata: Value| {
            metadata["name"] = json!(account);
            metadata["labels"] = labels();
            json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata })
        };
        let bind = |kind: &str, role: &str, metadata: Value| {
            let mut binding = object(kind, metadata);
            binding["roleRef"] = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": account });
            binding["subjects"] = json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]);
            binding
        };
        let role = |kind: &str, metadata: Value, rules: &[Rule]| {
            let mut role = object(kind, metadata);
            role["rules"] = json!(rules);
            role
        };
        let own = || json!({ "namespace": namespace });
        vec![
            role("ClusterRole", json!({}), &self.cluster),
            bind("ClusterRoleBinding", "ClusterRole", json!({})),
            role("Role", own(), &self.namespaced),
            bind("RoleBinding", "Role", own()),
        ]
    }
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
            Rule::new("coordination.k8s.io", &["leases"], &["deletecollection"]),
            Rule::new("", &["secrets"], &["delete"]).named(certificates::SECRET),
            Rule::new("", &["configmaps"], &["deletecollection"]),
            // A virtual resource that the admission policy for records checks.
            Rule::new(GROUP, &[RECORDS], &["delete"]),
        ],
    }
}
