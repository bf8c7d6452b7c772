//! `-w`: changes after a list.

use std::{
    cell::RefCell,
    collections::HashMap,
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant},
};

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use perennial_core::keeper::{identity::Identified, record::record_selector, selection};

use super::output::{Item, Listing};
use crate::{
    inspect::{inspected_node::InspectedNode, session::Session},
    keeper::apply::LoadedRecord,
    runtime::watch,
};

/// Exceeds the longest pause between two attempts of a watch. A failure after a longer pause begins a
/// new outage: a watch that is resumed may have nothing to deliver.
const OUTAGE_ENDS_AFTER: Duration = Duration::from_mins(2);
/// Pause after a failed read of a changed node.
const RETRY: Duration = Duration::from_secs(1);

/// Failures of watches, of which each outage is printed once.
#[derive(Debug, Default)]
pub(super) struct Outage {
    last_failure: Mutex<Option<Instant>>,
}

impl Outage {
    /// Returns the event. Prints the first failure after an event.
    pub(super) fn report<T>(&self, event: Result<T, String>) -> Option<T> {
        match event {
            Ok(event) => {
                self.note(None);
                Some(event)
            }
            Err(why) => {
                if self.note(Some(Instant::now())) {
                    eprintln!("warning: {why}; changes are not shown until it can be watched again");
                }
                None
            }
        }
    }

