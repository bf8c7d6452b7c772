//! Writes the records of nodes: the capture of a live node and the record of a last state.

use perennial_core::keeper::{
    case::{Case, Phase},
    decide::RecordWrite,
    keys::Kept,
    record::Record,
    selection,
};
use tracing::{info, warn};

use super::{Done, NodeReconciler};
use crate::{
    keeper::{
        NodeKey, Priority,
        apply::{KeeperError, LoadedRecord},
        intake::FLAPS,
        metrics::Via,
    },
    runtime::{error_category::Category, reporter::CategorizedError as _},
};

impl NodeReconciler {
    /// Writes the record of a live node.
    pub(super) async fn capture(
        &self,
        key: &NodeKey,
        case: &Case,
        kind: RecordWrite,
        (held, next): (Option<&LoadedRecord>, &Record),
    ) -> Result<Done, KeeperError> {
        let node = case.subject();
        let written = self.write(case, kind, held, next).await;
        if held.is_none()
            && let Err(error) = &written
            && error.category() == Category::Conflict
            && self.label_record(node).await?
        {
            return Ok(Done::Again);
        }
        written?;
        self.intake.note_capture(key);
        if let Some(before) = held.and_then(|held| held.stored().good()) {
            self.note_flap(key, node, before, next);
            if !self.duties.dry_run {
                self.reports.withheld(node, before, next);
            }
        }
        Ok(Done::Wrote)
    }

    /// Detects labels that are set back and forth. They are reported once, captured less and less
    /// often, and never reverted.
    fn note_flap(&self, key: &NodeKey, node: &selection::Node, before: &Record, next: &Record) {
        let back = before.kept != next.kept
            && before.history.first().is_some_and(|entry| Kept::from(entry.content.clone()) == next.kept);
        if !back {
            return;
        }
        self.metrics.labels_flapped();
        if self.intake.note_flap(key) == FLAPS {
            self.reports.flapping(node, before, next);
        }
    }

    /// Restores the label of a record that lost it: the watch does not deliver records without it.
    /// Returns whether that was the case.
    pub(super) async fn label_record(&self, node: &selection::Node) -> Result<bool, KeeperError> {
        let Some(held) = self.record_of(node, Priority::Capture).await?.filter(|held| !held.is_labelled()) else {
            return Ok(false);
        };
        warn!(node = node.name, record = held.name(), "record without its label found; the label is restored");
        let labelled = self.cluster.label_record(&held).await?;
        self.intake.learn_record(&labelled);
        Ok(true)
    }

    /// Reads the node again. Returns whether the decision about it still holds.
    pub(super) async fn is_still(&self, case: &Case) -> Result<bool, KeeperError> {
        let Some(now) = self.cases.read_node(&self.cluster, &case.subject().name, Priority::Capture).await? else {
            return Ok(false);
        };
        let same = case.is_same_in(&now);
        if !same {
            self.intake.learn_node(&now);
        }
        Ok(same)
    }

    pub(super) async fn write(
        &self,
        case: &Case,
        kind: RecordWrite,
        held: Option<&LoadedRecord>,
        next: &Record,
    ) -> Result<(), KeeperError> {
        let node = &case.subject().name;
        if self.duties.dry_run {
            info!(node, act = kind.as_str(), sequence = next.sequence, "would write the record");
            return Ok(());
        }
        let priority = if case.phase() == Phase::Gone { Priority::LastState } else { Priority::Capture };
        let written = self.cluster.write_or_move_record(held, next, priority).await?;
        info!(node, act = kind.as_str(), sequence = next.sequence, labels = next.kept.len(), "record written");
        if kind == RecordWrite::Capture {
            self.metrics.captured(Via::Watch);
        }
        if held.is_none() {
            self.metrics.record_created();
        }
        self.intake.learn_record(&written);
        Ok(())
    }
}
