//! Errors in one line, with their causes.

use super::error_category;

/// Displays an error and its causes in one line. A cause that is part of the text already is not
/// repeated. Of a failed request only the server's own message is shown, never the debug print of
/// its status.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a (dyn std::error::Error + 'static));

/// Returns the message of a failed request, whose own causes repeat it.
fn request_message(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let boxed = error.downcast_ref::<Box<kube::Error>>().map(|error| &**error);
    error.downcast_ref::<kube::Error>().or(boxed).map(error_category::message)
}

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(message) = request_message(self.0) {
            return f.write_str(&message);
        }
        let mut shown = self.0.to_string();
        f.write_str(&shown)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let request = request_message(error);
            let is_last = request.is_some();
            let cause = request.unwrap_or_else(|| error.to_string());
            if !shown.contains(&cause) {
                write!(f, ": {cause}")?;
                shown = cause;
            }
            source = error.source().filter(|_| !is_last);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Caused(&'static str, #[source] Option<Box<Caused>>);

    #[test]
    fn a_cause_that_is_in_the_text_is_not_repeated() {
        let cause = |text, source| Some(Box::new(Caused(text, source)));
        let error =
            Caused("could not start", cause("reading x: no such file", cause("no such file", cause("code 2", None))));
        assert_eq!(Chain(&error).to_string(), "could not start: reading x: no such file: code 2");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("could not read the Secret")]
    struct Request(#[source] kube::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("could not read the Secret")]
    struct BoxedRequest(#[source] Box<kube::Error>);

    #[test]
    fn a_failed_request_is_shown_by_the_servers_message_alone() {
        let refused = || {
            let status =
                kube::core::Status { code: 403, message: "secrets is forbidden".to_owned(), ..Default::default() };
            kube::Error::Api(Box::new(status))
        };
        let expected = "could not read the Secret: secrets is forbidden";
        assert_eq!(Chain(&Request(refused())).to_string(), expected);
        assert_eq!(Chain(&BoxedRequest(Box::new(refused()))).to_string(), expected);
        assert_eq!(Chain(&refused()).to_string(), "secrets is forbidden");
    }
}
