//! Who may act on what a Lease stands for: the decisions of one candidate, without a clock and without a client.
//!
//! Owns the state machine behind leader election and shards. It is told what was read and when (by the local monotonic
//! clock), and says what to write, what to wait for, and until when its owner may act. It never compares wall clocks of
//! different machines: `renewTime` is written for people and only ever tested for having *changed*.
//!
//! # Guarantees
//! Two candidates are never both inside their act-until windows, whatever their clocks say and wherever they were paused:
//! - a holder's window starts when the renewal was *sent* and lasts 2/3 of the lease;
//! - a candidate takes a Lease only after it has *seen* it unchanged for all of the lease (that the holder wrote), and its
//!   write is conditional on the version that it saw;
//! - a holder that gives up stops acting before it says so; a write whose answer was lost gives no window.
//!
//! # Assumptions
//! Clocks run at the same speed to within a fifth. Every identity is used by one process only.
//!
//! # Caveats
//! A Lease that is deleted by hand can be created at once by a process that never saw it, while its holder acts for one
//! more renewal. Whoever saw it waits. What is written meanwhile is conditional anyway.

use std::time::Duration;

/// The longest lease of another holder that is waited for; a larger or senseless value counts as ours.
const LONGEST: Duration = Duration::from_hours(1);

/// The times of an election, all derived from the lease duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// After this long without a change a Lease may be taken. Whole seconds, as in the object.
    pub lease: Duration,
    /// How long the holder may act after a renewal was sent.
    pub act: Duration,
    /// How long after a renewal the next one is due.
    pub renew: Duration,
    /// The deadline of each request.
    pub request: Duration,
    /// What each place further down in the ranking waits longer before it takes a free Lease.
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

/// What a read, a watch or the answer to a write showed of a Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Empty when nobody holds it.
    pub holder: String,
    /// Microseconds; opaque, see above.
    pub renewed: Option<i64>,
    pub lease: Option<Duration>,
    pub transitions: i32,
    pub resource_version: String,
}

/// Whether this candidate should take the Lease, and whether it should keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wish {
    /// How long it stands back after the Lease became free; `None`: does not take it.
    pub take: Option<Duration>,
    /// Whether it keeps what it holds; otherwise it hands over.
    pub keep: bool,
}

impl Wish {
    /// Takes at once and keeps.
    pub const HOLD: Self = Self { take: Some(Duration::ZERO), keep: true };
    /// Takes nothing and hands over what it has.
    pub const NONE: Self = Self { take: None, keep: false };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Acquire,
    Renew,
    Release,
}

/// A conditional write of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub act: Act,
    /// The version that it replaces; `None` creates, and fails if there is one.
    pub on: Option<String>,
    pub holder: String,
    pub lease: Duration,
    pub renewed: i64,
    pub transitions: i32,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Read the Lease and tell [`Election::observed`].
    Read,
    /// Write it and tell [`Election::written`], [`Election::refused`] or [`Election::unanswered`].
    Write(Write),
    /// Nothing before that time; `None`: nothing until something changes.
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
        seen: Seen,
        /// When its term was first seen.
        since: Duration,
        /// When this version was first seen.
        learned: Duration,
    },
}

