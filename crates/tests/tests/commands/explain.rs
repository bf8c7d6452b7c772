//! `perennial explain` names the true reason for a missing label.

use perennial_harness::{TestCluster, Webhooks, eventually};
use serde_json::json;

/// Checks one prepared cause: the reason in JSON, and the sentences in the text output.
fn asks(cluster: &TestCluster, key: &str, node: &str, word: &str, sentences: &[&str]) {
    let output = cluster.perennial(&format!("explain {key} --node {node}")).expect_success();
    let value = cluster.perennial_json(&format!("explain {key} --node {node} -o json"));
    assert_eq!(value["cause"], word, "{key} on {node}: {output}");
    for sentence in sentences {
        assert!(output.contains(sentence), "no {sentence:?} in {output}");
    }
}

#[tokio::test]
async fn the_true_cause_is_named_for_each_of_thirteen_cases() {
    let cluster = TestCluster::with_policies().await;
    let spec = json!({"nodeSelector": {"matchLabels": {"pool": "gpu"}}, "keep": ["pool", "example.com/"]});
    cluster.apply_policy("gpu-only", &spec);
    let spec = json!({"nodeSelector": {"matchLabels": {"pool": "twins"}}, "identity": "systemUUID"});
    cluster.apply_policy("by-uuid", &spec);
    let operator = cluster.start(Webhooks::Off).await;

    let role = "node-role.kubernetes.io/gpu";
    let zone = "topology.kubernetes.io/zone";
    for name in ["own", "shy", "removed", "spoilt", "newer", "stopped"] {
        cluster.node(name).label("team", "ml").label("rack", "r1").create().await;
    }
    cluster.node("zoned").label(zone, "z1").label("team", "ml").create().await;
    cluster.node("gpu").label("pool", "gpu").label("team", "ml").create().await;
    cluster.node("moved").machine("p1", "s1", "m1").label(role, "x").label("team", "ml").create().await;
    cluster.node("young").machine("p2", "s2", "m2").label(role, "x").label("team", "ml").create().await;
    cluster.node("twin-1").machine("p3", "s3", "m3").label("pool", "twins").label("team", "ml").create().await;
    for name in ["own", "shy", "removed", "spoilt", "newer", "stopped"] {
        cluster.wait_for_record(name, [("team", "ml"), ("rack", "r1")]).await;
    }
    cluster.wait_for_record("zoned", [("team", "ml")]).await;
    cluster.wait_for_record("gpu", [("pool", "gpu")]).await;
    cluster.wait_for_record("moved", [(role, "x"), ("team", "ml")]).await;
    cluster.wait_for_record("young", [(role, "x"), ("team", "ml")]).await;
    cluster.unlabel("removed", "rack").await;
    cluster.wait_for_record("removed", [("team", "ml")]).await;
    let away = ["own", "shy", "removed", "spoilt", "newer", "zoned", "gpu", "moved", "young"];
    for name in away {
        cluster.delete_node(name).await;
    }
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 9.0).await;
    let mut spoilt = cluster.record("spoilt").await.unwrap();
    spoilt["labels"]["team"] = json!("evil");
    cluster.corrupt_record("spoilt", json!({"record.json": spoilt.to_string()})).await;
    cluster.corrupt_record("newer", json!({"record.json": json!({"version": 9}).to_string()})).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 2.0).await;

    // All of them return, each with another obstacle.
    cluster.node("own").label("team", "web").create().await;
    cluster.node("shy").annotation("perennial.dev/ignore", "true").create().await;
    cluster.node("removed").create().await;
    cluster.node("spoilt").create().await;
    cluster.node("newer").create().await;
    cluster.node("zoned").create().await;
    cluster.node("gpu").label("pool", "gpu").create().await;
    cluster.node("moved").machine("p1", "other", "m1").create().await;
    cluster.node("young").create().await;
    cluster.node("twin-2").machine("p3", "s3", "m3").label("pool", "twins").create().await;
    cluster.node("twin-3").label("pool", "twins").create().await;
    cluster.wait_for_labels("own", [("team", "web"), ("rack", "r1")]).await;
    cluster.wait_for_record("own", [("team", "web"), ("rack", "r1")]).await;
    for name in ["removed", "zoned", "moved", "young"] {
        cluster.wait_for_labels(name, [("team", "ml")]).await;
    }

    asks(&cluster, zone, "zoned", "Dropped", &["dropped by default", "`topology.kubernetes.io/*`"]);
    asks(&cluster, "team", "gpu", "NotKept", &["KeepPolicy gpu-only", "`keep`"]);
    asks(
        &cluster,
        "team",
        "own",
        "OwnValue",
        &["its own value, web, which takes precedence over ml", "perennial rollback own --to 1"],
    );
    asks(
        &cluster,
        "team",
        "shy",
        "Ignored",
        &["excluded by the annotation or label", "kubectl annotate node shy perennial.dev/ignore-"],
    );
    asks(&cluster, role, "moved", "AnotherMachine", &["another machine", "systemUUID s1", "systemUUID other"]);
    asks(&cluster, role, "young", "MachineUnknown", &["not known to be the machine", "providerID p2"]);
    asks(&cluster, "team", "spoilt", "Quarantined", &["is quarantined: its checksum", "perennial forget spoilt"]);
    asks(&cluster, "team", "newer", "NewerRecord", &["version 9", "run the newer version"]);
    asks(&cluster, "team", "twin-2", "Contested", &["twin-1 has the same identity", "systemUUID"]);
    asks(&cluster, "team", "twin-3", "Unidentified", &["has no systemUUID yet"]);
    asks(&cluster, "rack", "removed", "Removed", &["was removed", "perennial rollback removed --to 1"]);
    asks(&cluster, "colour", "removed", "NeverSeen", &["never seen", "kubectl label node removed colour="]);

    operator.crash();
    cluster.delete_node("stopped").await;
    cluster.node("stopped").create().await;
    eventually("its Lease is seen to be stale", async || {
        let output = cluster.perennial("explain team --node stopped").expect_success();
        if output.contains("the operator is not running") { Ok(()) } else { Err(output) }
    })
    .await;
    asks(&cluster, "team", "stopped", "ToGive", &["about to be restored", "has not renewed the Lease"]);
    let story = cluster.perennial("explain stopped").expect_success();
    assert!(story.contains("unsettled") && story.contains("the operator is not running"), "{story}");
    cluster.kubectl("delete keeppolicies --all");
}

