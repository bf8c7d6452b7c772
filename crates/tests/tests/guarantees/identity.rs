//! Identity of nodes across incarnations.

use kube::api::ListParams;
use perennial_harness::{NodeBuilder, OperatorBuilder, TestCluster, Webhooks, eventually, labels};
use rstest::rstest;
use serde_json::{Value, json};

const ASSET: &str = "example.com/asset";

/// Returns all records by ConfigMap name.
async fn records(cluster: &TestCluster) -> Vec<(String, Value)> {
    let list = cluster.records().list(&ListParams::default().labels("perennial.dev/record=v1")).await.unwrap();
    let read = |data: Option<std::collections::BTreeMap<String, String>>| {
        let text = data.unwrap_or_default().remove("record.json").unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    list.items.into_iter().map(|object| (object.metadata.name.unwrap_or_default(), read(object.data))).collect()
}

/// Waits for exactly one record with this name prefix and this label.
async fn wait_for_team(cluster: &TestCluster, prefix: &str, team: &str) {
    eventually(format!("a record {prefix}… with team={team}"), async || {
        let records = records(cluster).await;
        let found = records.iter().any(|(name, record)| name.starts_with(prefix) && record["labels"]["team"] == team);
        if found { Ok(()) } else { Err(format!("{records:?}")) }
    })
    .await;
}

async fn wait_for_label(cluster: &TestCluster, node: &str, team: &str) {
    eventually(format!("node {node} has team={team}"), async || {
        let seen = cluster.labels(node).await;
        if seen.get("team").is_some_and(|value| value == team) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;
}

/// Sets every field that can be an identity.
fn on_machine(builder: NodeBuilder, machine: &str) -> NodeBuilder {
    let part = |kind: &str| format!("{kind}-{machine}");
    builder.machine(&part("p"), &part("s"), &part("m")).label(ASSET, machine).annotation(ASSET, machine)
}

#[rstest]
#[tokio::test]
async fn renamed_hardware_keeps_its_labels_and_its_old_name_does_not(
    #[values("providerID", "systemUUID", "machineID", "label:example.com/asset", "annotation:example.com/asset")]
    identity: &str,
    #[values(Webhooks::On, Webhooks::Off)] webhooks: Webhooks,
) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(webhooks, |builder| builder.set("keeper.identity", identity)).await;
    on_machine(cluster.node("old-name"), "one").label("team", "ml").create().await;
    wait_for_team(&cluster, "id-", "ml").await;
    cluster.delete_node("old-name").await;

    on_machine(cluster.node("new-name"), "one").create().await;
    on_machine(cluster.node("old-name"), "two").create().await;

    wait_for_label(&cluster, "new-name", "ml").await;
    cluster.label("old-name", "fence", "1").await;
    eventually("the other machine has a record of its own", async || {
        let records = records(&cluster).await;
        let found = records.iter().any(|(_, record)| record["labels"]["fence"] == "1");
        if found { Ok(()) } else { Err(format!("{records:?}")) }
    })
    .await;
    assert_eq!(cluster.labels("old-name").await, labels([(ASSET, "two"), ("fence", "1")]));
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn an_identity_that_is_set_later_is_restored_then(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(webhooks, |builder| builder.set("keeper.identity", "providerID")).await;
    cluster.node("a").machine("cloud://1", "s", "m").label("team", "ml").create().await;
    wait_for_team(&cluster, "id-providerid", "ml").await;
    cluster.delete_node("a").await;

    cluster.node("b").create().await;
    cluster.node("fence").machine("cloud://2", "t", "n").label("team", "fence").create().await;
    wait_for_team(&cluster, "id-providerid", "fence").await;
    assert_eq!(cluster.labels("b").await, labels([("", ""); 0]), "its identity is not known yet");
    cluster.patch_node("b", json!({"spec": {"providerID": "cloud://1"}})).await;

    cluster.wait_for_labels("b", [("team", "ml")]).await;
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn two_live_nodes_that_claim_one_identity_are_both_refused(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(webhooks, |builder| builder.set("keeper.identity", "systemUUID")).await;
    cluster.node("first").machine("p", "same", "m").label("team", "ml").create().await;
    wait_for_team(&cluster, "id-systemuuid", "ml").await;

    // Short names too: they may look like the end of the record's name.
    for other in ["second", "a"] {
        cluster.node(other).machine("p", "same", "m").label("own", "1").create().await;
        let message = cluster.wait_for_event(other, "IdentityConflict").await;
        assert!(message.contains("first") && message.contains("systemUUID=same"), "{message}");
        assert_eq!(cluster.labels(other).await, labels([("own", "1")]));
    }
    // The node of the record is captured as before, also after the other one was deleted.
    cluster.label("first", "team", "web").await;
    wait_for_team(&cluster, "id-systemuuid", "web").await;
    cluster.label("a", "own", "of-a").await;
    cluster.delete_node("a").await;
    cluster.label("first", "team", "db").await;
    wait_for_team(&cluster, "id-systemuuid", "db").await;
    assert_eq!(cluster.labels("first").await, labels([("team", "db")]));

    // The only remaining node gets the record.
    cluster.delete_node("first").await;
    wait_for_label(&cluster, "second", "db").await;
    assert_eq!(cluster.labels("second").await, labels([("own", "1"), ("team", "db")]));
}

#[tokio::test]
async fn changing_the_identity_setting_migrates_records_or_reports_a_dry_run() {
    let cluster = TestCluster::new().await;
    let by = |identity: &'static str| {
        move |builder: OperatorBuilder| {
            builder.set("keeper.identity", identity).set("controller.leaderElection.enabled", "false")
        }
    };
    let operator = cluster.start_with(Webhooks::Off, by("name")).await;
    cluster.node("n1").machine("p1", "s1", "m1").label("team", "ml").create().await;
    cluster.node("unknown").label("team", "web").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.wait_for_record("unknown", [("team", "web")]).await;
    cluster.delete_node("n1").await;
    operator.stop().await.expect("it stops within five seconds");

    let asked =
        cluster.start_with(Webhooks::Off, |builder| by("systemUUID")(builder).set("controller.dryRun", "true")).await;
    let message = asked
        .wait_for_log("would move", |line| {
            line["message"] == "would move the record to its new identity" && line["node"] == "n1"
        })
        .await;
    assert_eq!(message["from"], "node-n1");
    asked.stop().await.expect("it stops within five seconds");
    assert!(cluster.record("n1").await.is_some(), "nothing was moved");

    let moved = cluster.start_with(Webhooks::Off, by("systemUUID")).await;
    wait_for_team(&cluster, "id-systemuuid-s1", "ml").await;
    eventually("the old record is gone", async || match cluster.record("n1").await {
        None => Ok(()),
        Some(record) => Err(record.to_string()),
    })
    .await;
    assert!(cluster.record("unknown").await.is_some(), "the record of a node without an identity is not migrated");
    cluster.node("renamed").machine("p1", "s1", "m1").create().await;
    wait_for_label(&cluster, "renamed", "ml").await;
    moved.stop().await.expect("it stops within five seconds");

    // And back again.
    let _back = cluster.start_with(Webhooks::Off, by("name")).await;
    cluster.wait_for_record("renamed", [("team", "ml")]).await;
}

/// A node that only claimed the machine does not change its record, even when it is deleted.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_deleted_duplicate_changes_no_record(
    #[case] webhooks: Webhooks,
    #[values("captured", "returned")] first: &str,
) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start_with(webhooks, |builder| builder.set("keeper.identity", "systemUUID")).await;
    cluster.node("first").machine("p", "same", "m").label("team", "ml").create().await;
    wait_for_team(&cluster, "id-systemuuid", "ml").await;
    if first == "returned" {
        // The record still belongs to the first node.
        cluster.delete_node("first").await;
        cluster.node("first").machine("p", "same", "m").create().await;
        wait_for_label(&cluster, "first", "ml").await;
    }

    cluster.node("second").machine("p", "same", "m").labels([("team", "db"), ("own", "1")]).create().await;
    cluster.wait_for_event("second", "IdentityConflict").await;
    cluster.delete_node("second").await;

    cluster.label("first", "fence", "1").await;
    eventually("the first is captured as it is", async || {
        let records = records(&cluster).await;
        let wanted = json!({"team": "ml", "fence": "1"});
        if records.iter().all(|(_, record)| record["labels"] == wanted) { Ok(()) } else { Err(format!("{records:?}")) }
    })
    .await;
    assert_eq!(cluster.labels("first").await, labels([("team", "ml"), ("fence", "1")]));
}

/// On AWS, names are addresses that other instances reuse. The default identity is the instance.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn on_aws_the_instance_is_the_identity_by_default(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    cluster.node("ip-10-0-0-1").machine("aws:///eu-1a/i-1", "s1", "m1").label("team", "ml").create().await;
    wait_for_team(&cluster, "id-providerid-aws", "ml").await;
    cluster.delete_node("ip-10-0-0-1").await;

    cluster.node("ip-10-0-0-1").machine("aws:///eu-1a/i-2", "s2", "m2").label("own", "1").create().await;
    cluster.node("ip-10-0-0-2").machine("aws:///eu-1a/i-1", "s1", "m1").create().await;

    wait_for_label(&cluster, "ip-10-0-0-2", "ml").await;
    eventually("the other instance has a record of its own", async || {
        let records = records(&cluster).await;
        let found = records.iter().any(|(_, record)| record["labels"] == json!({"own": "1"}));
        if found { Ok(()) } else { Err(format!("{records:?}")) }
    })
    .await;
    assert_eq!(cluster.labels("ip-10-0-0-1").await, labels([("own", "1")]));
}

