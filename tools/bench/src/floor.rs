//! Floors of a mass return: the driver alone, and a webhook that changes nothing.

use std::time::{Duration, Instant};

use futures::StreamExt;
use perennial_harness::TestCluster;

use crate::{
    contender::Usage,
    fleet::{AT_ONCE, Fleet, each},
    peers::no_op::NoOpWebhook,
    watcher::Complete,
};

/// The least that a return of the same number of nodes can cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Floor {
    /// The driver alone, before and after the run, because the speed of a shared machine changes
    /// within minutes: bare creates with webhooks, otherwise create and PATCH.
    pub(crate) times: [f64; 2],
    pub(crate) work: f64,
    /// Bare creates through a webhook that changes nothing, before and after the run.
    pub(crate) no_op: Option<[f64; 2]>,
}

impl Floor {
    pub(crate) fn seconds(self) -> f64 {
        mean(self.times)
    }
}

pub(crate) fn mean([before, after]: [f64; 2]) -> f64 {
    f64::midpoint(before, after)
}

/// Requests of the driver that a floor is measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Baseline {
    Create,
    CreateAndPatch,
    /// Creates while a webhook that changes nothing is called.
    NoOpWebhook,
}

/// CPU time of all processes that take part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) server: Duration,
    pub(crate) driver: Duration,
    pub(crate) keeper: Duration,
}

impl Work {
    pub(crate) fn so_far(cluster: &TestCluster, keeper: Option<u32>) -> Self {
        let plane = cluster.plane();
        let server = plane.components().into_iter().filter_map(|component| plane.pid(component));
        Self {
            server: server.map(|pid| Usage::of(pid).cpu).sum(),
            driver: Usage::of(std::process::id()).cpu,
            keeper: keeper.map_or(Duration::ZERO, |pid| Usage::of(pid).cpu),
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            server: self.server.saturating_sub(before.server),
            driver: self.driver.saturating_sub(before.driver),
            keeper: self.keeper.saturating_sub(before.keeper),
        }
    }

    pub(crate) fn all(self) -> f64 {
        (self.server + self.driver + self.keeper).as_secs_f64()
    }
}

/// Returns duration and CPU time of the baseline in seconds.
pub(crate) async fn measure(count: usize, baseline: Baseline) -> (f64, f64) {
    let cluster = TestCluster::new().await;
    let fleet = Fleet::of(&cluster);
    let webhook = match baseline {
        Baseline::NoOpWebhook => Some(NoOpWebhook::start(&cluster).await),
        Baseline::Create | Baseline::CreateAndPatch => None,
    };
    let pid = webhook.as_ref().map(NoOpWebhook::pid);
    // The driver watches here as well, so that its cost is on both sides of every ratio.
    let (_, watch) = Complete::watch(&cluster);
    let start = Work::so_far(&cluster, pid);
    let whole = time(each(0..count, AT_ONCE, async |number| {
        fleet.create_bare(number).await;
        if baseline == Baseline::CreateAndPatch {
            fleet.label(number).await;
        }
    }))
    .await;
    let work = Work::so_far(&cluster, pid).since(start);
    watch.abort();
    if let Some(webhook) = webhook {
        webhook.stop().await;
    }
    each(0..count, 64, |number| fleet.delete(number)).count().await;
    (whole.as_secs_f64(), work.all())
}

async fn time<T>(stream: impl futures::Stream<Item = T>) -> Duration {
    let start = Instant::now();
    stream.count().await;
    start.elapsed()
}
