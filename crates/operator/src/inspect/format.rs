//! Ages, durations and sets of keys as text.

use perennial_core::keeper::keys::Kept;

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
}
