//! Ownership of shards: permits to act on them, and how the rest of the operator obtains them.
//!
//! Owns the count of permits in use, so that a shard is handed over only after the last of them was
//! dropped. Sends no requests; [`super::coordinator`] moves the windows.

use super::watch_value::{Changes, WatchValue};
use perennial_core::coordination::shards::shard_of;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Duration of a permit while leader election is off.
const UNLIMITED: Duration = Duration::from_hours(24);

/// The owned shards, each with its term: a number that grows each time that the shard is acquired.
pub type Owned = BTreeMap<u32, u64>;

/// The shards that this process owns at the moment. Clones share the state.
#[derive(Debug, Clone)]
pub struct Ownership {
    inner: Arc<Shards>,
    /// Source of the shards' owners, where those are other processes than the ones that this one
    /// competes with.
    owners: Option<Arc<Shards>>,
    leased: bool,
}

#[derive(Debug)]
struct Shards {
    cells: Vec<Cell>,
    changed: WatchValue<Owned>,
}

#[derive(Debug)]
struct Cell {
    state: Mutex<ShardState>,
    idle: Notify,
}

#[derive(Debug, Clone, Copy)]
struct ShardState {
    window: Window,
    /// Window of the shard's owner, which may be another process.
    owner: Window,
    term: u64,
    permits: usize,
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

/// A permit to act on one shard until its deadline. While it exists the shard is not handed over.
///
/// Hold it for one unit of work and give each request no more time than [`Permit::remaining`].
#[derive(Debug)]
pub struct Permit {
    inner: Arc<Shards>,
    shard: u32,
    deadline: Instant,
    term: u64,
}

impl Ownership {
    /// Returns an ownership of no shard: not yet, or for a process that only observes.
    pub fn none(shards: u32) -> Self {
        Self::with(shards, Window::Closed)
    }

    /// Returns the permanent ownership of all shards, for a process without leader election.
    pub fn all(shards: u32) -> Self {
        Self::with(shards, Window::Always)
    }

    fn with(shards: u32, window: Window) -> Self {
        let shards = shards.max(1);
        let cell = |_| Cell {
            state: Mutex::new(ShardState { window, owner: window, term: 1, permits: 0 }),
            idle: Notify::new(),
        };
        let owned = if window == Window::Closed { Owned::new() } else { (0..shards).map(|shard| (shard, 1)).collect() };
        let cells = (0..shards).map(cell).collect();
        Self {
            inner: Arc::new(Shards { cells, changed: WatchValue::new(owned) }),
            owners: None,
            leased: window == Window::Closed,
        }
    }

    /// Returns whether Leases exclude a second owner. Without leader election another process may
    /// own the same shards.
    pub fn is_exclusive(&self) -> bool {
        self.leased
    }

    pub fn shards(&self) -> u32 {
        u32::try_from(self.inner.cells.len()).unwrap_or(u32::MAX)
    }

    /// Returns the shard of a key.
    pub fn shard_of(&self, key: &str) -> u32 {
        shard_of(key, self.shards())
    }

    /// Returns a permit to act on a shard, if it is owned.
    pub fn owns(&self, shard: u32) -> Option<Permit> {
        let mut state = self.inner.cells.get(usize::try_from(shard).ok()?)?.lock();
        let deadline = state.window.end(Instant::now())?;
        state.permits += 1;
        Some(Permit { inner: Arc::clone(&self.inner), shard, deadline, term: state.term })
    }

    /// Returns a permit to act on the object with this key, if its shard is owned.
    pub fn may_act(&self, key: &str) -> Option<Permit> {
        self.owns(self.shard_of(key))
    }

