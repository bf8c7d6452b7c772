//! Join of all nodes with their records, with one page of each in memory.
//!
//! Both lists are sorted by name, and a record is named after its node, so they are merged like two
//! sorted files. If nodes are not identified by name, all records are read first.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use kube::api::ListParams;
use perennial_core::{
    config::Identity,
    keeper::{
        identity::{Identified, RecordName},
        selection::Node,
    },
};

use super::{
    inspected_node::InspectedNode,
    progress::Progress,
    session::{Session, node_pages, record_pages},
};
use crate::keeper::{Priority, apply::LoadedRecord, record_lookup::choose};

/// One of the two lists: the rest of its current page.
struct Pages<T> {
    ready: VecDeque<T>,
    params: ListParams,
    more: bool,
}

impl<T> Pages<T> {
    fn new(params: ListParams) -> Self {
        Self { ready: VecDeque::new(), params, more: true }
    }

    fn take_in(&mut self, page: Vec<T>, next: Option<String>) {
        self.ready.extend(page);
        self.more = next.is_some();
        self.params.continue_token = next;
    }
}

impl Pages<Node> {
    async fn fill(&mut self, session: &Session) -> anyhow::Result<()> {
        while self.ready.is_empty() && self.more {
            let (page, next) = session.cluster.list_nodes(&self.params).await?;
            self.take_in(page, next);
        }
        Ok(())
    }
}

impl Pages<LoadedRecord> {
    async fn fill(&mut self, session: &Session) -> anyhow::Result<()> {
        while self.ready.is_empty() && self.more {
            let (page, next) = session.cluster.list_records(&self.params).await?;
            self.take_in(page, next);
        }
        Ok(())
    }
}

/// Returns the identities that records are filed under.
pub(crate) fn identities_in_use<'a>(records: impl Iterator<Item = &'a LoadedRecord>) -> BTreeSet<Identity> {
    let good = records.filter_map(|held| held.stored().good());
    good.map(|record| Identified::of_record(record).kind().clone()).collect()
}

/// Maximum number of pairs in a batch.
const BATCH: usize = 500;

