//! The admission server: TLS, limits, deadlines, and a handler for each path.
//!
//! Owns everything between the socket and a handler. Fails open: when a handler is slow, fails or
//! panics, when a review is malformed or when there are too many requests, the response is
//! *allowed, unchanged*, in time. A request that cannot be answered at all is left to the failure
//! policy, which is `Ignore`.

mod acceptor;
mod endpoint;
mod outcome;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    routing::{get, post},
};
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use futures::future::BoxFuture;
use hyper_util::rt::TokioTimer;
use perennial_core::admission_review::{AdmissionRequest, AdmissionResponse};
use rustls::{RootCertStore, server::WebPkiClientVerifier};
use tokio_util::sync::CancellationToken;
use tracing::info;

pub use self::outcome::{Observation, Outcome};
use self::{
    acceptor::{Acceptor, VerifyingAcceptor},
    endpoint::{Endpoint, answer},
};
use super::{
    certificates::{Served, provider},
    fair_share::FairShares,
    limits::{CHUNK, CONNECTION_WINDOW, HEADER_COUNT, HEADERS, HTTP2_HEADERS, Limits, STREAM_WINDOW, STREAMS},
    memory::Memory,
};
use crate::runtime::{connection_limit::ConnectionLimit, http};

/// Decides about the requests of one path.
pub type Handler = Arc<dyn Fn(AdmissionRequest) -> BoxFuture<'static, AdmissionResponse> + Send + Sync>;

/// Called after every request, for `controller_runtime_webhook_*`.
pub type Report = Arc<dyn Fn(&Observation) + Send + Sync>;

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

#[cfg(test)]
mod tests;
