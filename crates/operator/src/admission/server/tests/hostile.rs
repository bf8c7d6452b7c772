//! Clients that break the rules of HTTP/1.1 and HTTP/2. Each is answered with an error or closed,
//! and a review on another connection is answered all the time.

use rstest::rstest;

use super::*;

/// Time in which a hostile connection must be answered or closed.
const SOON: Duration = Duration::from_secs(10);
/// Bytes of a flood.
const FLOOD: usize = 1 << 20;

/// Sends bytes until the server closes the connection, or all are sent. Returns what it answered
/// before it closed the connection, or `None` if it keeps the connection.
async fn exchange(stream: TlsStream<TcpStream>, bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut read, mut write) = tokio::io::split(stream);
    let mut answer = Vec::new();
    // Both at once: a server that answers while it reads must not block.
    let sends = async {
        let sent = write.write_all(bytes).await;
        let _ = write.flush().await;
        sent
    };
    let reads = async { drop(read.read_to_end(&mut answer).await) };
    let both = async { tokio::join!(sends, reads) };
    let ended = tokio::time::timeout(SOON, both).await;
    ended.is_ok().then_some(answer)
}

/// Asserts that a review on a new connection is answered.
async fn assert_answers(running: &RunningServer) {
    let mut stream = running.connect(b"http/1.1").await;
    let head = tokio::time::timeout(SOON, review_http1(&mut stream)).await.expect("an answer in time").unwrap();
    assert!(head.starts_with("http/1.1 200"), "{head}");
}

/// Closes after an answer, so that a test need not wait for an idle timeout.
fn request(method: &str, headers: &str, body: &str) -> String {
    format!("{method} /x HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n{body}")
}

#[rstest]
#[case::get(request("GET", "", ""), &["405"])]
#[case::put(request("PUT", "content-length: 2\r\n", "{}"), &["405"])]
#[case::delete(request("DELETE", "", ""), &["405"])]
#[case::patch(request("PATCH", "content-length: 2\r\n", "{}"), &["405"])]
#[case::options(request("OPTIONS", "", ""), &["405"])]
#[case::head(request("HEAD", "", ""), &["405"])]
#[case::trace(request("TRACE", "", ""), &["405"])]
#[case::connect("CONNECT x:443 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_owned(), &["404", "405", "400"])]
#[case::own_method(request("PWN", "", ""), &["405", "400"])]
#[case::no_body(request("POST", "", ""), &["400"])]
#[case::upgrade(request("POST", "upgrade: h2c\r\ncontent-length: 2\r\n", "{}"), &["400"])]
#[case::two_lengths(request("POST", "content-length: 2\r\ncontent-length: 3\r\n", "{}x"), &["400"])]
#[case::length_and_chunks(request("POST", "content-length: 2\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"), &["400"])]
#[case::negative_length(request("POST", "content-length: -1\r\n", ""), &["400"])]
#[case::huge_length(request("POST", "content-length: 99999999999999999999\r\n", ""), &["400", "413"])]
#[case::announced_too_large(request("POST", "content-length: 9999999\r\n", ""), &["413"])]
#[case::wrong_chunk(request("POST", "transfer-encoding: chunked\r\n", "zz\r\n"), &["400"])]
#[case::endless_chunk_size(request("POST", "transfer-encoding: chunked\r\n", &"f".repeat(100)), &["400"])]
#[case::unknown_encoding(request("POST", "transfer-encoding: gzip\r\n", ""), &["400", "501"])]
#[case::a_header_of_17_kib(request("POST", &format!("x: {}\r\n", "a".repeat(17 << 10)), ""), &["431", "400"])]
#[case::many_headers(request("POST", &"x: y\r\n".repeat(200), ""), &["431", "400"])]
#[case::a_long_path(format!("POST /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(70_000)), &["414", "431", "400"])]
#[case::null_in_a_header(request("POST", "x: a\0b\r\n", ""), &["400"])]
#[case::folded_header(request("POST", "x: a\r\n b\r\n", ""), &["400"])]
#[case::http_0_9("GET /x\r\n\r\n".to_owned(), &["400", ""])]
#[tokio::test]
async fn a_strange_request_is_answered_with_an_error(#[case] request: String, #[case] allowed: &[&str]) {
    let running = RunningServer::start(Limits::default());

    let answer = exchange(running.connect(b"http/1.1").await, request.as_bytes()).await.expect("it is kept");

    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).unwrap_or_default();
    assert!(allowed.contains(&status), "{answer}");
    assert_answers(&running).await;
}

