//! The world as the model sees it: one node name, two label keys, one record, everything in small
//! integers so that millions of states fit into memory.

use std::fmt;

pub(crate) const KEYS: usize = 2;
pub(crate) const NAMES: [&str; KEYS] = ["a", "b"];
/// A value for each key; 0 is "not there".
pub(crate) type Labels = [u8; KEYS];

/// In [`Mark::base`]: the node brought the key itself, with the value of the record.
pub(crate) const SAME: u8 = 8;
/// In [`Mark::base`]: the node decided the key itself.
pub(crate) const OWN: u8 = 9;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Mark {
    pub(crate) present: bool,
    pub(crate) complete: bool,
    /// The content that the digest stands for.
    pub(crate) from: Labels,
    /// For each key the value that was given, [`SAME`], [`OWN`] or 0.
    pub(crate) base: Labels,
}

/// `uid` 0 is no node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Node {
    pub(crate) uid: u8,
    pub(crate) rv: u8,
    pub(crate) labels: Labels,
    pub(crate) mark: Mark,
    /// The machine that it really runs on, 1 or 2.
    pub(crate) hardware: u8,
    /// Reported part of it: nothing, all but the providerID, all.
    pub(crate) reported: u8,
}

pub(crate) const REPORTS_ALL: u8 = 2;
/// Machines in a record: unknown, and two that each report all but the providerID, or all.
pub(crate) const MACHINES: usize = 5;

impl Node {
    pub(crate) fn machine(&self) -> u8 {
        if self.reported == 0 { 0 } else { (self.hardware - 1) * 2 + self.reported }
    }
}

pub(crate) fn hardware_of(machine: u8) -> u8 {
    machine.div_ceil(2)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Record {
    pub(crate) present: bool,
    pub(crate) folded: bool,
    pub(crate) uid: u8,
    pub(crate) rv: u8,
    pub(crate) labels: Labels,
    pub(crate) before: Labels,
    /// The mark whose digest the record holds.
    pub(crate) mark: Mark,
    pub(crate) machine: u8,
    /// The protected key (the second one) of other machines.
    pub(crate) withheld: [u8; MACHINES],
    /// Keys that the node of this record was never given, since the policy did not keep them.
    pub(crate) ungiven: [bool; KEYS],
    /// The audit found no node for it: 1, and 2 once that is longer ago than records are kept.
    pub(crate) noted: u8,
}

impl Record {
    pub(crate) fn is_tombstone(&self) -> bool {
        self.labels == [0; KEYS] && self.withheld == [0; MACHINES]
    }

    /// Value of a key that is kept for a machine. Only the second key is ever protected.
    pub(crate) fn kept_for(&self, key: usize, hardware: u8) -> u8 {
        let its = self.machine == 0 || hardware_of(self.machine) == hardware;
        if key == 0 || its && self.labels[key] != 0 {
            return self.labels[key];
        }
        let entries = (1..MACHINES).filter(|machine| hardware_of(*machine as u8) == hardware);
        entries.map(|machine| self.withheld[machine]).max().unwrap_or_default()
    }
}

/// A record as it was read. `fresh`: it has not been written since, so a conditional write will
/// succeed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Read {
    pub(crate) done: bool,
    pub(crate) fresh: bool,
    pub(crate) record: Record,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Event {
    pub(crate) deleted: bool,
    pub(crate) node: Node,
}

/// One replica of the operator: its view of the node, and what it is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Replica {
    pub(crate) synced: bool,
    pub(crate) cache: Node,
    /// A last state that is still to be written.
    pub(crate) last: Node,
    /// It was only concluded from a relist.
    pub(crate) guessed: bool,
    /// How far it has read the log.
    pub(crate) position: u8,
    pub(crate) read: Read,
    /// The record as the last state of the node that is gone had it: what its successor, unchanged
    /// since, may be given without reading the record again.
    pub(crate) recall: Record,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Phase {
    #[default]
    Called,
    Decided,
    /// Admission has seen this state and written what it had to.
    Allowed,
    /// Not read.
    FailedOpen,
}

/// A DELETE on its way through admission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Deletion {
    pub(crate) on: bool,
    pub(crate) node: Node,
    pub(crate) phase: Phase,
    pub(crate) read: Read,
}

