//! `KeepPolicy` objects, written with kubectl.

use perennial_harness::{Operator, TestCluster, Webhooks, eventually, keep_policy, labels};
use rstest::rstest;
use serde_json::{Value, json};

/// Removes the policies, which would apply to nodes of other tests. The CRD stays on the plane.
fn end(cluster: &TestCluster, operator: Operator) {
    operator.crash();
    cluster.kubectl("delete keeppolicies --all");
}

async fn wait_for_status(cluster: &TestCluster, name: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    eventually(format!("the status of {name}"), async || {
        let object: Value = serde_json::from_str(&cluster.kubectl(&format!("get keeppolicy {name} -o json"))).unwrap();
        if is_it(&object["status"]) { Ok(object) } else { Err(object["status"].to_string()) }
    })
    .await
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn the_policy_of_the_highest_priority_decides_for_the_nodes_that_it_selects(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("everyone", &json!({"keep": ["team"]}));
    cluster
        .apply_policy("lower", &json!({"priority": 5, "nodeSelector": {"matchLabels": {"gpu": "yes"}}, "keep": ["x"]}));
    let gpu = json!({
        "priority": 10,
        "nodeSelector": {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["yes"]}]},
        "keep": ["gpu", "example.com/"],
        "taints": ["dedicated"],
    });
    cluster.apply_policy("gpu", &gpu);
    let operator = cluster.start(webhooks).await;

    let all = [("gpu", "yes"), ("team", "ml"), ("example.com/rack", "r7")];
    cluster.node("g1").labels(all).taint("dedicated", "gpu", "NoSchedule").create().await;
    cluster.node("w1").labels([("team", "web"), ("example.com/rack", "r8")]).create().await;
    cluster.wait_for_record("g1", [("gpu", "yes"), ("example.com/rack", "r7")]).await;
    cluster.wait_for_record("w1", [("team", "web")]).await;
    cluster.delete_node("g1").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;

    // Created without labels: the labels of its record select the policy.
    cluster.node("g1").create().await;
    cluster.wait_for_labels("g1", [("gpu", "yes"), ("example.com/rack", "r7")]).await;
    let taints = cluster.kubectl("get node g1 -o jsonpath={.spec.taints[*].key}");
    assert!(taints.contains("dedicated"), "{taints}");
    end(&cluster, operator);
}

#[tokio::test]
async fn a_policy_reports_its_status_and_changes_apply_at_once() {
    let cluster = TestCluster::with_policies().await;
    cluster
        .apply_policy("gpu", &json!({"nodeSelector": {"matchLabels": {"gpu": "yes"}}, "keep": ["gpu"], "priority": 7}));
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("g1").labels([("gpu", "yes"), ("team", "ml")]).create().await;
    cluster.node("w1").label("team", "web").create().await;
    cluster.wait_for_record("g1", [("gpu", "yes")]).await;
    let other = cluster.wait_for_record("w1", [("team", "web")]).await;

    let ready = |status: &Value| status["nodes"] == 1 && status["records"] == 1;
    let object = wait_for_status(&cluster, "gpu", ready).await;
    assert_eq!(object["status"]["observedGeneration"], object["metadata"]["generation"]);
    let condition = &object["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Ready"), &json!("True")));
    let table = cluster.kubectl("get kp");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "PRIORITY", "NODES", "RECORDS", "READY", "AGE"]);
    assert_eq!(rows[1][..5], ["gpu", "7", "1", "1", "True"]);

    // More is kept of the selected nodes, and of no others.
    cluster.apply_policy("gpu", &json!({"nodeSelector": {"matchLabels": {"gpu": "yes"}}, "keep": ["gpu", "team"]}));
    cluster.wait_for_record("g1", [("gpu", "yes"), ("team", "ml")]).await;
    assert_eq!(cluster.record("w1").await, Some(other));
    wait_for_status(&cluster, "gpu", |status| status["observedGeneration"] == 2).await;
    // Without a policy the config file applies. A narrower or deleted policy removes nothing from
    // records.
    cluster.kubectl("delete keeppolicy gpu");
    cluster.label("g1", "more", "1").await;
    cluster.wait_for_record("g1", [("gpu", "yes"), ("team", "ml"), ("more", "1")]).await;
    end(&cluster, operator);
}

