//! The rate of a flow of requests, which follows the answers of the API server: it grows while
//! requests wait for it, and shrinks when the server is overloaded.
//!
//! The algorithm is that of TCP (slow start, then additive increase, multiplicative decrease), in
//! requests per second. It is pure: all times are passed in.
//!
//! # Guarantees
//! The rate is never above the ceiling and never below the floor. Of all requests that were sent
//! before a decrease, none causes another one: the rate shrinks at most once per round trip.

use std::{collections::HashMap, f64::consts::LN_2, time::Duration};

use tokio::time::Instant;

/// Share of the rate that remains after a 429 or a timeout.
const AFTER_REFUSAL: f64 = 0.5;
/// Share of the rate that remains when responses become slow.
const AFTER_DELAY: f64 = 0.8;
/// Slow responses alone do not lower the rate below this many times the floor: the way to the
/// server may have become slower, not the server.
const DELAY_FLOOR: f64 = 10.0;
/// Increase per second once the rate at which the server was overloaded is near.
const STEP: f64 = 50.0;
/// The rate grows only if a request had to wait for it within this time: a rate that is not used
/// shows nothing about the server.
const USED_WITHIN: Duration = Duration::from_secs(1);
/// Responses are slow if they take this many times the recent minimum...
const SLOW_FACTOR: u32 = 8;
/// ...and at least this long. A server that answers within this time is not overloaded.
const SLOW: Duration = Duration::from_millis(200);
/// The minimum is that of the last one to two windows.
const WINDOW: Duration = Duration::from_secs(30);

/// Bounds of a rate, in requests per second.
#[derive(Clone, Copy, Debug)]
pub struct RateBounds {
    pub floor: f64,
    pub initial: f64,
    pub ceiling: f64,
}

/// Requests that take about the same time on a server without load. A slow webhook of others for
/// one of them must not make the rest seem slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestClass {
    pub is_write: bool,
    pub resource: Option<&'static str>,
}

/// A rate between its bounds.
#[derive(Debug)]
pub struct AdaptiveRate {
    bounds: RateBounds,
    per_second: f64,
    /// Half of the rate at the last refusal. Below it, the rate doubles every second.
    threshold: f64,
    decreased: Option<Instant>,
    /// Time at which a request last had to wait for the rate.
    limited: Option<Instant>,
    latencies: HashMap<RequestClass, Latency>,
}

impl AdaptiveRate {
    pub fn new(bounds: RateBounds) -> Self {
        let ceiling = bounds.ceiling.max(1.0);
        let floor = bounds.floor.clamp(1.0, ceiling);
        let bounds = RateBounds { floor, initial: bounds.initial.clamp(floor, ceiling), ceiling };
        Self {
            bounds,
            per_second: bounds.initial,
            threshold: ceiling,
            decreased: None,
            limited: None,
            latencies: HashMap::new(),
        }
    }

    /// Returns the rate in requests per second.
    pub fn per_second(&self) -> f64 {
        self.per_second
    }

    /// A request has to wait for the rate.
    pub fn limit(&mut self, now: Instant) {
        self.limited = Some(now);
    }

    /// A request of this class was answered. Returns whether the rate was decreased, since
    /// responses are slow.
    pub fn answered(&mut self, sent: Instant, now: Instant, class: RequestClass) -> bool {
        let is_late = self.decreased.is_some_and(|at| sent < at);
        let latency = self.latencies.entry(class).or_insert_with(|| Latency::new(now));
        let is_slow = latency.observe(now.saturating_duration_since(sent), now, is_late);
        if is_slow && self.per_second > self.delay_floor() {
            return self.decrease(AFTER_DELAY, self.delay_floor(), sent, now);
        }
        if !is_slow && !is_late && self.limited.is_some_and(|at| now.saturating_duration_since(at) <= USED_WITHIN) {
            let is_near = self.per_second >= self.threshold;
            // Growth is continuous: this much for each response doubles the rate in a second.
            let gain = if is_near { (STEP / self.per_second).min(LN_2) } else { LN_2 };
            self.per_second = (self.per_second + gain).min(self.bounds.ceiling);
        }
        false
    }

    /// The server refused a request because of its load, or did not answer in time. Returns whether
    /// the rate was decreased.
    pub fn refused(&mut self, sent: Instant, now: Instant) -> bool {
        let before = self.per_second;
        let decreased = self.decrease(AFTER_REFUSAL, self.bounds.floor, sent, now);
        if decreased {
            self.threshold = (before * AFTER_REFUSAL).max(self.bounds.floor);
        }
        decreased
    }

    fn delay_floor(&self) -> f64 {
        (self.bounds.floor * DELAY_FLOOR).min(self.bounds.ceiling)
    }

    fn decrease(&mut self, factor: f64, floor: f64, sent: Instant, now: Instant) -> bool {
        if self.decreased.is_some_and(|at| sent < at) {
            return false;
        }
        self.per_second = (self.per_second * factor).max(floor);
        self.decreased = Some(now);
        self.latencies.values_mut().for_each(Latency::restart);
        true
    }
}

/// Latency of one class of requests.
#[derive(Debug)]
struct Latency {
    /// Moving average since the last decrease.
    smoothed: Option<Duration>,
    /// Minimum of the former window and of this one.
    minimum: (Duration, Duration),
    since: Instant,
}

impl Latency {
    fn new(now: Instant) -> Self {
        Self { smoothed: None, minimum: (Duration::MAX, Duration::MAX), since: now }
    }

    /// Adds a latency. Returns whether responses are slow. Those of requests that were sent before
    /// the last decrease only count for the minimum.
    fn observe(&mut self, latency: Duration, now: Instant, is_late: bool) -> bool {
        let age = now.saturating_duration_since(self.since);
        if age >= WINDOW {
            let former = if age < WINDOW * 2 { self.minimum.1 } else { Duration::MAX };
            (self.minimum, self.since) = ((former, Duration::MAX), now);
        }
        self.minimum.1 = self.minimum.1.min(latency);
        if is_late {
            return false;
        }
        let minimum = self.minimum.0.min(self.minimum.1);
        let slow = SLOW.max(minimum * SLOW_FACTOR);
        // One response, however slow, is not a sign of load.
        let smoothed = (self.smoothed.unwrap_or(minimum) * 15 + latency.min(slow * 4)) / 16;
        self.smoothed = Some(smoothed);
        smoothed > slow
    }

    fn restart(&mut self) {
        self.smoothed = None;
    }
}

#[cfg(test)]
mod tests;
