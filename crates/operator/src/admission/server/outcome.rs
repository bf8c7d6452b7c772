//! Outcomes of admission requests, for spans.

use std::time::Duration;

use ::http::StatusCode;
use perennial_core::admission_review::{AdmissionResponse, FailOpen};

/// The result of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub path: &'static str,
    pub outcome: Outcome,
    pub elapsed: Duration,
}

/// Outcome of an admission request. A bounded set, since it is recorded in spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Patched,
    Denied,
    /// Allowed because the deadline was missed, by the handler or by what it waited for.
    Late,
    /// Allowed because the client's share of running handlers or the memory was used up.
    Overloaded,
    /// Allowed because the review could not be decoded.
    Malformed,
    /// Allowed because the handler failed or panicked.
    Failed,
    /// Not answered: too large, cut short, or beyond the limit of requests in progress.
    Refused,
    /// Not answered: the client has no certificate of `webhook.clientCA`.
    Unverified,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Patched => "patched",
            Self::Denied => "denied",
            Self::Late => "late",
            Self::Overloaded => "crowded",
            Self::Malformed => "strange",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Unverified => "unverified",
        }
    }

    /// Returns the HTTP status for metrics: 200 where the handler decided. A request that was only
    /// allowed because something went wrong counts as a failure, although the API server received
    /// an answer.
    pub fn code(self) -> StatusCode {
        match self {
            Self::Allowed | Self::Patched | Self::Denied => StatusCode::OK,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            Self::Overloaded | Self::Refused => StatusCode::SERVICE_UNAVAILABLE,
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Unverified => StatusCode::UNAUTHORIZED,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(super) fn of(response: &AdmissionResponse) -> Self {
        match response {
            AdmissionResponse { fail_open: Some(FailOpen::Deadline), .. } => Self::Late,
            AdmissionResponse { fail_open: Some(FailOpen::Error), .. } => Self::Failed,
            AdmissionResponse { allowed: false, .. } => Self::Denied,
            AdmissionResponse { patch, .. } if patch.is_empty() => Self::Allowed,
            AdmissionResponse { .. } => Self::Patched,
        }
    }
}
