//! Moves of records to the name of another identity.

use perennial_core::keeper::{
    collect::{ABSENT_SINCE, MASS_ABSENCE},
    record::Record,
};

use super::{KeeperClient, KeeperError, LoadedRecord, NODE_ANNOTATION};
use crate::keeper::Priority;

/// Why a record gets another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordMove {
    /// It is captured from its node, which is not absent.
    Capture,
    /// The identity setting has changed.
    Migration,
}

impl KeeperClient {
    /// Writes a record. If it is filed under another identity than the record that was read, it is
    /// moved there.
    pub async fn write_or_move_record(
        &self,
        held: Option<&LoadedRecord>,
        record: &Record,
        priority: Priority,
    ) -> Result<LoadedRecord, KeeperError> {
        match held {
            Some(held) if held.name() != record.name().0 => {
                self.move_record(held, record, RecordMove::Capture, priority).await
            }
            _ => self.write_record(held, record, priority).await,
        }
    }

    /// Writes a record under its new name, with the annotations of the former one, then deletes the
    /// former one. A newer record under the new name is a conflict, and in a migration also the
    /// record of another machine. Quarantined bytes stay where they are.
    pub async fn move_record(
        &self,
        held: &LoadedRecord,
        record: &Record,
        kind: RecordMove,
        priority: Priority,
    ) -> Result<LoadedRecord, KeeperError> {
        let name = record.name();
        let target = self.read_record(&name, priority).await?;
        let is_newer = |found: &Record| {
            (found.node.resource_version, found.sequence) >= (record.node.resource_version, record.sequence)
        };
        let target = match target {
            // The write is refused: the record exists.
            Some(target) if target.stored().fault().is_some() => None,
            Some(target) if target.stored().good().is_some_and(is_newer) => {
                let is_superseded = |found: &Record| found.is_of_same_machine(record) && continues(found, held);
                if target.stored().good().is_some_and(is_superseded) && held.stored().fault().is_none() {
                    // An earlier move ended between its two writes.
                    self.delete_record(held).await?;
                    return Ok(target);
                }
                None
            }
            Some(target) if kind == RecordMove::Migration && is_of_another_machine(&target, record) => None,
            target => target,
        };
        // Sequences only grow, also where an older record of the node is replaced.
        let replaced = target.as_ref().and_then(|target| target.stored().good()).map_or(0, |found| found.sequence);
        let record = &Record { sequence: record.sequence.max(replaced + 1), ..record.clone() };
        let is_outdated = |key: &str| kind == RecordMove::Capture && [ABSENT_SINCE, MASS_ABSENCE].contains(&key);
        let kept = |key: &String| key != NODE_ANNOTATION && !is_outdated(key);
        let mut annotations = held.annotations().clone();
        annotations.retain(|key, _| kept(key));
        let written = self.write_record_with(target.as_ref(), record, annotations, priority).await?;
        if held.stored().fault().is_none() {
            self.delete_record(held).await?;
        }
        Ok(written)
    }
}

/// Whether a record under the new name may be the one that was moved there. A move continues the
/// sequence. A record with a lower one was begun without the other, and does not contain its keys.
fn continues(target: &Record, held: &LoadedRecord) -> bool {
    held.stored().good().is_none_or(|held| target.sequence > held.sequence)
}

/// Whether a record with content is of another machine. Replacing it would lose that content.
fn is_of_another_machine(target: &LoadedRecord, record: &Record) -> bool {
    target.stored().good().is_some_and(|found| !found.is_tombstone() && !found.is_of_same_machine(record))
}
