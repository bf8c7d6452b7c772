//! Probes, logs, metrics and settings that people who run an operator look for.

use std::collections::BTreeSet;

use perennial_harness::{TestCluster, eventually};
use serde_json::Value;

#[tokio::test]
async fn probes_logs_and_metrics_are_as_expected_of_an_operator() {
    let cluster = TestCluster::new().await;
    let operator = cluster
        .operator()
        .set("logging.level", "debug")
        .set("controller.leaderElection.namespace", "kube-system")
        .set("controller.retry.maxBackoff", "5s")
        .start()
        .await;
    for name in ["n1", "n2"] {
        cluster.node(name).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("team", "ml")]).await;
    }

    // Probes report each check, also under the names that other tools use.
    let ((ready, why), (live, alive)) = (operator.get("/readyz"), operator.get("/livez"));
    assert_eq!((ready, live, operator.get("/nothing").0), (200, 200, 404));
    assert!(why.contains("[+] caches: ok") && alive.contains("[+] loops: ok"), "{why}{alive}");
    assert_eq!(operator.get("/healthz"), (live, alive));
    // A new node is logged at debug level, and all lines of one reconciliation share an id.
    operator.wait_for_log("a node was added", |line| line["message"] == "node added" && line["node"] == "n1").await;
    let id = |line: &Value| line["span"]["id"].as_str().map(str::to_owned);
    let written = |node: &str| {
        let is_it = |line: &&Value| line["message"] == "record written" && line["node"] == node;
        operator.log().iter().find(is_it).and_then(id)
    };
    let ids: BTreeSet<Option<String>> = ["n1", "n2"].into_iter().map(written).collect();
    assert!(ids.len() == 2 && !ids.contains(&None), "{ids:?}");
    // Counters of created records and of acquired Leases.
    operator.wait_for_metric("perennial_records_created_total", &[], 2.0).await;
    operator.wait_for_metric("perennial_leader_changes_total", &[("name", "perennial")], 1.0).await;
    // A change of a record is no new one.
    cluster.label("n1", "rack", "r1").await;
    cluster.wait_for_record("n1", [("team", "ml"), ("rack", "r1")]).await;
    operator.wait_for_metric("perennial_captures_total", &[], 3.0).await;
    operator.wait_for_metric("perennial_records_created_total", &[], 2.0).await;
    // The Leases are in the configured namespace.
    let leases = cluster.kubectl("get leases -n kube-system -l app.kubernetes.io/managed-by=perennial -o name");
    assert!(leases.lines().count() >= 2, "{leases}");
    assert_eq!(cluster.kubectl(&format!("get leases -n {} -o name", cluster.namespace())), "");
    // The commands find them there.
    let path = cluster.plane().dir().join("lease-namespace.yaml");
    std::fs::write(&path, "controller: {leaderElection: {namespace: kube-system}}").unwrap();
    eventually("status shows the replica", async || {
        let status = cluster.perennial(&format!("status --config {}", path.display())).expect_success();
        if status.contains("alive") { Ok(()) } else { Err(status) }
    })
    .await;
}
