//! `/metrics`, `/livez` and `/readyz`, on one port; and how anything is served over plain HTTP.
//!
//! A slow client holds nothing up: it has a few seconds for its headers, bodies are not read, whoever is silent makes room for
//! others, and a stop waits for answers under way for a moment only.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum_server::Handle;
use hyper_util::rt::TokioTimer;
use tokio_util::sync::CancellationToken;

use super::{
    connection_limit::Seats,
    health::{Health, Verdict},
};
use crate::runtime::metrics::{CONTENT_TYPE, Metrics};

const HEADERS_WITHIN: Duration = Duration::from_secs(5);
const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 16 * 1024;
const MAX_CONNECTIONS: usize = 128;
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// A port that is taken, not yet served.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

/// Takes the port on all addresses, IPv6 and IPv4 where there is no IPv6; 0 takes any free one.
pub fn bind(port: u16) -> io::Result<Bound> {
    let listener =
        TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    listener.set_nonblocking(true)?;
    Ok(Bound { address: listener.local_addr()?, listener })
}

/// Takes the port for programs of this machine (of this pod) only; 0 takes any free one.
pub fn bind_loopback(port: u16) -> io::Result<Bound> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(Bound { address: listener.local_addr()?, listener })
}

impl Bound {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves metrics and probes until the token is cancelled.
    pub async fn serve(self, metrics: Metrics, health: Health, stop: CancellationToken) -> io::Result<()> {
        self.serve_routes(router(metrics, health), stop).await
    }

    /// Serves until the token is cancelled.
    pub async fn serve_routes(self, routes: Router, stop: CancellationToken) -> io::Result<()> {
        let mut server = axum_server::from_tcp(self.listener)?.acceptor(Seats::new(MAX_CONNECTIONS));
        server
            .http_builder()
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let handle = Handle::new();
        let watching = tokio::spawn({
            let handle = handle.clone();
            async move {
                stop.cancelled().await;
                handle.graceful_shutdown(Some(STOP_WITHIN));
            }
        });
        let result = server.handle(handle).serve(routes.into_make_service()).await;
        watching.abort();
        result
    }
}

/// The routes by themselves, for those who serve them elsewhere.
pub fn router(metrics: Metrics, health: Health) -> Router {
    Router::new()
        .route("/metrics", get(scrape).with_state(metrics))
        .route("/livez", get(async |State(health): State<Health>| health.liveness()))
        .route("/readyz", get(async |State(health): State<Health>| health.readiness()))
        .with_state(health)
}

async fn scrape(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

impl IntoResponse for Verdict {
    fn into_response(self) -> Response {
        let status = if self.ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        (status, self.body).into_response()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;

    use super::*;

    struct Running {
        port: u16,
        stop: CancellationToken,
        task: JoinHandle<io::Result<()>>,
    }

    fn start(metrics: Metrics, health: Health) -> Running {
        let bound = bind(0).unwrap();
        let (port, stop) = (bound.address().port(), CancellationToken::new());
        Running { port, task: tokio::spawn(bound.serve(metrics, health, stop.clone())), stop }
    }

    async fn connect(port: u16) -> TcpStream {
        TcpStream::connect(("127.0.0.1", port)).await.unwrap()
    }

    async fn answer(port: u16, head: &str) -> String {
        let mut stream = connect(port).await;
        stream.write_all(format!("{head}\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn probes_and_metrics_are_answered() {
        let health = Health::new();
        health.expect("nodes");
        let running = start(Metrics::new(), health.clone());

        let ready = answer(running.port, "GET /readyz HTTP/1.1").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("[-] nodes: not yet"), "{ready}");
        health.set("nodes", true);
        assert!(answer(running.port, "GET /readyz HTTP/1.1").await.starts_with("HTTP/1.1 200"));
        assert!(answer(running.port, "GET /livez HTTP/1.1").await.starts_with("HTTP/1.1 200"));
        let metrics = answer(running.port, "GET /metrics HTTP/1.1").await;
        assert!(metrics.contains("openmetrics-text") && metrics.contains("perennial_nodes{"), "{metrics}");
        assert!(answer(running.port, "GET /other HTTP/1.1").await.starts_with("HTTP/1.1 404"));
        assert!(answer(running.port, "POST /metrics HTTP/1.1").await.starts_with("HTTP/1.1 405"));
    }

    #[tokio::test]
    async fn oversized_headers_are_refused() {
        let running = start(Metrics::new(), Health::new());
        let head = format!("GET /livez HTTP/1.1\r\nx-long: {}", "a".repeat(MAX_HEADER_BYTES));
        assert!(answer(running.port, &head).await.starts_with("HTTP/1.1 431"));
    }

    #[tokio::test]
    async fn a_stop_ends_the_server_and_idle_connections() {
        let running = start(Metrics::new(), Health::new());
        let mut idle = connect(running.port).await;
        idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut some = [0; 16];
        idle.read_exact(&mut some).await.unwrap();

        running.stop.cancel();

        tokio::time::timeout(Duration::from_secs(4), running.task).await.unwrap().unwrap().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", running.port)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_finishes_its_headers_is_let_go() {
        let running = start(Metrics::new(), Health::new());
        let mut slow = connect(running.port).await;
        slow.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.unwrap();

        let mut text = Vec::new();
        let ended = tokio::time::timeout(Duration::from_mins(1), slow.read_to_end(&mut text)).await;

        assert!(ended.is_ok());
    }

    #[test]
    fn a_port_that_is_taken_is_an_error() {
        let first = bind(0).unwrap();
        assert!(bind(first.address().port()).is_err());
    }
}
