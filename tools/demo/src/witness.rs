//! What anybody sees who watches the cluster: nodes as they come and go, records as they are written, and when.
//! The claims of the story are checked against this, never against what the operator says about itself.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _, watcher,
        watcher::{Config, Event},
    },
};

const NAMESPACE: &str = "perennial-system";
const RECORD: &str = "perennial.dev/record=v1";
const MARK: &str = "perennial.dev/restored";
/// What every kubelet writes itself.
const BIRTH_LABELS: &str = "kubernetes.io/";

pub(crate) type Labels = BTreeMap<String, String>;

/// One incarnation of a node.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) uid: String,
    /// Without those that every kubelet writes.
    pub(crate) labels: Labels,
    /// It was given something back.
    pub(crate) marked: bool,
    pub(crate) born: Instant,
    /// When the labels last changed.
    pub(crate) since: Instant,
}

impl Life {
    pub(crate) fn is(&self, key: &str, value: &str) -> bool {
        self.labels.get(key).is_some_and(|found| found == value)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.labels.contains_key(key)
    }

    /// From the birth to the last change of its labels.
    pub(crate) fn completed_in(&self) -> Duration {
        self.since.duration_since(self.born)
    }
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) nodes: HashMap<String, Life>,
    /// The labels that each record holds, by the name of its node.
    pub(crate) records: HashMap<String, Labels>,
    /// Incarnations that ended, with their name.
    pub(crate) ended: Vec<(String, Life)>,
}

impl Seen {
    pub(crate) fn node(&self, name: &str) -> Option<&Life> {
        self.nodes.get(name)
    }

    pub(crate) fn record(&self, name: &str) -> Option<&Labels> {
        self.records.get(name)
    }

    fn put(&mut self, name: String, uid: String, labels: Labels, marked: bool) {
        let now = Instant::now();
        let former = self.nodes.remove(&name).filter(|life| life.uid == uid);
        let (born, since) = match &former {
            Some(life) if life.labels == labels => (life.born, life.since),
            Some(life) => (life.born, now),
            None => (now, now),
        };
        self.nodes.insert(name, Life { uid, labels, marked, born, since });
    }

    fn end(&mut self, name: &str) {
        if let Some(life) = self.nodes.remove(name) {
            self.ended.push((name.to_owned(), life));
        }
    }
}

/// Watches in the background as long as the runtime lives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Witness(Arc<Mutex<Seen>>);

impl Witness {
    pub(crate) fn start(client: Client) -> Self {
        let witness = Self::default();
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
        let records: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let seen = witness.clone();
        tokio::spawn(async move {
            let mut events = watcher(nodes, Config::default()).default_backoff().boxed();
            // An error is told and then the watch goes on.
            while let Some(event) = events.next().await {
                if let Ok(event) = event {
                    seen.on_node(event);
                }
            }
        });
        let seen = witness.clone();
        tokio::spawn(async move {
            let mut events = watcher(records, Config::default().labels(RECORD)).default_backoff().boxed();
            // An error is told and then the watch goes on.
            while let Some(event) = events.next().await {
                if let Ok(event) = event {
                    seen.on_record(event);
                }
            }
        });
        witness
    }

    pub(crate) fn look(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_node(&self, event: Event<PartialObjectMeta<Node>>) {
        match event {
            Event::InitApply(node) | Event::Apply(node) => {
                let labels = node.labels().iter().filter(|(key, _)| !key.starts_with(BIRTH_LABELS));
                let labels = labels.map(|(key, value)| (key.clone(), value.clone())).collect();
                let marked = node.annotations().contains_key(MARK);
                self.look().put(node.name_any(), node.uid().unwrap_or_default(), labels, marked);
            }
            Event::Delete(node) => self.look().end(&node.name_any()),
            Event::Init | Event::InitDone => {}
        }
    }

    fn on_record(&self, event: Event<ConfigMap>) {
        match event {
            Event::InitApply(record) | Event::Apply(record) => {
                let text = record.data.as_ref().and_then(|data| data.get("record.json"));
                let Some(value) = text.and_then(|text| serde_json::from_str::<serde_json::Value>(text).ok()) else {
                    return;
                };
                let node = value["node"]["name"].as_str().unwrap_or_default().to_owned();
                let labels = serde_json::from_value(value["labels"].clone()).unwrap_or_default();
                self.look().records.insert(node, labels);
            }
            Event::Delete(record) => {
                let name = record.name_any();
                self.look().records.remove(name.strip_prefix("node-").unwrap_or(&name));
            }
            Event::Init | Event::InitDone => {}
        }
    }
}
