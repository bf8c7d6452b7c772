//! `perennial check` and `perennial top`.

use perennial_harness::{TestCluster, Webhooks, eventually};
use serde_json::Value;

/// What a check says of something.
fn result<'a>(lines: &'a Value, what: &str) -> &'a Value {
    lines["items"].as_array().unwrap().iter().find(|line| line["what"] == what).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_check_says_of_each_thing_whether_it_is_right_and_what_to_do() {
    let cluster = TestCluster::new().await;

    // Nobody runs: that fails, and says so.
    let answer = cluster.perennial("check -o json");
    let lines: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(answer.code, Some(1), "{lines:#}");
    assert_eq!(
        (&result(&lines, "leases")["result"], &result(&lines, "permissions")["result"]),
        (&"fail".into(), &"pass".into())
    );
    assert!(result(&lines, "leases")["fix"].as_str().unwrap().contains("start the operator"), "{lines:#}");
    assert_eq!(result(&lines, "clock")["result"], "pass");
    for line in lines["items"].as_array().unwrap() {
        let fixed = line["result"] == "pass" || line["fix"].as_str().is_some_and(|fix| !fix.is_empty());
        assert!(fixed, "it does not say what to do: {line:#}");
    }

    // It waits until somebody does.
    let waiting = cluster.perennial_in_background("check --wait=60s");
    let operator = cluster.start(Webhooks::On).await;
    eventually("the check ends", async || {
        let told = waiting.output();
        if told.contains("pass   leases") { Ok(()) } else { Err(told) }
    })
    .await;
    let told = cluster.perennial("check --wait").expect_success();
    for line in [
        "pass   version",
        "pass   namespace",
        "pass   webhooks",
        "pass   admission",
        "pass   certificate",
        "pass   records",
        "warn   crds",
        "perennial manifests crds | kubectl apply -f -",
    ] {
        assert!(told.contains(line), "no {line:?} in {told}");
    }

    // Webhooks that nobody answers are found out, although the API server goes on without them.
    operator.crash();
    let answer = cluster.perennial("check");
    assert_eq!(answer.code, Some(1));
    assert!(
        answer.stdout.contains("fail   admission") && answer.stdout.contains("gets no response"),
        "{}",
        answer.stdout
    );

    // With read-only rights everything is looked at that can be, and what is missing is named.
    let reader = cluster.reader();
    let told = cluster.perennial_as(&reader, &[], "check").stdout;
    assert!(told.contains("your account is not allowed to patch nodes") || told.contains("patch nodes,"), "{told}");
    assert!(told.contains("warn   admission    not checked"), "{told}");
    // And of an account that has nothing.
    let told = cluster.perennial("check --service-account nobody").stdout;
    assert!(
        told.contains(&format!("system:serviceaccount:{}:nobody is not allowed to get nodes", cluster.namespace())),
        "{told}"
    );
}

#[tokio::test]
async fn top_shows_churn_lag_and_shards() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.operator().start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.node("n2").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    let frame = cluster.perennial("top --once --interval 200ms").expect_success();

    assert!(frame.contains("2 live, 2 current, 0 to capture, 0 to restore"), "{frame}");
    assert!(frame.contains("Records    1, 0 without a node") && frame.contains("Churn      ▁"), "{frame}");
    assert!(frame.contains("Replicas   1 of 1 alive (perennial)") && frame.contains("  shard 0"), "{frame}");
    assert!(!frame.contains('\u{1b}'), "no escapes where there is no terminal");
    // As it goes on, what happens is counted.
    let live = cluster.perennial_in_background("top --interval 100ms");
    let mut number = 0;
    eventually("a create, a delete and a record are counted", async || {
        number += 1;
        let name = format!("t{number}");
        cluster.node(&name).label("a", "b").create().await;
        cluster.wait_for_record(&name, [("a", "b")]).await;
        cluster.delete_node(&name).await;
        let output = live.output();
        let last = output.lines().rev().find(|line| line.starts_with("total")).unwrap_or_default();
        let counts: Vec<u64> = last.split_whitespace().skip(2).filter_map(|count| count.parse().ok()).collect();
        if counts.len() == 5 && counts[0] > 0 && counts[1] > 0 && counts[4] > 0 { Ok(()) } else { Err(output) }
    })
    .await;
}

#[tokio::test]
async fn what_takes_longer_than_a_second_shows_that_it_goes_on_and_only_on_a_terminal() {
    let cluster = TestCluster::new().await;

    // Nobody runs, so it waits to the end. `script` gives it a terminal.
    let shown = cluster.shell("script -qec 'perennial check --wait=3s' /dev/null").stdout;
    let piped = cluster.shell("perennial check --wait=3s");

    let before = shown.split("version").next().unwrap_or_default();
    assert!(before.contains("waiting for all checks to pass (") && before.contains('\u{1b}'), "{shown:?}");
    assert!(shown.contains("leases"), "{shown:?}");
    assert_eq!((piped.code, piped.stderr.as_str()), (Some(1), ""));
    assert!(!piped.stdout.contains("waiting for") && !piped.stdout.contains('\u{1b}'), "{}", piped.stdout);
    // What is quick shows nothing, on a terminal either.
    let quick = cluster.shell("script -qec 'perennial simulate --replicas 4 --spot 50' /dev/null").stdout;
    assert!(!quick.contains('\u{1b}'), "{quick:?}");
}