/// A CREATE that went through admission and is not committed yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Creation {
    pub(crate) on: bool,
    /// Content of the request.
    pub(crate) own: Labels,
    pub(crate) node: Node,
    /// It came with a mark, and admission did not look: the mark is believed (limit C).
    pub(crate) believed: bool,
}

/// An audit that has listed nodes and records, and is about to act.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Audit {
    pub(crate) on: bool,
    pub(crate) absent: bool,
    pub(crate) read: Read,
}

/// Remaining budget of each step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Budget {
    pub(crate) changes: u8,
    pub(crate) deletes: u8,
    pub(crate) faults: u8,
    pub(crate) delete_failures: u8,
    pub(crate) create_failures: u8,
    pub(crate) refusals: u8,
    pub(crate) forgets: u8,
    pub(crate) saves: u8,
    pub(crate) policies: u8,
    pub(crate) audits: u8,
    /// Number of times that the retention passes.
    pub(crate) ages: u8,
}

/// In [`Expected::unsure`].
pub(crate) const RECORD_DELETED: u8 = 128;
pub(crate) const SLOTS: usize = 3;

/// Expected values of each slot (the first key, and the second one for each machine), as bit sets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Expected {
    pub(crate) want: [u8; SLOTS],
    /// Acceptable as well, while a last state that admission did not see is unprocessed.
    pub(crate) or: [u8; SLOTS],
    /// Values expected since the last processed state.
    pub(crate) seen: [u8; SLOTS],
    /// Incarnations whose last state is unprocessed; the highest bit: a record was deleted by hand.
    pub(crate) unsure: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Broken {
    #[default]
    Nothing,
    /// A write removed a key that the policy does not keep from the record.
    PolicyErased,
    /// A protected key was given to a machine that never had it.
    WrongMachine,
    /// A key that the policy does not keep was written to a node.
    ForeignKey,
    /// A record was collected before its retention ended.
    CollectedEarly,
}

pub(crate) const LOG: usize = 7;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    pub(crate) node: Node,
    pub(crate) record: Record,
    pub(crate) log: [Event; LOG],
    pub(crate) events: u8,
    pub(crate) replicas: [Replica; 2],
    pub(crate) deletion: Deletion,
    /// A DELETE handler that timed out and still runs.
    pub(crate) zombie: Deletion,
    pub(crate) creation: Creation,
    pub(crate) audit: Audit,
    /// Absence of the node: 1, and 2 after the retention.
    pub(crate) away: u8,
    /// It returned after the audit noted its absence.
    pub(crate) returned: bool,
    /// A manifest saved with `kubectl get node -o yaml`.
    pub(crate) saved: Node,
    pub(crate) policy: u8,
    pub(crate) left: Budget,
    pub(crate) expected: Expected,
    /// Writes of the operator since the last outside step.
    pub(crate) writes: u8,
    pub(crate) broken: Broken,
}

impl Expected {
    /// The expected value is certain again, unless the order of changes was lost with the record.
    pub(crate) fn is_certain(&mut self, slot: usize) {
        if self.unsure & RECORD_DELETED == 0 {
            self.or[slot] = 0;
        }
    }
}

impl State {
    fn each_rv(&mut self, visit: &mut impl FnMut(&mut u8)) {
        visit(&mut self.node.rv);
        visit(&mut self.record.rv);
        for deletion in [&mut self.deletion, &mut self.zombie] {
            visit(&mut deletion.node.rv);
            visit(&mut deletion.read.record.rv);
        }
        visit(&mut self.audit.read.record.rv);
        for event in &mut self.log[..self.events as usize] {
            visit(&mut event.node.rv);
        }
        for replica in &mut self.replicas {
            visit(&mut replica.cache.rv);
            visit(&mut replica.last.rv);
            visit(&mut replica.read.record.rv);
            visit(&mut replica.recall.rv);
        }
    }

