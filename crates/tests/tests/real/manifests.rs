//! The manifests on a real node: a frozen operator, and the deletion of the manifests while it runs.

use std::{process::Command, time::Duration};

use perennial_harness::{TestCluster, eventually, eventually_within};

use crate::{
    image,
    pods::{Container, NAMESPACE, NODE, dry_create, reviews_are_answered, rolled_out},
};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
/// Maximum time from a freeze to the next container. The liveness probe fails after 21 s, and the
/// container is killed 5 s later.
const RESTART: Duration = Duration::from_secs(35);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_operator_is_restarted_and_deleted_manifests_keep_the_records() {
    let Some(cluster) = TestCluster::with_real_nodes(1).await else { return };
    image::load(&cluster);
    cluster.kubectl(&format!("apply --server-side -k {DEPLOY}"));
    rolled_out(&cluster);
    reviews_are_answered(&cluster).await;
    cluster.label(NODE, "team", "ml").await;
    eventually("the label is recorded", async || record(&cluster)).await;

    a_frozen_operator_is_restarted(&cluster).await;
    deleted_manifests_keep_the_records(&cluster).await;
}

fn record(cluster: &TestCluster) -> Result<(), String> {
    let record = cluster.try_kubectl(&format!("get configmap node-{NODE} -n {NAMESPACE} -o jsonpath={{.data}}"));
    if record.stdout.contains(r#"\"team\":\"ml\""#) { Ok(()) } else { Err(record.stdout + &record.stderr) }
}

async fn a_frozen_operator_is_restarted(cluster: &TestCluster) {
    let frozen = Container::all(cluster).into_iter().next().expect("a running container");
    let pid = frozen.pid.expect("the process of the container");
    let stopped = Command::new("sh").args(["-c", &format!("kill -STOP {pid}")]).status().unwrap();
    assert!(stopped.success());

    eventually_within(RESTART, "the frozen operator is restarted", async || {
        let containers = Container::all(cluster);
        let again = containers.iter().find(|container| container.pod == frozen.pod);
        if again.is_some_and(|again| again.restarts > frozen.restarts && again.pid.is_some_and(|new| new != pid)) {
            Ok(())
        } else {
            Err(format!("{containers:?}"))
        }
    })
    .await;
    rolled_out(cluster);
}

async fn deleted_manifests_keep_the_records(cluster: &TestCluster) {
    let refused = cluster.try_kubectl(&format!("delete -k {DEPLOY} --wait=false"));
    assert!(refused.stderr.contains("kubectl annotate namespace"), "{}", refused.stderr);

    eventually("the pods have ended", async || {
        let pods = cluster.kubectl(&format!("get pods -n {NAMESPACE} -o name"));
        if pods.is_empty() { Ok(()) } else { Err(pods) }
    })
    .await;
    // Nothing is left that a review could fail at, open or closed.
    let kinds = [
        "mutatingwebhookconfiguration",
        "validatingwebhookconfiguration",
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
        "clusterrole",
    ];
    eventually("no object of the cluster is left", async || {
        let left = cluster.kubectl(&format!("get {} -o name", kinds.join(",")));
        let left: Vec<_> = left.lines().filter(|name| name.contains("perennial")).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join(" ")) }
    })
    .await;
    record(cluster).unwrap();
    let taints = cluster.kubectl(&format!("get node {NODE} -o jsonpath={{.spec.taints}}"));
    assert!(!taints.contains("perennial.dev"), "{taints}");
    dry_create(&cluster.client(), "after").await;
}
