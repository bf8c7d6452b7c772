//! Errors in one line, with their causes.

/// Displays an error and its causes in one line. A cause that is part of the text already is not repeated.
#[derive(Debug)]
pub struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = self.0.to_string();
        f.write_str(&shown)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            let cause = error.to_string();
            if !shown.contains(&cause) {
                write!(f, ": {cause}")?;
                shown = cause;
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
    struct Caused(&'static str, #[source] Option<Box<Caused>>);

    #[test]
    fn a_cause_that_is_in_the_text_is_not_repeated() {
        let cause = |text, source| Some(Box::new(Caused(text, source)));
        let error =
            Caused("could not start", cause("reading x: no such file", cause("no such file", cause("code 2", None))));
        assert_eq!(Chain(&error).to_string(), "could not start: reading x: no such file: code 2");
    }
}
