//! A record is judged by the policy that it was captured under.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams};
use perennial_harness::{ApiRequest, Fault, Operator, OperatorBuilder, TestCluster, Webhooks, eventually, labels};
use rstest::rstest;
use serde_json::{Value, json};

/// A label that arrives after the create, and that no policy keeps by default.
const ZONE: &str = "topology.kubernetes.io/zone";
const OWNER: &str = "example.com/owner";
const DEDICATED: &str = "example.com/dedicated";

fn end(cluster: &TestCluster, operator: Operator) {
    operator.crash();
    cluster.kubectl("delete keeppolicies --all");
}

/// Commands find a record under the identity of a policy that is gone.
#[tokio::test]
async fn commands_find_the_record_of_a_policy_that_was_deleted() {
    let cluster = TestCluster::with_policies().await;
    let policies: [(&str, Value); 2] = [
        ("machines", json!({"nodeSelector": {"matchLabels": {"kind": "machine"}}, "identity": "systemUUID"})),
        ("racks", json!({"nodeSelector": {"matchLabels": {"kind": "rack"}}, "identity": "label:example.com/rack"})),
    ];
    for (name, spec) in &policies {
        cluster.apply_policy(name, spec);
    }
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("by-uuid").labels([("kind", "machine"), ("team", "ml")]).machine("p1", "s1", "m1").create().await;
    let racked = cluster.node("by-rack").labels([("kind", "rack"), ("team", "ml"), ("example.com/rack", "r1")]);
    racked.create().await;
    for node in ["by-uuid", "by-rack"] {
        let is_filed =
            |map: &ConfigMap, _: &Value| map.metadata.name.as_ref().is_some_and(|name| name.starts_with("id-"));
        wait_until_filed(&cluster, node, is_filed).await;
    }
    end(&cluster, operator);

    for node in ["by-uuid", "by-rack"] {
        let explained = cluster.perennial(&format!("explain team --node {node}")).expect_success();
        assert!(explained.contains("the node and the record have ml"), "{explained}");
        let listed = cluster.perennial("nodes -o json").expect_success();
        let listed: Value = serde_json::from_str(&listed).unwrap();
        let items = listed["items"].as_array().unwrap();
        let records = items.iter().filter(|item| item.to_string().contains(&format!("\"{node}\""))).count();
        assert_eq!(records, 1, "a node and its record are one row: {listed}");
    }
}

fn zoned(more: &Value) -> Value {
    let mut spec = json!({
        "nodeSelector": {"matchLabels": {ZONE: "a"}},
        "annotations": [OWNER],
        "taints": [DEDICATED],
    });
    spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    spec
}

/// Returns the ConfigMap and the record of a node, wherever it is filed.
async fn filed(cluster: &TestCluster, node: &str) -> Option<(ConfigMap, Value)> {
    let list = cluster.records().list(&ListParams::default().labels("perennial.dev/record=v1")).await.unwrap();
    list.items.into_iter().find_map(|object| {
        let record: Value = serde_json::from_str(object.data.as_ref()?.get("record.json")?).ok()?;
        (record["node"]["name"] == node).then_some((object, record))
    })
}

async fn wait_until_filed(
    cluster: &TestCluster,
    node: &str,
    is_it: impl Fn(&ConfigMap, &Value) -> bool,
) -> (ConfigMap, Value) {
    eventually(format!("the record of {node}"), async || match filed(cluster, node).await {
        Some((object, record)) if is_it(&object, &record) => Ok((object, record)),
        found => Err(format!("{found:?}")),
    })
    .await
}

async fn wait_for_owner_and_taint(cluster: &TestCluster, node: &str) {
    eventually(format!("{node} has its annotation and its taint"), async || {
        let seen = cluster.get_node(node).await;
        let owner = seen.metadata.annotations.unwrap_or_default().get(OWNER).cloned();
        let spec = seen.spec.unwrap_or_default();
        let tainted = spec.taints.unwrap_or_default().iter().any(|taint| taint.key == DEDICATED);
        if owner.as_deref() == Some("ada") && tainted { Ok(()) } else { Err(format!("{owner:?}, {tainted}")) }
    })
    .await;
}

