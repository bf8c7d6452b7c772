//! The world as the model sees it: one node name, two label keys, one record, everything in small integers so that
//! millions of states fit into memory.

use std::fmt;

pub const KEYS: usize = 2;
pub const NAMES: [&str; KEYS] = ["a", "b"];
/// A value for each key; 0 is "not there".
pub type Labels = [u8; KEYS];

/// In [`Mark::base`]: the node brought the key itself, with the value of the record.
pub const SAME: u8 = 8;
/// In [`Mark::base`]: the node decided the key itself.
pub const OWN: u8 = 9;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Mark {
    pub present: bool,
    pub complete: bool,
    /// The content that the digest stands for.
    pub from: Labels,
    /// For each key the value that was given, [`SAME`], [`OWN`] or 0.
    pub base: Labels,
}

/// `uid` 0 is no node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Node {
    pub uid: u8,
    pub rv: u8,
    pub labels: Labels,
    pub mark: Mark,
    /// The machine that it really runs on, 1 or 2.
    pub hardware: u8,
    /// How much it says of that: nothing, all but the providerID, all.
    pub says: u8,
}

pub const SAYS_ALL: u8 = 2;
/// Machines as a record knows them: unknown, and two that each say all but the providerID, or all.
pub const MACHINES: usize = 5;

impl Node {
    pub fn machine(&self) -> u8 {
        if self.says == 0 { 0 } else { (self.hardware - 1) * 2 + self.says }
    }
}

pub fn hardware_of(machine: u8) -> u8 {
    machine.div_ceil(2)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Record {
    pub present: bool,
    pub folded: bool,
    pub uid: u8,
    pub rv: u8,
    pub labels: Labels,
    pub before: Labels,
    /// The mark whose digest the record holds.
    pub mark: Mark,
    pub machine: u8,
    /// The protected key (the second one) of other machines.
    pub withheld: [u8; MACHINES],
}

impl Record {
    /// What is kept of a key for a machine. Only the second key is ever protected.
    pub fn kept_for(&self, key: usize, hardware: u8) -> u8 {
        let its = self.machine == 0 || hardware_of(self.machine) == hardware;
        if key == 0 || its && self.labels[key] != 0 {
            return self.labels[key];
        }
        let entries = (1..MACHINES).filter(|machine| hardware_of(*machine as u8) == hardware);
        entries.map(|machine| self.withheld[machine]).max().unwrap_or_default()
    }
}

/// A record as somebody read it. `fresh`: it has not been written since, so a conditional write will succeed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Read {
    pub done: bool,
    pub fresh: bool,
    pub record: Record,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Event {
    pub deleted: bool,
    pub node: Node,
}

/// One replica of the operator: its view of the node, and what it is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Replica {
    pub synced: bool,
    pub cache: Node,
    /// A last state that is still to be written.
    pub last: Node,
    /// It was only concluded from a relist.
    pub guessed: bool,
    /// How far it has read the log.
    pub position: u8,
    pub read: Read,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Phase {
    #[default]
    Called,
    Decided,
    /// Admission has seen this state and written what it had to.
    Allowed,
    /// Nobody looked.
    FailedOpen,
}

/// A DELETE on its way through admission.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Deletion {
    pub on: bool,
    pub node: Node,
    pub phase: Phase,
    pub read: Read,
}

/// A CREATE that went through admission and is not committed yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Creation {
    pub on: bool,
    /// What the request brought.
    pub own: Labels,
    pub node: Node,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Budget {
    pub changes: u8,
    pub deletes: u8,
    pub faults: u8,
    pub delete_failures: u8,
    pub create_failures: u8,
    pub refusals: u8,
    pub forgets: u8,
    pub saves: u8,
    pub policies: u8,
}

pub const SLOTS: usize = 3;

/// What people want, for each slot (the first key, the second one for each machine) as a set of values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Wishes {
    pub want: [u8; SLOTS],
    /// Acceptable as well, while a last state that admission did not see is unprocessed.
    pub or: [u8; SLOTS],
    /// Everything wanted since the last state that is known to have been processed.
    pub seen: [u8; SLOTS],
    /// Incarnations whose last state is unprocessed; the highest bit: a record was deleted by hand.
    pub unsure: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Broken {
    #[default]
    Nothing,
    /// A write took a key that the policy does not keep out of the record.
    PolicyErased,
    /// A protected key was given to a machine that never had it.
    WrongMachine,
    /// A key that the policy does not keep was written to a node.
    ForeignKey,
}

pub const LOG: usize = 7;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub node: Node,
    pub record: Record,
    pub log: [Event; LOG],
    pub events: u8,
    pub replicas: [Replica; 2],
    pub deletion: Deletion,
    /// A DELETE handler that timed out and still runs.
    pub zombie: Deletion,
    pub creation: Creation,
    /// Somebody's `kubectl get node -o yaml`.
    pub saved: Node,
    pub policy: u8,
    pub left: Budget,
    pub wishes: Wishes,
    /// Writes of ours since something last happened outside.
    pub writes: u8,
    pub broken: Broken,
}

impl State {
    fn each_rv(&mut self, visit: &mut impl FnMut(&mut u8)) {
        visit(&mut self.node.rv);
        visit(&mut self.record.rv);
        for deletion in [&mut self.deletion, &mut self.zombie] {
            visit(&mut deletion.node.rv);
            visit(&mut deletion.read.record.rv);
        }
        for event in &mut self.log[..self.events as usize] {
            visit(&mut event.node.rv);
        }
        for replica in &mut self.replicas {
            visit(&mut replica.cache.rv);
            visit(&mut replica.last.rv);
            visit(&mut replica.read.record.rv);
        }
    }

    pub fn next_rv(&self) -> u8 {
        let mut highest = 0;
        let mut copy = *self;
        copy.each_rv(&mut |rv| highest = highest.max(*rv));
        highest + 1
    }

    /// Makes states equal that differ only in the numbers of resource versions or in events that everyone has read.
    pub fn normalise(&mut self, replicas: usize) {
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

    pub fn log_is_full(&self) -> bool {
        self.events as usize >= LOG
    }

    pub fn announce(&mut self, deleted: bool, node: Node) {
        self.log[self.events as usize] = Event { deleted, node };
        self.events += 1;
    }

    pub fn write_record(&mut self, record: Record) {
        self.record = record;
        self.writes += 1;
        self.outdate_reads();
    }

    pub fn outdate_reads(&mut self) {
        for replica in &mut self.replicas {
            replica.read.fresh = false;
        }
        self.deletion.read.fresh = false;
        self.zombie.read.fresh = false;
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

pub fn show(labels: &Labels) -> String {
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
        if self.hardware > 0 && (self.hardware > 1 || self.says < SAYS_ALL) {
            write!(f, " on M{} (says {})", self.hardware, ["nothing", "part", "all"][self.says as usize])?;
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
        f.write_str(")")
    }
}
