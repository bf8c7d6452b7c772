//! A work queue: each key at most once, the urgent ones first, never two workers on one key.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::budget::Priority;

/// What is worked on: a node's name.
pub type Key = Arc<str>;

/// A queue, shared by clones.
#[derive(Clone, Debug, Default)]
pub struct Queue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    added: Notify,
}

#[derive(Debug, Default)]
struct State {
    items: HashMap<Key, Item>,
    ready: [VecDeque<Key>; Priority::ALL.len()],
    later: BinaryHeap<Reverse<(Instant, Key)>>,
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    /// In a ready line of this priority.
    Ready(Priority, Instant),
    /// In `later`, due then.
    Later(Priority, Instant),
    /// With a worker; asked for again meanwhile, or not.
    Busy(Option<(Priority, Instant)>),
}

/// One key, handed to one worker. Dropping it, however that happens, gives the key free again.
#[derive(Debug)]
pub struct Work {
    pub key: Key,
    pub priority: Priority,
    /// How long it has waited since it was due.
    pub waited: Duration,
    queue: Queue,
}

impl Queue {
    /// Asks for work on a key now.
    pub fn add(&self, key: &Key, priority: Priority) {
        self.add_after(key, priority, Duration::ZERO);
    }

    /// Asks for work on a key after a pause. The earliest time and the highest urgency asked for count.
    pub fn add_after(&self, key: &Key, priority: Priority, pause: Duration) {
        let now = Instant::now();
        let due = now + pause;
        let mut state = self.lock();
        let next = match state.items.get(key).copied() {
            None => Some((priority, due)),
            Some(Item::Ready(at, since)) if priority < at => Some((priority, since)),
            Some(Item::Later(at, then)) if due < then || priority < at => Some((at.min(priority), due.min(then))),
            Some(Item::Ready(..) | Item::Later(..)) => None,
            Some(Item::Busy(again)) => {
                let again = again.map_or((priority, due), |(at, then)| (at.min(priority), then.min(due)));
                state.items.insert(Arc::clone(key), Item::Busy(Some(again)));
                None
            }
        };
        if let Some((priority, due)) = next {
            state.place(key, priority, due, now);
            drop(state);
            self.0.added.notify_one();
        }
    }

    /// The most urgent key that is due. `None` once the queue is closed.
    pub async fn next(&self) -> Option<Work> {
        loop {
            let added = self.0.added.notified();
            let wait = {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                let now = Instant::now();
                state.ripen(now);
                if let Some((key, priority, since)) = state.take() {
                    if state.ready.iter().any(|line| !line.is_empty()) {
                        self.0.added.notify_one();
                    }
                    drop(state);
                    let waited = now.saturating_duration_since(since);
                    return Some(Work { key, priority, waited, queue: self.clone() });
                }
                state.later.peek().map(|Reverse((due, _))| *due)
            };
            match wait {
                Some(due) => tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(due) => {}
                    () = added => {}
                },
                None => added.await,
            }
        }
    }

    /// Ends all waiting; what is queued is dropped.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0.added.notify_waiters();
        self.0.added.notify_one();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// How many keys wait or are worked on.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn place(&mut self, key: &Key, priority: Priority, due: Instant, now: Instant) {
        if due <= now {
            self.items.insert(Arc::clone(key), Item::Ready(priority, due));
            self.ready[priority as usize].push_back(Arc::clone(key));
        } else {
            self.items.insert(Arc::clone(key), Item::Later(priority, due));
            self.later.push(Reverse((due, Arc::clone(key))));
        }
    }

    /// Moves what is due to the ready lines. Entries that were overtaken stay behind in the lines and are skipped.
    fn ripen(&mut self, now: Instant) {
        while let Some(Reverse((due, _))) = self.later.peek()
            && *due <= now
        {
            let Some(Reverse((due, key))) = self.later.pop() else { break };
            if let Some(Item::Later(priority, then)) = self.items.get(&key).copied()
                && then == due
            {
                self.place(&key, priority, due, now);
            }
        }
    }

    fn take(&mut self) -> Option<(Key, Priority, Instant)> {
        for priority in Priority::ALL {
            while let Some(key) = self.ready[priority as usize].pop_front() {
                if let Some(Item::Ready(at, since)) = self.items.get(&key).copied()
                    && at == priority
                {
                    self.items.insert(Arc::clone(&key), Item::Busy(None));
                    return Some((key, priority, since));
                }
            }
        }
        None
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.queue.lock();
        let again = match state.items.remove(&self.key) {
            Some(Item::Busy(again)) => again,
            _ => None,
        };
        if let Some((priority, due)) = again {
            state.place(&self.key, priority, due, now);
        }
        drop(state);
        self.queue.0.added.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Arc::from(text)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_handed_out_once_and_again_when_asked_for_meanwhile() {
        let queue = Queue::default();
        queue.add(&key("a"), Priority::Capture);
        queue.add(&key("a"), Priority::Capture);
        let work = queue.next().await.unwrap();
        queue.add(&key("a"), Priority::Capture);
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err());
        drop(work);
        let again = queue.next().await.unwrap();
        drop(again);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_work_comes_first_also_for_a_key_that_waits_already() {
        let queue = Queue::default();
        queue.add(&key("slow"), Priority::Collect);
        queue.add(&key("plain"), Priority::Capture);
        queue.add(&key("slow"), Priority::Restore);
        let first = queue.next().await.unwrap();
        assert_eq!((&*first.key, first.priority), ("slow", Priority::Restore));
        drop(first);
        let second = queue.next().await.unwrap();
        assert_eq!(&*second.key, "plain");
        drop(second);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn later_work_comes_when_due_and_sooner_when_asked_for_sooner() {
        let queue = Queue::default();
        let start = Instant::now();
        queue.add_after(&key("a"), Priority::Capture, Duration::from_mins(1));
        queue.add_after(&key("a"), Priority::Capture, Duration::from_secs(5));
        drop(queue.next().await.unwrap());
        assert_eq!(start.elapsed().as_secs(), 5);
        assert!(tokio::time::timeout(Duration::from_mins(2), queue.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_every_wait() {
        let queue = Queue::default();
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                tokio::spawn({
                    let queue = queue.clone();
                    async move { queue.next().await.is_none() }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for wait in waiting {
            assert!(wait.await.unwrap());
        }
    }
}
