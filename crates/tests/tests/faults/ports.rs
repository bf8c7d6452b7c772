//! Hostile clients of the operator's ports: malformed, slow, and too many.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use perennial_harness::{Operator, OperatorBuilder, TestCluster, free_port, labels};
use perennial_testkit::prng::Prng;
use rstest::rstest;
use ureq::tls::TlsConfig;

const MIB: usize = 1 << 20;
/// Stands for a connection that was closed before the response was read.
const CLOSED: u16 = 0;
/// Number of bytes that a server may leave unread, so that a client that still sends may not see
/// the response.
const UNREAD: usize = 64 << 10;
/// Memory of an idle operator with some margin.
const MOST_MEMORY: u64 = 250 << 20;

/// Starts an operator that serves admission. Returns its address.
async fn served(cluster: &TestCluster) -> (Operator, SocketAddr) {
    let port = free_port();
    let at = |builder: OperatorBuilder| {
        builder.set("webhook.port", &port.to_string()).set("webhook.url", &format!("https://127.0.0.1:{port}"))
    };
    let operator = cluster.start_with(perennial_harness::Webhooks::On, at).await;
    (operator, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Asserts that probes, metrics and admission work.
async fn assert_well(cluster: &TestCluster, operator: &mut Operator, node: &str) {
    assert!(operator.is_running());
    assert_eq!(operator.get("/livez").0, 200);
    assert_eq!(operator.get("/metrics").0, 200);
    cluster.node(node).label("team", "ml").create().await;
    cluster.wait_for_record(node, [("team", "ml")]).await;
    cluster.delete_node(node).await;
    let returned = cluster.node(node).create().await;
    assert_eq!(returned.metadata.labels, Some(labels([("team", "ml")])), "given in the create itself");
    assert!(operator.peak_rss() < MOST_MEMORY, "{} MiB", operator.peak_rss() >> 20);
}

/// Sends a POST to the admission port as any client could. Returns the status.
fn post(address: SocketAddr, path: &str, content_type: &str, body: &[u8]) -> u16 {
    let tls = TlsConfig::builder().disable_verification(true).build();
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(20)));
    let agent = config.build().new_agent();
    let sent = agent.post(format!("https://{address}{path}")).header("content-type", content_type).send(body);
    // A server that does not read the whole body may close the connection.
    sent.map_or(CLOSED, |answer| answer.status().as_u16())
}

/// Sends raw bytes. Returns the first bytes of the response, if any.
fn send_raw(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let talk = || -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let _ = stream.write_all(bytes);
        let mut answer = vec![0; 4096];
        let read = stream.read(&mut answer)?;
        answer.truncate(read);
        Ok(answer)
    };
    talk().unwrap_or_default()
}

fn review(object: &str) -> Vec<u8> {
    format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","operation":"CREATE","object":{object}}}}}"#)
        .into_bytes()
}

