//! Output of the demo: colours and progress bars on a terminal, plain text elsewhere.

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const WIDTH: usize = 88;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Paint {
    Plain,
    Bold,
    Dim,
    Green,
    Red,
    Cyan,
}

/// Capabilities of the terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terminal {
    colour: bool,
    bars: bool,
}

impl Terminal {
    pub(crate) fn new() -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let colour = io::stdout().is_terminal() && !set("NO_COLOR") && !dumb;
        Self { colour, bars: io::stderr().is_terminal() && !dumb }
    }

    pub(crate) fn paint(self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Plain => return text.to_owned(),
            Paint::Bold => 1,
            Paint::Dim => 2,
            Paint::Green => 32,
            Paint::Red => 31,
            Paint::Cyan => 36,
        };
        if self.colour && !text.is_empty() { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    pub(crate) fn title(self, text: &str) {
        println!("\n{}\n", self.paint(Paint::Bold, text));
    }

    pub(crate) fn chapter(self, number: usize, title: &str) {
        println!("\n{}  {}", self.paint(Paint::Cyan, &format!("{number:>2}")), self.paint(Paint::Bold, title));
    }

    /// Prints a sentence of the story.
    pub(crate) fn narrate(self, text: &str) {
        println!("    {}", self.paint(Paint::Plain, text));
    }

    /// Prints a command before it runs.
    pub(crate) fn command(self, command: &str) {
        println!("    {} {command}", self.paint(Paint::Cyan, "$"));
    }

    pub(crate) fn output(self, text: &str) {
        for line in text.lines() {
            println!("{}", self.paint(Paint::Dim, &format!("    {line}")).trim_end());
        }
    }

    /// Prints a claim that holds, with its measurement.
    pub(crate) fn holds(self, claim: &str, measured: &str) {
        let gap = WIDTH.saturating_sub(6 + claim.chars().count() + measured.chars().count()).max(2);
        let measured = self.paint(Paint::Dim, measured);
        println!("{}", format!("    {} {claim}{:gap$}{measured}", self.paint(Paint::Green, "✓"), "").trim_end());
    }

    /// Prints a claim that does not hold.
    pub(crate) fn broken(self, claim: &str) {
        println!("    {} {}", self.paint(Paint::Red, "✗"), self.paint(Paint::Bold, claim));
    }

    /// Returns a progress bar; hidden without a terminal.
    pub(crate) fn bar(self, total: usize, what: &str) -> ProgressBar {
        if !self.bars {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
        let template = if self.colour {
            "    {msg:<18} {bar:40.green/dim} {pos}/{len}"
        } else {
            "    {msg:<18} {bar:40} {pos}/{len}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─"));
        }
        bar.set_message(what.to_owned());
        bar
    }
}

/// Formats a duration: `38 ms`, `4.2 s`. Differences between two watch events are not meaningful
/// below 10 ms.
pub(crate) fn took(duration: Duration) -> String {
    if duration < Duration::from_millis(10) {
        "under 10 ms".to_owned()
    } else if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_sensible_precision() {
        let texts = [3, 38, 999, 4_240].map(|millis| took(Duration::from_millis(millis)));
        assert_eq!(texts, ["under 10 ms", "38 ms", "999 ms", "4.2 s"]);
    }
}
