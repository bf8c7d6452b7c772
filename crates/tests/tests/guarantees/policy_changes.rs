//! Policies that are renamed, broken or deleted while a node is away.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use perennial_harness::{Operator, OperatorBuilder, TestCluster, Webhooks, eventually};
use rstest::rstest;
use serde_json::{Value, json};

const OWNER: &str = "example.com/owner";
const DEDICATED: &str = "example.com/dedicated";

fn end(cluster: &TestCluster, operator: Operator) {
    operator.crash();
    cluster.kubectl("delete keeppolicies --all");
}

/// Keeps everything of a pool. The configuration keeps nothing of it.
fn pool(identity: &str, more: &Value) -> Value {
    let mut spec = json!({
        "nodeSelector": {"matchLabels": {"example.com/pool": "gpu"}},
        "keep": ["*"],
        "annotations": [OWNER],
        "taints": [DEDICATED],
        "identity": identity,
    });
    spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    spec
}

fn narrow(builder: OperatorBuilder) -> OperatorBuilder {
    builder.set("keeper.keep", "elsewhere.example.com/*")
}

async fn records(cluster: &TestCluster) -> Vec<(ConfigMap, Value)> {
    let list = cluster.records().list(&ListParams::default().labels("perennial.dev/record=v1")).await.unwrap();
    let read = |object: ConfigMap| {
        let record = serde_json::from_str(object.data.as_ref()?.get("record.json")?).ok()?;
        Some((object, record))
    };
    list.items.into_iter().filter_map(read).collect()
}

async fn joins_and_leaves(cluster: &TestCluster, name: &str) {
    let node = cluster.node(name).machine("cloud://1", "s1", "m1");
    let node = node.labels([("example.com/pool", "gpu"), ("team", "ml")]);
    node.annotation(OWNER, "ada").taint(DEDICATED, "x", "NoSchedule").create().await;
    eventually("it is recorded", async || {
        let found = records(cluster).await;
        let is_its = |record: &Value| record["node"]["name"] == name && record["annotations"][OWNER] == "ada";
        if found.iter().any(|(_, record)| is_its(record)) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    cluster.delete_node(name).await;
}

/// Waits until a node has everything that its policy kept.
async fn wait_until_restored(cluster: &TestCluster, node: &str) {
    cluster.wait_for_labels(node, [("example.com/pool", "gpu"), ("team", "ml")]).await;
    eventually(format!("{node} has its annotation and its taint"), async || {
        let seen = cluster.get_node(node).await;
        let owner = seen.metadata.annotations.unwrap_or_default().get(OWNER).cloned();
        let tainted = seen.spec.unwrap_or_default().taints.unwrap_or_default().iter().any(|it| it.key == DEDICATED);
        if owner.as_deref() == Some("ada") && tainted { Ok(()) } else { Err(format!("{owner:?}, {tainted}")) }
    })
    .await;
}

/// Waits until the operator has acted on everything before.
async fn fence(cluster: &TestCluster, name: &str) {
    cluster.node(name).label("elsewhere.example.com/fence", name).create().await;
    cluster.wait_for_record(name, [("elsewhere.example.com/fence", name)]).await;
}

/// The record names a policy that does not exist any more, and its labels select another one.
#[rstest]
#[case::providers(Webhooks::Off, "providerID", "n2")]
#[case::machines(Webhooks::On, "systemUUID", "n2")]
#[case::names(Webhooks::On, "name", "n1")]
#[tokio::test]
async fn a_policy_that_is_renamed_while_the_node_is_away_restores_it(
    #[case] webhooks: Webhooks,
    #[case] identity: &str,
    #[case] returns_as: &str,
) {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("before", &pool(identity, &json!({})));
    let operator = cluster.start_with(webhooks, narrow).await;
    joins_and_leaves(&cluster, "n1").await;

    cluster.kubectl("delete keeppolicy before");
    fence(&cluster, "fence-1").await;
    cluster.apply_policy("after", &pool(identity, &json!({})));
    fence(&cluster, "fence-2").await;
    cluster.node(returns_as).machine("cloud://1", "s1", "m1").create().await;

    wait_until_restored(&cluster, returns_as).await;
    end(&cluster, operator);
}

/// Nothing is removed from the record while the policy is missing, not even by a node that joins and
/// changes meanwhile.
#[rstest]
#[case::deleted(false)]
#[case::broken(true)]
#[tokio::test]
async fn a_node_that_returns_while_its_policy_is_missing_is_restored_with_the_policy(#[case] broken: bool) {
    let cluster = TestCluster::with_policies().await;
    let spec = pool("systemUUID", &json!({}));
    cluster.apply_policy("pool", &spec);
    let operator = cluster.start_with(Webhooks::Off, narrow).await;
    joins_and_leaves(&cluster, "n1").await;

    if broken {
        cluster.apply_policy("pool", &pool("systemUUID", &json!({"retention": "0s"})));
    } else {
        cluster.kubectl("delete keeppolicy pool");
    }
    fence(&cluster, "fence-1").await;
    cluster.node("n2").machine("cloud://1", "s1", "m1").label("elsewhere.example.com/rack", "r1").create().await;
    eventually("the node is recorded without its policy", async || {
        let found = records(&cluster).await;
        let has_rack = |record: &Value| record["labels"]["elsewhere.example.com/rack"] == "r1";
        if found.iter().any(|(_, record)| has_rack(record)) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
    cluster.apply_policy("pool", &spec);

    cluster
        .wait_for_labels("n2", [("example.com/pool", "gpu"), ("team", "ml"), ("elsewhere.example.com/rack", "r1")])
        .await;
    eventually("the annotation is back", async || {
        let owner = cluster.get_node("n2").await.metadata.annotations.unwrap_or_default().get(OWNER).cloned();
        if owner.as_deref() == Some("ada") { Ok(()) } else { Err(format!("{owner:?}")) }
    })
    .await;
    end(&cluster, operator);
}

/// The retention of the policy outlives the policy.
#[tokio::test]
async fn the_retention_of_a_policy_that_was_deleted_still_applies() {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("long", &pool("providerID", &json!({"retention": "2160h"})));
    let short =
        |builder: OperatorBuilder| narrow(builder).set("controller.auditPeriod", "2s").set("keeper.retention", "1s");
    let operator = cluster.start_with(Webhooks::Off, short).await;
    for name in ["a", "b", "c", "d", "e"] {
        fence(&cluster, name).await;
    }
    joins_and_leaves(&cluster, "n1").await;
    cluster.kubectl("delete keeppolicy long");
    fence(&cluster, "short").await;
    cluster.delete_node("short").await;

    eventually("the record under the configuration is collected", async || {
        if cluster.config_map("short").await.is_none() { Ok(()) } else { Err("it is there") }
    })
    .await;
    assert!(records(&cluster).await.iter().any(|(_, record)| record["node"]["name"] == "n1"));
    end(&cluster, operator);
}
