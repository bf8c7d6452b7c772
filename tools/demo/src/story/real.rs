//! Chapters on real nodes: each has a kubelet and containerd in separate namespaces. A node comes
//! back when its kubelet restarts, as on any machine.

use std::time::{Duration, Instant};

use super::keeper::{given, is};
use crate::stage::Stage;

/// Longer than any late change takes.
const WATCHED: Duration = Duration::from_secs(1);
/// Longer than a running kubelet takes to report its status.
const RUNNING: Duration = Duration::from_secs(5);
const ROLE: &str = "node-role.kubernetes.io/gpu";

pub(crate) async fn nodes_are_labelled(stage: &mut Stage) -> anyhow::Result<()> {
    stage.show("kubectl get nodes -o wide")?;
    let began = Instant::now();
    stage.run("kubectl label node real-0 team=ml disk=nvme rack=r7")?;
    stage.run("kubectl label node real-1 team=web")?;
    stage
        .claim("each node has a record with its labels", |seen| {
            let recorded = |node: &str, key: &str| seen.record(node).is_some_and(|labels| labels.contains_key(key));
            (recorded("real-0", "rack") && recorded("real-1", "team")).then(|| began.elapsed())
        })
        .await?;
    stage.show("kubectl get configmaps -n perennial-system -l perennial.dev/record")
}

pub(crate) async fn a_node_returns(stage: &mut Stage) -> anyhow::Result<()> {
    stage.run("kubectl delete node real-0")?;
    stage
        .lasting_claim("its running kubelet does not register it again", RUNNING, |seen| seen.node("real-0").is_none())
        .await?;
    stage.restart_kubelet(0, &[])?;
    stage
        .claim("its kubelet restarts, and its labels are restored", |seen| {
            given(seen, "real-0", |life| life.is("team", "ml") && life.is("disk", "nvme") && life.is("rack", "r7"))
        })
        .await?;
    stage.show_labels("real-0")
}

pub(crate) async fn a_removed_label_stays_removed(stage: &mut Stage) -> anyhow::Result<()> {
    stage.run("kubectl label node real-0 rack-")?;
    stage.run("kubectl delete node real-0")?;
    stage.restart_kubelet(0, &[])?;
    stage
        .claim("the other labels are restored", |seen| {
            given(seen, "real-0", |life| life.is("team", "ml") && life.is("disk", "nvme"))
        })
        .await?;
    stage
        .lasting_claim("the removed label is not", WATCHED, |seen| {
            seen.node("real-0").is_some_and(|life| life.has("team") && !life.has("rack"))
        })
        .await
}

pub(crate) async fn a_value_of_the_kubelet_wins(stage: &mut Stage) -> anyhow::Result<()> {
    stage.run("kubectl delete node real-0")?;
    stage.restart_kubelet(0, &["--node-labels=team=data"])?;
    stage
        .claim("labels that it does not set itself are restored", |seen| {
            given(seen, "real-0", |life| life.is("disk", "nvme"))
        })
        .await?;
    stage.lasting_claim("its own team=data is unchanged", WATCHED, |seen| is(seen, "real-0", "team", "data")).await?;
    stage.show_labels("real-0")
}

pub(crate) async fn a_role_comes_back(stage: &mut Stage) -> anyhow::Result<()> {
    stage.narrate("NodeRestriction refuses a role in the create of a kubelet, so Perennial adds it afterwards.");
    stage.run(&format!("kubectl label node real-1 {ROLE}="))?;
    stage
        .until("the role is recorded", |seen| {
            seen.record("real-1").filter(|labels| labels.contains_key(ROLE)).map(|_| ())
        })
        .await?;
    stage.run("kubectl delete node real-1")?;
    stage.restart_kubelet(1, &[])?;
    stage
        .claim("the same machine has its role again", |seen| {
            given(seen, "real-1", |life| life.is("team", "web") && life.has(ROLE))
        })
        .await?;
    stage.show_labels("real-1")
}

pub(crate) async fn a_restart_changes_nothing(stage: &mut Stage) -> anyhow::Result<()> {
    let before = stage.until("real-1 exists", |seen| seen.node("real-1").map(|life| life.uid.clone())).await?;
    stage.restart_kubelet(1, &[])?;
    stage
        .lasting_claim("the node is the same, with the same labels", WATCHED, |seen| {
            seen.node("real-1").is_some_and(|life| life.uid == before && life.is("team", "web") && life.has(ROLE))
        })
        .await
}

pub(crate) async fn nodes_change_while_the_operator_is_down(stage: &mut Stage) -> anyhow::Result<()> {
    stage.kill_operator();
    stage.narrate("kill -9: the operator is down. Kubelets register without it.");
    stage.run("kubectl delete node real-0")?;
    stage.restart_kubelet(0, &[])?;
    stage.run("kubectl label node real-1 disk=hdd")?;
    stage.show_labels("real-0 real-1")?;
    let began = Instant::now();
    stage.start_operator()?;
    stage
        .claim("real-0, registered without labels in the meantime, is restored", |seen| {
            let life = seen.node("real-0").filter(|life| life.is("team", "data") && life.is("disk", "nvme"))?;
            Some(life.since.saturating_duration_since(began))
        })
        .await?;
    stage
        .claim("the label that real-1 got in the meantime is recorded", |seen| {
            seen.record("real-1")?.get("disk").filter(|disk| *disk == "hdd").map(|_| began.elapsed())
        })
        .await
}

pub(crate) async fn creates_include_the_labels(stage: &mut Stage) -> anyhow::Result<()> {
    stage.kill_operator();
    stage.start_operator_with_webhooks()?;
    stage.narrate("The operator is started again with webhooks on.");
    stage.run("kubectl delete node real-0")?;
    stage.restart_kubelet(0, &[])?;
    let claim = "the first observation of real-0 has its labels";
    stage
        .until(claim, |seen| {
            seen.node("real-0")
                .filter(|life| life.marked && life.is("disk", "nvme") && life.since == life.born)
                .map(|_| ())
        })
        .await?;
    stage.holds(claim, "");
    stage.show_labels("real-0")
}