/// Records of a version whose default was the name move to the instance.
#[tokio::test]
async fn records_by_name_move_to_the_instance() {
    let cluster = TestCluster::new().await;
    let by = |identity: &'static str| move |builder: OperatorBuilder| builder.set("keeper.identity", identity);
    let operator = cluster.start_with(Webhooks::Off, by("name")).await;
    cluster.node("a").machine("aws:///eu-1a/i-1", "s1", "m1").label("team", "ml").create().await;
    cluster.node("b").machine("aws:///eu-1a/i-2", "s2", "m2").label("team", "web").create().await;
    cluster.wait_for_record("a", [("team", "ml")]).await;
    cluster.wait_for_record("b", [("team", "web")]).await;
    cluster.delete_node("a").await;
    operator.stop().await.expect("it stops within five seconds");

    let _operator = cluster.start_with(Webhooks::Off, by("auto")).await;

    wait_for_team(&cluster, "id-providerid-aws", "ml").await;
    wait_for_team(&cluster, "id-providerid-aws", "web").await;
    cluster.node("c").machine("aws:///eu-1a/i-1", "s1", "m1").create().await;
    wait_for_label(&cluster, "c", "ml").await;
}

/// Two instances that used one name, one after the other, are both absent when the identity changes
/// to the name. Neither record may replace the other.
#[tokio::test]
async fn a_migration_keeps_the_records_of_two_machines_of_one_name() {
    let cluster = TestCluster::new().await;
    let by = |identity: &'static str| move |builder: OperatorBuilder| builder.set("keeper.identity", identity);
    let operator = cluster.start_with(Webhooks::Off, by("providerID")).await;
    for machine in ["one", "two"] {
        on_machine(cluster.node("n1"), machine).label("team", machine).create().await;
        wait_for_team(&cluster, "id-", machine).await;
        cluster.delete_node("n1").await;
    }
    operator.stop().await.expect("it stops");

    let operator = cluster.start_with(Webhooks::Off, by("name")).await;
    let both_kept = |line: &Value| line.to_string().contains("both are kept");
    operator.wait_for_log("the second record is not moved", both_kept).await;

    let records = records(&cluster).await;
    let mut teams: Vec<&str> = records.iter().filter_map(|(_, record)| record["labels"]["team"].as_str()).collect();
    teams.sort_unstable();
    assert_eq!(teams, ["one", "two"], "{records:?}");
}

