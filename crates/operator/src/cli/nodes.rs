//! `perennial nodes`: list nodes and the state of their records.

use std::process::ExitCode;

use clap::{Args, builder::PossibleValuesParser};
use jiff::Timestamp;
use perennial_core::{
    config::LabelSelector,
    keeper::{status::KeepState, stored_record::Stored},
};
use serde_json::json;

use super::{
    Global, block_on, for_each,
    output::{Format, Item, Listing},
    watch,
};
use crate::{
    inspect::{collection::RecordLifetime, format::age, inspected_node::InspectedNode},
    keeper::apply::LoadedRecord,
};

#[derive(Debug, Args)]
pub(super) struct NodesArgs {
    /// Names of the nodes, which may be deleted. Defaults to all nodes
    #[arg(value_name = "NODE", value_parser = super::node_name, add = super::completion::nodes())]
    names: Vec<String>,
    /// Selector on node labels. Excludes deleted nodes
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector, conflicts_with = "names")]
    selector: Option<String>,
    /// List only nodes in this state. Can be repeated
    #[arg(long, value_name = "STATE", ignore_case = true, value_parser = PossibleValuesParser::new(KeepState::ALL.map(KeepState::as_str)))]
    state: Vec<String>,
    /// Watch for changes after listing
    #[arg(short, long, conflicts_with = "names")]
    watch: bool,
    /// Output format: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

const HEADER: [&str; 10] =
    ["NODE", "STATE", "KEPT", "RECORD", "HOLD", "CAPTURED", "COLLECTED", "POLICY", "SEQUENCE", "STANDING"];
const NARROW: usize = 6;
/// Columns that change with time alone.
const AGES: [usize; 2] = [5, 6];

/// Validates a label selector before it is sent to the API server.
pub(super) fn selector(text: &str) -> Result<String, String> {
    LabelSelector::parse(text).map(|_| text.to_owned())
}

impl NodesArgs {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let mut listing = Listing::new(self.output, "NodeList", &HEADER, NARROW).watched(self.watch);
            let now = Timestamp::now();
            if !self.names.is_empty() {
                let mut found = Vec::new();
                let code = for_each(&self.names, async |name| {
                    found.extend(self.item(&session.look(name).await?, now));
                    Ok(())
                })
                .await?;
                listing.page(found)?;
                listing.end("No nodes found.")?;
                return Ok(code);
            }
            session
                .each_pair(self.selector.as_deref(), true, |page| {
                    listing.page(page.iter().filter_map(|look| self.item(look, now)).collect())
                })
                .await?;
            if self.watch {
                let selector = self.selector.clone();
                let item = |look: &InspectedNode| self.item(look, Timestamp::now());
                return watch::nodes(&session, selector.as_deref(), listing, &AGES, item).await;
            }
            listing.end("No nodes found.")?;
            Ok(ExitCode::SUCCESS)
        })
    }

    /// Returns `None` if the node is not in a selected state.
    fn item(&self, look: &InspectedNode, now: Timestamp) -> Option<Item> {
        let standing = look.status();
        let word = standing.state().as_str();
        if !self.state.is_empty() && !self.state.iter().any(|state| state.eq_ignore_ascii_case(word)) {
            return None;
        }
        let record = match look.stored() {
            Some(Stored::Good(record)) => Some(record),
            _ => None,
        };
        let kept = record.map(|record| record.kept.len());
        let lifetime = RecordLifetime::of(look);
        let dash = || "-".to_owned();
        let row = vec![
            look.name().to_owned(),
            word.to_owned(),
            kept.map_or_else(dash, |kept| kept.to_string()),
            look.held.as_ref().map_or_else(dash, |held| held.name().to_owned()),
            RecordLifetime::hold_cell(lifetime.as_ref()),
            record.map_or_else(dash, |record| age(record.captured_at, now)),
            RecordLifetime::cell(lifetime.as_ref(), now),
            look.policy().name.clone(),
            record.map_or_else(dash, |record| record.sequence.to_string()),
            standing.sentence(),
        ];
        let value = json!({
            "name": look.name(),
            "state": word,
            "standing": standing.sentence(),
            "uid": look.node().map(|node| &node.uid),
            "kept": kept,
            "policy": look.policy().name,
            "record": look.held.as_ref().map(LoadedRecord::name),
            "sequence": record.map(|record| record.sequence),
            "capturedAt": record.map(|record| record.captured_at),
            "hold": lifetime.is_some_and(|lifetime| lifetime.hold),
            "collection": lifetime.map(RecordLifetime::to_json),
        });
        Some(Item { name: format!("node/{}", look.name()), row, value })
    }
}
