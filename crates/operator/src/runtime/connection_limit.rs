//! A limit on open connections. At the limit, a new connection closes another one: of the network
//! with the most connections, one that never completed a request, else any.
//!
//! # Guarantees
//! Idle or slow connections never keep a new client out, and the memory and open files of
//! connections are bounded. A client with many connections closes its own ones, not those of
//! others. An idle connection is closed no sooner than a busy one: a client cannot push others out
//! by many requests. A connection whose request is being answered is closed after the others of its
//! network. A preferred connection is closed last. No connection is closed below the limit.

use std::{
    collections::HashMap,
    future::Ready,
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use axum::{Extension, middleware::AddExtension};
use axum_server::accept::Accept;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::Layer as _;

/// The connections of one port.
#[derive(Clone, Debug)]
pub struct ConnectionLimit {
    connections: Arc<Connections>,
}

#[derive(Debug)]
struct Connections {
    limit: usize,
    /// True if bytes that arrive count as use.
    reads: bool,
    random: RandomState,
    /// Logical clock that advances with every use of any connection.
    time: AtomicU64,
    open: Mutex<HashMap<u64, Connection>>,
}

#[derive(Debug)]
struct Connection {
    network: Option<IpAddr>,
    usage: Arc<ConnectionActivity>,
    close: CancellationToken,
}

#[derive(Debug, Default)]
struct ConnectionActivity {
    last: AtomicU64,
    completed: AtomicBool,
    preferred: AtomicBool,
    /// Number of requests that are being answered.
    active: AtomicUsize,
}

/// Returns the network of an address: an IPv4 address itself, or the /64 of an IPv6 address, since
/// one machine has all of it.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The connection of a request, as an extension of the request.
#[derive(Clone, Debug)]
pub struct ConnectionUse {
    usage: Arc<ConnectionActivity>,
    connections: Arc<Connections>,
    close: CancellationToken,
}

impl ConnectionUse {
    /// Records that the connection is in use.
    pub fn record(&self) {
        self.usage.last.store(self.connections.tick(), Ordering::Relaxed);
        self.usage.completed.store(true, Ordering::Relaxed);
    }

    /// Keeps the connection while a request is being answered, as far as others can be closed.
    pub fn activate(&self) -> Active {
        self.usage.active.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(&self.usage))
    }

    /// Closes this connection.
    pub fn close(&self) {
        self.close.cancel();
    }

    /// Closes all other connections before this one.
    pub fn prefer(&self) {
        self.usage.preferred.store(true, Ordering::Relaxed);
    }
}

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub struct Active(Arc<ConnectionActivity>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ConnectionLimit {
    /// Returns a limit for which every byte that arrives is a use of the connection.
    pub fn new(limit: usize) -> Self {
        Self::with(limit, true)
    }

    fn with(limit: usize, reads: bool) -> Self {
        let (random, time) = (RandomState::new(), AtomicU64::new(0));
        Self { connections: Arc::new(Connections { limit, reads, random, time, open: Mutex::default() }) }
    }

    /// Returns a limit for which only [`ConnectionUse::record`] is a use: a client that sends a
    /// byte now and then, and never a complete request, cannot keep its connection that way.
    pub fn by_requests(limit: usize) -> Self {
        Self::with(limit, false)
    }
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed)
    }

    /// Admits a connection, and closes another one at the limit. Its id is its time of admission.
    fn admit(&self, network: Option<IpAddr>) -> (u64, Arc<ConnectionActivity>, CancellationToken) {
        let mut open = self.lock();
        if open.len() >= self.limit
            && let Some(connection) = self.least_entitled(&open, network).and_then(|id| open.remove(&id))
        {
            connection.close.cancel();
        }
        let id = self.tick();
        let (usage, close) = (Arc::new(ConnectionActivity::default()), CancellationToken::new());
        usage.last.store(id, Ordering::Relaxed);
        open.insert(id, Connection { network, usage: Arc::clone(&usage), close: close.clone() });
        (id, usage, close)
    }

    /// Returns the connection to close for a new one, of the network with the most connections, the
    /// new one included. Networks with few connections are treated alike.
    fn least_entitled(&self, open: &HashMap<u64, Connection>, newcomer: Option<IpAddr>) -> Option<u64> {
        let mut counts = HashMap::from([(newcomer, 1_usize)]);
        for connection in open.values() {
            *counts.entry(connection.network).or_default() += 1;
        }
        let few = self.limit / 32;
        let count = |connection: &Connection| counts.get(&connection.network).copied().unwrap_or_default().max(few);
        let is_preferred = |connection: &Connection| connection.usage.preferred.load(Ordering::Relaxed);
        let rank = |connection: &Connection| (!is_preferred(connection), count(connection));
        let first = open.values().map(rank).max()?;
        let candidates = || open.iter().filter(|(_, connection)| rank(connection) == first);
        let last = |connection: &Connection| connection.usage.last.load(Ordering::Relaxed);
        if self.reads {
            return candidates().min_by_key(|(_, connection)| last(connection)).map(|(id, _)| *id);
        }
        // A client needs a moment for its first request, also while many others connect.
        let mut newest: Vec<u64> = open.keys().copied().collect();
        newest.sort_unstable();
        let settled = newest.get(newest.len() - (self.limit / 8).min(newest.len())..).and_then(<[u64]>::first);
        let is_settled = |id: u64| settled.is_none_or(|since| id < *since);
        let is_unused = |connection: &Connection| !connection.usage.completed.load(Ordering::Relaxed);
        let unused = candidates().filter(|(id, connection)| is_unused(connection) && is_settled(**id));
        let now = self.tick();
        let is_active = |connection: &Connection| connection.usage.active.load(Ordering::Relaxed) > 0;
        let any = || candidates().min_by_key(|(id, open)| (is_active(open), self.random.hash_one((now, **id))));
        unused.min_by_key(|(id, _)| **id).or_else(any).map(|(id, _)| *id)
    }
}

impl<S> Accept<TcpStream, S> for ConnectionLimit {
    type Stream = LimitedStream;
    type Service = AddExtension<S, ConnectionUse>;
    type Future = Ready<io::Result<(LimitedStream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        // Without it a response may wait 40 ms for the acknowledgement of the frame before it.
        if let Err(error) = stream.set_nodelay(true) {
            return std::future::ready(Err(error));
        }
        let (id, usage, close) = self.connections.admit(stream.peer_addr().ok().map(|peer| network(peer.ip())));
        let used = ConnectionUse { usage, connections: Arc::clone(&self.connections), close: close.clone() };
        let close = Box::pin(close.cancelled_owned());
        let service = Extension(used.clone()).layer(service);
        std::future::ready(Ok((LimitedStream { stream, id, used, close }, service)))
    }
}

/// A connection that counts towards the limit until it is dropped.
#[derive(Debug)]
pub struct LimitedStream {
    stream: TcpStream,
    id: u64,
    used: ConnectionUse,
    close: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl LimitedStream {
    /// Returns the use of this connection.
    pub fn usage(&self) -> &ConnectionUse {
        &self.used
    }

    fn ensure_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.close.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "connection closed: limit reached, or a response was not read",
            )),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for LimitedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.ensure_open(cx)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if self.used.connections.reads && buffer.filled().len() > before {
            self.used.record();
        }
        read
    }
}

impl AsyncWrite for LimitedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.ensure_open(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Drop for LimitedStream {
    fn drop(&mut self) {
        self.used.connections.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests;
