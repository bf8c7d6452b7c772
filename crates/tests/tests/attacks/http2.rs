//! Exhaustion of memory with HTTP/2: all connections, each with as many streams as the server
//! permits, whose headers are accepted.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{Request, body::Bytes, http::request::Builder};
use rstest::rstest;
use serde_json::json;
use tokio::{net::TcpStream, sync::Semaphore, task::JoinSet};
use tokio_rustls::client::TlsStream;

use crate::{
    client::Attacker,
    exhaustion::{LARGE, MEMORY_LIMIT, MIB, reviews_are_answered, target},
};

const CONNECTIONS: usize = 512;
/// Streams on a connection that the server permits, at least.
const STREAMS: usize = 8;

/// Resident pages of a released program. An unoptimized one has about 40 MiB.
const PROGRAM: u64 = 16 * MIB;

/// Returns the resident pages of the program file itself.
fn program_pages(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssFile:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The largest headers that are accepted.
#[derive(Clone, Copy, Debug)]
enum Headers {
    One,
    Many,
}

impl Headers {
    fn add(self, request: Builder) -> Builder {
        match self {
            Self::One => request.header("x-long", "a".repeat(1500)),
            Self::Many => (0..40).fold(request, |request, number| request.header(format!("x{number}"), "a")),
        }
    }
}

/// How a client keeps its streams open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streams {
    /// It sends as much of a large body as the windows permit.
    FullWindows,
    /// It sends whole reviews and grants no window for the responses.
    UnreadResponses,
}

/// A connection with open streams.
struct HeldConnection {
    _requests: h2::client::SendRequest<Bytes>,
    _streams: Vec<(h2::client::ResponseFuture, h2::SendStream<Bytes>)>,
}

/// Connects, a few clients at a time: otherwise the processors of this machine are the limit, and
/// handshakes are not completed in time.
async fn connect(attacker: &Attacker, handshakes: &Semaphore) -> TlsStream<TcpStream> {
    let _turn = handshakes.acquire().await.unwrap();
    loop {
        if let Ok(stream) = attacker.http2_stream().await {
            return stream;
        }
    }
}

/// Opens streams on one connection and counts those whose headers are accepted.
async fn hold(
    connection: TlsStream<TcpStream>,
    headers: Headers,
    streams: Streams,
    opened: &AtomicUsize,
) -> Result<HeldConnection, h2::Error> {
    let mut builder = h2::client::Builder::new();
    if streams == Streams::UnreadResponses {
        builder.initial_window_size(0);
    }
    let (mut requests, connection) = builder.handshake(connection).await?;
    tokio::spawn(connection);
    let mut held = Vec::new();
    for _ in 0..STREAMS {
        requests = requests.ready().await?;
        let mut request = headers.add(Request::post("https://x/mutate/nodes"));
        if streams == Streams::FullWindows {
            request = request.header("content-length", LARGE);
        }
        let (mut response, mut body) = requests.send_request(request.body(()).unwrap(), false)?;
        match streams {
            Streams::FullWindows => body.send_data(Bytes::from(vec![b' '; 64 * 1024]), false)?,
            Streams::UnreadResponses => {
                let review = json!({"request": {"uid": "u", "operation": "CREATE", "object": {}}}).to_string();
                body.send_data(Bytes::from(review + &" ".repeat(40_000)), true)?;
            }
        }
        // Headers that are too large are answered at once.
        let refused = tokio::time::timeout(Duration::from_millis(1), &mut response).await;
        let too_large = matches!(&refused, Ok(Ok(answer)) if answer.status() == 431);
        assert!(!too_large, "the headers are refused");
        if refused.is_err() {
            held.push((response, body));
        }
        opened.fetch_add(1, Ordering::Relaxed);
    }
    Ok(HeldConnection { _requests: requests, _streams: held })
}

#[rstest]
#[case::one_long_header(Headers::One)]
#[case::many_short_headers(Headers::Many)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_streams_with_full_windows_stay_within_the_memory_limit(#[case] headers: Headers) {
    memory_stays_within_its_limit(headers, Streams::FullWindows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_responses_without_a_window_stay_within_the_memory_limit() {
    memory_stays_within_its_limit(Headers::One, Streams::UnreadResponses).await;
}

async fn memory_stays_within_its_limit(headers: Headers, streams: Streams) {
    let (cluster, operator, attacker) = target().await;
    // Clients at the address of the API server share with it.
    let attacker = attacker.at(Ipv4Addr::new(127, 0, 3, 1));
    let (mut attack, handshakes) = (JoinSet::new(), Arc::new(Semaphore::new(16)));
    let (opened, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..CONNECTIONS {
        let (attacker, handshakes) = (attacker.clone(), Arc::clone(&handshakes));
        let (opened, done) = (Arc::clone(&opened), Arc::clone(&done));
        attack.spawn(async move {
            let held = hold(connect(&attacker, &handshakes).await, headers, streams, &opened).await;
            done.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
            drop(held);
        });
    }
    // 100 of the largest bodies at the same time.
    let large = Bytes::from(vec![b' '; LARGE]);
    for _ in 0..100 {
        let (attacker, large) = (attacker.clone(), large.clone());
        attack.spawn(async move { drop(attacker.post("/mutate/nodes", &large).await) });
    }
    while done.load(Ordering::Relaxed) < CONNECTIONS {
        reviews_are_answered(&cluster, 1).await;
    }

    let (peak, opened) = (operator.peak_rss(), opened.load(Ordering::Relaxed));
    println!("{} MiB with {opened} streams", peak / MIB);
    let peak = peak.saturating_sub(program_pages(operator.pid())) + PROGRAM;
    assert!(opened > CONNECTIONS * STREAMS / 2, "only {opened} streams");
    assert!(peak < MEMORY_LIMIT, "{} MiB", peak / MIB);
    attack.shutdown().await;
    reviews_are_answered(&cluster, 1).await;
}
