//! `perennial check` and `perennial top`.

use perennial_harness::{TestCluster, Webhooks, eventually};
use serde_json::Value;

/// Returns the result of one check.
fn result<'a>(lines: &'a Value, what: &str) -> &'a Value {
    lines["items"].as_array().unwrap().iter().find(|line| line["what"] == what).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn a_check_reports_each_item_with_a_fix() {
    let cluster = TestCluster::new().await;
    // Another test may have installed it on this plane.
    cluster.kubectl("delete crd keeppolicies.perennial.dev --ignore-not-found --wait");

    // No operator is running: the check fails and reports it.
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
        assert!(fixed, "no fix is given: {line:#}");
    }

    // `--wait` waits until one runs.
    let waiting = cluster.perennial_in_background("check --wait=60s");
    let operator = cluster.start(Webhooks::On).await;
    eventually("the check ends", async || {
        let output = waiting.output();
        if output.contains("pass   leases") { Ok(()) } else { Err(output) }
    })
    .await;
    let output = cluster.perennial("check --wait").expect_success();
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
        assert!(output.contains(line), "no {line:?} in {output}");
    }

    // Webhooks that do not respond are detected, although the API server ignores their failure.
    operator.crash();
    let answer = cluster.perennial("check");
    assert_eq!(answer.code, Some(1));
    assert!(
        answer.stdout.contains("fail   admission") && answer.stdout.contains("gets no response"),
        "{}",
        answer.stdout
    );

    // With read-only permissions everything readable is checked, and missing permissions are named.
    let reader = cluster.read_only_user();
    let output = cluster.perennial_as(&reader, &[], "check").stdout;
    assert!(
        output.contains("your account is not allowed to patch nodes") || output.contains("patch nodes,"),
        "{output}"
    );
    assert!(output.contains("warn   admission    not checked"), "{output}");
    // A service account without permissions.
    let output = cluster.perennial("check --service-account nobody").stdout;
    assert!(
        output.contains(&format!("system:serviceaccount:{}:nobody is not allowed to get nodes", cluster.namespace())),
        "{output}"
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

    assert!(frame.contains("Nodes      2 of 2 current (1 NoRecord)"), "{frame}");
    assert!(frame.contains("Records    1, 0 without a node") && frame.contains("Churn      ▁"), "{frame}");
    assert!(frame.contains("Replicas   1 of 1 alive (perennial)") && frame.contains("  shard 0"), "{frame}");
    assert!(!frame.contains('\u{1b}'), "no escapes where there is no terminal");
    // Events are counted live.
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
        let counts: Vec<u64> = last.split_whitespace().skip(1).filter_map(|count| count.parse().ok()).collect();
        if counts.len() == 5 && counts[0] > 0 && counts[1] > 0 && counts[4] > 0 { Ok(()) } else { Err(output) }
    })
    .await;
}

#[tokio::test]
async fn progress_is_shown_after_a_second_and_only_on_a_terminal() {
    let cluster = TestCluster::new().await;

    // No operator is running, so it waits until the timeout. `script` provides a terminal.
    let shown = cluster.shell("script -qec 'perennial check --wait=3s' /dev/null").stdout;
    let piped = cluster.shell("perennial check --wait=3s");

    let before = shown.split("version").next().unwrap_or_default();
    assert!(before.contains("waiting for all checks to pass (") && before.contains('\u{1b}'), "{shown:?}");
    assert!(shown.contains("leases"), "{shown:?}");
    assert_eq!((piped.code, piped.stderr.as_str()), (Some(1), ""));
    assert!(!piped.stdout.contains("waiting for") && !piped.stdout.contains('\u{1b}'), "{}", piped.stdout);
    // A fast command shows no progress, even on a terminal.
    let quick = cluster.shell("script -qec 'perennial simulate --replicas 4 --spot 50' /dev/null").stdout;
    assert!(!quick.contains('\u{1b}'), "{quick:?}");
}
