//! The admission server: TLS, limits, deadlines, and a handler for each path.
//!
//! Owns everything between the socket and a handler. A handler that is slow, fails or panics, a body that makes no sense, too
//! many requests at once: the answer is *allowed, unchanged*, in time. What cannot even be answered so is left to the failure
//! policy, which is `Ignore`.

use super::certificates::{Served, provider};
use crate::runtime::{connection_limit::Seats, traces};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use futures::future::BoxFuture;
use http::header::CONTENT_LENGTH;
use http::{HeaderValue, StatusCode, Version, header};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioTimer;
use perennial_core::admission_review::{self as review, AdmissionRequest, AdmissionResponse, Review};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, field, info, info_span, warn};

/// What decides about the requests of one path.
pub type Handler = Arc<dyn Fn(AdmissionRequest) -> BoxFuture<'static, AdmissionResponse> + Send + Sync>;

/// Told of every request: `controller_runtime_webhook_*`.
pub type Report = Arc<dyn Fn(&Observation) + Send + Sync>;

/// How one request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub path: &'static str,
    pub outcome: Outcome,
    pub elapsed: Duration,
}

/// A bounded set: it becomes a metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Patched,
    Denied,
    /// Allowed because the handler was not done in time.
    Late,
    /// Allowed because too many were under way.
    Crowded,
    /// Allowed because it made no sense.
    Strange,
    /// Allowed because the handler panicked.
    Failed,
    /// Not answerable: too large, broken off, or no room left for its body.
    Refused,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Late => "late",
            Self::Crowded => "crowded",
            Self::Strange => "strange",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }

    /// The HTTP status for metrics: 200 where the handler decided. A request that was only allowed because something
    /// went wrong counts as a failure, although the API server received an answer.
    pub fn code(self) -> StatusCode {
        match self {
            Self::Allowed | Self::Patched | Self::Denied => StatusCode::OK,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            Self::Crowded | Self::Refused => StatusCode::SERVICE_UNAVAILABLE,
            Self::Strange => StatusCode::BAD_REQUEST,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn of(response: &AdmissionResponse) -> Self {
        match response {
            AdmissionResponse { allowed: false, .. } => Self::Denied,
            AdmissionResponse { patch, .. } if patch.is_empty() => Self::Allowed,
            AdmissionResponse { .. } => Self::Patched,
        }
    }
}

/// Bytes of a body that need no reservation: nodes and pods are smaller, as a rule.
const UNRESERVED: usize = 64 * 1024;

/// Limits and deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// When an answer is out at the latest, below the timeout that the API server was told.
    pub deadline: Duration,
    /// How many handlers run at once; those that missed their deadline count until they end.
    pub concurrency: usize,
    /// The largest body. The API server accepts objects of up to 3 MiB, and a review of a create or a delete has one.
    pub body: usize,
    /// Memory of all bodies together, apart from the first [`UNRESERVED`] bytes of each.
    pub bodies: usize,
    /// How many may be connected at once; beyond that, whoever has been silent for longest has to go.
    pub connections: usize,
    pub handshake: Duration,
    pub headers: Duration,
    /// How long a connection may be idle between requests: longer than the API server keeps its own (90 s), which sends
    /// a review on a connection that is being closed only once and then fails open.
    pub idle: Duration,
    /// How long connections may take to end on a graceful stop.
    pub grace: Duration,
    /// How long requests are still accepted after the stop was asked for: endpoints take a while to be withdrawn.
    pub linger: Duration,
}

impl Limits {
    /// With the answer out at three quarters of the webhook's timeout.
    pub fn for_timeout(timeout: Duration) -> Self {
        Self { deadline: timeout * 3 / 4, ..Self::default() }
    }
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1024 * 1024;
        Self {
            deadline: Duration::from_millis(1500),
            concurrency: 256,
            body: 4 * MIB,
            bodies: 16 * MIB,
            connections: 512,
            handshake: Duration::from_secs(3),
            headers: Duration::from_secs(5),
            idle: Duration::from_mins(2),
            grace: Duration::from_secs(5),
            linger: Duration::ZERO,
        }
    }
}

