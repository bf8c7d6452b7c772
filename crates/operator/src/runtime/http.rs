//! Plain HTTP servers.
//!
//! A slow client blocks nothing: it has a few seconds for its headers, bodies are not read, idle
//! connections are closed when others need room, and a stop waits for responses under way for a
//! moment only.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use hyper_util::rt::TokioTimer;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::{connection_limit::ConnectionLimit, tasks::Task};

const HEADERS_WITHIN: Duration = Duration::from_secs(5);
const MAX_HEADERS: usize = 32;
const MAX_HEADER_BYTES: usize = 16 * 1024;
const MAX_CONNECTIONS: usize = 128;
const STOP_WITHIN: Duration = Duration::from_secs(2);

/// A port that is bound and not yet served.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

/// Binds a port on this address, or on all: of IPv4 where there is no IPv6. Port 0 binds any free
/// one.
pub fn bind(address: Option<IpAddr>, port: u16) -> io::Result<Bound> {
    let listener = listen(address, port)?;
    Ok(Bound { address: listener.local_addr()?, listener })
}

/// Returns a listener on this address, or on all: of IPv4 where there is no IPv6.
pub fn listen(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    let listener = match address {
        Some(address) => TcpListener::bind((address, port))?,
        None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Binds a port on loopback only. Port 0 binds any free one.
pub fn bind_loopback(port: u16) -> io::Result<Bound> {
    bind(Some(Ipv4Addr::LOCALHOST.into()), port)
}

impl Bound {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the token is cancelled.
    pub async fn serve(self, routes: Router, stop: CancellationToken) -> io::Result<()> {
        let mut server = axum_server::from_tcp(self.listener)?.acceptor(ConnectionLimit::new(MAX_CONNECTIONS));
        server
            .http_builder()
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEADER_BYTES);
        let handle = Handle::new();
        let mut serving = std::pin::pin!(server.handle(handle.clone()).serve(routes.into_make_service()));
        tokio::select! {
            result = &mut serving => return result,
            () = stop.cancelled() => handle.graceful_shutdown(Some(STOP_WITHIN)),
        }
        serving.await
    }

    /// Returns the task that serves these routes until the token is cancelled.
    pub fn task(self, name: &'static str, routes: Router, stop: &CancellationToken) -> Task {
        let stop = stop.clone();
        Task::new(name, async move {
            if let Err(error) = self.serve(routes, stop).await {
                error!(server = name, %error, "the server failed");
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;

    use super::*;

    struct TestServer {
        port: u16,
        stop: CancellationToken,
        task: JoinHandle<io::Result<()>>,
    }

    fn start() -> TestServer {
        let routes = Router::new().route("/livez", get(async || "ok"));
        let bound = bind(None, 0).unwrap();
        let (port, stop) = (bound.address().port(), CancellationToken::new());
        TestServer { port, task: tokio::spawn(bound.serve(routes, stop.clone())), stop }
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
    async fn oversized_headers_are_refused() {
        let running = start();
        let head = format!("GET /livez HTTP/1.1\r\nx-long: {}", "a".repeat(MAX_HEADER_BYTES));
        assert!(answer(running.port, &head).await.starts_with("HTTP/1.1 431"));
    }

    #[tokio::test]
    async fn a_stop_ends_the_server_and_idle_connections() {
        let running = start();
        let mut idle = connect(running.port).await;
        idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut some = [0; 16];
        idle.read_exact(&mut some).await.unwrap();

        running.stop.cancel();

        tokio::time::timeout(Duration::from_secs(4), running.task).await.unwrap().unwrap().unwrap();
        assert!(TcpStream::connect(("127.0.0.1", running.port)).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_finishes_its_headers_is_disconnected() {
        let running = start();
        let mut slow = connect(running.port).await;
        slow.write_all(b"GET /livez HTTP/1.1\r\nhost:").await.unwrap();

        let mut text = Vec::new();
        let ended = tokio::time::timeout(Duration::from_mins(1), slow.read_to_end(&mut text)).await;

        assert!(ended.is_ok());
    }

    #[test]
    fn a_port_that_is_taken_is_an_error() {
        let first = bind(None, 0).unwrap();
        assert!(bind(None, first.address().port()).is_err());
    }
}
