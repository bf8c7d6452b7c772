//! Ages, durations and sets of keys as text.

use perennial_core::keeper::keys::Kept;

/// How long ago, as kubectl says it: `42s`, `5m`, `3h`, `12d`.
pub(crate) fn age(then: jiff::Timestamp, now: jiff::Timestamp) -> String {
    span(now.as_second().saturating_sub(then.as_second()))
}

/// A number of seconds, as kubectl says it.
pub(crate) fn span(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Keys and values on one line.
pub(crate) fn pairs(kept: &Kept) -> String {
    if kept.is_empty() {
        return "(nothing)".to_owned();
    }
    kept.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_short() {
        assert_eq!([119, 120, 7_200, 172_800, -5].map(span), ["119s", "2m", "2h", "2d", "0s"]);
    }
}
