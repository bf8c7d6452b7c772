//! One release on two real nodes, from its installation to its removal: upgrade, rollback, kill, OOM
//! kill, drain, rotation and a cut network. After each step a label survives the re-registration of a node.

use std::process::Command;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::DeleteParams};
use localplane::Component;
use perennial_harness::{Helm, TestCluster, chart, eventually, perennial};

use crate::{
    chart::install,
    pods::{Container, NAMESPACE, Reviews, dry_create, reviews_are_answered, rolled_out},
};

/// The node that is registered again.
const RETURNS: &str = "real-1";
const KUBELET: Component = Component::Kubelet(1);
/// Less memory than the operator needs to start, and more than its container needs.
const TOO_LITTLE: &str = "4Mi";

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_label_survives_every_step_in_the_life_of_a_release() {
    let Some(cluster) = TestCluster::with_real_nodes(2).await else { return };
    install(&cluster).await;
    a_label_survives(&cluster, "installed").await;

    helm(&cluster, &["upgrade", "perennial", &chart().display().to_string(), "--set", "config.keeper.history=7"]).await;
    assert!(config(&cluster).contains("history: 7"));
    a_label_survives(&cluster, "upgraded").await;
    helm(&cluster, &["rollback", "perennial", "1"]).await;
    assert!(!config(&cluster).contains("history"));
    a_label_survives(&cluster, "rolled-back").await;

    a_killed_container_is_restarted(&cluster).await;
    a_label_survives(&cluster, "killed").await;
    an_oom_killed_revision_replaces_nothing(&cluster).await;
    a_drained_node_has_no_replica(&cluster).await;
    a_label_survives(&cluster, "drained").await;
    the_authority_is_rotated(&cluster).await;
    a_label_survives(&cluster, "rotated").await;
    a_cut_network_fails_open(&cluster).await;
    a_label_survives(&cluster, "connected").await;

    let uninstall = ["uninstall", "perennial", "--namespace", NAMESPACE, "--timeout", "3m"];
    Helm::V4.on(&cluster, &uninstall).await.expect_success();
    let webhooks = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
    assert_eq!(cluster.kubectl(&format!("get {webhooks} -o name")), "");
    assert!(record(&cluster).contains(r#"\"team\":\"connected\""#), "the record is gone");
    dry_create(&cluster.client(), "after").await;
}

async fn helm(cluster: &TestCluster, command: &[&str]) {
    let common = ["--namespace", NAMESPACE, "--wait", "--timeout", "3m"];
    Helm::V4.on(cluster, &[command, &common].concat()).await.expect_success();
    rolled_out(cluster);
    reviews_are_answered(cluster).await;
}

fn config(cluster: &TestCluster) -> String {
    cluster.kubectl(&format!("get configmap perennial-config -n {NAMESPACE} -o jsonpath={{.data}}"))
}

fn record(cluster: &TestCluster) -> String {
    cluster.try_kubectl(&format!("get configmap node-{RETURNS} -n {NAMESPACE} -o jsonpath={{.data}}")).stdout
}

/// Labels the node, deletes it, and starts its kubelet with a label of its own.
async fn a_label_survives(cluster: &TestCluster, value: &str) {
    let nodes: Api<Node> = Api::all(cluster.client());
    cluster.label(RETURNS, "team", value).await;
    eventually(format!("{value} is recorded"), async || {
        let record = record(cluster);
        if record.contains(&format!(r#"\"team\":\"{value}\""#)) { Ok(()) } else { Err(record) }
    })
    .await;
    let before = nodes.get(RETURNS).await.unwrap().metadata.uid;

    cluster.plane().kill(KUBELET).unwrap();
    nodes.delete(RETURNS, &DeleteParams::default()).await.unwrap();
    cluster.plane().restart_with(KUBELET, &[format!("--node-labels=pool={value}")]).unwrap();

    eventually(format!("{value} is back"), async || {
        let Some(node) = nodes.get_opt(RETURNS).await.unwrap() else { return Err("no node".to_owned()) };
        let labels = node.metadata.labels.unwrap_or_default();
        let own = ["team", "pool"].iter().all(|key| labels.get(*key).is_some_and(|has| has == value));
        if own && node.metadata.uid != before { Ok(()) } else { Err(format!("{labels:?}")) }
    })
    .await;
    // The kubelet reports the pods on its node as not ready for a moment.
    rolled_out(cluster);
    reviews_are_answered(cluster).await;
}

async fn a_killed_container_is_restarted(cluster: &TestCluster) {
    let killed = Container::all(cluster).into_iter().next().expect("a running container");
    let pid = killed.pid.expect("the process of the container");
    assert!(Command::new("sh").args(["-c", &format!("kill -KILL {pid}")]).status().unwrap().success());

    eventually("the killed container is started again", async || {
        let containers = Container::all(cluster);
        let again = containers.iter().find(|container| container.pod == killed.pod);
        if again.is_some_and(|again| again.restarts > killed.restarts) {
            Ok(())
        } else {
            Err(format!("{containers:?}"))
        }
    })
    .await;
    // The image has no shell: what happened is in the logs, also in those of the killed container.
    for which in ["", "--previous"] {
        let log = cluster.kubectl(&format!("logs {} -n {NAMESPACE} {which}", killed.pod));
        assert!(log.lines().count() > 1, "{log}");
    }
}

/// A revision with too little memory: the kernel kills its container, and the replicas of the former
/// revision serve until the revision is undone.
async fn an_oom_killed_revision_replaces_nothing(cluster: &TestCluster) {
    let pods = format!("get pods -n {NAMESPACE} -l app.kubernetes.io/name=perennial");
    cluster.kubectl(&format!(
        "set resources deployment/perennial -n {NAMESPACE} --limits=memory={TOO_LITTLE} --requests=memory={TOO_LITTLE}"
    ));

    eventually("a container is OOM-killed", async || {
        let seen = cluster.kubectl(&format!("{pods} -o jsonpath={{.items[*].status.containerStatuses}}"));
        if seen.contains("OOMKilled") { Ok(()) } else { Err(seen) }
    })
    .await;
    reviews_are_answered(cluster).await;
    cluster.kubectl(&format!("rollout undo deployment/perennial -n {NAMESPACE}"));
    rolled_out(cluster);
}

async fn a_drained_node_has_no_replica(cluster: &TestCluster) {
    cluster.kubectl(&format!("drain {RETURNS} --ignore-daemonsets --delete-emptydir-data --force --timeout=180s"));

    rolled_out(cluster);
    let pods = format!("get pods -n {NAMESPACE} -l app.kubernetes.io/name=perennial");
    eventually("all replicas are on the other node", async || {
        let places = cluster.kubectl(&format!("{pods} -o jsonpath={{.items[*].spec.nodeName}}"));
        if places == "real-0 real-0" { Ok(()) } else { Err(places) }
    })
    .await;
    cluster.kubectl(&format!("uncordon {RETURNS}"));
}

async fn the_authority_is_rotated(cluster: &TestCluster) {
    let bundle = "get mutatingwebhookconfiguration perennial -o jsonpath={.webhooks[0].clientConfig.caBundle}";
    let before = cluster.kubectl(bundle);
    let kubeconfig = cluster.plane().kubeconfig_path().display().to_string();

    perennial(["webhook", "rotate", "--kubeconfig", &kubeconfig, "-n", NAMESPACE], &[]).expect_success();

    eventually("the new authority is in the configuration", async || {
        let after = cluster.kubectl(bundle);
        if after != before && !after.is_empty() { Ok(()) } else { Err("the old one") }
    })
    .await;
}

/// The API server cannot reach the webhooks while the nodes are not connected. Creates succeed.
async fn a_cut_network_fails_open(cluster: &TestCluster) {
    let network = cluster.plane().pid(Component::Network).expect("the network of the nodes");
    let set = |state: &str| {
        for node in ["real-0", "real-1"] {
            let target = format!("--target={network}");
            let command = ["--net", "--", "ip", "link", "set", node, state];
            assert!(Command::new("nsenter").arg(target).args(command).status().unwrap().success());
        }
    };
    let before = Reviews::of(cluster, 0);
    set("down");
    dry_create(&cluster.client(), "unreachable").await;
    let after = Reviews::of(cluster, 0);
    assert!(after.failed_open > before.failed_open, "a review was answered: {before:?}, {after:?}");
    set("up");
    reviews_are_answered(cluster).await;
}
