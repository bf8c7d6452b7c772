//! Says what is going on: a bar on a terminal, one line per step elsewhere. Always on stderr.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// One step that takes a while.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    began: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins a step of unknown size.
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

    /// Something to know that is no step of its own.
    pub(crate) fn note(text: &str) {
        eprintln!("localplane: {text}");
    }

    /// Now the size is known: the spinner becomes a bar.
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

    /// More about the step, for those who watch; no line of its own without a terminal.
    pub(crate) fn detail(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} ({text}, {} s)", self.what, self.began.elapsed().as_secs()));
        }
    }

    /// The step is done.
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

    /// The step failed; the reason travels as an error, this is the one line for those who watch.
    pub(crate) fn fail(self, why: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        eprintln!("localplane: {}: {}", self.what, why.lines().next().unwrap_or_default());
    }
}
