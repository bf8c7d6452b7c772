//! Metrics and Events of the operator.

use perennial_harness::{TestCluster, Webhooks};
use rstest::rstest;

#[tokio::test]
async fn metrics_have_the_names_that_dashboards_use() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    operator.wait_for_metric("perennial_restore_latency_seconds_count", &[], 1.0).await;

    let metrics = operator.metrics();

    let names = [
        "controller_runtime_reconcile_total",
        "controller_runtime_reconcile_errors_total",
        "controller_runtime_reconcile_time_seconds_count",
        "workqueue_depth",
        "workqueue_adds_total",
        "workqueue_retries_total",
        "workqueue_queue_duration_seconds_count",
        "workqueue_work_duration_seconds_count",
        "rest_client_requests_total",
        "perennial_nodes",
        "perennial_records",
        "perennial_captures_total",
        "perennial_restores_total",
        "perennial_labels_restored_total",
        "perennial_restore_latency_seconds_count",
        "perennial_nodes_current_ratio",
        "perennial_label_flaps_total",
        "perennial_records_invalid",
        "perennial_records_collected_total",
        "perennial_placement_replicas",
        "perennial_placement_drift",
        "perennial_placement_moves_total",
        "perennial_fallback_active",
        "perennial_placement_unplaced",
        "perennial_placement_unknown",
        "perennial_placement_nodes",
        "process_resident_memory_bytes",
    ];
    let missing: Vec<_> = names.into_iter().filter(|name| !metrics.has(name)).collect();
    assert!(missing.is_empty(), "{missing:?} in {}", metrics.text());
    let expected = [
        ("perennial_captures_total", 1.0),
        ("perennial_restores_total", 1.0),
        ("perennial_labels_restored_total", 1.0),
        ("perennial_restore_latency_seconds_count", 1.0),
    ];
    for (name, value) in expected {
        assert!((metrics.sum(name, &[]) - value).abs() < 1e-9, "{name} is {}", metrics.sum(name, &[]));
    }
    operator.wait_for_metric("perennial_nodes", &[("state", "settled")], 1.0).await;
    operator.wait_for_metric("perennial_records", &[("state", "present")], 1.0).await;
}

#[rstest]
#[case::in_the_create(Webhooks::On)]
#[case::by_a_patch(Webhooks::Off)]
#[tokio::test]
async fn a_restore_creates_an_event_on_the_node(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;

    let message = cluster.wait_for_event("n1", "Restored").await;
    assert_eq!(message, "Restored: Restored team");
    let shown = cluster.kubectl("describe node n1");
    assert!(shown.contains("Restored") && shown.contains("Restored team"), "{shown}");
}

#[tokio::test]
async fn a_port_in_use_ends_the_operator_with_an_error() {
    let cluster = TestCluster::new().await;
    let taken = std::net::TcpListener::bind("[::]:0").or_else(|_| std::net::TcpListener::bind("0.0.0.0:0")).unwrap();
    let port = taken.local_addr().unwrap().port();

    let words = format!("run --set logging.format=text --set webhook.enabled=false --set metrics.port={port}");
    let message = cluster.perennial(&words).expect_failure();

    assert!(
        message.contains(" INFO ") && message.contains(&format!("could not listen on metrics.port {port}")),
        "{message}"
    );
    assert!(message.contains("--set metrics.port=0") && message.contains("in use"), "{message}");
}