/// Before the cloud controller has set the id of an instance, its name is not an identity: the next
/// instance with this name is another machine.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn an_instance_that_was_never_initialized_leaves_nothing_to_the_next(#[case] webhooks: Webhooks) {
    const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    let starting = || cluster.node("ip-10-0-0-1").taint(UNINITIALIZED, "true", "NoSchedule");
    starting().label("team", "a").create().await;
    // Later writes show that this one was handled.
    cluster.node("fence").label("team", "f").create().await;
    cluster.wait_for_record("fence", [("team", "f")]).await;
    cluster.delete_node("ip-10-0-0-1").await;

    starting().create().await;
    cluster.patch_node("ip-10-0-0-1", json!({"spec": {"providerID": "aws:///eu-1a/i-0b", "taints": null}})).await;
    cluster.label("ip-10-0-0-1", "fence", "1").await;

    eventually("the second instance has a record of its own", async || {
        let records = records(&cluster).await;
        let is_its = |record: &Value| record["labels"]["fence"] == "1";
        if records.iter().any(|(name, record)| name.starts_with("id-") && is_its(record)) {
            Ok(())
        } else {
            Err(format!("{records:?}"))
        }
    })
    .await;
    assert_eq!(cluster.labels("ip-10-0-0-1").await, labels([("fence", "1")]));
    assert!(cluster.record("ip-10-0-0-1").await.is_none(), "nothing is filed under a name that is not an identity");
}
