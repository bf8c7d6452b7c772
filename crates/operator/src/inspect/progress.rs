//! Progress of slow reads, on standard error.

use std::{
    io::IsTerminal,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on standard error that says what is under way and how far it is, once it has taken a second. Nothing where that
/// is not a terminal, or where the output itself goes to the same one as it comes.
#[derive(Debug)]
pub(crate) struct Progress {
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
    pub(crate) fn new(what: &'static str, streams: bool) -> Self {
        let wanted = std::io::stderr().is_terminal() && !(streams && std::io::stdout().is_terminal());
        Self { what, count: 0, line: wanted.then(|| Line::new(what)) }
    }

    pub(crate) fn advance(&mut self, by: usize) {
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
