//! Compares the simulated API server with a real one: both get the same random requests.

#![allow(clippy::unwrap_used, clippy::struct_field_names, clippy::too_many_lines, reason = "a test")]

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicBool},
};

use http::Request;
use kube::{Client, Config, client::Body, config::Kubeconfig};
use localplane::Plane;
use perennial::runtime::{
    client::{self, Listeners},
    metrics::Metrics,
};
use perennial_sim::server::{authn::User, http::Transport, store::text, world::World};
use perennial_testkit::prng::Prng;
use serde_json::{Value, json};

const SEQUENCES: u64 = 12;
const STEPS: usize = 120;

struct Kind {
    path: &'static str,
    kind: &'static str,
    api_version: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind { path: "/api/v1/nodes", kind: "Node", api_version: "v1" },
    Kind { path: "/api/v1/namespaces/default/configmaps", kind: "ConfigMap", api_version: "v1" },
    Kind {
        path: "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        kind: "Lease",
        api_version: "coordination.k8s.io/v1",
    },
];

/// One of the two servers, with the versions and UIDs that it returned.
struct Side {
    client: Client,
    known: BTreeMap<String, Vec<(String, String)>>,
    /// Continue tokens, by path.
    tokens: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq)]
struct Seen {
    code: u16,
    reason: String,
    content: Value,
}

impl Side {
    fn new(client: Client) -> Self {
        Self { client, known: BTreeMap::new(), tokens: BTreeMap::new() }
    }

