//! ValidatingAdmissionPolicies: rules that RBAC cannot express. A user who can write ConfigMaps
//! cannot write node labels, and Perennial's account can change only the parts of an object that it
//! needs.
//!
//! # Guarantees
//! Requests of other accounts never match, except to records, the configuration and Perennial's
//! namespace itself.

mod account;

use perennial_core::{
    config::{
        defaults::{MACHINE_ANNOTATIONS, OWN_DOMAIN, STARTUP_TAINTS},
        pattern::Patterns,
    },
    keeper::{
        mark::MARK,
        record::RECORD_LABEL,
        selection::{CORDON_REASON, GATE_TAINT},
    },
};
use serde_json::{Value, json};

pub(crate) use self::account::DELETABLE;
use super::{labels, workload::CONFIG_MAP};

/// Group and resources that exist only in RBAC. Their verbs authorize additional writers.
pub(super) const GROUP: &str = "perennial.dev";
pub(super) const RECORDS: &str = "records";
const CONFIGS: &str = "configs";
const RECORD_POLICY: &str = "perennial-records";
const NODE_POLICY: &str = "perennial-nodes";
pub(super) const UNINSTALL: &str = "perennial-uninstall";
/// Labels that the kubelet sets and that must not change.
const FIXED_LABELS: &str = "['kubernetes.io/hostname', 'kubernetes.io/os', 'kubernetes.io/arch']";
/// Fields of a node's spec except its taints and its cordon.
const FIXED_SPEC: [&str; 5] = ["podCIDR", "podCIDRs", "providerID", "configSource", "externalID"];

/// Returns all policies with their bindings for this account.
pub(super) fn policies(namespace: &str, account: &str) -> Vec<Value> {
    let mut policies = vec![(RECORD_POLICY, records(namespace, account)), (NODE_POLICY, nodes(namespace, account))];
    policies.extend(account::policies(namespace, account));
    let object = |kind: &str, name: &str, spec: Value| {
        let metadata = json!({ "name": name, "labels": labels() });
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec })
    };
    policies
        .into_iter()
        .flat_map(|(name, spec)| {
            let binding = json!({ "policyName": name, "validationActions": ["Deny"] });
            [object("ValidatingAdmissionPolicy", name, spec), object("ValidatingAdmissionPolicyBinding", name, binding)]
        })
        .collect()
}

/// Returns the role that allows writing records with commands, and its binding to `subjects`.
pub(super) fn writers(namespace: &str, subjects: &[Value]) -> Vec<Value> {
    if subjects.is_empty() {
        return Vec::new();
    }
    let metadata = json!({ "name": RECORD_POLICY, "namespace": namespace, "labels": labels() });
    let api = "rbac.authorization.k8s.io";
    vec![
        json!({ "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": writer_rules() }),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": api, "kind": "Role", "name": RECORD_POLICY },
            "subjects": subjects,
        }),
    ]
}

/// Returns the rules that allow writing records, in addition to the permission to write ConfigMaps.
pub(super) fn writer_rules() -> Value {
    json!([{ "apiGroups": [GROUP], "resources": [RECORDS], "verbs": ["create", "update", "delete"] }])
}

pub(super) fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// Returns the policy for records and the configuration. Records are read by name, so a name
/// matches as well as the label. Each verb is authorized separately, so that an account that
/// deletes a namespace can delete everything in it.
fn records(namespace: &str, account: &str) -> Value {
    let ours = user(namespace, account);
    let concerned = format!(
        "[object, oldObject].exists(o, o != null && (o.metadata.name == '{CONFIG_MAP}' || {}))",
        is_record("o")
    );
    let may = format!(
        "authorizer.group('{GROUP}').resource(variables.record ? '{RECORDS}' : '{CONFIGS}').namespace('{namespace}')\
         .check(request.operation.lowerAscii()).allowed()"
    );
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
            }],
        },
        "matchConditions": [{ "name": "a-record-or-the-configuration", "expression": concerned }],
        "variables": [{
            "name": "record",
            "expression": format!("[object, oldObject].all(o, o == null || o.metadata.name != '{CONFIG_MAP}')"),
        }],
        "validations": [{
            "expression": format!("variables.record && request.userInfo.username == '{ours}' || {may}"),
            "reason": "Forbidden",
            "messageExpression": format!(
                "'only Perennial and users with permission to ' + request.operation.lowerAscii() + ' ' + \
                 (variables.record ? '{RECORDS}' : '{CONFIGS}') + '.{GROUP} in namespace {namespace} can change this: \
                 see docs/explain/security.md'"
            ),
        }],
    })
}

/// Returns the expression that is true for a record.
pub(super) fn is_record(object: &str) -> String {
    format!(
        "{object}.metadata.name.startsWith('node-') || {object}.metadata.name.startsWith('id-') || \
         (has({object}.metadata.labels) && '{RECORD_LABEL}' in {object}.metadata.labels)"
    )
}

