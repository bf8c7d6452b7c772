//! etcd is restored from a backup while operators run: resource versions and Leases go back, and
//! whatever was written since the backup is gone.

use std::time::Duration;

use perennial_harness::{
    Operator, OperatorBuilder, TestCluster, Webhooks, eventually, eventually_within, free_port, labels,
};
use rstest::rstest;

/// The bound for working again, with room for a busy machine.
const WORKS_WITHIN: Duration = Duration::from_mins(1);

/// An operator that serves its probes on the same port after it has started again.
fn operator(cluster: &TestCluster) -> OperatorBuilder {
    cluster.operator().set("metrics.port", &free_port().to_string())
}

/// A cluster whose etcd is brought back to a state in which `n1` has `team=ml`, with an operator
/// that has seen more.
async fn restored(cluster: &TestCluster, operator: &Operator) {
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let backup = cluster.plane().backup().unwrap();
    eventually("the API server answers again", async || cluster.nodes().get("n1").await.map(drop)).await;

    for round in 0..100 {
        cluster.label("n1", "round", &round.to_string()).await;
    }
    cluster.wait_for_record("n1", [("team", "ml"), ("round", "99")]).await;
    cluster.node("n2").label("team", "gone").create().await;
    cluster.wait_for_record("n2", [("team", "gone")]).await;
    assert_eq!(operator.get("/readyz").0, 200);

    cluster.plane().restore(&backup).unwrap();
    eventually("the API server answers again", async || cluster.nodes().get("n1").await.map(drop)).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml")]), "the restored state");
}

async fn works(cluster: &TestCluster) {
    cluster.label("n1", "after", "restore").await;
    eventually_within(WORKS_WITHIN, "a label written after the restore is in the record", async || {
        let record = cluster.record("n1").await.unwrap_or_default();
        if record["labels"]["after"] == "restore" { Ok(()) } else { Err(record.to_string()) }
    })
    .await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("after", "restore")]).await;
    cluster.node("n2").create().await;
    cluster.label("n2", "team", "new").await;
    cluster.wait_for_record("n2", [("team", "new")]).await;
}

#[rstest]
#[case::off(Webhooks::Off)]
#[case::on(Webhooks::On)]
#[tokio::test]
async fn an_operator_with_a_lease_works_again_after_a_restore(#[case] webhooks: Webhooks) {
    let cluster = crate::shipped().await;
    let operator = operator(&cluster).webhooks(webhooks).start().await;
    restored(&cluster, &operator).await;

    works(&cluster).await;

    eventually("it is ready", async || match operator.get("/readyz") {
        (200, _) => Ok(()),
        (_, body) => Err(body),
    })
    .await;
    let reads = || operator.metrics().sum("rest_client_requests_total", &[("method", "GET")]);
    let before = reads();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(reads() - before < 30.0, "it reads its Lease in a loop: {} reads in 3 s", reads() - before);
}

#[tokio::test]
async fn an_operator_without_an_election_works_again_after_a_restore() {
    let cluster = crate::shipped().await;
    let operator = operator(&cluster).without_leader_election().start().await;
    restored(&cluster, &operator).await;

    works(&cluster).await;
}

#[tokio::test]
async fn a_change_is_not_missed_although_the_cluster_has_passed_the_old_versions_again() {
    let cluster = crate::shipped().await;
    let operator = operator(&cluster).without_leader_election().start().await;
    cluster.node("quiet").label("team", "ml").create().await;
    cluster.wait_for_record("quiet", [("team", "ml")]).await;
    restored(&cluster, &operator).await;

    cluster.label("quiet", "after", "restore").await;
    for round in 0..200 {
        cluster.label("n1", "round", &round.to_string()).await;
    }

    eventually_within(WORKS_WITHIN, "the change is in the record", async || {
        let record = cluster.record("quiet").await.unwrap_or_default();
        if record["labels"]["after"] == "restore" { Ok(()) } else { Err(record.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn two_replicas_agree_again_after_a_restore() {
    let cluster = crate::shipped().await;
    let first = operator(&cluster).start().await;
    let second = operator(&cluster).start().await;
    restored(&cluster, &first).await;

    works(&cluster).await;

    let leads = |operator: &Operator| operator.metrics().sum("leader_election_master_status", &[]);
    eventually("one of them leads", async || {
        let leaders = (leads(&first), leads(&second));
        if (leaders.0 + leaders.1 - 1.0).abs() < 1e-9 { Ok(()) } else { Err(format!("{leaders:?}")) }
    })
    .await;
}
