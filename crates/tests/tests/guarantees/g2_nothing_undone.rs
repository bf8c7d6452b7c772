//! G2: a live value, a newer value or a removal by a user is never overwritten or undone.

use futures::future::join_all;
use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, labels};
use rstest::rstest;

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_label_that_was_removed_stays_removed(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").label("last", "1").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold"), ("last", "1")]).await;

    // Before a delete, and after a restore.
    cluster.unlabel("n1", "tier").await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;
    cluster.wait_for_record("n1", [("team", "ml"), ("last", "1")]).await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("last", "1")]).await;
    cluster.unlabel("n1", "team").await;
    cluster.wait_for_record("n1", [("last", "1")]).await;

    // A new process has no memory of the removal. The fence is a change that it captures.
    operator.crash();
    let operator = cluster.start_with(webhooks, OperatorBuilder::without_leader_election).await;
    cluster.label("n1", "fence", "1").await;
    cluster.wait_for_record("n1", [("last", "1"), ("fence", "1")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("last", "1"), ("fence", "1")]));
    cluster.unlabel("n1", "fence").await;
    cluster.wait_for_record("n1", [("last", "1")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("last", "1")]).await;

    // The last label as well: an empty record shows that there is nothing to restore.
    cluster.unlabel("n1", "last").await;
    cluster.wait_for_record("n1", [("", ""); 0]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.node("fence").label("fence", "1").create().await;
    cluster.wait_for_record("fence", [("fence", "1")]).await;
    operator.wait_for_metric("perennial_nodes_current_ratio", &[], 1.0).await;
    assert_eq!(cluster.labels("n1").await, labels([("", ""); 0]));
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_value_that_the_new_node_sets_wins(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").label("team", "web").create().await;

    cluster.wait_for_labels("n1", [("team", "web"), ("tier", "gold")]).await;
    cluster.wait_for_record("n1", [("team", "web"), ("tier", "gold")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "web"), ("tier", "gold")]).await;
}

/// Requests of a user race with the restore: forty nodes, each changed as soon as it is back.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_change_wins_over_a_concurrent_restore(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    let names: Vec<String> = (0..40).map(|number| format!("n{number}")).collect();
    let each = async |name: &String| {
        cluster.node(name).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(name, [("team", "ml"), ("tier", "gold")]).await;
    };
    join_all(names.iter().map(each)).await;

    let race = async |(number, name): (usize, &String)| {
        cluster.delete_node(name).await;
        cluster.node(name).create().await;
        for change in 0..=number % 4 {
            cluster.label(name, "team", &format!("person-{change}")).await;
        }
        let last = format!("person-{}", number % 4);
        cluster.wait_for_labels(name, [("team", last.as_str()), ("tier", "gold")]).await;
        cluster.wait_for_record(name, [("team", last.as_str()), ("tier", "gold")]).await;
        assert_eq!(cluster.labels(name).await, labels([("team", last.as_str()), ("tier", "gold")]));
    };
    join_all(names.iter().enumerate().map(race)).await;
}

#[tokio::test]
async fn a_flapping_label_is_reported_and_not_overwritten() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "a").create().await;
    cluster.wait_for_record("n1", [("team", "a")]).await;

    for round in 0..6 {
        let value = if round % 2 == 0 { "b" } else { "a" };
        cluster.label("n1", "team", value).await;
        if operator.metrics().sum("perennial_label_flaps_total", &[]) < 3.0 {
            cluster.wait_for_record("n1", [("team", value)]).await;
        }
    }

    let message = cluster.wait_for_event("n1", "LabelsFlap").await;
    assert!(message.contains("team"), "{message}");
    assert!(operator.metrics().sum("perennial_label_flaps_total", &[]) >= 3.0);
    assert_eq!(cluster.labels("n1").await, labels([("team", "a")]), "the last writer wins");
    assert!(operator.metrics().sum("perennial_restores_total", &[]) < 0.5, "Perennial did not set it");
}
