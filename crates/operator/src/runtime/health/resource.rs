//! Readability and writability of one resource, derived from the results of requests.
//!
//! A watch that was resumed may have nothing to deliver. It counts as working once the API server
//! has accepted it and it has lasted for a while, never because no failure was seen for some time:
//! between two attempts that are never answered, minutes may pass.

use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::error_category::Category;

const FORBIDDEN: &str = Category::Forbidden.as_str();
const UNREACHABLE: &str = Category::Unreachable.as_str();

/// Time after the first failure until a resource counts as unreadable.
pub(super) const UNREADABLE_AFTER: Duration = Duration::from_secs(10);
/// Time for which a watch must have been open after a failure until its resource is readable.
pub(super) const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// Time without a response to a watch, or without progress of a list, until its resource counts as
/// unreadable.
pub(super) const SILENT_AFTER: Duration = Duration::from_secs(30);
/// Number of failures in a row after which a resource counts as unreadable where accepted watches
/// are not reported, and the time for which it does.
pub(super) const UNREADABLE_FAILURES: u32 = 3;
pub(super) const FAILURE_LASTS: Duration = Duration::from_secs(45);

/// The state of reads of one resource.
#[derive(Debug)]
pub(super) struct Resource {
    /// Path of its collection. Requests for it are reported.
    path: Option<String>,
    listed: bool,
    /// Last progress of the list that is under way.
    progress: Instant,
    /// Failures since it was last read.
    failures: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    category: &'static str,
    /// Time at which a watch was requested that is not answered yet.
    asked: Option<Instant>,
    /// Time at which the open watch was accepted.
    opened: Option<Instant>,
}

impl Default for Resource {
    fn default() -> Self {
        Self {
            path: None,
            listed: false,
            progress: Instant::now(),
            failures: 0,
            first: None,
            last: None,
            category: UNREACHABLE,
            asked: None,
            opened: None,
        }
    }
}

impl Resource {
    pub(super) fn watched_at(path: &str) -> Self {
        Self { path: Some(path.to_owned()), ..Self::default() }
    }

    pub(super) fn is_at(&self, path: &str) -> bool {
        self.path.as_deref() == Some(path)
    }

    pub(super) fn category(&self) -> &'static str {
        self.category
    }

    /// Records that a list is complete, or that a watch has delivered an event.
    pub(super) fn read(&mut self) {
        (self.listed, self.failures, self.first, self.last) = (true, 0, None, None);
    }

    /// Records that a list begins. The result of an earlier list does not count any more.
    pub(super) fn lists(&mut self) {
        (self.listed, self.progress) = (false, Instant::now());
    }

    /// Records that a part of a list has arrived.
    pub(super) fn progress(&mut self) {
        self.progress = Instant::now();
    }

    pub(super) fn failed(&mut self, category: Category) {
        self.settle();
        let now = Instant::now();
        self.failures += 1;
        // A request without a response has failed since it was sent.
        self.first.get_or_insert(self.asked.unwrap_or(now));
        (self.last, self.asked, self.opened) = (Some(now), None, None);
        self.category = category.as_str();
    }

    /// Records that a watch is requested.
    pub(super) fn asked(&mut self) {
        self.settle();
        self.asked = Some(Instant::now());
        self.opened = None;
    }

    /// Records that the API server has accepted a watch.
    pub(super) fn opened(&mut self) {
        self.asked = None;
        self.opened = Some(Instant::now());
    }

    /// Returns for how long it has been unreadable.
    pub(super) fn unreadable_for(&self) -> Option<Duration> {
        if self.is_settled() {
            return None;
        }
        let failing = self.first.filter(|_| self.is_failing());
        // A missing permission is no transient failure.
        let patience = if self.category == FORBIDDEN { Duration::ZERO } else { UNREADABLE_AFTER };
        let unlisted = (self.path.is_some() && !self.listed).then_some(self.progress);
        let lasting = [(failing, patience), (self.asked, SILENT_AFTER), (unlisted, SILENT_AFTER)];
        let lasting = lasting.into_iter().filter_map(|(since, patience)| Some((since?.elapsed(), patience)));
        lasting.filter(|(lasted, patience)| lasted >= patience).map(|(lasted, _)| lasted).max()
    }

    /// Returns whether failures count: where accepted watches are not reported, only several recent
    /// ones do.
    fn is_failing(&self) -> bool {
        let lasts = self.last.is_some_and(|last| last.elapsed() < FAILURE_LASTS);
        self.path.is_some() || !self.listed || self.failures >= UNREADABLE_FAILURES && lasts
    }

    /// Returns whether a watch that was resumed has lasted.
    fn is_settled(&self) -> bool {
        self.listed && self.opened.is_some_and(|at| at.elapsed() >= SETTLED_AFTER)
    }

    fn settle(&mut self) {
        if self.is_settled() {
            self.read();
        }
    }
}

/// Number of writes in a row that must fail, and for how long, until a resource counts as
/// unwritable.
pub(super) const UNWRITABLE_FAILURES: u32 = 3;
pub(super) const UNWRITABLE_AFTER: Duration = Duration::from_secs(30);
/// Time after the last failed write for which a resource counts as unwritable. A replica without
/// shards writes nothing, so it must try again; the time doubles with each unsuccessful attempt.
pub(super) const FIRST_QUARANTINE: Duration = Duration::from_mins(2);
const LONGEST_QUARANTINE: Duration = Duration::from_hours(1);

/// The state of writes of one resource.
#[derive(Debug, Default)]
pub(super) struct Writes {
    failures: u32,
    first: Option<Instant>,
    last: Option<Instant>,
    /// Time for which it counts as unwritable after the last failure.
    quarantine: Option<Duration>,
}

impl Writes {
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    pub(super) fn failed(&mut self) {
        let now = Instant::now();
        // The quarantine is over, and writes are tried again.
        if let (Some(quarantine), Some(last)) = (self.quarantine, self.last)
            && last.elapsed() >= quarantine
        {
            (self.failures, self.first) = (0, None);
            self.quarantine = Some((quarantine * 2).min(LONGEST_QUARANTINE));
        }
        self.failures += 1;
        let first = *self.first.get_or_insert(now);
        self.last = Some(now);
        if self.failures >= UNWRITABLE_FAILURES && first.elapsed() >= UNWRITABLE_AFTER {
            self.quarantine.get_or_insert(FIRST_QUARANTINE);
        }
    }

    /// Returns for how long it has been unwritable.
    pub(super) fn unwritable_for(&self) -> Option<Duration> {
        let (first, last, quarantine) = (self.first?.elapsed(), self.last?.elapsed(), self.quarantine?);
        let failing = self.failures >= UNWRITABLE_FAILURES && first >= UNWRITABLE_AFTER;
        (failing && last < quarantine).then_some(first)
    }
}