async fn hold(cluster: &TestCluster, object: &ConfigMap) {
    let patch = json!({"metadata": {"annotations": {"perennial.dev/hold": "true"}}});
    let name = object.metadata.name.as_deref().unwrap();
    cluster.records().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn is_held(object: &ConfigMap) -> bool {
    object.metadata.annotations.as_ref().is_some_and(|all| all.contains_key("perennial.dev/hold"))
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_selector_label_that_arrives_after_the_create_loses_nothing(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("zoned", &zoned(&json!({})));
    let operator = cluster.start(webhooks).await;
    let node = cluster.node("n1").label(ZONE, "a").annotation(OWNER, "ada").taint(DEDICATED, "x", "NoSchedule");
    node.create().await;
    wait_until_filed(&cluster, "n1", |_, record| record["annotations"][OWNER] == "ada").await;
    cluster.delete_node("n1").await;

    cluster.node("n1").create().await;
    // Captured before the label arrives, and after.
    cluster.label("n1", "team", "ml").await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.label("n1", ZONE, "a").await;
    cluster.label("n1", "team", "web").await;

    cluster.wait_for_record("n1", [("team", "web")]).await;
    wait_for_owner_and_taint(&cluster, "n1").await;
    let (_, record) = filed(&cluster, "n1").await.unwrap();
    assert_eq!(record["annotations"][OWNER], "ada", "{record}");
    assert_eq!(record["taints"][0]["key"], DEDICATED, "{record}");
    end(&cluster, operator);
}

/// The first example of `docs/reference/keep-policy.md`, word for word.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn the_documented_policy_restores_a_machine_that_returns_bare(#[case] webhooks: Webhooks) {
    let page = include_str!("../../../../docs/reference/keep-policy.md");
    let example = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let cluster = TestCluster::with_policies().await;
    cluster.try_kubectl_with("apply", example).expect_success();
    let operator = cluster.start(webhooks).await;
    let node = cluster.node("g1").machine("", "s1", "m1");
    let node = node.labels([("example.com/pool", "gpu"), ("example.com/tmp-x", "1"), ("team", "ml"), ("other", "1")]);
    node.annotation(OWNER, "ada").taint(DEDICATED, "x", "NoSchedule").create().await;
    let kept = json!({"example.com/pool": "gpu", "team": "ml"});
    let (object, _) = wait_until_filed(&cluster, "g1", |_, record| record["labels"] == kept).await;
    assert!(object.metadata.name.unwrap().starts_with("id-systemuuid-s1"));
    cluster.kubectl("annotate node g1 perennial.dev/cordon-reason=disk");
    cluster.kubectl("cordon g1");
    wait_until_filed(&cluster, "g1", |_, record| record["unschedulable"] == true).await;
    cluster.delete_node("g1").await;

    // Another name, no labels: only the machine is the same.
    cluster.node("g2").machine("", "s1", "m1").create().await;

    cluster.wait_for_labels("g2", [("example.com/pool", "gpu"), ("team", "ml")]).await;
    wait_for_owner_and_taint(&cluster, "g2").await;
    let back = cluster.get_node("g2").await;
    assert_eq!(back.spec.unwrap().unschedulable, Some(true));
    assert_eq!(back.metadata.annotations.unwrap()["perennial.dev/cordon-reason"], "disk");

    // Another machine under the first name gets none of it, and has a record of its own.
    cluster.node("g1").machine("", "s2", "m2").label("team", "web").create().await;
    cluster.wait_for_record("g1", [("team", "web")]).await;
    assert_eq!(cluster.labels("g1").await, labels([("team", "web")]));
    end(&cluster, operator);
}

#[rstest]
#[case::in_force(true)]
#[case::deleted(false)]
#[tokio::test]
async fn the_record_of_an_absent_node_stays_in_its_place_across_a_restart(#[case] in_force: bool) {
    let cluster = TestCluster::with_policies().await;
    let spec = zoned(&json!({"identity": "providerID"}));
    cluster.apply_policy("zoned", &spec);
    let operator = cluster.start(Webhooks::Off).await;
    let node = cluster.node("n1").machine("cloud://1", "s1", "m1").label(ZONE, "a").label("team", "ml");
    node.annotation(OWNER, "ada").taint(DEDICATED, "x", "NoSchedule").create().await;
    let (object, _) = wait_until_filed(&cluster, "n1", |_, record| record["annotations"][OWNER] == "ada").await;
    hold(&cluster, &object).await;
    cluster.delete_node("n1").await;
    operator.stop().await.expect("it stops within five seconds");

    if !in_force {
        cluster.kubectl("delete keeppolicy zoned");
    }
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("fence").label("team", "fence").create().await;
    cluster.wait_for_record("fence", [("team", "fence")]).await;
    cluster.apply_policy("zoned", &spec);

    // Under another name: the providerID is all that identifies it.
    cluster.node("n2").machine("cloud://1", "s1", "m1").create().await;
    cluster.wait_for_labels("n2", [("team", "ml")]).await;
    wait_for_owner_and_taint(&cluster, "n2").await;
    let after = cluster.records().get(object.metadata.name.as_deref().unwrap()).await.unwrap();
    assert!(is_held(&after), "{after:?}");
    end(&cluster, operator);
}

fn often(builder: OperatorBuilder) -> OperatorBuilder {
    builder.set("controller.auditPeriod", "2s").set("keeper.retention", "1s")
}

#[tokio::test]
async fn a_record_is_kept_as_long_as_the_policy_says_that_it_was_captured_under() {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("zoned", &zoned(&json!({"retention": "2160h"})));
    cluster
        .apply_policy("metal", &json!({"nodeSelector": {"matchLabels": {"metal": "yes"}}, "identity": "systemUUID"}));
    let operator = cluster.start_with(Webhooks::Off, often).await;
    for name in ["a", "b", "c", "d", "e"] {
        cluster.node(name).label("team", name).create().await;
    }
    cluster.node("zoned").label(ZONE, "a").label("team", "ml").create().await;
    cluster.node("gone").machine("", "s1", "m1").label("metal", "yes").create().await;
    cluster.wait_for_records(7).await;
    cluster.delete_node("zoned").await;
    cluster.delete_node("gone").await;
    // Another machine uses the name of the one that is gone. That keeps no record of an identity.
    cluster.node("gone").machine("", "s2", "m2").label("team", "web").create().await;

    eventually("the record of the machine is collected", async || {
        let list = cluster.records().list(&ListParams::default()).await.unwrap();
        let found = list.items.iter().any(|object| object.metadata.name.as_ref().unwrap().contains("systemuuid-s1"));
        if found { Err("it is there") } else { Ok(()) }
    })
    .await;
    assert!(filed(&cluster, "zoned").await.is_some(), "it is kept for 2160 hours");
    end(&cluster, operator);
}

/// A node that joins and changes while its policy is missing loses nothing of its record.
#[tokio::test]
async fn a_policy_that_is_deleted_for_a_while_changes_nothing_that_was_kept_under_it() {
    let cluster = TestCluster::with_policies().await;
    let spec = zoned(&json!({}));
    cluster.apply_policy("zoned", &spec);
    let operator = cluster.start(Webhooks::Off).await;
    let node = cluster.node("n1").label(ZONE, "a").annotation(OWNER, "ada").taint(DEDICATED, "x", "NoSchedule");
    node.create().await;
    wait_until_filed(&cluster, "n1", |_, record| record["annotations"][OWNER] == "ada").await;
    cluster.delete_node("n1").await;
    cluster.kubectl("delete keeppolicy zoned");

    cluster.node("n1").label(ZONE, "a").create().await;
    cluster.label("n1", "team", "ml").await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.apply_policy("zoned", &spec);

    wait_for_owner_and_taint(&cluster, "n1").await;
    end(&cluster, operator);
}

#[tokio::test]
async fn a_record_that_moves_keeps_its_hold_and_its_history() {
    let cluster = TestCluster::with_policies().await;
    let spec = |identity: &str| json!({"nodeSelector": {"matchLabels": {"pool": "x"}}, "identity": identity});
    cluster.apply_policy("pool", &spec("name"));
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").machine("p1", "s1", "m1").labels([("pool", "x"), ("team", "ml")]).create().await;
    cluster.wait_for_record("n1", [("pool", "x"), ("team", "ml")]).await;
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("pool", "x"), ("team", "web")]).await;
    let (object, before) = filed(&cluster, "n1").await.unwrap();
    hold(&cluster, &object).await;
    cluster.delete_node("n1").await;

    cluster.apply_policy("pool", &spec("systemUUID"));

    let is_moved = |object: &ConfigMap| object.metadata.name.as_ref().unwrap().starts_with("id-systemuuid-s1");
    let (object, after) = wait_until_filed(&cluster, "n1", |object, _| is_moved(object)).await;
    assert!(is_held(&object), "{object:?}");
    assert_eq!(after["history"], before["history"]);
    cluster.node("n2").machine("p1", "s1", "m1").create().await;
    cluster.wait_for_labels("n2", [("pool", "x"), ("team", "web")]).await;
    end(&cluster, operator);
}

