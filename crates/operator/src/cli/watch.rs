//! `-w`: changes after a list.

use std::{collections::HashMap, process::ExitCode, time::Duration};

use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use perennial_core::keeper::record::{RECORD_LABEL, RECORD_LABEL_VALUE};

use super::output::{Item, Listing};
use crate::{
    inspect::{look::Look, session::Session},
    keeper::apply::Held,
};

/// Prints records as they change, until interrupted.
pub(super) async fn records(
    session: &Session,
    mut listing: Listing,
    item: impl Fn(&Held) -> Option<Item>,
) -> anyhow::Result<ExitCode> {
    let config = watcher::Config::default().labels(&record_label());
    let events = watcher(session.cluster.records().clone(), config).default_backoff();
    let mut events = std::pin::pin!(events);
    let mut seen: HashMap<String, u64> = HashMap::new();
    while let Some(event) = events.next().await {
        let (held, fresh) = match event {
            Ok(watcher::Event::InitApply(config_map)) => (Held::new(config_map, session.cluster.signatures()), false),
            Ok(watcher::Event::Apply(config_map)) => (Held::new(config_map, session.cluster.signatures()), true),
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
    item: impl Fn(&Look) -> Option<Item>,
) -> anyhow::Result<ExitCode> {
    let config = selector.map_or_else(watcher::Config::default, |selector| watcher::Config::default().labels(selector));
    let nodes = watcher(session.cluster.nodes().clone(), config).default_backoff().map(|event| {
        let changed = |node: crate::keeper::node::Node| Some(node.into_view().name);
        match event {
            Ok(watcher::Event::Apply(node) | watcher::Event::Delete(node)) => changed(node),
            _ => None,
        }
    });
    let config = watcher::Config::default().labels(&record_label());
    let records = watcher(session.cluster.records().clone(), config).default_backoff().map(|event| match event {
        Ok(watcher::Event::Apply(config_map) | watcher::Event::Delete(config_map)) => {
            Some(Held::new(config_map, session.cluster.signatures()).node_name().to_owned())
        }
        _ => None,
    });
    let changed = futures::stream::select(nodes, records).filter_map(async |name| name);
    let mut changed = std::pin::pin!(changed);
    let mut printed: HashMap<String, Vec<String>> = HashMap::new();
    while let Some(name) = changed.next().await {
        // Combines the change of a node with the write that follows it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let node = session.node(&name).await?;
        if node.is_none() && selector.is_some() {
            continue;
        }
        let held = session.record(&name, node.as_ref()).await?;
        if node.is_none() && held.is_none() {
            continue;
        }
        let look = session.pair(node, held);
        let Some(item) = item(&look) else { continue };
        // A change of the age alone is not printed.
        let same = [item.row[..4].to_vec(), item.row[5..].to_vec()].concat();
        if printed.get(&name) != Some(&same) {
            printed.insert(name, same);
            listing.page(vec![item])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn record_label() -> String {
    format!("{RECORD_LABEL}={RECORD_LABEL_VALUE}")
}
