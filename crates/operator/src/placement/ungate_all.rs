//! Gated pods where no place is given any more: found by lists and freed. For the day when placement is switched off, and for
//! the day when Perennial is removed.
//!
//! # Guarantees
//! One pod that cannot be freed keeps no other from being freed. One that changed meanwhile is read again.

use std::time::Duration;

use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::api::ListParams;
use perennial_core::placement::{
    action::Action,
    release::{Why, free},
    view::PodView,
};

use super::{
    apply::{Cluster, Error},
    index::Reading,
    observe::pod_entry,
    settings::Configured,
};
use crate::runtime::{
    error_category::Category,
    pages::{PAGE, pages},
};

/// A pod that others keep changing is read so often.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(200);

/// Frees every gated pod that is due, and says how many; `on` hears how many pods were looked at.
pub async fn sweep(
    cluster: &Cluster,
    configured: &Configured,
    why: Why,
    is_due: impl Fn(&PodView) -> bool,
    mut on: impl FnMut(usize),
) -> Result<usize, Error> {
    let mut freed = 0;
    for _ in 1..TRIES {
        let pass = pass(cluster, configured, why, &is_due, &mut on).await?;
        freed += pass.freed;
        if pass.overtaken.is_none() {
            return pass.failed.map_or(Ok(freed), Err);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let last = pass(cluster, configured, why, &is_due, &mut on).await?;
    last.failed.or(last.overtaken).map_or(Ok(freed + last.freed), Err)
}

/// What came of looking at all pods once.
#[derive(Default)]
struct Pass {
    freed: usize,
    /// A pod changed before it could be freed.
    overtaken: Option<Error>,
    /// A pod cannot be freed.
    failed: Option<Error>,
}

async fn pass(
    cluster: &Cluster,
    configured: &Configured,
    why: Why,
    is_due: &impl Fn(&PodView) -> bool,
    on: &mut impl FnMut(usize),
) -> Result<Pass, Error> {
    let mut done = Pass::default();
    let list = |params| cluster.list_managed(params);
    let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
    while let Some(page) = pages.try_next().await? {
        on(page.len());
        let reading = Reading { configured, now: Timestamp::now(), listed: true };
        let pods = page.into_iter().map(|pod| pod_entry(pod, None, &reading));
        for pod in pods.filter(|pod| pod.view.gated && pod.view.occupies() && is_due(&pod.view)) {
            let decided = free(&pod.view, why, pod.strength, &configured.settings);
            let Action::Free { patch, on_refusal, .. } = decided else { continue };
            match cluster.free_pod(&pod.namespace, &pod.view.name, &patch, on_refusal.as_ref()).await {
                Ok(Some(_)) => done.freed += 1,
                Ok(None) => {}
                Err(error) if error.category() == Category::Conflict => done.overtaken = Some(error),
                Err(error) => done.failed = Some(error),
            }
        }
    }
    Ok(done)
}
