//! Progress of slow reads, on standard error.

use std::{
    io::IsTerminal,
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A status line on standard error, shown after one second. Not shown if standard error is not a
/// terminal, or if standard output is printed to the same terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    count: u64,
    line: Option<Line>,
}

/// Drawn by a separate thread, which also works while the first response is pending.
#[derive(Debug)]
struct Line {
    bar: ProgressBar,
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Delay before the line is shown.
const DELAY: Duration = Duration::from_secs(1);

impl Progress {
    /// `streams`: output appears while the work goes on.
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
        let (stop, stopped) = channel::<()>();
        let shown = bar.clone();
        let thread = std::thread::spawn(move || {
            if stopped.recv_timeout(DELAY) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Self { bar, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
