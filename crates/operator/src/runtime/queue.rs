//! A work queue: each key at most once, the urgent ones first, never two workers on one key.
//!
//! Keys of the same priority are taken in turn from their shares ([`Queue::by_share`]): a share with
//! many keys delays the others by one key each time, not by all of them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// Identifies the object that is worked on.
pub trait QueueKey: Clone + Ord + Hash {}
impl<T: Clone + Ord + Hash> QueueKey for T {}

/// Order of the work that is due: the lowest value first.
pub trait Rank: Copy + Ord {}
impl<T: Copy + Ord> Rank for T {}

/// A queue of keys, shared by its clones.
#[derive(Debug)]
pub struct Queue<K, P>(Arc<SharedQueue<K, P>>);

#[derive(Debug)]
struct SharedQueue<K, P> {
    state: Mutex<QueueState<K, P>>,
    added: Notify,
}

/// The lines may contain entries that were overtaken; `items` is authoritative and they are
/// skipped.
#[derive(Debug)]
struct QueueState<K, P> {
    items: HashMap<K, QueueItem<P>>,
    ready: BTreeMap<P, Turns<K>>,
    share: Share<K>,
    delayed: BinaryHeap<Reverse<(Instant, K)>>,
    closed: bool,
}

/// Returns the share that a key belongs to.
pub type Share<K> = fn(&K) -> &str;

/// The keys of one priority, in lines by their shares.
#[derive(Debug)]
struct Turns<K> {
    lines: HashMap<Box<str>, VecDeque<K>>,
    /// The shares that have keys, the next one first.
    turn: VecDeque<Box<str>>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { lines: HashMap::new(), turn: VecDeque::new() }
    }
}

impl<K> Turns<K> {
    fn push(&mut self, share: &str, key: K) {
        if let Some(line) = self.lines.get_mut(share) {
            line.push_back(key);
        } else {
            self.lines.insert(share.into(), VecDeque::from([key]));
            self.turn.push_back(share.into());
        }
    }

    /// Returns the first key of the share whose turn it is, and moves that share to the end.
    fn pop(&mut self) -> Option<K> {
        let share = self.turn.pop_front()?;
        let line = self.lines.get_mut(&share)?;
        let key = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&share);
        } else {
            self.turn.push_back(share);
        }
        key
    }
}

#[derive(Clone, Copy, Debug)]
enum QueueItem<P> {
    /// In the ready line of this priority, due since then.
    Ready(P, Instant),
    /// In `delayed`, due then.
    Delayed(P, Instant),
    /// Handed to a worker, and possibly added again since then.
    Busy(Option<(P, Instant)>),
}

/// One key, handed to one worker. Dropping it makes the key available to other workers.
#[derive(Debug)]
pub struct WorkItem<K: QueueKey, P: Rank> {
    pub key: K,
    pub priority: P,
    /// Time since the key was due.
    pub waited: Duration,
    queue: Queue<K, P>,
}

impl<K: QueueKey, P: Rank> Default for Queue<K, P> {
    fn default() -> Self {
        Self::by_share(|_| "")
    }
}

impl<K: QueueKey, P: Rank> Queue<K, P> {
    /// Returns a queue in which these shares take turns.
    pub fn by_share(share: Share<K>) -> Self {
        let (items, ready, delayed) = (HashMap::new(), BTreeMap::new(), BinaryHeap::new());
        let state = QueueState { items, ready, share, delayed, closed: false };
        Self(Arc::new(SharedQueue { state: Mutex::new(state), added: Notify::new() }))
    }
}

impl<K, P> Clone for Queue<K, P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: QueueKey, P: Rank> Queue<K, P> {
    /// Adds a key that is due now.
    pub fn add(&self, key: &K, priority: P) {
        self.add_after(key, priority, Duration::ZERO);
    }

    /// Adds a key that is due after a delay. The earliest time and the highest priority that were
    /// added count.
    pub fn add_after(&self, key: &K, priority: P, delay: Duration) {
        let now = Instant::now();
        let due = now + delay;
        let mut state = self.lock();
        let next = match state.items.get(key).copied() {
            None => Some((priority, due)),
            Some(QueueItem::Ready(at, since)) if priority < at => Some((priority, since)),
            Some(QueueItem::Delayed(at, then)) if due < then || priority < at => {
                Some((at.min(priority), due.min(then)))
            }
            Some(QueueItem::Ready(..) | QueueItem::Delayed(..)) => None,
            Some(QueueItem::Busy(again)) => {
                let again = again.map_or((priority, due), |(at, then)| (at.min(priority), then.min(due)));
                state.items.insert(key.clone(), QueueItem::Busy(Some(again)));
                None
            }
        };
        if let Some((priority, due)) = next {
            state.place(key, priority, due, now);
            drop(state);
            self.0.added.notify_one();
        }
    }

