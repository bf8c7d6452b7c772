//! Release of pods outside of decisions: pods that are gated for too long, and all gated pods when
//! placement is switched off or Perennial is uninstalled. In the latter case pods that only their
//! class keeps from being scheduled are deleted: their replacements have none.
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
    decision::{Action, PodRef},
    ungate::{UngateReason, ungate},
    workload::PodView,
};

use super::{
    apply::{Applier, PlacementClient, PlacementError, in_parallel},
    cache::{PodEntry, Reading, SharedCache, pod_entry},
    settings::Configured,
};
use crate::runtime::{
    error_category::Category,
    pages::{PAGE, pages},
    reporter::CategorizedError as _,
};

/// Maximum number of passes while pods conflict.
const MAX_PASSES: u32 = 5;
/// Pause between passes.
const PAUSE: Duration = Duration::from_millis(200);

/// Ungates the pods that have been gated for too long. Returns the pods that could not be ungated.
/// While that is refused, no more pods of their workloads are gated.
pub(super) async fn ungate_overdue(
    cache: &SharedCache,
    applier: &Applier,
    is_attended: impl Fn(&str) -> bool,
) -> Vec<(String, PlacementError)> {
    let overdue = cache.overdue(is_attended);
    let ungating = overdue.iter().map(|pod| applier.ungate(&pod.namespace, &pod.pod, pod.reason, pod.strength).boxed());
    let answers = in_parallel(ungating.collect()).await;
    let failed = overdue.iter().zip(answers).filter_map(|(pod, answer)| {
        let error = answer.err()?;
        if let Some(key) = pod.workload.as_ref().filter(|_| error.failure().is_refusal()) {
            cache.mark_refused(key);
        }
        Some((pod.pod.name.clone(), error))
    });
    failed.collect()
}

/// Ungates every gated pod that is due and returns their number. If no replica places any more, also
/// deletes the pods that wait for a node of the class that they were assigned. `on_page` is called
/// with the number of pods of each page.
pub async fn ungate_all(
    cluster: &PlacementClient,
    configured: &Configured,
    reason: UngateReason,
    is_due: impl Fn(&PodView) -> bool,
    mut on_page: impl FnMut(usize),
) -> Result<usize, PlacementError> {
    let mut configured = configured.clone();
    // Without the labels of the platform, an on-demand pod might never be scheduled.
    let reason = if cluster.detect_schemes(&mut configured).await.is_ok() { reason } else { UngateReason::Refused };
    let configured = &configured;
    let mut released = 0;
    for _ in 1..MAX_PASSES {
        let pass = pass(cluster, configured, reason, &is_due, &mut on_page).await?;
        released += pass.released;
        if pass.conflict.is_none() {
            return pass.failed.map_or(Ok(released), Err);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let last = pass(cluster, configured, reason, &is_due, &mut on_page).await?;
    last.failed.or(last.conflict).map_or(Ok(released + last.released), Err)
}

/// Returns whether a pod without a node was assigned a class by Perennial and the scheduler finds
/// no node for it.
fn waits_in_our_class(pod: &PodEntry) -> bool {
    let (view, class) = (&pod.view, pod.view.class);
    let ours = class.is_some() && view.choice.class() == class && pod.labelled && !view.owner.is_empty();
    ours && !view.gated && pod.node.is_none() && view.unschedulable.is_some()
}

/// Result of one pass over all pods.
#[derive(Default)]
struct Pass {
    released: usize,
    /// A pod changed before it could be ungated.
    conflict: Option<PlacementError>,
    /// A pod could not be ungated.
    failed: Option<PlacementError>,
}

async fn pass(
    cluster: &PlacementClient,
    configured: &Configured,
    reason: UngateReason,
    is_due: &impl Fn(&PodView) -> bool,
    on_page: &mut impl FnMut(usize),
) -> Result<Pass, PlacementError> {
    let mut result = Pass::default();
    let list = |params| cluster.list_managed(params);
    let mut pages = std::pin::pin!(pages(ListParams::default().limit(PAGE), list));
    while let Some(page) = pages.try_next().await? {
        on_page(page.len());
        let reading = Reading { configured, now: Timestamp::now(), listed: true };
        let pods = page.into_iter().map(|pod| pod_entry(pod, None, &reading));
        for pod in pods.filter(|pod| pod.view.occupies() && is_due(&pod.view)) {
            if reason.is_final() && waits_in_our_class(&pod) {
                match cluster.delete(&pod.namespace, &PodRef::from(&pod.view)).await {
                    Ok(deleted) => result.released += usize::from(deleted),
                    Err(error) => result.failed = Some(error),
                }
            }
            if !pod.view.gated {
                continue;
            }
            let decided = ungate(&pod.view, reason, pod.strength, &configured.settings);
            let Action::Ungate { patch, on_refusal, .. } = decided else { continue };
            match cluster.ungate_pod(&pod.namespace, &pod.view.name, &patch, on_refusal.as_ref()).await {
                Ok(Some(_)) => result.released += 1,
                Ok(None) => {}
                Err(error) if error.category() == Category::Conflict => result.conflict = Some(error),
                Err(error) => result.failed = Some(error),
            }
        }
    }
    Ok(result)
}
