//! Which policy is for which node: the KeepPolicies of the cluster over the config file.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
};

use kube::runtime::watcher::Event;
use perennial_core::{
    config::{Identity, Keeper},
    keeper::{
        keys::Key,
        mark::Mark,
        policy::{KeepPolicy, choose},
        record::Record,
        selection::{Node, Policy},
    },
};
use serde_json::Value;

pub use super::policy_resource::KeepPolicyResource;
use super::{policy_resource::RawStatus, recall_cache::Packed};
use crate::runtime::error_category::{self, Category};

/// One policy of the cluster, read.
#[derive(Clone, Debug)]
pub struct Entry {
    pub uid: String,
    pub generation: i64,
    pub resource_version: String,
    pub read: Result<KeepPolicy, Vec<String>>,
    /// What its status says now.
    pub status: Value,
}

/// The policies in force, shared by clones.
#[derive(Clone, Debug)]
pub struct Policies {
    keeper: Arc<Keeper>,
    default: Arc<Policy>,
    state: Arc<RwLock<State>>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<String, Entry>,
    /// While a list comes in.
    listing: Option<BTreeMap<String, Entry>>,
    /// Those that could be read.
    good: Vec<KeepPolicy>,
    /// They were read, or could not be.
    asked: bool,
    /// They were read, or there is no such kind.
    known: bool,
}

impl State {
    /// Whether what is in force changed.
    fn settle(&mut self) -> bool {
        let good: Vec<KeepPolicy> = self.entries.values().filter_map(|entry| entry.read.clone().ok()).collect();
        let changed = good != self.good;
        self.good = good;
        changed
    }
}

impl Policies {
    pub fn new(keeper: &Keeper) -> Self {
        Self {
            keeper: Arc::new(keeper.clone()),
            default: Arc::new(Policy::from_settings(keeper)),
            state: Arc::default(),
        }
    }

    /// Reads the policies once, for a command. A cluster without their kind has none; an error says why they are not known.
    pub async fn read_all(&self, client: &kube::Client) -> Result<(), String> {
        let api: kube::Api<KeepPolicyResource> = kube::Api::all(client.clone());
        let items = match api.list(&kube::api::ListParams::default()).await {
            Ok(list) => list.items,
            Err(error) if Category::of(&error) == Category::NotFound => Vec::new(),
            Err(error) => return Err(format!("could not list KeepPolicies: {}", error_category::message(&error))),
        };
        self.on_event(Event::Init);
        for resource in items {
            self.on_event(Event::InitApply(resource));
        }
        self.on_event(Event::InitDone);
        Ok(())
    }

    /// Takes in what the watch says. True where the policies in force changed.
    pub fn on_event(&self, event: Event<KeepPolicyResource>) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Init => state.listing = Some(BTreeMap::new()),
            Event::InitApply(resource) => {
                let (name, entry) = self.read(resource);
                state.listing.get_or_insert_default().insert(name, entry);
            }
            Event::InitDone => {
                state.entries = state.listing.take().unwrap_or_default();
                state.asked = true;
                let first = !std::mem::replace(&mut state.known, true);
                return state.settle() || first;
            }
            Event::Apply(resource) => {
                let (name, entry) = self.read(resource);
                state.entries.insert(name, entry);
                return state.settle();
            }
            Event::Delete(resource) => {
                state.entries.remove(resource.metadata.name.as_deref().unwrap_or_default());
                return state.settle();
            }
        }
        false
    }

    /// There is no such kind in this cluster, or we may not read it: the config file speaks for all nodes.
    pub fn on_missing(&self, category: Category) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let news = !state.asked || category == Category::NotFound && !state.known;
        state.asked = true;
        state.known |= category == Category::NotFound;
        news
    }

    /// They are surely the policies of this cluster: not those that we may not read.
    pub fn are_known(&self) -> bool {
        self.state.read().unwrap_or_else(PoisonError::into_inner).known
    }

    fn read(&self, resource: KeepPolicyResource) -> (String, Entry) {
        let name = resource.metadata.name.unwrap_or_default();
        let entry = Entry {
            uid: resource.metadata.uid.unwrap_or_default(),
            generation: resource.metadata.generation.unwrap_or_default(),
            resource_version: resource.metadata.resource_version.unwrap_or_default(),
            read: KeepPolicy::parse(&name, &resource.spec.0, &self.keeper),
            status: resource.status.map(|RawStatus(status)| status).unwrap_or_default(),
        };
        (name, entry)
    }

    /// The policy for a node.
    pub fn of(&self, node: &Node) -> Arc<Policy> {
        self.of_labels(&node.labels)
    }

    /// The policy for a node whose record is known: one that returns bare is selected by what it will be given, too. What it was
    /// given or captured with, and lacks, was taken from it: that selects it no more.
    pub fn with_record(&self, node: &Node, record: Option<&Record>) -> Arc<Policy> {
        let plain = self.of(node);
        let Some(record) = record.filter(|record| record.node.uid != node.uid) else { return plain };
        let mark = Mark::read(&node.annotations);
        let mut labels = labels_of(record);
        labels.retain(|key, _| !mark.as_ref().is_some_and(|mark| mark.speaks_of(&Key::label(key))));
        labels.extend(node.labels.clone());
        let informed = self.of_labels(&labels);
        // Another identity would mean another record: that node is somebody else.
        if informed.identity == plain.identity { informed } else { plain }
    }

    pub fn of_labels(&self, labels: &BTreeMap<String, String>) -> Arc<Policy> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        choose(&state.good, labels).map_or_else(|| Arc::clone(&self.default), |found| Arc::new(found.policy.clone()))
    }

    /// A node, made small, with all that any policy in force may look at: which of them is for it depends on its record, too.
    pub fn pack(&self, node: &Node) -> Packed {
        let looks =
            |policy: &Policy| !policy.annotations.is_empty() || matches!(policy.identity, Identity::Annotation(_));
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let looks = looks(&self.default) || state.good.iter().any(|policy| looks(&policy.policy));
        Packed::new(node, looks)
    }

    /// Some nodes are known by something else than their name.
    pub fn identities_differ(&self) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let cluster = state.good.iter().any(|policy| policy.policy.identity != Identity::Name);
        cluster || self.default.identity != Identity::Name
    }

    /// There are KeepPolicies in force.
    pub fn has_any(&self) -> bool {
        !self.state.read().unwrap_or_else(PoisonError::into_inner).good.is_empty()
    }

    /// All policies of the cluster by name.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).entries.clone()
    }
}

/// The labels that a record holds.
pub fn labels_of(record: &Record) -> BTreeMap<String, String> {
    let label = |(key, value): (&Key, &String)| match key {
        Key::Label(key) => Some((key.clone(), value.clone())),
        _ => None,
    };
    record.kept.iter().filter_map(label).collect()
}
