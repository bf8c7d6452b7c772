//! Commands that change records and nodes.

use std::sync::atomic::{AtomicUsize, Ordering};

use perennial_harness::{TestCluster, Webhooks, eventually, labels};
use rstest::rstest;
use serde_json::json;

async fn two_teams(cluster: &TestCluster) {
    cluster.node("n1").label("team", "first").create().await;
    cluster.wait_for_record("n1", [("team", "first")]).await;
    cluster.label("n1", "team", "second").await;
    cluster.label("n1", "new", "1").await;
    cluster.wait_for_record("n1", [("team", "second"), ("new", "1")]).await;
}

/// Waits until the operator has processed all previous changes.
async fn fence(cluster: &TestCluster) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed).to_string();
    cluster.node("fence").label("fence", &number).create().await;
    cluster.wait_for_record("fence", [("fence", &number)]).await;
}

/// A change that is not kept: the node's last state is newer than its record, with the same labels.
async fn heartbeat(cluster: &TestCluster) {
    cluster.patch_node("n1", json!({"metadata": {"annotations": {"heartbeat": "1"}}})).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_rollback_changes_a_live_node_and_its_record(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    two_teams(&cluster).await;
    let history = cluster.record("n1").await.unwrap()["history"].clone();
    let first = history.as_array().unwrap().last().unwrap()["sequence"].as_u64().unwrap();

    let would = cluster.perennial(&format!("rollback n1 --to {first} --dry-run")).expect_success();
    assert!(would.contains("set team=first") && would.contains("remove new"), "{would}");
    assert_eq!(cluster.labels("n1").await, labels([("team", "second"), ("new", "1")]), "a dry run");
    cluster.perennial("rollback n1 --to 4711").expect_failure();
    cluster.perennial(&format!("rollback n1 --to {first}")).expect_success();

    assert_eq!(cluster.labels("n1").await, labels([("team", "first")]));
    cluster.wait_for_record("n1", [("team", "first")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "first")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_rollback_of_an_absent_node_applies_when_it_returns(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "first").create().await;
    cluster.wait_for_record("n1", [("team", "first")]).await;
    cluster.label("n1", "team", "second").await;
    cluster.wait_for_record("n1", [("team", "second")]).await;
    heartbeat(&cluster).await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;

    cluster.perennial("rollback n1").expect_success();
    // A replica that remembers the last state does not undo it.
    fence(&cluster).await;
    cluster.wait_for_record("n1", [("team", "first")]).await;
    cluster.node("n1").create().await;

    cluster.wait_for_labels("n1", [("team", "first")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_forgotten_record_is_not_restored(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(webhooks).await;
    two_teams(&cluster).await;

    let message = cluster.perennial("forget n1").expect_failure();
    assert!(message.contains("--yes"), "{message}");
    // On a live node, `forget` removes the history only.
    cluster.perennial("forget n1 --yes").expect_success();
    let record = cluster.record("n1").await.unwrap();
    assert_eq!(record["labels"], json!({"team": "second", "new": "1"}));
    assert!(record["history"].as_array().is_none_or(Vec::is_empty), "{record}");
    // On an absent node, it removes everything.
    heartbeat(&cluster).await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;
    cluster.perennial("forget n1 --yes").expect_success();
    fence(&cluster).await;
    cluster.node("n1").create().await;
    cluster.delete_node("fence").await;
    fence(&cluster).await;

    assert_eq!(cluster.labels("n1").await, labels([("", ""); 0]));
}

#[tokio::test]
async fn a_manual_restore_applies_the_record() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.stop().await.expect("it stops within five seconds");
    cluster.label("n1", "team", "oops").await;
    cluster.label("n1", "own", "1").await;

    let would = cluster.perennial("restore n1 --dry-run").expect_success();
    assert!(would.contains("team=ml"), "{would}");
    assert_eq!(cluster.labels("n1").await, labels([("team", "oops"), ("own", "1")]));
    cluster.perennial("restore n1").expect_success();

    assert_eq!(cluster.labels("n1").await, labels([("team", "ml"), ("own", "1")]));
    let _operator = cluster.start(Webhooks::Off).await;
    cluster.wait_for_record("n1", [("team", "ml"), ("own", "1")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml"), ("own", "1")]));
    assert!(cluster.perennial("restore n1").expect_success().contains("has everything"));
}

#[tokio::test]
async fn disabling_the_webhooks_removes_them() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    assert!(cluster.try_kubectl("get mutatingwebhookconfiguration perennial").success);
    operator.stop().await.expect("it stops within five seconds");

    cluster.perennial("webhook disable").expect_success();
    cluster.perennial("webhook disable").expect_success();

    for kind in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        assert!(!cluster.try_kubectl(&format!("get {kind} perennial")).success, "{kind}");
    }
}

#[tokio::test]
async fn an_operator_with_webhooks_off_removes_those_that_were_on() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    operator.stop().await.expect("it stops within five seconds");

    let _operator = cluster.start(Webhooks::Off).await;

    eventually("the configurations are gone", async || {
        let answer = cluster.try_kubectl("get mutatingwebhookconfiguration perennial");
        if answer.success { Err(answer.stdout) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn uninstalling_leaves_nothing_but_the_records() {
    let cluster = TestCluster::new().await;
    let operator = cluster
        .start_with(Webhooks::On, |builder| builder.set("keeper.gate", "always").set("keeper.gateTimeout", "10m"))
        .await;
    cluster.node("n1").label("team", "ml").machine("p", "s", "m").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.stop().await.expect("it stops within five seconds");
    // A pod is still gated.
    cluster
        .node("waits")
        .taint("perennial.dev/restoring", "", "NoSchedule")
        .taint("theirs", "", "NoSchedule")
        .create()
        .await;

    let message = cluster.perennial("uninstall").expect_failure();
    assert!(message.contains("--yes"), "{message}");
    cluster.perennial("uninstall --yes").expect_success();

    for kind in ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"] {
        assert!(!cluster.try_kubectl(&format!("get {kind} perennial")).success, "{kind}");
    }
    for kind in ["leases", "secrets"] {
        let left = cluster.kubectl(&format!("get {kind} -n {} -o name", cluster.namespace()));
        assert_eq!(left, "", "{kind}");
    }
    let taints = cluster.kubectl("get node waits -o jsonpath={.spec.taints[*].key}");
    assert!(taints.contains("theirs") && !taints.contains("perennial.dev"), "{taints}");
    assert_eq!(cluster.record_count().await, 1);
    cluster.perennial("uninstall --yes --records").expect_success();
    assert_eq!(cluster.record_count().await, 0);
}

/// The command does not have the configuration of an operator that was started by hand.
#[tokio::test]
async fn a_rollback_removes_no_key_that_is_not_kept() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(Webhooks::Off, |builder| builder.set("keeper.keep", "team")).await;
    cluster.node("n1").labels([("team", "first"), ("disk", "nvme")]).create().await;
    cluster.wait_for_record("n1", [("team", "first")]).await;
    cluster.label("n1", "team", "second").await;
    cluster.wait_for_record("n1", [("team", "second")]).await;

    cluster.perennial("rollback n1").expect_success();

    assert_eq!(cluster.labels("n1").await, labels([("team", "first"), ("disk", "nvme")]));
}

/// Other tools may name their ConfigMaps after nodes.
#[tokio::test]
async fn a_config_map_that_is_no_record_is_not_forgotten() {
    let cluster = TestCluster::new().await;
    cluster.kubectl(&format!("create configmap worker-1 -n {} --from-literal=a=b", cluster.namespace()));

    let message = cluster.perennial("forget worker-1 --yes").expect_failure();

    assert!(message.contains("there is no record for node worker-1"), "{message}");
    cluster.kubectl(&format!("get configmap worker-1 -n {}", cluster.namespace()));
}

/// Without read access to the policies, the command cannot know what is kept.
#[tokio::test]
async fn commands_refuse_to_write_without_the_operators_configuration() {
    let cluster = TestCluster::with_policies().await;
    let _operator = cluster.start(Webhooks::Off).await;
    two_teams(&cluster).await;
    let rules = "--verb=get,list,create,update,patch --resource=nodes,configmaps";
    cluster.kubectl(&format!("create clusterrole writers-{} {rules}", cluster.namespace()));
    let binding = format!("writers-{0} --clusterrole=writers-{0} --group=writers-{0}", cluster.namespace());
    cluster.kubectl(&format!("create clusterrolebinding {binding}"));

    let group = format!("writers-{}", cluster.namespace());
    let message = cluster.perennial_as("ada", &[&group], "rollback n1").expect_failure();

    assert!(message.contains("could not list KeepPolicies"), "{message}");
    assert_eq!(cluster.labels("n1").await, labels([("team", "second"), ("new", "1")]));
}
