//! Syntax of single annotation values. Each parser returns a value or the reason for which the text
//! is invalid.

use jiff::SignedDuration;

use super::{FallbackBudget, Floor};

/// Maximum duration. Longer ones are most often mistakes in the unit (`5000h`).
const MAX_DURATION: SignedDuration = SignedDuration::from_hours(24 * 31);

pub(super) fn percentage(text: &str) -> Result<u8, String> {
    let why = "is not a whole number from 0 to 100 (a % sign may follow)";
    let digits = text.strip_suffix('%').unwrap_or(text);
    whole(digits).and_then(|n| u8::try_from(n).ok()).filter(|n| *n <= 100).ok_or_else(|| why.to_owned())
}

pub(super) fn count(text: &str) -> Result<u32, String> {
    let top = u32::try_from(i32::MAX).unwrap_or(u32::MAX);
    whole(text).filter(|n| *n <= top).ok_or_else(|| "is not a whole number from 0 up".to_owned())
}

pub(super) fn floor(text: &str) -> Result<Floor, String> {
    let parsed = if text.ends_with('%') {
        percentage(text).ok().map(Floor::Percentage)
    } else {
        count(text).ok().map(Floor::Count)
    };
    parsed.ok_or_else(|| "is neither a count of replicas (3) nor a percentage of them (20%)".to_owned())
}

pub(super) fn budget(text: &str) -> Result<FallbackBudget, String> {
    let parsed = if text.ends_with('%') {
        percentage(text).ok().map(FallbackBudget::Percentage)
    } else {
        count(text).ok().map(FallbackBudget::Count)
    };
    parsed.ok_or_else(|| "is neither a count of replicas (3) nor a percentage of the spot replicas (20%)".to_owned())
}

pub(super) fn duration(text: &str) -> Result<SignedDuration, String> {
    let parsed: SignedDuration = text.parse().map_err(|_| "is not a duration such as 90s, 5m or 1h30m".to_owned())?;
    if parsed <= SignedDuration::ZERO {
        Err("must be longer than 0".to_owned())
    } else if parsed > MAX_DURATION {
        Err("is longer than 31 days".to_owned())
    } else {
        Ok(parsed)
    }
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("is neither \"true\" nor \"false\"".to_owned()),
    }
}

/// Parses digits only: `parse` alone would accept `+7`.
fn whole(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("70", Some(70))]
    #[case("70%", Some(70))]
    #[case("0", Some(0))]
    #[case("100%", Some(100))]
    #[case("abc", None)]
    #[case("140", None)]
    #[case("-1", None)]
    #[case("70.5%", None)]
    #[case("+7", None)]
    #[case("", None)]
    #[case("%", None)]
    #[case("7 0", None)]
    #[case("99999999999", None)]
    fn percentages_are_whole_numbers_up_to_100(#[case] text: &str, #[case] value: Option<u8>) {
        assert_eq!(percentage(text).ok(), value);
    }

    #[rstest]
    #[case("5m", Some(300))]
    #[case("1h30m", Some(5400))]
    #[case("90s", Some(90))]
    #[case("0s", None)]
    #[case("-5m", None)]
    #[case("5", None)]
    #[case("soon", None)]
    #[case("9000h", None)]
    fn durations_are_positive_and_have_a_unit(#[case] text: &str, #[case] seconds: Option<i64>) {
        assert_eq!(duration(text).ok().map(|d| d.as_secs()), seconds);
    }
}
