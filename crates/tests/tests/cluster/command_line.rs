//! The commands `records`, `show` and `run`, and their errors.

use perennial_harness::{TestCluster, perennial};
use serde_json::json;

#[tokio::test]
async fn records_are_listed_as_a_table_and_as_json() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").label("tier", "gold").create().await;
    cluster.node("n2").label("team", "web").create().await;
    cluster.wait_for_record("n1", [("team", "ml"), ("tier", "gold")]).await;
    cluster.wait_for_record("n2", [("team", "web")]).await;
    cluster.delete_node("n2").await;

    let table = cluster.perennial("records").expect_success();
    let json = cluster.perennial_json("records -o json");
    let names = cluster.perennial("records -o name").expect_success();
    let wide = cluster.perennial("records -o wide").expect_success();

    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NODE", "STATE", "LABELS", "SEQUENCE", "HOLD", "CAPTURED"]);
    assert_eq!(rows[1][..4], ["n1", "Good", "2", "1"]);
    assert_eq!(rows[2][..4], ["n2", "Good", "1", "1"]);
    assert_eq!(json["kind"], "RecordList");
    assert_eq!(json["items"][0]["node"], "n1");
    assert_eq!(json["items"][0]["record"]["labels"], json!({"team": "ml", "tier": "gold"}));
    assert_eq!(names, "configmap/node-n1\nconfigmap/node-n2\n");
    assert!(wide.contains("RECORD") && wide.contains("node-n2"), "{wide}");
}

#[tokio::test]
async fn without_nodes_and_records_commands_print_a_message() {
    let cluster = TestCluster::new().await;
    let answer = cluster.perennial("records");
    assert!(answer.success && answer.stdout.is_empty());
    let message = format!("No records found in namespace {}.\n", cluster.namespace());
    assert!(answer.stderr.ends_with(&message), "{}", answer.stderr);
    assert_eq!(cluster.perennial_json("records -o json")["items"], json!([]));
    let message = cluster.perennial("show nobody").expect_failure();
    assert!(message.contains("there is no node nobody and no record for it"), "{message}");
}

#[tokio::test]
async fn show_prints_the_state_of_a_node() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    let there = cluster.perennial("show n1").expect_success();
    assert!(there.contains("current: node and record agree") && there.contains("team=ml"), "{there}");
    assert_eq!(cluster.perennial_json("show n1 -o json")["live"]["kept"]["labels"], json!({"team": "ml"}));

    cluster.delete_node("n1").await;
    let away = cluster.perennial("show n1").expect_success();
    assert!(away.contains("away") && away.contains("team=ml"), "{away}");
    let json = cluster.perennial_json("show n1 -o json");
    assert_eq!((&json["live"], &json["record"]["record"]["labels"]["team"]), (&json!(null), &json!("ml")));

    operator.crash();
    cluster.node("n1").create().await;
    let bare = cluster.perennial("show n1").expect_success();
    assert!(bare.contains("unsettled: 1 key(s) not restored yet"), "{bare}");
    cluster.label("n1", "team", "web").await;
    let yaml = cluster.perennial("show n1 -o yaml").expect_success();
    assert!(yaml.contains("standing: ") && yaml.contains("team: web"), "{yaml}");
}

#[test]
fn a_bad_configuration_is_refused_with_every_error_and_its_path() {
    let file = std::env::temp_dir().join(format!("perennial-config-{}.yaml", std::process::id()));
    std::fs::write(&file, "controller: {qps: fast, wrkers: 3}\nkeeper: {merge: sometimes}\n").unwrap();

    let words = ["run", "--config", file.to_str().unwrap(), "--set", "webhook.port=99999"];
    let message = perennial(words, &[("PERENNIAL_CONTROLLER_WORKERS", "0")]).expect_failure();
    std::fs::remove_file(&file).unwrap();

    for path in [
        "controller.qps: ",
        "controller.wrkers: unknown key; did you mean `controller.workers`?",
        "keeper.merge: ",
        "webhook.port (flag): ",
    ] {
        assert!(message.contains(path), "no {path:?} in {message}");
    }
    assert!(message.starts_with("error: the configuration is not valid:\n"), "{message}");
}

#[test]
fn values_out_of_range_are_refused_with_their_source() {
    let message =
        perennial(["run", "--set", "controller.shards=0"], &[("PERENNIAL_CONTROLLER_WORKERS", "0")]).expect_failure();
    assert!(message.contains("controller.workers") && message.contains("controller.shards"), "{message}");
}

#[test]
fn a_kubeconfig_that_is_not_there_is_named() {
    let message = perennial(["records", "--kubeconfig", "/nowhere/kubeconfig"], &[]).expect_failure();
    assert!(message.contains("could not read the kubeconfig /nowhere/kubeconfig"), "{message}");
}
