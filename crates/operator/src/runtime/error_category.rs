//! Categories of failed requests, by how they are handled. Logs, Events and metrics use the same ones.

use std::time::Duration;

use kube::Error;

/// Category of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// The object has changed: read it and decide again.
    Conflict,
    /// The object does not exist.
    NotFound,
    /// A permission is missing. Retrying does not help until it is granted.
    Forbidden,
    /// The server asks clients to back off.
    Throttled,
    /// The server rejected the request. The same request would be rejected again.
    Refused,
    /// The server failed.
    Server,
    /// There was no response in time. The request may have been executed.
    Unreachable,
    /// The response could not be decoded.
    Garbled,
}

impl Category {
    pub const ALL: [Self; 8] = [
        Self::Conflict,
        Self::NotFound,
        Self::Forbidden,
        Self::Throttled,
        Self::Refused,
        Self::Server,
        Self::Unreachable,
        Self::Garbled,
    ];

    pub fn of(error: &Error) -> Self {
        match error {
            Error::Api(status) => match status.code {
                404 => Self::NotFound,
                409 => Self::Conflict,
                401 | 403 => Self::Forbidden,
                429 => Self::Throttled,
                400..=499 => Self::Refused,
                _ => Self::Server,
            },
            Error::SerdeError(_) | Error::FromUtf8(_) | Error::LinesCodecMaxLineLengthExceeded => Self::Garbled,
            _ => Self::Unreachable,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::NotFound => "not-found",
            Self::Forbidden => "forbidden",
            Self::Throttled => "throttled",
            Self::Refused => "refused",
            Self::Server => "server",
            Self::Unreachable => "unreachable",
            Self::Garbled => "garbled",
        }
    }
}

/// Returns the pause that the server asked for in the body of its response.
pub fn retry_after(error: &Error) -> Option<Duration> {
    let Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// Returns the server's own message, without the debug print of the whole status.
pub fn message(error: &Error) -> String {
    match error {
        Error::Api(status) if status.message.is_empty() => format!("the server answered {}", status.code),
        Error::Api(status) => status.message.clone(),
        Error::Service(source) => innermost(source.as_ref()),
        Error::HyperError(source) => innermost(source),
        other => other.to_string(),
    }
}

fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}
