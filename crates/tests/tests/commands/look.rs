//! Commands that look: status, nodes, records, diff, history. All of them with the rights of somebody who may only read.

use perennial_tests::{TestCluster, Webhooks, eventually};
use serde_json::json;

use crate::cells;

#[tokio::test]
async fn everything_can_be_looked_at_with_read_only_rights() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    let reader = cluster.reader();
    let ask = |words: &str| cluster.perennial_as(&reader, &[], words);
    cluster.node("n1").label("team", "ml").create().await;
    cluster.node("n2").label("team", "web").create().await;
    cluster.node("n3").create().await;
    cluster.node("shy").label("team", "x").annotation("perennial.dev/ignore", "true").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.wait_for_record("n2", [("team", "web")]).await;
    cluster.label("n1", "disk", "nvme").await;
    cluster.wait_for_record("n1", [("team", "ml"), ("disk", "nvme")]).await;
    cluster.delete_node("n2").await;

    // nodes
    let table = ask("nodes").expect_success();
    let rows = cells(&table);
    assert_eq!(rows[0], ["NODE", "STATE", "KEPT", "RECORD", "CAPTURED"]);
    assert_eq!(rows[1][..4], ["n1", "Current", "2", "node-n1"]);
    assert_eq!(rows[2][..4], ["n2", "Away", "1", "node-n2"]);
    assert_eq!(rows[3][..4], ["n3", "NoRecord", "0", "-"]);
    assert_eq!(rows[4][..4], ["shy", "Ignored", "1", "-"]);
    assert_eq!(ask("nodes -o name --state away").expect_success(), "node/n2\n");
    assert_eq!(ask("nodes -o name -l team").expect_success(), "node/n1\nnode/shy\n");
    let yaml = ask("nodes -o yaml").expect_success();
    assert!(yaml.starts_with("kind: NodeList\nitems:\n- ") && yaml.contains("state: Away"), "{yaml}");
    let wide = ask("nodes -o wide").expect_success();
    assert!(wide.contains("current: node and record agree") && wide.contains("config"), "{wide}");

    // records
    assert_eq!(ask("records -o name -l team=web").expect_success(), "configmap/node-n2\n");
    let records = ask("records -o yaml").expect_success();
    assert!(records.contains("  node: n1\n"), "{records}");

    // status
    let status: serde_json::Value = serde_json::from_str(&ask("status -o json").expect_success()).unwrap();
    assert_eq!(status["nodes"], json!({"Away": 1, "Current": 1, "Ignored": 1, "NoRecord": 1}));
    assert_eq!(status["records"], json!({"Good": 2}));
    let group = &status["groups"][0];
    let (member, holder) = (&group["members"][0]["identity"], &group["shards"][0]["holder"]);
    assert!(member == holder && group["shards"][0]["held"] == json!(true), "{group}");
    assert_eq!(status["webhooks"].as_array().unwrap().len(), 3, "{}", status["webhooks"]);
    let told = ask("status").expect_success();
    assert!(told.contains("Nodes:      1 of 3 current") && told.contains("0 of 1  "), "{told}");

    // history
    let history = ask("history n1").expect_success();
    assert!(history.contains("+ disk=nvme") && history.contains("perennial rollback n1 --to 1"), "{history}");

    // Nothing is due now, and something is once nobody is there to do it.
    let answer = ask("diff");
    assert!(answer.success && answer.stdout.is_empty(), "{answer:?}");
    operator.crash();
    cluster.label("n1", "disk", "ssd").await;
    cluster.delete_node("n3").await;
    cluster.node("n2").create().await;
    let answer = ask("diff");
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let expected = "node/n1: its record would follow it\n  ~ disk=nvme -> ssd\n\
                    node/n2: it would be given what its record has\n  + team=web\n";
    assert_eq!(answer.stdout, expected);
    assert_eq!(ask("diff n2 -o name").stdout, "node/n2\n");
    assert_eq!(ask("diff nobody").code, Some(2));
    eventually("the holder is seen to be silent", async || {
        let told = ask("status").expect_success();
        if told.contains("nobody holds perennial") { Ok(()) } else { Err(told) }
    })
    .await;
    // What needs more than reading says so, and what to do.
    let said = ask("restore n2").expect_failure();
    assert!(said.contains("You need to be allowed to patch nodes"), "{said}");
}

#[tokio::test]
async fn the_metrics_of_an_operator_are_read_where_they_can_be_reached() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.wait_for_metric("perennial_captures_total", &[], 1.0).await;

    let url = format!("http://127.0.0.1:{}/metrics", operator.port());
    let told = cluster.perennial(&format!("status --metrics {url}")).expect_success();
    assert!(told.contains("1 captures, 0 restores"), "{told}");

    let said = cluster.perennial("status --metrics http://127.0.0.1:9/metrics").expect_failure();
    assert!(said.contains("could not read metrics from http://127.0.0.1:9/metrics"), "{said}");
}

#[tokio::test]
async fn what_changes_is_printed_while_it_is_watched() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let nodes = cluster.perennial_in_background("nodes -w -o wide");
    let records = cluster.perennial_in_background("records -w");
    eventually("the lists", async || {
        let (nodes, records) = (nodes.output(), records.output());
        if nodes.contains("n1") && records.contains("n1") { Ok(()) } else { Err(nodes + &records) }
    })
    .await;

    // Again and again: a watch may begin after a change.
    let mut number = 0;
    eventually("the change is printed", async || {
        number += 1;
        cluster.label("n1", "number", &number.to_string()).await;
        let (nodes, records) = (nodes.output(), records.output());
        if nodes.lines().count() > 3 && records.lines().count() > 3 { Ok(()) } else { Err(nodes + &records) }
    })
    .await;
}