/// The server did not start or broke off.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the webhook server could not listen on {address}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("the webhook server's TLS could not be set up")]
    Tls(#[source] rustls::Error),
    #[error("the webhook server on {address} broke off")]
    Serve { address: SocketAddr, source: std::io::Error },
}

/// The admission server, before it runs.
#[derive(Clone)]
pub struct Webhooks {
    limits: Limits,
    handlers: BTreeMap<&'static str, Handler>,
    report: Report,
}

impl std::fmt::Debug for Webhooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Webhooks")
            .field("limits", &self.limits)
            .field("paths", &self.handlers.keys())
            .finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Endpoint {
    path: &'static str,
    handler: Handler,
    limits: Limits,
    running: Arc<Semaphore>,
    /// In KiB.
    room: Arc<Semaphore>,
    report: Report,
    stop: CancellationToken,
}

impl Webhooks {
    pub fn new(limits: Limits, report: Report) -> Self {
        Self { limits, handlers: BTreeMap::new(), report }
    }

    /// Registers what decides about a path.
    #[must_use]
    pub fn on<F, R>(mut self, path: &'static str, handler: F) -> Self
    where
        F: Fn(AdmissionRequest) -> R + Send + Sync + 'static,
        R: Future<Output = AdmissionResponse> + Send + 'static,
    {
        self.handlers.insert(path, Arc::new(move |request| Box::pin(handler(request))));
        self
    }

    /// The routes, without TLS. `/healthz` answers whoever checks the port.
    pub fn router(&self) -> Router {
        self.router_until(&CancellationToken::new())
    }

    /// The same routes; after `stop` every response closes its HTTP/1.1 connection, so that the next review takes another
    /// replica's.
    fn router_until(&self, stop: &CancellationToken) -> Router {
        let running = Arc::new(Semaphore::new(self.limits.concurrency));
        let room = Arc::new(Semaphore::new(self.limits.bodies / 1024));
        let mut router = Router::new().route("/healthz", get(|| async { "ok" }));
        for (path, handler) in &self.handlers {
            let endpoint = Endpoint {
                path,
                handler: Arc::clone(handler),
                limits: self.limits,
                running: Arc::clone(&running),
                room: Arc::clone(&room),
                report: Arc::clone(&self.report),
                stop: stop.clone(),
            };
            router = router.route(path, post(answer).with_state(endpoint));
        }
        router
    }

    /// Listens; afterwards [`Listening::run`] serves. Split so that a taken port is known at once.
    pub fn listen(self, address: SocketAddr, served: Arc<Served>) -> Result<Listening, ServeError> {
        let failed = |source| ServeError::Listen { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(ServeError::Tls)?
            .with_no_client_auth()
            .with_cert_resolver(served);
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Listening { webhooks: self, listener, address, tls: Arc::new(tls) })
    }
}

/// The admission server with its port open.
#[derive(Debug)]
pub struct Listening {
    webhooks: Webhooks,
    listener: std::net::TcpListener,
    address: SocketAddr,
    tls: Arc<rustls::ServerConfig>,
}

impl Listening {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then lets requests under way end.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServeError> {
        let (address, limits) = (self.address, self.webhooks.limits);
        let failed = |source| ServeError::Serve { address, source };
        let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(self.tls))
            .handshake_timeout(limits.handshake)
            .acceptor(Seats::new(limits.connections));
        let handle = axum_server::Handle::new();
        let mut server =
            axum_server::from_tcp(self.listener).map_err(failed)?.acceptor(acceptor).handle(handle.clone());
        let builder = server.http_builder();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.idle);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(limits.headers)
            .max_header_list_size(16 * 1024)
            .max_concurrent_streams(250);
        info!(%address, paths = ?self.webhooks.handlers.keys(), "admission requests are served");

        let serving = server.serve(self.webhooks.router_until(&stop).into_make_service());
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            result = &mut serving => return result.map_err(failed),
            () = stop.cancelled() => {}
        }
        tokio::select! {
            result = &mut serving => return result.map_err(failed),
            () = tokio::time::sleep(limits.linger) => {}
        }
        handle.graceful_shutdown(Some(limits.grace));
        let result = serving.await.map_err(failed);
        info!(%address, "admission requests are no longer served");
        result
    }
}