/// Returns the policy for requests of Perennial's accounts to nodes.
fn nodes(namespace: &str, account: &str) -> Value {
    let (ours, leaving) = (user(namespace, account), user(namespace, UNINSTALL));
    let map = |what: &str, of: &str| format!("{of}.metadata.?{what}.orValue({{}})");
    let list = |of: &str| format!("{of}.spec.?taints.orValue([])");
    let same = |part: &str| format!("object.{part} == oldObject.{part}");
    let spec = FIXED_SPEC.map(|field| same(&format!("spec.?{field}"))).join(" && ");
    let owners = format!("{} && {}", same("metadata.?finalizers"), same("metadata.?ownerReferences"));
    let fixed = format!(
        "{FIXED_LABELS}.all(k, !(k in variables.oldLabels) || \
         k in variables.labels && variables.labels[k] == variables.oldLabels[k])"
    );
    let foreign = regex(MACHINE_ANNOTATIONS);
    let annotations = format!("k in ['{MARK}', '{CORDON_REASON}'] || !k.matches('{foreign}')");
    let startup = regex(STARTUP_TAINTS);
    let taint = format!("t.key == '{GATE_TAINT}' || !t.key.matches('{startup}')");
    let rule = |expression: String, message: &str| json!({ "expression": expression, "message": message });
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["nodes", "nodes/*"], "operations": ["*"],
            }],
        },
        "matchConditions": [{
            "name": "by-perennial",
            "expression": format!("request.userInfo.username in ['{ours}', '{leaving}']"),
        }],
        "variables": [
            { "name": "update", "expression": "request.operation == 'UPDATE' && request.?subResource.orValue('') == ''" },
            { "name": "labels", "expression": map("labels", "object") },
            { "name": "oldLabels", "expression": map("labels", "oldObject") },
            { "name": "annotations", "expression": map("annotations", "object") },
            { "name": "oldAnnotations", "expression": map("annotations", "oldObject") },
            { "name": "taints", "expression": list("object") },
            { "name": "oldTaints", "expression": list("oldObject") },
        ],
        "validations": [
            rule("variables.update".to_owned(), "Perennial may update nodes but not create or delete them or write subresources"),
            rule(guarded(&spec), "Perennial may only change taints and the cordon in the spec of a node"),
            rule(guarded(&owners), "Perennial may not change finalizers or owner references"),
            rule(guarded(&fixed), "Perennial may not change the hostname, os and arch labels of a kubelet"),
            rule(guarded(&unchanged("labels", "oldLabels", &format!("!k.startsWith('{OWN_DOMAIN}')"))),
                "Perennial may not change labels under perennial.dev/"),
            rule(guarded(&unchanged("annotations", "oldAnnotations", &annotations)),
                "Perennial may not change annotations that describe one machine"),
            rule(guarded(&format!(
                "variables.taints.all(t, t in variables.oldTaints || {taint}) && \
                 variables.oldTaints.all(t, t in variables.taints || {taint})"
            )), "Perennial may not change taints of starting and terminating nodes"),
        ],
    })
}

/// Restricts a rule to updates. Other operations have nothing to compare and are denied by another
/// rule.
pub(super) fn guarded(expression: &str) -> String {
    format!("!variables.update || ({expression})")
}

/// Returns an expression that is true if `may` holds for every key that was set, changed or
/// removed.
pub(super) fn unchanged(now: &str, before: &str, may: &str) -> String {
    format!(
        "variables.{now}.all(k, k in variables.{before} && variables.{before}[k] == variables.{now}[k] || {may}) && \
         variables.{before}.all(k, k in variables.{now} || {may})"
    )
}

/// Joins the patterns into one regular expression for a CEL string in single quotes.
fn regex(patterns: &[&str]) -> String {
    let parsed = Patterns::of(patterns);
    let one = |text: &str| text.replace('.', "[.]").replace('*', ".*");
    let all: Vec<String> = parsed.as_slice().iter().map(|pattern| one(pattern.as_str())).collect();
    format!("^({})$", all.join("|"))
}

/// Parses a subject: `Group:platform`, `User:jane`, `ServiceAccount:NAMESPACE/NAME`.
pub fn subject(text: &str) -> Result<Value, String> {
    let expected = || format!("expected User:NAME, Group:NAME or ServiceAccount:NAMESPACE/NAME, not {text:?}");
    let (kind, name) = text.split_once(':').filter(|(_, name)| !name.is_empty()).ok_or_else(expected)?;
    let api = "rbac.authorization.k8s.io";
    match kind {
        "User" | "Group" => Ok(json!({ "apiGroup": api, "kind": kind, "name": name })),
        "ServiceAccount" => {
            let (namespace, name) = name.split_once('/').ok_or_else(expected)?;
            Ok(json!({ "kind": kind, "name": name, "namespace": namespace }))
        }
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_one_expression_without_quotes() {
        assert_eq!(regex(&["k3s.io/*", "io.cilium.network.*"]), "^(k3s[.]io/.*|io[.]cilium[.]network[.].*)$");
        assert!(!regex(MACHINE_ANNOTATIONS).contains(['\'', '\\']) && !regex(STARTUP_TAINTS).contains(['\'', '\\']));
    }

    #[test]
    fn subjects_are_parsed() {
        assert_eq!(subject("Group:platform").unwrap()["kind"], "Group");
        assert_eq!(subject("ServiceAccount:ci/deploy").unwrap()["namespace"], "ci");
        for text in ["platform", "Group:", "ServiceAccount:deploy", "Robot:x"] {
            assert!(subject(text).is_err(), "{text}");
        }
        let objects = writers("ours", &[subject("User:jane").unwrap()]);
        assert_eq!((objects.len(), writers("ours", &[]).len()), (2, 0));
    }

    #[test]
    fn requests_of_other_accounts_to_nodes_do_not_match() {
        let condition = nodes("ns", "perennial")["matchConditions"].clone();
        assert_eq!(condition.as_array().unwrap().len(), 1);
        let text = condition[0]["expression"].as_str().unwrap();
        assert!(text.starts_with("request.userInfo.username in ['system:serviceaccount:ns:perennial'"), "{text}");
    }
}
