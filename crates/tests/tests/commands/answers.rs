//! Answers of the commands are true: nothing is promised that does not happen, and a failure is
//! reported as the failure it is.

use perennial_harness::{CommandOutput, TestCluster, Webhooks, eventually, perennial, record_name};
use rstest::rstest;
use serde_json::json;

use crate::cells;

fn file(cluster: &TestCluster, name: &str, text: &str) -> String {
    let path = cluster.plane().dir().join(format!("{}-{name}", cluster.namespace()));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn a_node_without_an_identity_is_promised_nothing() {
    let cluster = TestCluster::with_policies().await;
    cluster.apply_policy("by-provider", &json!({"identity": "providerID"}));
    let _operator = cluster.start(Webhooks::Off).await;
    cluster.node("bare").label("team", "ml").create().await;
    cluster.node("known").machine("p1", "s1", "m1").label("team", "web").create().await;
    eventually("the other node is current", async || {
        let state = cluster.perennial_json("explain known -o json")["state"].clone();
        if state == "Current" { Ok(()) } else { Err(state) }
    })
    .await;

    let text = cluster.perennial("explain bare").expect_success();

    assert!(text.contains("nothing would be restored: the node has no providerID yet"), "{text}");
    assert!(text.contains("Identity: none yet") && !text.contains("name=bare"), "{text}");
    assert!(text.contains("team=ml   (not captured)"), "{text}");
    let value = cluster.perennial_json("explain bare -o json");
    assert_eq!((&value["ifDeletedNow"], &value["identity"]), (&json!(null), &json!(null)), "{value}");
    let check = cluster.perennial("check");
    assert_eq!(check.code, Some(1), "{}", check.stdout);
    let line = check.stdout.lines().find(|line| line.contains("fail   nodes")).unwrap_or_default();
    assert!(line.contains("bare") && !line.contains("known"), "{}", check.stdout);
    cluster.kubectl("delete keeppolicies --all");
}

#[tokio::test]
async fn holds_and_the_time_of_collection_are_in_every_view() {
    let cluster = TestCluster::new().await;
    let operator = cluster
        .start_with(Webhooks::Off, |builder| {
            builder.set("controller.auditPeriod", "1s").set("keeper.retention", "47h30m")
        })
        .await;
    let names = ["away", "held", "here", "there"];
    for name in names {
        cluster.node(name).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("team", "ml")]).await;
    }
    cluster.perennial("hold held").expect_success();
    cluster.perennial("hold here").expect_success();
    for name in ["away", "held"] {
        cluster.delete_node(name).await;
    }
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 2.0).await;
    eventually("the absence is noted", async || {
        let noted = cluster.config_map("away").await.and_then(|map| map.metadata.annotations).unwrap_or_default();
        if noted.contains_key("perennial.dev/absent-since") { Ok(()) } else { Err("not yet") }
    })
    .await;

    let config = file(&cluster, "config.yaml", "keeper:\n  retention: 47h30m\n");
    let ask = |words: &str| cluster.perennial(&format!("{words} --config {config}")).expect_success();
    let wide = ask("nodes -o wide");
    let column = |table: &str, row: &str, name: &str| {
        let rows = cells(table);
        let place = rows[0].iter().position(|title| *title == name).unwrap_or_else(|| panic!("no {name} in {table}"));
        rows.iter().find(|cells| cells[0] == row).unwrap()[place].to_owned()
    };
    assert_eq!(column(&wide, "here", "HOLD"), "yes");
    assert_eq!(column(&wide, "there", "HOLD"), "-");
    assert_eq!(column(&wide, "held", "COLLECTED"), "never");
    assert_eq!(column(&wide, "away", "COLLECTED"), "47h");
    assert_eq!(column(&wide, "there", "COLLECTED"), "-");
    let records = ask("records -o wide");
    assert_eq!((column(&records, "held", "HOLD"), column(&records, "there", "HOLD")), ("yes".into(), "-".into()));
    for (command, sentence) in [
        ("show held", "never: the record is held"),
        ("show away", "in 47h"),
        ("explain held", "excluded from garbage collection by a hold"),
        ("explain away", "is deleted in 47h"),
        ("explain here", "excluded from garbage collection by a hold"),
        ("status", "2 held"),
    ] {
        let text = ask(command);
        assert!(text.contains(sentence), "no {sentence:?} in {command}: {text}");
    }
    let value: serde_json::Value = serde_json::from_str(&ask("explain away -o json")).unwrap();
    assert!(value["collection"]["at"].is_string() && value["hold"] == json!(false), "{value}");
}

