//! The request budget of a flow of requests: a rate limit with urgencies. Its rate follows the
//! answers of the API server ([`rate`](super::rate)), and it is closed for the `Retry-After` of a
//! 429.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::rate::{AdaptiveRate, RateBounds, RequestClass};

/// Urgency of a request. The first is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    Immediate,
    High,
    Normal,
    Low,
}

impl Urgency {
    pub const ALL: [Self; 4] = [Self::Immediate, Self::High, Self::Normal, Self::Low];
}

/// A part of the process with its own queue. While both wait, they are served in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    #[default]
    First,
    Second,
}

const LANES: usize = 2;
/// Longest time for which a budget is closed.
const LONGEST_CLOSED: Duration = Duration::from_mins(1);
/// First rate of a budget, in requests per second.
const INITIAL: f64 = 500.0;
/// Lowest rate, in requests per second: enough to find out whether the server has recovered.
const FLOOR: f64 = 5.0;
/// A budget that was not used holds the requests of this many seconds.
const BURST_SECONDS: f64 = 10.0;

/// A token bucket. Waiting requests of a lane are served by urgency, and lanes in turn: urgent
/// requests of one lane never starve the other.
#[derive(Clone, Debug)]
pub struct Budget {
    shared: Arc<SharedBudget>,
    lane: Lane,
}

#[derive(Debug)]
struct SharedBudget {
    state: Mutex<BudgetState>,
    changed: Notify,
    /// Maximum number of requests in one burst.
    burst: f64,
    /// Longest time for which it is closed.
    longest: Duration,
}

#[derive(Debug)]
struct BudgetState {
    rate: AdaptiveRate,
    tokens: f64,
    filled: Instant,
    closed_until: Option<Instant>,
    /// The rate is not limited any more.
    lifted: bool,
    waiting: [[usize; Urgency::ALL.len()]; LANES],
    /// The lane that was served last.
    served: Lane,
}

impl Budget {
    /// Returns a budget with a ceiling of its rate, in requests per second.
    pub fn new(ceiling: u32, burst: u32) -> Self {
        let bounds = RateBounds { floor: FLOOR, initial: INITIAL, ceiling: f64::from(ceiling) };
        Self::with_bounds(bounds, burst, LONGEST_CLOSED)
    }

    /// Returns a budget for requests that a client waits for. It is closed for at most this time:
    /// after a longer pause, the client has stopped waiting. For the same reason, its rate does not
    /// fall below a tenth.
    pub fn closed_at_most(per_second: u32, burst: u32, longest: Duration) -> Self {
        let per_second = f64::from(per_second);
        let bounds = RateBounds { floor: per_second / 10.0, initial: per_second, ceiling: per_second };
        Self::with_bounds(bounds, burst, longest)
    }

    fn with_bounds(bounds: RateBounds, burst: u32, longest: Duration) -> Self {
        let (rate, burst) = (AdaptiveRate::new(bounds), f64::from(burst.max(1)));
        let waiting = [[0; Urgency::ALL.len()]; LANES];
        let (tokens, filled, served) = (capacity(&rate, burst), Instant::now(), Lane::default());
        let state = BudgetState { rate, tokens, filled, closed_until: None, lifted: false, waiting, served };
        let shared = SharedBudget { state: Mutex::new(state), changed: Notify::new(), burst, longest };
        Self { shared: Arc::new(shared), lane: Lane::default() }
    }

    /// Returns the same budget for the requests of another lane.
    #[must_use]
    pub fn lane(&self, lane: Lane) -> Self {
        Self { shared: Arc::clone(&self.shared), lane }
    }

    /// Returns a budget without a limit, for requests on behalf of a waiting client.
    pub fn unlimited() -> Self {
        let most = f64::from(u32::MAX);
        let bounds = RateBounds { floor: most, initial: most, ceiling: most };
        Self::with_bounds(bounds, u32::MAX, LONGEST_CLOSED)
    }