    /// Returns whether a shard is owned, without a permit: for filters and status.
    pub fn is_ours(&self, shard: u32) -> bool {
        let cell = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard));
        cell.is_some_and(|cell| cell.lock().window.end(Instant::now()).is_some())
    }

    /// Returns the part of the shards that this process owns, up to 1. At least one counts: while a
    /// permit is in use, its shard may no longer be owned.
    pub fn share(&self) -> f64 {
        let owned = (0..self.shards()).filter(|shard| self.is_ours(*shard)).count().max(1);
        f64::from(u32::try_from(owned).unwrap_or(u32::MAX)) / f64::from(self.shards())
    }

    /// Returns the same ownership, with the shards' owners taken from another source.
    pub(crate) fn with_owners_from(self, others: &Self) -> Self {
        Self { owners: Some(Arc::clone(&others.inner)), ..self }
    }

    /// Returns whether a shard is known to have an owner, this process or another: work that its
    /// owner must finish may begin.
    pub fn has_owner(&self, shard: u32) -> bool {
        let inner = self.owners.as_ref().unwrap_or(&self.inner);
        let cell = usize::try_from(shard).ok().and_then(|shard| inner.cells.get(shard));
        cell.is_some_and(|cell| cell.lock().owner.end(Instant::now()).is_some())
    }

    /// Returns a receiver of the owned shards and their terms, notified of each change.
    pub fn changes(&self) -> Changes<Owned> {
        self.inner.changed.subscribe()
    }

    /// Sets until when a shard has an owner.
    pub(super) fn set_owner_until(&self, shard: u32, until: Option<Instant>) {
        let Some(cell) = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        cell.lock().owner = until.map_or(Window::Closed, Window::Until);
    }

    /// Opens, extends or closes the window of a shard.
    pub(super) fn set(&self, shard: u32, until: Option<Instant>) {
        let Some(cell) = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        let mut state = cell.lock();
        let now = Instant::now();
        if until.is_some_and(|until| now < until) && state.window.end(now).is_none() {
            state.term += 1;
        }
        state.window = until.map_or(Window::Closed, Window::Until);
    }

    /// Notifies receivers of changes since the last call.
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

    /// Waits until no permit for the shard is in use, no longer than until `latest`.
    pub(super) async fn idle(&self, shard: u32, latest: Instant) {
        let Some(cell) = usize::try_from(shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        let idle = async {
            loop {
                let notified = cell.idle.notified();
                let permits = cell.lock().permits;
                if permits == 0 {
                    return;
                }
                notified.await;
            }
        };
        let _ = tokio::time::timeout_at(latest, idle).await;
    }
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, ShardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Returns the term of the shard, which changes each time that it is acquired.
    pub fn term(&self) -> u64 {
        self.term
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the time until the deadline, or zero after it.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(cell) = usize::try_from(self.shard).ok().and_then(|shard| self.inner.cells.get(shard)) else { return };
        let mut state = cell.lock();
        state.permits = state.permits.saturating_sub(1);
        if state.permits == 0 {
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
    async fn the_share_of_a_process_is_that_of_its_shards_and_never_zero() {
        let is = |ownership: &Ownership, share: f64| (ownership.share() - share).abs() < 1e-9;
        let ownership = Ownership::none(4);
        assert!(is(&ownership, 0.25));
        ownership.set(0, Some(soon(10)));
        ownership.set(1, Some(soon(10)));
        assert!(is(&ownership, 0.5));
        assert!(is(&Ownership::all(4), 1.0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_window_ends_without_a_renewal() {
        let ownership = Ownership::none(2);
        ownership.set(0, Some(soon(10)));

        assert!(ownership.owns(0).is_some());
        assert!(ownership.owns(1).is_none());

        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(ownership.owns(0).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_lasts_as_long_as_its_window() {
        let ownership = Ownership::none(1);
        ownership.set(0, Some(soon(10)));
        let permit = ownership.may_act("node-1").unwrap();

        assert_eq!(permit.remaining(), Duration::from_secs(10));

        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(permit.remaining(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_waits_for_permits_in_use() {
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
    async fn a_shard_that_is_acquired_again_has_another_term() {
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
    async fn a_shard_of_another_process_has_an_owner_and_is_not_ours() {
        let ownership = Ownership::none(2);
        ownership.set_owner_until(1, Some(soon(10)));

        assert!(ownership.has_owner(1) && !ownership.is_ours(1));
        assert!(!ownership.has_owner(0));

        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!ownership.has_owner(1));
        assert!(Ownership::all(1).has_owner(0));
    }

    #[tokio::test]
    async fn without_leader_election_every_shard_is_ours() {
        let ownership = Ownership::all(8);

        assert_eq!(ownership.changes().now().len(), 8);
        assert!((0..8).all(|shard| ownership.owns(shard).is_some()));
        assert!(ownership.owns(8).is_none());
    }
}
