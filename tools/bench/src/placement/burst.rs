//! Observes pods with a watch and scales workloads.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use futures::{StreamExt, future};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{ApiResource, ListParams},
    core::{NotUsed, Object},
    runtime::watcher::{self, Event},
};
use perennial_core::placement::slots::Split;
use perennial_harness::{TestCluster, cpu_of};
use serde::{Deserialize, Serialize};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

const PATIENCE: Duration = Duration::from_mins(5);
const LOOK: Duration = Duration::from_millis(10);
/// Pods per second at a steady rate.
const RATE: u32 = 20;

/// The only field of a pod that is read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
}

type Seen = Object<Spec, NotUsed>;

#[derive(Debug, Default)]
struct Pods {
    /// Pods that are not terminating, with their nodes.
    live: HashMap<String, Option<String>>,
    /// Time at which the first terminating pod was observed.
    first_leaving: Option<Instant>,
}

/// Pods of one workload.
#[derive(Debug)]
pub(crate) struct Bound {
    pods: Arc<Mutex<Pods>>,
    classes: Api<Node>,
    task: JoinHandle<()>,
}

impl Bound {
    pub(crate) fn watch(cluster: &TestCluster, app: &str) -> Self {
        let pods: Arc<Mutex<Pods>> = Arc::default();
        let api: Api<Seen> = Api::default_namespaced_with(cluster.client(), &ApiResource::erase::<Pod>(&()));
        let config = watcher::Config::default().labels(&format!("app={app}"));
        let seen = Arc::clone(&pods);
        let task = tokio::spawn(watcher::watcher(api, config).for_each(move |event| {
            match event {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => lock(&seen).put(pod),
                Ok(Event::Delete(pod)) => lock(&seen).remove(&pod.metadata.uid.unwrap_or_default()),
                Ok(Event::Init | Event::InitDone) | Err(_) => {}
            }
            future::ready(())
        }));
        Self { pods, classes: Api::all(cluster.client()), task }
    }

    /// Waits until there are exactly `count` pods and all have a node.
    pub(crate) async fn until(&self, count: usize) -> Result<Duration> {
        self.wait(|pods| pods.live.len() == count && pods.live.values().all(Option::is_some)).await
    }

    /// Waits until at least `count` pods have a node.
    pub(crate) async fn past(&self, count: usize) -> Result<Duration> {
        self.wait(|pods| pods.live.values().flatten().count() >= count).await
    }

    /// Waits until there are exactly `count` pods with this split.
    pub(crate) async fn until_exact(&self, count: u32, split: Split) -> Result<((usize, usize), Duration)> {
        let start = Instant::now();
        let wanted = (split.spot(count) as usize, split.on_demand(count) as usize);
        loop {
            self.until(count as usize).await?;
            let found = self.split().await;
            if found == wanted || start.elapsed() > PATIENCE {
                return Ok((found, start.elapsed()));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the numbers of pods on spot and on-demand nodes.
    pub(crate) async fn split(&self) -> (usize, usize) {
        let nodes = self.classes.list_metadata(&ListParams::default()).await.expect("listing nodes");
        let class = |labels: BTreeMap<String, String>| labels.get("karpenter.sh/capacity-type").cloned();
        let classes: HashMap<String, String> = nodes
            .items
            .into_iter()
            .filter_map(|node| Some((node.metadata.name?, class(node.metadata.labels?)?)))
            .collect();
        let pods = lock(&self.pods);
        let spot = |node: &&String| classes.get(*node).is_some_and(|class| class == "spot");
        let spot = pods.live.values().flatten().filter(spot).count();
        (spot, pods.live.values().flatten().count() - spot)
    }

    async fn wait(&self, done: impl Fn(&Pods) -> bool) -> Result<Duration> {
        let start = Instant::now();
        loop {
            if done(&lock(&self.pods)) {
                return Ok(start.elapsed());
            }
            if start.elapsed() > PATIENCE {
                let pods = lock(&self.pods);
                bail!("timed out: {} pods, {} with a node", pods.live.len(), pods.live.values().flatten().count());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pods {
    fn put(&mut self, pod: Seen) {
        let uid = pod.metadata.uid.unwrap_or_default();
        if pod.metadata.deletion_timestamp.is_some() {
            self.remove(&uid);
        } else {
            self.live.insert(uid, pod.spec.node_name);
        }
    }

    fn remove(&mut self, uid: &str) {
        if self.live.remove(uid).is_some() {
            self.first_leaving.get_or_insert_with(Instant::now);
        }
    }
}

fn lock(pods: &Mutex<Pods>) -> MutexGuard<'_, Pods> {
    pods.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the time from the scale-out to the last bound pod; then scales to zero.
pub(crate) async fn up_and_down(cluster: &TestCluster, name: &str, count: u32) -> Result<Duration> {
    let bound = Bound::watch(cluster, name);
    let components: Vec<_> = cluster.plane().components();
    let cpu = || components.iter().map(|c| cluster.plane().pid(*c).map_or(Duration::ZERO, cpu_of)).collect::<Vec<_>>();
    let before = cpu();
    let start = Instant::now();
    cluster.scale(name, count).await;
    bound.until(count as usize).await?;
    let took = start.elapsed();
    let used = components.iter().zip(before.iter().zip(cpu()));
    let used: Vec<String> = used
        .map(|(name, (before, after))| format!("{name:?} {:.1}", after.saturating_sub(*before).as_secs_f64()))
        .collect();
    eprintln!("bench: placement: {name}: {:.1} s; processor time {}", took.as_secs_f64(), used.join(", "));
    cluster.scale(name, 0).await;
    bound.until(0).await?;
    // Terminating pods would slow down the next burst.
    let api: Api<Pod> = Api::default_namespaced(cluster.client());
    loop {
        let left = api.list_metadata(&ListParams::default().labels(&format!("app={name}")).limit(1)).await?;
        if left.items.is_empty() {
            return Ok(took);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Adds one pod at a time, [`RATE`] per second.
pub(crate) async fn steadily(cluster: &TestCluster, name: &str, from: u32, seconds: u32) {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / RATE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for more in 1..=seconds * RATE {
        pace.tick().await;
        cluster.scale(name, from + more).await;
    }
}

/// Returns the time from a change of the annotation to the first terminating pod.
pub(crate) async fn first_eviction(cluster: &TestCluster, name: &str) -> Result<Duration> {
    let bound = Bound::watch(cluster, name);
    cluster.deployment(name).annotate("spot-percentage", "70").replicas(20).create().await;
    bound.until(20).await?;
    // Only available workloads are rebalanced.
    let waited = Instant::now();
    while !cluster.kubectl(&format!("get deploy {name} -o jsonpath={{.status.availableReplicas}}")).contains("20") {
        if waited.elapsed() > PATIENCE {
            bail!("{name} is not available");
        }
    }
    let start = Instant::now();
    cluster.annotate_deployment(name, "spot-percentage", "50").await;
    bound.wait(|pods| pods.first_leaving.is_some()).await?;
    Ok(lock(&bound.pods).first_leaving.map_or(PATIENCE, |at| at - start))
}
