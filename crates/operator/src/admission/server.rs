//! The admission server: TLS, limits, deadlines, and a handler for each path.
//!
//! Owns everything between the socket and a handler. Fails open: when a handler is slow, fails or
//! panics, when a review is malformed or when there are too many requests, the response is
//! *allowed, unchanged*, in time. A request that cannot be answered at all is left to the failure
//! policy, which is `Ignore`.

use super::certificates::{Served, provider};
use super::fair_share::{Client, FairShares, InProgress};
use super::limits::{
    CHUNK, CONNECTION_WINDOW, HEADER_COUNT, HEADERS, HTTP2_HEADERS, Limits, STREAM_WINDOW, STREAMS, UNRESERVED,
};
use super::memory::{ConnectionMemory, Memory, Reservation};
use super::write_timeout::WriteTimeout;
use crate::runtime::{
    connection_limit::{Active, ConnectionLimit, ConnectionUse, LimitedStream},
    http, traces,
};
use ::http::header::CONTENT_LENGTH;
use ::http::{HeaderValue, StatusCode, Version, header};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::middleware::AddExtension;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum_server::accept::Accept;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use futures::{FutureExt as _, future::BoxFuture, stream};
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioTimer;
use perennial_core::admission_review::{self as review, AdmissionRequest, AdmissionResponse, FailOpen, Review};
use rustls::{RootCertStore, server::WebPkiClientVerifier};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Ready;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::Layer as _;
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
    /// Allowed because the deadline was missed, by the handler or by what it waited for.
    Late,
    /// Allowed because the client's share of running handlers or the memory was used up.
    Overloaded,
    /// Allowed because the review could not be decoded.
    Malformed,
    /// Allowed because the handler failed or panicked.
    Failed,
    /// Not answered: too large, cut short, or beyond the limit of requests in progress.
    Refused,
    /// Not answered: the client has no certificate of `webhook.clientCA`.
    Unverified,
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
            Self::Unverified => "unverified",
        }
    }

    /// Returns the HTTP status for metrics: 200 where the handler decided. A request that was only
    /// allowed because something went wrong counts as a failure, although the API server received
    /// an answer.
    pub fn code(self) -> StatusCode {
        match self {
            Self::Allowed | Self::Patched | Self::Denied => StatusCode::OK,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            Self::Overloaded | Self::Refused => StatusCode::SERVICE_UNAVAILABLE,
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Unverified => StatusCode::UNAUTHORIZED,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    fn of(response: &AdmissionResponse) -> Self {
        match response {
            AdmissionResponse { fail_open: Some(FailOpen::Deadline), .. } => Self::Late,
            AdmissionResponse { fail_open: Some(FailOpen::Error), .. } => Self::Failed,
            AdmissionResponse { allowed: false, .. } => Self::Denied,
            AdmissionResponse { patch, .. } if patch.is_empty() => Self::Allowed,
            AdmissionResponse { .. } => Self::Patched,
        }
    }
}

/// The server could not start, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("could not listen on {address} for admission; choose another port with --set webhook.port=PORT")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("could not set up TLS for admission")]
    Tls(#[source] rustls::Error),
    #[error("cannot verify clients with the certificates of webhook.clientCA")]
    ClientAuthority(#[source] rustls::server::VerifierBuilderError),
    #[error("the admission server on {address} failed")]
    Serve { address: SocketAddr, source: std::io::Error },
}

/// The admission server, not yet bound to a port.
#[derive(Clone)]
pub struct Webhooks {
    limits: Limits,
    handlers: BTreeMap<&'static str, Handler>,
    report: Report,
    client_authority: Option<Arc<RootCertStore>>,
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
    shares: FairShares,
    memory: Memory,
    /// Whether only clients with a certificate are answered.
    verified_only: bool,
    report: Report,
    stop: CancellationToken,
}

impl Webhooks {
    pub fn new(limits: Limits, report: Report) -> Self {
        Self { limits, handlers: BTreeMap::new(), report, client_authority: None }
    }

    /// Answers only clients that show a certificate of these authorities.
    #[must_use]
    pub fn verify_clients(mut self, authority: RootCertStore) -> Self {
        self.client_authority = Some(Arc::new(authority));
        self
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
        self.router_until(&CancellationToken::new(), &Memory::new(self.limits.bodies), &self.shares())
    }

    fn shares(&self) -> FairShares {
        FairShares::new(self.limits.concurrency, self.limits.requests)
    }

    /// Returns the routes. After `stop` every response closes its HTTP/1.1 connection, so that the
    /// next review goes to another replica.
    fn router_until(&self, stop: &CancellationToken, memory: &Memory, shares: &FairShares) -> Router {
        let mut router = Router::new().route("/healthz", get(|| async { "ok" }));
        for (path, handler) in &self.handlers {
            let endpoint = Endpoint {
                path,
                handler: Arc::clone(handler),
                limits: self.limits,
                shares: shares.clone(),
                memory: memory.clone(),
                verified_only: self.client_authority.is_some(),
                report: Arc::clone(&self.report),
                stop: stop.clone(),
            };
            router = router.route(path, post(answer).with_state(endpoint));
        }
        router
    }

    /// Binds this address, to be served by [`Listening::run`]. A port in use is reported at once.
    pub fn listen(self, address: SocketAddr, served: Arc<Served>) -> Result<Listening, ServeError> {
        self.listen_on(Some(address.ip()), address.port(), served)
    }

    /// Binds a port on this address, or on all, to be served by [`Listening::run`]. A port in use
    /// is reported at once.
    pub fn listen_on(self, address: Option<IpAddr>, port: u16, served: Arc<Served>) -> Result<Listening, ServeError> {
        let asked = SocketAddr::new(address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
        let failed = |source| ServeError::Listen { address: asked, source };
        let listener = http::listen(address, port).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // A client without a certificate can still connect, for checks of the port.
        let verifier = match &self.client_authority {
            Some(authority) => WebPkiClientVerifier::builder_with_provider(Arc::clone(authority), Arc::new(provider()))
                .allow_unauthenticated()
                .build()
                .map_err(ServeError::ClientAuthority)?,
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(ServeError::Tls)?
            .with_client_cert_verifier(verifier)
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
        let memory = Memory::new(limits.bodies);
        let shares = self.webhooks.shares();
        let connections = Acceptor {
            limit: ConnectionLimit::by_requests(limits.connections),
            memory: memory.clone(),
            shares: shares.clone(),
            write: limits.write,
        };
        let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(self.tls))
            .handshake_timeout(limits.handshake)
            .acceptor(connections);
        let acceptor = VerifyingAcceptor(acceptor);
        let handle = axum_server::Handle::new();
        let mut server =
            axum_server::from_tcp(self.listener).map_err(failed)?.acceptor(acceptor).handle(handle.clone());
        let builder = server.http_builder();
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .max_headers(HEADER_COUNT)
            .max_buf_size(HEADERS.into());
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(limits.headers)
            .max_header_list_size(HTTP2_HEADERS.into())
            .max_send_buf_size(CHUNK)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS);
        info!(%address, paths = ?self.webhooks.handlers.keys(), "admission server started");

        let serving = server.serve(self.webhooks.router_until(&stop, &memory, &shares).into_make_service());
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

/// Limits connections, and gives each its memory and its share.
#[derive(Clone, Debug)]
struct Acceptor {
    limit: ConnectionLimit,
    memory: Memory,
    shares: FairShares,
    write: Duration,
}

type ConnectionService<S> = AddExtension<AddExtension<AddExtension<S, ConnectionUse>, ConnectionMemory>, Client>;

impl<S> Accept<TcpStream, S> for Acceptor {
    type Stream = Accepted;
    type Service = ConnectionService<S>;
    type Future = Ready<io::Result<(Accepted, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let client = self.shares.client(stream.peer_addr().ok().map(|peer| peer.ip()));
        let accepted = self.limit.accept(stream, service).into_inner().map(|(stream, service)| {
            let service = Extension(self.memory.connection()).layer(service);
            let service = Extension(client.clone()).layer(service);
            let used = stream.usage().clone();
            (Accepted { stream: WriteTimeout::new(stream, self.write), used, client }, service)
        });
        std::future::ready(accepted)
    }
}

/// An accepted connection, before TLS.
#[derive(Debug)]
struct Accepted {
    stream: WriteTimeout<LimitedStream>,
    used: ConnectionUse,
    client: Client,
}

impl AsyncRead for Accepted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Marks connections whose client has shown a certificate, which TLS has verified.
#[derive(Clone, Debug)]
struct VerifyingAcceptor(RustlsAcceptor<Acceptor>);

impl<S: Send + 'static> Accept<TcpStream, S> for VerifyingAcceptor {
    type Stream = <RustlsAcceptor<Acceptor> as Accept<TcpStream, S>>::Stream;
    type Service = ConnectionService<S>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let accepted = self.0.accept(stream, service);
        async move {
            let (stream, service) = accepted.await?;
            let (accepted, tls) = stream.get_ref();
            if tls.peer_certificates().is_some_and(|certificates| !certificates.is_empty()) {
                accepted.client.verify();
                accepted.used.prefer();
            }
            Ok((stream, service))
        }
        .boxed()
    }
}

async fn answer(State(endpoint): State<Endpoint>, request: Request) -> Response {
    let start = Instant::now();
    let persistent = request.version() == Version::HTTP_11;
    let connection = request.extensions().get::<ConnectionUse>().cloned();
    let client = request.extensions().get::<Client>().cloned().unwrap_or_else(|| endpoint.shares.client(None));
    let (outcome, reply) = if endpoint.verified_only && !client.is_verified() {
        refuse_as(Outcome::Unverified, StatusCode::UNAUTHORIZED)
    } else if let Some(request_in_progress) = client.begin() {
        endpoint.answer(request, start, request_in_progress).await
    } else {
        refuse(StatusCode::SERVICE_UNAVAILABLE)
    };
    let mut response = reply.into_response();
    if let Some(connection) = connection.filter(|_| !matches!(outcome, Outcome::Refused | Outcome::Unverified)) {
        connection.record();
    }
    if persistent && endpoint.stop.is_cancelled() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let elapsed = start.elapsed();
    debug!(path = endpoint.path, outcome = outcome.name(), ?elapsed, "admission request answered");
    (endpoint.report)(&Observation { path: endpoint.path, outcome, elapsed });
    response
}

impl Endpoint {
    /// Reads a body, within the memory of its connection and of the server.
    async fn read_body(&self, request: Request, memory: &mut Reservation) -> Result<Vec<u8>, StatusCode> {
        let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > self.limits.body) {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let mut frames = request.into_body();
        let mut body = Vec::new();
        while let Some(frame) = frames.frame().await {
            let Ok(data) = frame.map_err(|_| StatusCode::BAD_REQUEST)?.into_data() else { continue };
            let length = body.len() + data.len();
            if length > self.limits.body {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            if length > body.capacity() {
                // Never more than twice the bytes that arrived.
                let mut capacity = (2 * length).min(announced.unwrap_or(self.limits.body).max(length));
                if !memory.try_grow_to(capacity) {
                    capacity = length;
                    memory.grow_to(capacity).await;
                }
                body.reserve_exact(capacity - body.len());
            }
            body.extend_from_slice(&data);
        }
        Ok(body)
    }

    async fn answer(&self, request: Request, start: Instant, in_progress: InProgress) -> (Outcome, Reply) {
        let deadline = start + self.limits.deadline;
        let connection = request.extensions().get::<ConnectionMemory>().cloned();
        let used = request.extensions().get::<ConnectionUse>().cloned();
        let mut memory = connection.unwrap_or_else(|| self.memory.connection()).reserve();
        // The API server sends a body at once. A client that does not must not hold memory until
        // the deadline, since reviews that wait for it have the same one.
        let read = self.read_body(request, &mut memory);
        let body = match tokio::time::timeout_at(start + self.limits.deadline / 2, read).await {
            Ok(Ok(read)) => read,
            Ok(Err(status)) => return refuse(status),
            Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT),
        };
        // The connection of a complete review is closed last, until its response is sent.
        let mut held = Held { in_progress, memory: None, _active: used.as_ref().map(ConnectionUse::activate) };
        let Ok(Some(permit)) = tokio::time::timeout_at(deadline, held.in_progress.run()).await else {
            let uid = review::read_uid(&body);
            return uid.map_or_else(|| refuse(StatusCode::BAD_REQUEST), |uid| overloaded(&uid, held));
        };
        let request = match review::read(&body) {
            Review::Request(request) => *request,
            Review::Malformed { uid } => {
                let bytes = review::write(&uid, &AdmissionResponse::allowed());
                return (Outcome::Malformed, Reply::review(bytes, held));
            }
            Review::Unreadable => return refuse(StatusCode::BAD_REQUEST),
        };
        drop(body);
        let footprint = request.footprint();
        if footprint > UNRESERVED && !memory.try_grow_to(footprint) {
            return overloaded(&request.uid, held);
        }

        let uid = request.uid.clone();
        let decision = (self.handler)(request);
        // In its own task, so that it finishes after the deadline and its panic is contained.
        let span = info_span!(target: traces::TARGET, "admission", path = self.path, outcome = field::Empty);
        let decided = async move {
            let _permit = permit;
            (decision.await, memory)
        };
        let task = tokio::spawn(decided.instrument(span.clone()));
        let (outcome, response, memory) = match tokio::time::timeout_at(deadline, task).await {
            Ok(Ok((response, memory))) => (Outcome::of(&response), response, Some(memory)),
            Ok(Err(error)) => {
                warn!(path = self.path, %error, "webhook handler panicked, request allowed");
                (Outcome::Failed, AdmissionResponse::allowed(), None)
            }
            Err(_) => (Outcome::Late, AdmissionResponse::allowed(), None),
        };
        span.record("outcome", field::debug(outcome));
        let bytes = review::write(&uid, &response);
        if let Some(mut memory) = memory {
            if tokio::time::timeout_at(deadline, memory.grow_to(bytes.len())).await.is_err() {
                return overloaded(&uid, held);
            }
            held.memory = Some(memory);
        }
        (outcome, Reply::review(bytes, held))
    }
}

/// The limits that a request counts towards until its response is sent, up to a part that is small.
struct Held {
    in_progress: InProgress,
    memory: Option<Reservation>,
    _active: Option<Active>,
}

/// A response before it is sent.
struct Reply {
    status: StatusCode,
    body: Bytes,
    held: Option<Held>,
}

impl Reply {
    /// Returns the response to a review, which holds its memory until it is sent.
    fn review(body: Vec<u8>, held: Held) -> Self {
        Self { status: StatusCode::OK, body: body.into(), held: Some(held) }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let Self { status, body, held } = self;
        let Some(held) = held else { return status.into_response() };
        let length = HeaderValue::from(body.len());
        let next = |(mut rest, held): (Bytes, _)| {
            let part = rest.split_to(rest.len().min(CHUNK));
            std::future::ready((!part.is_empty()).then(|| (Ok::<_, Infallible>(part), (rest, held))))
        };
        let body = Body::from_stream(stream::unfold((body, held), next));
        let headers =
            [(header::CONTENT_TYPE, HeaderValue::from_static("application/json")), (header::CONTENT_LENGTH, length)];
        (status, headers, body).into_response()
    }
}

fn overloaded(uid: &str, held: Held) -> (Outcome, Reply) {
    let bytes = review::write(uid, &AdmissionResponse::allowed());
    (Outcome::Overloaded, Reply::review(bytes, held))
}

fn refuse(status: StatusCode) -> (Outcome, Reply) {
    refuse_as(Outcome::Refused, status)
}

fn refuse_as(outcome: Outcome, status: StatusCode) -> (Outcome, Reply) {
    (outcome, Reply { status, body: Bytes::new(), held: None })
}

#[cfg(test)]
mod tests;
