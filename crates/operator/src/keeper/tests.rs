//! The keeper over an API server in memory, for what a real one cannot stage.

use std::sync::{Arc, Mutex};

use axum::{body::Body, http::Request, response::IntoResponse as _};
use kube::runtime::watcher::Event;
use perennial_core::config::Settings;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{controller::KeeperController, node::Node, record_keys::Signatures};
use crate::runtime::{
    budget::Budget,
    client::{Listeners, over},
    clock::Clock,
    environment::Environment,
    error_category::Category,
    events::Events,
    health::Health,
    history::History,
    jitter::Jitter,
    metrics::Metrics,
    ownership::Ownership,
};

/// The methods and paths of all requests.
type SentRequests = Arc<Mutex<Vec<String>>>;

/// Returns a keeper that owns no shard, and the requests that it sends. None finds anything.
fn keeper() -> (Arc<KeeperController>, SentRequests) {
    let requests = SentRequests::default();
    let sent = Arc::clone(&requests);
    let answer = move |request: Request<Body>| {
        sent.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404,
        });
        std::future::ready((axum::http::StatusCode::NOT_FOUND, axum::Json(status)).into_response())
    };
    let (metrics, stop) = (Metrics::new(), CancellationToken::new());
    let listeners = Listeners { metrics: metrics.clone(), budget: None, clock: None, health: None };
    let client = over(axum::Router::new().fallback(answer), "default", listeners);
    let env = Environment {
        leases: client.clone(),
        admission: client.clone(),
        admission_budget: Budget::unlimited(),
        client: client.clone(),
        budget: Budget::unlimited(),
        metrics,
        clock: Clock::system(),
        jitter: Jitter::seeded(1),
        identity: "test".to_owned(),
        health: Health::new(),
        history: History::default(),
        drained: stop.clone(),
        stop,
    };
    let events = Events::new(client, env.clock.clone(), false).0;
    let keeper = KeeperController::new(&Settings::default(), &env, Ownership::none(1), events, Signatures::none());
    (keeper, requests)
}

fn labelled(value: &str, version: u64) -> Node {
    let metadata = json!({
        "name": "n1", "uid": "u1", "resourceVersion": version.to_string(), "labels": {"team": value},
    });
    let node: Value = json!({"metadata": metadata});
    serde_json::from_value(node).unwrap()
}

/// A replica that cannot read policies must not write by the rules of the configuration.
#[tokio::test(start_paused = true)]
async fn last_states_of_others_are_not_written_before_the_policies_are_known() {
    let (keeper, requests) = keeper();
    keeper.on_policy_watch_failure(Category::Forbidden);
    keeper.on_node(Event::Init);
    keeper.on_node(Event::InitApply(labelled("ml", 5)));
    keeper.on_node(Event::InitDone);
    keeper.on_record(Event::Init);
    keeper.on_record(Event::InitDone);
    keeper.on_node(Event::Delete(labelled("web", 6)));
    tokio::time::advance(std::time::Duration::from_mins(5)).await;

    keeper.settle_foreign_last_states().await;
    assert_eq!(*requests.lock().unwrap(), Vec::<String>::new());
    assert_eq!(keeper.cache().pending().states, 1, "it waits");

    keeper.on_policy_watch_failure(Category::NotFound);
    keeper.cache().set_policies_known();
    keeper.settle_foreign_last_states().await;
    let writes = |request: &String| request.starts_with("POST") && request.ends_with("/configmaps");
    assert!(requests.lock().unwrap().iter().any(writes), "{requests:?}");
}
