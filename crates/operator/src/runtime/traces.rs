//! Spans of reconciliations and admission reviews, which are not part of the log. With the feature
//! `otlp` they are sent to the collector that the environment names; without it they cost nothing.
//!
//! Each controller has one span per reconciliation, `admission` one per review. Requests to the API
//! server are their children, as kube traces them; log lines are their events.

#[cfg(feature = "otlp")]
mod otlp;

use tracing_subscriber::{layer::Layer, registry::LookupSpan};

/// Target of all spans, which logs leave out and traces include.
pub const TARGET: &str = "perennial::span";
/// Environment variables that name the collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to the collector that the environment names (OTEL_EXPORTER_OTLP_ENDPOINT)")]
pub struct TraceError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// The exporter of spans, where one is configured.
#[derive(Debug, Default)]
#[must_use = "`end` sends the spans that are left"]
pub struct Sender {
    #[cfg(feature = "otlp")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

impl Sender {
    /// Exports to the collector that the environment names. Must be called within a runtime, which
    /// does the sending.
    #[cfg(feature = "otlp")]
    pub fn from_environment() -> Result<Self, TraceError> {
        let provider = if is_configured() { Some(otlp::provider().map_err(TraceError)?) } else { None };
        Ok(Self { provider })
    }

    #[cfg(not(feature = "otlp"))]
    pub fn from_environment() -> Result<Self, TraceError> {
        if is_configured() {
            return Err(TraceError("this program was built without the feature otlp".into()));
        }
        Ok(Self::default())
    }

    /// Returns the layer that passes spans to the exporter.
    #[cfg(feature = "otlp")]
    pub(super) fn layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        self.provider.as_ref().map(otlp::layer)
    }

    #[cfg(not(feature = "otlp"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub(super) fn layer<S>(&self) -> Option<impl Layer<S> + use<S>>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        None::<tracing_subscriber::layer::Identity>
    }

    /// Sends the spans that are left, with a short deadline. Must be called outside of the runtime,
    /// before it ends.
    pub fn end(self) {
        #[cfg(feature = "otlp")]
        if let Some(provider) = self.provider {
            otlp::end(&provider);
        }
    }
}

fn is_configured() -> bool {
    ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
