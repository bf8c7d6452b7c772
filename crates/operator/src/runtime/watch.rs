//! Following a kind of objects for as long as the operator runs: streaming lists where the server has them, paged
//! lists where it does not, the same stream of events from both.

use std::{fmt::Debug, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    error_category::{self, Category},
    jitter::Jitter,
};

/// The server ends a watch after this long, and a silent connection counts as dead five seconds later.
const WATCH_SECONDS: u32 = 60;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is followed.
#[derive(Clone, Debug)]
pub struct Subject {
    /// For logs: `nodes`, `records`.
    pub what: &'static str,
    pub labels: Option<String>,
    /// How many are listed at a time, where lists are not streamed.
    pub page: u32,
}

/// For objects whose size others cannot choose.
pub const PAGE: u32 = 500;

/// Hands every event to `on` until `stop`. Errors are logged and waited out; `on_trouble` hears of each.
pub async fn follow<K>(
    api: Api<K>,
    subject: Subject,
    jitter: Jitter,
    stop: CancellationToken,
    mut on: impl FnMut(Event<K>),
    mut on_trouble: impl FnMut(Category),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut streaming = true;
    let mut attempt = 0;
    while !stop.is_cancelled() {
        let mut config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(subject.page);
        if let Some(labels) = &subject.labels {
            config = config.labels(labels);
        }
        if streaming {
            config = config.streaming_lists();
        }
        let mut events = watcher::watcher(api.clone(), config).boxed();
        loop {
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                next = events.next() => next,
            };
            match next {
                Some(Ok(event)) => {
                    // A list that begins, or whose first pages arrive, may still fail: only what a complete list or the
                    // watch delivers ends the backoff.
                    if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
                        attempt = 0;
                    }
                    on(event);
                }
                Some(Err(error)) if streaming && refuses_streaming(&error) => {
                    debug!(what = subject.what, "the server has no streaming lists; listing in pages");
                    streaming = false;
                    break;
                }
                Some(Err(error)) => {
                    let category = category(&error);
                    let pause = jitter.backoff(attempt, FIRST_PAUSE, LONGEST_PAUSE);
                    attempt += 1;
                    report(subject.what, &error, category, pause);
                    on_trouble(category);
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(pause) => {}
                        () = stop.cancelled() => return,
                    }
                    if is_expired(&error) {
                        break;
                    }
                }
                None => break,
            }
        }
    }
}

fn report(what: &str, error: &watcher::Error, category: Category, pause: Duration) {
    let why = source(error).map_or_else(|| error.to_string(), error_category::message);
    let retry_in = pause.as_secs_f32();
    match category {
        Category::Forbidden => {
            warn!(what, why, retry_in, "may not watch: the operator needs the permission to list and watch these");
        }
        // A watch that expired is listed afresh: part of ordinary life.
        Category::Refused | Category::NotFound => debug!(what, why, retry_in, "the watch has to start over"),
        _ => warn!(what, why, retry_in, category = category.as_str(), "the watch was interrupted"),
    }
}

fn source(error: &watcher::Error) -> Option<&kube::Error> {
    match error {
        watcher::Error::InitialListFailed(e) | watcher::Error::WatchStartFailed(e) | watcher::Error::WatchFailed(e) => {
            Some(e)
        }
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => None,
    }
}

fn category(error: &watcher::Error) -> Category {
    match error {
        watcher::Error::WatchError(status) => Category::of(&kube::Error::Api(status.clone())),
        watcher::Error::NoResourceVersion => Category::Garbled,
        other => source(other).map_or(Category::Garbled, Category::of),
    }
}

/// The version to go on from is too old, by the answer itself. (An API server says so in an event, which kube hears; after an
/// answer it would ask for the same version for ever.)
pub fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// `sendInitialEvents` is answered with 422 (or 400) by servers that do not have it.
fn refuses_streaming(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if matches!(status.code, 400 | 422))
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use http::{Request, Response, StatusCode};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, client::Body};
    use serde_json::json;

    use super::*;

    /// A server without streaming lists that refuses every LIST.
    fn refuse(request: &Request<Body>, lists: &AtomicUsize) -> Response<Body> {
        let streamed = request.uri().query().is_some_and(|query| query.contains("sendInitialEvents"));
        let code = if streamed { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::INTERNAL_SERVER_ERROR };
        if !streamed {
            lists.fetch_add(1, Ordering::Relaxed);
        }
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "code": code.as_u16()});
        let mut response = Response::new(Body::from(status.to_string().into_bytes()));
        *response.status_mut() = code;
        response
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_keeps_failing_is_backed_off() {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&lists);
        let answer = move |request| std::future::ready(Ok::<_, Infallible>(refuse(&request, &counted)));
        let client = Client::new(tower::service_fn(answer), "default");
        let subject = Subject { what: "records", labels: None, page: PAGE };
        let stop = CancellationToken::new();
        let api: Api<ConfigMap> = Api::default_namespaced(client);

        let watch = follow(api, subject, Jitter::seeded(7), stop, |_| {}, |_| {});
        let _ = tokio::time::timeout(Duration::from_mins(10), watch).await;

        let lists = lists.load(Ordering::Relaxed);
        assert!((15..=60).contains(&lists), "{lists} lists in ten minutes");
    }
}
