//! An API server that does not answer the operator: reviews fail open, and that is counted.

use perennial_harness::{Fault, Operator, TestCluster, Webhooks};

/// Returns the expression of `PerennialWebhookFailing` for a webhook, over the life of the process.
fn failing(operator: &Operator, webhook: &str) -> f64 {
    const REQUESTS: &str = "controller_runtime_webhook_requests_total";
    let seen = operator.metrics();
    let all = seen.sum(REQUESTS, &[("webhook", webhook)]);
    (all - seen.sum(REQUESTS, &[("webhook", webhook), ("code", "200")])) / all
}

#[tokio::test]
async fn reviews_that_wait_for_the_api_server_count_as_failures() {
    let alerts = include_str!("../../../../monitoring/alerts.yaml");
    assert!(alerts.contains(r#"controller_runtime_webhook_requests_total{job="perennial",code!="200"}"#));
    let cluster = TestCluster::new().await;
    let proxy = cluster.fault_proxy().await;
    let builder = cluster.operator().webhooks(Webhooks::On).set("controller.roles", "webhooks");
    let operator = builder.through(&proxy).start().await;
    cluster.wait_for_admission(&operator).await;
    cluster.node("n1").label("team", "ml").create().await;
    for webhook in ["mutate/nodes", "validate/nodes"] {
        assert!(failing(&operator, webhook) < 0.01, "{webhook}");
    }

    proxy.inject(|asked| (asked.resource == "configmaps" && asked.verb == "get").then_some(Fault::Swallowed));
    cluster.delete_node("n1").await;
    cluster.node("n2").create().await;

    for webhook in ["mutate/nodes", "validate/nodes"] {
        assert!(failing(&operator, webhook) > 0.01, "{webhook}:\n{}", operator.metrics().text());
    }
}
