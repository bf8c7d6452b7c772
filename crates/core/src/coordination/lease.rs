//! Leader election for one Lease, from the view of one candidate, without a clock and a client.
//!
//! Owns the state machine behind leader election and shards. Its input is what was read and when,
//! by the local monotonic clock. Its output is what to write, how long to wait, and until when the
//! candidate may act. It never compares wall clocks of different machines: `renewTime` is written
//! for people and only tested for having *changed*.
//!
//! # Guarantees
//! Two candidates are never both inside their act-until windows, regardless of clock skew and
//! wherever they were paused:
//! - a holder's window starts when the renewal was *sent* and lasts 2/3 of the lease;
//! - a candidate takes a Lease only after it has *seen* it unchanged for the whole lease duration
//!   that the holder wrote, and its write is conditional on the version that it saw;
//! - a holder that releases stops acting before it writes the release; a write whose response was
//!   lost opens no window.
//!
//! # Assumptions
//! Clocks run at the same speed to within a fifth. Every identity is used by one process only.
//!
//! # Caveats
//! A Lease that is deleted by hand can be created at once by a process that never saw it, while its
//! holder acts for one more renewal. Processes that saw it wait. Writes to other objects are
//! conditional in any case.

use std::time::Duration;

/// Longest lease duration of another holder that is honoured. For a longer or invalid one, our own
/// applies.
const LONGEST: Duration = Duration::from_hours(1);

/// Timing of an election, all derived from the lease duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Time without a change after which a Lease may be taken. Whole seconds, as in the object.
    pub lease: Duration,
    /// Time for which the holder may act after it sent a renewal.
    pub act: Duration,
    /// Time between renewals.
    pub renew: Duration,
    /// Deadline of each request.
    pub request: Duration,
    /// Additional delay per rank before a candidate takes a free Lease.
    pub step: Duration,
}

impl Terms {
    pub fn new(lease: Duration) -> Self {
        let whole = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
        let lease = Duration::from_secs(whole.clamp(1, LONGEST.as_secs()));
        Self {
            lease,
            act: lease * 2 / 3,
            renew: lease / 5,
            request: lease / 5,
            step: (lease / 20).clamp(Duration::from_millis(50), Duration::from_millis(500)),
        }
    }
}

/// A Lease as a read, a watch or the response to a write showed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseState {
    /// Empty when the Lease is free.
    pub holder: String,
    /// Microseconds. Opaque: only tested for having changed.
    pub renewed: Option<i64>,
    pub lease: Option<Duration>,
    pub transitions: i32,
    pub resource_version: String,
}

/// Intent of this candidate: when to take the Lease, and whether to keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Intent {
    /// Delay after the Lease became free; `None` to leave it.
    pub take: Option<Duration>,
    /// True: a Lease that is held is kept. Otherwise it is released.
    pub keep: bool,
}

impl Intent {
    /// Take at once, and keep.
    pub const HOLD: Self = Self { take: Some(Duration::ZERO), keep: true };
    /// Take nothing, and release what is held.
    pub const NONE: Self = Self { take: None, keep: false };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    Acquire,
    Renew,
    Release,
}

/// A conditional write of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseWrite {
    pub kind: WriteKind,
    /// The resourceVersion that it replaces. `None` creates the Lease, and fails if it exists.
    pub on: Option<String>,
    pub holder: String,
    pub lease: Duration,
    pub renewed: i64,
    pub transitions: i32,
}

/// The next step of a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ElectionStep {
    /// Read the Lease and call [`Election::observed`].
    Read,
    /// Write the Lease and call [`Election::written`], [`Election::conflicted`] or
    /// [`Election::unanswered`].
    Write(LeaseWrite),
    /// Wait until that time, or with `None` until something changes.
    Wait(Option<Duration>),
}

#[derive(Debug, Clone)]
enum Known {
    Nothing,
    Absent {
        since: Duration,
        existed: bool,
    },
    Present {
        seen: LeaseState,
        /// When its term was first seen.
        since: Duration,
        /// When this version was first seen.
        learned: Duration,
    },
}

