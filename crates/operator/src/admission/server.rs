//! The admission server: TLS, limits, deadlines, and a handler for each path.
//!
//! Owns everything between the socket and a handler. Fails open: when a handler is slow, fails or panics, when a review is
//! malformed or when there are too many requests, the response is *allowed, unchanged*, in time. A request that cannot be
//! answered at all is left to the failure policy, which is `Ignore`.

use super::certificates::{Served, provider};
use crate::runtime::{connection_limit::ConnectionLimit, traces};
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

/// Decides about the requests of one path.
pub type Handler = Arc<dyn Fn(AdmissionRequest) -> BoxFuture<'static, AdmissionResponse> + Send + Sync>;

/// Called after every request, for `controller_runtime_webhook_*`.
pub type Report = Arc<dyn Fn(&Observation) + Send + Sync>;

/// The result of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub path: &'static str,
    pub outcome: Outcome,
    pub elapsed: Duration,
}

/// How a request was answered. A bounded set, since it is recorded in spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Patched,
    Denied,
    /// Allowed because the handler missed the deadline.
    Late,
    /// Allowed because too many handlers were running.
    Overloaded,
    /// Allowed because the review could not be decoded.
    Malformed,
    /// Allowed because the handler panicked.
    Failed,
    /// Not answered: too large, cut short, or beyond the memory limit of all bodies.
    Refused,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Late => "late",
            Self::Overloaded => "crowded",
            Self::Malformed => "strange",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }

    /// Returns the HTTP status for metrics: 200 where the handler decided. A request that was only allowed because something
    /// went wrong counts as a failure, although the API server received an answer.
    pub fn code(self) -> StatusCode {
        match self {
            Self::Allowed | Self::Patched | Self::Denied => StatusCode::OK,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            Self::Overloaded | Self::Refused => StatusCode::SERVICE_UNAVAILABLE,
            Self::Malformed => StatusCode::BAD_REQUEST,
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
    /// Deadline of a response, below the timeout of the webhook configuration.
    pub deadline: Duration,
    /// Maximum number of running handlers, including those that missed their deadline.
    pub concurrency: usize,
    /// Maximum size of a body. The API server accepts objects of up to 3 MiB, and a review of a create or a delete has one.
    pub body: usize,
    /// Memory of all bodies together, apart from the first [`UNRESERVED`] bytes of each.
    pub bodies: usize,
    /// Maximum number of connections. Beyond it, the longest idle one is closed.
    pub connections: usize,
    pub handshake: Duration,
    pub headers: Duration,
    /// Idle timeout of a connection between requests: longer than the API server keeps its own (90 s), which sends
    /// a review on a connection that is being closed only once and then fails open.
    pub idle: Duration,
    /// Time for connections to end on a graceful stop.
    pub grace: Duration,
    /// Time for which requests are still accepted after the stop: endpoints are withdrawn with a delay.
    pub linger: Duration,
}

impl Limits {
    /// Returns limits with a deadline of three quarters of the webhook's timeout.
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

/// The server could not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("could not listen on {address} for admission")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("could not set up TLS for admission")]
    Tls(#[source] rustls::Error),
    #[error("the admission server on {address} failed")]
    Serve { address: SocketAddr, source: std::io::Error },
}

/// The admission server, not yet bound to a port.
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

    /// Adds the handler of a path.
    #[must_use]
    pub fn on<F, R>(mut self, path: &'static str, handler: F) -> Self
    where
        F: Fn(AdmissionRequest) -> R + Send + Sync + 'static,
        R: Future<Output = AdmissionResponse> + Send + 'static,
    {
        self.handlers.insert(path, Arc::new(move |request| Box::pin(handler(request))));
        self
    }

    /// Returns the routes, without TLS. `/healthz` is for checks of the port.
    pub fn router(&self) -> Router {
        self.router_until(&CancellationToken::new())
    }

    /// Returns the routes. After `stop` every response closes its HTTP/1.1 connection, so that the next review goes to
    /// another replica.
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

    /// Binds the port, to be served by [`Listening::run`]. A port in use is reported at once.
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

/// The admission server with its port bound.
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

    /// Serves until `stop`, then waits for requests in progress.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ServeError> {
        let (address, limits) = (self.address, self.webhooks.limits);
        let failed = |source| ServeError::Serve { address, source };
        let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(self.tls))
            .handshake_timeout(limits.handshake)
            .acceptor(ConnectionLimit::new(limits.connections));
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
        info!(%address, paths = ?self.webhooks.handlers.keys(), "admission server started");

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
        info!(%address, "admission server stopped");
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
    debug!(path = endpoint.path, outcome = outcome.name(), ?elapsed, "admission request answered");
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
                Some(uid) => (Outcome::Overloaded, respond(&uid, &AdmissionResponse::allowed())),
                None => refuse(StatusCode::BAD_REQUEST),
            };
        };
        let request = match review::read(&body) {
            Review::Request(request) => *request,
            Review::Malformed { uid } => return (Outcome::Malformed, respond(&uid, &AdmissionResponse::allowed())),
            Review::Unreadable => return refuse(StatusCode::BAD_REQUEST),
        };
        drop(body);

        let uid = request.uid.clone();
        let decision = (self.handler)(request);
        // In its own task, so that it finishes after the deadline and its panic is contained.
        let span = info_span!(target: traces::TARGET, "admission", path = self.path, outcome = field::Empty);
        let decided = async move {
            let _permit = permit;
            decision.await
        };
        let task = tokio::spawn(decided.instrument(span.clone()));
        let (outcome, response) = match tokio::time::timeout_at(deadline, task).await {
            Ok(Ok(response)) => (Outcome::of(&response), response),
            Ok(Err(error)) => {
                warn!(path = self.path, %error, "webhook handler panicked, request allowed");
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