#[tokio::test]
async fn explain_lists_the_history_of_a_node() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    let role = "node-role.kubernetes.io/gpu";
    cluster.node("n1").machine("p", "s", "m").label("team", "ml").label(role, "x").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), (role, "x")]).await;

    let first = cluster.perennial("explain n1").expect_success();
    assert!(first.contains("n1 is current") && first.contains("this incarnation has no mark"), "{first}");
    assert!(first.contains("Identity: name=n1"), "{first}");
    assert!(first.contains("2 key(s) in node-n1, version 1"), "{first}");
    let next = format!("it would be restored with {role}=x,team=ml ({role} after the create");
    assert!(first.contains(&next), "{first}");

    // Restored within the create.
    cluster.delete_node("n1").await;
    cluster.node("n1").machine("p", "s", "m").create().await;
    let ridden = cluster.perennial("explain node/n1").expect_success();
    assert!(ridden.contains("in its create request, by the webhook"), "{ridden}");
    assert!(ridden.contains("team=ml   (restored)"), "{ridden}");
    cluster.wait_for_event("n1", "Restored").await;

    // Another machine is restored by a patch, without the protected keys.
    operator.stop().await.expect("it stops within five seconds");
    cluster.perennial("webhook disable").expect_success();
    cluster.delete_node("n1").await;
    cluster.node("n1").machine("p", "t", "m").create().await;
    let before = cluster.perennial_json("explain n1 -o json");
    assert_eq!((&before["state"], &before["attended"]), (&json!("Unsettled"), &json!(false)), "{before}");
    let _operator = cluster.start(Webhooks::Off).await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    cluster.wait_for_event("n1", "Restored").await;
    let patched = cluster.perennial("explain n1").expect_success();
    assert!(patched.contains("by a patch of the operator"), "{patched}");
    assert!(patched.contains("Restored: Restored team"), "{patched}");
    eventually("the refusal is reported", async || {
        let output = cluster.perennial("explain n1").expect_success();
        let wanted = format!("{role}: kept for machine p,");
        if output.contains(&wanted) { Ok(()) } else { Err(output) }
    })
    .await;

    let message = cluster.perennial("explain example.com/team").expect_failure();
    assert!(message.contains("--node NODE"), "{message}");
}

