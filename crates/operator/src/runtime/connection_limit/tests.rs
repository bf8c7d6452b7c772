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
        let usage = ConnectionActivity { last: AtomicU64::new(*last_use), ..ConnectionActivity::default() };
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
        let (id, usage, close) = limit.admit(address(last));
        let used = ConnectionUse { usage, connections: Arc::clone(&limit), close };
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
    let (preferred, usage, close) = limit.admit(address(1));
    ConnectionUse { usage, connections: Arc::clone(&limit), close }.prefer();
    for _ in 0..1000 {
        limit.admit(address(1));
        assert!(limit.lock().contains_key(&preferred));
    }
}

#[test]
fn a_connection_whose_request_is_being_answered_is_closed_after_idle_ones() {
    let limit = ConnectionLimit::by_requests(64).connections;
    let admit = |last| {
        let (id, usage, close) = limit.admit(address(last));
        let used = ConnectionUse { usage, connections: Arc::clone(&limit), close };
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
