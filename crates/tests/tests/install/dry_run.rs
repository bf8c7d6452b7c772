//! `perennial run --dry-run` writes nothing.

use perennial_harness::{TestCluster, Webhooks, eventually};

const USER: &str = "auditor";

#[tokio::test]
async fn a_dry_run_logs_its_actions_and_writes_nothing() {
    let cluster = TestCluster::with_audit_log(true).await;
    cluster.kubectl(&format!("create clusterrolebinding auditor --clusterrole=cluster-admin --user={USER}"));
    let full = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    assert!(full.stop().await.is_some_and(|status| status.success()));
    cluster.node("n0").label("team", "web").create().await;
    let operator = cluster
        .operator_as(USER, &[])
        .webhooks(Webhooks::On)
        .set("controller.dryRun", "true")
        .set("controller.resyncPeriod", "5s")
        .set("controller.auditPeriod", "5s")
        .start()
        .await;

    let listed = operator.wait_for_log("the totals", |line| line["message"] == "nodes and records listed").await;
    assert_eq!((&listed["current"], &listed["to_capture"], &listed["records"]), (&1.into(), &1.into(), &1.into()));

    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.node("n2").label("team", "web").create().await;
    cluster.deployment("web").replicas(4).annotate("spot-percentage", "50").create().await;
    eventually("its pods are there", async || {
        let pods = cluster.pods("web").await.len();
        if pods == 4 { Ok(()) } else { Err(pods) }
    })
    .await;
    operator
        .wait_for_log("the record of n2", |line| line["message"] == "would write the record" && line["node"] == "n2")
        .await;
    operator
        .wait_for_log("the restore of n1", |line| line["message"] == "would restore the node" && line["node"] == "n1")
        .await;
    assert!(operator.stop().await.is_some_and(|status| status.success()));

    let asked = cluster.requests_by(USER);
    assert!(asked.iter().any(|asked| asked.resource == "nodes"), "the audit log has no request of this user");
    let kept: Vec<_> = asked.into_iter().filter(|asked| asked.is_write() && !asked.dry_run).collect();
    assert!(kept.is_empty(), "{kept:#?}");
    assert_eq!(cluster.record("n2").await, None);
}
