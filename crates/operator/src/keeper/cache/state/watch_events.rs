//! The events of the watches of nodes and records.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher::Event;
use perennial_core::keeper::selection;
use tokio::time::Instant;
use tracing::debug;

use super::{
    super::{ReconcileRequests, entries::RecordEntry},
    CacheState, LostRecord,
};
use crate::keeper::{
    NodeKey, Priority,
    apply::{LoadedRecord, resource_version},
    node::Node,
    policies::Policies,
    record_keys::Signatures,
};

impl CacheState {
    pub(in super::super) fn on_node(&mut self, event: Event<Node>, policies: &Policies) -> ReconcileRequests {
        self.last_event = Some(Instant::now());
        match event {
            Event::Init => {
                self.past.interrupted();
                self.index.begin_nodes();
                self.nodes_progress.begin_list();
            }
            Event::InitApply(node) => {
                let (ready, node) = (node.ready(), node.into_view());
                self.nodes_progress.listed(node.resource_version);
                let is_new = self.index.node(&node.name).is_none();
                let mut requests = self.put_node(&node, policies);
                self.look_up_record(&node, is_new, &mut requests);
                self.index.note_listed_node(&node.name);
                self.report_node(&node, ready, false);
                return requests;
            }
            Event::Apply(node) => {
                let (ready, node) = (node.ready(), node.into_view());
                self.nodes_progress.delivered(node.resource_version);
                // Seen from its creation on: it may be given the last state of its predecessor.
                let is_new = self.index.node(&node.name).is_none();
                if is_new {
                    debug!(node = node.name, uid = node.uid, "node added");
                    self.past.changed(&node.name, true);
                }
                let mut requests = self.put_node(&node, policies);
                self.look_up_record(&node, is_new, &mut requests);
                self.report_node(&node, ready, true);
                return requests;
            }
            Event::InitDone => {
                self.index.end_nodes();
                self.nodes_listed = true;
                self.nodes_progress.end_list();
                let exists = |name: &NodeKey| self.index.node(name).is_some();
                self.hot.retain(|name, _| exists(name));
                self.waiting.retain(|name, _| exists(name));
                self.gated.retain(|name, _| exists(name));
                self.unproven.retain(|name| exists(name));
                if let Some(activity) = &mut self.activity {
                    activity.retain_nodes(|name| self.index.node(name).is_some());
                }
                return self.everything();
            }
            Event::Delete(node) => {
                let node = node.into_view();
                self.nodes_progress.delivered(node.resource_version);
                if let Some(activity) = &mut self.activity {
                    activity.on_node_deleted(&self.index.key(&node.name));
                }
                return self.delete_node(&node, policies);
            }
        }
        ReconcileRequests::new()
    }

    /// Requests a new node without labels and without a cached record, whose record is looked up
    /// once.
    fn look_up_record(&mut self, node: &selection::Node, is_new: bool, requests: &mut ReconcileRequests) {
        if is_new && self.is_synced() && requests.is_empty() && self.index.may_have_lost_record(&node.name) {
            let name = self.index.key(&node.name);
            self.unproven.insert(Arc::clone(&name));
            requests.push((name, Priority::Collect));
        }
    }

    /// Reports a node to the activity. Called after the node is cached, so that both share its
    /// name.
    fn report_node(&mut self, node: &selection::Node, ready: Option<bool>, news: bool) {
        let Some(activity) = &mut self.activity else { return };
        let key = self.index.key(&node.name);
        let record = self.index.node(&key).and_then(|entry| self.index.record(entry.record.as_deref()?));
        activity.on_node(&key, (node, ready), record.is_some(), news);
    }

    fn report_record(&mut self, held: &LoadedRecord, news: bool) {
        if let Some(activity) = &mut self.activity {
            activity.on_record(held, news);
        }
    }

    pub(in super::super) fn on_record(
        &mut self,
        event: Event<ConfigMap>,
        policies: &Policies,
        signatures: &Signatures,
    ) -> ReconcileRequests {
        match event {
            Event::Init => {
                self.index.begin_records();
                self.records_progress.begin_list();
            }
            Event::InitApply(config_map) => {
                let held = LoadedRecord::new(config_map, signatures);
                self.records_progress.listed(held.resource_version());
                let requests = self.put_record(&held, policies);
                self.index.note_listed_record(held.name());
                self.report_record(&held, false);
                return requests;
            }
            Event::Apply(config_map) => {
                let held = LoadedRecord::new(config_map, signatures);
                self.records_progress.delivered(held.resource_version());
                let requests = self.put_record(&held, policies);
                self.index.trim_now_and_then();
                self.report_record(&held, true);
                return requests;
            }
            Event::InitDone => {
                self.note_lost_records();
                self.records_listed = true;
                self.records_progress.end_list();
                if let Some(activity) = &mut self.activity {
                    activity.retain_records(|name| self.index.has_record(name));
                }
                return self.everything();
            }
            Event::Delete(config_map) => {
                let name = config_map.metadata.name.clone().unwrap_or_default();
                self.records_progress.delivered(resource_version(&config_map));
                let held = LoadedRecord::new(config_map, signatures);
                if let Some(activity) = &mut self.activity {
                    activity.on_record_deleted(held.name(), held.node_name());
                }
                signatures.on_deleted(&name, held.uid().unwrap_or_default());
                let requests = self.index.delete_record(&name, Some(&RecordEntry::new(&held)));
                return self.when_synced(requests);
            }
        }
        ReconcileRequests::new()
    }

    /// Ends a list of records, and marks those of absent nodes that it did not contain: they
    /// were deleted while the watch was interrupted.
    fn note_lost_records(&mut self) {
        let gone = self.index.unlisted_records();
        let lost = gone.into_iter().filter_map(|record| {
            let entry = self.index.record(&record)?;
            let node = Arc::clone(&entry.node);
            self.has_only_copy(&record, entry).then_some(LostRecord { record, node })
        });
        let lost: Vec<LostRecord> = lost.collect();
        let others = self.index.end_records();
        self.lost.records.extend(lost);
        self.lost.others += others;
    }
}
