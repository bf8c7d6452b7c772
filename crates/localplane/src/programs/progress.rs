//! Progress on stderr: a bar on a terminal, otherwise one line per step.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// A long-running step.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Starts a step of unknown size.
    pub(crate) fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner().with_message(what.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        if bar.is_none() {
            eprintln!("localplane: {what}");
        }
        Self { what, began: Instant::now(), bar }
    }

    /// Prints a message that is not a step.
    pub(crate) fn note(text: &str) {
        eprintln!("localplane: {text}");
    }

    /// Sets the size: the spinner becomes a bar.
    pub(crate) fn expect_bytes(&self, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}") {
                bar.set_style(style);
            }
        }
    }

    pub(crate) fn advance(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// Shows details of the step on a terminal. Prints nothing otherwise.
    pub(crate) fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} ({text}, {} s)", self.what, self.began.elapsed().as_secs()));
        }
    }

    /// Ends the step successfully.
    pub(crate) fn finish(self) {
        let line = format!("localplane: {}: done in {:.1} s", self.what, self.began.elapsed().as_secs_f32());
        match &self.bar {
            Some(bar) => {
                bar.finish_and_clear();
                eprintln!("{line}");
            }
            None => eprintln!("{line}"),
        }
    }

    /// Ends the step with one line. The caller returns the complete error.
    pub(crate) fn fail(self, reason: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("localplane: {}: {}", self.what, reason.lines().next().unwrap_or_default());
    }
}
