//! Chapters about the keeper and all nodes at once.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

use crate::{
    observer::{Incarnation, Labels, Observed},
    stage::{Stage, all},
    terminal::took,
};

const NODES: usize = 1000;
const LABELS: usize = 10;

pub(crate) async fn a_thousand_nodes_return(stage: &mut Stage) -> anyhow::Result<()> {
    let began = Instant::now();
    create(stage, "creating", true).await?;
    let bar = stage.terminal.bar(NODES, "recording");
    stage
        .claim("1,000 nodes with 10 labels each are recorded", |seen| {
            let count = FLEET.iter().filter(|(name, labels)| seen.record(name) == Some(labels)).count();
            bar.set_position(count as u64);
            done(&bar, count).then(|| began.elapsed())
        })
        .await?;
    delete(stage).await?;
    let began = Instant::now();
    create(stage, "creating without labels", false).await?;
    let created = began.elapsed();
    wait_for_all(stage, began).await?;
    let (median, longest) = {
        let seen = stage.observer.look();
        let mut times: Vec<_> =
            FLEET.iter().filter_map(|(name, _)| seen.node(name).map(Incarnation::completed_in)).collect();
        times.sort();
        (times.get(NODES / 2).copied().unwrap_or_default(), times.last().copied().unwrap_or_default())
    };
    stage.narrate(&format!(
        "The creates alone took {}; a node had no labels for {} (median), {} (longest).",
        took(created),
        took(median),
        took(longest)
    ));
    stage.show("kubectl get node pool-0000 pool-0999 -L team,rack,owner")
}

pub(crate) async fn killed_in_the_middle(stage: &mut Stage) -> anyhow::Result<()> {
    delete(stage).await?;
    let began = Instant::now();
    create(stage, "creating without labels", false).await?;
    for part in [1, 2] {
        let enough = NODES * part / 3;
        let count =
            stage.until("labels are restored", |seen| Some(complete(seen)).filter(|count| *count >= enough)).await?;
        stage.kill_operator();
        stage.narrate(&format!("kill -9 when {count} nodes are restored; a new operator starts."));
        stage.start_operator()?;
    }
    wait_for_all(stage, began).await?;
    stage
        .lasting_claim("no node has a label of another node", Duration::from_millis(500), |seen| {
            complete(seen) == NODES
        })
        .await
}

async fn wait_for_all(stage: &mut Stage, began: Instant) -> anyhow::Result<()> {
    let bar = stage.terminal.bar(NODES, "restoring labels");
    stage
        .claim("all 10,000 labels are restored on the 1,000 nodes", |seen| {
            let count = complete(seen);
            bar.set_position(count as u64);
            let last = FLEET.iter().filter_map(|(name, _)| Some(seen.node(name)?.since)).max()?;
            done(&bar, count).then(|| last.saturating_duration_since(began))
        })
        .await
}

/// Returns the number of nodes that have exactly their labels.
fn complete(seen: &Observed) -> usize {
    FLEET.iter().filter(|(name, labels)| seen.node(name).is_some_and(|life| life.labels == *labels)).count()
}

fn done(bar: &ProgressBar, count: usize) -> bool {
    if count == NODES {
        bar.finish_and_clear();
    }
    count == NODES
}

async fn create(stage: &Stage, what: &str, labelled: bool) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(stage.client.0.clone());
    let bar = stage.terminal.bar(NODES, what);
    let nodes = FLEET
        .iter()
        .map(|(name, labels)| {
            let mut labels = if labelled { labels.clone() } else { Labels::new() };
            labels.insert("kubernetes.io/hostname".to_owned(), name.clone());
            serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))
        })
        .collect::<Result<Vec<Node>, _>>()?;
    all(nodes, |node| {
        let (api, bar) = (api.clone(), bar.clone());
        async move {
            api.create(&PostParams::default(), &node).await?;
            bar.inc(1);
            Ok(())
        }
    })
    .await?;
    bar.finish_and_clear();
    Ok(())
}

async fn delete(stage: &Stage) -> anyhow::Result<()> {
    let api: Api<Node> = Api::all(stage.client.0.clone());
    let bar = stage.terminal.bar(NODES, "deleting");
    let began = Instant::now();
    all(FLEET.iter().map(|(name, _)| name.clone()), |name| {
        let (api, bar) = (api.clone(), bar.clone());
        async move {
            api.delete(&name, &DeleteParams::default()).await?;
            bar.inc(1);
            Ok(())
        }
    })
    .await?;
    bar.finish_and_clear();
    stage.narrate(&format!("All nodes are deleted in {} and created again without labels.", took(began.elapsed())));
    Ok(())
}

/// Names of all nodes with their labels.
static FLEET: LazyLock<Vec<(String, Labels)>> = LazyLock::new(|| (0..NODES).map(|n| (name(n), labels(n))).collect());

fn name(number: usize) -> String {
    format!("pool-{number:04}")
}

fn labels(number: usize) -> Labels {
    let mut labels = Labels::from([
        ("team".to_owned(), format!("team-{}", number % 7)),
        ("rack".to_owned(), format!("r{}", number / 40)),
        ("owner".to_owned(), format!("person-{number}")),
    ]);
    for more in labels.len()..LABELS {
        labels.insert(format!("example.com/label-{more}"), format!("value-{number}"));
    }
    labels
}