    async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> (u16, Value) {
        let bytes = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", content_type)
            .header("accept", "application/json")
            .body(Body::from(bytes))
            .unwrap();
        let response = self.client.send(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        let body = serde_json::from_slice(&bytes);
        (code, body.unwrap_or_else(|_| json!({"text": String::from_utf8_lossy(&bytes)})))
    }

    /// Returns a version and UID of this object: the newest, an old one, or one that never existed.
    fn condition(&self, object: &str, age: usize) -> (String, String) {
        let known = self.known.get(object).map_or(&[][..], Vec::as_slice);
        let at = known.len().checked_sub(1 + age);
        at.map_or_else(|| ("1".to_owned(), "none".to_owned()), |at| known[at].clone())
    }

    fn learn(&mut self, object: &str, body: &Value) {
        let version = text(body, "/metadata/resourceVersion");
        if !version.is_empty() && !text(body, "/metadata/name").is_empty() {
            let pair = (version.to_owned(), text(body, "/metadata/uid").to_owned());
            let known = self.known.entry(object.to_owned()).or_default();
            if known.last() != Some(&pair) {
                known.push(pair);
            }
        }
    }

    async fn version(&self, kind: &Kind) -> String {
        let (_, list) = self.send("GET", &format!("{}?limit=1", kind.path), "application/json", &Value::Null).await;
        text(&list, "/metadata/resourceVersion").to_owned()
    }

    /// Returns the watch events since a version.
    async fn events(&self, kind: &Kind, since: &str, labels: &str) -> Vec<Value> {
        let path = format!("{}?watch=true&timeoutSeconds=1&resourceVersion={since}&labelSelector={labels}", kind.path);
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = self.client.send(request).await.unwrap();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let events = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
        events.map(|event| json!([event["type"], essence(&event["object"])])).collect()
    }
}

/// Removes UIDs, versions and times, which differ.
fn essence(object: &Value) -> Value {
    if object["kind"] == "Status" {
        return json!({"status": object["status"]});
    }
    if let Some(items) = object["items"].as_array() {
        let more = !text(object, "/metadata/continue").is_empty();
        let ours = items.iter().filter(|item| text(item, "/metadata/name").starts_with("conform-"));
        return json!({"items": ours.map(essence).collect::<Vec<_>>(), "more": more, "left": object["metadata"]["remainingItemCount"]});
    }
    json!({
        "name": object["metadata"]["name"],
        "labels": object["metadata"]["labels"],
        "annotations": object["metadata"]["annotations"],
        "finalizers": object["metadata"]["finalizers"],
        "data": object["data"],
        "taints": object["spec"]["taints"],
        "provider": object["spec"]["providerID"],
        "unschedulable": object["spec"]["unschedulable"],
        "holder": object["spec"]["holderIdentity"],
    })
}

/// A request for both servers. Preconditions are filled in for each.
struct ApiRequest {
    method: &'static str,
    path: String,
    object: String,
    content_type: &'static str,
    body: Value,
    /// Age of its version and UID; `None` if it has none.
    version: Option<usize>,
    uid: Option<usize>,
    pages: bool,
}

fn roll(prng: &mut Prng) -> ApiRequest {
    let kind = prng.pick(&KINDS);
    let name = format!("conform-{}", ["a", "b", "c"][prng.below(3)]);
    let item = format!("{}/{name}", kind.path);
    let value = ["x", "y", "z"][prng.below(3)];
    let odd = prng.percent(4);
    let labels = if odd { json!({"group": "not a value"}) } else { json!({"group": value, "other": "one"}) };
    let whole = json!({
        "apiVersion": kind.api_version, "kind": kind.kind,
        "metadata": {"name": name, "labels": labels},
    });
    let (merge, strategic) = ("application/merge-patch+json", "application/strategic-merge-patch+json");
    let plain = "application/json";
    let asked = |method, path: String, content_type, body| ApiRequest {
        method,
        path,
        object: item.clone(),
        content_type,
        body,
        version: None,
        uid: None,
        pages: false,
    };
    let age = |prng: &mut Prng| *prng.pick(&[None, Some(0), Some(0), Some(1), Some(9)]);
    match prng.below(16) {
        0..=3 => asked("POST", kind.path.to_owned(), plain, filled(whole, kind, value)),
        4 => asked("GET", item.clone(), plain, Value::Null),
        5 => {
            let selector = ["group%3Dx", "group%21%3Dx", "group+in+%28x%2Cy%29", "other", "%21group"][prng.below(5)];
            asked("GET", format!("{}?labelSelector={selector}", kind.path), plain, Value::Null)
        }
        6 => ApiRequest {
            pages: true,
            ..asked("GET", format!("{}?limit=1&labelSelector=other", kind.path), plain, Value::Null)
        },
        7..=8 => {
            let (version, uid) = (age(prng), if prng.percent(30) { age(prng) } else { None });
            ApiRequest { version, uid, ..asked("PUT", item.clone(), plain, filled(whole, kind, value)) }
        }
        9..=11 => {
            let (version, uid) = (age(prng), if prng.percent(30) { age(prng) } else { None });
            let removed = if prng.percent(40) { Value::Null } else { json!(value) };
            let patch = json!({"metadata": {"labels": {"group": removed}, "annotations": {"note": value}}});
            ApiRequest { version, uid, ..asked("PATCH", item.clone(), merge, patch) }
        }
        12 => {
            let taint = if prng.percent(30) {
                json!({"$patch": "delete", "key": "t"})
            } else {
                json!({"key": "t", "value": value, "effect": "NoSchedule"})
            };
            let patch = if kind.kind == "Node" {
                json!({"spec": {"taints": [taint]}})
            } else {
                json!({"metadata": {"labels": {"group": value}}})
            };
            ApiRequest { version: age(prng), ..asked("PATCH", item.clone(), strategic, patch) }
        }
        13 => {
            let operations = match prng.below(3) {
                0 => json!([{"op": "add", "path": "/metadata/labels/more", "value": value}]),
                1 => {
                    json!([{"op": "test", "path": "/metadata/labels/group", "value": "x"}, {"op": "replace", "path": "/metadata/labels/group", "value": "y"}])
                }
                _ => json!([{"op": "remove", "path": "/metadata/labels/absent"}]),
            };
            asked("PATCH", item.clone(), "application/json-patch+json", operations)
        }
        _ => {
            let (version, uid) = if prng.percent(50) { (age(prng), age(prng)) } else { (None, None) };
            ApiRequest { version, uid, ..asked("DELETE", item.clone(), plain, Value::Null) }
        }
    }
}

fn filled(mut object: Value, kind: &Kind, value: &str) -> Value {
    match kind.kind {
        "ConfigMap" => object["data"] = json!({"key": value}),
        "Lease" => object["spec"] = json!({"holderIdentity": value}),
        _ => object["spec"] = json!({"unschedulable": value == "x"}),
    }
    object
}

async fn ask(side: &mut Side, asked: &ApiRequest) -> Seen {
    let mut body = asked.body.clone();
    let mut path = asked.path.clone();
    let version = asked.version.map(|age| side.condition(&asked.object, age).0);
    let uid = asked.uid.map(|age| side.condition(&asked.object, age).1);
    if asked.method == "DELETE" {
        if version.is_some() || uid.is_some() {
            body = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"resourceVersion": version, "uid": uid}});
        }
    } else if version.is_some() || uid.is_some() {
        if let Some(version) = version {
            body["metadata"]["resourceVersion"] = json!(version);
        }
        if let Some(uid) = uid {
            body["metadata"]["uid"] = json!(uid);
        }
    }
    if asked.pages
        && let Some(token) = side.tokens.remove(&asked.path)
    {
        path = format!("{path}&continue={token}");
    }
    let (code, answer) = side.send(asked.method, &path, asked.content_type, &body).await;
    side.learn(&asked.object, &answer);
    if asked.pages {
        let token = text(&answer, "/metadata/continue").to_owned();
        if !token.is_empty() {
            side.tokens.insert(asked.path.clone(), token);
        }
    }
    let reason = text(&answer, "/reason").to_owned();
    let content = if code < 300 { essence(&answer) } else { Value::Null };
    Seen { code, reason, content }
}