async fn answer(State(endpoint): State<Endpoint>, request: Request) -> Response {
    let start = Instant::now();
    let persistent = request.version() == Version::HTTP_11;
    let (outcome, mut response) = endpoint.answer(request, start + endpoint.limits.deadline).await;
    if persistent && endpoint.stop.is_cancelled() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let elapsed = start.elapsed();
    debug!(path = endpoint.path, outcome = outcome.name(), ?elapsed, "an admission request was answered");
    (endpoint.report)(&Observation { path: endpoint.path, outcome, elapsed });
    response
}

impl Endpoint {
    /// Reads a body, with the memory that it takes. Memory is reserved as bytes arrive, so that a client that announces
    /// much and sends little takes nothing from others; what every request may take without asking is enough for most.
    async fn read_body(&self, request: Request) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), StatusCode> {
        let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > self.limits.body) {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let mut frames = request.into_body();
        let (mut body, mut memory) = (Vec::new(), None::<OwnedSemaphorePermit>);
        while let Some(frame) = frames.frame().await {
            let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
            if body.len() + data.len() > self.limits.body {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            let reserved = memory.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let needed = (body.len() + data.len()).saturating_sub(UNRESERVED).div_ceil(1024);
            let more = u32::try_from(needed.saturating_sub(reserved)).unwrap_or(u32::MAX);
            if more > 0 {
                let Ok(more) = Arc::clone(&self.room).acquire_many_owned(more).await else {
                    return Err(StatusCode::SERVICE_UNAVAILABLE);
                };
                match &mut memory {
                    Some(memory) => memory.merge(more),
                    None => memory = Some(more),
                }
            }
            body.extend_from_slice(&data);
        }
        Ok((body, memory))
    }

    async fn answer(&self, request: Request, deadline: Instant) -> (Outcome, Response) {
        let (body, _memory) = match tokio::time::timeout_at(deadline, self.read_body(request)).await {
            Ok(Ok(read)) => read,
            Ok(Err(status)) => return refuse(status),
            Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT),
        };
        let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() else {
            return match review::read_uid(&body) {
                Some(uid) => (Outcome::Crowded, respond(&uid, &AdmissionResponse::allowed())),
                None => refuse(StatusCode::BAD_REQUEST),
            };
        };
        let request = match review::read(&body) {
            Review::Request(request) => *request,
            Review::Strange { uid } => return (Outcome::Strange, respond(&uid, &AdmissionResponse::allowed())),
            Review::Unreadable => return refuse(StatusCode::BAD_REQUEST),
        };
        drop(body);

        let uid = request.uid.clone();
        let decision = (self.handler)(request);
        // A task of its own: it ends what it began also after the deadline, and its panic is not ours.
        let span = info_span!(target: traces::TARGET, "admission", path = self.path, outcome = field::Empty);
        let decided = async move {
            let _permit = permit;
            decision.await
        };
        let task = tokio::spawn(decided.instrument(span.clone()));
        let (outcome, response) = match tokio::time::timeout_at(deadline, task).await {
            Ok(Ok(response)) => (Outcome::of(&response), response),
            Ok(Err(error)) => {
                warn!(path = self.path, %error, "a webhook's handler failed; the request was allowed");
                (Outcome::Failed, AdmissionResponse::allowed())
            }
            Err(_) => (Outcome::Late, AdmissionResponse::allowed()),
        };
        span.record("outcome", field::debug(outcome));
        (outcome, respond(&uid, &response))
    }
}

fn respond(uid: &str, response: &AdmissionResponse) -> Response {
    let body = review::write(uid, response);
    ([(header::CONTENT_TYPE, "application/json")], Body::from(body)).into_response()
}

fn refuse(status: StatusCode) -> (Outcome, Response) {
    (Outcome::Refused, status.into_response())
}

#[cfg(test)]
mod tests;
