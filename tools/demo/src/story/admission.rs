//! Chapter with webhooks on: the operator handles creates and deletes before they happen.

use std::time::Instant;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::{
    observer::Incarnation,
    stage::{Stage, bare_node},
    terminal::took,
};

const ROUNDS: u32 = 50;

pub(crate) async fn creates_include_the_labels(stage: &mut Stage) -> anyhow::Result<()> {
    stage.kill_operator();
    stage.start_operator_with_webhooks()?;
    stage.narrate("The operator is started again with webhooks on.");
    stage.run("kubectl delete node worker-1")?;
    stage.run("kubectl create -f worker-1.yaml")?;
    let complete = |life: &Incarnation| life.is("team", "data") && life.is("disk", "nvme");
    let claim = "worker-1 was never observed without its labels";
    stage
        .until(claim, |seen| seen.node("worker-1").filter(|life| complete(life) && life.since == life.born).map(|_| ()))
        .await?;
    stage.holds(claim, "");

    stage.narrate(&format!("{ROUNDS} times: a label is changed, and the node is deleted by the next request."));
    let nodes: Api<Node> = Api::all(stage.client.0.clone());
    let bare = bare_node("worker-3")?;
    let began = Instant::now();
    let mut lost = 0;
    for round in 0..ROUNDS {
        let value = format!("value-{round}");
        let change = Patch::Merge(json!({"metadata": {"labels": {"round": value}}}));
        nodes.patch("worker-3", &PatchParams::default(), &change).await?;
        nodes.delete("worker-3", &DeleteParams::default()).await?;
        let created = nodes.create(&PostParams::default(), &bare).await?;
        let labels = created.metadata.labels.unwrap_or_default();
        lost += u32::from(labels.get("round") != Some(&value) || labels.get("team").is_none_or(|team| team != "web"));
    }
    let claim = "the response of each create has the changed label";
    if lost > 0 {
        stage.narrate(&format!("{lost} of {ROUNDS} responses had not."));
        return Err(stage.broken(claim));
    }
    stage.holds(claim, &format!("{} per round", took(began.elapsed() / ROUNDS)));
    stage.show_labels("worker-1 worker-3")
}
