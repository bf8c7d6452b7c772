//! Network traffic and logs: TLS 1.2 or newer, no connections except to the API server, no secrets
//! in logs.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::Duration,
};

use perennial_harness::{Operator, TestCluster, Webhooks};
use rstest::rstest;
use serde_json::json;

use crate::{install, reviews::port};

/// ClientHello of a client that supports nothing newer than this version.
fn hello(version: [u8; 2]) -> Vec<u8> {
    // ECDHE with AES-CBC and RSA with AES-CBC for TLS 1.0 and 1.1; AES-GCM for TLS 1.2.
    let ciphers = [0xc0, 0x0a, 0xc0, 0x14, 0x00, 0x2f, 0xc0, 0x2b, 0xc0, 0x2f];
    let groups = [0x00, 0x0a, 0x00, 0x06, 0x00, 0x04, 0x00, 0x1d, 0x00, 0x17];
    let points = [0x00, 0x0b, 0x00, 0x02, 0x01, 0x00];
    let schemes = [0x00, 0x0d, 0x00, 0x06, 0x00, 0x04, 0x04, 0x03, 0x08, 0x04];
    let extensions = [&groups[..], &points, &schemes].concat();
    let length = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap().to_be_bytes();
    let mut body = version.to_vec();
    body.extend([7; 32]);
    body.push(0);
    body.extend(length(&ciphers));
    body.extend(ciphers);
    body.extend([1, 0]);
    body.extend(length(&extensions));
    body.extend(extensions);
    let mut handshake = vec![1, 0];
    handshake.extend(length(&body));
    handshake.extend(body);
    let mut record = vec![22, 3, 1];
    record.extend(length(&handshake));
    record.extend(handshake);
    record
}

/// Returns the type of the server's first record, and its first bytes.
fn answer(port: u16, hello: &[u8]) -> (u8, Vec<u8>) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(hello).unwrap();
    let mut head = [0; 7];
    stream.read_exact(&mut head).unwrap();
    (head[0], head[5..].to_vec())
}

#[rstest]
#[case::tls_1_0([3, 1], false)]
#[case::tls_1_1([3, 2], false)]
#[case::tls_1_2([3, 3], true)]
#[tokio::test]
async fn the_webhooks_refuse_tls_before_1_2(#[case] version: [u8; 2], #[case] spoken: bool) {
    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    const FATAL_PROTOCOL_VERSION: [u8; 2] = [2, 70];
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;

    let (kind, bytes) = answer(port(&operator), &hello(version));

    if spoken {
        assert_eq!(kind, HANDSHAKE, "{bytes:?}");
    } else {
        assert_eq!((kind, bytes), (ALERT, FATAL_PROTOCOL_VERSION.to_vec()));
    }
}

/// Returns the remote addresses of all sockets of a process that it did not accept.
fn called(pid: u32, served: &[u16]) -> BTreeSet<SocketAddr> {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().filter_map(Result::ok);
    let sockets: BTreeSet<String> = files
        .filter_map(|file| fs::read_link(file.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let mut ends = BTreeSet::new();
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        for line in fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (Some(ours), Some(theirs)) = (address(fields[1]), address(fields[2])) else { continue };
            if sockets.contains(fields[9]) && theirs.port() != 0 && !served.contains(&ours.port()) {
                ends.insert(theirs);
            }
        }
    }
    ends
}

/// Parses an address of `/proc/net/tcp`: groups of four bytes in native order.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = (0..ip.len()).step_by(8).map(|at| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok());
    let bytes: Vec<u8> = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    match bytes.len() {
        4 => Some((Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?), port).into()),
        _ => Some((Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(), port).into()),
    }
}

/// Deletes and creates a node three times, with a check after every step.
async fn story(cluster: &TestCluster, mut look: impl FnMut()) {
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    for round in ["1", "2", "3"] {
        cluster.label("n1", "round", round).await;
        look();
        cluster.delete_node("n1").await;
        look();
        cluster.node("n1").create().await;
        cluster.wait_for_labels("n1", [("team", "ml"), ("round", round)]).await;
        look();
    }
}

#[tokio::test]
async fn only_the_api_server_is_contacted() {
    let cluster = TestCluster::new().await;
    let operator = cluster.start(Webhooks::On).await;
    let served = [operator.port(), port(&operator)];
    let mut seen = BTreeSet::new();

    story(&cluster, || seen.extend(called(operator.pid(), &served))).await;

    let url = cluster.plane().url(0);
    let api_server: SocketAddr = url.trim_start_matches("https://").trim_end_matches('/').parse().unwrap();
    assert_eq!(seen, BTreeSet::from([api_server]));
}

fn log_of(operator: &Operator) -> String {
    operator.log().iter().map(|line| line.to_string() + "\n").collect()
}

#[tokio::test]
async fn no_secret_is_in_the_log() {
    let cluster = TestCluster::new().await;
    let key = "a-key-of-thirty-two-bytes-and-some-more";
    let metadata = json!({"name": "perennial-record-keys", "namespace": cluster.namespace()});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"k1": key}});
    cluster.try_kubectl_with("create", &secret.to_string()).expect_success();
    install(&cluster, "permissions --set records.hmac=require");
    let operator = cluster.operator_in_cluster(crate::ACCOUNT).webhooks(Webhooks::On);
    let operator = operator.set("records.hmac", "require").set("logging.level", "trace").start().await;
    cluster.wait_for_admission(&operator).await;

    story(&cluster, || ()).await;

    let log = log_of(&operator);
    assert!(log.lines().count() > 50, "too few lines to tell");
    assert!(log.contains("last state captured"), "no capture is in the log");
    // The signing keys, the operator's token, and the private keys of the webhook certificate and
    // its CA.
    let mut secrets = vec![key.to_owned(), "PRIVATE KEY".to_owned()];
    let logs = cluster.plane().dir().join("logs");
    for file in fs::read_dir(&logs).unwrap().filter_map(Result::ok) {
        if file.path().extension().is_some_and(|end| end == "kubeconfig") {
            let text = fs::read_to_string(file.path()).unwrap();
            secrets.extend(
                text.lines().filter_map(|line| Some(line.trim().strip_prefix("token: ")?.trim_matches('"').to_owned())),
            );
        }
    }
    let words = format!("get secret perennial-webhook-certs -n {} -o json", cluster.namespace());
    let kept: serde_json::Value = serde_json::from_str(&cluster.kubectl(&words)).unwrap();
    let values = kept["data"].as_object().unwrap().iter().filter(|(name, _)| !name.contains(".crt"));
    secrets.extend(values.map(|(_, value)| value.as_str().unwrap().to_owned()));
    assert!(secrets.len() > 4, "only {} secrets to look for", secrets.len());
    for secret in &secrets {
        // A part of a secret counts as well.
        let piece = secret.get(..40).unwrap_or(secret);
        assert!(!log.contains(piece), "the log has a secret in it");
    }
    // The installed configuration, readable by every reader of ConfigMaps, contains none either.
    let config = cluster.perennial("manifests workload --set records.hmac=require").expect_success();
    assert!(!config.contains(key));
}
