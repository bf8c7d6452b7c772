//! Watches that last as long as the process: streaming lists where the API server has them, paged
//! lists where it does not, the same events from both.

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
    health::Health,
    history::History,
    jitter::Jitter,
    pages::PAGE,
};

/// The API server ends a watch after this time; a silent connection counts as dead five seconds
/// later.
const WATCH_SECONDS: u32 = 60;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A watch of one kind of objects that lasts until the process stops.
#[expect(missing_debug_implementations, reason = "kube's client has none")]
pub struct Watch<K> {
    /// Kind of the objects, for logs.
    what: &'static str,
    api: Api<K>,
    config: watcher::Config,
    jitter: Jitter,
    stop: CancellationToken,
    history: History,
    health: Health,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    pub fn new(what: &'static str, api: Api<K>, jitter: &Jitter, stop: &CancellationToken) -> Self {
        let config = watcher::Config::default().timeout(WATCH_SECONDS).page_size(PAGE);
        Self {
            what,
            api,
            config,
            jitter: jitter.clone(),
            stop: stop.clone(),
            history: History::default(),
            health: Health::default(),
        }
    }

    /// Watches only the objects that a label selector matches.
    #[must_use]
    pub fn labels(self, selector: &str) -> Self {
        Self { config: self.config.labels(selector), ..self }
    }

    /// Reports the version of every object that the watch delivers.
    #[must_use]
    pub fn observed_by(self, history: &History) -> Self {
        Self { history: history.clone(), ..self }
    }

    /// Reports whether the objects can be read.
    #[must_use]
    pub fn reported_to(self, health: &Health) -> Self {
        health.watches(self.what);
        Self { health: health.clone(), ..self }
    }

    /// Number of objects that are listed at a time where lists are not streamed.
    #[must_use]
    pub fn page_size(self, page: u32) -> Self {
        Self { config: self.config.page_size(page), ..self }
    }

    /// Passes every event to `on_event` until the stop. An error is logged, passed to `on_error`,
    /// and the watch resumes after a pause that doubles with each failure.
    pub async fn run(self, mut on_event: impl FnMut(Event<K>), mut on_error: impl FnMut(Category)) {
        let mut streaming = true;
        let (mut attempt, mut listed) = (0, false);
        while !self.stop.is_cancelled() {
            let config = if streaming { self.config.clone().streaming_lists() } else { self.config.clone() };
            let mut events = watcher::watcher(self.api.clone(), config).boxed();
            loop {
                let next = tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return,
                    next = events.next() => next,
                };
                match next {
                    Some(Ok(event)) => {
                        // A list that begins, or whose first pages arrive, may still fail: only a
                        // complete list or an event of the watch ends the backoff.
                        if matches!(event, Event::InitDone | Event::Apply(_) | Event::Delete(_)) {
                            if attempt > 0 || !listed {
                                self.health.read(self.what);
                            }
                            (attempt, listed) = (0, true);
                        }
                        if let Event::InitApply(object) | Event::Apply(object) | Event::Delete(object) = &event {
                            self.history.observe(object.meta(), !matches!(event, Event::Delete(_)));
                        }
                        on_event(event);
                    }
                    Some(Err(error)) if streaming && refuses_streaming(&error) => {
                        debug!(what = self.what, "the server has no streaming lists; listing in pages");
                        streaming = false;
                        break;
                    }
                    Some(Err(error)) => {
                        let category = category(&error);
                        let pause = self.jitter.backoff(attempt, FIRST_PAUSE, LONGEST_PAUSE);
                        attempt += 1;
                        self.history.interrupted();
                        report(self.what, &error, category, pause);
                        // The kind does not exist, or the version to resume from is too old:
                        // routine.
                        if !matches!(category, Category::NotFound | Category::Refused) {
                            self.health.unread(self.what, category);
                        }
                        on_error(category);
                        tokio::select! {
                            biased;
                            () = tokio::time::sleep(pause) => {}
                            () = self.stop.cancelled() => return,
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
}

fn report(what: &str, error: &watcher::Error, category: Category, pause: Duration) {
    let why = message(error);
    let retry_in = pause.as_secs_f32();
    match category {
        Category::Forbidden => {
            warn!(what, why, retry_in, "watch forbidden: the operator needs the permissions list and watch");
        }
        // Expired watches are routine: the objects are listed again.
        Category::Refused | Category::NotFound => debug!(what, why, retry_in, "watch expired, listing again"),
        _ => warn!(what, why, retry_in, category = category.as_str(), "watch interrupted, retrying"),
    }
}

/// Returns the server's own message, without the debug print of the whole status.
pub fn message(error: &watcher::Error) -> String {
    match error {
        watcher::Error::WatchError(status) => status.message.clone(),
        other => source(other).map_or_else(|| other.to_string(), error_category::message),
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

/// Returns the category of a failed watch.
pub fn category(error: &watcher::Error) -> Category {
    match error {
        watcher::Error::WatchError(status) => Category::of(&kube::Error::Api(status.clone())),
        watcher::Error::NoResourceVersion => Category::Garbled,
        other => source(other).map_or(Category::Garbled, Category::of),
    }
}

/// Whether the resourceVersion to resume from is too old, according to the response itself. kube
/// handles the event of that meaning, but after such a response it would ask for the same version
/// for ever.
pub fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// Whether the API server lacks `sendInitialEvents`, which it answers with 422 or 400.
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
        let api: Api<ConfigMap> = Api::default_namespaced(client);
        let watch = Watch::new("records", api, &Jitter::seeded(7), &CancellationToken::new());

        let _ = tokio::time::timeout(Duration::from_mins(10), watch.run(|_| {}, |_| {})).await;

        let lists = lists.load(Ordering::Relaxed);
        assert!((15..=60).contains(&lists), "{lists} lists in ten minutes");
    }
}
