//! Observes the cluster with watches: nodes, records, and when they change. Claims are checked
//! against these observations, never against what the operator reports.

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
/// Prefix of the labels that every kubelet writes.
const BIRTH_LABELS: &str = "kubernetes.io/";

pub(crate) type Labels = BTreeMap<String, String>;

/// One incarnation of a node.
#[derive(Debug, Clone)]
pub(crate) struct Incarnation {
    pub(crate) uid: String,
    /// Labels, except those that every kubelet writes.
    pub(crate) labels: Labels,
    /// True if it has been restored.
    pub(crate) marked: bool,
    pub(crate) born: Instant,
    /// Time of the last change of its labels.
    pub(crate) since: Instant,
}

impl Incarnation {
    pub(crate) fn is(&self, key: &str, value: &str) -> bool {
        self.labels.get(key).is_some_and(|found| found == value)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.labels.contains_key(key)
    }

    /// Returns the time from creation to the last change of its labels.
    pub(crate) fn completed_in(&self) -> Duration {
        self.since.duration_since(self.born)
    }
}

/// Observed state.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) nodes: HashMap<String, Incarnation>,
    /// Labels of each record by node name.
    pub(crate) records: HashMap<String, Labels>,
    /// Deleted incarnations with their names.
    pub(crate) ended: Vec<(String, Incarnation)>,
}

impl Observed {
    pub(crate) fn node(&self, name: &str) -> Option<&Incarnation> {
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
        self.nodes.insert(name, Incarnation { uid, labels, marked, born, since });
    }

    fn end(&mut self, name: &str) {
        if let Some(life) = self.nodes.remove(name) {
            self.ended.push((name.to_owned(), life));
        }
    }
}

/// Watches in the background until the runtime ends.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observer(Arc<Mutex<Observed>>);

impl Observer {
    pub(crate) fn start(client: Client) -> Self {
        let observer = Self::default();
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
        let records: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let seen = observer.clone();
        tokio::spawn(async move {
            let mut events = watcher(nodes, Config::default()).default_backoff().boxed();
            // The watch continues after an error.
            while let Some(event) = events.next().await {
                if let Ok(event) = event {
                    seen.on_node(event);
                }
            }
        });
        let seen = observer.clone();
        tokio::spawn(async move {
            let mut events = watcher(records, Config::default().labels(RECORD)).default_backoff().boxed();
            // The watch continues after an error.
            while let Some(event) = events.next().await {
                if let Ok(event) = event {
                    seen.on_record(event);
                }
            }
        });
        observer
    }

    pub(crate) fn look(&self) -> MutexGuard<'_, Observed> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(team: &str) -> Labels {
        Labels::from([("team".to_owned(), team.to_owned())])
    }

    #[test]
    fn an_incarnation_is_complete_when_its_labels_last_changed() {
        let mut observed = Observed::default();
        observed.put("n1".to_owned(), "first".to_owned(), Labels::new(), false);
        let born = observed.node("n1").unwrap().born;
        observed.put("n1".to_owned(), "first".to_owned(), labels("ml"), true);
        let changed = observed.node("n1").unwrap().since;
        observed.put("n1".to_owned(), "first".to_owned(), labels("ml"), true);

        let node = observed.node("n1").unwrap();
        assert_eq!((node.born, node.since), (born, changed));
        assert!(node.is("team", "ml") && node.has("team") && node.marked);
    }

    #[test]
    fn a_new_uid_is_a_new_incarnation_and_deleted_ones_are_kept() {
        let mut observed = Observed::default();
        observed.put("n1".to_owned(), "first".to_owned(), labels("ml"), false);
        observed.end("n1");
        observed.put("n1".to_owned(), "second".to_owned(), labels("ml"), false);

        let node = observed.node("n1").unwrap();
        assert_eq!((node.uid.as_str(), node.completed_in()), ("second", Duration::ZERO));
        assert_eq!(observed.ended.len(), 1);
        assert_eq!(observed.ended[0].1.uid, "first");
    }
}