/// Returns the statuses that answer a body, and [`CLOSED`] where the server need not read all of it.
fn expected(path: &str, what: &str, body: &[u8]) -> &'static [u16] {
    let is_served = ["/mutate/nodes", "/validate/nodes", "/mutate/pods"].contains(&path);
    match what {
        _ if !is_served && body.len() > UNREAD => &[404, CLOSED],
        _ if !is_served => &[404],
        _ if body.len() > 4 * MIB => &[413, CLOSED],
        "empty" | "no JSON" | "deep" => &[400],
        // Allowed as soon as they have a uid.
        "not a node" | "a wide review" | "just below the limit" => &[200],
        _ => &[200, 400],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_bodies_do_no_harm() {
    let cluster = crate::shipped().await;
    let (mut operator, admission) = served(&cluster).await;
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let nested = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    let wide = format!("{{{}\"z\":1}}", (0..200_000).map(|i| format!("\"k{i}\":{i},")).collect::<Vec<_>>().concat());
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("10 MB of one letter", vec![b'a'; 10 * MIB]),
        ("10 MB of a review", review(&format!("\"{}\"", "a".repeat(10 * MIB)))),
        ("just below the limit", review(&format!("\"{}\"", "a".repeat(3 * MIB - 200)))),
        ("deep", deep.clone().into_bytes()),
        ("a deep review", review(&deep)),
        ("a nested review", review(&nested)),
        ("a wide review", review(&wide)),
        ("no JSON", b"\x00\xff\xfe{{{".to_vec()),
        ("numbers", review("1e999999999")),
        ("not a node", review(r#"{"metadata":{"labels":[1,2,3],"annotations":7},"spec":"x"}"#)),
    ];

    for path in ["/mutate/nodes", "/validate/nodes", "/mutate/pods", "/nowhere", "/"] {
        for (what, body) in &bodies {
            for content_type in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
                let status = post(admission, path, content_type, body);
                assert!(expected(path, what, body).contains(&status), "{path} {what} {content_type}: {status}");
                if body.len() > MIB {
                    break;
                }
            }
        }
    }
    let large = format!("POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", 10 * MIB);
    let mut bytes = large.into_bytes();
    bytes.extend(std::iter::repeat_n(b'x', 10 * MIB));
    send_raw(operator.address(), &bytes);
    send_raw(operator.address(), b"GET /livez HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n");

    assert_well(&cluster, &mut operator, "n1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_on_either_port_does_no_harm() {
    let cluster = crate::shipped().await;
    let (mut operator, admission) = served(&cluster).await;
    let mut garbage: Vec<Vec<u8>> = vec![
        b"\r\n\r\n\r\n".to_vec(),
        b"GET".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\xff\x09\x00\x00\x00\x00\x00".to_vec(),
        b"GET /metrics HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_vec(),
        [b"GET /".as_slice(), &vec![b'a'; MIB], b" HTTP/1.1\r\n\r\n"].concat(),
        vec![0x16, 0x03, 0x01, 0xff, 0xff],
    ];
    let mut prng = Prng::new(7);
    for length in [1, 10, 100, 1000, 100_000] {
        let bytes = (0..length).map(|_| prng.number().to_be_bytes()[0]);
        garbage.push(bytes.collect());
    }

    let mut talks = Vec::new();
    for bytes in garbage {
        for address in [operator.address(), admission] {
            let bytes = bytes.clone();
            talks.push(std::thread::spawn(move || send_raw(address, &bytes)));
        }
    }

    // While some of the clients still wait for an answer.
    assert_well(&cluster, &mut operator, "n1").await;
    for talk in talks {
        talk.join().expect("the client ends");
    }
}

/// Each client sends a little and then nothing, or a byte now and then. There are many more clients
/// than the connection limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_block_nothing() {
    let cluster = crate::shipped().await;
    let (mut operator, admission) = served(&cluster).await;
    let files = operator.open_files();
    let mut clients = Vec::new();
    for number in 0..1500 {
        for address in [operator.address(), admission] {
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).expect("a connection");
            let message: &[u8] = match number % 3 {
                0 => b"",
                1 => b"GET /metrics HTTP/1.1\r\nhost:",
                // The beginning of a TLS ClientHello.
                _ => &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01],
            };
            let _ = stream.write_all(message);
            clients.push(stream);
        }
        if number % 100 == 0 {
            // A complete request is served in between.
            assert_eq!(operator.get("/livez").0, 200);
        }
    }
    for stream in &mut clients {
        let _ = stream.write_all(b"x");
    }

    assert_well(&cluster, &mut operator, "n1").await;
    let more = operator.open_files().saturating_sub(files);
    assert!(more < 800, "{more} more open files with {} slow clients", clients.len());
}

/// Clients request something large and never read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_block_nothing() {
    let cluster = crate::shipped().await;
    let (mut operator, _) = served(&cluster).await;
    let mut clients = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect_timeout(&operator.address(), Duration::from_secs(5)).expect("a connection");
        for _ in 0..20 {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n");
        }
        clients.push(stream);
    }

    assert_well(&cluster, &mut operator, "n1").await;
}

/// ClientHello of an old client: no extensions, old ciphers.
fn greeting(version: [u8; 2]) -> Vec<u8> {
    let mut hello = version.to_vec();
    hello.extend([7; 32]);
    hello.push(0);
    // ECDHE-ECDSA-AES128-SHA, ECDHE-RSA-AES128-SHA, AES128-SHA.
    hello.extend([0, 6, 0xc0, 0x09, 0xc0, 0x13, 0x00, 0x2f, 1, 0]);
    let length = u16::try_from(hello.len()).expect("a short greeting").to_be_bytes();
    let mut record = vec![0x16, 0x03, 0x01];
    record.extend((u16::try_from(hello.len()).expect("a short greeting") + 4).to_be_bytes());
    record.extend([1, 0]);
    record.extend(length);
    record.extend(hello);
    record
}

#[rstest]
#[case::ssl_3([3, 0])]
#[case::tls_1_0([3, 1])]
#[case::tls_1_1([3, 2])]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_before_1_2_is_refused(#[case] version: [u8; 2]) {
    let cluster = crate::shipped().await;
    let (_operator, admission) = served(&cluster).await;

    let answer = send_raw(admission, &greeting(version));

    // A fatal alert, not a ServerHello.
    assert_eq!(answer.first(), Some(&0x15), "{answer:?}");
    assert_eq!(answer.get(5), Some(&2), "{answer:?}");
}
