//! Placement: exactness, speed and cost with the real scheduler and controllers and kwok nodes.

mod burst;
mod figures;
mod many;

use anyhow::Result;
use perennial_core::placement::slots::Split;
use perennial_harness::{LoadBalancer, Operator, OperatorBuilder, TestCluster, Webhooks, eventually};

use self::{
    burst::Bound,
    figures::{Killed, PlacementFigures, Stop},
};
use crate::{
    latency::Latency,
    report::{Report, progress},
};

/// Pod webhook in the operator's metrics.
const PODS: &str = "mutate/pods";
const PERCENTAGE: u8 = 70;
const FLOOR: u32 = 3;
const STOPS: [u32; 4] = [1_000, 137, 612, 3];
/// Number of nodes per class, and pods per node.
const NODES: usize = 8;
const ROOM: usize = 200;

/// Extent of the placement part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacementSize {
    /// Number of bursts, managed and unmanaged.
    pub rounds: usize,
    /// Duration at a steady rate in seconds.
    pub seconds: u32,
    pub workloads: u32,
    pub pods: u32,
}

impl PlacementSize {
    pub(crate) const FULL: Self = Self { rounds: 3, seconds: 20, workloads: 2_000, pods: 20_000 };
    pub(crate) const QUICK: Self = Self { rounds: 1, seconds: 10, workloads: 200, pods: 2_000 };
}

pub(crate) async fn measure(size: PlacementSize, report: &mut Report) {
    report.part("Placement with the real scheduler and controllers on kwok nodes");
    run(size).await.expect("placement is measured").show(report);
}

async fn run(size: PlacementSize) -> Result<PlacementFigures> {
    let mut figures = PlacementFigures { workloads: size.workloads, pods: size.pods, ..PlacementFigures::default() };
    progress("  stops, latencies and writes …");
    one_operator(size, &mut figures).await?;
    progress("  bursts …");
    bursts(size, &mut figures).await?;
    progress("  killing the shard owner …");
    figures.killed = killed().await?;
    progress("  many workloads …");
    figures.memory = many::memory(size.workloads, size.pods).await?;
    Ok(figures)
}

async fn cluster() -> TestCluster {
    let cluster = TestCluster::full().await;
    cluster.capacity("spot", NODES, ROOM).await;
    cluster.capacity("on-demand", NODES, ROOM).await;
    cluster
}

/// Operator with default settings, including the Lease duration.
fn operator(cluster: &TestCluster) -> OperatorBuilder {
    cluster.operator().set("controller.leaderElection.leaseDuration", "15s")
}

async fn web(cluster: &TestCluster) {
    let web = cluster.deployment("web").annotate("spot-percentage", &PERCENTAGE.to_string());
    web.annotate("min-on-demand", &FLOOR.to_string()).replicas(0).create().await;
}

/// Runs the same burst with and without Perennial alternately on the same control plane.
async fn bursts(size: PlacementSize, figures: &mut PlacementFigures) -> Result<()> {
    let cluster = cluster().await;
    cluster.deployment("plain").replicas(0).create().await;
    web(&cluster).await;
    // The first burst on a control plane is slower than all others.
    burst::up_and_down(&cluster, "plain", STOPS[0]).await?;
    for _ in 0..size.rounds {
        figures.unmanaged.push(burst::up_and_down(&cluster, "plain", STOPS[0]).await?.as_secs_f64());
        let operator = operator(&cluster).webhooks(Webhooks::On).start().await;
        // The burst is compared, not the start of the operator.
        eventually("the operator leads", async || {
            let leads = operator.metrics().sum("leader_election_master_status", &[]);
            if leads >= 1.0 { Ok(()) } else { Err(leads) }
        })
        .await;
        let requests = || operator.metrics().sum("rest_client_requests_total", &[]);
        let before = (operator.cpu(), requests());
        figures.managed.push(burst::up_and_down(&cluster, "web", STOPS[0]).await?.as_secs_f64());
        figures.cpu.push(operator.cpu().saturating_sub(before.0).as_secs_f64());
        figures.requests.push(requests() - before.1);
        operator.stop().await;
        cluster.kubectl("delete mutatingwebhookconfigurations,validatingwebhookconfigurations --all");
    }
    Ok(())
}