    pub(crate) fn next_rv(&self) -> u8 {
        let mut highest = 0;
        let mut copy = *self;
        copy.each_rv(&mut |rv| highest = highest.max(*rv));
        highest + 1
    }

    /// Normalises resource versions and drops events that every replica has read.
    pub(crate) fn normalise(&mut self, replicas: usize) {
        let running = self.replicas[..replicas].iter().filter(|replica| replica.synced);
        let read = running.map(|replica| replica.position).min().unwrap_or(self.events).min(self.events);
        if read > 0 {
            self.log.rotate_left(read as usize);
            self.events -= read;
            self.log[self.events as usize..].fill(Event::default());
            for replica in &mut self.replicas[..replicas] {
                replica.position = if replica.synced { replica.position - read } else { 0 };
            }
        }
        let mut used = 0u64;
        self.each_rv(&mut |rv| used |= 1 << *rv);
        used &= !1;
        self.each_rv(&mut |rv| {
            if *rv > 0 {
                *rv = (used & ((2 << *rv) - 1)).count_ones() as u8;
            }
        });
    }

    pub(crate) fn log_is_full(&self) -> bool {
        self.events as usize >= LOG
    }

    pub(crate) fn announce(&mut self, deleted: bool, node: Node) {
        self.log[self.events as usize] = Event { deleted, node };
        self.events += 1;
    }

    pub(crate) fn write_record(&mut self, record: Record) {
        self.record = record;
        self.writes += 1;
        self.returned = false;
        self.outdate_reads();
    }

    pub(crate) fn outdate_reads(&mut self) {
        for replica in &mut self.replicas {
            replica.read.fresh = false;
        }
        self.deletion.read.fresh = false;
        self.zombie.read.fresh = false;
        self.audit.read.fresh = false;
    }
}

struct Shown<'a>(&'a Labels);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = |value: u8| match value {
            SAME => "same".to_owned(),
            OWN => "own".to_owned(),
            value => value.to_string(),
        };
        let present = NAMES.iter().zip(self.0).filter(|(_, v)| **v != 0);
        let pairs: Vec<String> = present.map(|(name, v)| format!("{name}={}", value(*v))).collect();
        write!(f, "{{{}}}", pairs.join(" "))
    }
}

pub(crate) fn show(labels: &Labels) -> String {
    Shown(labels).to_string()
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.present {
            return f.write_str("unmarked");
        }
        let partial = if self.complete { "" } else { " partial" };
        write!(f, "mark[from {} base {}{partial}]", Shown(&self.from), Shown(&self.base))
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.uid == 0 {
            return f.write_str("no node");
        }
        write!(f, "U{}@{} {} {}", self.uid, self.rv, Shown(&self.labels), self.mark)?;
        if self.hardware > 0 && (self.hardware > 1 || self.reported < REPORTS_ALL) {
            write!(f, " on M{} (reports {})", self.hardware, ["nothing", "part", "all"][self.reported as usize])?;
        }
        Ok(())
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.present {
            return f.write_str("no record");
        }
        write!(f, "record(U{}@{} {}", self.uid, self.rv, Shown(&self.labels))?;
        if self.mark.present {
            write!(f, " {}", self.mark)?;
        }
        if self.folded {
            write!(f, " folded, before {}", Shown(&self.before))?;
        }
        if self.machine != 2 {
            write!(f, " of machine {}", self.machine)?;
        }
        if self.withheld != [0; MACHINES] {
            write!(f, " withheld {:?}", self.withheld)?;
        }
        if self.ungiven != [false; KEYS] {
            write!(f, " ungiven {:?}", self.ungiven)?;
        }
        if self.noted > 0 {
            f.write_str([" absent", " absent for long"][usize::from(self.noted > 1)])?;
        }
        f.write_str(")")
    }
}
