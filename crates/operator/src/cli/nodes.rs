//! `perennial nodes`: list nodes and the state of their records.

use std::process::ExitCode;

use clap::{Args, builder::PossibleValuesParser};
use jiff::Timestamp;
use perennial_core::{
    config::LabelSelector,
    keeper::{keys::Kept, status::KeepState, stored_record::Stored},
};
use serde_json::json;

use super::{
    Global, block_on,
    output::{Format, Item, Listing},
    watch,
};
use crate::{
    inspect::{format::age, look::Look},
    keeper::apply::Held,
};

#[derive(Debug, Args)]
pub(super) struct Nodes {
    /// Selector on node labels. Excludes deleted nodes
    #[arg(short = 'l', long, value_name = "SELECTOR", value_parser = selector)]
    selector: Option<String>,
    /// List only nodes in this state. Can be repeated
    #[arg(long, value_name = "STATE", ignore_case = true, value_parser = PossibleValuesParser::new(KeepState::ALL.map(KeepState::as_str)))]
    state: Vec<String>,
    /// Watch for changes after listing
    #[arg(short, long)]
    watch: bool,
    /// Output format: table, wide, json, yaml or name
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
}

const HEADER: [&str; 8] = ["NODE", "STATE", "KEPT", "RECORD", "CAPTURED", "POLICY", "SEQUENCE", "STANDING"];
const NARROW: usize = 5;

/// Validates a label selector before it is sent to the API server.
pub(super) fn selector(text: &str) -> Result<String, String> {
    LabelSelector::parse(text).map(|_| text.to_owned())
}

impl Nodes {
    pub(super) fn execute(self, global: &Global) -> anyhow::Result<ExitCode> {
        block_on(async {
            let session = global.open_session().await?;
            let mut listing = Listing::new(self.output, "NodeList", &HEADER, NARROW).watched(self.watch);
            let now = Timestamp::now();
            session
                .each_pair(self.selector.as_deref(), true, |page| {
                    listing.page(page.iter().filter_map(|look| self.item(look, now)).collect())
                })
                .await?;
            if self.watch {
                let selector = self.selector.clone();
                return watch::nodes(&session, selector.as_deref(), listing, |look| self.item(look, Timestamp::now()))
                    .await;
            }
            listing.end("No nodes found.")?;
            Ok(ExitCode::SUCCESS)
        })
    }

    /// Returns `None` if the node is not in a selected state.
    fn item(&self, look: &Look, now: Timestamp) -> Option<Item> {
        let standing = look.status();
        let word = standing.state().as_str();
        if !self.state.is_empty() && !self.state.iter().any(|state| state.eq_ignore_ascii_case(word)) {
            return None;
        }
        let record = match look.stored() {
            Some(Stored::Good(record)) => Some(record),
            _ => None,
        };
        let kept = look.kept().map(Kept::len).or_else(|| record.map(|record| record.kept.len()));
        let dash = || "-".to_owned();
        let row = vec![
            look.name().to_owned(),
            word.to_owned(),
            kept.map_or_else(dash, |kept| kept.to_string()),
            look.held.as_ref().map_or_else(dash, |held| held.name().to_owned()),
            record.map_or_else(dash, |record| age(record.captured_at, now)),
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
            "record": look.held.as_ref().map(Held::name),
            "sequence": record.map(|record| record.sequence),
            "capturedAt": record.map(|record| record.captured_at),
        });
        Some(Item { name: format!("node/{}", look.name()), row, value })
    }
}
