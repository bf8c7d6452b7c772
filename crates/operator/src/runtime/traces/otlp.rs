//! Spans to a collector, by OTLP over HTTP. Everything is configured by the variables that
//! OpenTelemetry has for it: `OTEL_EXPORTER_OTLP_*`, `OTEL_SERVICE_NAME`,
//! `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`.
//!
//! A collector that is slow or unreachable costs spans and nothing else: spans that do not fit into
//! the batch are dropped.

use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry::{Key, trace::TracerProvider as _};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::runtime::Handle;
use tracing::{Level, Metadata, Subscriber, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    filter::dynamic_filter_fn,
    layer::{Context, Layer},
    registry::LookupSpan,
};

use super::TARGET;

const SERVICE: &str = "perennial";
/// Deadline of a batch.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time to send the last spans at the end of the process.
const FLUSH_WITHIN: Duration = Duration::from_secs(2);
/// Longest response of a collector that is read.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;

/// Returns a provider that exports batches from its own thread.
pub(super) fn provider() -> Result<SdkTracerProvider, HttpError> {
    let exporter = SpanExporter::builder().with_http().with_http_client(CollectorClient::new()?).build()?;
    let found = Resource::builder().build();
    let name = found.get(&Key::from_static_str("service.name")).map(|name| name.to_string());
    let named = name.is_some_and(|name| !name.starts_with("unknown_service"));
    let resource = if named { found } else { Resource::builder().with_service_name(SERVICE).build() };
    Ok(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build())
}

/// Sends what is left, where that takes no longer than a moment.
pub(super) fn end(provider: &SdkTracerProvider) {
    if let Err(error) = provider.shutdown_with_timeout(FLUSH_WITHIN) {
        tracing::warn!(%error, "the last traces could not be sent");
    }
}

/// Exports our own spans and the events below them.
pub(super) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let filter = dynamic_filter_fn(|metadata, context: &Context<'_, S>| {
        is_ours(metadata) || is_below(metadata) && context.lookup_current().is_some()
    });
    let interest = |metadata: &Metadata<'_>| match (is_ours(metadata), is_below(metadata)) {
        (true, _) => Interest::always(),
        (false, true) => Interest::sometimes(),
        (false, false) => Interest::never(),
    };
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer(SERVICE))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(filter.with_max_level_hint(LevelFilter::DEBUG).with_callsite_filter(interest))
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.target() == TARGET
}

/// Requests to the API server, and our own log lines: nothing on their own.
fn is_below(metadata: &Metadata<'_>) -> bool {
    let from = |name: &str| metadata.target().starts_with(name);
    metadata.is_span() && from("kube_client")
        || metadata.is_event() && from("perennial") && *metadata.level() <= Level::INFO
}

/// The way to the collector. Requests are sent from a thread without a runtime, so it borrows ours.
#[derive(Debug, Clone)]
struct CollectorClient {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    runtime: Handle,
}

impl CollectorClient {
    fn new() -> Result<Self, HttpError> {
        let secure = match HttpsConnectorBuilder::new().with_provider_and_native_roots(ring::default_provider()) {
            Ok(secure) => secure,
            // The image has no certificates of its own, and a collector in the same cluster needs
            // none.
            Err(_) => HttpsConnectorBuilder::new().with_tls_config(
                ClientConfig::builder_with_provider(ring::default_provider().into())
                    .with_safe_default_protocol_versions()?
                    .with_root_certificates(RootCertStore::empty())
                    .with_no_client_auth(),
            ),
        };
        let connector = secure.https_or_http().enable_http1().build();
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector), runtime: Handle::current() })
    }
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let answer = async move {
            let (head, body) = client.request(request.map(Body::from)).await?.into_parts();
            let body = to_bytes(Body::new(body), MAX_RESPONSE_BYTES).await?;
            Ok(Response::from_parts(head, body))
        };
        self.runtime.spawn(async { tokio::time::timeout(DEADLINE, answer).await }).await??
    }
}
