//! Read-only commands: status, nodes, records, diff, history. All of them run with read-only
//! permissions.

use perennial_harness::{TestCluster, Webhooks, eventually, perennial};
use serde_json::json;

use crate::cells;

#[tokio::test]
async fn read_only_permissions_suffice_for_all_read_commands() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    let reader = cluster.read_only_user();
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
    assert_eq!(rows[0], ["NODE", "STATE", "KEPT", "RECORD", "HOLD", "CAPTURED"]);
    assert_eq!(rows[1][..4], ["n1", "Current", "2", "node-n1"]);
    assert_eq!(rows[2][..4], ["n2", "Away", "1", "node-n2"]);
    assert_eq!(rows[3][..4], ["n3", "NoRecord", "-", "-"]);
    assert_eq!(rows[4][..4], ["shy", "Ignored", "-", "-"]);
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
    let output = ask("status").expect_success();
    assert!(output.contains("Nodes:      2 of 2 current") && output.contains("0 of 1  "), "{output}");

    // history
    let history = ask("history n1").expect_success();
    assert!(history.contains("+ disk=nvme") && history.contains("perennial rollback n1 --to 1"), "{history}");

    // explain
    let story = ask("explain n1").expect_success();
    assert!(story.contains("n1 is current") && story.contains("disk=nvme"), "{story}");
    assert!(ask("explain team --node n3").expect_success().contains("never seen"));
    assert!(ask("show n2").expect_success().contains("away"));
    assert!(ask("export -l team=web").expect_success().contains("n2"));
    assert!(ask("top --once --interval 200ms").expect_success().contains("Records    2, 1 without a node"));
    let message = ask("workloads").expect_failure();
    assert!(message.contains("You need permission to get and list nodes, namespaces, deployments"), "{message}");

    // Nothing is pending now; once no operator is running, something is.
    let answer = ask("diff");
    assert!(answer.success && answer.stdout.is_empty(), "{answer:?}");
    operator.crash();
    cluster.label("n1", "disk", "ssd").await;
    cluster.delete_node("n3").await;
    cluster.node("n2").create().await;
    let answer = ask("diff");
    assert_eq!(answer.code, Some(1), "{answer:?}");
    let expected = "node/n1: record would be updated\n  ~ disk=nvme -> ssd\n\
                    node/n2: node would be restored\n  + team=web\n";
    assert_eq!(answer.stdout, expected);
    assert_eq!(ask("diff n2 -o name").stdout, "node/n2\n");
    let wide = "node/n1: record would be updated\n  ~ disk=nvme -> ssd\n    team=ml\n";
    assert_eq!(ask("diff n1 -o wide").stdout, wide, "with what stays");
    let list: serde_json::Value = serde_json::from_str(&ask("diff -o json").stdout).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("DiffList"), 2), "{list}");
    let given = json!([{"key": "team", "before": null, "after": "web"}]);
    assert_eq!((&list["items"][1]["node"], &list["items"][1]["changes"]), (&json!("n2"), &given), "{list}");
    assert_eq!(ask("diff shy -o yaml").stdout, "kind: DiffList\nitems: []\n");
    assert_eq!(ask("diff nobody").code, Some(2));
    eventually("the holder is seen to be silent", async || {
        let output = ask("status").expect_success();
        if output.contains("no replica holds perennial") { Ok(()) } else { Err(output) }
    })
    .await;
    // A command that needs more than read access names the permission and the fix.
    let message = ask("restore n2").expect_failure();
    assert!(message.contains("You need permission to patch nodes"), "{message}");
}

#[tokio::test]
async fn the_metrics_of_an_operator_are_read_where_they_can_be_reached() {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.wait_for_metric("perennial_captures_total", &[], 1.0).await;

    let url = format!("http://127.0.0.1:{}/metrics", operator.port());
    let output = cluster.perennial(&format!("status --metrics {url}")).expect_success();
    assert!(output.contains("1 captures, 0 restores"), "{output}");

    let message = cluster.perennial("status --metrics http://127.0.0.1:9/metrics").expect_failure();
    assert!(message.contains("could not read metrics from http://127.0.0.1:9/metrics"), "{message}");
}

#[tokio::test]
async fn changes_are_printed_while_watching() {
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

    // Repeated, because a watch may begin after a change.
    let mut number = 0;
    eventually("the change is printed", async || {
        number += 1;
        cluster.label("n1", "number", &number.to_string()).await;
        let (nodes, records) = (nodes.output(), records.output());
        // A warning, the header and the list come first.
        if nodes.lines().count() > 4 && records.lines().count() > 4 { Ok(()) } else { Err(nodes + &records) }
    })
    .await;
}

