//! G6: every write is conditional on the version that it was decided on, and a record's sequence
//! only grows.

use std::collections::BTreeMap;

use futures::{TryStreamExt, future::join_all};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{WatchEvent, WatchParams};
use perennial_harness::{OperatorBuilder, TestCluster, Webhooks};
use rstest::rstest;
use serde_json::Value;

/// Returns every write to the records in order: name, sequence, content.
async fn follow(cluster: &TestCluster) -> impl Future<Output = Vec<(String, u64, String)>> + use<> {
    let params = WatchParams::default().labels("perennial.dev/record=v1").timeout(290);
    let stream = cluster.records().watch(&params, "0").await.unwrap();
    async move {
        let mut seen = Vec::new();
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.try_next().await.unwrap() {
            let object: ConfigMap = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => object,
                _ => continue,
            };
            let name = object.metadata.name.unwrap_or_default();
            let text = object.data.unwrap_or_default().remove("record.json").unwrap_or_default();
            let record: Value = serde_json::from_str(&text).unwrap();
            let end = record["labels"].get("end").is_some();
            seen.push((name, record["sequence"].as_u64().unwrap(), text));
            if end {
                break;
            }
        }
        seen
    }
}

fn assert_grows_by_one(written: &[(String, u64, String)]) {
    let mut last: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
    for (name, sequence, text) in written {
        if let Some((before, same)) = last.get(name.as_str()) {
            // An annotation of the ConfigMap does not change the record.
            let expected = if same == text { *before } else { before + 1 };
            assert_eq!(*sequence, expected, "{name}: {same} was followed by {text}");
        }
        last.insert(name, (*sequence, text));
    }
}

/// Two operators without leader election under load: if one write overwrote another, a sequence
/// would repeat.
#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequences_only_grow_with_two_concurrent_leaders(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let everyone = |builder: OperatorBuilder| builder.set("controller.leaderElection.enabled", "false");
    let _first = cluster.start_with(webhooks, everyone).await;
    let _second = everyone(cluster.operator()).set("controller.roles", "capture,restore,placement").start().await;
    let written = tokio::spawn(follow(&cluster).await);

    let storm = async |name: String| {
        cluster.node(&name).label("count", "start").create().await;
        for round in 0..15 {
            cluster.label(&name, "count", &round.to_string()).await;
            if round % 3 == 0 {
                cluster.delete_node(&name).await;
                cluster.node(&name).label("own", &round.to_string()).create().await;
            }
        }
        let own = cluster.labels(&name).await.remove("own").unwrap_or_default();
        cluster.wait_for_labels(&name, [("count", "14"), ("own", own.as_str())]).await;
        cluster.wait_for_record(&name, [("count", "14"), ("own", own.as_str())]).await;
    };
    join_all((0..10).map(|number| storm(format!("n{number}")))).await;
    cluster.node("end").label("end", "1").create().await;
    let written = written.await.unwrap();

    assert!(written.len() > 20, "only {} writes", written.len());
    assert_grows_by_one(&written);
    // The two operators do not undo each other's writes.
    let before = cluster.requests().await;
    cluster.node("fence").label("fence", "1").create().await;
    cluster.wait_for_record("fence", [("fence", "1")]).await;
    let after = cluster.requests().await;
    let more = after.count("PATCH", "nodes") - before.count("PATCH", "nodes");
    assert_eq!(more, 0, "patches of nodes after the storm");
}

#[rstest]
#[case::on(Webhooks::On)]
#[case::off(Webhooks::Off)]
#[tokio::test]
async fn a_deleted_record_is_rewritten_from_the_live_node(#[case] webhooks: Webhooks) {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(webhooks).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    cluster.kubectl(&format!("delete configmap node-n1 -n {}", cluster.namespace()));

    cluster.wait_for_record("n1", [("team", "ml")]).await;
}
