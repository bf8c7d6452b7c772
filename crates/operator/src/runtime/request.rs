//! One request to the API server: within the budget, with a deadline, and what can come of it.

use std::time::Duration;

use super::{
    budget::{Budget, Urgency},
    error_category::{self, Category},
};

/// The name under which the API server knows our fields.
pub const FIELD_MANAGER: &str = "perennial";
/// No request waits longer than this for its answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// A request that failed, or had no answer in time.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}", error_category::message(.0))]
    Request(Box<kube::Error>),
    #[error("no answer within {} s", DEADLINE.as_secs())]
    Timeout,
}

impl Failure {
    pub fn category(&self) -> Category {
        match self {
            Self::Request(error) => Category::of(error),
            Self::Timeout => Category::Unreachable,
        }
    }

    /// How long the API server asked to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Request(error) => error_category::retry_after(error),
            Self::Timeout => None,
        }
    }

    /// The API server understood the request and says no to it: its own rules, a policy or somebody's webhook (each of which answers with
    /// a code of its own: 400, 403, 422), or a permission that is missing.
    pub fn is_refusal(&self) -> bool {
        matches!(self.category(), Category::Refused | Category::Forbidden)
    }

    /// The API server's own code.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Request(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Timeout => None,
        }
    }
}

/// Sends a request when the budget allows, and waits for its answer no longer than the deadline.
pub async fn ask<T>(
    budget: &Budget,
    urgency: impl Into<Urgency>,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Failure> {
    budget.spend(urgency).await;
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Failure::Request(Box::new(error))),
        Err(_) => Err(Failure::Timeout),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn whoever_says_no_is_understood_whatever_their_code() {
        let answered = |code| {
            Failure::Request(Box::new(kube::Error::Api(Box::new(Status { code, ..Status::default() })))).is_refusal()
        };

        assert!([400, 403, 413, 422].into_iter().all(answered));
        assert!(![404, 409, 429, 500, 503].into_iter().any(answered));
        assert!(!Failure::Timeout.is_refusal());
    }
}
