//! The router without a socket, then what only a socket shows. A real API server is in the tests crate.

use super::*;
use crate::admission::issue;
use axum::body::to_bytes;
use perennial_core::certs::Lifetimes;
use serde_json::{Value, json};
use std::sync::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::Service;

type Seen = Arc<Mutex<Vec<Outcome>>>;

fn webhooks(limits: Limits) -> (Webhooks, Seen) {
    let seen = Seen::default();
    let told = Arc::clone(&seen);
    let report: Report = Arc::new(move |observation| told.lock().unwrap().push(observation.outcome));
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
async fn beyond_the_limit_requests_are_allowed_at_once() {
    let (webhooks, seen) = webhooks(Limits { concurrency: 1, ..Limits::default() });
    let router = webhooks.on("/hangs", |_| std::future::pending()).router();

    let (_, first) = call(&router, "/hangs", body("one")).await;
    let start = Instant::now();
    let (_, second) = call(&router, "/hangs", body("two")).await;

    assert_eq!(first["response"]["allowed"], true);
    assert_eq!((&second["response"]["uid"], &second["response"]["allowed"]), (&json!("two"), &json!(true)));
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(*seen.lock().unwrap(), [Outcome::Late, Outcome::Overloaded]);
}

#[tokio::test]
async fn what_makes_no_sense_is_allowed_or_left_to_the_failure_policy() {
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
    let sent = futures::stream::iter([Ok::<_, std::io::Error>(vec![b'x'; (1 << 20) + UNRESERVED])]);
    let unfinished = Body::from_stream(futures::StreamExt::chain(sent, futures::stream::pending()));
    let mut first = Box::pin(call(&router, "/x", unfinished));
    assert!(futures::poll!(&mut first).is_pending());
    tokio::time::advance(Duration::from_secs(1)).await;

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
            tokio::spawn(async move { router.call(stalled(4 << 20)).await.unwrap().status() })
        })
        .collect();
    tokio::task::yield_now().await;

    let (status, answer) = call(&router, "/x", body("real")).await;

    assert_eq!((status, &answer["response"]["uid"]), (StatusCode::OK, &json!("real")));
    for stalled in attack {
        assert_eq!(stalled.await.unwrap(), StatusCode::REQUEST_TIMEOUT);
    }
}

#[tokio::test]
async fn after_a_stop_responses_close_their_connection() {
    let (webhooks, _) = webhooks(Limits::default());
    let stop = CancellationToken::new();
    let mut router = webhooks.on("/x", |_| async { AdmissionResponse::allowed() }).router_until(&stop);
    let mut close = async || {
        let request = Request::builder().method("POST").uri("/x").body(body("u")).unwrap();
        router.call(request).await.unwrap().headers().get(header::CONNECTION).cloned()
    };

    assert_eq!(close().await, None);
    stop.cancel();
    assert_eq!(close().await.unwrap(), "close");
}

#[test]
fn idle_connections_outlive_those_of_the_api_server() {
    assert!(Limits::default().idle > Duration::from_secs(90));
}