#[tokio::test]
async fn the_server_in_memory_answers_as_the_real_one() {
    let plane = Plane::builder().controller_manager(false).scheduler(false).start().unwrap();
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig_path()).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &kube::config::KubeConfigOptions::default()).await.unwrap();
    let real = Client::try_from(config).unwrap();
    let mut differences = Vec::new();
    for seed in 0..SEQUENCES {
        let world = World::new(Prng::new(seed), false, None);
        let front = Transport::new(world, User::Person, Arc::new(AtomicBool::new(true)));
        let ours = client::over(
            front,
            "default",
            Listeners { metrics: Metrics::new(), budget: None, clock: None, health: None },
        );
        let (mut real, mut ours) = (Side::new(real.clone()), Side::new(ours));
        for kind in &KINDS {
            for name in ["a", "b", "c"] {
                real.send("DELETE", &format!("{}/conform-{name}", kind.path), "application/json", &Value::Null).await;
            }
        }
        let mut since = Vec::new();
        for kind in &KINDS {
            since.push((real.version(kind).await, ours.version(kind).await));
        }
        let mut prng = Prng::new(seed);
        let mut same = true;
        for step in 0..STEPS {
            let asked = roll(&mut prng);
            let (there, here) = (ask(&mut real, &asked).await, ask(&mut ours, &asked).await);
            if there != here {
                let ApiRequest { method, path, body, version, uid, .. } = &asked;
                let request = format!("{method} {path} {body}, version {version:?}, uid {uid:?}");
                differences
                    .push(format!("sequence {seed}, step {step}: {request}\n  real: {there:?}\n  ours: {here:?}"));
                same = false;
                break;
            }
        }
        if !same {
            continue;
        }
        // Each lasts until its timeout, so they run concurrently.
        let (real, ours) = (&real, &ours);
        let watches = KINDS.iter().zip(&since).flat_map(|watch| ["", "group%3Dx"].map(|labels| (watch, labels)));
        let watches = watches.map(|((kind, (there, here)), labels)| async move {
            let (there, here) = tokio::join!(real.events(kind, there, labels), ours.events(kind, here, labels));
            let path = kind.path;
            (there != here)
                .then(|| format!("sequence {seed}, watch of {path} {labels}\n  real: {there:?}\n  ours: {here:?}"))
        });
        differences.extend(futures::future::join_all(watches).await.into_iter().flatten());
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
