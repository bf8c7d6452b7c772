//! The router without a socket, then what only a socket shows. A real API server is in the tests
//! crate.

mod hostile;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use ::http::{
    StatusCode,
    header::{self, CONTENT_LENGTH},
};
use axum::{
    body::{Body, to_bytes},
    extract::Request,
};
use perennial_core::{admission_review::FailOpen, certs::Lifetimes};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tower::Service;

use super::*;
use crate::admission::{fair_share::Client, issue};

type SeenOutcomes = Arc<Mutex<Vec<Outcome>>>;

fn webhooks(limits: Limits) -> (Webhooks, SeenOutcomes) {
    let seen = SeenOutcomes::default();
    let reported = Arc::clone(&seen);
    let report: Report = Arc::new(move |observation| reported.lock().unwrap().push(observation.outcome));
    (Webhooks::new(limits, report), seen)
}

fn body(uid: &str) -> Body {
    Body::from(json!({"request": {"uid": uid, "operation": "CREATE", "object": {}}}).to_string())
}

async fn call(router: &Router, path: &str, body: Body) -> (StatusCode, Value) {
    let request = Request::builder().method("POST").uri(path).body(body).unwrap();
    let response = router.clone().call(request).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

#[tokio::test]
async fn a_handler_decides_about_its_path() {
    let (webhooks, seen) = webhooks(Limits::default());
    let router = webhooks
        .on("/mutate/nodes", |_| async { AdmissionResponse::patched(vec![json!({"op": "test"})]) })
        .on("/validate/nodes", |_| async { AdmissionResponse::denied("no") })
        .router();

    let (_, patched) = call(&router, "/mutate/nodes", body("one")).await;
    let (_, denied) = call(&router, "/validate/nodes", body("two")).await;
    let (unknown, _) = call(&router, "/elsewhere", body("three")).await;

    assert_eq!((&patched["response"]["uid"], &patched["response"]["patchType"]), (&json!("one"), &json!("JSONPatch")));
    assert_eq!(denied["response"]["allowed"], false);
    assert_eq!(unknown, StatusCode::NOT_FOUND);
    assert_eq!(*seen.lock().unwrap(), [Outcome::Patched, Outcome::Denied]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_fails_open_and_still_completes() {
    let (webhooks, seen) = webhooks(Limits::default());
    let (sender, mut done) = tokio::sync::mpsc::channel(1);
    let router = webhooks
        .on("/slow", move |_| {
            let sender = sender.clone();
            async move {
                tokio::time::sleep(Duration::from_mins(1)).await;
                sender.send(()).await.unwrap();
                AdmissionResponse::denied("too late")
            }
        })
        .router();
    let start = Instant::now();

    let (_, answer) = call(&router, "/slow", body("u")).await;

    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(start.elapsed().as_millis() / 100, 15, "{:?}", start.elapsed());
    assert_eq!(*seen.lock().unwrap(), [Outcome::Late]);
    assert_eq!(done.recv().await, Some(()));
}

#[tokio::test]
async fn a_panic_fails_open() {
    let (webhooks, seen) = webhooks(Limits::default());
    let router = webhooks.on("/panics", |_| async { panic!("on purpose") }).router();

    let (_, answer) = call(&router, "/panics", body("u")).await;

    assert_eq!(answer["response"]["allowed"], true);
    assert_eq!(*seen.lock().unwrap(), [Outcome::Failed]);
}

#[tokio::test(start_paused = true)]
async fn beyond_its_share_a_client_waits_for_its_own_requests() {
    let limits = Limits { concurrency: 1, ..Limits::default() };
    let (webhooks, seen) = webhooks(limits);
    let router = webhooks.on("/hangs", |_| std::future::pending()).router();

    let (_, first) = call(&router, "/hangs", body("one")).await;
    let start = Instant::now();
    let (_, second) = call(&router, "/hangs", body("two")).await;

    assert_eq!(first["response"]["allowed"], true);
    assert_eq!((&second["response"]["uid"], &second["response"]["allowed"]), (&json!("two"), &json!(true)));
    assert_eq!(start.elapsed(), limits.deadline);
    assert_eq!(*seen.lock().unwrap(), [Outcome::Late, Outcome::Overloaded]);
}

/// Handlers of one address hang; a review of another one is decided at once.
#[tokio::test(start_paused = true)]
async fn a_flood_of_one_address_keeps_no_other_from_a_decision() {
    let (webhooks, _) = webhooks(Limits { requests: 64, ..Limits::default() });
    let shares = webhooks.shares();
    let handler = |request: AdmissionRequest| async move {
        if request.uid == "flood" {
            std::future::pending::<()>().await;
        }
        AdmissionResponse::patched(vec![json!({"op": "test"})])
    };
    let stop = CancellationToken::new();
    let router = webhooks.on("/x", handler).router_until(&stop, &Memory::new(16 << 20), &shares);
    let from = |client: &Client, uid: &str| {
        let mut request = Request::builder().method("POST").uri("/x").body(body(uid)).unwrap();
        request.extensions_mut().insert(client.clone());
        let mut router = router.clone();
        async move { to_bytes(router.call(request).await.unwrap().into_body(), 1 << 20).await.unwrap() }
    };
    let mut flood = tokio::task::JoinSet::new();
    for last in 1..=8 {
        let client = shares.client(Some([10, 0, 0, last].into()));
        (0..100).for_each(|_| drop(flood.spawn(from(&client, "flood"))));
    }
    tokio::task::yield_now().await;
    let start = Instant::now();

    let answer: Value =
        serde_json::from_slice(&from(&shares.client(Some([10, 0, 0, 99].into())), "real").await).unwrap();

    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// A response that is not read keeps its memory.
#[tokio::test(start_paused = true)]
async fn a_response_holds_its_memory_until_it_is_read() {
    let (webhooks, seen) = webhooks(Limits { bodies: 1 << 20, ..Limits::default() });
    let large = json!({"op": "add", "path": "/x", "value": "x".repeat(600 << 10)});
    let mut router =
        webhooks.on("/x", move |_| std::future::ready(AdmissionResponse::patched(vec![large.clone()]))).router();
    let mut call = async || {
        let request = Request::builder().method("POST").uri("/x").body(body("u")).unwrap();
        router.call(request).await.unwrap()
    };

    let unread = call().await;
    let second = call().await;
    assert_eq!(*seen.lock().unwrap(), [Outcome::Patched, Outcome::Overloaded], "there is no memory for the second");
    assert!(to_bytes(second.into_body(), 1 << 20).await.unwrap().len() < 1000);

    let length = unread.headers()[CONTENT_LENGTH].to_str().unwrap().parse::<usize>().unwrap();
    assert_eq!(to_bytes(unread.into_body(), 1 << 20).await.unwrap().len(), length);
    call().await;
    assert_eq!(seen.lock().unwrap().last(), Some(&Outcome::Patched));
}

#[tokio::test]
async fn a_handler_that_could_not_decide_counts_as_a_failure() {
    let (webhooks, seen) = webhooks(Limits::default());
    let router = webhooks
        .on("/late", |_| async { AdmissionResponse::failed_open(FailOpen::Deadline) })
        .on("/error", |_| async { AdmissionResponse::failed_open(FailOpen::Error) })
        .router();

    for path in ["/late", "/error"] {
        let (status, answer) = call(&router, path, body("u")).await;
        assert_eq!((status, &answer["response"]), (StatusCode::OK, &json!({"uid": "u", "allowed": true})));
    }

    let codes: Vec<u16> = seen.lock().unwrap().iter().map(|outcome| outcome.code().as_u16()).collect();
    assert_eq!(codes, [504, 500]);
}

#[tokio::test]
async fn malformed_reviews_are_allowed_or_left_to_the_failure_policy() {
    let (webhooks, seen) = webhooks(Limits { body: 100, ..Limits::default() });
    let router = webhooks.on("/x", |_| async { AdmissionResponse::denied("never asked") }).router();

    let (_, strange) = call(&router, "/x", Body::from(r#"{"request":{"uid":"u","operation":5}}"#)).await;
    let (unreadable, _) = call(&router, "/x", Body::from("{")).await;
    let (large, _) = call(&router, "/x", Body::from("x".repeat(101))).await;

    assert_eq!(strange["response"]["allowed"], true);
    assert_eq!(unreadable, StatusCode::BAD_REQUEST);
    assert_eq!(large, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(*seen.lock().unwrap(), [Outcome::Malformed, Outcome::Refused, Outcome::Refused]);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_given_up() {
    let (webhooks, _) = webhooks(Limits::default());
    let router = webhooks.on("/x", |_| async { AdmissionResponse::allowed() }).router();
    let endless = Body::from_stream(futures::stream::pending::<Result<&'static [u8], std::io::Error>>());

    let (status, _) = call(&router, "/x", endless).await;

    assert_eq!(status, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn bodies_take_no_more_memory_than_their_limit() {
    let (webhooks, _) = webhooks(Limits { bodies: 1 << 20, ..Limits::default() });
    let router = webhooks.on("/x", |_| async { AdmissionResponse::allowed() }).router();
    let padded = |length: usize| format!(r#"{{"request":{{"uid":"u","x":"{}"}}}}"#, "x".repeat(length)).into_bytes();
    let sent = futures::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; 1 << 20])]);
    let unfinished = Body::from_stream(futures::StreamExt::chain(sent, futures::stream::pending()));
    let mut first = Box::pin(call(&router, "/x", unfinished));
    assert!(futures::poll!(&mut first).is_pending());
    tokio::time::advance(Duration::from_millis(300)).await;

    let mut large = Box::pin(call(&router, "/x", Body::from(padded(512 << 10))));
    assert!(futures::poll!(&mut large).is_pending(), "it waits for memory");
    let (small, _) = call(&router, "/x", body("u")).await;

    assert_eq!(small, StatusCode::OK, "a small one does not");
    assert_eq!(first.await.0, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(large.await.0, StatusCode::OK, "the memory is free again");
}

/// On a port of its own.
fn listening(limits: Limits) -> Listening {
    let now = jiff::Timestamp::now().as_second();
    let made = issue::create(&["127.0.0.1".to_owned()], &Lifetimes::default(), now).unwrap();
    let served = Arc::new(Served::default());
    served.install(made.serving.certificate.as_bytes(), made.serving.key.as_bytes(), "test").unwrap();
    let (webhooks, _) = webhooks(limits);
    let webhooks = webhooks.on("/x", |_| async { AdmissionResponse::allowed() });
    webhooks.listen("127.0.0.1:0".parse().unwrap(), served).unwrap()
}

/// Reads until the server closes the connection; fails when it does not.
async fn closed(stream: &mut TcpStream) {
    let mut buffer = [0; 1024];
    let end = async { while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    tokio::time::timeout(Duration::from_secs(10), end).await.expect("the server keeps the connection open");
}

#[tokio::test]
async fn a_client_that_does_not_greet_is_closed() {
    let listening = listening(Limits { handshake: Duration::from_millis(100), ..Limits::default() });
    let (address, stop) = (listening.address(), CancellationToken::new());
    let server = tokio::spawn(listening.run(stop.clone()));
    let mut silent = TcpStream::connect(address).await.unwrap();
    let mut babbling = TcpStream::connect(address).await.unwrap();
    babbling.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();

    closed(&mut silent).await;
    closed(&mut babbling).await;

    stop.cancel();
    server.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_stop_ends_the_server_also_with_clients_that_stay() {
    let limits = Limits { grace: Duration::from_millis(100), linger: Duration::from_millis(10), ..Limits::default() };
    let listening = listening(limits);
    let (address, stop) = (listening.address(), CancellationToken::new());
    let server = tokio::spawn(listening.run(stop.clone()));
    let _stays = TcpStream::connect(address).await.unwrap();

    stop.cancel();

    tokio::time::timeout(Duration::from_secs(10), server).await.expect("the server stays").unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_taken_port_is_known_at_once() {
    let first = listening(Limits::default());
    let (webhooks, _) = webhooks(Limits::default());

    let second = webhooks.listen(first.address(), Arc::new(Served::default()));

    assert!(matches!(second, Err(ServeError::Listen { .. })));
}

/// A body that announces `length` bytes and sends one.
fn stalled(length: usize) -> Request {
    let first = futures::stream::iter([Ok::<_, std::io::Error>(&b"{"[..])]);
    let body = Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending()));
    Request::builder().method("POST").uri("/x").header(CONTENT_LENGTH, length).body(body).unwrap()
}

#[tokio::test(start_paused = true)]
async fn bodies_that_announce_much_and_send_little_keep_no_review_from_its_answer() {
    let (webhooks, _) = webhooks(Limits::default());
    let router = webhooks.on("/x", |_| async { AdmissionResponse::allowed() }).router();
    let attack: Vec<_> = (0..64)
        .map(|_| {
            let mut router = router.clone();
            tokio::spawn(async move { router.call(stalled(3 << 20)).await.unwrap().status() })
        })
        .collect();
    tokio::task::yield_now().await;

    let (status, answer) = call(&router, "/x", body("real")).await;

    assert_eq!((status, &answer["response"]["uid"]), (StatusCode::OK, &json!("real")));
    for stalled in attack {
        assert_eq!(stalled.await.unwrap(), StatusCode::REQUEST_TIMEOUT);
    }
}

/// Bodies take all of the pool and never end: a review on another connection is still answered.
#[tokio::test(start_paused = true)]
async fn a_pool_that_is_taken_keeps_no_ordinary_review_from_its_answer() {
    let (webhooks, _) = webhooks(Limits { bodies: 2 << 20, ..Limits::default() });
    let router = webhooks.on("/x", |_| async { AdmissionResponse::allowed() }).router();
    let attack: Vec<_> = (0..16)
        .map(|_| {
            let sent = futures::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; 1 << 20])]);
            let body = Body::from_stream(futures::StreamExt::chain(sent, futures::stream::pending()));
            let (mut router, request) =
                (router.clone(), Request::builder().method("POST").uri("/x").body(body).unwrap());
            tokio::spawn(async move { router.call(request).await.unwrap().status() })
        })
        .collect();
    tokio::task::yield_now().await;

    let padded =
        json!({"request": {"uid": "real", "object": {"metadata": {"annotations": {"a": "x".repeat(32 << 10)}}}}});
    let (status, answer) = call(&router, "/x", Body::from(padded.to_string())).await;

    assert_eq!((status, &answer["response"]["uid"]), (StatusCode::OK, &json!("real")));
    for unfinished in attack {
        assert_eq!(unfinished.await.unwrap(), StatusCode::REQUEST_TIMEOUT);
    }
}

#[tokio::test]
async fn after_a_stop_responses_close_their_connection() {
    let (webhooks, _) = webhooks(Limits::default());
    let stop = CancellationToken::new();
    let mut router = webhooks.on("/x", |_| async { AdmissionResponse::allowed() }).router_until(
        &stop,
        &Memory::new(1 << 20),
        &FairShares::new(8, 8),
    );
    let mut close = async || {
        let request = Request::builder().method("POST").uri("/x").body(body("u")).unwrap();
        router.call(request).await.unwrap().headers().get(header::CONNECTION).cloned()
    };

    assert_eq!(close().await, None);
    stop.cancel();
    assert_eq!(close().await.unwrap(), "close");
}

/// A server on a port of its own, and the way to stop it.
struct RunningServer {
    address: SocketAddr,
    authority: String,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<Result<(), ServeError>>,
}

impl RunningServer {
    fn start(limits: Limits) -> Self {
        Self::start_with(limits, |webhooks| webhooks)
    }

    fn start_with(limits: Limits, change: impl FnOnce(Webhooks) -> Webhooks) -> Self {
        let now = jiff::Timestamp::now().as_second();
        let made = issue::create(&["127.0.0.1".to_owned()], &Lifetimes::default(), now).unwrap();
        let certificate = Arc::new(Served::default());
        certificate.install(made.serving.certificate.as_bytes(), made.serving.key.as_bytes(), "test").unwrap();
        let (webhooks, _) = webhooks(limits);
        let webhooks = change(webhooks.on("/x", |_| async { AdmissionResponse::allowed() }));
        let listening = webhooks.listen("127.0.0.1:0".parse().unwrap(), certificate).unwrap();
        let (address, stop) = (listening.address(), CancellationToken::new());
        let server = tokio::spawn(listening.run(stop.clone()));
        Self { address, authority: made.bundle(), stop, server }
    }

    /// Opens a connection as the API server does, with this protocol.
    async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        self.connect_with(protocol, None).await
    }

    /// Opens a connection with a client certificate and its key.
    async fn connect_with(&self, protocol: &[u8], certificate: Option<(String, String)>) -> TlsStream<TcpStream> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match certificate {
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
                config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap()).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    async fn ended(self) {
        tokio::time::timeout(Duration::from_secs(10), self.server).await.expect("the server stays").unwrap().unwrap();
    }
}

/// Sends a review with HTTP/1.1 and returns the head of the response.
async fn review_http1(stream: &mut TlsStream<TcpStream>) -> std::io::Result<String> {
    let review = json!({"request": {"uid": "u", "operation": "CREATE", "object": {}}}).to_string();
    let head = format!("POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", review.len());
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(review.as_bytes()).await?;
    let mut answer = String::new();
    while !answer.ends_with("}}") {
        let mut buffer = [0; 4096];
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answer.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    Ok(answer.split_once("\r\n\r\n").unwrap().0.to_lowercase())
}

/// The API server closes its own idle connections after 90 s. It sends a review on a connection
/// that is being closed only once, so no connection may be closed earlier, at whichever interval
/// reviews come.
#[tokio::test]
async fn an_idle_connection_is_kept_longer_than_the_api_server_keeps_it() {
    let running = RunningServer::start(Limits::default());
    let mut stream = running.connect(b"http/1.1").await;

    for seconds in [0, 4, 5, 6, 10, 30, 90, 95] {
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::time::resume();
        let head = review_http1(&mut stream).await.unwrap_or_else(|error| panic!("closed after {seconds} s: {error}"));
        assert!(head.starts_with("http/1.1 200"), "{head}");
    }

    running.stop.cancel();
    running.ended().await;
}

/// The connections of a client that never completes a request are closed for those of others, and
/// after a timeout.
#[tokio::test]
async fn an_incomplete_request_does_not_keep_its_connection_open() {
    let running = RunningServer::start(Limits::default());
    let mut slow = running.connect(b"http/1.1").await;
    slow.write_all(b"POST /x HTTP/1.1\r\nhost:").await.unwrap();
    review_http1(&mut running.connect(b"http/1.1").await).await.unwrap();

    tokio::time::pause();
    tokio::time::advance(Limits::default().idle).await;
    tokio::time::resume();

    let mut buffer = [0; 1024];
    let end = async { while slow.read(&mut buffer).await.is_ok_and(|read| read > 0) {} };
    tokio::time::timeout(Duration::from_secs(10), end).await.expect("the server keeps the connection open");
    running.stop.cancel();
    running.ended().await;
}

/// In a rollout reviews arrive on connections that were opened before the stop, and on new ones
/// while the endpoint is withdrawn. All are answered, and each answer closes its connection.
#[tokio::test]
async fn after_a_stop_reviews_are_answered_and_their_connections_closed() {
    let running = RunningServer::start(Limits { linger: Duration::from_hours(1), ..Limits::default() });
    let mut before = running.connect(b"http/1.1").await;
    let head = review_http1(&mut before).await.unwrap();
    assert!(!head.contains("connection: close"), "{head}");

    running.stop.cancel();

    let mut after = running.connect(b"http/1.1").await;
    for stream in [&mut before, &mut after] {
        let head = review_http1(stream).await.unwrap();
        assert!(head.starts_with("http/1.1 200") && head.contains("connection: close"), "{head}");
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0, "the server closes the connection");
    }
    tokio::time::pause();
    tokio::time::advance(Duration::from_hours(1)).await;
    tokio::time::resume();
    running.ended().await;
}

/// Returns an authority, and a client certificate of it with its key.
fn client_certificate() -> (RootCertStore, (String, String)) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let client = rcgen::KeyPair::generate().unwrap();
    let mut subject = rcgen::CertificateParams::new(["api-server".to_owned()]).unwrap();
    subject.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = subject.signed_by(&client, &rcgen::Issuer::new(params, key)).unwrap();
    (roots, (certificate.pem(), client.serialize_pem()))
}

#[tokio::test]
async fn with_a_client_authority_only_its_clients_are_answered() {
    let (roots, certificate) = client_certificate();
    let (_, foreign) = client_certificate();
    let running = RunningServer::start_with(Limits::default(), |webhooks| webhooks.verify_clients(roots));

    let mut known = running.connect_with(b"http/1.1", Some(certificate)).await;
    assert!(review_http1(&mut known).await.unwrap().starts_with("http/1.1 200"));
    let mut anonymous = running.connect(b"http/1.1").await;
    anonymous.write_all(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    anonymous.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 401");
    let mut refused = running.connect_with(b"http/1.1", Some(foreign)).await;
    assert!(review_http1(&mut refused).await.is_err(), "a certificate of another authority");

    running.stop.cancel();
    running.ended().await;
}

#[tokio::test]
async fn an_http2_connection_has_few_streams() {
    let running = RunningServer::start(Limits::default());
    let (requests, connection) = h2::client::handshake(running.connect(b"h2").await).await.unwrap();
    let connection = tokio::spawn(connection);
    let requests = requests.ready().await.unwrap();
    while requests.current_max_send_streams() > 1000 {
        tokio::task::yield_now().await;
    }

    assert_eq!(requests.current_max_send_streams(), STREAMS as usize);

    running.stop.cancel();
    drop(requests);
    running.ended().await;
    drop(connection.await);
}

/// With HTTP/2 a stop sends GOAWAY, so that the client opens another connection, and answers the
/// streams in progress.
#[tokio::test]
async fn after_a_stop_http2_connections_get_goaway() {
    let running = RunningServer::start(Limits::default());
    let (mut requests, connection) = h2::client::handshake(running.connect(b"h2").await).await.unwrap();
    let connection = tokio::spawn(connection);
    let review = || {
        let body = json!({"request": {"uid": "u", "operation": "CREATE", "object": {}}}).to_string();
        (::http::Request::post("https://x/x").body(()).unwrap(), axum::body::Bytes::from(body))
    };
    let (head, body) = review();
    let (answered, mut stream) = requests.send_request(head, false).unwrap();
    stream.send_data(body, true).unwrap();
    assert_eq!(answered.await.unwrap().status(), StatusCode::OK);
    // A review that the server has seen, but not received in full.
    let (head, body) = review();
    let (in_progress, mut stream) = requests.send_request(head, false).unwrap();
    stream.send_data(body.slice(..4), false).unwrap();
    requests = requests.ready().await.unwrap();

    running.stop.cancel();
    stream.send_data(body.slice(4..), true).unwrap();

    assert_eq!(in_progress.await.unwrap().status(), StatusCode::OK);
    running.ended().await;
    let refused = requests.ready().await.map(drop).expect_err("the connection goes away");
    assert!(refused.is_go_away() || refused.is_io(), "{refused}");
    drop(connection.await);
}

/// An HTTP/2 client that grants no window would hold the memory of its responses forever: nothing
/// waits to be written.
#[tokio::test]
async fn a_connection_whose_response_is_not_read_is_closed() {
    let running = RunningServer::start(Limits { write: Duration::from_millis(100), ..Limits::default() });
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(0);
    let (mut requests, connection) = builder.handshake(running.connect(b"h2").await).await.unwrap();
    let connection = tokio::spawn(connection);
    let review = json!({"request": {"uid": "u", "operation": "CREATE", "object": {}}}).to_string();
    let (answered, mut stream) =
        requests.send_request(::http::Request::post("https://x/x").body(()).unwrap(), false).unwrap();

    stream.send_data(axum::body::Bytes::from(review), true).unwrap();

    assert_eq!(answered.await.unwrap().status(), StatusCode::OK);
    let ended = tokio::time::timeout(Duration::from_secs(10), connection).await;
    drop(ended.expect("the server keeps the connection open"));
    drop(requests);
    running.stop.cancel();
    running.ended().await;
}
