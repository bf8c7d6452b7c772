//! Traces to a local collector.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use perennial_harness::{OperatorBuilder, TestCluster, Webhooks, eventually, free_port};
use serde_json::Value;

/// A collector that stores spans as JSON.
struct Collector {
    port: u16,
    taken: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, taken) = (listener.local_addr().unwrap().port(), Arc::default());
        let into: Arc<Mutex<Vec<Value>>> = Arc::clone(&taken);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let into = Arc::clone(&into);
                thread::spawn(move || while take(&stream, &into).is_some() {});
            }
        });
        Self { port, taken }
    }

    fn asked_for(&self, builder: OperatorBuilder) -> OperatorBuilder {
        builder
            .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{}", self.port))
            .environment("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
            .environment("OTEL_BSP_SCHEDULE_DELAY", "100")
    }

    fn resources(&self) -> Vec<Value> {
        let taken = self.taken.lock().unwrap();
        taken.iter().flat_map(|taken| list(&taken["resourceSpans"])).collect()
    }

    fn spans(&self) -> Vec<Value> {
        let scopes = self.resources().into_iter().flat_map(|resource| list(&resource["scopeSpans"]));
        scopes.flat_map(|scope| list(&scope["spans"])).collect()
    }
}

/// Handles one request of a connection; `None` at its end.
fn take(mut stream: &TcpStream, into: &Mutex<Vec<Value>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut length, mut first) = (0, String::new());
    reader.read_line(&mut first).ok().filter(|read| *read > 0)?;
    assert!(first.starts_with("POST /v1/traces "), "{first}");
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    into.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}").ok()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn attribute(of: &Value, key: &str) -> String {
    let found = list(&of["attributes"]).into_iter().find(|attribute| attribute["key"] == key);
    found.and_then(|found| Some(found["value"]["stringValue"].as_str()?.to_owned())).unwrap_or_default()
}

fn has_event(span: &Value, event: &str) -> bool {
    list(&span["events"]).iter().any(|message| message["name"] == event)
}

#[tokio::test]
async fn a_restore_is_a_trace_with_its_requests() {
    let collector = Collector::start();
    let cluster = TestCluster::new().await;
    let operator = collector.asked_for(cluster.operator()).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;
    cluster.delete_node("n1").await;
    cluster.node("n1").create().await;
    cluster.wait_for_labels("n1", [("team", "ml")]).await;

    let restore = eventually("a span of the restore", async || {
        let is_it = |span: &Value| attribute(span, "node") == "n1" && has_event(span, "node restored");
        collector.spans().into_iter().find(is_it).ok_or_else(|| format!("{:?}", collector.spans()))
    })
    .await;

    assert_eq!((&restore["name"], attribute(&restore, "outcome").as_str()), (&"keeper".into(), "success"));
    let patch = eventually("a span of its request", async || {
        let is_it = |span: &Value| span["parentSpanId"] == restore["spanId"] && span["name"] == "patch";
        collector.spans().into_iter().find(is_it).ok_or("none")
    })
    .await;
    assert_eq!(patch["traceId"], restore["traceId"]);
    assert!(attribute(&patch, "http.url").contains("/api/v1/nodes/n1"), "{patch}");
    // Lease renewals and watches have no spans.
    let strays: Vec<Value> = collector.spans();
    let mut strays = strays.iter().filter(|span| span["parentSpanId"].as_str().is_none_or(str::is_empty));
    assert!(strays.all(|span| ["keeper", "placement"].contains(&span["name"].as_str().unwrap())), "{strays:?}");
    assert_eq!(attribute(&collector.resources()[0]["resource"], "service.name"), "perennial");
    // Spans of traces are not in the log, except for the id of the reconciliation.
    let line = operator.log().into_iter().find(|line| line["message"] == "node restored").unwrap();
    assert_eq!((&line["node"], &line["span"]["name"]), (&"n1".into(), &"reconcile".into()));
    assert!(operator.stop().await.is_some_and(|status| status.success()));
}

#[tokio::test]
async fn pending_spans_are_sent_before_shutdown() {
    let collector = Collector::start();
    let cluster = TestCluster::new().await;
    let operator = collector.asked_for(cluster.operator().webhooks(Webhooks::On));
    let operator = operator.environment("OTEL_BSP_SCHEDULE_DELAY", "3600000").start().await;
    eventually("a node is admitted", async || {
        cluster.node("n1").label("team", "ml").try_create().await.map_err(|error| error.to_string())?;
        cluster.delete_node("n1").await;
        let seen = operator.metrics().sum("controller_runtime_webhook_requests_total", &[]);
        if seen > 0.0 { Ok(()) } else { Err("without the webhook".to_owned()) }
    })
    .await;
    assert_eq!(collector.spans(), Vec::<Value>::new());

    assert!(operator.stop().await.is_some_and(|status| status.success()));

    let spans = collector.spans();
    assert!(spans.iter().any(|span| span["name"] == "admission"), "{spans:?}");
}

#[tokio::test]
async fn an_unreachable_collector_delays_nothing() {
    let nowhere = Collector { port: free_port(), taken: Arc::default() };
    let cluster = TestCluster::new().await;
    let operator = nowhere.asked_for(cluster.operator()).start().await;
    cluster.node("n1").label("team", "ml").create().await;
    cluster.wait_for_record("n1", [("team", "ml")]).await;

    assert!(operator.stop().await.is_some_and(|status| status.success()));
}
