//! What a terminal can show: colour and progress. Neither is ever in output that is read by a program.

use std::{
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

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
    /// For a word of [`perennial_core::keeper::standing::WORDS`] or of a record's state.
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

/// A line on standard error that says how far something is, once it has taken a second. Nothing where that is not a
/// terminal, or where the output itself goes to the same one as it comes.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    begun: Instant,
    shown: Option<ProgressBar>,
    wanted: bool,
    count: u64,
}

impl Progress {
    /// `streams`: output appears while this is under way, and shows by itself how far it is.
    pub(super) fn new(what: &'static str, streams: bool) -> Self {
        let wanted = std::io::stderr().is_terminal() && !(streams && std::io::stdout().is_terminal());
        Self { what, begun: Instant::now(), shown: None, wanted, count: 0 }
    }

    pub(super) fn advance(&mut self, by: usize) {
        self.count += by as u64;
        if !self.wanted || self.begun.elapsed() < Duration::from_secs(1) {
            return;
        }
        let what = self.what;
        let bar = self.shown.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner().with_message(what);
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}: {human_pos} ({per_sec})") {
                bar.set_style(style);
            }
            bar
        });
        bar.set_position(self.count);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
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
