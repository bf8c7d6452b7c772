//! Content of the webhook configurations, and what counts as drift.

use super::requests::Configuration as _;
use super::*;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn settings() -> ConfigurationSettings {
    ConfigurationSettings {
        namespace: "perennial-system".to_owned(),
        target: WebhookTarget::Service,
        failure_policy: "Ignore".to_owned(),
        timeout: Duration::from_secs(2),
        node_create: true,
        node_delete: true,
        pods: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([("team".to_owned(), "a".to_owned())])),
            match_expressions: None,
        }),
    }
}

fn value(object: impl Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

#[test]
fn nodes_are_captured_before_a_delete_commits() {
    let object = value(settings().validating(Some(b"bundle")).unwrap());

    assert_eq!(
        object["webhooks"],
        json!([{
            "name": "nodes.delete.perennial.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "caBundle": "YnVuZGxl",
                "service": {"name": "perennial", "namespace": "perennial-system", "path": "/validate/nodes", "port": 443},
            },
            "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent",
            "namespaceSelector": {},
            "objectSelector": {},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["nodes"], "scope": "Cluster"}],
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": 2,
        }])
    );
}

#[test]
fn pods_of_our_own_namespace_and_of_kube_system_are_left_alone() {
    let object = value(settings().mutating(None).unwrap());
    let pods = &object["webhooks"][1];

    assert_eq!(pods["clientConfig"]["service"]["path"], "/mutate/pods");
    assert_eq!(pods["reinvocationPolicy"], "IfNeeded");
    let condition = pods["matchConditions"][0]["expression"].as_str().unwrap();
    assert!(condition.contains("owner.kind in ['ReplicaSet', 'StatefulSet']"), "{condition}");
    assert_eq!(object["webhooks"][0]["matchConditions"], Value::Null, "nodes have no owner");
    assert_eq!(
        pods["namespaceSelector"],
        json!({
            "matchLabels": {"team": "a"},
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["perennial-system", "kube-system"]},
            ],
        })
    );
}

#[test]
fn outside_the_cluster_a_url_is_called() {
    let settings =
        ConfigurationSettings { target: WebhookTarget::Url("https://127.0.0.1:9443/".to_owned()), ..settings() };
    let object = value(settings.mutating(None).unwrap());

    assert_eq!(object["webhooks"][0]["clientConfig"], json!({"url": "https://127.0.0.1:9443/mutate/nodes"}));
    assert_eq!(settings.names(), ["127.0.0.1"]);
    let six = ConfigurationSettings { target: WebhookTarget::Url("https://[::1]:9443".to_owned()), ..settings };
    assert_eq!(six.names(), ["::1"]);
}

#[test]
fn disabled_webhooks_are_not_configured() {
    let off = ConfigurationSettings { node_create: false, node_delete: false, pods: None, ..settings() };

    assert!(off.validating(None).is_none());
    assert!(off.mutating(None).is_none());
    assert!(is_carried(&off, &Present::default(), b""));
}

#[test]
fn another_bundle_or_a_changed_rule_is_drift() {
    let settings = settings();
    let present = Present { validating: settings.validating(Some(b"one")), mutating: settings.mutating(Some(b"one")) };
    assert!(is_carried(&settings, &present, b"one"));
    assert!(!is_carried(&settings, &present, b"two"));

    let mut widened = present.clone();
    let rules = widened.validating.as_mut().unwrap().webhooks.as_mut().unwrap()[0].rules.as_mut().unwrap();
    rules[0].resources = Some(vec!["*".to_owned()]);
    assert!(!is_carried(&settings, &widened, b"one"));

    // Installed without webhooks.
    let mut empty = present.clone();
    empty.mutating.as_mut().unwrap().webhooks = None;
    assert!(!is_carried(&settings, &empty, b"one"));

    let missing = Present { mutating: None, ..present };
    assert!(!is_carried(&settings, &missing, b"one"));
}

#[test]
fn labels_of_others_are_no_drift() {
    let settings = settings();
    let mut present =
        Present { validating: settings.validating(Some(b"one")), mutating: settings.mutating(Some(b"one")) };
    // The tool that installed the object sets its labels.
    let labels = [("app.kubernetes.io/managed-by".to_owned(), "Helm".to_owned())];
    present.mutating.as_mut().unwrap().metadata.labels = Some(labels.into());

    assert!(is_carried(&settings, &present, b"one"));
}

#[test]
fn a_bundle_that_another_controller_injects_stays() {
    let settings = settings();
    let present = settings.mutating(Some(b"injected")).unwrap();
    let mut desired = settings.mutating(None).unwrap();

    desired.inherit(&present);

    assert!(is_right(Some(&present), Some(&desired)));
}
