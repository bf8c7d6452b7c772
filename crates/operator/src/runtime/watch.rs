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
    watch_backoff::WatchBackoff,
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
    /// True if the kind may not exist.
    optional: bool,
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
            optional: false,
        }
    }

    /// The kind may not exist: a 404 is no failure.
    #[must_use]
    pub fn optional(self) -> Self {
        Self { optional: true, ..self }
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
        health.watches(self.what, self.api.resource_url());
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
        let mut backoff = WatchBackoff::new(FIRST_PAUSE, LONGEST_PAUSE);
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
                        match &event {
                            Event::Init => self.health.lists(self.what),
                            Event::InitApply(_) => self.health.progress(self.what),
                            Event::Apply(_) | Event::Delete(_) if !backoff.is_failing() => {}
                            Event::InitDone | Event::Apply(_) | Event::Delete(_) => self.health.read(self.what),
                        }
                        backoff.delivered(&event);
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
                        // An expired version is routine, unless the list that follows expires too.
                        let expired = !backoff.is_failing() && code(&error) == Some(410);
                        let missing = self.optional && category == Category::NotFound;
                        let pause = backoff.failed(Some(&self.jitter));
                        self.history.interrupted();
                        report(self.what, &error, category, (expired || missing, pause));
                        if missing {
                            self.health.read(self.what);
                        } else if !expired {
                            self.health.unread(self.what, category);
                        }
                        on_error(category);
                        tokio::select! {
                            biased;
                            () = backoff.wait() => {}
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

fn report(what: &str, error: &watcher::Error, category: Category, (routine, pause): (bool, Duration)) {
    let why = message(error);
    let retry_in = pause.as_secs_f32();
    match category {
        _ if routine => debug!(what, why, retry_in, "watch expired or kind not found, listing again"),
        Category::Forbidden => {
            warn!(what, why, retry_in, "watch forbidden: the operator needs the permissions list and watch");
        }
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

/// Returns whether the resourceVersion to resume from is too old, according to the response itself.
/// kube handles the corresponding event, but after such a response it would request the same
/// version again and again.
pub fn is_expired(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410)
}

/// Returns the status that the server answered.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::WatchError(status) => Some(status.code),
        other => match source(other)? {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        },
    }
}

/// Returns whether the API server lacks `sendInitialEvents`, which it answers with 422 or 400.
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

    /// Watches through a server that answers everything with this status, for a minute.
    async fn watched_with(status: u16, optional: bool) -> Health {
        let answer = move |_: Request<Body>| {
            let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status});
            let mut response = Response::new(Body::from(body.to_string().into_bytes()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            std::future::ready(Ok::<_, Infallible>(response))
        };
        let api: Api<ConfigMap> = Api::default_namespaced(Client::new(tower::service_fn(answer), "default"));
        let health = Health::new();
        let watch = Watch::new("records", api, &Jitter::seeded(7), &CancellationToken::new()).reported_to(&health);
        let watch = if optional { watch.optional() } else { watch };
        let _ = tokio::time::timeout(Duration::from_mins(1), watch.run(|_| {}, |_| {})).await;
        health
    }

    #[tokio::test(start_paused = true)]
    async fn any_status_that_lasts_makes_a_resource_unreadable() {
        for status in [400, 401, 403, 404, 405, 406, 410, 422, 429, 500, 503] {
            assert_eq!(watched_with(status, false).await.unreadable(), ["records"], "{status}");
        }
        for status in [400, 403, 410, 500] {
            assert_eq!(watched_with(status, true).await.unreadable(), ["records"], "{status} of an optional kind");
        }
        assert!(watched_with(404, true).await.unreadable().is_empty(), "the kind does not exist");
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
