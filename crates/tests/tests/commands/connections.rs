//! A cluster that cannot be used is reported with the reason, without debug prints and without a
//! remedy for another problem.

use perennial_harness::{CommandOutput, TestCluster, Webhooks, perennial};

/// Writes the kubeconfig of the cluster with other credentials.
fn with_credentials(cluster: &TestCluster, name: &str, user: &str) -> String {
    let text = std::fs::read_to_string(cluster.plane().kubeconfig_path()).unwrap();
    let (clusters, rest) = text.split_once("users:\n").unwrap();
    let contexts = &rest[rest.find("contexts:").unwrap()..];
    let path = cluster.plane().dir().join(format!("{}-{name}.kubeconfig", cluster.namespace()));
    std::fs::write(&path, format!("{clusters}users:\n- name: admin\n  user: {user}\n{contexts}")).unwrap();
    path.display().to_string()
}

fn message(answer: CommandOutput) -> String {
    assert_eq!(answer.code, Some(1), "{answer:?}");
    answer.stdout + &answer.stderr
}

#[tokio::test]
async fn rejected_credentials_are_no_missing_permission() {
    let cluster = TestCluster::new().await;
    let expired = with_credentials(&cluster, "expired", "{token: expired}");
    for command in ["nodes", "check", "status", "workloads", "dashboard", "uninstall --yes", "explain deploy/web"] {
        let message = message(perennial(command.split(' ').chain(["--kubeconfig", &expired]), &[]));
        assert!(message.contains("rejected your credentials") && message.contains("--kubeconfig"), "{message}");
        for untrue in ["permission", "could not reach", "is running", "warn"] {
            assert!(!message.contains(untrue), "{untrue} in {command}: {message}");
        }
    }
}

#[tokio::test]
async fn a_credential_plugin_that_fails_is_named_and_its_output_is_not_printed() {
    let cluster = TestCluster::new().await;
    let exec = |command: &str, args: &str| {
        format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: {command}, \
             args: {args}}}}}"
        )
    };
    let missing = with_credentials(&cluster, "missing", &exec("no-such-plugin", "[]"));
    let script = r#"[-c, "echo t0ken; echo please log in first >&2; exit 3"]"#;
    let failing = with_credentials(&cluster, "failing", &exec("/bin/sh", script));
    for command in ["nodes", "check", "run --set metrics.port=0"] {
        let ask = |file: &str| message(perennial(command.split(' ').chain(["--kubeconfig", file]), &[]));

        let text = ask(&missing);
        assert!(text.contains("credential plugin no-such-plugin") && text.contains("No such file"), "{text}");
        let text = ask(&failing);
        assert!(text.contains("credential plugin /bin/sh") && text.contains("please log in first"), "{text}");
        // The plugin may have printed a token.
        for debug in ["Output {", "ExitStatus(", "KUBERNETES_EXEC_INFO", "t0ken"] {
            assert!(!text.contains(debug), "{debug} in {command}: {text}");
        }
    }
}

#[tokio::test]
async fn files_are_named_as_they_are_written() {
    let nowhere = message(perennial(["nodes", "--kubeconfig", "/no/such/file"], &[]));
    assert!(nowhere.contains("/no/such/file: No such file or directory"), "{nowhere}");
    let home = message(perennial(["nodes"], &[("HOME", "/no/home")]));
    assert!(home.contains("/no/home/.kube/config") && home.contains("--kubeconfig"), "{home}");
    for text in [nowhere, home] {
        assert!(!text.contains('"') && !text.contains("environment variable"), "{text}");
    }
}

/// The error names the namespace in which Perennial is installed.
#[tokio::test]
async fn a_namespace_without_perennial_leads_to_the_right_one() {
    let cluster = TestCluster::new().await;
    let leases = format!("{}-leases", cluster.namespace());
    cluster.kubectl(&format!("create namespace {leases}"));
    let _operator =
        cluster.start_with(Webhooks::Off, |builder| builder.set("controller.leaderElection.namespace", &leases)).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();
    let within = |namespace: &str, words: &str| {
        perennial(words.split(' ').chain(["--kubeconfig", &kubeconfig, "-n", namespace]), &[])
    };
    let right = format!("--system-namespace {}", cluster.namespace());

    // The default namespace does not exist here.
    for command in ["nodes", "status", "explain n1", "export", "dashboard"] {
        let message = message(within("nowhere", command));
        assert!(message.contains("namespace nowhere does not exist") && message.contains(&right), "{message}");
    }
    // The namespace of the Leases has no records: every node would look new.
    let answer = within(&leases, "nodes");
    assert!(answer.stderr.contains("no record") && answer.stderr.contains(&right), "{answer:?}");
}

/// Objects that remain in another namespace are reported.
#[tokio::test]
async fn an_uninstall_in_the_wrong_namespace_names_the_right_one() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::Off).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.stop().await.expect("it stops within five seconds");
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();

    let answer = perennial(["uninstall", "--yes", "--kubeconfig", &kubeconfig, "-n", "nowhere"], &[]).expect_success();

    assert!(!answer.contains("nothing of Perennial remains"), "{answer}");
    assert!(answer.contains(&format!("--system-namespace {}", cluster.namespace())), "{answer}");
}
