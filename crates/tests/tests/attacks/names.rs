//! Forged names in reviews: no request is sent for a name that no object can have, and no response
//! is logged.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use perennial_core::config::names::is_dns_subdomain;
use perennial_harness::{ApiRequest, Operator, TestCluster, Webhooks};
use serde_json::{Value, json};

use crate::client::Attacker;

/// Names that change the meaning of a URL, and some that are too long.
fn forged() -> Vec<String> {
    let names = [
        "?",
        "?limit=500",
        "k2?watch=true",
        "k2#x",
        "k2/proxy/",
        "k2/proxy",
        "k2%2fproxy",
        "../../../apis/apps/v1/statefulsets",
        "..",
        ".",
        "a..b",
        "%2e%2e",
        "k2\u{0}",
        "\u{0}",
        "k2\r\nhost: x",
        "k2 ",
        "K2",
        "n\u{f6}de",
        "k2\u{202e}",
        "k2\\x",
        "",
    ];
    names.into_iter().map(ToOwned::to_owned).chain(["x".repeat(254), "x".repeat(300)]).collect()
}

/// Reviews in which one part is forged and the others are valid, with their paths.
fn reviews(name: &str) -> Vec<(&'static str, Value)> {
    let mut all = Vec::new();
    for path in ["/validate/nodes", "/mutate/nodes"] {
        for operation in ["DELETE", "CREATE", name] {
            let mut review = node_review(name);
            review["operation"] = json!(operation);
            all.push((path, review));
        }
        for part in ["/name", "/object/metadata/name", "/oldObject/metadata/name", "/object/metadata/uid"] {
            let mut review = node_review("k2");
            *review.pointer_mut(part).unwrap() = json!(name);
            all.push((path, review));
        }
        let mut machine = node_review("k2");
        for object in ["object", "oldObject"] {
            machine[object]["spec"] = json!({"providerID": name});
            machine[object]["status"] = json!({"nodeInfo": {"systemUUID": name, "machineID": name}});
            machine[object]["metadata"]["uid"] = json!(name);
        }
        all.push((path, machine));
    }
    for kind in ["ReplicaSet", "StatefulSet", name] {
        for (namespace, owner, uid) in [(name, "web", "u"), ("default", name, "u"), ("default", "web", name)] {
            let mut review = pod_review(namespace, owner, kind);
            review["object"]["metadata"]["ownerReferences"][0]["uid"] = json!(uid);
            all.push(("/mutate/pods", review.clone()));
            review["object"]["metadata"]["name"] = json!(name);
            review["object"]["metadata"]["namespace"] = json!(name);
            review["object"]["spec"] = json!({"nodeName": name});
            all.push(("/mutate/pods", review));
        }
    }
    all
}

fn node_review(name: &str) -> Value {
    let node = json!({"metadata": {"name": name, "uid": "u", "resourceVersion": "9", "labels": {"team": "ml"}}});
    json!({"uid": "1", "operation": "DELETE", "name": name, "oldObject": node.clone(), "object": node})
}

fn pod_review(namespace: &str, owner: &str, kind: &str) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": "unknown", "controller": true});
    let pod = json!({"metadata": {"generateName": "p-", "ownerReferences": [owner]}, "spec": {}});
    json!({"uid": "1", "operation": "CREATE", "namespace": namespace, "object": pod})
}

fn log_of(operator: &Operator) -> String {
    operator.log().iter().map(|line| line.to_string() + "\n").collect()
}

#[tokio::test]
async fn forged_names_reach_no_url_and_no_response_is_logged() {
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    let builder = cluster.operator().webhooks(Webhooks::On).set("logging.level", "debug");
    let operator = builder.set("placement.enabled", "true").through(&proxy).start().await;
    cluster.wait_for_admission(&operator).await;
    cluster.node("k2").label("marker-of-a-response", "x").create().await;
    cluster.wait_for_record("k2", [("marker-of-a-response", "x")]).await;
    let attacker = Attacker::of(&operator);
    let asked: Arc<Mutex<Vec<ApiRequest>>> = Arc::default();
    let (seen, start) = (Arc::clone(&asked), Instant::now());
    proxy.inject(move |request| {
        seen.lock().unwrap().push(request.clone());
        None
    });

    for name in forged() {
        for (path, review) in reviews(&name) {
            let response = attacker.review(path, &review).await;
            assert_eq!(response["allowed"], true, "{path} {review}");
        }
    }
    // Valid names are read.
    attacker.review("/validate/nodes", &node_review("last")).await;
    attacker.review("/mutate/pods", &pod_review("default", "last", "StatefulSet")).await;

    let asked = asked.lock().unwrap();
    let reads: Vec<&ApiRequest> = asked.iter().filter(|request| request.verb == "get").collect();
    assert!(reads.iter().any(|read| read.resource == "statefulsets" && read.name.as_deref() == Some("last")));
    // The history of nodes is compared every 10 seconds, with two lists, whatever arrives.
    let is_regular = |request: &ApiRequest| request.verb == "list" && request.resource == "nodes";
    let regular = asked.iter().filter(|request| is_regular(request)).count() as u64;
    assert!(regular <= 2 * (start.elapsed().as_secs() / 10 + 1), "{regular} lists of nodes");
    for request in asked.iter().filter(|request| !is_regular(request)) {
        assert!(request.verb != "list" && !request.resource.contains("proxy"), "{request:?}");
        for name in [&request.name, &request.namespace].into_iter().flatten() {
            assert!(is_dns_subdomain(name), "{request:?}");
        }
    }
    let log = log_of(&operator);
    assert!(!log.contains("marker-of-a-response\"") && !log.contains("managedFields"), "a response is in the log");
}
