//! Metrics of the admission server.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use crate::runtime::metrics::{Histograms, Metrics};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    webhook: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookCodeLabels {
    webhook: &'static str,
    code: u16,
}

/// Handles to the metrics of the admission server. Clones share them.
#[derive(Clone, Debug)]
pub struct AdmissionMetrics {
    requests: Family<WebhookCodeLabels, Counter>,
    latency: Histograms<WebhookLabels>,
    certificate_expiry: Gauge,
}

impl AdmissionMetrics {
    pub fn register(all: &Metrics) -> Self {
        Self {
            requests: all.register("controller_runtime_webhook_requests", "Admission requests", Family::default()),
            latency: all.register(
                "controller_runtime_webhook_latency_seconds",
                "Time of an admission request",
                Family::new_with_constructor(fine_histogram),
            ),
            certificate_expiry: all.register(
                "perennial_certificate_expiry_timestamp_seconds",
                "Expiry of the webhook certificate; 0 while none is served",
                Gauge::default(),
            ),
        }
    }

    /// Counts a request and its time.
    pub fn answered(&self, webhook: &'static str, code: u16, took: Duration) {
        self.requests.get_or_create(&WebhookCodeLabels { webhook, code }).inc();
        self.latency.get_or_create(&WebhookLabels { webhook }).observe(took.as_secs_f64());
    }

    /// Sets the expiry of the served certificate, in seconds since 1970.
    pub(super) fn set_certificate_expiry(&self, seconds: Option<i64>) {
        self.certificate_expiry.set(seconds.unwrap_or_default());
    }
}

/// A histogram from 1 ms to 2 s, fine at the low end: the API server waits for each request.
fn fine_histogram() -> Histogram {
    Histogram::new([
        0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_admission_is_in_the_text() {
        let all = Metrics::new();
        AdmissionMetrics::register(&all).answered("nodes", 200, Duration::from_millis(1));

        let text = all.encode().unwrap();

        for name in [
            "controller_runtime_webhook_requests_total{webhook=\"nodes\",code=\"200\"} 1",
            "controller_runtime_webhook_latency_seconds_count{webhook=\"nodes\"} 1",
            "perennial_certificate_expiry_timestamp_seconds 0",
        ] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing in\n{text}");
        }
    }
}
