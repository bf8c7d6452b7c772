//! Detects a mass absence: the list of nodes of an audit is then not trusted.
//!
//! Nodes that became absent since the last audits are compared with those that were there then.
//! Names that have been absent for longer count for nothing, however many there are.

use std::{collections::VecDeque, time::Duration};

use jiff::Timestamp;

use super::{Candidate, is_older};

/// Minimum number of nodes for a mass absence.
const MASS: usize = 4;
/// Number of audits over which a mass absence may extend.
const AUDITS: usize = 3;
/// The same as a number of audit periods.
const PERIODS: u32 = 3;

/// Trust in a list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    Full,
    /// The list contains no nodes at all.
    Empty,
    /// More than half of the nodes became absent since the last audits, and no others replaced
    /// them.
    MassAbsence {
        /// Number of nodes before.
        before: usize,
    },
}

/// The list of nodes of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeList {
    pub nodes: usize,
    pub trust: Trust,
}

impl NodeList {
    /// Returns the list, judged by an earlier one of the same audit too: a mass absence stays one
    /// although some of its records are noted by now.
    #[must_use]
    pub fn or_as_doubtful_as(self, earlier: Option<Trust>) -> Self {
        match earlier {
            Some(trust) if trust != Trust::Full => Self { trust, ..self },
            _ => self,
        }
    }

    /// A complete list of a cluster of any size.
    pub const TRUSTED: Self = Self { nodes: usize::MAX, trust: Trust::Full };

    /// Whether an absent record is not collected by its age alone. The mass absence in which its
    /// node left is over once half as many nodes exist as before.
    pub fn doubts(&self, record: &Candidate) -> bool {
        let lasts = record.mass_absence.is_some_and(|before| self.nodes.saturating_mul(2) < before);
        !record.confirmed && (self.trust != Trust::Full || lasts)
    }
}

/// The last audits.
#[derive(Clone, Debug)]
pub struct Audits {
    period: Duration,
    /// Time of the start: nodes that were there since then are in the peaks.
    started: Timestamp,
    /// The largest number of nodes before each of the last audits.
    peaks: VecDeque<usize>,
    /// An audit was completed since the start.
    completed: bool,
}

impl Audits {
    pub fn new(period: Duration, started: Timestamp) -> Self {
        Self { period, started, peaks: VecDeque::new(), completed: false }
    }

    /// Begins an audit. `nodes` is the number of nodes in its list, `peak` the largest number since
    /// the last audit.
    pub fn begin(&mut self, nodes: usize, peak: usize, now: Timestamp) -> Tally {
        self.peaks.push_back(peak.max(nodes));
        if self.peaks.len() > AUDITS {
            self.peaks.pop_front();
        }
        self.tally(nodes, now)
    }

    /// Lists again in the same audit.
    pub fn resume(&mut self, nodes: usize, peak: usize, now: Timestamp) -> Tally {
        if let Some(last) = self.peaks.back_mut() {
            *last = peak.max(nodes).max(*last);
        }
        self.tally(nodes, now)
    }

    fn tally(&self, nodes: usize, now: Timestamp) -> Tally {
        let peak = self.peaks.iter().copied().max().unwrap_or(nodes);
        Tally {
            nodes,
            peak,
            now,
            period: self.period,
            started: self.started,
            first: !self.completed,
            records: 0,
            present: 0,
            became_absent: 0,
            lived: 0,
        }
    }

    /// Records that an audit has seen every record.
    pub fn complete(&mut self) {
        self.completed = true;
    }
}

/// The records that an audit has seen so far.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    nodes: usize,
    /// The largest number of nodes since the last audits.
    peak: usize,
    now: Timestamp,
    period: Duration,
    started: Timestamp,
    /// The first audit after the start: nodes that left before it are in no peak.
    first: bool,
    records: usize,
    present: usize,
    became_absent: usize,
    /// Number of those that became absent and lived through an audit before the start.
    lived: usize,
}

impl Tally {
    /// Whether the node of a record was there in one of the last audits, or since then, and is not
    /// any more.
    pub fn became_absent(&self, record: &Candidate) -> bool {
        let recently = match record.absent_since {
            None => record.had_node,
            Some(_) if self.first => false,
            Some(since) => !is_older(since, self.period.saturating_mul(PERIODS), self.now),
        };
        recently && !record.present && !record.tombstone && !record.bad
    }

    /// Counts a record. `created` is the time at which it was first written.
    pub fn count(&mut self, record: &Candidate, created: Option<Timestamp>) {
        if record.tombstone || record.bad {
            return;
        }
        self.records += 1;
        self.present += usize::from(record.present);
        if self.became_absent(record) {
            self.became_absent += 1;
            // The last audit would have noted its absence.
            let lived = |created| created < self.started && is_older(created, self.period, self.now);
            self.lived += usize::from(created.is_some_and(lived));
        }
    }

    pub fn records(&self) -> usize {
        self.records
    }

    pub fn absent(&self) -> usize {
        self.records - self.present
    }

    /// Returns the number of records whose node became absent since the last audits.
    pub fn recently_absent(&self) -> usize {
        self.became_absent
    }

    /// Returns the list of nodes, judged by all records.
    pub fn node_list(&self) -> NodeList {
        let before = if self.first { self.peak.max(self.present + self.lived) } else { self.peak };
        let most_left = self.became_absent * 2 > self.present + self.became_absent;
        let replaced = self.nodes * 2 >= before;
        let trust = match self.nodes {
            _ if before >= MASS && most_left && !replaced => Trust::MassAbsence { before },
            0 if self.records > 0 => Trust::Empty,
            _ => Trust::Full,
        };
        NodeList { nodes: self.nodes, trust }
    }
}
