//! Memory of the operator with many workloads.

use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt, stream};
use perennial_harness::{TestCluster, Webhooks, eventually_within};

const ROOM: u32 = 1_000;
const AT_ONCE: usize = 16;

/// Returns the operator's peak resident memory with these numbers of workloads and pods.
pub(crate) async fn memory(workloads: u32, pods: u32) -> Result<u64> {
    let cluster = TestCluster::full().await;
    let nodes = (pods * 3 / 4).div_ceil(ROOM) as usize + 1;
    cluster.capacity("spot", nodes, ROOM as usize).await;
    cluster.capacity("on-demand", nodes, ROOM as usize).await;
    let operator = super::operator(&cluster).webhooks(Webhooks::On).start().await;
    let cluster = &cluster;
    let creates = (0..workloads).map(|number| async move {
        let web = cluster.deployment(&format!("web-{number}")).annotate("spot-percentage", "50");
        web.replicas(pods / workloads).create().await;
    });
    stream::iter(creates).buffer_unordered(AT_ONCE).for_each(async |()| ()).await;
    let placed = || operator.metrics().sum("perennial_placement_replicas", &[]);
    eventually_within(Duration::from_mins(20), format!("{pods} pods are placed"), async || {
        let seen = placed();
        if seen + 0.5 > f64::from(pods) { Ok(()) } else { Err(seen) }
    })
    .await;
    Ok(operator.peak_rss())
}
