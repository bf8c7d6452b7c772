//! Commands claim no record, restore or remedy that is not true, whatever the environment has.

use perennial_harness::{TestCluster, Webhooks, eventually, perennial};
use serde_json::json;

#[tokio::test]
async fn a_record_of_another_machine_of_the_same_name_is_not_the_record_of_a_node() {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("by-provider", &json!({"identity": "providerID"}));
    let _operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").machine("p1", "s1", "m1").label("team", "ml").create().await;
    let away = eventually("the first machine has a record", async || {
        let value = cluster.perennial_json("records -o json");
        value["items"][0]["name"].as_str().map(str::to_owned).ok_or(value)
    })
    .await;
    cluster.delete_node("n1").await;
    cluster.node("n1").machine("p2", "s2", "m2").create().await;

    let text = cluster.perennial("explain n1").expect_success();
    assert!(text.contains("nothing is kept of it") && text.contains("Record: none."), "{text}");
    assert!(!text.contains("team"), "{text}");
    let text = cluster.perennial("explain team --node n1").expect_success();
    assert!(text.contains("never seen on this node"), "{text}");
    for command in ["restore n1", "forget n1 --yes", "hold n1"] {
        let message = cluster.perennial(command).expect_failure();
        assert!(message.contains("there is no record for node n1"), "{command}: {message}");
    }
    assert!(cluster.get_node("n1").await.metadata.labels.is_none_or(|labels| !labels.contains_key("team")));
    // The record of the other machine is reached by its own name.
    let held = cluster.perennial(&format!("hold configmap/{away}")).expect_success();
    assert_eq!(held, format!("record {away} held\n"));
    cluster.kubectl("delete keeppolicies --all");
}

#[tokio::test]
async fn no_restore_is_claimed_that_did_not_happen_and_no_remedy_that_cannot_work() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    let role = "node-role.kubernetes.io/gpu";
    cluster.node("moved").machine("p1", "s1", "m1").label(role, "x").create().await;
    cluster.wait_for_record("moved", [(role, "x")]).await;
    for name in ["forgotten", "away", "spoilt"] {
        cluster.node(name).label("team", "ml").label("rack", "r1").create().await;
        cluster.wait_for_record(name, [("team", "ml"), ("rack", "r1")]).await;
    }
    cluster.unlabel("away", "rack").await;
    cluster.wait_for_record("away", [("team", "ml")]).await;
    for name in ["moved", "forgotten", "away", "spoilt"] {
        cluster.delete_node(name).await;
    }
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 4.0).await;
    operator.stop().await.expect("it stops within five seconds");
    cluster.perennial("forget forgotten --yes").expect_success();
    cluster.node("moved").machine("p2", "s2", "m2").create().await;
    cluster.corrupt_record("spoilt", json!({"record.json": "not a record"})).await;

    // The key belongs to another machine: the node does not have everything.
    let message = cluster.perennial("restore moved").expect_failure();
    assert!(message.contains("nothing was restored to node moved") && message.contains(role), "{message}");
    assert!(message.contains("another machine"), "{message}");
    // Nothing of a forgotten node is restored when it returns.
    let message = cluster.perennial("restore forgotten").expect_failure();
    assert!(message.contains("nothing is restored when it is created again: its record is empty"), "{message}");
    let message = cluster.perennial("restore away").expect_failure();
    assert!(message.contains("its record is restored when it is created again"), "{message}");
    // A node that does not exist cannot be labelled.
    for (key, fix) in [("other", None), ("rack", Some("perennial rollback away --to 1"))] {
        let value = cluster.perennial_json(&format!("explain {key} --node away -o json"));
        let shown = value["fix"].as_str().unwrap_or_default();
        assert!(!shown.contains("kubectl") && shown.contains(fix.unwrap_or_default()), "{value}");
    }
    // The command that inspects a quarantined record names its namespace.
    let value = cluster.perennial_json("explain team --node spoilt -o json");
    let fix = value["fix"].as_str().unwrap_or_default();
    let command = fix.split('`').nth(1).unwrap_or_else(|| panic!("no command in {value}"));
    assert!(cluster.shell(command).expect_success().contains("not a record"), "{value}");
    // A list of records does not read nodes, and claims nothing about them.
    let records = cluster.perennial_json("records -o json");
    for item in records["items"].as_array().unwrap() {
        assert_ne!(item["collection"]["never"], "the node exists", "{item}");
    }
    let one = cluster.perennial_json("records moved -o json");
    assert_eq!(one["items"][0]["collection"]["never"], "the node exists", "{one}");
}

#[tokio::test]
async fn a_label_of_a_controller_is_kept_after_the_command_that_is_shown() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::Off).await;
    // The API server tracks the managers of an object that was created with some field.
    cluster.node("n1").label("team", "ml").create().await;
    cluster.kubectl("label node n1 gpu=a100 --field-manager=gpu-feature-discovery");

    let value = cluster.perennial_json("explain gpu --node n1 -o json");
    assert_eq!(value["cause"], "Controllers", "{value}");
    let fix = value["fix"].as_str().unwrap_or_default();
    let command = &fix[fix.find("kubectl").unwrap_or_else(|| panic!("no command in {value}"))..];
    cluster.shell(command).expect_success();

    cluster.wait_for_record("n1", [("gpu", "a100"), ("team", "ml")]).await;
}

/// Variables of older tools are for `run`: a shell that exports them gets the same answers.
#[tokio::test]
async fn commands_ignore_the_variables_of_run() {
    let cluster = TestCluster::new().await;
    cluster.node("n1").label("team", "ml").create().await;
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();
    let ask = |words: &str, environment: &[(&str, &str)]| {
        let flags = ["--kubeconfig", &kubeconfig, "--system-namespace", cluster.namespace()];
        perennial(words.split(' ').chain(flags), environment)
    };
    for command in ["nodes", "records", "explain team --node n1", "simulate --replicas 4 --spot 50"] {
        let plain = ask(command, &[]);
        assert!(plain.success, "{command}: {plain:?}");
        for (name, value) in [
            ("LOG_LEVEL", "debug"),
            ("LOG_LEVEL", "nonsense"),
            ("RUST_LOG", "trace"),
            ("RESYNC_INTERVAL_SECONDS", "often"),
            ("PERSIST_LABEL_PREFIX", "nothing.example.com/"),
            ("OPERATOR_NAMESPACE", "elsewhere"),
        ] {
            let answer = ask(command, &[(name, value)]);
            let same = (answer.code, &answer.stdout, &answer.stderr) == (plain.code, &plain.stdout, &plain.stderr);
            assert!(same, "{command} with {name}={value}: {answer:?} instead of {plain:?}");
        }
    }
}
