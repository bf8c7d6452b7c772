//! Logs, Events and metrics about single nodes.

use std::collections::BTreeSet;

use perennial_core::keeper::{
    case::Case,
    decide::Restore,
    identity::Identified,
    keys::{Kept, Key},
    mark::Mark,
    record::Record,
    selection::Node,
};
use tracing::warn;

use super::{
    apply::{KeeperError, LoadedRecord},
    cache::ROOM,
    metrics::KeeperMetrics,
};
use crate::runtime::{
    error_chain::Chain,
    events::{EventObject, Events, Severity},
};

/// Maximum number of keys that a message lists.
const LISTED: usize = 10;

/// Returns a node as the object of an Event.
pub(super) fn event_about(name: &str, uid: &str) -> EventObject {
    EventObject::cluster_scoped("Node", name, uid)
}

/// Reports on single nodes.
#[derive(Clone, Debug)]
pub(super) struct Reports {
    events: Events,
    metrics: KeeperMetrics,
}

impl Reports {
    pub(super) fn new(events: Events, metrics: KeeperMetrics) -> Self {
        Self { events, metrics }
    }

    /// Reports a quarantined record.
    pub(super) fn invalid_record(&self, node: &Node, held: Option<&LoadedRecord>) {
        let Some((held, fault)) = held.and_then(|held| Some((held, held.stored().fault()?))) else { return };
        warn!(node = node.name, record = held.name(), error = %fault, "record quarantined; its bytes are kept");
        self.events.occurred(event_about(&node.name, &node.uid), Severity::Warning, "RecordInvalid", || {
            format!(
                "record {} cannot be trusted: {fault}. Its bytes are kept; nothing is restored from it",
                held.name()
            )
        });
    }

    /// Reports that several live nodes have one identity.
    pub(super) fn conflict(&self, case: &Case) {
        let node = case.subject();
        self.events.occurred(event_about(&node.name, &node.uid), Severity::Warning, "IdentityConflict", || {
            format!(
                "{} is also the identity of {}: nothing is restored until only one of them has it",
                case.identity().and_then(Identified::text).unwrap_or_default(),
                case.rival_names()
            )
        });
    }

    /// Reports a restore.
    pub(super) fn restored(&self, node: &Node, restore: &Restore) {
        if !restore.changes_nothing() {
            let about = event_about(&node.name, &node.uid);
            self.events.occurred(about, Severity::Normal, "Restored", || summary(restore));
        }
        if restore.waits {
            self.waits(node);
        }
    }

    /// Reports a restore in a create request, which set `set` keys: those that the mark lists as
    /// given.
    pub(super) fn restored_in_create(&self, node: &str, uid: &str, set: usize, mark: &Mark) {
        self.events.occurred(event_about(node, uid), Severity::Normal, "Restored", || {
            if mark.unlisted || mark.given.len() != set {
                format!("Restored {set} key(s)")
            } else {
                restored(mark.given.keys())
            }
        });
    }

    /// Reports protected keys that wait for the node to report its machine.
    pub(super) fn waits(&self, node: &Node) {
        self.events.occurred(event_about(&node.name, &node.uid), Severity::Normal, "RestoreWaits", || {
            "protected labels are restored once the node reports its providerID, systemUUID and machineID".to_owned()
        });
    }

    /// Reports protected keys that stay with another machine when a node takes over its record.
    pub(super) fn withheld(&self, node: &Node, before: &Record, next: &Record) {
        let keys: Vec<String> = next
            .withheld
            .iter()
            .filter(|entry| !before.withheld.contains(entry))
            .flat_map(|entry| Kept::from(entry.content.clone()).into_keys())
            .map(|key| key.to_string())
            .collect();
        if keys.is_empty() {
            return;
        }
        self.metrics.protected_keys_withheld(keys.len());
        warn!(node = node.name, keys = keys.join(", "), "protected keys belong to another machine; not restored");
        self.events.occurred(event_about(&node.name, &node.uid), Severity::Warning, "Withheld", || {
            format!("not restored, since they belong to another machine: {}", keys.join(", "))
        });
    }

    /// Reports a last state that was dropped because the size limit was reached.
    pub(super) fn last_state_dropped(&self, node: &str, uid: &str) {
        self.metrics.last_state_dropped();
        warn!(node, limit = ROOM, "last state dropped before it was written: too many wait for their records");
        self.events.occurred(event_about(node, uid), Severity::Warning, "LastStateDropped", || {
            "its last changes are lost: too many last states wait until records can be written. \
             Check why writes of ConfigMaps in Perennial's namespace fail"
                .to_owned()
        });
    }

    /// Reports a last state that is too large to be written. Its keys were given to the next
    /// incarnation.
    pub(super) fn last_state_too_large(&self, node: &Node, error: &KeeperError) {
        self.metrics.last_state_dropped();
        warn!(node = node.name, error = %Chain(error), "last state dropped: its record is too large");
        self.events.occurred(event_about(&node.name, &node.uid), Severity::Warning, "LastStateDropped", || {
            format!("its last state was not written: {}. Remove keys from the node, or keep fewer", Chain(error))
        });
    }

    /// Reports that another client deleted the record of an absent node.
    pub(super) fn record_lost(&self, node: &str, record: &str) {
        self.metrics.records_lost(1);
        warn!(node, record, "record of an absent node deleted by another client");
        self.events.occurred(event_about(node, ""), Severity::Warning, "RecordDeleted", || {
            format!(
                "another client deleted record {record}: the node will return without its labels. \
                 To bring them back, import a backup of the record: perennial import -f FILE"
            )
        });
    }

    /// Reports that other clients deleted records of absent nodes, whose names are not known.
    pub(super) fn other_records_lost(&self, records: usize) {
        self.metrics.records_lost(records);
        warn!(records, "records of absent nodes deleted by other clients while the watch was interrupted");
    }

    /// Reports labels that are set back and forth.
    pub(super) fn flapping(&self, node: &Node, before: &Record, next: &Record) {
        warn!(node = node.name, "labels flap; the node is captured less often");
        self.events.occurred(event_about(&node.name, &node.uid), Severity::Warning, "LabelsFlap", || {
            let changed =
                next.kept.keys().chain(before.kept.keys()).filter(|k| next.kept.get(*k) != before.kept.get(*k));
            let keys: BTreeSet<String> = changed.map(ToString::to_string).collect();
            format!(
                "another controller sets {} back and forth; configure a single writer for these keys",
                keys.into_iter().collect::<Vec<_>>().join(", ")
            )
        });
    }
}

/// Returns the message of the Event of a restore.
fn summary(restore: &Restore) -> String {
    let mut parts = Vec::new();
    if !restore.set.is_empty() {
        parts.push(restored(restore.set.keys()));
    }
    if !restore.remove.is_empty() {
        parts.push(format!("removed {}", list(restore.remove.iter())));
    }
    parts.join("; ")
}

fn restored<'a>(keys: impl Iterator<Item = &'a Key>) -> String {
    format!("Restored {}", list(keys))
}

/// Returns the first keys and the number of the others.
fn list<'a>(keys: impl Iterator<Item = &'a Key>) -> String {
    let keys: Vec<String> = keys.map(ToString::to_string).collect();
    let shown = keys.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match keys.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
