//! The dashboard in a real browser with a live operator.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failure here fails the test")]

mod access;
mod command;
mod filters;
mod hostile;
mod long_lists;
mod stale;
mod stream;
mod views;
mod workloads;

use perennial_harness::{Operator, OperatorBuilder, Page, TestCluster, axe};
use serde_json::{Value, json};

/// Operator that serves the dashboard.
fn serving(cluster: &TestCluster) -> OperatorBuilder {
    cluster.operator().without_leader_election().set("dashboard.enabled", "true").set("dashboard.port", "0")
}

/// Creates a node that was labelled, deleted and restored, so that every view has content.
async fn returned(cluster: &TestCluster) -> Operator {
    let operator = serving(cluster).start().await;
    cluster.node("worker-1").label("team", "ml").label("kubernetes.io/hostname", "worker-1").create().await;
    cluster.wait_for_record("worker-1", [("team", "ml")]).await;
    cluster.label("worker-1", "rack", "r7").await;
    cluster.wait_for_record("worker-1", [("team", "ml"), ("rack", "r7")]).await;
    cluster.delete_node("worker-1").await;
    cluster.node("worker-1").label("kubernetes.io/hostname", "worker-1").create().await;
    let all = [("team", "ml"), ("rack", "r7"), ("kubernetes.io/hostname", "worker-1")];
    cluster.wait_for_labels("worker-1", all).await;
    operator
}

/// HTTP client that returns every status as a response.
fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).build().into()
}

/// Returns the accessibility problems that axe finds.
async fn obstacles(page: &Page) -> Vec<String> {
    let Some(script) = axe() else { return Vec::new() };
    // In an isolated world, because the content security policy of the page would block axe.
    let frame = page.call("Page.getFrameTree", json!({})).await["frameTree"]["frame"]["id"].clone();
    let world = page.call("Page.createIsolatedWorld", json!({"frameId": frame, "worldName": "axe"})).await;
    let ask = async |expression: &str| -> Value {
        let params = json!({
            "expression": expression, "contextId": world["executionContextId"], "awaitPromise": true,
            "returnByValue": true,
        });
        let mut answer = page.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{}", answer["exceptionDetails"]);
        answer["result"]["value"].take()
    };
    ask(&format!("{script}; undefined")).await;
    let found = ask(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})
            .then((found) => found.violations.map((each) => `${each.id}: ${each.help}: ${each.nodes.map((node) => node.html + ' ' + node.failureSummary).join(' | ')}`))",
    )
    .await;
    found.as_array().unwrap().iter().map(|each| each.as_str().unwrap_or_default().to_owned()).collect()
}

/// Asserts that nothing violated the content security policy, nothing failed, and no other host was
/// contacted.
#[track_caller]
fn is_clean(page: &Page, address: &str) {
    let complaints = page.errors();
    assert!(complaints.is_empty(), "{complaints:#?}");
    assert_eq!(page.hosts(), [address.split('/').nth(2).unwrap()]);
}
