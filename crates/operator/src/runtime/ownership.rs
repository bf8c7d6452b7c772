//! The right to act on a shard, as the rest of the operator asks for it.
//!
//! Owns the counting of work under way, so that a shard is handed over only when the last of it has ended. Never talks to
//! the API server; [`super::members`] moves the windows.

use super::watch_value::{Changes, Latest};
use perennial_core::coordination::shards::shard_of;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a permit lasts where nothing limits it (leader election is off).
const UNLIMITED: Duration = Duration::from_hours(24);

/// The shards that this process owns, each with its term: a number that grows whenever the shard was not ours in between.
pub type Owned = BTreeMap<u32, u64>;

/// Which shards are ours, right now. Cheap to clone and to ask.
#[derive(Debug, Clone)]
pub struct Ownership {
    inner: Arc<Inner>,
    /// Where it is known who attends to a shard, if not from the same Leases.
    attended: Option<Arc<Inner>>,
    leased: bool,
}

#[derive(Debug)]
struct Inner {
    cells: Vec<Cell>,
    changed: Latest<Owned>,
}

#[derive(Debug)]
struct Cell {
    state: Mutex<State>,
    idle: Notify,
}

#[derive(Debug, Clone, Copy)]
struct State {
    window: Window,
    /// Somebody's, perhaps not ours.
    attended: Window,
    term: u64,
    working: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Window {
    Closed,
    Until(Instant),
    Always,
}

impl Window {
    fn end(self, now: Instant) -> Option<Instant> {
        match self {
            Self::Closed => None,
            Self::Until(until) => (now < until).then_some(until),
            Self::Always => Some(now + UNLIMITED),
        }
    }
}

/// The right to act on one shard until a time. While it exists the shard is not handed over.
///
/// Keep it for one piece of work, give each request no more time than [`ActUntil::remaining`], and ask again for the next.
#[derive(Debug)]
pub struct ActUntil {
    inner: Arc<Inner>,
    shard: u32,
    deadline: Instant,
    term: u64,
}

impl Ownership {
    /// Owns nothing yet, or nothing at all: for those who only look on.
    pub fn none(shards: u32) -> Self {
        Self::with(shards, Window::Closed)
    }

    /// Owns everything, for ever: for one process without leader election.
    pub fn all(shards: u32) -> Self {
        Self::with(shards, Window::Always)
    }

    fn with(shards: u32, window: Window) -> Self {
        let shards = shards.max(1);
        let cell = |_| Cell {
            state: Mutex::new(State { window, attended: window, term: 1, working: 0 }),
            idle: Notify::new(),
        };
        let owned = if window == Window::Closed { Owned::new() } else { (0..shards).map(|shard| (shard, 1)).collect() };
        let cells = (0..shards).map(cell).collect();
        Self {
            inner: Arc::new(Inner { cells, changed: Latest::new(owned) }),
            attended: None,
            leased: window == Window::Closed,
        }
    }

    /// What is ours is nobody else's: Leases say so. Without an election others may think the same of it.
    pub fn is_exclusive(&self) -> bool {
        self.leased
    }

    pub fn shards(&self) -> u32 {
        u32::try_from(self.inner.cells.len()).unwrap_or(u32::MAX)
    }

    /// The shard that a key is in: a node's name, or `namespace/name` of a workload.
    pub fn shard_of(&self, key: &str) -> u32 {
        shard_of(key, self.shards())
    }

    /// The right to act on a shard, if it is ours.
    pub fn owns(&self, shard: u32) -> Option<ActUntil> {
        let mut state = self.inner.cells.get(usize::try_from(shard).ok()?)?.lock();
        let deadline = state.window.end(Instant::now())?;
        state.working += 1;
        Some(ActUntil { inner: Arc::clone(&self.inner), shard, deadline, term: state.term })
    }

    /// The right to act on whatever has this key, if its shard is ours.
    pub fn may_act(&self, key: &str) -> Option<ActUntil> {
        self.owns(self.shard_of(key))
    }

