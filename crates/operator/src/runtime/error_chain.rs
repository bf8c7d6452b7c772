//! Errors in one line, with all that caused them.

/// An error with all that it was caused by, in one line. A cause that was said already is not said twice.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let cause = error.to_string();
            if !said.contains(&cause) {
                write!(f, ": {cause}")?;
                said = cause;
            }
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    #[test]
    fn what_was_said_is_not_said_again() {
        let cause = |text, source| Some(Box::new(Said(text, source)));
        let error =
            Said("could not start", cause("reading x: no such file", cause("no such file", cause("code 2", None))));
        assert_eq!(Chain(&error).to_string(), "could not start: reading x: no such file: code 2");
    }
}
