//! Colours of a terminal. Output that a program reads has none.

use std::io::IsTerminal;

/// Whether standard output may be coloured: a terminal that nobody asked to be plain (`NO_COLOR`, `TERM=dumb`).
pub(super) fn colours() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !plain && !dumb
}

/// How something is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Tone {
    #[default]
    Plain,
    Good,
    Attention,
    Bad,
    Quiet,
}

impl Tone {
    /// For a word of [`perennial_core::keeper::status::KeepState`] or of a record's state.
    pub(super) fn of(word: &str) -> Self {
        match word {
            "Current" | "Good" | "pass" => Self::Good,
            "Pending" | "Unsettled" | "Waiting" | "Folded" | "warn" => Self::Attention,
            "Contested" | "NewerRecord" | "Invalid" | "Newer" | "fail" | "none" => Self::Bad,
            "Away" | "Ignored" | "NoRecord" | "Tombstone" | "Unidentified" => Self::Quiet,
            _ => Self::Plain,
        }
    }

    /// The text in this tone, where colours are shown.
    pub(super) fn paint(self, text: &str, colours: bool) -> String {
        let code = match self {
            Self::Good => "32",
            Self::Attention => "33",
            Self::Bad => "31",
            Self::Quiet => "2",
            Self::Plain => return text.to_owned(),
        };
        if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_is_only_where_it_is_shown() {
        assert_eq!(Tone::Good.paint("Current", false), "Current");
        assert_eq!(Tone::Good.paint("Current", true), "\x1b[32mCurrent\x1b[0m");
        assert_eq!(Tone::Plain.paint("x", true), "x");
    }
}
