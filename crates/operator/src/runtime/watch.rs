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
                    attempt = 0;
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