/// Content types are not compared: the API server is not the only one that decides about them.
#[rstest]
#[case::none("")]
#[case::text("content-type: text/plain\r\n")]
#[case::yaml("content-type: application/yaml\r\n")]
#[case::protobuf("content-type: application/vnd.kubernetes.protobuf\r\n")]
#[case::invalid("content-type: \u{e9};;=\r\n")]
#[case::expects("expect: 100-continue\r\n")]
#[tokio::test]
async fn a_review_is_answered_with_any_content_type(#[case] header: &str) {
    let running = RunningServer::start(Limits::default());
    let review = json!({"request": {"uid": "u", "operation": "CREATE", "object": {}}}).to_string();
    let request = request("POST", &format!("{header}content-length: {}\r\n", review.len()), &review);

    let answer = exchange(running.connect(b"http/1.1").await, request.as_bytes()).await.expect("it is kept");

    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.contains("HTTP/1.1 200") && answer.contains(r#""allowed":true"#), "{answer}");
}

#[rstest]
#[case::two_uids(r#"{"request":{"uid":"a","uid":"b"}}"#)]
#[case::two_requests(r#"{"request":{"uid":"a"},"request":{"uid":"b"}}"#)]
#[case::two_objects(r#"{"request":{"uid":"a","object":{},"object":{}}}"#)]
#[case::half_a_surrogate("{\"request\":{\"uid\":\"\\ud800\"}}")]
#[case::a_byte_order_mark("\u{feff}{\"request\":{\"uid\":\"u\"}}")]
#[case::two_documents(r#"{"request":{"uid":"a"}}{"request":{"uid":"b"}}"#)]
#[case::a_number_as_uid(r#"{"request":{"uid":7}}"#)]
#[case::null_request(r#"{"request":null}"#)]
#[case::a_list(r#"[{"request":{"uid":"a"}}]"#)]
#[tokio::test]
async fn an_ambiguous_review_is_never_decided(#[case] review: &str) {
    let (webhooks, seen) = webhooks(Limits::default());
    let router = webhooks.on("/x", |_| async { AdmissionResponse::denied("decided") }).router();

    let (status, answer) = call(&router, "/x", Body::from(review.to_owned())).await;

    assert_ne!(answer["response"]["allowed"], false, "{status} {answer}");
    assert!(matches!(*seen.lock().unwrap().as_slice(), [Outcome::Refused | Outcome::Malformed]), "{seen:?}");
}

const DATA: u8 = 0;
const HEADERS_FRAME: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// `:method: POST`, `:scheme: https`, `:path: /x`, `:authority: x` in HPACK, none of which is added to
/// the table of headers.
const POST: [u8; 9] = [0x83, 0x87, 0x04, 2, b'/', b'x', 0x01, 1, b'x'];

fn preface() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes
}

/// Repeats frames up to the size of a flood, with increasing numbers of streams.
fn flood(mut next: impl FnMut(u32) -> Vec<u8>) -> Vec<u8> {
    let (mut bytes, mut stream) = (preface(), 1);
    while bytes.len() < FLOOD {
        bytes.extend(next(stream));
        stream += 2;
    }
    bytes
}

/// A header block that never ends: one header without a value again and again.
fn endless_headers() -> Vec<u8> {
    let mut bytes = preface();
    bytes.extend(frame(HEADERS_FRAME, END_STREAM, 1, &POST));
    let header = [0x00, 1, b'a', 1, b'b'].repeat(200);
    while bytes.len() < FLOOD {
        bytes.extend(frame(CONTINUATION, 0, 1, &header));
    }
    bytes
}

fn empty_continuations() -> Vec<u8> {
    let mut bytes = preface();
    bytes.extend(frame(HEADERS_FRAME, END_STREAM, 1, &POST));
    while bytes.len() < FLOOD {
        bytes.extend(frame(CONTINUATION, 0, 1, &[]));
    }
    bytes
}

fn rapid_resets() -> Vec<u8> {
    flood(|stream| {
        let mut both = frame(HEADERS_FRAME, END_HEADERS, stream, &POST);
        both.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        both
    })
}

/// Streams that are reset by the server, since a frame is invalid.
fn provoked_resets() -> Vec<u8> {
    flood(|stream| {
        let mut both = frame(HEADERS_FRAME, END_HEADERS, stream, &POST);
        both.extend(frame(WINDOW_UPDATE, 0, stream, &0_u32.to_be_bytes()));
        both
    })
}

