//! The webhook paths and the parts that answer them.

use std::sync::Arc;

use perennial_core::config::Settings;

use super::Parts;
use crate::admission::{
    configuration::{MUTATE_NODES, MUTATE_PODS, VALIDATE_NODES},
    metrics::AdmissionMetrics,
    server::{Observation, Webhooks},
    tasks::limits,
};

/// Returns the handlers of all webhook paths, not yet bound to a port.
pub fn webhooks(settings: &Settings, parts: &Parts, metrics: AdmissionMetrics) -> Webhooks {
    let Parts { keeper, placer } = parts;
    let report = move |seen: &Observation| {
        metrics.answered(seen.path.trim_start_matches('/'), seen.outcome.code().as_u16(), seen.elapsed);
    };
    let (on_create, on_delete) = (Arc::clone(keeper), Arc::clone(keeper));
    let mut webhooks = Webhooks::new(limits(settings), Arc::new(report))
        .on(MUTATE_NODES, move |request| {
            let keeper = Arc::clone(&on_create);
            async move { keeper.admit_create(request).await }
        })
        .on(VALIDATE_NODES, move |request| {
            let keeper = Arc::clone(&on_delete);
            async move { keeper.admit_delete(request).await }
        });
    if let Some(placer) = placer.clone() {
        webhooks = webhooks.on(MUTATE_PODS, move |request| {
            let placer = Arc::clone(&placer);
            async move { placer.admit_pod(request).await }
        });
    }
    webhooks
}
