//! Races between incarnations and replicas: nothing is lost, nothing is undone, sequences only
//! grow.

use futures::future::join_all;
use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, eventually};
use rstest::rstest;

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn an_operator_that_was_paused_acts_on_the_current_state(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let mut operator = cluster.start(webhooks).await;
    for node in ["changed", "replaced", "restored", "relabelled"] {
        cluster.node(node).label("team", "ml").label("tier", "gold").create().await;
        cluster.wait_for_record(node, [("team", "ml"), ("tier", "gold")]).await;
    }

    operator.pause();
    cluster.label("changed", "team", "web").await;
    cluster.unlabel("changed", "tier").await;
    cluster.delete_node("replaced").await;
    cluster.node("replaced").label("team", "data").create().await;
    cluster.delete_node("restored").await;
    cluster.node("restored").create().await;
    cluster.delete_node("relabelled").await;
    cluster.node("relabelled").create().await;
    cluster.label("relabelled", "team", "web").await;
    operator.resume();

    cluster.wait_for_record("changed", [("team", "web")]).await;
    cluster.wait_for_labels("changed", [("team", "web")]).await;
    cluster.wait_for_labels("replaced", [("team", "data"), ("tier", "gold")]).await;
    cluster.wait_for_labels("restored", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_labels("relabelled", [("team", "web"), ("tier", "gold")]).await;
    cluster.wait_for_record("relabelled", [("team", "web"), ("tier", "gold")]).await;
}

/// The paused operator still considers itself the leader when it resumes, while a successor has
/// made progress.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_leader_that_was_paused_does_not_undo_what_its_successor_did(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let short = |builder: OperatorBuilder| builder.set("controller.leaderElection.leaseDuration", "3s");
    let mut paused = cluster.start_with(webhooks, short).await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    let successor = short(cluster.operator()).set("controller.roles", "capture,restore,placement").start().await;

    // When it resumes, all its pending events are outdated.
    paused.pause();
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.unlabel("n1", "tier").await;
    cluster.label("n1", "team", "web").await;
    let before = cluster.wait_for_record("n1", [("team", "web")]).await;
    paused.resume();
    // It has acted on its pending events by then, or found that it may not.
    eventually("the paused operator gives up its Lease", async || {
        let leads = paused.metrics().sum("leader_election_master_status", &[]);
        if leads < 0.5 { Ok(()) } else { Err(leads) }
    })
    .await;
    cluster.label("n1", "fence", "1").await;
    let after = cluster.wait_for_record("n1", [("team", "web"), ("fence", "1")]).await;

    cluster.wait_for_labels("n1", [("team", "web"), ("fence", "1")]).await;
    assert!(after["sequence"].as_u64() > before["sequence"].as_u64());
    drop(successor);
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_concurrent_leaders_restore_each_node_correctly(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let everyone = |builder: OperatorBuilder| builder.set("controller.leaderElection.enabled", "false");
    let _first = cluster.start_with(webhooks, everyone).await;
    let _second = everyone(cluster.operator()).set("controller.roles", "capture,restore,placement").start().await;

    let life = async |number: usize| {
        let (name, mine) = (format!("n{number}"), number.to_string());
        cluster.node(&name).label("mine", &mine).label("old", "1").create().await;
        cluster.wait_for_record(&name, [("mine", mine.as_str()), ("old", "1")]).await;
        cluster.delete_node(&name).await;
        cluster.node(&name).create().await;
        cluster.wait_for_labels(&name, [("mine", mine.as_str()), ("old", "1")]).await;
        cluster.unlabel(&name, "old").await;
        cluster.wait_for_record(&name, [("mine", mine.as_str())]).await;
        cluster.delete_node(&name).await;
        cluster.node(&name).create().await;
        cluster.wait_for_labels(&name, [("mine", mine.as_str())]).await;
    };
    join_all((0..25).map(life)).await;
}

/// Ten incarnations as fast as possible, each with its own change.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn the_last_of_many_quick_incarnations_has_the_labels_of_all(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    let mut expected = vec![("team".to_owned(), "ml".to_owned())];
    for number in 0..10 {
        let key = format!("brought-{number}");
        cluster.delete_node("n1").await;
        cluster.node("n1").label(&key, "1").create().await;
        expected.push((key, "1".to_owned()));
    }

    cluster.wait_for_labels("n1", expected.clone()).await;
    cluster.wait_for_record("n1", expected).await;
}

#[tokio::test]
async fn when_the_leader_dies_the_other_replica_takes_over() {
    let cluster = TestCluster::new().await;
    let short = |builder: OperatorBuilder| builder.set("controller.leaderElection.leaseDuration", "3s");
    let leader = short(cluster.operator()).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let other = short(cluster.operator()).start().await;
    leader.crash();

    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "web")]).await;

    assert!(other.metrics().sum("leader_election_master_status", &[]) >= 1.0);
}

#[tokio::test]
async fn replicas_serve_with_certificates_of_one_shared_secret() {
    let cluster = TestCluster::new().await;
    let first = cluster.start(Webhooks::On).await;
    let secret = || {
        let text = cluster.kubectl(&format!("get secrets -n {} -o json", cluster.namespace()));
        let list: serde_json::Value = serde_json::from_str(&text).unwrap();
        let items = list["items"].as_array().unwrap().clone();
        assert_eq!(items.len(), 1, "one Secret");
        items[0]["data"]["ca.crt"].clone()
    };
    let authority = secret();
    assert!(authority.is_string());
    first.stop().await.expect("it stops within five seconds");

    // Its replacement signs with the same CA: a restart does not rotate it.
    let _second = cluster.start(Webhooks::On).await;

    assert_eq!(secret(), authority);
    let bundle =
        cluster.kubectl("get mutatingwebhookconfiguration perennial -o jsonpath={.webhooks[0].clientConfig.caBundle}");
    assert_eq!(Some(bundle.as_str()), authority.as_str());
}