/// A header that expands: one large entry of the dynamic table, referred to again and again.
fn header_bomb() -> Vec<u8> {
    let mut first = POST.to_vec();
    first.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    first.extend(vec![b'x'; 4000]);
    let mut bytes = preface();
    bytes.extend(frame(HEADERS_FRAME, END_STREAM | END_HEADERS, 1, &first));
    let mut stream = 3;
    while bytes.len() < FLOOD {
        let mut again = POST.to_vec();
        again.extend([0xbe].repeat(16_000));
        bytes.extend(frame(HEADERS_FRAME, END_STREAM | END_HEADERS, stream, &again));
        stream += 2;
    }
    bytes
}

/// A protocol violation ends the connection of its client.
#[rstest]
#[case::continuations(endless_headers())]
#[case::empty_continuations(empty_continuations())]
#[case::provoked_resets(provoked_resets())]
#[case::data_without_a_stream([preface(), frame(DATA, 0, 1, &[0; 100])].concat())]
#[case::headers_of_stream_0([preface(), frame(HEADERS_FRAME, END_HEADERS, 0, &POST)].concat())]
#[case::even_stream([preface(), frame(HEADERS_FRAME, END_HEADERS, 2, &POST)].concat())]
#[case::push_promise([preface(), frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x83])].concat())]
#[case::a_window_that_overflows([preface(), frame(WINDOW_UPDATE, 0, 0, &0x7fff_ffff_u32.to_be_bytes())].concat())]
#[case::a_frame_that_is_too_large([preface(), vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1], vec![0; 70_000]].concat())]
#[case::a_ping_of_7_bytes([preface(), frame(PING, 0, 0, &[0; 7])].concat())]
#[case::wrong_huffman([preface(), frame(HEADERS_FRAME, END_HEADERS, 1, &[0x00, 0x84, 0xff, 0xff, 0xff, 0xff, 1, b'b'])].concat())]
#[case::http1_after_h2(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".to_vec())]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_breaks_http2_ends_its_connection_and_no_other(#[case] bytes: Vec<u8>) {
    let running = RunningServer::start(Limits::default());
    let mut real = running.connect(b"http/1.1").await;

    let hostile = exchange(running.connect(b"h2").await, &bytes);
    let (ended, ()) = tokio::join!(hostile, async {
        for _ in 0..20 {
            review_http1(&mut real).await.expect("the connection of others stays");
        }
    });

    assert!(ended.is_some(), "the server keeps the connection");
    assert_answers(&running).await;
}

/// Floods of frames that a client may send, or that end only their stream.
#[rstest]
#[case::rapid_resets(rapid_resets())]
#[case::header_bomb(header_bomb())]
#[case::more_streams_than_permitted(flood(|stream| frame(HEADERS_FRAME, END_HEADERS, stream, &POST)))]
#[case::pings(flood(|_| frame(PING, 0, 0, &[0; 8])))]
#[case::settings(flood(|_| frame(SETTINGS, 0, 0, &[])))]
#[case::priorities(flood(|stream| frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 1])))]
#[case::unknown_frames(flood(|_| frame(0xee, 0, 0, &[0; 100])))]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_keep_no_review_from_its_answer(#[case] bytes: Vec<u8>) {
    let running = RunningServer::start(Limits::default());
    let mut real = running.connect(b"http/1.1").await;
    let mut hostile = Vec::new();
    for _ in 0..8 {
        let (stream, bytes) = (running.connect(b"h2").await, bytes.clone());
        hostile.push(tokio::spawn(async move { drop(exchange(stream, &bytes).await) }));
    }

    for _ in 0..50 {
        tokio::time::timeout(SOON, review_http1(&mut real)).await.expect("an answer in time").unwrap();
    }

    hostile.iter().for_each(tokio::task::JoinHandle::abort);
    assert_answers(&running).await;
}

/// Clients that send headers or bodies byte by byte, from as many connections as the server keeps.
#[rstest]
#[case::headers("POST /x HTTP/1.1\r\nhost: x\r\nx: ")]
#[case::a_body("POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{")]
#[case::chunks("POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_keep_no_review_from_its_answer(#[case] head: &'static str) {
    let running = RunningServer::start(Limits { connections: 32, ..Limits::default() });
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = running.connect(b"http/1.1").await;
        let _ = stream.write_all(head.as_bytes()).await;
        slow.push(stream);
    }

    for _ in 0..20 {
        assert_answers(&running).await;
        for stream in &mut slow {
            let _ = stream.write_all(b"1").await;
        }
    }
}
