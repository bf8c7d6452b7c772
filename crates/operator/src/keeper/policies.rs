//! The KeepPolicies of the cluster, as the watch delivers them.

use std::{
    collections::BTreeMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use kube::runtime::watcher::Event;
use perennial_core::{
    config::Keeper,
    keeper::{
        policy::KeepPolicy,
        policy_set::PolicySet,
        selection::{Node, Policy},
    },
};
use serde_json::Value;

pub use super::policy_resource::KeepPolicyResource;
use super::{policy_resource::RawStatus, recall_cache::PackedNode};
use crate::runtime::error_category::{self, Category};

/// Interval at which a request checks whether the policies are known, right after the start.
const KNOWN_CHECK: Duration = Duration::from_millis(20);

/// A KeepPolicy of the cluster.
#[derive(Clone, Debug)]
pub struct Entry {
    pub uid: String,
    pub generation: i64,
    pub resource_version: String,
    pub read: Result<KeepPolicy, Vec<String>>,
    /// Its current status.
    pub status: Value,
}

/// The policies in force, shared by clones.
#[derive(Clone, Debug)]
pub struct Policies {
    keeper: Arc<Keeper>,
    state: Arc<RwLock<PolicyState>>,
}

#[derive(Debug)]
struct PolicyState {
    entries: BTreeMap<String, Entry>,
    /// The list that is being delivered.
    listing: Option<BTreeMap<String, Entry>>,
    default: Arc<Policy>,
    /// The valid policies.
    set: Arc<PolicySet>,
    /// The list was read, or the kind does not exist.
    known: bool,
    /// The last attempt to read the list failed.
    failed: bool,
    /// A policy has read annotations since the start. Its records hold them, also while it is
    /// missing: a node that is packed without them would seem to have lost them.
    has_read_annotations: bool,
}

impl PolicyState {
    /// Rebuilds the set. Returns whether it changed.
    fn update_set(&mut self) -> bool {
        let valid = self.entries.values().filter_map(|entry| entry.read.clone().ok()).collect();
        let set = PolicySet::new(Arc::clone(&self.default), valid);
        self.has_read_annotations |= set.reads_annotations();
        let changed = set != *self.set;
        self.set = Arc::new(set);
        changed
    }
}

impl Policies {
    pub fn new(keeper: &Keeper) -> Self {
        let default = Arc::new(Policy::from_settings(keeper));
        let set = PolicySet::new(Arc::clone(&default), Vec::new());
        let state = PolicyState {
            entries: BTreeMap::new(),
            listing: None,
            has_read_annotations: set.reads_annotations(),
            set: Arc::new(set),
            default,
            known: false,
            failed: false,
        };
        Self { keeper: Arc::new(keeper.clone()), state: Arc::new(RwLock::new(state)) }
    }

    /// Reads the policies once, for a command. A cluster without the CRD has none.
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

    /// Applies an event of the watch. Returns whether the policies in force changed.
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
                state.failed = false;
                let first = !std::mem::replace(&mut state.known, true);
                return state.update_set() || first;
            }
            Event::Apply(resource) => {
                let (name, entry) = self.read(resource);
                state.entries.insert(name, entry);
                return state.update_set();
            }
            Event::Delete(resource) => {
                state.entries.remove(resource.metadata.name.as_deref().unwrap_or_default());
                return state.update_set();
            }
        }
        false
    }

    /// Uses the configuration for all nodes: the CRD is not installed. Returns whether that is new.
    pub fn on_absent(&self) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        state.failed = false;
        !std::mem::replace(&mut state.known, true)
    }

    /// Records that the policies could not be read. Policies that were read before stay in force.
    pub fn on_failure(&self) {
        self.state.write().unwrap_or_else(PoisonError::into_inner).failed = true;
    }

    /// Whether the policies were read, or the CRD is not installed. Otherwise it is not known which
    /// keys of a node are kept: nothing may be captured or restored.
    pub fn are_known(&self) -> bool {
        self.state.read().unwrap_or_else(PoisonError::into_inner).known
    }

    /// Whether it must be found out if the CRD is installed.
    pub(super) fn must_be_discovered(&self) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.failed && !state.known
    }

    /// Waits until the policies are known. Returns false at once while they cannot be read.
    pub async fn wait_until_known(&self) -> bool {
        loop {
            let (known, failed) = {
                let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
                (state.known, state.failed)
            };
            if known || failed {
                return known;
            }
            tokio::time::sleep(KNOWN_CHECK).await;
        }
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

    /// Returns the policy for a node whose record is not known.
    pub fn of(&self, node: &Node) -> Arc<Policy> {
        self.current().for_node(node)
    }

    /// Returns the policies in force now.
    pub fn current(&self) -> Arc<PolicySet> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner).set)
    }

    /// Packs a node with everything that any policy may read: its record may select another policy,
    /// and one that is not known yet may keep annotations.
    pub fn pack(&self, node: &Node) -> PackedNode {
        let with_annotations = {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            !state.known || state.has_read_annotations
        };
        PackedNode::new(node, with_annotations)
    }

    /// Whether some nodes are identified by something else than their name.
    pub fn identities_differ(&self) -> bool {
        self.current().identities_differ()
    }

    /// Whether there are KeepPolicies in force.
    pub fn has_any(&self) -> bool {
        self.current().has_keep_policies()
    }

    /// Returns all policies of the cluster by name.
    pub fn entries(&self) -> BTreeMap<String, Entry> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).entries.clone()
    }
}
