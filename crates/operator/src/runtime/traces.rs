//! Spans: what was done, for how long, and which requests it took. They are no part of the log. With the feature `otlp` they are
//! sent to a collector, where the environment names one; without it they cost nothing.
//!
//! `keeper` is one look at a node, `placement` one at a workload, `admission` one review. Requests to the API server are below
//! them, as kube tells of them; so are our own log lines.

#[cfg(feature = "otlp")]
mod otlp;

use tracing_subscriber::{layer::Layer, registry::LookupSpan};

/// The target of all our spans: logs leave it out, traces take it in.
pub const TARGET: &str = "perennial::span";
/// Either of them names the collector.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

/// Spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("traces cannot be sent to the collector that the environment names (OTEL_EXPORTER_OTLP_ENDPOINT)")]
pub struct Error(#[source] Box<dyn std::error::Error + Send + Sync>);

/// What sends spans, where something does.
#[derive(Debug, Default)]
#[must_use = "ended, it sends what it still has"]
pub struct Sender {
    #[cfg(feature = "otlp")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

impl Sender {
    /// Sends to the collector that the environment names. Within a runtime, which does the sending.
    #[cfg(feature = "otlp")]
    pub fn from_environment() -> Result<Self, Error> {
        let provider = if is_asked_for() { Some(otlp::provider().map_err(Error)?) } else { None };
        Ok(Self { provider })
    }

    #[cfg(not(feature = "otlp"))]
    pub fn from_environment() -> Result<Self, Error> {
        if is_asked_for() {
            return Err(Error("this program was built without the feature otlp".into()));
        }
        Ok(Self::default())
    }

    /// What puts spans into it.
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

    /// Sends what is left, for a short while. Outside of the runtime, which must still be there.
    pub fn end(self) {
        #[cfg(feature = "otlp")]
        if let Some(provider) = self.provider {
            otlp::end(&provider);
        }
    }
}

fn is_asked_for() -> bool {
    ENDPOINTS.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}
