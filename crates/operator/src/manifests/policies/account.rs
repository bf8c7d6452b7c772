//! Limits of Perennial's account beyond nodes: pods, workloads, Secrets, ConfigMaps and Events. And
//! the protection of its namespace.
//!
//! RBAC permits a verb on a resource. These policies permit the parts of an object that placement
//! writes. A webhook configuration is exempt from every admission policy of Kubernetes, so its
//! limit is RBAC alone.

use perennial_core::placement::{CLASS, DELETION_COST, FALLBACK, GATE, REFUSED, SELECTION, SLOT, STATE};
use serde_json::{Value, json};

use super::{UNINSTALL, guarded, is_record, unchanged, user};
use crate::{
    admission::{certificates::SECRET, configuration::NAME},
    placement::cache::MANAGED,
};

const POD_POLICY: &str = "perennial-pods";
const WORKLOAD_POLICY: &str = "perennial-workloads";
const SECRET_POLICY: &str = "perennial-secrets";
const CONFIG_MAP_POLICY: &str = "perennial-config-maps";
const EVENT_POLICY: &str = "perennial-events";
const NAMESPACE_POLICY: &str = "perennial-namespace";
/// Annotation of Perennial's namespace that permits its deletion.
pub(crate) const DELETABLE: &str = "perennial.dev/delete-records";
/// Fields of a pod's spec that the API server would let a client change and that Perennial does
/// not.
const FIXED_POD_SPEC: [&str; 5] =
    ["containers", "?initContainers", "?activeDeadlineSeconds", "?terminationGracePeriodSeconds", "?tolerations"];

pub(super) fn policies(namespace: &str, account: &str) -> Vec<(&'static str, Value)> {
    let accounts = [user(namespace, account), user(namespace, UNINSTALL)];
    vec![
        (POD_POLICY, pods(&accounts)),
        (WORKLOAD_POLICY, workloads(namespace, &accounts)),
        (SECRET_POLICY, secrets(&accounts)),
        (CONFIG_MAP_POLICY, config_maps(&accounts)),
        (EVENT_POLICY, events(&accounts)),
        (NAMESPACE_POLICY, own_namespace(namespace)),
    ]
}

fn rule(expression: impl Into<String>, message: &str) -> Value {
    json!({ "expression": expression.into(), "message": message })
}

/// Returns a policy for requests of Perennial's accounts to these resources and their subresources.
fn policy(accounts: &[String; 2], group: &str, resources: &[&str], variables: &Value, validations: &[Value]) -> Value {
    let [ours, leaving] = accounts;
    let resources: Vec<String> =
        resources.iter().flat_map(|resource| [(*resource).to_owned(), format!("{resource}/*")]).collect();
    json!({
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [{
                "apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": ["*"],
            }],
        },
        "matchConditions": [{
            "name": "by-perennial",
            "expression": format!("request.userInfo.username in ['{ours}', '{leaving}']"),
        }],
        "variables": variables,
        "validations": validations,
    })
}

/// Returns the variables that the rules of metadata need.
fn metadata() -> Vec<Value> {
    let map = |name: &str, of: &str, what: &str| json!({ "name": name, "expression": format!("{of}.metadata.?{what}.orValue({{}})") });
    vec![
        json!({
            "name": "update",
            "expression": "request.operation == 'UPDATE' && request.?subResource.orValue('') == ''",
        }),
        map("labels", "object", "labels"),
        map("oldLabels", "oldObject", "labels"),
        map("annotations", "object", "annotations"),
        map("oldAnnotations", "oldObject", "annotations"),
    ]
}

/// Returns the rules that metadata changes only at these keys.
fn metadata_rules(what: &str, labels: &[&str], annotations: &[&str]) -> Vec<Value> {
    let among = |keys: &[&str]| {
        let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
        format!("k in [{}]", keys.join(", "))
    };
    let same = |part: &str| format!("object.metadata.?{part} == oldObject.metadata.?{part}");
    vec![
        rule(
            guarded(&format!("{} && {}", same("finalizers"), same("ownerReferences"))),
            &format!("Perennial may not change finalizers or owner references of {what}"),
        ),
        rule(
            guarded(&unchanged("labels", "oldLabels", &among(labels))),
            &format!("Perennial may not change labels of {what} except its own"),
        ),
        rule(
            guarded(&unchanged("annotations", "oldAnnotations", &among(annotations))),
            &format!("Perennial may not change annotations of {what} except its own"),
        ),
    ]
}

