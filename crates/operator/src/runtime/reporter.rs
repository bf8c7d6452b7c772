//! The one report of a failed operation: log, Event and metric share one error category.

use std::{error::Error, time::Duration};

use super::{
    error_category::Category,
    events::{EventObject, Events, Severity},
    metrics::Metrics,
};

/// An error that determines how it is reported and when the operation is tried again.
pub trait CategorizedError: Error {
    fn category(&self) -> Category;

    /// Returns the pause that the API server requested (`Retry-After`).
    fn retry_after(&self) -> Option<Duration>;

    /// Returns the permission that the operation needs.
    fn permission(&self) -> Option<&'static str>;

    /// The permission that is missing, where that is the cause.
    fn missing_permission(&self) -> Option<&'static str> {
        self.permission().filter(|_| self.category() == Category::Forbidden)
    }
}

/// Number of failures before this one, and the pause until the next attempt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retry {
    pub attempt: u32,
    pub pause: Duration,
}

/// Reports failures of one controller. Shared by clones.
#[derive(Clone, Debug)]
pub struct Reporter {
    metrics: Metrics,
    events: Events,
}

/// A failure that was counted, to be logged with
/// [`log_failure!`](crate::runtime::reporter::log_failure).
#[derive(Debug)]
#[must_use = "a failure that is counted is logged as well"]
pub struct FailureReport {
    pub category: Category,
    pub error: String,
    /// The cause of the error, mostly in the API server's words.
    pub why: String,
    pub missing: Option<&'static str>,
    pub retry: Retry,
}

impl Reporter {
    pub fn new(metrics: Metrics, events: Events) -> Self {
        Self { metrics, events }
    }

    /// Counts a failure that is logged elsewhere.
    pub fn count(&self, category: Category) {
        self.metrics.failed(category);
    }

    /// Counts a failure and, where the API server refused the request, writes an Event about the
    /// object.
    pub fn failure(&self, error: &impl CategorizedError, retry: Retry, about: Option<EventObject>) -> FailureReport {
        let category = error.category();
        self.count(category);
        let why = error.source().map(ToString::to_string).unwrap_or_default();
        let report =
            FailureReport { category, error: error.to_string(), why, missing: error.missing_permission(), retry };
        if category == Category::Refused
            && let Some(about) = about
        {
            let message = || format!("{}: {}", report.error, report.why);
            self.events.occurred(about, Severity::Warning, "PerennialRefused", message);
        }
        report
    }
}

/// Logs a [`FailureReport`] with the object under a field name of the controller:
/// `log_failure!(report, object = name)`.
macro_rules! log_failure {
    ($report:expr, $field:ident = $object:expr) => {{
        let $crate::runtime::reporter::FailureReport { category, error, why, missing, retry } = $report;
        let (name, attempt, retry_in) = (category.as_str(), retry.attempt, retry.pause.as_secs_f32());
        match missing {
            Some(missing) => {
                tracing::warn!($field = $object, category = name, missing, error, why, retry_in, "permission missing");
            }
            None if category == $crate::runtime::error_category::Category::Conflict => {
                tracing::debug!($field = $object, category = name, error, why, retry_in, "conflict, retrying");
            }
            None => {
                tracing::warn!($field = $object, category = name, attempt, error, why, retry_in, "failed, retrying");
            }
        }
    }};
}
pub(crate) use log_failure;