/// One candidate's view of one Lease. All times are since any fixed point on the local monotonic
/// clock.
#[derive(Debug, Clone)]
pub struct Election {
    identity: String,
    terms: Terms,
    intent: Intent,
    known: Known,
    /// When the last successful acquire or renew was sent.
    held: Option<Duration>,
    must_read: bool,
}

impl Election {
    pub fn new(identity: impl Into<String>, terms: Terms) -> Self {
        Self {
            identity: identity.into(),
            terms,
            intent: Intent::default(),
            known: Known::Nothing,
            held: None,
            must_read: true,
        }
    }

    pub fn set_intent(&mut self, intent: Intent) {
        self.intent = intent;
    }

    /// Returns the end of the window in which the holder may act. The caller compares it with its
    /// clock before each act.
    pub fn act_until(&self) -> Option<Duration> {
        self.held.map(|sent| sent + self.terms.act)
    }

    /// Returns until when a candidate, this one or another, is known to hold the Lease.
    pub fn held_until(&self) -> Option<Duration> {
        match &self.known {
            Known::Present { seen, .. } if seen.holder == self.identity => self.act_until(),
            Known::Present { seen, since, .. } if !seen.holder.is_empty() => Some(*since + self.terms.act),
            _ => None,
        }
    }

    /// Returns the Lease as it was last seen.
    pub fn seen(&self) -> Option<&LeaseState> {
        match &self.known {
            Known::Present { seen, .. } => Some(seen),
            _ => None,
        }
    }

    /// Returns whether the Lease as last seen names this candidate as its holder.
    pub fn is_named(&self) -> bool {
        self.seen().is_some_and(|seen| seen.holder == self.identity)
    }

    /// Records a read. `now` is the time of the response, not of the request.
    pub fn observed(&mut self, now: Duration, lease: Option<LeaseState>) {
        let Some(seen) = lease else {
            let (since, existed) = match &self.known {
                Known::Absent { since, existed } => (*since, *existed),
                // Inside our own window no other candidate can have taken it: creating it needs no
                // grace period.
                Known::Present { .. } => (now, self.act_until().is_none_or(|until| now >= until)),
                Known::Nothing => (now, false),
            };
            self.known = Known::Absent { since, existed };
            self.held = None;
            self.must_read = false;
            return;
        };
        if let Known::Present { seen: known, since, .. } = &mut self.known {
            if is_older(&seen.resource_version, &known.resource_version) {
                return;
            }
            if same_term(known, &seen) {
                let since = *since;
                self.known = Known::Present { seen, since, learned: now };
                self.must_read = false;
                return;
            }
        }
        if seen.holder != self.identity {
            self.held = None;
        }
        self.known = Known::Present { seen, since: now, learned: now };
        self.must_read = false;
    }

    /// Records a consistent read that was sent at `sent` and answered at `now`. Returns true if
    /// the history of the API server went back: the read returned an older version than one that
    /// was seen before it was sent, which only a restore of etcd from a backup explains. Nothing
    /// that was seen before counts then; the Lease is judged afresh.
    pub fn read(&mut self, sent: Duration, now: Duration, lease: Option<LeaseState>) -> bool {
        if let (Known::Present { seen: known, learned, .. }, Some(seen)) = (&self.known, &lease)
            && *learned < sent
            && is_older(&seen.resource_version, &known.resource_version)
        {
            self.reset();
            self.observed(now, lease);
            return true;
        }
        self.observed(now, lease);
        false
    }

    /// Forgets everything that was seen, after the history of the API server went back.
    pub fn reset(&mut self) {
        self.known = Known::Nothing;
        self.held = None;
        self.must_read = true;
    }

    /// Marks the view as stale: the Lease is read before anything else.
    pub fn mark_stale(&mut self) {
        self.must_read = true;
    }