    /// Waits until a request of this urgency may be sent.
    pub async fn spend(&self, urgency: impl Into<Urgency>) {
        let urgency = urgency.into();
        let mut waiter = BudgetWaiter { shared: &self.shared, lane: self.lane, urgency, queued: false };
        loop {
            let changed = self.shared.changed.notified();
            match waiter.attempt() {
                Ok(()) => return,
                Err(pause) => {
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(pause) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    /// Ends the limit of the rate, in all lanes and for good: the process stops, and has little left
    /// to send. A budget that is closed stays closed.
    pub fn lift(&self) {
        if let Ok(mut state) = self.shared.state.lock() {
            state.lifted = true;
        }
        self.shared.changed.notify_waiters();
    }

    /// Sends nothing for this time: the API server answered 429 or sent `Retry-After`.
    pub fn close_for(&self, pause: Duration) {
        let Ok(mut state) = self.shared.state.lock() else { return };
        let until = Instant::now() + pause.min(self.shared.longest);
        state.closed_until = Some(state.closed_until.map_or(until, |at| at.max(until)));
    }

    /// A request that was sent at this time was answered.
    pub fn answered(&self, sent: Instant, class: RequestClass) {
        self.adapt(|rate, now| rate.answered(sent, now, class));
    }

    /// A request that was sent at this time was refused because of the server's load, or was not
    /// answered in time.
    pub fn refused(&self, sent: Instant) {
        self.adapt(|rate, now| rate.refused(sent, now));
    }

    /// Adapts the rate. What was saved is lost when it decreases: a burst at an overloaded server
    /// would undo the decrease.
    fn adapt(&self, adapt: impl FnOnce(&mut AdaptiveRate, Instant) -> bool) {
        let Ok(mut state) = self.shared.state.lock() else { return };
        let now = Instant::now();
        state.fill(now, self.shared.burst);
        if adapt(&mut state.rate, now) {
            state.tokens = state.tokens.min(1.0);
        }
    }
}

/// Returns the number of requests that an unused budget holds.
fn capacity(rate: &AdaptiveRate, burst: f64) -> f64 {
    (rate.per_second() * BURST_SECONDS).min(burst)
}

impl BudgetState {
    /// Adds what was earned since the last call.
    fn fill(&mut self, now: Instant, burst: f64) {
        let earned = now.saturating_duration_since(self.filled).as_secs_f64() * self.rate.per_second();
        self.tokens = (self.tokens + earned).min(capacity(&self.rate, burst));
        self.filled = now;
    }
}

/// A waiting request. Dropping it removes it from the queue.
struct BudgetWaiter<'a> {
    shared: &'a SharedBudget,
    lane: Lane,
    urgency: Urgency,
    queued: bool,
}

impl BudgetWaiter<'_> {
    fn attempt(&mut self) -> Result<(), Duration> {
        let Ok(mut state) = self.shared.state.lock() else { return Ok(()) };
        let now = Instant::now();
        state.fill(now, self.shared.burst);
        if !self.queued {
            state.waiting[self.lane as usize][self.urgency as usize] += 1;
            self.queued = true;
        }
        if let Some(until) = state.closed_until.filter(|until| *until > now) {
            return Err(until - now);
        }
        state.closed_until = None;
        if state.lifted {
            return Ok(());
        }
        let lane = self.lane as usize;
        let urgent_waits = state.waiting[lane][..self.urgency as usize].iter().any(|count| *count > 0);
        let others = state.waiting.iter().enumerate().filter(|(other, _)| *other != lane);
        let others_turn = state.served == self.lane && others.flat_map(|(_, counts)| counts).any(|count| *count > 0);
        if state.tokens >= 1.0 && !urgent_waits && !others_turn {
            state.tokens -= 1.0;
            state.served = self.lane;
            return Ok(());
        }
        if state.tokens < 1.0 {
            state.rate.limit(now);
        }
        let missing = (1.0 - state.tokens).max(0.05);
        Err(Duration::from_secs_f64(missing / state.rate.per_second()))
    }
}

impl Drop for BudgetWaiter<'_> {
    fn drop(&mut self) {
        if self.queued {
            let state = self.shared.state.lock();
            if let Ok(mut state) = state {
                state.waiting[self.lane as usize][self.urgency as usize] -= 1;
            }
        }
        self.shared.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
