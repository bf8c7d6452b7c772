//! The request budget of the process: a rate limit with urgencies, closed while the API server asks
//! clients to back off.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// How urgent a request is. The first is sent first.
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
    per_second: f64,
    burst: f64,
    /// Longest time for which it is closed.
    longest: Duration,
}

#[derive(Debug)]
struct BudgetState {
    tokens: f64,
    filled: Instant,
    closed_until: Option<Instant>,
    waiting: [[usize; Urgency::ALL.len()]; LANES],
    /// The lane that was served last.
    served: Lane,
}

impl Budget {
    pub fn new(per_second: u32, burst: u32) -> Self {
        Self::closed_at_most(per_second, burst, LONGEST_CLOSED)
    }

    /// Returns a budget that is closed for at most this time, for requests that a client waits for:
    /// after a longer pause, the client has stopped waiting.
    pub fn closed_at_most(per_second: u32, burst: u32, longest: Duration) -> Self {
        let burst = f64::from(burst.max(1));
        let waiting = [[0; Urgency::ALL.len()]; LANES];
        let (filled, served) = (Instant::now(), Lane::default());
        let state = BudgetState { tokens: burst, filled, closed_until: None, waiting, served };
        let shared = SharedBudget {
            state: Mutex::new(state),
            changed: Notify::new(),
            per_second: f64::from(per_second.max(1)),
            burst,
            longest,
        };
        Self { shared: Arc::new(shared), lane: Lane::default() }
    }

    /// Returns the same budget for the requests of another lane.
    #[must_use]
    pub fn lane(&self, lane: Lane) -> Self {
        Self { shared: Arc::clone(&self.shared), lane }
    }

    /// Returns a budget without a limit, for requests on behalf of a waiting client.
    pub fn unlimited() -> Self {
        Self::new(u32::MAX, u32::MAX)
    }

    /// Waits until a request of this urgency may be sent.
    pub async fn spend(&self, urgency: impl Into<Urgency>) {
        let urgency = urgency.into();
        let mut waiter = Waiter { shared: &self.shared, lane: self.lane, urgency, queued: false };
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

    /// Sends nothing for this time: the API server answered 429 or sent `Retry-After`.
    pub fn close_for(&self, pause: Duration) {
        let Ok(mut state) = self.shared.state.lock() else { return };
        let until = Instant::now() + pause.min(self.shared.longest);
        state.closed_until = Some(state.closed_until.map_or(until, |at| at.max(until)));
    }
}

/// A waiting request. Dropping it removes it from the queue.
struct Waiter<'a> {
    shared: &'a SharedBudget,
    lane: Lane,
    urgency: Urgency,
    queued: bool,
}

impl Waiter<'_> {
    fn attempt(&mut self) -> Result<(), Duration> {
        let Ok(mut state) = self.shared.state.lock() else { return Ok(()) };
        let now = Instant::now();
        let earned = now.duration_since(state.filled).as_secs_f64() * self.shared.per_second;
        state.tokens = (state.tokens + earned).min(self.shared.burst);
        state.filled = now;
        if !self.queued {
            state.waiting[self.lane as usize][self.urgency as usize] += 1;
            self.queued = true;
        }
        if let Some(until) = state.closed_until.filter(|until| *until > now) {
            return Err(until - now);
        }
        state.closed_until = None;
        let lane = self.lane as usize;
        let urgent_waits = state.waiting[lane][..self.urgency as usize].iter().any(|count| *count > 0);
        let others = state.waiting.iter().enumerate().filter(|(other, _)| *other != lane);
        let others_turn = state.served == self.lane && others.flat_map(|(_, counts)| counts).any(|count| *count > 0);
        if state.tokens >= 1.0 && !urgent_waits && !others_turn {
            state.tokens -= 1.0;
            state.served = self.lane;
            return Ok(());
        }
        let missing = (1.0 - state.tokens).max(0.05);
        Err(Duration::from_secs_f64(missing / self.shared.per_second))
    }
}

impl Drop for Waiter<'_> {
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
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_holds_after_the_burst() {
        let budget = Budget::new(100, 10);
        let start = Instant::now();
        for _ in 0..110 {
            budget.spend(Urgency::Normal).await;
        }
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(990) && took < Duration::from_millis(1200), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_requests_go_first() {
        let budget = Budget::new(10, 1);
        budget.spend(Urgency::Normal).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for urgency in [Urgency::Low, Urgency::Normal, Urgency::High, Urgency::Immediate] {
            let (budget, order) = (budget.clone(), Arc::clone(&order));
            tasks.spawn(async move {
                budget.spend(urgency).await;
                order.lock().unwrap().push(urgency);
            });
        }
        tasks.join_all().await;
        assert_eq!(*order.lock().unwrap(), Urgency::ALL);
    }

    #[tokio::test(start_paused = true)]
    async fn urgent_requests_of_one_lane_do_not_starve_the_other() {
        let budget = Budget::new(10, 1);
        budget.spend(Urgency::Normal).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        let requests =
            (0..50).map(|_| (Lane::Second, Urgency::Immediate)).chain((0..5).map(|_| (Lane::First, Urgency::Low)));
        for (lane, urgency) in requests {
            let (budget, order) = (budget.lane(lane), Arc::clone(&order));
            tasks.spawn(async move {
                budget.spend(urgency).await;
                order.lock().unwrap().push(lane);
            });
        }
        tasks.join_all().await;
        let order = order.lock().unwrap();
        let last = order.iter().rposition(|lane| *lane == Lane::First).unwrap();
        assert!(last <= 11, "the last of five was served as number {last}");
    }

    #[tokio::test(start_paused = true)]
    async fn both_lanes_together_keep_the_rate() {
        let budget = Budget::new(100, 10);
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..210 {
            let budget = budget.lane(if number % 3 == 0 { Lane::First } else { Lane::Second });
            tasks.spawn(async move { budget.spend(Urgency::Normal).await });
        }
        tasks.join_all().await;
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(1990) && took < Duration::from_millis(2600), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_sent_while_the_server_asks_clients_to_back_off() {
        let budget = Budget::new(1000, 1000);
        budget.close_for(Duration::from_secs(7));
        let start = Instant::now();
        budget.spend(Urgency::Immediate).await;
        assert!(start.elapsed() >= Duration::from_secs(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_budget_for_waiting_clients_is_closed_for_a_short_time() {
        let budget = Budget::closed_at_most(1000, 1000, Duration::from_secs(1));
        let start = Instant::now();
        budget.close_for(Duration::from_mins(1));
        budget.spend(Urgency::Immediate).await;
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_blocks_no_other() {
        let budget = Budget::new(10, 1);
        budget.spend(Urgency::Immediate).await;
        let given_up = tokio::time::timeout(Duration::from_millis(1), budget.spend(Urgency::Immediate)).await;
        assert!(given_up.is_err());
        budget.spend(Urgency::Low).await;
    }
}