#[tokio::test]
async fn explanations_name_a_remedy_that_works_and_the_true_origin() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("own").label("team", "ml").label("rack", "r1").create().await;
    cluster.wait_for_record("own", [("team", "ml"), ("rack", "r1")]).await;
    cluster.delete_node("own").await;
    for name in ["edited", "spoilt", "forgotten"] {
        cluster.node(name).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("team", "ml")]).await;
        cluster.delete_node(name).await;
    }
    cluster.node("own").label("team", "web").create().await;
    cluster.wait_for_record("own", [("team", "web"), ("rack", "r1")]).await;
    cluster.node("edited").create().await;
    cluster.wait_for_labels("edited", [("team", "ml")]).await;
    cluster.label("edited", "team", "ops").await;
    cluster.wait_for_record("edited", [("team", "ops")]).await;

    // The record has followed the node: only its history contains the earlier value.
    let text = cluster.perennial("explain team --node own").expect_success();
    assert!(text.contains("perennial rollback own --to 1") && !text.contains("perennial restore"), "{text}");
    // A value that was set after the restore is not a restored value.
    let text = cluster.perennial("explain team --node edited").expect_success();
    assert!(!text.contains("restored to this incarnation"), "{text}");
    let text = cluster.perennial("explain edited").expect_success();
    assert!(text.contains("team=ops   (kept)"), "{text}");
    // Nothing of a forgotten node returns.
    cluster.perennial("forget forgotten --yes").expect_success();
    let wide = cluster.perennial("nodes -o wide --state Away").expect_success();
    let line = wide.lines().find(|line| line.starts_with("forgotten")).unwrap_or_default();
    assert!(line.contains("away: nothing is kept of it"), "{wide}");
    let text = cluster.perennial("explain forgotten").expect_success();
    assert!(text.contains("nothing would be restored: its record is empty"), "{text}");
    // A quarantined record does not agree with anything.
    cluster.node("spoilt").create().await;
    cluster.wait_for_labels("spoilt", [("team", "ml")]).await;
    cluster.corrupt_record("spoilt", json!({"record.json": "not a record"})).await;
    operator.wait_for_metric("perennial_records_invalid", &[], 1.0).await;
    cluster.wait_for_record_under("recovered.json", "spoilt", [("team", "ml")]).await;
    eventually("the state is current", async || {
        let value = cluster.perennial_json("explain spoilt -o json");
        if value["state"] == "Current" { Ok(()) } else { Err(value) }
    })
    .await;
    let text = cluster.perennial("explain spoilt").expect_success();
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains("its record is quarantined") && !first.contains("record agree"), "{text}");
}

#[tokio::test]
async fn remedies_for_annotations_and_taints_are_commands_that_work() {
    let cluster = TestCluster::with_policies().await;
    let spec = json!({"annotations": ["example.com/*"], "taints": ["dedicated"], "cordon": true});
    cluster.apply_policy("all", &spec);
    let operator = cluster.start(Webhooks::Off).await;
    let builder = cluster.node("n1").annotation("example.com/owner", "ml team").taint("dedicated", "gpu", "NoSchedule");
    builder.label("team", "ml").create().await;
    eventually("the annotation is recorded", async || {
        let text = cluster.record_bytes("n1", "record.json").await.unwrap_or_default();
        if text.contains("ml team") && text.contains("gpu") { Ok(()) } else { Err(text) }
    })
    .await;
    cluster.kubectl("annotate node n1 example.com/owner-");
    cluster.kubectl("taint node n1 dedicated:NoSchedule-");

    for (key, wanted) in [
        ("annotation:example.com/owner", "kubectl annotate node n1 'example.com/owner=ml team'"),
        ("taint:dedicated:NoSchedule", "kubectl taint node n1 dedicated=gpu:NoSchedule"),
    ] {
        let fix = eventually("the removal is recorded", async || {
            let value = cluster.perennial_json(&format!("explain {key} --node n1 -o json"));
            if value["cause"] == "Removed" {
                Ok(value["fix"].as_str().unwrap_or_default().to_owned())
            } else {
                Err(value)
            }
        })
        .await;
        let command = &fix[fix.find("kubectl").unwrap_or_else(|| panic!("no command in {fix}"))..];
        assert_eq!(command, wanted);
        cluster.shell(command).expect_success();
    }
    assert_eq!(cluster.get_node("n1").await.metadata.annotations.unwrap()["example.com/owner"], "ml team");
    let never = cluster.perennial("explain cordon: --node n1").expect_success();
    assert!(never.contains("Fix: kubectl cordon n1"), "{never}");
    drop(operator);
    cluster.kubectl("delete keeppolicies --all");
}
