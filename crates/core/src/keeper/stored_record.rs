//! The content of a record's ConfigMap: a valid record, or quarantined bytes and their substitute.

use std::{borrow::Cow, collections::BTreeMap};

use super::{
    keys::Kept,
    mark::Mark,
    provenance::Provenance,
    record::{HistoryEntry, Invalid, Origin, RECORD_KEY, RECOVERED_KEY, Record, RecordFault, brief},
    selection::Node,
};

/// The content of a record's ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    Good(Box<Record>),
    /// The bytes of the record are quarantined. `good` is used instead: a record written since, or
    /// history.
    Bad {
        fault: RecordFault,
        good: Substitute,
    },
}

/// The substitute of a quarantined record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Substitute {
    Recovered(Box<Record>),
    History(Box<HistoryEntry>),
    Nothing,
}

impl Stored {
    /// Reads a record without signature. `is_for` returns whether a record belongs where it was
    /// found.
    pub fn read(data: &BTreeMap<String, String>, is_for: impl Fn(&Record) -> bool) -> Self {
        Self::verified(data, is_for, |_, _| Ok(()), |_, _| Ok(()))
    }

    /// Reads a record. `verify` checks the bytes under a data key before anything in them is used,
    /// including history; `accept` then checks the record.
    pub fn verified(
        data: &BTreeMap<String, String>,
        is_for: impl Fn(&Record) -> bool,
        verify: impl Fn(&'static str, &str) -> Result<(), RecordFault>,
        accept: impl Fn(&'static str, &Record) -> Result<(), RecordFault>,
    ) -> Self {
        let read = |key: &'static str| -> Result<Record, Invalid> {
            let refused = |why| Invalid { why, good: None };
            let text = data.get(key).ok_or_else(|| refused(RecordFault::Missing))?;
            verify(key, text).map_err(refused)?;
            let record = Record::decode(text)?;
            if !is_for(&record) {
                return Err(refused(RecordFault::Swapped(owner_of(&record))));
            }
            accept(key, &record).map_err(refused)?;
            Ok(record)
        };
        match (read(RECORD_KEY), read(RECOVERED_KEY)) {
            (Ok(record), Ok(recovered)) if recovered.sequence > record.sequence => Self::Good(Box::new(recovered)),
            (Ok(record), _) => Self::Good(Box::new(record)),
            (Err(bad), Ok(recovered)) => Self::Bad { fault: bad.why, good: Substitute::Recovered(Box::new(recovered)) },
            (Err(bad), Err(_)) => {
                let good = bad.good.map_or(Substitute::Nothing, Substitute::History);
                Self::Bad { fault: bad.why, good }
            }
        }
    }

    pub fn fault(&self) -> Option<&RecordFault> {
        match self {
            Self::Good(_) => None,
            Self::Bad { fault, .. } => Some(fault),
        }
    }

    /// Returns the record if it is not quarantined.
    pub fn good(&self) -> Option<&Record> {
        match self {
            Self::Good(record) => Some(record),
            Self::Bad { .. } => None,
        }
    }

    /// Returns the record to decide on. A history entry stands for the incarnation that it was
    /// captured from.
    pub fn record_for(&self, node: &Node) -> Option<Cow<'_, Record>> {
        match self {
            Self::Good(record) | Self::Bad { good: Substitute::Recovered(record), .. } => Some(Cow::Borrowed(record)),
            Self::Bad { good: Substitute::History(entry), .. } => Some(Cow::Owned(from_history(entry, node))),
            Self::Bad { good: Substitute::Nothing, .. } => None,
        }
    }

    /// Returns the data key of the next write. Quarantined bytes are never overwritten.
    pub fn write_key(&self) -> &'static str {
        if self.fault().is_some() { RECOVERED_KEY } else { RECORD_KEY }
    }
}

fn owner_of(record: &Record) -> String {
    let owner = record.identity.clone().unwrap_or_else(|| format!("node {}", record.node.name));
    brief(&owner)
}

fn from_history(entry: &HistoryEntry, node: &Node) -> Record {
    let mark = if entry.uid == node.uid { Mark::digest_of(&node.annotations) } else { String::new() };
    Record {
        // The quarantined record had the sequence after its newest entry.
        sequence: entry.sequence + 1,
        node: Origin {
            name: node.name.clone(),
            uid: entry.uid.clone(),
            resource_version: 0,
            mark,
            machine: entry.machine.clone(),
        },
        identity: None,
        provenance: Provenance::default(),
        kept: Kept::from(entry.content.clone()),
        folded: false,
        before: Kept::new(),
        withheld: Vec::new(),
        captured_at: entry.captured_at,
        captured_by: String::new(),
        history: vec![entry.clone()],
    }
}
