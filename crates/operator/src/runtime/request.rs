//! A request to the API server, within the budget and with a deadline.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    budget::{Budget, Urgency},
    error_category::{self, Category},
    pages::{Recovery, next_token},
};

/// Field manager of every write.
pub const FIELD_MANAGER: &str = "perennial";
/// Longest time that a request waits for its response.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// A request that failed or had no response in time.
#[derive(Debug, thiserror::Error)]
pub enum RequestFailure {
    #[error("{}", error_category::message(.0))]
    Request(Box<kube::Error>),
    #[error("no response within {} s", DEADLINE.as_secs())]
    Timeout,
}

impl RequestFailure {
    pub fn category(&self) -> Category {
        match self {
            Self::Request(error) => Category::of(error),
            Self::Timeout => Category::Unreachable,
        }
    }

    /// Returns the pause that the API server requested.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Request(error) => error_category::retry_after(error),
            Self::Timeout => None,
        }
    }

    /// Returns whether the request was rejected by validation, an admission policy or a webhook
    /// (which answer with 400, 403 or 422), or since a permission is missing.
    pub fn is_refusal(&self) -> bool {
        matches!(self.category(), Category::Refused | Category::Forbidden)
    }

    /// Returns the token to continue a list whose snapshot was compacted.
    fn resume_token(&self) -> Option<String> {
        let Self::Request(error) = self else { return None };
        let kube::Error::Api(status) = error.as_ref() else { return None };
        let token = status.metadata.as_ref().filter(|_| status.code == 410).and_then(next_token);
        token.filter(|token| !token.is_empty())
    }

    /// Returns how a list recovers from this failure of a page.
    pub fn recovery(&self) -> Recovery {
        match self.category() {
            Category::Throttled | Category::Server | Category::Unreachable | Category::Garbled => Recovery::Retry,
            _ => self.resume_token().map_or(Recovery::Fail, Recovery::Resume),
        }
    }

    /// Returns the HTTP status code, where there was a response.
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

/// Sends a request when the budget allows and waits for its response, no longer than the deadline.
pub async fn send<T>(
    budget: &Budget,
    urgency: impl Into<Urgency>,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestFailure> {
    budget.spend(urgency).await;
    let sent = Instant::now();
    match tokio::time::timeout(DEADLINE, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(RequestFailure::Request(Box::new(error))),
        Err(_) => {
            budget.refused(sent);
            Err(RequestFailure::Timeout)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_rejection_is_recognized_whatever_its_code() {
        let answered = |code| {
            RequestFailure::Request(Box::new(kube::Error::Api(Box::new(Status { code, ..Status::default() }))))
                .is_refusal()
        };

        assert!([400, 403, 413, 422].into_iter().all(answered));
        assert!(![404, 409, 429, 500, 503].into_iter().any(answered));
        assert!(!RequestFailure::Timeout.is_refusal());
    }

    #[test]
    fn a_list_goes_on_after_a_compaction_and_after_failures_that_may_pass() {
        let failed = |code, token: Option<&str>| {
            let metadata = ListMeta { continue_: token.map(str::to_owned), ..ListMeta::default() };
            let status = Status { code, metadata: Some(metadata), ..Status::default() };
            RequestFailure::Request(Box::new(kube::Error::Api(Box::new(status)))).recovery()
        };

        assert_eq!(failed(410, Some("next")), Recovery::Resume("next".to_owned()));
        assert_eq!((failed(410, None), failed(410, Some(""))), (Recovery::Fail, Recovery::Fail));
        assert!([429, 500, 503].into_iter().all(|code| failed(code, Some("next")) == Recovery::Retry));
        assert_eq!(failed(403, Some("next")), Recovery::Fail);
        assert_eq!(RequestFailure::Timeout.recovery(), Recovery::Retry);
    }
}
