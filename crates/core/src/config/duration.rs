//! Durations: `30d`, `1h30m`, `300s`, `500ms`.

use std::fmt::Write;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserializer, Serializer};

use super::text::{self, Text};

const EXPECTED: &str = "a duration such as 300s, 1h30m or 500ms";

const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Parses whole numbers with units, larger units first. Returns `None` for anything else, such as a
/// number without a unit.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, behind) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let (_, milliseconds) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(digits.parse::<u64>().ok()?.checked_mul(*milliseconds)?)?;
        rest = behind;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// Returns the shortest text that [`parse`] reads, in units that Go also has. Fractions of a
/// millisecond are cut off.
pub fn print(duration: Duration) -> String {
    let mut rest = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, milliseconds) in &UNITS[1..] {
        if rest >= *milliseconds {
            // Writing to a String cannot fail.
            let _ = write!(text, "{}{name}", rest / milliseconds);
            rest %= milliseconds;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// The serde and schema of a duration: a string.
#[derive(Debug, JsonSchema)]
pub struct DurationText(#[allow(dead_code)] String);

impl DurationText {
    pub(crate) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&print(*value))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        text::deserialize(deserializer).map(|Parsed(value)| value)
    }
}

struct Parsed(Duration);

impl Text for Parsed {
    fn expected() -> String {
        EXPECTED.to_owned()
    }
}

impl FromStr for Parsed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).map(Self).ok_or_else(|| format!("expected {EXPECTED}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("300s", 300_000)]
    #[case("1h", 3_600_000)]
    #[case("720h", 2_592_000_000)]
    #[case("30d", 2_592_000_000)]
    #[case("1h30m", 5_400_000)]
    #[case("500ms", 500)]
    #[case("1m500ms", 60_500)]
    #[case("0s", 0)]
    fn durations_are_read(#[case] text: &str, #[case] milliseconds: u64) {
        assert_eq!(parse(text), Some(Duration::from_millis(milliseconds)));
    }

    #[rstest]
    #[case("")]
    #[case("300")]
    #[case("s")]
    #[case("-1s")]
    #[case("1.5h")]
    #[case("1 h")]
    #[case("1h 30m")]
    #[case("30m1h")]
    #[case("1s1s")]
    #[case("1w")]
    #[case("99999999999999999999s")]
    #[case("18446744073709551615h")]
    fn anything_else_is_refused(#[case] text: &str) {
        assert_eq!(parse(text), None);
    }

    #[rstest]
    #[case(0, "0s")]
    #[case(300_000, "5m")]
    #[case(5_400_000, "1h30m")]
    #[case(2_592_000_000, "720h")]
    #[case(1_500, "1s500ms")]
    fn durations_are_printed(#[case] milliseconds: u64, #[case] text: &str) {
        assert_eq!(print(Duration::from_millis(milliseconds)), text);
    }

    proptest! {
        #[test]
        fn printed_durations_are_read_back(milliseconds in any::<u64>()) {
            let duration = Duration::from_millis(milliseconds);
            prop_assert_eq!(parse(&print(duration)), Some(duration));
        }

        #[test]
        fn no_text_causes_a_panic(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}
