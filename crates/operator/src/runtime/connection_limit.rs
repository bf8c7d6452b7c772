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
    /// Whether bytes that arrive count as use.
    reads: bool,
    random: RandomState,
    /// Logical clock that advances with every use of any connection.
    time: AtomicU64,
    open: Mutex<HashMap<u64, Connection>>,
}

#[derive(Debug)]
struct Connection {
    network: Option<IpAddr>,
    usage: Arc<Usage>,
    close: CancellationToken,
}

#[derive(Debug, Default)]
struct Usage {
    last: AtomicU64,
    completed: AtomicBool,
    preferred: AtomicBool,
    /// Number of requests that are being answered.
    active: AtomicUsize,
}

/// Returns the network of an address: IPv4 addresses by themselves, IPv6 ones by their /64, since
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
    usage: Arc<Usage>,
    connections: Arc<Connections>,
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

    /// Closes all other connections before this one.
    pub fn prefer(&self) {
        self.usage.preferred.store(true, Ordering::Relaxed);
    }
}

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub struct Active(Arc<Usage>);

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
    fn admit(&self, network: Option<IpAddr>) -> (u64, Arc<Usage>, CancellationToken) {
        let mut open = self.lock();
        if open.len() >= self.limit
            && let Some(connection) = self.least_entitled(&open, network).and_then(|id| open.remove(&id))
        {
            connection.close.cancel();
        }
        let id = self.tick();
        let (usage, close) = (Arc::new(Usage::default()), CancellationToken::new());
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
        let close = Box::pin(close.cancelled_owned());
        let used = ConnectionUse { usage, connections: Arc::clone(&self.connections) };
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
            Poll::Ready(()) => {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "connection closed: limit reached"))
            }
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
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Returns both ends of a connection.
    async fn connection(listener: &TcpListener, limit: &ConnectionLimit) -> (LimitedStream, TcpStream) {
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (ours, _) = listener.accept().await.unwrap();
        (limit.accept(ours, ()).await.unwrap().0, theirs)
    }

    #[tokio::test]
    async fn the_longest_idle_connection_is_closed_at_the_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = ConnectionLimit::new(2);
        let (mut first, mut talks) = connection(&listener, &limit).await;
        let (mut second, _silent) = connection(&listener, &limit).await;
        talks.write_all(b"x").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'x');

        let (mut third, mut comes) = connection(&listener, &limit).await;

        assert_eq!(second.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        talks.write_all(b"y").await.unwrap();
        assert_eq!(first.read_u8().await.unwrap(), b'y');
        comes.write_all(b"z").await.unwrap();
        assert_eq!(third.read_u8().await.unwrap(), b'z');
    }

    #[tokio::test]
    async fn a_closed_connection_no_longer_counts() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = ConnectionLimit::new(1);
        let (first, _theirs) = connection(&listener, &limit).await;
        drop(first);

        let (mut second, mut theirs) = connection(&listener, &limit).await;
        let (mut third, _more) = connection(&listener, &limit).await;

        theirs.write_all(b"x").await.unwrap();
        assert!(second.read_u8().await.is_err(), "it was closed for the third");
        drop(second);
        assert!(futures::poll!(std::pin::pin!(third.read_u8())).is_pending(), "and its end does not affect the third");
    }

    #[expect(clippy::unnecessary_wraps, reason = "the address of a connection may be unknown")]
    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    /// Connections of these addresses, with the time of their last use.
    fn connections(of: &[(u8, u64)]) -> HashMap<u64, Connection> {
        let connection = |(id, (last, last_use)): (usize, &(u8, u64))| {
            let usage = Usage { last: AtomicU64::new(*last_use), ..Usage::default() };
            (id as u64, Connection { network: address(*last), usage: Arc::new(usage), close: CancellationToken::new() })
        };
        of.iter().enumerate().map(connection).collect()
    }

    #[test]
    fn an_address_with_many_connections_closes_its_own() {
        let limit = ConnectionLimit::new(4).connections;
        let closed = |of: &[(u8, u64)], newcomer| limit.least_entitled(&connections(of), address(newcomer));
        // The first connection is the one that was not used for longest.
        assert_eq!(closed(&[(1, 0), (2, 9), (2, 8), (2, 7)], 2), Some(3));
        // Also where it opens the first one too many.
        assert_eq!(closed(&[(1, 0), (2, 9)], 2), Some(1));
        // Addresses with as many connections each are treated alike.
        assert_eq!(closed(&[(1, 5), (2, 3)], 3), Some(1));
        assert_eq!(closed(&[], 2), None);
    }

    #[test]
    fn an_ipv6_client_is_known_by_its_network() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:10.0.0.1"), network("10.0.0.1"));
        assert_ne!(network("10.0.0.1"), network("10.0.0.2"));
    }

    /// Opens connections from many addresses, each of which completes requests all the time, beside
    /// idle ones. Returns how many idle ones remain.
    fn survivors(limit: usize, idle: u8, idle_connections: usize) -> usize {
        let limit = ConnectionLimit::by_requests(limit).connections;
        let admit = |last| {
            let (id, usage, _) = limit.admit(address(last));
            let used = ConnectionUse { usage, connections: Arc::clone(&limit) };
            used.record();
            (id, used)
        };
        let ours: Vec<u64> = (0..idle_connections).map(|_| admit(idle).0).collect();
        let mut busy = Vec::new();
        for number in 0..2 * limit.limit {
            busy.push(admit(u8::try_from(number % 200).unwrap()).1);
            busy.iter().for_each(ConnectionUse::record);
        }
        let open = limit.lock();
        ours.iter().filter(|id| open.contains_key(id)).count()
    }

    #[test]
    fn an_idle_connection_is_closed_no_sooner_than_those_of_busy_clients() {
        // Each connection is closed with the same probability: after 522 of 512, 1 in 3 remains.
        // Ordered by their last use, none would.
        let remaining: usize = (0..10).map(|_| survivors(512, 250, 10)).sum();
        assert!(remaining > 0, "all idle connections were closed");
    }

    #[test]
    fn a_preferred_connection_is_closed_last() {
        let limit = ConnectionLimit::by_requests(64).connections;
        let (preferred, usage, _) = limit.admit(address(1));
        ConnectionUse { usage, connections: Arc::clone(&limit) }.prefer();
        for _ in 0..1000 {
            limit.admit(address(1));
            assert!(limit.lock().contains_key(&preferred));
        }
    }

    #[test]
    fn a_connection_whose_request_is_being_answered_is_closed_after_idle_ones() {
        let limit = ConnectionLimit::by_requests(64).connections;
        let admit = |last| {
            let (id, usage, _) = limit.admit(address(last));
            let used = ConnectionUse { usage, connections: Arc::clone(&limit) };
            used.record();
            (id, used)
        };
        let (ours, used) = admit(1);
        let answering = used.activate();
        for last in (2..250).cycle().take(1000) {
            admit(last);
            assert!(limit.lock().contains_key(&ours));
        }
        drop(answering);
        for last in (2..250).cycle().take(1000) {
            admit(last);
        }
        assert!(!limit.lock().contains_key(&ours), "an idle one is closed some time");
    }

    /// With many that connect at the same time, a connection exists long enough for a handshake.
    #[test]
    fn a_new_connection_has_time_for_its_first_request() {
        let limit = ConnectionLimit::by_requests(512).connections;
        for last in 0..250 {
            for _ in 0..3 {
                limit.admit(address(last));
            }
        }
        let early: usize = (0..100)
            .map(|_| {
                let (ours, _, _) = limit.admit(address(255));
                (0..20).for_each(|last| drop(limit.admit(address(last))));
                usize::from(!limit.lock().contains_key(&ours))
            })
            .sum();
        assert_eq!(early, 0, "closed for one of the next 20");
    }

    #[tokio::test]
    async fn a_client_that_only_sends_bytes_is_closed_before_one_that_completed_a_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let limit = ConnectionLimit::by_requests(2);
        let (mut real, mut talks) = connection(&listener, &limit).await;
        let (mut slow, mut drips) = connection(&listener, &limit).await;
        real.used.record();
        drips.write_all(b"x").await.unwrap();
        assert_eq!(slow.read_u8().await.unwrap(), b'x');

        let (_third, _comes) = connection(&listener, &limit).await;

        assert_eq!(slow.read_u8().await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        talks.write_all(b"y").await.unwrap();
        assert_eq!(real.read_u8().await.unwrap(), b'y');
    }
}
