//! Kubernetes Events, deduplicated and rate-limited. An occurrence is written again when it happens again after a
//! while; a lasting condition is written when it begins or its message changes, and not again while it lasts.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, api::PostParams};
use tokio::{sync::mpsc, time::Instant};
use tracing::debug;

use super::{clock::Clock, error_category};

/// Minimum time between two Events with the same object and reason, whatever their message.
const QUIET: Duration = Duration::from_mins(10);
/// A condition that was not reported for this long is over; it is written anew when it is reported again. The API server
/// keeps Events for as long, so that a condition that came and went in between can still be read.
const OVER: Duration = Duration::from_hours(1);
/// Maximum number of Events at once; then one every [`REFILL`].
const BURST: u32 = 25;
const REFILL: Duration = Duration::from_secs(2);
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
pub struct About {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: Option<String>,
    pub name: String,
    pub uid: String,
}

impl About {
    pub fn node(name: &str, uid: &str) -> Self {
        Self { api_version: "v1", kind: "Node", namespace: None, name: name.to_owned(), uid: uid.to_owned() }
    }
}

/// Writes Events in the background. Callers never wait, and an Event that cannot be written is only logged.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<(About, Severity, &'static str, String)>,
    said: Arc<Mutex<Dedup>>,
}

#[derive(Debug)]
struct Dedup {
    /// Time of the last Event of an occurrence, or of the last report of a condition.
    last: HashMap<(About, &'static str, Kind), Instant>,
    left: u32,
    refilled: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Happens,
    /// A lasting condition, with the hash of its message.
    Stands(u64),
}

impl Kind {
    fn stands(message: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        message.hash(&mut hasher);
        Self::Stands(hasher.finish())
    }

    fn quiet(self) -> Duration {
        match self {
            Self::Happens => QUIET,
            Self::Stands(_) => OVER,
        }
    }
}

impl Dedup {
    /// Returns whether an Event may be written now.
    fn admit(&mut self, about: &About, reason: &'static str, kind: Kind) -> bool {
        let now = Instant::now();
        let key = (about.clone(), reason, kind);
        if let Some(at) = self.last.get_mut(&key).filter(|at| now.duration_since(**at) < kind.quiet()) {
            if matches!(kind, Kind::Stands(_)) {
                *at = now;
            }
            return false;
        }
        let earned = now.duration_since(self.refilled).div_duration_f64(REFILL);
        if earned >= 1.0 {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let earned = earned as u32;
            self.left = self.left.saturating_add(earned).min(BURST);
            self.refilled = now;
        }
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        if self.last.len() > 4096 {
            self.last.retain(|(.., kind), at| now.duration_since(*at) < kind.quiet());
        }
        self.last.insert(key, now);
        true
    }
}

impl Events {
    /// Returns the handle and the task that writes the Events.
    pub fn new(client: Client, clock: Clock) -> (Self, impl Future<Output = ()>) {
        let (sender, mut receiver) = mpsc::channel::<(About, Severity, &'static str, String)>(256);
        let task = async move {
            while let Some((about, severity, reason, message)) = receiver.recv().await {
                let namespace = about.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
                let event = event(&about, &namespace, severity, reason, &message, &clock);
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
        let said = Dedup { last: HashMap::new(), left: BURST, refilled: Instant::now() };
        (Self { sender, said: Arc::new(Mutex::new(said)) }, task)
    }

    /// Writes an Event about an occurrence, unless one with the same reason was just written or the rate limit is hit.
    pub fn occurred(&self, about: About, severity: Severity, reason: &'static str, message: impl FnOnce() -> String) {
        if self.admit(&about, reason, Kind::Happens) {
            self.write(about, severity, reason, message());
        }
    }

    /// Writes an Event about a lasting condition, unless it was written and still lasts. Must be called whenever the
    /// condition is found.
    pub fn lasts(&self, about: About, severity: Severity, reason: &'static str, message: String) {
        if self.admit(&about, reason, Kind::stands(&message)) {
            self.write(about, severity, reason, message);
        }
    }

    fn admit(&self, about: &About, reason: &'static str, kind: Kind) -> bool {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).admit(about, reason, kind)
    }

    fn write(&self, about: About, severity: Severity, reason: &'static str, message: String) {
        // A full channel drops the Event.
        let _ = self.sender.try_send((about, severity, reason, message));
    }
}

fn event(about: &About, namespace: &str, severity: Severity, reason: &str, message: &str, clock: &Clock) -> Event {
    let now = Time(clock.now());
    // The API server accepts messages of up to 1,024 characters.
    let message = message.chars().take(1000).collect();
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}.", about.name.chars().take(200).collect::<String>())),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference {
            api_version: Some(about.api_version.to_owned()),
            kind: Some(about.kind.to_owned()),
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
mod tests {
    use super::*;

    fn dedup() -> Dedup {
        Dedup { last: HashMap::new(), left: BURST, refilled: Instant::now() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_occurrence_is_written_once_in_a_while() {
        let mut dedup = dedup();
        let node = About::node("n1", "u1");
        assert!(dedup.admit(&node, "Restored", Kind::Happens));
        assert!(!dedup.admit(&node, "Restored", Kind::Happens));
        assert!(dedup.admit(&node, "RecordInvalid", Kind::Happens));
        tokio::time::advance(QUIET).await;
        assert!(dedup.admit(&node, "Restored", Kind::Happens));
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_is_written_when_its_message_changes_and_not_again_while_it_lasts() {
        let mut dedup = dedup();
        let workload = About::node("web", "u1");
        let mut stands = |words: &str| dedup.admit(&workload, "InvalidPlacement", Kind::stands(words));
        assert!(stands("\"abc\" is not a number"));
        assert!(stands("\"140\" is above 100"));
        // Two conditions that last side by side are not written again, for days.
        for _ in 0..1_000 {
            tokio::time::advance(Duration::from_mins(5)).await;
            assert!(!stands("\"abc\" is not a number") && !stands("\"140\" is above 100"));
        }
        tokio::time::advance(OVER).await;
        assert!(stands("\"abc\" is not a number"), "it was otherwise for a while");
    }

    #[tokio::test(start_paused = true)]
    async fn a_mass_event_is_not_a_mass_of_events() {
        let mut dedup = dedup();
        let count =
            (0..5000).filter(|i| dedup.admit(&About::node(&format!("n{i}"), "u"), "Restored", Kind::Happens)).count();
        assert_eq!(count, BURST as usize);
        tokio::time::advance(REFILL * 3).await;
        let count =
            (0..5000).filter(|i| dedup.admit(&About::node(&format!("m{i}"), "u"), "Restored", Kind::Happens)).count();
        assert_eq!(count, 3);
    }
}
