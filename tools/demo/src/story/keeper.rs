//! Chapters about the keeper and single nodes.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};

use crate::{
    observer::{Incarnation, Observed},
    stage::{Stage, bare_node, manifest},
    terminal::took,
};

const FLAPS: usize = 20;
/// Longer than any late change takes.
const WATCHED: Duration = Duration::from_secs(1);

pub(crate) async fn nodes_are_labelled(stage: &mut Stage) -> anyhow::Result<()> {
    let nodes = ["worker-1", "worker-2", "worker-3"];
    for node in nodes {
        stage.write(&format!("{node}.yaml"), &manifest(node, node, &[]))?;
    }
    let began = Instant::now();
    for node in nodes {
        stage.run(&format!("kubectl create -f {node}.yaml"))?;
    }
    stage.run("kubectl label node worker-1 team=ml disk=nvme rack=r7")?;
    stage.run("kubectl label node worker-2 worker-3 team=web")?;
    stage.show_labels("worker-1 worker-2 worker-3")?;
    stage
        .claim("each labelled node has a record with its labels", |seen| {
            nodes
                .iter()
                .all(|node| {
                    seen.node(node).is_some_and(|life| life.has("team") && seen.record(node) == Some(&life.labels))
                })
                .then(|| began.elapsed())
        })
        .await?;
    stage.show("kubectl get configmaps -n perennial-system -l perennial.dev/record")
}

pub(crate) async fn a_node_returns(stage: &mut Stage) -> anyhow::Result<()> {
    stage.run("kubectl delete node worker-1")?;
    stage.show("perennial show worker-1")?;
    stage.run("kubectl create -f worker-1.yaml")?;
    stage
        .claim("its labels are restored", |seen| {
            given(seen, "worker-1", |life| life.is("team", "ml") && life.is("disk", "nvme") && life.is("rack", "r7"))
        })
        .await?;
    stage.show_labels("worker-1")
}

pub(crate) async fn a_removed_label_stays_removed(stage: &mut Stage) -> anyhow::Result<()> {
    stage.run("kubectl label node worker-1 rack-")?;
    stage.run("kubectl delete node worker-1")?;
    stage.run("kubectl create -f worker-1.yaml")?;
    stage
        .claim("the other labels are restored", |seen| {
            given(seen, "worker-1", |life| life.is("team", "ml") && life.is("disk", "nvme"))
        })
        .await?;
    stage
        .lasting_claim("the removed label is not", WATCHED, |seen| {
            seen.node("worker-1").is_some_and(|life| life.has("team") && !life.has("rack"))
        })
        .await?;
    stage.show_labels("worker-1")
}

pub(crate) async fn a_new_value_wins(stage: &mut Stage) -> anyhow::Result<()> {
    stage.narrate("worker-1 moves to another team: the new node registers with team=data.");
    stage.write("worker-1-data.yaml", &manifest("worker-1", "worker-1", &[("team", "data")]))?;
    stage.run("kubectl delete node worker-1")?;
    stage.run("kubectl create -f worker-1-data.yaml")?;
    stage
        .claim("labels that it does not set itself are restored", |seen| {
            given(seen, "worker-1", |life| life.is("disk", "nvme"))
        })
        .await?;
    stage.lasting_claim("its own team=data is unchanged", WATCHED, |seen| is(seen, "worker-1", "team", "data")).await?;
    stage.show_labels("worker-1")?;
    stage.run("kubectl delete node worker-1")?;
    stage.run("kubectl create -f worker-1.yaml")?;
    stage
        .claim("created again without labels, it has team=data", |seen| {
            given(seen, "worker-1", |life| life.is("team", "data") && life.is("disk", "nvme"))
        })
        .await
}

