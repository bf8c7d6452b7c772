//! `perennial uninstall`: refuses while an operator runs, lists the rest, and removes everything on
//! request.

use perennial_harness::{TestCluster, Webhooks, perennial};

fn webhook_exists(cluster: &TestCluster) -> bool {
    cluster.try_kubectl("get mutatingwebhookconfiguration perennial").success
}

#[tokio::test]
async fn an_uninstall_is_refused_while_an_operator_runs() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    let answer = cluster.perennial("uninstall --yes");

    assert_eq!((answer.code, answer.stdout.as_str()), (Some(1), ""), "{answer:?}");
    assert!(answer.stderr.contains("an operator is running") && answer.stderr.contains("--stop"), "{answer:?}");
    assert!(webhook_exists(&cluster));

    // The Lease of an operator that was killed is waited for.
    operator.crash();
    let output = cluster.perennial("uninstall --yes").expect_success();
    assert!(!webhook_exists(&cluster));
    assert!(output.contains(&format!("1 record(s) in namespace {}", cluster.namespace())), "{output}");
}

#[tokio::test]
async fn an_uninstall_in_another_namespace_leaves_a_running_operator_alone() {
    let cluster = TestCluster::new().await;
    let _operator = cluster.start(Webhooks::On).await;
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();

    for namespace in ["default", "nowhere"] {
        let words = ["uninstall", "--yes", "--kubeconfig", &kubeconfig, "-n", namespace];
        let answer = perennial(words, &[]);
        assert_eq!((answer.code, answer.stdout.as_str()), (Some(1), ""), "{answer:?}");
        let other = format!("in namespace {}", cluster.namespace());
        let flag = format!("--system-namespace {}", cluster.namespace());
        assert!(answer.stderr.contains(&other) && answer.stderr.contains(&flag), "{}", answer.stderr);
    }
    assert!(webhook_exists(&cluster));
}

#[tokio::test]
async fn an_uninstall_of_everything_removes_all_that_the_manifests_install() {
    let cluster = TestCluster::with_policies().await;
    let operator = cluster.start(Webhooks::On).await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    operator.stop().await.expect("it stops within five seconds");
    let manifests = perennial(["manifests", "-n", cluster.namespace()], &[]).expect_success();
    cluster.try_kubectl_with("apply", &manifests).expect_success();
    let installed = cluster.try_kubectl_with("get -o name", &manifests).expect_success();
    assert!(installed.lines().count() > 8, "{installed}");

    // A Deployment with replicas counts as an operator.
    let message = cluster.perennial("uninstall --yes").expect_failure();
    assert!(message.contains("deployment/perennial") || message.contains("Deployment perennial"), "{message}");
    // The rest is listed.
    let rest = cluster.perennial("uninstall --yes --stop").expect_success();
    for object in ["clusterrole/perennial", "customresourcedefinition/keeppolicies.perennial.dev", "service/perennial"]
    {
        assert!(rest.contains(object), "no {object} in {rest}");
    }
    assert!(rest.contains("--all"), "{rest}");

    let output = cluster.perennial("uninstall --yes --all --records").expect_success();

    let left = cluster.try_kubectl_with("get --ignore-not-found -o name", &manifests).expect_success();
    let left: Vec<&str> = left.lines().filter(|name| !name.starts_with("namespace/")).collect();
    assert!(left.is_empty(), "{left:?}: {output}");
    assert_eq!(cluster.record_count().await, 0);
}