    /// Records a failure, or an event. Returns whether the failure begins an outage.
    fn note(&self, failed: Option<Instant>) -> bool {
        let mut last = self.last_failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = std::mem::replace(&mut *last, failed);
        match (failed, before) {
            (Some(now), Some(before)) => now.duration_since(before) > OUTAGE_ENDS_AFTER,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

fn failed(what: &'static str) -> impl Fn(watcher::Error) -> String {
    move |error| format!("could not watch {what}: {}", watch::message(&error))
}

/// Prints records as they change, until interrupted.
pub(super) async fn records(
    session: &Session,
    mut listing: Listing,
    item: impl Fn(&LoadedRecord) -> Option<Item>,
) -> anyhow::Result<ExitCode> {
    let config = watcher::Config::default().labels(&record_label());
    let events = watcher(session.cluster.records().clone(), config).default_backoff();
    let mut events = std::pin::pin!(events);
    let outage = Outage::default();
    let mut seen: HashMap<String, u64> = HashMap::new();
    while let Some(event) = events.next().await {
        let (held, fresh) = match outage.report(event.map_err(failed("records"))) {
            Some(watcher::Event::InitApply(config_map)) => {
                (LoadedRecord::new(config_map, session.cluster.signatures()), false)
            }
            Some(watcher::Event::Apply(config_map)) => {
                (LoadedRecord::new(config_map, session.cluster.signatures()), true)
            }
            _ => continue,
        };
        let known = seen.insert(held.name().to_owned(), held.resource_version());
        if fresh && known != Some(held.resource_version()) {
            listing.page(item(&held).into_iter().collect())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints nodes as they or their records change, until interrupted.
pub(super) async fn nodes(
    session: &Session,
    selector: Option<&str>,
    mut listing: Listing,
    ages: &[usize],
    item: impl Fn(&InspectedNode) -> Option<Item>,
) -> anyhow::Result<ExitCode> {
    let config = selector.map_or_else(watcher::Config::default, |selector| watcher::Config::default().labels(selector));
    let (lost_nodes, lost_records) = (Outage::default(), Outage::default());
    let identities = RefCell::new(Identities::default());
    let nodes = watcher(session.cluster.nodes().clone(), config).default_backoff().map(|event| {
        let event = lost_nodes.report(event.map_err(failed("nodes")))?;
        match event {
            watcher::Event::InitApply(node) => {
                identities.borrow_mut().insert(session, &node.into_view());
                None
            }
            watcher::Event::Apply(node) => {
                let node = node.into_view();
                identities.borrow_mut().insert(session, &node);
                Some(node.name)
            }
            watcher::Event::Delete(node) => {
                let name = node.into_view().name;
                identities.borrow_mut().0.remove(&name);
                Some(name)
            }
            watcher::Event::Init | watcher::Event::InitDone => None,
        }
    });
    let config = watcher::Config::default().labels(&record_label());
    let records = watcher(session.cluster.records().clone(), config).default_backoff().map(|event| match lost_records
        .report(event.map_err(failed("records")))
    {
        Some(watcher::Event::Apply(config_map) | watcher::Event::Delete(config_map)) => {
            Some(LoadedRecord::new(config_map, session.cluster.signatures()).node_name().to_owned())
        }
        _ => None,
    });
    let changed = futures::stream::select(nodes, records).filter_map(async |name| name);
    let mut changed = std::pin::pin!(changed);
    let mut printed: HashMap<String, Vec<String>> = HashMap::new();
    while let Some(name) = changed.next().await {
        // Combines the change of a node with the write that follows it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let (node, held, rivals) = loop {
            // Not all nodes are watched with a selector.
            let known = if selector.is_none() { Some(&identities) } else { None };
            match read(session, &name, known).await {
                Ok(found) => break found,
                Err(error) => drop(lost_nodes.report::<()>(Err(format!("could not read node {name}: {error:#}")))),
            }
            tokio::time::sleep(RETRY).await;
        };
        if node.is_none() && (selector.is_some() || held.is_none()) {
            continue;
        }
        let look = InspectedNode::new(&session.policies, node, held, rivals);
        let Some(item) = item(&look) else { continue };
        // A change of ages alone is not printed.
        let cells = item.row.iter().enumerate().filter(|(column, _)| !ages.contains(column));
        let same: Vec<String> = cells.map(|(_, cell)| cell.clone()).collect();
        if printed.get(&name) != Some(&same) {
            printed.insert(name, same);
            listing.page(vec![item])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Identities of all nodes that other nodes can have, by the name of the node.
#[derive(Default)]
struct Identities(HashMap<String, Identified>);

impl Identities {
    fn insert(&mut self, session: &Session, node: &selection::Node) {
        match session.shared_identity(Some(node), None) {
            Some(identity) => drop(self.0.insert(node.name.clone(), identity)),
            None => drop(self.0.remove(&node.name)),
        }
    }

    fn rivals(&self, name: &str, identity: &Identified) -> Vec<String> {
        let others = self.0.iter().filter(|(other, its)| *other != name && *its == identity);
        let mut names: Vec<String> = others.map(|(other, _)| other.clone()).collect();
        names.sort();
        names
    }
}

/// Reads a node and its record, and returns them with the names of other nodes of its identity.
/// `known`: the identities of all nodes.
async fn read(
    session: &Session,
    name: &str,
    known: Option<&RefCell<Identities>>,
) -> anyhow::Result<(Option<selection::Node>, Option<LoadedRecord>, Vec<String>)> {
    let node = session.node(name).await?;
    let held = session.record(name, node.as_ref()).await?;
    let rivals = match (session.shared_identity(node.as_ref(), held.as_ref()), known) {
        (None, _) => Vec::new(),
        (Some(identity), Some(known)) => known.borrow().rivals(name, &identity),
        (Some(identity), None) => session.rivals(name, &identity).await?,
    };
    Ok((node, held, rivals))
}

fn record_label() -> String {
    record_selector()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_reported_once() {
        let (outage, begun) = (Outage::default(), Instant::now());
        let fails_at = |seconds| outage.note(Some(begun + Duration::from_secs(seconds)));

        assert_eq!([fails_at(0), fails_at(1), fails_at(31)], [true, false, false]);
        // After an event, or after a resumed watch that had nothing to deliver, it is another one.
        outage.note(None);
        assert_eq!([fails_at(32), fails_at(33), fails_at(300)], [true, false, true]);
    }
}