#[tokio::test]
async fn a_failure_is_reported_as_what_it_is() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let text = std::fs::read_to_string(cluster.plane().kubeconfig_path()).unwrap();
    let server = text.lines().find(|line| line.trim_start().starts_with("server: ")).unwrap();
    let gone = file(&cluster, "gone.kubeconfig", &text.replace(server, "    server: https://127.0.0.1:1"));

    // Nothing listens there: that, and nothing else, is reported.
    let answer = perennial(["check", "--kubeconfig", &gone], &[]);
    assert_eq!(answer.code, Some(1));
    assert!(
        answer.stdout.contains("127.0.0.1:1") && answer.stdout.to_lowercase().contains("connection refused"),
        "{answer:?}"
    );
    assert_eq!(answer.stdout.matches("fail ").count(), 1, "{}", answer.stdout);
    assert!(!answer.stdout.contains("permission") && !answer.stdout.contains("not installed"), "{}", answer.stdout);
    for command in ["nodes", "status", "top --once", "explain n1", "import -f x", "uninstall --yes", "workloads"] {
        let answer = perennial(command.split(' ').chain(["--kubeconfig", &gone]), &[]);
        assert_eq!(answer.code, Some(1), "{command}: {answer:?}");
        let errors = answer.stderr.lines().filter(|line| line.starts_with("error:") || line.starts_with("warning:"));
        assert_eq!(errors.count(), 1, "{command}: {}", answer.stderr);
        assert!(answer.stderr.to_lowercase().contains("connection refused"), "{command}: {}", answer.stderr);
    }

    // A namespace that does not exist, or in which Perennial does not run, is an error that names
    // it.
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();
    let within = |namespace: &str, words: &str| {
        perennial(words.split(' ').chain(["--kubeconfig", &kubeconfig, "-n", namespace]), &[])
    };
    let commands = ["nodes", "records", "status", "show n1", "explain n1", "diff", "export", "check", "dashboard"];
    for command in commands {
        for namespace in ["nowhere", "default"] {
            let answer = within(namespace, command);
            assert!(!answer.success, "{command} -n {namespace}: {answer:?}");
            let message = answer.stdout + &answer.stderr;
            assert!(message.contains(namespace), "{command}: {message}");
        }
        let message = within("default", command);
        let message = message.stdout + &message.stderr;
        assert!(message.contains(&format!("--system-namespace {}", cluster.namespace())), "{command}: {message}");
    }

    // No error is a debug print.
    let stranger = ["nodes", "status", "top --once", "check", "workloads", "explain n1", "records", "export"];
    for command in stranger {
        let answer = cluster.perennial_as("stranger", &[], command);
        assert!(!answer.success, "{command}: {answer:?}");
        let message = answer.stdout + &answer.stderr;
        for debug in ["Status {", "ErrorResponse", "Some(", "Error(", "reason: \"", "code: 40"] {
            assert!(!message.contains(debug), "{command}: {message}");
        }
    }
    drop(operator);
}

