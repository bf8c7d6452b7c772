//! A value with change notifications. Like tokio's `watch`, except that waiters are woken in the
//! order in which they began to wait, so that a simulation can replay it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The sending half: holds the value.
#[derive(Debug)]
pub struct WatchValue<T>(Arc<SharedValue<T>>);

#[derive(Debug)]
struct SharedValue<T> {
    state: Mutex<(T, u64)>,
    changed: Notify,
}

/// The receiving half.
#[derive(Debug)]
pub struct Changes<T> {
    shared: Arc<SharedValue<T>>,
    seen: u64,
}

impl<T: Clone + PartialEq> WatchValue<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(SharedValue { state: Mutex::new((value, 0)), changed: Notify::new() }))
    }

    /// Replaces the value and notifies receivers if it differs.
    pub fn set(&self, value: T) {
        let mut state = self.0.lock();
        if state.0 != value {
            *state = (value, state.1 + 1);
            drop(state);
            self.0.changed.notify_waiters();
        }
    }

    /// Returns a receiver of changes from now on.
    pub fn subscribe(&self) -> Changes<T> {
        let seen = self.0.lock().1;
        Changes { shared: Arc::clone(&self.0), seen }
    }
}

impl<T> SharedValue<T> {
    fn lock(&self) -> MutexGuard<'_, (T, u64)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Changes<T> {
    /// Waits until the value differs from the one last returned, and returns it.
    pub async fn next(&mut self) -> T {
        loop {
            let shared = Arc::clone(&self.shared);
            let mut changed = std::pin::pin!(shared.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = self.unseen() {
                return value;
            }
            changed.await;
        }
    }

    /// The value, if it is another than the one that was last seen.
    pub fn unseen(&mut self) -> Option<T> {
        let state = self.shared.lock();
        let (value, version) = (state.0.clone(), state.1);
        drop(state);
        (std::mem::replace(&mut self.seen, version) != version).then_some(value)
    }

    /// The value now.
    pub fn now(&self) -> T {
        self.shared.lock().0.clone()
    }
}