/// The operator starts while it may not read policies, and the node leaves in that time.
#[tokio::test]
async fn annotations_of_a_node_that_leaves_while_policies_cannot_be_read_are_kept() {
    let cluster = TestCluster::with_policies().await;
    let owned = json!({"nodeSelector": {"matchLabels": {"pool": "x"}}, "annotations": [OWNER]});
    cluster.apply_policy("owned", &owned);
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("pool", "x").annotation(OWNER, "ada").create().await;
    wait_until_filed(&cluster, "n1", |_, record| record["annotations"][OWNER] == "ada").await;
    operator.stop().await.expect("it stops within five seconds");

    let proxy = cluster.fault_proxy().await;
    proxy.inject(|asked: &ApiRequest| (asked.resource == "keeppolicies").then_some(Fault::Answered(403, None)));
    let operator = cluster.start_with(Webhooks::Off, |builder| builder.through(&proxy)).await;
    cluster.label("n1", "team", "ml").await;
    cluster.delete_node("n1").await;
    operator.wait_for_metric("perennial_last_states_pending", &[], 1.0).await;
    proxy.clear_faults();

    let (_, record) = wait_until_filed(&cluster, "n1", |_, record| record["labels"]["team"] == "ml").await;
    assert_eq!(record["annotations"], json!({OWNER: "ada"}));
    end(&cluster, operator);
}