/// Returns the policy for pods: gate, class, slot and deletion cost of managed pods.
fn pods(accounts: &[String; 2]) -> Value {
    let mut variables = metadata();
    variables.push(json!({
        "name": "managed",
        "expression": format!(
            "oldObject != null && (variables.oldLabels[?'{MANAGED}'].orValue('') == 'true' || \
             oldObject.spec.?schedulingGates.orValue([]).exists(g, g.name == '{GATE}'))"
        ),
    }));
    variables.push(json!({
        "name": "owned",
        "expression": "oldObject != null && oldObject.metadata.?ownerReferences.orValue([]).exists(o, \
                       o.?controller.orValue(false) && !(o.kind in ['Job', 'DaemonSet', 'Node']))",
    }));
    let fixed = FIXED_POD_SPEC.map(|field| format!("object.spec.{field} == oldObject.spec.{field}")).join(" && ");
    let gates = format!(
        "oldObject.spec.?schedulingGates.orValue([]).all(g, g.name == '{GATE}' || \
         g in object.spec.?schedulingGates.orValue([]))"
    );
    let mut validations = vec![
        rule(
            "variables.update || request.operation == 'DELETE' && request.?subResource.orValue('') == '' || \
             request.operation == 'CREATE' && request.?subResource.orValue('') == 'eviction'",
            "Perennial may patch, delete and evict pods but not create them or use other subresources",
        ),
        rule(
            "request.operation != 'DELETE' || variables.managed && oldObject.spec.?nodeName.orValue('') == ''",
            "Perennial may delete only pods with its label that are not bound to a node",
        ),
        // Adoption adds the label, in a write of its own.
        rule(
            guarded(
                "variables.managed || variables.owned && object.spec == oldObject.spec && \
                 variables.annotations == variables.oldAnnotations",
            ),
            "Perennial may change only pods with its label, and add the label to pods of a workload",
        ),
        rule(
            guarded(&format!(
                "variables.labels[?'{MANAGED}'] == variables.oldLabels[?'{MANAGED}'] || \
                 variables.labels[?'{MANAGED}'].orValue('') == 'true'"
            )),
            "Perennial may not remove its label from a pod",
        ),
        rule(guarded(&fixed), "Perennial may not change containers, tolerations or deadlines of pods"),
        rule(guarded(&gates), "Perennial may remove only its own scheduling gate"),
    ];
    validations.extend(metadata_rules("pods", &[MANAGED], &[CLASS, SLOT, FALLBACK, REFUSED, SELECTION, DELETION_COST]));
    policy(accounts, "", &["pods"], &json!(variables), &validations)
}

/// Returns the policy for workloads: one annotation. The uninstall scales the operator itself.
fn workloads(namespace: &str, accounts: &[String; 2]) -> Value {
    let leaving = &accounts[1];
    let stop = format!(
        "request.userInfo.username == '{leaving}' && request.operation == 'UPDATE' && \
         request.?subResource.orValue('') == 'scale' && request.namespace == '{namespace}' && \
         (request.name == '{NAME}' || request.name.startsWith('{NAME}-'))"
    );
    let mut validations = vec![
        rule(
            format!("variables.update || {stop}"),
            "Perennial may only annotate Deployments, StatefulSets and ReplicaSets",
        ),
        rule(guarded("object.spec == oldObject.spec"), "Perennial may not change the spec of a workload"),
    ];
    validations.extend(metadata_rules("workloads", &[], &[STATE]));
    let resources = ["deployments", "statefulsets", "replicasets", "daemonsets"];
    policy(accounts, "apps", &resources, &json!(metadata()), &validations)
}

/// Returns the policy for Secrets: RBAC cannot restrict `create` to a name.
fn secrets(accounts: &[String; 2]) -> Value {
    let ours = format!(
        "[object, oldObject].all(o, o == null || o.metadata.name == '{SECRET}' && \
         o.?type.orValue('') != 'kubernetes.io/service-account-token')"
    );
    let message = format!("Perennial may write only the Secret {SECRET}");
    policy(accounts, "", &["secrets"], &json!([]), &[rule(ours, &message)])
}

/// Returns the policy for ConfigMaps: records only.
fn config_maps(accounts: &[String; 2]) -> Value {
    let ours = format!("[object, oldObject].all(o, o == null || {})", is_record("o"));
    policy(accounts, "", &["configmaps"], &json!([]), &[rule(ours, "Perennial may write only records")])
}

/// Returns the policy for Events: in its own name.
fn events(accounts: &[String; 2]) -> Value {
    // `kubectl` shows either field as the origin of an Event.
    let ours = format!(
        "object == null || object.?source.?component.orValue('') == '{NAME}' && \
         object.?reportingComponent.orValue('') in ['', '{NAME}']"
    );
    policy(accounts, "", &["events"], &json!([]), &[rule(ours, "Perennial may write Events only in its own name")])
}

/// Returns the policy that protects the namespace: its deletion deletes every record, and deleting
/// the manifests deletes it.
fn own_namespace(namespace: &str) -> Value {
    let permitted = format!("oldObject.metadata.?annotations[?'{DELETABLE}'].orValue('') == 'true'");
    let message = format!(
        "namespace {namespace} contains the records of Perennial. Deleting the manifests also deletes this policy, so \
         that the next attempt is not refused: back the records up with `perennial export` first. To delete them: \
         kubectl annotate namespace {namespace} {DELETABLE}=true"
    );
    json!({
        "failurePolicy": "Ignore",
        "matchConstraints": {
            "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["namespaces"], "operations": ["DELETE"],
            }],
        },
        "matchConditions": [{ "name": "our-namespace", "expression": format!("request.name == '{namespace}'") }],
        "validations": [{ "expression": permitted, "message": message, "reason": "Forbidden" }],
    })
}
