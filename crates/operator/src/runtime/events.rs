//! Kubernetes Events, deduplicated and rate-limited. An occurrence is written again when it happens
//! again after a while; a lasting condition is written when it begins or its message changes, and
//! not again while it lasts.

use std::{
    borrow::Cow,
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::mpsc, time::Instant};
use tracing::debug;

use super::{clock::Clock, error_category};

/// Minimum time between two Events with the same object and reason, even with other messages.
const QUIET: Duration = Duration::from_mins(10);
/// A condition that was not reported for this long is over. When it is reported again, it is
/// written again. The API server keeps Events for the same time, so a condition that came and went
/// in between can still be read.
const OVER: Duration = Duration::from_hours(1);
/// Maximum number of Events about cluster-scoped objects at once, of each type; then one every
/// [`REFILL`].
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(2);
/// Maximum number of Events about the objects of one namespace at once; then one every [`REFILL`].
const NAMESPACE_BURST: u32 = 10;
/// Maximum number of Events about the objects of all namespaces at once; then one every
/// [`NAMESPACES_REFILL`].
const NAMESPACES_BURST: u32 = 100;
const NAMESPACES_REFILL: Duration = Duration::from_millis(200);
/// Maximum number of Events that wait to be written, of each scope.
const QUEUE: usize = 256;
/// Number of namespaces whose limit is remembered.
const NAMESPACES: usize = 1024;
/// Namespace of Events about cluster-scoped objects.
const DEFAULT_NAMESPACE: &str = "default";
const REPORTER: &str = "perennial";

/// Type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Normal,
    Warning,
}

/// The object of an Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventObject {
    pub api_version: Cow<'static, str>,
    pub kind: Cow<'static, str>,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

impl EventObject {
    /// Returns an object of the core API group that is in no namespace.
    pub fn cluster_scoped(kind: &'static str, name: &str, uid: &str) -> Self {
        let (name, uid) = (name.to_owned(), uid.to_owned());
        Self { api_version: "v1".into(), kind: kind.into(), namespace: None, name, uid }
    }
}

/// Writes Events in the background. Callers never wait, and an Event that cannot be written is only
/// logged.
#[derive(Clone, Debug)]
pub struct Events {
    sender: EventSender,
    dedup: Arc<Mutex<Dedup>>,
    enabled: bool,
}

