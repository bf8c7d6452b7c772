//! Removal of scheduling gates outside of decisions: pods that are gated for too long, and all
//! gated pods when placement is switched off or Perennial is uninstalled.
//!
//! # Guarantees
//! A pod that cannot be ungated does not affect other pods. After a conflict the pods are listed
//! again.

use std::time::Duration;

use futures::FutureExt;
use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::api::ListParams;
use perennial_core::placement::{
    decision::Action,
    ungate::{UngateReason, ungate},
    workload::PodView,
};

use super::{
    apply::{Applier, Cluster, Error, in_parallel},
    cache::{Reading, SharedCache, pod_entry},
    settings::Configured,
};
use crate::runtime::{
    error_category::Category,
    pages::{PAGE, pages},
};

/// Maximum number of passes while pods conflict.
const MAX_PASSES: u32 = 5;
/// Pause between passes.
const PAUSE: Duration = Duration::from_millis(200);

/// Ungates the pods that have been gated for too long. Returns the pods that could not be ungated.
pub(super) async fn ungate_overdue(
    cache: &SharedCache,
    applier: &Applier,
    is_attended: impl Fn(&str) -> bool,
) -> Vec<(String, Error)> {
    let overdue = cache.overdue(is_attended);
    let ungating = overdue.iter().map(|pod| applier.ungate(&pod.namespace, &pod.pod, pod.reason, pod.strength).boxed());
    let answers = in_parallel(ungating.collect()).await;
    let failed = overdue.iter().zip(answers).filter_map(|(pod, answer)| Some((pod.pod.name.clone(), answer.err()?)));
    failed.collect()
}

/// Ungates every gated pod that is due and returns their number. `on_page` is called with the
/// number of pods of each page.
pub async fn ungate_all(
    cluster: &Cluster,
    configured: &Configured,
    reason: UngateReason,
    is_due: impl Fn(&PodView) -> bool,
    mut on_page: impl FnMut(usize),
) -> Result<usize, Error> {
    let mut ungated = 0;
    for _ in 1..MAX_PASSES {
        let pass = pass(cluster, configured, reason, &is_due, &mut on_page).await?;
        ungated += pass.ungated;
        if pass.conflict.is_none() {
            return pass.failed.map_or(Ok(ungated), Err);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let last = pass(cluster, configured, reason, &is_due, &mut on_page).await?;
    last.failed.or(last.conflict).map_or(Ok(ungated + last.ungated), Err)
}

/// Result of one pass over all pods.
#[derive(Default)]
struct Pass {
    ungated: usize,
    /// A pod changed before it could be ungated.
    conflict: Option<Error>,
    /// A pod could not be ungated.
    failed: Option<Error>,
}

async fn pass(
    cluster: &Cluster,
    configured: &Configured,
    reason: UngateReason,
    is_due: &impl Fn(&PodView) -> bool,
    on_page: &mut impl FnMut(usize),
) -> Result<Pass, Error> {
    let mut result = Pass::default();
    let list = |params| cluster.list_managed(params);
    let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
    while let Some(page) = pages.try_next().await? {
        on_page(page.len());
        let reading = Reading { configured, now: Timestamp::now(), listed: true };
        let pods = page.into_iter().map(|pod| pod_entry(pod, None, &reading));
        for pod in pods.filter(|pod| pod.view.gated && pod.view.occupies() && is_due(&pod.view)) {
            let decided = ungate(&pod.view, reason, pod.strength, &configured.settings);
            let Action::Ungate { patch, on_refusal, .. } = decided else { continue };
            match cluster.ungate_pod(&pod.namespace, &pod.view.name, &patch, on_refusal.as_ref()).await {
                Ok(Some(_)) => result.ungated += 1,
                Ok(None) => {}
                Err(error) if error.category() == Category::Conflict => result.conflict = Some(error),
                Err(error) => result.failed = Some(error),
            }
        }
    }
    Ok(result)
}
