//! What a terminal can show: colour and progress. Neither is ever in output that is read by a program.

use std::{
    io::IsTerminal,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

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

/// A line on standard error that says what is under way and how far it is, once it has taken a second. Nothing where that
/// is not a terminal, or where the output itself goes to the same one as it comes.
#[derive(Debug)]
pub(super) struct Progress {
    what: &'static str,
    count: u64,
    line: Option<Line>,
}

/// Shown by a thread of its own: also while the first answer is still awaited.
#[derive(Debug)]
struct Line {
    bar: ProgressBar,
    /// Dropped when it is over.
    over: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is done by then needs no line.
const PATIENCE: Duration = Duration::from_secs(1);

impl Progress {
    /// `streams`: output appears while this is under way, and shows by itself how far it is.
    pub(super) fn new(what: &'static str, streams: bool) -> Self {
        let wanted = std::io::stderr().is_terminal() && !(streams && std::io::stdout().is_terminal());
        Self { what, count: 0, line: wanted.then(|| Line::new(what)) }
    }

    pub(super) fn advance(&mut self, by: usize) {
        self.count += by as u64;
        if let Some(Line { bar, .. }) = &self.line {
            bar.set_message(format!("{}: {}", self.what, HumanCount(self.count)));
        }
    }
}

impl Line {
    fn new(what: &'static str) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_message(what);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        let (over, waits) = channel::<()>();
        let shown = bar.clone();
        let thread = std::thread::spawn(move || {
            if waits.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Self { bar, over: Some(over), thread: Some(thread) }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.over.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
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