    /// Returns the most urgent key that is due, or `None` once the queue is closed.
    pub async fn next(&self) -> Option<WorkItem<K, P>> {
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
                    if state.ready.values().any(|line| !line.turn.is_empty()) {
                        self.0.added.notify_one();
                    }
                    drop(state);
                    let waited = now.saturating_duration_since(since);
                    return Some(WorkItem { key, priority, waited, queue: self.clone() });
                }
                state.delayed.peek().map(|Reverse((due, _))| *due)
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

    /// Ends every wait in [`Queue::next`]. Queued keys are never handed out.
    pub fn close(&self) {
        self.lock().closed = true;
        self.0.added.notify_waiters();
        self.0.added.notify_one();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Number of keys that wait or are worked on.
    pub fn len(&self) -> usize {
        self.lock().items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<K, P>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: QueueKey, P: Rank> QueueState<K, P> {
    fn place(&mut self, key: &K, priority: P, due: Instant, now: Instant) {
        if due <= now {
            self.items.insert(key.clone(), QueueItem::Ready(priority, due));
            self.ready.entry(priority).or_default().push((self.share)(key), key.clone());
        } else {
            self.items.insert(key.clone(), QueueItem::Delayed(priority, due));
            self.delayed.push(Reverse((due, key.clone())));
        }
    }

    /// Moves the keys that are due to the ready lines.
    fn ripen(&mut self, now: Instant) {
        while let Some(Reverse((due, _))) = self.delayed.peek()
            && *due <= now
        {
            let Some(Reverse((due, key))) = self.delayed.pop() else { break };
            if let Some(QueueItem::Delayed(priority, then)) = self.items.get(&key).copied()
                && then == due
            {
                self.place(&key, priority, due, now);
            }
        }
    }

    fn take(&mut self) -> Option<(K, P, Instant)> {
        for (priority, turns) in &mut self.ready {
            while let Some(key) = turns.pop() {
                if let Some(QueueItem::Ready(at, since)) = self.items.get(&key).copied()
                    && at == *priority
                {
                    self.items.insert(key.clone(), QueueItem::Busy(None));
                    return Some((key, at, since));
                }
            }
        }
        None
    }
}

impl<K: QueueKey, P: Rank> Drop for WorkItem<K, P> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.queue.lock();
        let again = match state.items.remove(&self.key) {
            Some(QueueItem::Busy(again)) => again,
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

    const HIGH: u8 = 0;
    const NORMAL: u8 = 1;
    const LOW: u8 = 2;

    fn key(text: &str) -> Arc<str> {
        Arc::from(text)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_handed_out_once_and_again_if_added_while_busy() {
        let queue = Queue::default();
        queue.add(&key("a"), NORMAL);
        queue.add(&key("a"), NORMAL);
        let work = queue.next().await.unwrap();
        queue.add(&key("a"), NORMAL);
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.next()).await.is_err());
        drop(work);
        let again = queue.next().await.unwrap();
        drop(again);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_work_comes_first_even_for_a_key_that_is_queued_already() {
        let queue = Queue::default();
        queue.add(&key("slow"), LOW);
        queue.add(&key("plain"), NORMAL);
        queue.add(&key("slow"), HIGH);
        let first = queue.next().await.unwrap();
        assert_eq!((&*first.key, first.priority), ("slow", HIGH));
        drop(first);
        let second = queue.next().await.unwrap();
        assert_eq!(&*second.key, "plain");
        drop(second);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_work_comes_when_due_and_sooner_when_added_sooner() {
        let queue = Queue::default();
        let start = Instant::now();
        queue.add_after(&key("a"), NORMAL, Duration::from_mins(1));
        queue.add_after(&key("a"), NORMAL, Duration::from_secs(5));
        drop(queue.next().await.unwrap());
        assert_eq!(start.elapsed().as_secs(), 5);
        assert!(tokio::time::timeout(Duration::from_mins(2), queue.next()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn shares_take_turns_within_a_priority() {
        let queue = Queue::by_share(|key: &Arc<str>| key.split('/').next().unwrap_or_default());
        let order = async |count: usize| {
            let mut order = Vec::new();
            for _ in 0..count {
                order.push(queue.next().await.unwrap().key.to_string());
            }
            order
        };
        for number in 0..1000 {
            queue.add(&key(&format!("loud/{number}")), NORMAL);
        }
        queue.add(&key("quiet/0"), NORMAL);
        queue.add(&key("quiet/1"), NORMAL);
        queue.add(&key("other/0"), NORMAL);
        assert_eq!(order(6).await, ["loud/0", "quiet/0", "other/0", "loud/1", "quiet/1", "loud/2"]);

        // One that comes again waits for one key of the other share, and urgency counts first.
        queue.add(&key("quiet/0"), NORMAL);
        queue.add(&key("loud/900"), HIGH);
        assert_eq!(order(4).await, ["loud/900", "loud/3", "quiet/0", "loud/4"]);
        // The entry of the key that was taken at a higher priority is skipped.
        assert_eq!(order(994).await.last().unwrap(), "loud/999");
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn closing_ends_every_wait() {
        let queue = Queue::<Arc<str>, u8>::default();
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
