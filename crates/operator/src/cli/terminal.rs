//! Colours of a terminal, and questions on it. Output that a program reads has neither.

use std::io::{IsTerminal as _, stderr, stdin};

use crate::inspect::states::{Tone, tone_of};

/// Whether standard output is a terminal with colours: neither `NO_COLOR` nor `TERM=dumb` is set.
pub(super) fn colours() -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !plain && !dumb
}

/// Asks for confirmation of `what`, unless it was given with `--yes`. Fails without a terminal to
/// ask on.
pub(super) fn confirm(yes: bool, what: &str) -> anyhow::Result<()> {
    if yes {
        return Ok(());
    }
    if !stdin().is_terminal() || !stderr().is_terminal() {
        anyhow::bail!("{what}; confirm with --yes");
    }
    eprint!("{what}. Continue? [y/N] ");
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    if !matches!(answer.trim(), "y" | "Y" | "yes") {
        anyhow::bail!("cancelled; nothing was written");
    }
    Ok(())
}

/// Colour of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colour {
    Plain,
    Green,
    Yellow,
    Red,
    Dim,
}

/// Returns a cell of a table in the colour of its state.
pub(super) fn paint_state(word: &str, colours: bool) -> String {
    Colour::of(word).paint(word, colours)
}

impl Colour {
    fn of(word: &str) -> Self {
        match tone_of(word) {
            Some(Tone::Good) => Self::Green,
            Some(Tone::Info | Tone::Changed | Tone::Warn) => Self::Yellow,
            Some(Tone::Bad) => Self::Red,
            Some(Tone::Muted) => Self::Dim,
            None => Self::Plain,
        }
    }

    /// Returns the text with its escape codes, or unchanged without colours.
    pub(super) fn paint(self, text: &str, colours: bool) -> String {
        let code = match self {
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Red => "31",
            Self::Dim => "2",
            Self::Plain => return text.to_owned(),
        };
        if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_painted_only_with_colours_on() {
        assert_eq!(Colour::Green.paint("Current", false), "Current");
        assert_eq!(Colour::Green.paint("Current", true), "\x1b[32mCurrent\x1b[0m");
        assert_eq!(Colour::Plain.paint("x", true), "x");
    }
}
