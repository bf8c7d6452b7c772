//! Webhook latency, from the operator's histogram and from the API server's.

use perennial_harness::{Metrics, Requests};
use serde::Serialize;

/// Buckets of the operator's histogram in milliseconds.
const EDGES: [(&str, f64); 17] = [
    ("0.001", 1.0),
    ("0.002", 2.0),
    ("0.003", 3.0),
    ("0.004", 4.0),
    ("0.005", 5.0),
    ("0.006", 6.0),
    ("0.008", 8.0),
    ("0.01", 10.0),
    ("0.015", 15.0),
    ("0.02", 20.0),
    ("0.03", 30.0),
    ("0.05", 50.0),
    ("0.1", 100.0),
    ("0.25", 250.0),
    ("0.5", 500.0),
    ("1.0", 1_000.0),
    ("2.0", 2_000.0),
];

/// Latency percentiles of a webhook in milliseconds: upper bounds of the buckets.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub requests: f64,
    pub p50: f64,
    pub p99: f64,
    /// Mean latency at the API server, including TLS and the network.
    pub outside: f64,
}

impl Latency {
    pub(crate) fn between(webhook: &str, before: &(Metrics, Requests), after: &(Metrics, Requests)) -> Self {
        let of = |name: &str, labels: &[(&str, &str)]| after.0.sum(name, labels) - before.0.sum(name, labels);
        let requests = of("controller_runtime_webhook_latency_seconds_count", &[("webhook", webhook)]);
        let within =
            |edge| of("controller_runtime_webhook_latency_seconds_bucket", &[("webhook", webhook), ("le", edge)]);
        let quantile = |share: f64| {
            EDGES.iter().find(|(edge, _)| within(edge) >= share * requests).map_or(f64::INFINITY, |(_, ms)| *ms)
        };
        let outside = |what: &str| {
            let name = format!("apiserver_admission_webhook_admission_duration_seconds_{what}");
            let of = |requests: &Requests| requests.samples().sum(&name, &[("operation", "CREATE")]);
            of(&after.1) - of(&before.1)
        };
        let mean = outside("sum") / outside("count").max(1.0) * 1_000.0;
        Self { requests, p50: quantile(0.5), p99: quantile(0.99), outside: mean }
    }
}
