//! Categories of failed requests, by how they are handled. Logs, Events and metrics use the same
//! ones.

use std::time::Duration;

use kube::{Error, client::AuthError};

/// Category of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// The object has changed: read it and decide again.
    Conflict,
    /// The object does not exist.
    NotFound,
    /// A permission is missing. Retrying does not help until it is granted.
    Forbidden,
    /// The server throttles clients (429).
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

    pub const fn as_str(self) -> &'static str {
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

/// Returns the pause that the server requested in the body of its response.
pub fn retry_after(error: &Error) -> Option<Duration> {
    let Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds)))
}

/// Longest message of a server that is shown.
const MESSAGE_LENGTH: usize = 1000;
/// The reason that kube sets where a response was no Status. Its message is then the whole body.
const NO_STATUS: &str = "Failed to parse error data";

/// Returns the server's own message, without the debug print of the whole status. Contains no part
/// of a response that is no Status: that may be any object, or the page of a proxy.
pub fn message(error: &Error) -> String {
    match error {
        Error::Api(status) if status.message.is_empty() || status.reason == NO_STATUS => {
            format!("the server answered {}", status.code)
        }
        Error::Api(status) => status.message.chars().take(MESSAGE_LENGTH).collect(),
        Error::SerdeError(source) => {
            format!("the response could not be decoded (line {}, column {})", source.line(), source.column())
        }
        Error::Service(source) => innermost(source.as_ref()),
        Error::HyperError(source) => innermost(source),
        Error::Auth(source) => credentials(source),
        other => other.to_string(),
    }
}

/// Returns why there are no credentials. Contains no output of a credential plugin but its errors:
/// it may have printed a token.
fn credentials(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecStart(source) => format!("the credential plugin could not be started: {source}"),
        AuthError::AuthExecRun { out, .. } => {
            let said: String = String::from_utf8_lossy(&out.stderr).trim().chars().take(MESSAGE_LENGTH).collect();
            let said = if said.is_empty() { "it printed no error".to_owned() } else { said };
            format!("the credential plugin failed ({}): {said}", out.status)
        }
        AuthError::ReadTokenFile(source, path) => {
            format!("could not read the token file {}: {source}", path.display())
        }
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

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn a_message_contains_no_part_of_a_response_that_is_no_status() {
        let undecoded = serde_json::from_str::<u32>("\"s3cret\"").unwrap_err();
        let page = Status::failure("<html>s3cret</html>", NO_STATUS).with_code(502);

        for error in [Error::SerdeError(undecoded), Error::Api(Box::new(page))] {
            assert!(!message(&error).contains("s3cret"), "{}", message(&error));
        }
        let status = Status::failure("nodes \"n1\" not found", "NotFound").with_code(404);
        assert_eq!(message(&Error::Api(Box::new(status))), "nodes \"n1\" not found");
    }

    #[cfg(unix)]
    #[test]
    fn a_message_contains_the_errors_of_a_credential_plugin_and_no_other_output() {
        use std::{
            os::unix::process::ExitStatusExt as _,
            process::{ExitStatus, Output},
        };

        let out =
            Output { status: ExitStatus::from_raw(256), stdout: b"s3cret".to_vec(), stderr: b"log in\n".to_vec() };
        let failed = Error::Auth(AuthError::AuthExecRun { cmd: "s3cret".to_owned(), out: Box::new(out) });

        assert_eq!(message(&failed), "the credential plugin failed (exit status: 1): log in");
    }
}