/// Measures stops, latencies, writes and the first eviction with one operator and default settings.
async fn one_operator(size: PlacementSize, figures: &mut PlacementFigures) -> Result<()> {
    let cluster = cluster().await;
    let operator = operator(&cluster).webhooks(Webhooks::On).start().await;
    let writes = || operator.metrics().sum("rest_client_requests_total", &[("method", "PATCH")]);
    web(&cluster).await;

    let before = writes();
    let mut made = 0;
    let mut replicas = 0;
    for stop in STOPS {
        let bound = Bound::watch(&cluster, "web");
        cluster.scale("web", stop).await;
        bound.until(stop as usize).await?;
        figures.stops.push(Stop::of(stop, bound.split().await));
        all_ready(&cluster);
        made += stop.saturating_sub(replicas);
        replicas = stop;
    }
    figures.writes_per_deployment_pod = (writes() - before) / f64::from(made);
    figures.moves = operator.metrics().sum("perennial_placement_moves_total", &[("result", "evicted")]);

    let bound = Bound::watch(&cluster, "web");
    cluster.scale("web", 100).await;
    bound.until(100).await?;
    let before = (operator.metrics(), cluster.requests().await);
    cluster.scale("web", 1_000).await;
    bound.until(1_000).await?;
    figures.burst = Latency::between(PODS, &before, &(operator.metrics(), cluster.requests().await));
    cluster.scale("web", 100).await;
    bound.until(100).await?;

    let before = (operator.metrics(), cluster.requests().await);
    burst::steadily(&cluster, "web", 100, size.seconds).await;
    bound.until(100 + 20 * size.seconds as usize).await?;
    figures.steady = Latency::between(PODS, &before, &(operator.metrics(), cluster.requests().await));
    cluster.scale("web", 0).await;
    bound.until(0).await?;

    let before = writes();
    let count = 200;
    let db = cluster.stateful_set("db").annotate("spot-percentage", &PERCENTAGE.to_string()).replicas(count);
    let bound = Bound::watch(&cluster, "db");
    db.create().await;
    bound.until(count as usize).await?;
    figures.writes_per_stateful_pod = (writes() - before) / f64::from(count);

    for turn in 0..3 {
        let name = format!("moved-{turn}");
        figures.first_eviction.push(burst::first_eviction(&cluster, &name).await?.as_secs_f64());
    }
    Ok(())
}

/// Two replicas behind one address; the shard owner is killed during each scale-out.
async fn killed() -> Result<Killed> {
    let cluster = cluster().await;
    let balancer = LoadBalancer::of(2).await;
    let replica = async |number| {
        let builder = balancer.operator(&cluster, number).set("placement.cooldown", "1s");
        builder.set("controller.leaderElection.leaseDuration", "5s").start().await
    };
    let mut replicas = [Some(replica(0).await), Some(replica(1).await)];
    web(&cluster).await;
    let mut killed = Killed::default();
    let mut before = 0;
    for stop in STOPS {
        let bound = Bound::watch(&cluster, "web");
        cluster.scale("web", stop).await;
        let mut owner = None;
        if stop > before {
            bound.past((before + (stop - before) / 3) as usize).await?;
            let leads = |operator: &Option<Operator>| operator.as_ref().is_some_and(is_leading);
            let number = replicas.iter().position(leads).unwrap_or_default();
            if let Some(replica) = replicas[number].take() {
                replica.crash();
                killed.kills += 1;
            }
            owner = Some(number);
        }
        let (split, took) = bound.until_exact(stop, Split::new(PERCENTAGE, FLOOR)).await?;
        killed.stops.push(Stop::of(stop, split));
        killed.seconds.push(took.as_secs_f64());
        all_ready(&cluster);
        if let Some(number) = owner {
            replicas[number] = Some(replica(number).await);
        }
        before = stop;
    }
    Ok(killed)
}

/// ReplicaSets remove pods that are not Ready first, whatever their slot: a scale-in is exact once
/// all pods are Ready.
fn all_ready(cluster: &TestCluster) {
    cluster.kubectl("rollout status deployment web --timeout=120s");
}

fn is_leading(operator: &Operator) -> bool {
    operator.metrics().sum("leader_election_master_status", &[]) > 0.5
}
