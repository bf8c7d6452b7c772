//! Forged names in reviews: no request is sent for a name that no object can have, and no response
//! is logged.

use std::sync::{Arc, Mutex};

use perennial_core::config::names::is_dns_subdomain;
use perennial_harness::{ApiRequest, Operator, TestCluster, Webhooks};
use serde_json::{Value, json};

use crate::client::Attacker;

/// Names that change the meaning of a URL, and one that is too long.
fn forged() -> Vec<String> {
    let names =
        ["?", "?limit=500", "k2/proxy/", "k2/proxy", "../../../apis/apps/v1/statefulsets", "..", ".", "%2e%2e", ""];
    names.into_iter().map(ToOwned::to_owned).chain(["x".repeat(300)]).collect()
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
    let seen = Arc::clone(&asked);
    proxy.inject(move |request| {
        seen.lock().unwrap().push(request.clone());
        None
    });

    for name in forged() {
        for path in ["/validate/nodes", "/mutate/nodes"] {
            let response = attacker.review(path, &node_review(&name)).await;
            assert_eq!(response["allowed"], true, "{name}");
        }
        for kind in ["ReplicaSet", "StatefulSet"] {
            for (namespace, owner) in [(name.as_str(), "web"), ("default", name.as_str())] {
                let response = attacker.review("/mutate/pods", &pod_review(namespace, owner, kind)).await;
                assert_eq!(response["allowed"], true, "{namespace}/{owner}");
            }
        }
    }
    // Valid names are read.
    attacker.review("/validate/nodes", &node_review("last")).await;
    attacker.review("/mutate/pods", &pod_review("default", "last", "StatefulSet")).await;

    let asked = asked.lock().unwrap();
    let reads: Vec<&ApiRequest> = asked.iter().filter(|request| request.verb == "get").collect();
    assert!(reads.iter().any(|read| read.resource == "statefulsets" && read.name.as_deref() == Some("last")));
    for request in asked.iter() {
        assert!(request.verb != "list" && !request.resource.contains("proxy"), "{request:?}");
        for name in [&request.name, &request.namespace].into_iter().flatten() {
            assert!(is_dns_subdomain(name), "{request:?}");
        }
    }
    let log = log_of(&operator);
    assert!(!log.contains("marker-of-a-response\"") && !log.contains("managedFields"), "a response is in the log");
}