    /// Whether a shard is ours, without taking a permit: for filters and for status.
    pub fn is_ours(&self, shard: u32) -> bool {
        let cell = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard));
        cell.is_some_and(|cell| cell.lock().window.end(Instant::now()).is_some())
    }

    /// The same shards of ours; who attends to what is known from elsewhere.
    pub(crate) fn attended_by(self, others: &Self) -> Self {
        Self { attended: Some(Arc::clone(&others.inner)), ..self }
    }

    /// Whether somebody, we or another replica, is known to attend to a shard: what needs its owner later can be begun.
    pub fn is_attended(&self, shard: u32) -> bool {
        let inner = self.attended.as_ref().unwrap_or(&self.inner);
        let cell = usize::try_from(shard).ok().and_then(|shard| inner.cells.get(shard));
        cell.is_some_and(|cell| cell.lock().attended.end(Instant::now()).is_some())
    }

    /// Tells whenever the owned set changes, terms included. Whoever gains a shard lists afresh.
    pub fn changes(&self) -> Changes<Owned> {
        self.inner.changed.follow()
    }

    /// Notes until when somebody attends to a shard.
    pub(super) fn set_attended(&self, shard: u32, until: Option<Instant>) {
        let Some(cell) = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        cell.lock().attended = until.map_or(Window::Closed, Window::Until);
    }

    /// Opens, moves or closes the window of a shard.
    pub(super) fn set(&self, shard: u32, until: Option<Instant>) {
        let Some(cell) = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        let mut state = cell.lock();
        let now = Instant::now();
        if until.is_some_and(|until| now < until) && state.window.end(now).is_none() {
            state.term += 1;
        }
        state.window = until.map_or(Window::Closed, Window::Until);
    }

    /// Says what changed since it was last said.
    pub(super) fn publish(&self) {
        let now = Instant::now();
        let owned: Owned = (0..self.shards())
            .zip(&self.inner.cells)
            .filter_map(|(shard, cell)| {
                let state = *cell.lock();
                state.window.end(now).map(|_| (shard, state.term))
            })
            .collect();
        self.inner.changed.set(owned);
    }

    /// Returns when nobody works on the shard any more, or at the latest at the given time.
    pub(super) async fn idle(&self, shard: u32, latest: Instant) {
        let Some(cell) = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        let idle = async {
            loop {
                let notified = cell.idle.notified();
                if cell.lock().working == 0 {
                    return;
                }
                notified.await;
            }
        };
        let _ = tokio::time::timeout_at(latest, idle).await;
    }
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActUntil {
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Changes whenever the shard was not ours in between.
    pub fn term(&self) -> u64 {
        self.term
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// What is left; zero when it is over.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The time for a request: the given one, or what is left.
    pub fn bound(&self, timeout: Duration) -> Duration {
        timeout.min(self.remaining())
    }
}

impl Drop for ActUntil {
    fn drop(&mut self) {
        let Some(cell) = usize::try_from(self.shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        let mut state = cell.lock();
        state.working = state.working.saturating_sub(1);
        if state.working == 0 {
            cell.idle.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_ends_by_itself() {
        let ownership = Ownership::none(2);
        ownership.set(0, Some(soon(10)));

        assert!(ownership.owns(0).is_some());
        assert!(ownership.owns(1).is_none());

        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(ownership.owns(0).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_gets_no_more_time_than_is_left() {
        let ownership = Ownership::none(1);
        ownership.set(0, Some(soon(10)));
        let permit = ownership.may_act("node-1").unwrap();

        assert_eq!(permit.bound(Duration::from_secs(30)), Duration::from_secs(10));
        assert_eq!(permit.bound(Duration::from_secs(3)), Duration::from_secs(3));

        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(permit.remaining(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_waits_for_work_under_way() {
        let ownership = Ownership::none(1);
        ownership.set(0, Some(soon(10)));
        let permit = ownership.owns(0).unwrap();
        ownership.set(0, None);

        let mut idle = Box::pin(ownership.idle(0, Instant::now() + Duration::from_secs(10)));
        assert!(futures::poll!(&mut idle).is_pending());

        drop(permit);
        assert!(futures::poll!(&mut idle).is_ready());
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_waits_no_longer_than_the_window() {
        let ownership = Ownership::none(1);
        ownership.set(0, Some(soon(10)));
        let _permit = ownership.owns(0).unwrap();
        let before = Instant::now();

        ownership.idle(0, before + Duration::from_secs(10)).await;

        assert_eq!(before.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_that_was_lost_in_between_comes_back_with_another_term() {
        let ownership = Ownership::none(1);
        let mut changes = ownership.changes();
        ownership.set(0, Some(soon(10)));
        ownership.publish();
        let first = changes.unseen();

        ownership.set(0, Some(soon(12)));
        ownership.publish();
        assert!(changes.unseen().is_none(), "a renewal is no change");

        tokio::time::advance(Duration::from_secs(13)).await;
        ownership.set(0, Some(soon(10)));
        ownership.publish();
        let then = changes.unseen();
        assert!(first.is_some() && then.is_some() && first != then);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shard_of_another_is_attended_but_not_ours() {
        let ownership = Ownership::none(2);
        ownership.set_attended(1, Some(soon(10)));

        assert!(ownership.is_attended(1) && !ownership.is_ours(1));
        assert!(!ownership.is_attended(0));

        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!ownership.is_attended(1));
        assert!(Ownership::all(1).is_attended(0));
    }

    #[tokio::test]
    async fn without_election_everything_is_ours() {
        let ownership = Ownership::all(8);

        assert_eq!(ownership.changes().now().len(), 8);
        assert!((0..8).all(|shard| ownership.owns(shard).is_some()));
        assert!(ownership.owns(8).is_none());
    }
}
