//! Answers about operators with some of the roles, and about dry runs.

use perennial_harness::{CommandOutput, TestCluster, Webhooks, eventually};

fn lines_of<'a>(check: &'a CommandOutput, what: &str) -> Vec<&'a str> {
    check.stdout.lines().filter(|line| line.split_whitespace().nth(1) == Some(what)).collect()
}

/// `helm upgrade` from one Deployment to one for each role leaves the Lease of all roles behind.
#[tokio::test]
async fn leases_of_former_roles_are_no_fault() {
    let cluster = TestCluster::new().await;
    let before = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    before.stop().await.expect("it stops within five seconds");
    let with_roles = |roles: &str| cluster.operator().set("controller.roles", roles).start();
    let capture = with_roles("capture").await;
    let _rest = with_roles("restore,placement").await;

    eventually("both roles hold their shard", async || {
        let check = cluster.perennial("check");
        let leases = lines_of(&check, "leases").concat();
        if leases.contains("pass") && leases.contains("2 replica(s) hold 2 shard(s)") { Ok(()) } else { Err(leases) }
    })
    .await;
    let explained = cluster.perennial("explain n1").expect_success();
    assert!(explained.contains("it would be restored with team=ml"), "{explained}");
    let status = cluster.perennial("status").expect_success();
    assert!(!status.contains("no holder") && !status.contains("no replica holds"), "{status}");

    // A role without a replica is reported, and only that one.
    capture.stop().await.expect("it stops within five seconds");
    cluster.label("n1", "rack", "r1").await;
    let check = cluster.perennial("check");
    let leases = lines_of(&check, "leases").concat();
    assert!(leases.contains("fail") && leases.ends_with("no replica holds perennial-capture"), "{}", check.stdout);
    let explained = cluster.perennial("explain rack --node n1").expect_success();
    assert!(explained.contains("no replica holds the Lease perennial-capture,"), "{explained}");
    let explained = cluster.perennial("explain n1").expect_success();
    assert!(explained.contains("no replica holds the Lease perennial-capture,"), "{explained}");
    let status = cluster.perennial("status").expect_success();
    assert!(status.contains("no replica holds perennial-capture"), "{status}");
}

/// The chart runs this check after an install, and docs/start recommends a dry run.
#[tokio::test]
async fn the_check_of_a_dry_run_and_of_some_roles_expects_nothing_that_they_leave_out() {
    let cluster = TestCluster::with_policies().await;
    let check = |name: &str, settings: &str| {
        let path = cluster.plane().dir().join(format!("{}-{name}.yaml", cluster.namespace()));
        std::fs::write(&path, settings).unwrap();
        cluster.perennial(&format!("check --config {}", path.display()))
    };

    let dry = check("dry", "controller: {dryRun: true}");
    assert_eq!(dry.code, Some(0), "{}", dry.stdout);
    for what in ["leases", "webhooks", "certificate"] {
        let lines = lines_of(&dry, what).concat();
        assert!(lines.contains("dry run"), "{what}: {}", dry.stdout);
    }
    assert!(!dry.stdout.contains("webhook.enabled"), "{}", dry.stdout);

    let _operator = cluster.operator().set("controller.roles", "capture,restore").start().await;
    let roles = eventually("it holds its shard", async || {
        let roles = check("roles", "controller: {roles: [capture, restore]}");
        if lines_of(&roles, "leases").concat().contains("pass") { Ok(roles) } else { Err(roles.stdout) }
    })
    .await;
    assert_eq!(roles.code, Some(0), "{}", roles.stdout);
    assert!(lines_of(&roles, "webhooks").concat().contains("off, as configured"), "{}", roles.stdout);
    assert!(lines_of(&roles, "certificate").concat().contains("not needed"), "{}", roles.stdout);
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let dry = cluster.plane().dir().join(format!("{}-dry.yaml", cluster.namespace()));
    let explained = cluster.perennial(&format!("explain n1 --config {}", dry.display())).expect_success();
    assert!(explained.contains("but the operator only reports what it would do (controller.dryRun)"), "{explained}");
    assert!(!roles.stdout.contains("node classes") && !roles.stdout.contains("webhook.enabled"), "{}", roles.stdout);
}

/// An operator that may create the configurations does so again.
#[tokio::test]
async fn disabled_webhooks_are_no_longer_promised_than_they_stay_away() {
    let cluster = TestCluster::new().await;
    let none = cluster.perennial("webhook disable").expect_success();
    assert_eq!(none, "there are no webhook configurations\n");

    let operator = cluster.start(Webhooks::On).await;
    let removed = cluster.perennial("webhook disable").expect_success();
    assert!(removed.starts_with("webhook configurations removed\n"), "{removed}");
    assert!(removed.contains("running") && removed.contains("webhook.enabled=false"), "{removed}");

    operator.stop().await.expect("it stops within five seconds");
    cluster.perennial("webhook enable").expect_success();
    let removed = cluster.perennial("webhook disable").expect_success();
    assert_eq!(removed, "webhook configurations removed\n");
}

#[tokio::test]
async fn a_refusal_names_the_object_and_a_remedy_that_exists() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    for command in ["rollback n1", "rollback n1 --to 7"] {
        let refused = cluster.perennial(command).expect_failure();
        assert!(refused.contains("the record of node n1 has no earlier version"), "{refused}");
    }
    cluster.label("n1", "team", "web").await;
    cluster.wait_for_record("n1", [("team", "web")]).await;
    let refused = cluster.perennial("rollback n1 --to 7").expect_failure();
    assert!(refused.contains("node n1 has no version 7") && refused.contains("known versions: 1"), "{refused}");

    // No command can set a key that the API server rejects.
    let value = cluster.perennial_json("explain under_score_/x --node n1 -o json");
    assert_eq!((&value["cause"], &value["fix"]), (&"NeverSeen".into(), &serde_json::Value::Null), "{value}");

    cluster.corrupt_record("n1", serde_json::json!({"record.json": "not a record"})).await;
    for command in ["rollback n1", "restore n1"] {
        let refused = cluster.perennial(command).expect_failure();
        assert!(refused.contains("is quarantined") && refused.contains("perennial explain n1"), "{refused}");
    }
}