impl Session {
    /// Calls a function with every node and its record, and with every record without a node. With
    /// a selector, only with selected nodes.
    pub(crate) async fn each_pair(
        &self,
        selector: Option<&str>,
        streams: bool,
        mut on: impl FnMut(Vec<InspectedNode>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut progress = Progress::new("nodes and records", streams);
        let mut hand_on = |batch: &mut Vec<InspectedNode>, least: usize| {
            if batch.len() < least {
                return Ok(());
            }
            let mut batch = std::mem::take(batch);
            if selector.is_some() {
                // The node of a record without a node may just not be selected.
                batch.retain(|look| look.node().is_some());
            }
            progress.advance(batch.len());
            on(batch)
        };
        let mut batch = Vec::new();
        if self.policies.identities_differ() || self.has_identified_records().await? {
            self.by_identity(selector, async |look| {
                batch.push(look);
                hand_on(&mut batch, BATCH)
            })
            .await?;
        } else {
            self.by_name(selector, async |look| {
                batch.push(look);
                hand_on(&mut batch, BATCH)
            })
            .await?;
        }
        hand_on(&mut batch, 1)
    }

    /// Returns whether some nodes are not identified by their name, whatever policies identify them
    /// by now. The records of those come first in a list.
    pub(super) async fn has_identified_records(&self) -> anyhow::Result<bool> {
        let (first, _) = self.cluster.list_records(&record_pages().limit(1)).await?;
        Ok(first.first().is_some_and(|held| held.name().starts_with("id-")))
    }

    async fn by_name(
        &self,
        selector: Option<&str>,
        mut on: impl AsyncFnMut(InspectedNode) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (mut nodes, mut records) =
            (Pages::<Node>::new(node_pages(selector)), Pages::<LoadedRecord>::new(record_pages()));
        // Records of nodes with long names have hashed names: read one by one, and skipped in the
        // list.
        let (mut read, mut odd) = (HashSet::new(), Vec::new());
        loop {
            nodes.fill(self).await?;
            records.fill(self).await?;
            if let Some(held) = records.ready.front()
                && held.name() != format!("node-{}", held.node_name())
            {
                odd.push(held.name().to_owned());
                records.ready.pop_front();
                continue;
            }
            let Some(node) = nodes.ready.front() else {
                match records.ready.pop_front() {
                    Some(held) => on(self.pair(None, Some(held))).await?,
                    None => break,
                }
                continue;
            };
            let name = Identified::named(&node.name).record_name();
            if name.0 != format!("node-{}", node.name) {
                let held = self.cluster.read_record(&name, Priority::Restore).await?;
                read.insert(name.0);
                on(self.pair(nodes.ready.pop_front(), held)).await?;
                continue;
            }
            match records.ready.front().map(|held| held.name().cmp(&name.0)) {
                Some(std::cmp::Ordering::Less) => on(self.pair(None, records.ready.pop_front())).await?,
                Some(std::cmp::Ordering::Equal) => {
                    on(self.pair(nodes.ready.pop_front(), records.ready.pop_front())).await?;
                }
                Some(std::cmp::Ordering::Greater) | None => on(self.pair(nodes.ready.pop_front(), None)).await?,
            }
        }
        for name in odd.into_iter().filter(|name| !read.contains(name)) {
            if let Some(held) = self.cluster.read_record(&RecordName(name), Priority::Restore).await? {
                on(self.pair(None, Some(held))).await?;
            }
        }
        Ok(())
    }

    /// Returns the name of the record of a node. Empty while the node lacks the field that
    /// identifies it, and no record was found.
    fn name_among(&self, node: &Node, records: &HashMap<String, LoadedRecord>, in_use: &BTreeSet<Identity>) -> String {
        let policies = self.policies.current();
        let identities = policies.identities_of(node, in_use);
        let found = identities
            .into_iter()
            .filter_map(|identity| Some((identity.clone(), records.get(&identity.record_name().0)?.clone())));
        let found = choose(&policies, node, found.collect()).map(|held| held.name().to_owned());
        found.or_else(|| Some(policies.identify(node)?.record_name().0)).unwrap_or_default()
    }

    async fn by_identity(
        &self,
        selector: Option<&str>,
        mut on: impl AsyncFnMut(InspectedNode) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut records: HashMap<String, LoadedRecord> = HashMap::new();
        self.each_record(|page| {
            records.extend(page.into_iter().map(|held| (held.name().to_owned(), held)));
            Ok(())
        })
        .await?;
        let in_use = identities_in_use(records.values());
        let mut claims: HashMap<String, Vec<String>> = HashMap::new();
        self.each_node(None, |page| {
            for node in page {
                let record = self.name_among(&node, &records, &in_use);
                claims.entry(record).or_default().push(node.name);
            }
            Ok(())
        })
        .await?;
        let mut nodes = Pages::<Node>::new(node_pages(selector));
        loop {
            nodes.fill(self).await?;
            let Some(node) = nodes.ready.pop_front() else { break };
            let record = self.name_among(&node, &records, &in_use);
            // Nodes without an identity have no name of a record in common.
            let claimed = claims.get(&record).filter(|_| !record.is_empty());
            let rivals = claimed.into_iter().flatten().filter(|name| **name != node.name).cloned().collect();
            let held = records.get(&record).cloned();
            on(InspectedNode::new(&self.policies, Some(node), held, rivals)).await?;
        }
        let mut left: Vec<LoadedRecord> =
            records.into_values().filter(|held| !claims.contains_key(held.name())).collect();
        left.sort_by(|a, b| a.node_name().cmp(b.node_name()));
        for held in left {
            on(self.pair(None, Some(held))).await?;
        }
        Ok(())
    }
}