#[tokio::test]
async fn bad_policies_are_refused_at_admission() {
    let cluster = TestCluster::with_policies().await;
    let expression = |value: Value| json!({"nodeSelector": {"matchExpressions": [value]}});
    let bad = [
        (json!({"identity": "serial"}), "expected auto, name, providerID"),
        (json!({"retention": "soon"}), "expected a duration"),
        (json!({"merge": "sometimes"}), "keepExisting"),
        (json!({"keep": ["two words"]}), "a pattern is"),
        (json!({"keep": [""]}), "spec.keep"),
        (json!({"drop": "x"}), "spec.drop"),
        (json!({"priority": 1_000_001}), "spec.priority"),
        (json!({"cordon": "yes"}), "spec.cordon"),
        (json!({"kep": ["*"]}), "kep"),
        (expression(json!({"key": "gpu", "operator": "In"})), "In and NotIn need values"),
        (expression(json!({"key": "gpu", "operator": "Exists", "values": ["1"]})), "In and NotIn need values"),
        (expression(json!({"key": "gpu", "operator": "Is"})), "operator"),
    ];

    for (spec, why) in bad {
        let message = cluster.try_kubectl_with("create", &keep_policy("bad", &spec)).expect_failure();
        assert!(message.contains(why), "{spec}: {message}");
    }

    let explained = cluster.kubectl("explain keeppolicy.spec.retention");
    assert!(explained.contains("How long a record is kept"), "{explained}");
}

#[tokio::test]
async fn an_invalid_policy_is_reported_and_ignored() {
    let cluster = TestCluster::with_policies().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.apply_policy("bad", &json!({"retention": "0s", "keep": ["nothing-else"]}));

    let object = wait_for_status(&cluster, "bad", |status| status["conditions"][0]["status"] == "False").await;
    assert!(object["status"]["conditions"][0]["message"].as_str().unwrap().contains("spec.retention"), "{object}");
    eventually("an Event reports it", async || {
        let message = cluster
            .kubectl("get events --field-selector involvedObject.kind=KeepPolicy -o jsonpath={.items[*].reason}");
        if message.contains("Ignored") { Ok(()) } else { Err(message) }
    })
    .await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    assert_eq!(cluster.labels("n1").await, labels([("team", "ml")]));
    end(&cluster, operator);
}

#[tokio::test]
async fn a_policy_can_select_another_identity() {
    let cluster = TestCluster::with_policies().await;
    let metal = json!({"nodeSelector": {"matchLabels": {"metal": "yes"}}, "identity": "systemUUID"});
    cluster.apply_policy("metal", &metal);
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("old").machine("", "s1", "m1").label("metal", "yes").label("team", "ml").create().await;
    cluster.node("cloud").machine("", "s2", "m2").label("team", "web").create().await;
    cluster.wait_for_record("cloud", [("team", "web")]).await;
    cluster.wait_for_records(2).await;
    cluster.delete_node("old").await;

    // A label of the kubelet selects the policy, the machine selects the record.
    cluster.node("new").machine("", "s1", "m1").label("metal", "yes").create().await;

    cluster.wait_for_labels("new", [("metal", "yes"), ("team", "ml")]).await;
    end(&cluster, operator);
}

/// The policy is known only from the record: keys that it keeps and the node sets itself belong to
/// the node.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn an_annotation_of_the_new_node_wins_even_if_only_its_record_selects_the_policy(#[case] webhooks: Webhooks) {
    const OWNER: &str = "example.com/owner";
    let cluster = TestCluster::with_policies().await;
    let gpu = json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "keep": ["*"], "annotations": [OWNER]});
    cluster.apply_policy("gpu", &gpu);
    let operator = cluster.start(webhooks).await;
    cluster.node("n1").label("pool", "gpu").annotation(OWNER, "ada").create().await;
    cluster.wait_for_record("n1", [("pool", "gpu")]).await;
    cluster.delete_node("n1").await;

    cluster.node("n1").annotation(OWNER, "bob").create().await;

    cluster.wait_for_labels("n1", [("pool", "gpu")]).await;
    let node = cluster.get_node("n1").await;
    assert_eq!(node.metadata.annotations.unwrap_or_default().get(OWNER).map(String::as_str), Some("bob"));
    end(&cluster, operator);
}

#[tokio::test]
async fn a_node_that_loses_the_label_of_a_selector_is_no_longer_selected() {
    let cluster = TestCluster::with_policies().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").labels([("pool", "gpu"), ("team", "ml"), ("disk", "nvme")]).create().await;
    cluster.wait_for_record("n1", [("pool", "gpu"), ("team", "ml"), ("disk", "nvme")]).await;
    cluster.apply_policy("gpu", &json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "keep": ["team"]}));
    wait_for_status(&cluster, "gpu", |status| status["nodes"] == 1).await;

    cluster.unlabel("n1", "pool").await;
    cluster.label("n1", "disk", "ssd").await;

    cluster.wait_for_record("n1", [("team", "ml"), ("disk", "ssd")]).await;
    end(&cluster, operator);
}