#[tokio::test]
async fn assumed_settings_and_an_empty_namespace_are_reported() {
    let cluster = TestCluster::new().await;
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();
    let within = |namespace: &str, words: &str| {
        perennial(words.split(' ').chain(["--kubeconfig", &kubeconfig, "--system-namespace", namespace]), &[])
    };
    let warnings = |answer: &CommandOutput| answer.stderr.lines().filter(|line| line.starts_with("warning:")).count();
    let empty = "has no configuration, Lease or record of Perennial";
    let assumed = "default settings are assumed";
    let config = file(&cluster, "settings.yaml", "keeper:\n  retention: 47h\n");
    let with_config = format!("nodes --config {config}");
    let namespace = cluster.namespace();

    // Nothing is installed anywhere.
    for command in ["nodes", "workloads", &with_config] {
        let answer = within(namespace, command);
        assert!(answer.success && answer.stderr.contains(empty), "{command}: {answer:?}");
    }

    let operator = cluster.start(Webhooks::Off).await;
    for command in ["nodes", "workloads"] {
        let answer = within(namespace, command);
        assert!(answer.success && answer.stderr.contains(assumed), "{command}: {answer:?}");
        assert_eq!(warnings(&answer), 1, "{command}: {}", answer.stderr);
    }
    let answer = within(namespace, &with_config);
    assert_eq!((answer.success, warnings(&answer)), (true, 0), "{answer:?}");
    // A config file does not make another namespace the right one.
    let message = within("default", &with_config).expect_failure();
    assert!(message.contains(&format!("--system-namespace {namespace}")), "{message}");
    let answer = within("default", "workloads");
    assert!(answer.success && answer.stderr.contains(&format!("--system-namespace {namespace}")), "{answer:?}");

    let installed = cluster
        .try_kubectl(&format!("create configmap perennial-config -n {namespace} --from-file=config.yaml={config}"));
    installed.expect_success();
    for command in ["nodes", "workloads"] {
        let answer = within(namespace, command);
        assert_eq!((answer.success, warnings(&answer)), (true, 0), "{command}: {answer:?}");
    }
    // Settings that cannot be read are not assumed in silence.
    let answer = cluster.perennial_as("stranger", &[], "workloads");
    assert!(answer.stderr.contains("the operator may use other settings: could not read ConfigMap"), "{answer:?}");
    drop(operator);
}

/// Without Leases too: the operator is scaled to 0, or runs without leader election.
#[rstest]
#[case::stopped("true")]
#[case::without_leader_election("false")]
#[tokio::test]
async fn a_wrong_namespace_is_refused_while_no_replica_renews_a_lease(#[case] elects: &str) {
    let cluster = TestCluster::new().await;
    let operator = cluster.operator().set("controller.leaderElection.enabled", elects).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    if elects == "true" {
        operator.stop().await.expect("it stops within five seconds");
    }
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();

    for (command, flag) in [("nodes", "--system-namespace"), ("status", "--system-namespace"), ("nodes", "-n")] {
        let answer = perennial([command, "--kubeconfig", &kubeconfig, flag, "default"], &[]);

        let message = answer.expect_failure();
        assert!(message.contains(&format!("use --system-namespace {}", cluster.namespace())), "{message}");
    }
}

#[tokio::test]
async fn no_restore_is_promised_without_an_operator() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    for name in ["here", "away"] {
        cluster.node(name).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("team", "ml")]).await;
    }
    cluster.delete_node("away").await;
    operator.wait_for_metric("perennial_records", &[("state", "absent")], 1.0).await;
    let text = cluster.perennial("explain here").expect_success();
    assert!(text.contains("it would be restored with team=ml."), "{text}");

    operator.stop().await.expect("it stops within five seconds");

    for name in ["here", "away"] {
        let text = cluster.perennial(&format!("explain {name}")).expect_success();
        assert!(text.contains("an operator would restore team=ml, but no replica holds the Lease"), "{text}");
        assert!(!text.contains("it would be restored"), "{text}");
    }
    let text = cluster.perennial("explain team --node away").expect_success();
    assert!(text.contains("no replica holds the Lease"), "{text}");
    let value = cluster.perennial_json("explain here -o json");
    assert!(value["unattended"].is_string() && value["attended"] == json!(false), "{value}");
}

#[tokio::test]
async fn events_are_found_whatever_namespace_the_context_has() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;
    eventually("the restore is reported", async || {
        let events = cluster.events("n1").await;
        if events.is_empty() { Err("no Event") } else { Ok(()) }
    })
    .await;
    let text = std::fs::read_to_string(cluster.plane().kubeconfig_path()).unwrap();
    let elsewhere = file(&cluster, "elsewhere.kubeconfig", &text);
    let set = format!("--kubeconfig {elsewhere} config set-context --current --namespace kube-system");
    cluster.kubectl(&set);

    let words = ["explain", "n1", "--kubeconfig", &elsewhere, "--system-namespace", cluster.namespace()];
    let explained = perennial(words, &[]).expect_success();

    assert!(explained.contains("Recent Events:"), "{explained}");
}

