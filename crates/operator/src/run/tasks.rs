//! Running things until we stop, or again and again.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(super) async fn until(stop: CancellationToken, task: impl Future<Output = ()>) {
    stop.run_until_cancelled(task).await;
}

pub(super) async fn every<F: Future<Output = ()>>(
    stop: CancellationToken,
    period: Duration,
    mut tick: impl FnMut() -> F,
) {
    let mut interval = tokio::time::interval(period);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval.tick().await;
    while stop.run_until_cancelled(interval.tick()).await.is_some() {
        tick().await;
    }
}
