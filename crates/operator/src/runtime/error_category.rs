//! What went wrong with a request, in the few kinds that call for different answers. The same kinds are in logs,
//! Events and metrics.

use std::time::Duration;

use kube::Error;

/// The kind of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Somebody was faster: read again and decide again.
    Conflict,
    /// The object is not there.
    NotFound,
    /// We may not: nothing that we do changes that.
    Forbidden,
    /// The server asks for patience.
    Throttled,
    /// The server understood and refuses: the same request would be refused again.
    Refused,
    /// The server failed.
    Server,
    /// There was no answer, or not in time: it may have been done.
    Unreachable,
    /// The answer was not understood.
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

/// How long the server asked to be left alone, where it said so in the body.
pub fn retry_after(error: &Error) -> Option<Duration> {
    let Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// The server's own words, without the debug print of the whole status.
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