#[tokio::test]
async fn a_lost_api_server_is_reported_while_watching() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::Off).await;
    let proxy = cluster.fault_proxy().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": cluster.namespace(), "annotations": {"perennial.dev/spot-percentage": "50"}},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}},
        },
    });
    cluster.try_kubectl_with("create", &deployment.to_string()).expect_success();
    let commands: Vec<_> = ["top --interval 200ms", "nodes -w", "records -w", "workloads -w"]
        .into_iter()
        .map(|words| (words, cluster.perennial_in_background_through(&proxy, words)))
        .collect();
    for (words, command) in &commands {
        let shown = match *words {
            "top --interval 200ms" => "Churn",
            "workloads -w" => "deployment/web",
            _ => "n1",
        };
        eventually(format!("{words} has listed everything"), async || {
            let output = command.output();
            if output.contains(shown) { Ok(()) } else { Err(output) }
        })
        .await;
    }
    assert!(!commands[0].1.output().contains("STALE"));

    proxy.wire().down();

    for (words, command) in &commands {
        let shown = if words.starts_with("top") { "STALE since " } else { "warning: could not watch" };
        eventually(format!("{words} reports it"), async || {
            let output = command.output();
            if output.contains(shown) { Ok(()) } else { Err(output) }
        })
        .await;
    }
    proxy.wire().up();
    eventually("top is fresh again", async || {
        let output = commands[0].1.output();
        let last = output.rsplit("perennial top").next().unwrap_or_default().to_owned();
        if last.contains("Churn") && !last.contains("STALE") { Ok(()) } else { Err(last) }
    })
    .await;
}

#[tokio::test]
async fn commands_take_several_names_and_tell_the_namespace_of_workloads_from_that_of_perennial() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::Off).await;
    for name in ["n1", "n2"] {
        cluster.node(name).label("team", "ml").create().await;
        cluster.wait_for_record(name, [("team", "ml")]).await;
    }
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();
    let run = |words: &str| {
        let flags = ["--kubeconfig", &kubeconfig, "--system-namespace", cluster.namespace(), "-n", "default"];
        perennial(words.split(' ').chain(flags), &[])
    };

    let names = run("nodes n1 n2 -o name").expect_success();
    assert_eq!(names, "node/n1\nnode/n2\n");
    let records = run(&format!("records {} -o name", names.trim().replace('\n', " "))).expect_success();
    let held = run(&format!("hold {}", records.trim().replace('\n', " "))).expect_success();
    assert_eq!(held, format!("record {} held\nrecord {} held\n", record_name("n1"), record_name("n2")));
    assert_eq!(run("workloads -o name").expect_success(), "");
    let explained = run("explain n1 n2").expect_success();
    assert!(explained.contains("n1 is current") && explained.contains("n2 is current"), "{explained}");
    let keys: serde_json::Value =
        serde_json::from_str(&run("explain team rack --node n1 -o json").expect_success()).unwrap();
    assert_eq!(
        (&keys["items"][0]["cause"], &keys["items"][1]["cause"]),
        (&json!("Kept"), &json!("NeverSeen")),
        "{keys}"
    );
    let histories = run("history n1 nowhere n2");
    assert_eq!(histories.code, Some(1));
    assert!(histories.stdout.contains("n1:\n") && histories.stdout.contains("n2:\n"), "{histories:?}");

    // A name that does not exist is reported, and the others are shown.
    let answer = run("show n1 nowhere n2 -o json");
    assert_eq!(answer.code, Some(1));
    assert!(answer.stderr.contains("there is no node nowhere"), "{}", answer.stderr);
    let shown: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((&shown["items"][0]["node"], &shown["items"][1]["node"]), (&json!("n1"), &json!("n2")), "{shown}");

    // Without a terminal the command cannot ask.
    let refused = run("forget n1 n2").expect_failure();
    assert!(refused.contains("record of node n1, n2") && refused.contains("confirm with --yes"), "{refused}");
    // The record of a live node keeps the keys on it, and the output states that.
    let kept = run("forget n1 n2 --yes").expect_success();
    assert_eq!(
        kept.matches("history removed; the record keeps the 1 key(s) that are on the node").count(),
        2,
        "{kept}"
    );
    assert!(!kept.contains("forgotten"), "{kept}");
    cluster.kubectl("annotate node n1 perennial.dev/ignore=true");
    cluster.delete_node("n2").await;
    assert_eq!(run("forget n1 n2 --yes").expect_success(), "node/n1 forgotten\nnode/n2 forgotten\n");
    for name in ["n1", "n2"] {
        cluster.wait_for_record(name, [("", ""); 0]).await;
    }
    run("import -f x --yes").expect_failure();
}
