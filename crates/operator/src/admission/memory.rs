//! Memory of admission requests: a part for each connection, and a pool for all.
//!
//! # Guarantees
//! The requests of one connection can always use its own part, which is enough for the review of an
//! ordinary node or pod, however many other connections are open and whatever they send. Memory is
//! reserved as bytes arrive, so that a client that announces much and sends little takes nothing
//! from others.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory that the requests of one connection can always use.
pub(super) const OWN: usize = 48 * 1024;

/// The memory of a server.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// In KiB.
    pool: Arc<Semaphore>,
}

impl Memory {
    /// Returns a server's memory with a pool of this many bytes.
    pub(super) fn new(pool: usize) -> Self {
        Self { pool: Arc::new(Semaphore::new(pool / 1024)) }
    }

    /// Returns the memory for one connection.
    pub(super) fn connection(&self) -> ConnectionMemory {
        ConnectionMemory { own: Arc::new(Semaphore::new(OWN / 1024)), pool: Arc::clone(&self.pool) }
    }
}

/// The memory of one connection, shared by its requests.
#[derive(Clone, Debug)]
pub(super) struct ConnectionMemory {
    own: Arc<Semaphore>,
    pool: Arc<Semaphore>,
}

impl ConnectionMemory {
    /// Returns a reservation of nothing.
    pub(super) fn reserve(&self) -> Reservation {
        Reservation { memory: self.clone(), permits: Vec::new() }
    }
}

/// Memory of one request. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    memory: ConnectionMemory,
    /// At most one of each semaphore.
    permits: Vec<(Source, OwnedSemaphorePermit)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Own,
    Pool,
}

impl Reservation {
    /// Waits until the request may use this many bytes in total.
    pub(super) async fn grow_to(&mut self, bytes: usize) {
        let Some(more) = self.missing(bytes) else { return };
        let (own, pool) = (Arc::clone(&self.memory.own), Arc::clone(&self.memory.pool));
        let granted = tokio::select! {
            biased;
            granted = own.acquire_many_owned(more) => granted.map(|permit| (Source::Own, permit)),
            granted = pool.acquire_many_owned(more) => granted.map(|permit| (Source::Pool, permit)),
        };
        // The semaphores are never closed.
        if let Ok((source, permit)) = granted {
            self.add(source, permit);
        }
    }

    /// Reserves this many bytes in total if they are free now.
    pub(super) fn try_grow_to(&mut self, bytes: usize) -> bool {
        let Some(more) = self.missing(bytes) else { return true };
        for source in [Source::Own, Source::Pool] {
            let semaphore = if source == Source::Own { &self.memory.own } else { &self.memory.pool };
            if let Ok(permit) = Arc::clone(semaphore).try_acquire_many_owned(more) {
                self.add(source, permit);
                return true;
            }
        }
        false
    }

    /// Frees all but this many bytes, those of the pool first.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        let mut excess = self.reserved().saturating_sub(bytes.div_ceil(1024));
        self.permits.sort_unstable_by_key(|(source, _)| *source == Source::Own);
        for (_, permit) in &mut self.permits {
            let part = excess.min(permit.num_permits());
            drop(permit.split(part));
            excess -= part;
        }
    }

    /// Returns the reservation in KiB.
    fn reserved(&self) -> usize {
        self.permits.iter().map(|(_, permit)| permit.num_permits()).sum()
    }

    fn missing(&self, bytes: usize) -> Option<u32> {
        let more = bytes.div_ceil(1024).saturating_sub(self.reserved());
        (more > 0).then(|| u32::try_from(more).unwrap_or(u32::MAX))
    }

    fn add(&mut self, source: Source, permit: OwnedSemaphorePermit) {
        match self.permits.iter_mut().find(|(from, _)| *from == source) {
            Some((_, held)) => held.merge(permit),
            None => self.permits.push((source, permit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_can_use_its_own_part_when_the_pool_is_taken() {
        let memory = Memory::new(1024 * 1024);
        let (greedy, modest) = (memory.connection(), memory.connection());
        let mut large = greedy.reserve();
        large.grow_to(1024 * 1024).await;
        assert!(!modest.reserve().try_grow_to(OWN + 1), "the pool is taken");

        let mut small = modest.reserve();
        small.grow_to(OWN).await;

        let mut other = modest.reserve();
        {
            let mut waiting = std::pin::pin!(other.grow_to(1024));
            assert!(futures::poll!(&mut waiting).is_pending(), "the part is used up");
            drop(small);
            waiting.await;
        }
        assert!(other.try_grow_to(OWN));
    }

    #[tokio::test]
    async fn memory_that_is_no_longer_needed_is_free_for_others() {
        let memory = Memory::new(1024 * 1024);
        let (connection, other) = (memory.connection(), memory.connection());
        let mut reservation = connection.reserve();
        reservation.grow_to(OWN).await;
        reservation.grow_to(OWN + 1024 * 1024).await;
        assert!(!other.reserve().try_grow_to(OWN + 1));

        reservation.shrink_to(1);

        assert!(other.reserve().try_grow_to(1024 * 1024));
        assert!(connection.reserve().try_grow_to(OWN - 1024));
        reservation.shrink_to(1024 * 1024);
        assert_eq!(reservation.reserved(), 1);
    }

    #[tokio::test]
    async fn memory_of_a_dropped_reservation_is_free_again() {
        let memory = Memory::new(64 * 1024);
        let connection = memory.connection();
        for _ in 0..100 {
            let mut reservation = connection.reserve();
            for bytes in [1, 1000, 10_000, 60_000] {
                reservation.grow_to(bytes).await;
            }
        }
        assert!(connection.reserve().try_grow_to(64 * 1024));
    }
}