pub(crate) async fn a_role_stays_with_its_machine(stage: &mut Stage) -> anyhow::Result<()> {
    stage.run("kubectl label node worker-2 node-role.kubernetes.io/gpu=")?;
    stage.run("kubectl delete node worker-2")?;
    stage.narrate("Another machine registers under the same name (its spec.providerID differs).");
    stage.write("worker-2-other.yaml", &manifest("worker-2", "other-machine", &[]))?;
    stage.run("kubectl create -f worker-2-other.yaml")?;
    stage.claim("it gets the ordinary labels", |seen| given(seen, "worker-2", |life| life.is("team", "web"))).await?;
    stage
        .lasting_claim("it does not get the role", WATCHED, |seen| {
            seen.node("worker-2").is_some_and(|life| !life.has("node-role.kubernetes.io/gpu"))
        })
        .await?;
    stage.run("kubectl delete node worker-2")?;
    stage.run("kubectl create -f worker-2.yaml")?;
    stage
        .claim("the original machine gets it", |seen| {
            given(seen, "worker-2", |life| life.is("team", "web") && life.has("node-role.kubernetes.io/gpu"))
        })
        .await?;
    stage.show_labels("worker-2")
}

pub(crate) async fn a_node_flaps(stage: &mut Stage) -> anyhow::Result<()> {
    stage.narrate(&format!(
        "worker-3 is deleted and created without labels {FLAPS} times, as fast as the API server responds."
    ));
    let nodes: Api<Node> = Api::all(stage.client.0.clone());
    let bare = bare_node("worker-3")?;
    let before = stage.observer.look().ended.len();
    let began = Instant::now();
    for _ in 0..FLAPS {
        nodes.delete("worker-3", &DeleteParams::default()).await?;
        nodes.create(&PostParams::default(), &bare).await?;
    }
    let flapped = began.elapsed();
    let bare = stage
        .until("every delete of the flapping node is observed", |seen| {
            let ended = seen.ended.get(before..)?;
            (ended.len() >= FLAPS).then(|| ended.iter().filter(|(_, life)| life.labels.is_empty()).count())
        })
        .await?;
    stage.narrate(&format!("That took {}; {bare} incarnations were deleted before they were restored.", took(flapped)));
    stage.claim("it has its label", |seen| given(seen, "worker-3", |life| life.is("team", "web"))).await?;
    stage.lasting_claim("it keeps its label", WATCHED, |seen| is(seen, "worker-3", "team", "web")).await
}

pub(crate) async fn nodes_change_while_the_operator_is_down(stage: &mut Stage) -> anyhow::Result<()> {
    stage.kill_operator();
    stage.narrate("kill -9: the operator is down. Requests to the API server do not wait for it.");
    stage.run("kubectl delete node worker-1")?;
    stage.run("kubectl create -f worker-1.yaml")?;
    stage.run("kubectl label node worker-2 disk=hdd")?;
    stage.show_labels("worker-1 worker-2")?;
    let began = Instant::now();
    stage.start_operator()?;
    stage.narrate(&format!(
        "The operator is started again and ready after {}. It takes over when the previous",
        took(began.elapsed())
    ));
    stage.narrate("Lease has expired: 2 s here, 15 s by default.");
    stage
        .claim("worker-1, created without labels in the meantime, is restored", |seen| {
            let life = seen.node("worker-1").filter(|life| life.is("team", "data") && life.is("disk", "nvme"))?;
            Some(life.since.saturating_duration_since(began))
        })
        .await?;
    stage
        .claim("the label that worker-2 got in the meantime is recorded", |seen| {
            seen.record("worker-2")?.get("disk").filter(|disk| *disk == "hdd").map(|_| began.elapsed())
        })
        .await?;
    stage.show_labels("worker-1 worker-2")
}

pub(super) fn is(seen: &Observed, node: &str, key: &str, value: &str) -> bool {
    seen.node(node).is_some_and(|life| life.is(key, value))
}

/// Returns the time from the creation of the node until it was complete; `None` until it is.
pub(super) fn given(seen: &Observed, node: &str, complete: impl Fn(&Incarnation) -> bool) -> Option<Duration> {
    seen.node(node).filter(|life| life.marked && complete(life)).map(Incarnation::completed_in)
}