/// An Event that is to be written.
type QueuedEvent = (EventObject, Severity, &'static str, String);

/// The Events that are to be written. Those about the objects of tenants have their own queue: while
/// the API server is slow, they displace no other.
#[derive(Clone, Debug)]
struct EventSender {
    cluster: mpsc::Sender<QueuedEvent>,
    namespaces: mpsc::Sender<QueuedEvent>,
}

impl EventSender {
    /// Queues an Event. A full queue drops it.
    fn send(&self, event: QueuedEvent) {
        let queue = if event.0.namespace.is_none() { &self.cluster } else { &self.namespaces };
        let _ = queue.try_send(event);
    }
}

#[derive(Debug)]
struct EventReceiver {
    cluster: mpsc::Receiver<QueuedEvent>,
    namespaces: mpsc::Receiver<QueuedEvent>,
}

impl EventReceiver {
    /// Returns the next Event, those about cluster-scoped objects first. `None` after the last one.
    async fn next(&mut self) -> Option<QueuedEvent> {
        tokio::select! {
            biased;
            Some(event) = self.cluster.recv() => Some(event),
            Some(event) = self.namespaces.recv() => Some(event),
            else => None,
        }
    }
}

fn queues() -> (EventSender, EventReceiver) {
    let (to_cluster, cluster) = mpsc::channel(QUEUE);
    let (to_namespaces, namespaces) = mpsc::channel(QUEUE);
    (EventSender { cluster: to_cluster, namespaces: to_namespaces }, EventReceiver { cluster, namespaces })
}

#[derive(Debug)]
struct Dedup {
    /// Time of the last Event of an occurrence, or of the last report of a condition.
    last: HashMap<(EventObject, &'static str, EventKind), Instant>,
    /// Warnings about cluster-scoped objects: those that the guarantees promise.
    warnings: Bucket,
    /// Other Events about cluster-scoped objects.
    notes: Bucket,
    all_namespaces: Bucket,
    /// A tenant who causes many Events silences only its own namespace.
    namespaces: HashMap<String, Bucket>,
}

/// A rate limit.
#[derive(Debug)]
struct Bucket {
    burst: u32,
    refill: Duration,
    left: u32,
    refilled: Instant,
}

impl Bucket {
    fn new(burst: u32, refill: Duration) -> Self {
        Self { burst, refill, left: burst, refilled: Instant::now() }
    }

    /// Returns whether an Event may be written.
    fn has(&mut self) -> bool {
        self.refill();
        self.left > 0
    }

    fn is_full(&mut self) -> bool {
        self.refill();
        self.left == self.burst
    }

    fn refill(&mut self) {
        let now = Instant::now();
        let earned = now.duration_since(self.refilled).div_duration_f64(self.refill);
        if earned >= 1.0 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let earned = earned as u32;
            self.left = self.left.saturating_add(earned).min(self.burst);
            self.refilled = now;
        }
    }

    fn take(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum EventKind {
    Happens,
    /// A lasting condition, with the hash of its message.
    Lasts(u64),
}

impl EventKind {
    fn lasting(message: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        message.hash(&mut hasher);
        Self::Lasts(hasher.finish())
    }

    fn quiet(self) -> Duration {
        match self {
            Self::Happens => QUIET,
            Self::Lasts(_) => OVER,
        }
    }
}

impl Dedup {
    fn new() -> Self {
        Self {
            last: HashMap::new(),
            warnings: Bucket::new(BURST, REFILL),
            notes: Bucket::new(BURST, REFILL),
            all_namespaces: Bucket::new(NAMESPACES_BURST, NAMESPACES_REFILL),
            namespaces: HashMap::new(),
        }
    }

    /// Takes an Event from the limits that apply to it. Returns whether it may be written.
    fn take(&mut self, about: &EventObject, severity: Severity) -> bool {
        let Some(namespace) = &about.namespace else {
            let bucket = if severity == Severity::Warning { &mut self.warnings } else { &mut self.notes };
            let may = bucket.has();
            bucket.take();
            return may;
        };
        if self.namespaces.len() > NAMESPACES {
            self.namespaces.retain(|_, bucket| !bucket.is_full());
        }
        let own = self.namespaces.entry(namespace.clone()).or_insert_with(|| Bucket::new(NAMESPACE_BURST, REFILL));
        let may = own.has() && self.all_namespaces.has();
        if may {
            own.take();
            self.all_namespaces.take();
        }
        may
    }

    /// Returns whether an Event may be written now.
    fn admit(&mut self, about: &EventObject, severity: Severity, reason: &'static str, kind: EventKind) -> bool {
        let now = Instant::now();
        let key = (about.clone(), reason, kind);
        if let Some(at) = self.last.get_mut(&key).filter(|at| now.duration_since(**at) < kind.quiet()) {
            if matches!(kind, EventKind::Lasts(_)) {
                *at = now;
            }
            return false;
        }
        if !self.take(about, severity) {
            return false;
        }
        if self.last.len() > 4096 {
            self.last.retain(|(.., kind), at| now.duration_since(*at) < kind.quiet());
        }
        self.last.insert(key, now);
        true
    }
}

impl Events {
    /// Returns the handle and the task that writes the Events. Unless `enabled`, none is written.
    pub fn new(client: Client, clock: Clock, enabled: bool) -> (Self, impl Future<Output = ()>) {
        let (sender, mut receiver) = queues();
        let task = async move {
            while let Some((about, severity, reason, message)) = receiver.next().await {
                let namespace = about.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
                let event = event(&about, &namespace, (severity, reason), &message, clock.now());
                let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
                let written =
                    tokio::time::timeout(Duration::from_secs(5), api.create(&PostParams::default(), &event)).await;
                match written {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => {
                        debug!(
                            object = about.name,
                            reason,
                            why = error_category::message(&error),
                            "an Event was not written"
                        );
                    }
                    Err(_) => debug!(object = about.name, reason, "an Event was not written in time"),
                }
            }
        };
        (Self { sender, dedup: Arc::new(Mutex::new(Dedup::new())), enabled }, task)
    }

    /// Writes an Event about an occurrence, unless one with the same reason was just written or the
    /// rate limit is hit.
    pub fn occurred(
        &self,
        about: EventObject,
        severity: Severity,
        reason: &'static str,
        message: impl FnOnce() -> String,
    ) {
        if self.admit(&about, severity, reason, EventKind::Happens) {
            self.write(about, severity, reason, message());
        }
    }

    /// Writes an Event about a lasting condition, unless it was written and still lasts. Must be
    /// called whenever the condition is found.
    pub fn lasts(&self, about: EventObject, severity: Severity, reason: &'static str, message: String) {
        if self.admit(&about, severity, reason, EventKind::lasting(&message)) {
            self.write(about, severity, reason, message);
        }
    }

    fn admit(&self, about: &EventObject, severity: Severity, reason: &'static str, kind: EventKind) -> bool {
        if !self.enabled {
            return false;
        }
        let mut dedup = self.dedup.lock().unwrap_or_else(PoisonError::into_inner);
        dedup.admit(about, severity, reason, kind)
    }

    fn write(&self, about: EventObject, severity: Severity, reason: &'static str, message: String) {
        self.sender.send((about, severity, reason, message));
    }
}

fn event(
    about: &EventObject,
    namespace: &str,
    (severity, reason): (Severity, &str),
    message: &str,
    now: Timestamp,
) -> Event {
    let now = Time(now);
    // The API server accepts messages of up to 1,024 characters.
    let message = message.chars().take(1000).collect();
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}.", about.name.chars().take(200).collect::<String>())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(about.api_version.to_string()),
            kind: Some(about.kind.to_string()),
            namespace: about.namespace.clone(),
            name: Some(about.name.clone()),
            uid: Some(about.uid.clone()),
            ..ObjectReference::default()
        },
        type_: Some(match severity {
            Severity::Normal => "Normal".to_owned(),
            Severity::Warning => "Warning".to_owned(),
        }),
        reason: Some(reason.to_owned()),
        message: Some(message),
        source: Some(EventSource { component: Some(REPORTER.to_owned()), host: None }),
        first_timestamp: Some(now.clone()),
        last_timestamp: Some(now),
        count: Some(1),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests;
