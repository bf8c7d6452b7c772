//! Chapters about placement on spot and on-demand nodes: a burst, a scale-in, a rollout and a
//! shortage.
//!
//! Pods need a scheduler and controllers, so these chapters run on their own cluster.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, ObjectList},
};
use perennial_core::placement::FALLBACK;

use crate::{
    stage::{Stage, start_whole_plane},
    terminal::took,
};

const PATIENCE: Duration = Duration::from_mins(2);
const LOOK: Duration = Duration::from_millis(100);
const WEB: &str = "apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  annotations:
    perennial.dev/spot-percentage: \"70\"
    perennial.dev/min-on-demand: \"3\"
    perennial.dev/fallback-after: 3s
spec:
  replicas: 10
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: web}]
";

/// Number of pods of a workload by location.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PodCounts {
    spot: usize,
    on_demand: usize,
    ready_on_demand: usize,
    waiting: usize,
    fallen: usize,
}

pub(crate) async fn exact_in_a_burst(stage: &mut Stage) -> anyhow::Result<()> {
    let plane = tokio::task::spawn_blocking(start_whole_plane).await??;
    stage.move_to(plane).await?;
    stage.narrate("A second Kubernetes starts, with scheduler and controllers, 2 spot and 2 on-demand nodes.");
    for (name, class) in
        [("spot-1", "spot"), ("spot-2", "spot"), ("regular-1", "on-demand"), ("regular-2", "on-demand")]
    {
        stage.write(&format!("{name}.yaml"), &node(name, class))?;
    }
    stage.run("kubectl create -f spot-1.yaml -f spot-2.yaml -f regular-1.yaml -f regular-2.yaml")?;
    stage.write("web.yaml", WEB)?;
    stage.narrate("web.yaml requests 70% on spot and at least 3 on-demand replicas.");
    stage.run("kubectl create -f web.yaml")?;
    split(stage, "7 of 10 replicas run on spot, 3 on-demand", 7, 3).await?;
    stage.run("kubectl scale deployment web --replicas=200")?;
    split(stage, "140 of 200 run on spot, 60 on-demand", 140, 60).await?;
    stage.show("perennial workloads")
}

pub(crate) async fn exact_after_scale_in(stage: &mut Stage) -> anyhow::Result<()> {
    stage.run("kubectl scale deployment web --replicas=23")?;
    split(stage, "16 of 23 remain on spot, 7 on-demand", 16, 7).await?;
    let moved = stage.count_in_operator_log("evicted");
    if moved > 0 {
        return Err(stage.broken("no pod was evicted"));
    }
    stage.holds("no pod was evicted", "");
    stage.show("perennial explain deploy/web")
}

pub(crate) async fn a_rollout_keeps_the_floor(stage: &mut Stage) -> anyhow::Result<()> {
    let old = pods(stage).await?;
    stage.run("kubectl rollout restart deployment web")?;
    let began = Instant::now();
    let mut fewest = usize::MAX;
    loop {
        let now = pods(stage).await?;
        let found = count(&now);
        fewest = fewest.min(found.ready_on_demand);
        let renewed = now.items.iter().all(|pod| old.items.iter().all(|old| old.metadata.uid != pod.metadata.uid));
        if renewed && (found.spot, found.on_demand, found.waiting) == (16, 7, 0) {
            break;
        }
        if began.elapsed() > PATIENCE {
            return Err(broken(stage, "all pods are new, 16 on spot and 7 on-demand", found));
        }
        tokio::time::sleep(LOOK).await;
    }
    stage.holds("all pods are new, 16 on spot and 7 on-demand", &took(began.elapsed()));
    let claim = "at least 3 on-demand replicas were Ready at all times";
    if fewest < 3 {
        stage.narrate(&format!("Minimum: {fewest}."));
        return Err(stage.broken(claim));
    }
    stage.holds(claim, &format!("minimum {fewest}"));
    Ok(())
}

pub(crate) async fn spot_runs_out(stage: &mut Stage) -> anyhow::Result<()> {
    stage.narrate("Spot nodes accept no new pods.");
    stage.run("kubectl cordon spot-1 spot-2")?;
    stage.run("kubectl scale deployment web --replicas=40")?;
    let began = Instant::now();
    let claim = "12 spot replicas fall back to on-demand after 3 s and are marked";
    until(stage, claim, |found| (found.spot, found.on_demand, found.waiting, found.fallen) == (16, 24, 0, 12)).await?;
    stage.holds(claim, &took(began.elapsed()));
    stage.show("perennial explain deploy/web")?;
    stage.run("kubectl scale deployment web --replicas=23")?;
    split(stage, "after a scale-in the fallback replicas are removed first", 16, 7).await
}

/// Manifest of a node with room for many pods.
fn node(name: &str, class: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n  annotations:\n    kwok.x-k8s.io/node: fake\n  labels:\n    \
         karpenter.sh/capacity-type: {class}\nstatus:\n  allocatable: {{cpu: 64, memory: 256Gi, pods: 250}}\n  \
         capacity: {{cpu: 64, memory: 256Gi, pods: 250}}\n"
    )
}

async fn pods(stage: &Stage) -> anyhow::Result<ObjectList<Pod>> {
    let api: Api<Pod> = Api::default_namespaced(stage.client.0.clone());
    let mut pods = api.list(&ListParams::default().labels("app=web")).await?;
    pods.items.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(pods)
}

fn count(pods: &ObjectList<Pod>) -> PodCounts {
    let mut found = PodCounts::default();
    for pod in &pods.items {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            None => found.waiting += 1,
            Some(node) if node.starts_with("spot") => found.spot += 1,
            Some(_) => {
                found.on_demand += 1;
                found.ready_on_demand += usize::from(ready);
            }
        }
        let marked = pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(FALLBACK));
        found.fallen += usize::from(marked);
    }
    found
}

async fn split(stage: &mut Stage, claim: &str, spot: usize, on_demand: usize) -> anyhow::Result<()> {
    let began = Instant::now();
    until(stage, claim, |found| (found.spot, found.on_demand, found.waiting) == (spot, on_demand, 0)).await?;
    stage.holds(claim, &took(began.elapsed()));
    Ok(())
}

async fn until(stage: &Stage, claim: &str, holds: impl Fn(&PodCounts) -> bool) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let found = count(&pods(stage).await?);
        if holds(&found) {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(broken(stage, claim, found));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn broken(stage: &Stage, claim: &str, found: PodCounts) -> anyhow::Error {
    stage.narrate(&format!("Last observed: {found:?}."));
    stage.broken(claim)
}