    /// Records a successful write. `sent` is the time of the request, `now` of the response.
    pub fn written(&mut self, sent: Duration, now: Duration, kind: WriteKind, answer: LeaseState) {
        self.observed(now, Some(answer));
        if self.is_named() && kind != WriteKind::Release {
            self.held = Some(self.held.map_or(sent, |before| before.max(sent)));
        }
    }

    /// Records a conflict: the Lease has changed since it was seen.
    pub fn conflicted(&mut self) {
        self.must_read = true;
    }

    /// Records a request without a response. It may have been executed, or may still be.
    pub fn unanswered(&mut self) {
        self.must_read = true;
    }

    /// Returns the next step. `wall` is written as `renewTime`, in microseconds.
    ///
    /// Returning [`WriteKind::Release`] ends the window: the caller waits for running work to end,
    /// then sends it.
    pub fn next(&mut self, now: Duration, wall: i64) -> ElectionStep {
        if self.must_read {
            return ElectionStep::Read;
        }
        match &self.known {
            Known::Nothing => ElectionStep::Read,
            Known::Absent { since, existed } => {
                let Some(delay) = self.intent.take else { return ElectionStep::Wait(None) };
                let grace = if *existed { self.terms.lease } else { Duration::ZERO };
                self.at(now, *since + grace + delay, |candidate| candidate.acquire(None, 0, wall))
            }
            Known::Present { seen, since, .. } if seen.holder == self.identity => {
                if !self.intent.keep {
                    let write = LeaseWrite { holder: String::new(), ..self.write(WriteKind::Release, seen, wall) };
                    self.held = None;
                    return ElectionStep::Write(write);
                }
                let due = self.held.map_or(*since, |sent| sent + self.terms.renew);
                self.at(now, due, |candidate| candidate.write(WriteKind::Renew, seen, wall))
            }
            Known::Present { seen, since, .. } => {
                let Some(delay) = self.intent.take else { return ElectionStep::Wait(None) };
                let grace = if seen.holder.is_empty() { Duration::ZERO } else { self.honoured_lease(seen) };
                self.at(now, *since + grace + delay, |candidate| candidate.acquire(Some(seen), seen.transitions, wall))
            }
        }
    }

    fn at(&self, now: Duration, time: Duration, write: impl FnOnce(&Self) -> LeaseWrite) -> ElectionStep {
        if now >= time { ElectionStep::Write(write(self)) } else { ElectionStep::Wait(Some(time)) }
    }

    /// Returns the lease duration that the present holder may rely on.
    fn honoured_lease(&self, seen: &LeaseState) -> Duration {
        match seen.lease {
            Some(lease) if lease > Duration::ZERO && lease <= LONGEST => lease.max(self.terms.lease),
            _ => self.terms.lease,
        }
    }

    fn acquire(&self, seen: Option<&LeaseState>, transitions: i32, wall: i64) -> LeaseWrite {
        match seen {
            Some(seen) => {
                LeaseWrite { transitions: transitions.saturating_add(1), ..self.write(WriteKind::Acquire, seen, wall) }
            }
            None => LeaseWrite {
                kind: WriteKind::Acquire,
                on: None,
                holder: self.identity.clone(),
                lease: self.terms.lease,
                renewed: wall,
                transitions,
            },
        }
    }

    fn write(&self, kind: WriteKind, seen: &LeaseState, wall: i64) -> LeaseWrite {
        LeaseWrite {
            kind,
            on: Some(seen.resource_version.clone()),
            holder: self.identity.clone(),
            lease: self.terms.lease,
            // A renewal must differ from the one before, even when the wall clock was set back.
            renewed: seen.renewed.map_or(wall, |before| wall.max(before.saturating_add(1))),
            transitions: seen.transitions,
        }
    }
}

/// Returns whether nothing but metadata changed. An annotation must not keep the Lease of a dead
/// holder alive.
fn same_term(a: &LeaseState, b: &LeaseState) -> bool {
    a.holder == b.holder && a.renewed == b.renewed && a.transitions == b.transitions && a.lease == b.lease
}

/// Compares resourceVersions as growing integers. Where they are none, the latest arrival counts as
/// newer, which only costs time.
fn is_older(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a < b,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