/// One candidate's view of one Lease. All times are since any fixed point on the local monotonic clock.
#[derive(Debug, Clone)]
pub struct Election {
    identity: String,
    terms: Terms,
    wish: Wish,
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
            wish: Wish::default(),
            known: Known::Nothing,
            held: None,
            must_read: true,
        }
    }

    pub fn wish(&mut self, wish: Wish) {
        self.wish = wish;
    }

    /// The end of the window in which the owner may act. The caller compares it with its clock each time that it acts.
    pub fn act_until(&self) -> Option<Duration> {
        self.held.map(|sent| sent + self.terms.act)
    }

    /// Until when somebody, we or another, surely attends to what the Lease stands for, as far as was seen.
    pub fn attended_until(&self) -> Option<Duration> {
        match &self.known {
            Known::Present { seen, .. } if seen.holder == self.identity => self.act_until(),
            Known::Present { seen, since, .. } if !seen.holder.is_empty() => Some(*since + self.terms.act),
            _ => None,
        }
    }

    /// The Lease as last seen.
    pub fn seen(&self) -> Option<&Seen> {
        match &self.known {
            Known::Present { seen, .. } => Some(seen),
            _ => None,
        }
    }

    /// Whether the last that was seen names us.
    pub fn is_named(&self) -> bool {
        self.seen().is_some_and(|seen| seen.holder == self.identity)
    }

    /// Something was read. `now` is when the answer was there, not when the request was sent.
    pub fn observed(&mut self, now: Duration, lease: Option<Seen>) {
        let Some(seen) = lease else {
            let (since, existed) = match &self.known {
                Known::Absent { since, existed } => (*since, *existed),
                // Inside our own window nobody else can have taken it: whoever creates it wins, no need to wait.
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

    /// Takes in a consistent read that was sent at `sent` and answered at `now`. Returns true if the history of the API
    /// server went back: the read returned an older version than one that was seen before it was sent, which only a
    /// restore of etcd from a backup explains. Nothing that was seen before counts then; the Lease is judged afresh.
    pub fn read(&mut self, sent: Duration, now: Duration, lease: Option<Seen>) -> bool {
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

    /// Something suggests that our view is old: read before anything else.
    pub fn doubt(&mut self) {
        self.must_read = true;
    }

    /// A write succeeded. `sent` is when it was sent, `now` when its answer was there.
    pub fn written(&mut self, sent: Duration, now: Duration, act: Act, answer: Seen) {
        self.observed(now, Some(answer));
        if self.is_named() && act != Act::Release {
            self.held = Some(self.held.map_or(sent, |before| before.max(sent)));
        }
    }

    /// A write was refused because the Lease is not what we thought.
    pub fn refused(&mut self) {
        self.must_read = true;
    }

    /// A write or a read has no answer: it may have been done, or may still be.
    pub fn unanswered(&mut self) {
        self.must_read = true;
    }

    /// What to do now. `wall` is written as `renewTime`, in microseconds.
    ///
    /// A [`Act::Release`] that is returned has ended the window: the caller lets running work end, then sends it.
    pub fn next(&mut self, now: Duration, wall: i64) -> Step {
        if self.must_read {
            return Step::Read;
        }
        match &self.known {
            Known::Nothing => Step::Read,
            Known::Absent { since, existed } => {
                let Some(delay) = self.wish.take else { return Step::Wait(None) };
                let grace = if *existed { self.terms.lease } else { Duration::ZERO };
                self.at(now, *since + grace + delay, |candidate| candidate.acquire(None, 0, wall))
            }
            Known::Present { seen, since, .. } if seen.holder == self.identity => {
                if !self.wish.keep {
                    let write = Write { holder: String::new(), ..self.write(Act::Release, seen, wall) };
                    self.held = None;
                    return Step::Write(write);
                }
                let due = self.held.map_or(*since, |sent| sent + self.terms.renew);
                self.at(now, due, |candidate| candidate.write(Act::Renew, seen, wall))
            }
            Known::Present { seen, since, .. } => {
                let Some(delay) = self.wish.take else { return Step::Wait(None) };
                let grace = if seen.holder.is_empty() { Duration::ZERO } else { self.patience(seen) };
                self.at(now, *since + grace + delay, |candidate| candidate.acquire(Some(seen), seen.transitions, wall))
            }
        }
    }

    fn at(&self, now: Duration, time: Duration, write: impl FnOnce(&Self) -> Write) -> Step {
        if now >= time { Step::Write(write(self)) } else { Step::Wait(Some(time)) }
    }

    /// How long the present holder was promised.
    fn patience(&self, seen: &Seen) -> Duration {
        match seen.lease {
            Some(lease) if lease > Duration::ZERO && lease <= LONGEST => lease.max(self.terms.lease),
            _ => self.terms.lease,
        }
    }

    fn acquire(&self, seen: Option<&Seen>, transitions: i32, wall: i64) -> Write {
        match seen {
            Some(seen) => Write { transitions: transitions.saturating_add(1), ..self.write(Act::Acquire, seen, wall) },
            None => Write {
                act: Act::Acquire,
                on: None,
                holder: self.identity.clone(),
                lease: self.terms.lease,
                renewed: wall,
                transitions,
            },
        }
    }

    fn write(&self, act: Act, seen: &Seen, wall: i64) -> Write {
        Write {
            act,
            on: Some(seen.resource_version.clone()),
            holder: self.identity.clone(),
            lease: self.terms.lease,
            // A renewal must differ from the one before, also when the wall clock was set back.
            renewed: seen.renewed.map_or(wall, |before| wall.max(before.saturating_add(1))),
            transitions: seen.transitions,
        }
    }
}

/// Whether nothing but metadata changed: somebody's annotation must not keep a dead holder's Lease alive.
fn same_term(a: &Seen, b: &Seen) -> bool {
    a.holder == b.holder && a.renewed == b.renewed && a.transitions == b.transitions && a.lease == b.lease
}

/// Resource versions are integers that grow; where they are not, the newest arrival is believed, which costs at most time.
fn is_older(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a < b,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
