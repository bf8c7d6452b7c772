//! Fair shares of the admission server: requests in progress and running handlers, by client.
//!
//! # Guarantees
//! A client is known by its address, and an IPv6 client by its /64 network, since one machine has
//! all of it. A client that sends more than its share waits for its own requests, never for those
//! of others: however many requests others send, each client can run one handler, and as many as
//! its share. Within an address, connections are served in turn.
//!
//! The share of each client is the limit divided by the number of clients and one, so that a new
//! client finds room without waiting for others.

use std::{
    collections::{HashMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::oneshot;

use crate::runtime::connection_limit::network;

/// Requests in progress that every connection may have, whatever the others do.
const ALWAYS: usize = 2;

/// The origin of requests that share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Peer {
    /// Clients with a certificate of `webhook.clientCA`.
    Verified,
    Network(IpAddr),
}

/// The shares of a server.
#[derive(Clone, Debug)]
pub(super) struct FairShares {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    handlers: usize,
    requests: usize,
    connections: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    peers: HashMap<Peer, PeerUsage>,
    requests: usize,
}

/// Usage of one peer. It exists while the peer has a request in progress.
#[derive(Debug, Default)]
struct PeerUsage {
    running: usize,
    connections: HashMap<u64, ConnectionUsage>,
    waiting: VecDeque<ShareWaiter>,
}

#[derive(Debug, Default)]
struct ConnectionUsage {
    requests: usize,
    running: usize,
}

#[derive(Debug)]
struct ShareWaiter {
    connection: u64,
    grant: oneshot::Sender<HandlerPermit>,
}

impl FairShares {
    /// Returns shares of this many running handlers and requests in progress.
    pub(super) fn new(handlers: usize, requests: usize) -> Self {
        let shared = Shared { handlers, requests, connections: AtomicU64::new(0), state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the client of a new connection.
    pub(super) fn client(&self, address: Option<IpAddr>) -> Client {
        Client {
            shares: self.clone(),
            network: network(address.unwrap_or(Ipv6Addr::UNSPECIFIED.into())),
            connection: self.shared.connections.fetch_add(1, Ordering::Relaxed),
            verified: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants free shares to waiting requests. The lock must not be held: dropping a grant whose
    /// request is gone releases it again.
    fn wake(&self) {
        let mut state = self.lock();
        let clients = state.peers.len();
        let mut grants = Vec::new();
        for (peer, usage) in &mut state.peers {
            while usage.running < self.shared.share(*peer, clients)
                && let Some(waiter) = usage.pop_waiter()
            {
                usage.started(waiter.connection);
                let running = HandlerPermit { shares: self.clone(), peer: *peer, connection: waiter.connection };
                grants.push((waiter.grant, running));
            }
        }
        drop(state);
        for (grant, running) in grants {
            drop(grant.send(running));
        }
    }
}

impl Shared {
    /// Number of handlers that a peer may run.
    fn share(&self, peer: Peer, clients: usize) -> usize {
        match peer {
            Peer::Verified => self.handlers,
            Peer::Network(_) => (self.handlers / (clients + 1)).max(1),
        }
    }
}

impl PeerUsage {
    fn started(&mut self, connection: u64) {
        self.running += 1;
        self.connections.entry(connection).or_default().running += 1;
    }

    /// Removes the waiter whose connection runs the fewest handlers, the first of those, and those
    /// that were given up.
    fn pop_waiter(&mut self) -> Option<ShareWaiter> {
        self.waiting.retain(|waiter| !waiter.grant.is_closed());
        let running = |waiter: &ShareWaiter| self.connections.get(&waiter.connection).map_or(0, |used| used.running);
        let (position, _) = self.waiting.iter().enumerate().min_by_key(|(_, waiter)| running(waiter))?;
        self.waiting.remove(position)
    }
}

/// The client of a connection, as an extension of its requests.
#[derive(Clone, Debug)]
pub(super) struct Client {
    shares: FairShares,
    network: IpAddr,
    connection: u64,
    verified: Arc<AtomicBool>,
}

impl Client {
    /// Records that the client has shown a certificate of the configured authority.
    pub(super) fn verify(&self) {
        self.verified.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_verified(&self) -> bool {
        self.verified.load(Ordering::Relaxed)
    }

    fn peer(&self) -> Peer {
        if self.is_verified() { Peer::Verified } else { Peer::Network(self.network) }
    }

    /// Begins a request. `None` if there are too many and its connection has its share.
    pub(super) fn begin(&self) -> Option<InProgress> {
        let (limit, peer) = (self.shares.shared.requests, self.peer());
        let mut state = self.shares.lock();
        let clients = state.peers.len() + usize::from(!state.peers.contains_key(&peer));
        let crowded = state.requests >= limit && peer != Peer::Verified;
        let usage = state.peers.entry(peer).or_default();
        let connections = usage.connections.len() + usize::from(!usage.connections.contains_key(&self.connection));
        let share = (limit / (clients + 1) / (connections + 1)).max(ALWAYS);
        let used = usage.connections.entry(self.connection).or_default();
        if crowded && used.requests >= share {
            state.forget_idle(peer, self.connection);
            return None;
        }
        used.requests += 1;
        state.requests += 1;
        Some(InProgress { client: self.clone(), peer })
    }
}

/// A request, from its headers to the end of its response.
#[derive(Debug)]
pub(super) struct InProgress {
    client: Client,
    /// The peer that the request counts for.
    peer: Peer,
}

impl InProgress {
    /// Waits until the request may run its handler.
    pub(super) async fn run(&self) -> Option<HandlerPermit> {
        let (grant, granted) = oneshot::channel();
        {
            let mut state = self.client.shares.lock();
            let usage = state.peers.get_mut(&self.peer)?;
            usage.waiting.push_back(ShareWaiter { connection: self.client.connection, grant });
        }
        self.client.shares.wake();
        granted.await.ok()
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut state = self.client.shares.lock();
        state.requests = state.requests.saturating_sub(1);
        if let Some(usage) = state.peers.get_mut(&self.peer)
            && let Some(used) = usage.connections.get_mut(&self.client.connection)
        {
            used.requests = used.requests.saturating_sub(1);
        }
        let changed = state.forget_idle(self.peer, self.client.connection);
        drop(state);
        if changed {
            self.client.shares.wake();
        }
    }
}

/// Permission to run a handler. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct HandlerPermit {
    shares: FairShares,
    peer: Peer,
    connection: u64,
}

impl Drop for HandlerPermit {
    fn drop(&mut self) {
        let mut state = self.shares.lock();
        if let Some(usage) = state.peers.get_mut(&self.peer) {
            usage.running = usage.running.saturating_sub(1);
            if let Some(used) = usage.connections.get_mut(&self.connection) {
                used.running = used.running.saturating_sub(1);
            }
        }
        state.forget_idle(self.peer, self.connection);
        drop(state);
        self.shares.wake();
    }
}

impl State {
    /// Forgets a connection and a peer that use nothing. Returns whether the peer is forgotten.
    fn forget_idle(&mut self, peer: Peer, connection: u64) -> bool {
        let Some(usage) = self.peers.get_mut(&peer) else { return false };
        if usage.connections.get(&connection).is_some_and(|used| used.requests == 0 && used.running == 0) {
            usage.connections.remove(&connection);
        }
        let idle = usage.connections.is_empty();
        if idle {
            self.peers.remove(&peer);
        }
        idle
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "the address of a connection may be unknown")]
    fn address(last: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, last]))
    }

    /// A request whose handler runs now, or `None`.
    fn run(client: &Client) -> Option<(InProgress, HandlerPermit)> {
        let request = client.begin()?;
        let running = request.run().now_or_never()??;
        Some((request, running))
    }

    #[tokio::test]
    async fn a_client_that_uses_its_share_keeps_no_other_from_running() {
        let shares = FairShares::new(16, 1000);
        let attackers: Vec<Client> = (1..=10).map(|last| shares.client(address(last))).collect();
        let mut held = Vec::new();
        for _ in 0..100 {
            held.extend(attackers.iter().filter_map(run));
        }
        assert!(held.len() < 40, "{}", held.len());
        assert!(run(&attackers[0]).is_none());

        assert!(run(&shares.client(address(99))).is_some());
    }

    #[tokio::test]
    async fn a_waiting_request_runs_when_one_of_its_client_ends() {
        let shares = FairShares::new(4, 1000);
        let client = shares.client(address(1));
        let first: Vec<_> = std::iter::from_fn(|| run(&client)).collect();
        let request = client.begin().unwrap();
        let mut waiting = std::pin::pin!(request.run());
        assert!(futures::poll!(&mut waiting).is_pending());

        drop(first);

        assert!(waiting.await.is_some());
    }

    #[tokio::test]
    async fn connections_of_an_address_are_served_in_turn() {
        let shares = FairShares::new(4, 1000);
        let (greedy, modest) = (shares.client(address(1)), shares.client(address(1)));
        let mut running: Vec<_> = std::iter::from_fn(|| run(&greedy)).collect();
        let (many, one) = ([greedy.begin().unwrap(), greedy.begin().unwrap()], modest.begin().unwrap());
        let mut before = std::pin::pin!(many[0].run());
        let mut also = std::pin::pin!(many[1].run());
        let mut after = std::pin::pin!(one.run());
        assert!(futures::poll!(&mut before).is_pending() && futures::poll!(&mut also).is_pending());
        assert!(futures::poll!(&mut after).is_pending());

        running.pop();

        assert!(futures::poll!(&mut before).is_pending(), "its connection runs one already");
        assert!(after.await.is_some());
    }

    #[tokio::test]
    async fn requests_that_were_given_up_leave_nothing() {
        let shares = FairShares::new(2, 1000);
        let client = shares.client(address(1));
        let held = run(&client).unwrap();
        for _ in 0..100 {
            let request = client.begin().unwrap();
            let mut waiting = std::pin::pin!(request.run());
            assert!(futures::poll!(&mut waiting).is_pending());
        }
        drop(held);
        assert!(run(&client).is_some());
        let state = shares.lock();
        assert_eq!((state.requests, state.peers.len()), (0, 0));
    }

    #[test]
    fn a_crowd_keeps_no_other_client_from_a_request() {
        let shares = FairShares::new(4, 100);
        let crowd: Vec<Client> = (0..50).map(|_| shares.client(address(1))).collect();
        let mut held = Vec::new();
        for _ in 0..100 {
            held.extend(crowd.iter().filter_map(Client::begin));
        }
        assert_eq!(held.len(), 100);

        let (other, neighbour) = (shares.client(address(2)), shares.client(address(1)));

        let others: Vec<_> = std::iter::from_fn(|| other.begin()).collect();
        assert_eq!(others.len(), 100 / 3 / 2);
        let neighbours: Vec<_> = std::iter::from_fn(|| neighbour.begin()).collect();
        assert_eq!(neighbours.len(), ALWAYS, "a new connection of the same address");
        let verified = shares.client(address(1));
        verified.verify();
        let verified: Vec<_> = std::iter::from_fn(|| verified.begin()).take(500).collect();
        assert_eq!(verified.len(), 500, "verified clients are never refused");
    }
}
