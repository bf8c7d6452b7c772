//! Ages, durations and sets of keys as text.

use perennial_core::keeper::{
    keys::Kept,
    status::{KeepState, NodeCounts},
};

/// Formats an age like kubectl: `42s`, `5m`, `3h`, `12d`.
pub(crate) fn age(then: jiff::Timestamp, now: jiff::Timestamp) -> String {
    span(now.as_second().saturating_sub(then.as_second()))
}

/// Formats a number of seconds like kubectl.
pub(crate) fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats the number of nodes: `2 of 3 current (1 NoRecord, 1 Pending, 4 Away)`. All views use the
/// same definition of current.
pub(crate) fn node_counts(counts: &NodeCounts, paint: impl Fn(KeepState) -> String) -> String {
    let others: Vec<String> = counts
        .iter()
        .filter(|(state, _)| *state != KeepState::Current)
        .map(|(state, count)| format!("{count} {}", paint(state)))
        .collect();
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    format!("{} of {} current{others}", counts.current(), counts.managed())
}

/// Quotes a word for a shell. A forged record may contain any name.
pub(crate) fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/:=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Formats keys and values on one line.
pub(crate) fn pairs(kept: &Kept) -> String {
    if kept.is_empty() {
        return "(none)".to_owned();
    }
    kept.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        assert_eq!([119, 120, 7_200, 172_800, -5].map(span), ["119s", "2m", "2h", "2d", "0s"]);
    }

    #[test]
    fn nodes_are_counted_by_one_definition() {
        let mut counts = NodeCounts::default();
        for state in [KeepState::Current, KeepState::NoRecord, KeepState::Unidentified, KeepState::Away] {
            counts.add(state);
        }
        let text = node_counts(&counts, |state| state.to_string());
        assert_eq!(text, "2 of 3 current (1 Away, 1 NoRecord, 1 Unidentified)");
    }
}