#[tokio::test]
async fn a_context_chooses_the_cluster() {
    let cluster = TestCluster::new().await;
    cluster.node("n1").create().await;

    // Two contexts: the first one refers to a cluster that does not exist.
    let script = "cp $KUBECONFIG $FOLDER/two
        export KUBECONFIG=$FOLDER/two
        there=$(kubectl config current-context)
        kubectl config set-cluster gone --server https://127.0.0.1:1 >/dev/null
        kubectl config set-context gone --cluster gone >/dev/null
        kubectl config use-context gone >/dev/null
        perennial nodes -o name; echo $?
        perennial nodes -o name --context $there; echo $?
        perennial nodes -o name --context nowhere; echo $?";
    let answer = cluster.shell(script);

    assert_eq!(answer.stdout, "1\nnode/n1\n0\n1\n", "{}", answer.stderr);
    assert!(answer.stderr.contains("--context and --kubeconfig select the right one"), "{}", answer.stderr);
    assert!(answer.stderr.contains("nowhere"), "{}", answer.stderr);
}

#[tokio::test]
async fn programs_that_watch_get_one_object_after_the_other() {
    let cluster = TestCluster::new().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.node("n2").label("team", "web").create().await;

    let watching = cluster.perennial_in_background("nodes -w -o json");
    eventually("both are printed, each a whole object", async || {
        // The log of the command also has what it prints on stderr.
        let output = watching.output();
        let output: String = output.lines().filter(|line| !line.starts_with("warning:")).collect();
        let objects = serde_json::Deserializer::from_str(&output).into_iter::<serde_json::Value>();
        let names: Vec<String> = objects.flatten().map(|object| object["name"].as_str().unwrap().to_owned()).collect();
        if names == ["n1", "n2"] { Ok(()) } else { Err(output) }
    })
    .await;
}

#[tokio::test]
async fn a_plan_of_files_is_what_the_operator_would_do() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.node("n2").label("team", "web").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.wait_for_record("n2", [("team", "web")]).await;
    operator.crash();
    cluster.label("n1", "disk", "ssd").await;
    cluster.delete_node("n2").await;
    cluster.node("n2").create().await;

    // From the output of kubectl, without a cluster.
    let script = "for kind in nodes configmaps; do echo ---; kubectl get $kind -n $PERENNIAL_NAMESPACE -o yaml; done > $FOLDER/all.yaml
        KUBECONFIG=/nowhere perennial plan -f - < $FOLDER/all.yaml";
    let output = cluster.shell(script).expect_success();
    assert!(output.contains("  record would be updated\n  + disk=ssd\n"), "{output}");
    assert!(output.contains("  node would be restored\n  + team=web\n"), "{output}");

    // Another policy changes the result, and an invalid policy is an error.
    let script = "export KUBECONFIG=/nowhere
        policy() { printf -- '---\\napiVersion: perennial.dev/v1alpha1\\nkind: KeepPolicy\\nmetadata: {name: p}\\nspec: %s\\n' \"$1\"; }
        (cat $FOLDER/all.yaml; policy '{keep: [team]}') | perennial plan -f - -o json; echo $?
        (cat $FOLDER/all.yaml; policy '{merge: sometimes}') | perennial plan -f -; echo $?";
    let output = cluster.shell(script).expect_success();
    assert!(
        !output.contains("\"disk\"") && output.contains("\"policy\": \"p\"") && output.contains("]\n0\n"),
        "{output}"
    );
    assert!(output.contains("keeppolicy/p: would be ignored") && output.ends_with("1\n"), "{output}");
}

/// Formats without meaning for a command are refused instead of ignored.
#[test]
fn a_format_that_would_do_nothing_is_refused() {
    for command in
        ["status", "explain n1", "show n1", "history n1", "check", "plan -f x", "simulate --replicas 1 --spot 1"]
    {
        for format in ["wide", "name"] {
            let words = command.split(' ').chain(["-o", format]);
            let answer = perennial(words, &[]);
            assert_eq!(answer.code, Some(2), "{command} -o {format}: {answer:?}");
            let message =
                format!("invalid value '{format}' for '--output <FORMAT>'\n  [possible values: table, json, yaml]");
            assert!(answer.stderr.contains(&message), "{command}: {}", answer.stderr);
        }
    }
}

#[test]
fn a_simulation_needs_no_cluster() {
    let words = ["simulate", "--replicas", "10", "--spot", "70", "--min-on-demand", "3"];
    let output = perennial(words, &[]).expect_success();
    assert!(output.starts_with("10 replicas: 7 on spot, 3 on-demand\nDDDsssssss\n"), "{output}");
    let value: serde_json::Value =
        serde_json::from_str(&perennial(words.into_iter().chain(["-o", "json"]), &[]).expect_success()).unwrap();
    assert_eq!((&value["spot"], &value["slots"]), (&json!(7), &json!("DDDsssssss")));
}
