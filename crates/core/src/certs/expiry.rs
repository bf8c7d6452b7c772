//! When a certificate ends, from its DER. Nothing else of it is understood, and nothing is verified.

use jiff::{Timestamp, civil::DateTime, tz::TimeZone};

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const VERSION: u8 = 0xa0;

/// `notAfter` in seconds since 1970; none where this is not a certificate.
pub fn not_after(certificate: &[u8]) -> Option<i64> {
    let (certificate, _) = take(certificate, SEQUENCE)?;
    let (mut tbs, _) = take(certificate, SEQUENCE)?;
    if tbs.first() == Some(&VERSION) {
        (_, tbs) = take(tbs, VERSION)?;
    }
    // The serial number, the algorithm and the issuer stand before the validity.
    for _ in 0..3 {
        (_, tbs) = take(tbs, *tbs.first()?)?;
    }
    let (validity, _) = take(tbs, SEQUENCE)?;
    let (_, after) = take(validity, *validity.first()?)?;
    let tag = *after.first()?;
    let (text, _) = take(after, tag)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// The content of the element that stands first, and what stands behind it.
fn take(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    if found != tag {
        return None;
    }
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if length.len() > 4 {
            return None;
        }
        (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
    };
    rest.split_at_checked(length)
}

/// `YYMMDDHHMMSSZ` (up to 2049) or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z')?;
    let text = match tag {
        UTC_TIME if text.get(..2)? < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let date = DateTime::strptime("%Y%m%d%H%M%S", text).ok()?;
    let at: Timestamp = date.to_zoned(TimeZone::UTC).ok()?.timestamp();
    Some(at.as_second())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_time_are_read() {
        assert_eq!(time(UTC_TIME, "700101000001Z"), Some(1));
        assert_eq!(time(UTC_TIME, "261115133246Z"), Some(1_794_749_566));
        assert_eq!(time(GENERALIZED_TIME, "20610101000000Z"), Some(2_871_763_200));
        assert_eq!(time(GENERALIZED_TIME, "20261315000000Z"), None);
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        for bytes in [&b""[..], b"\x30", b"\x30\x82\xff\xff", b"\x30\x84\xff\xff\xff\xff\x00", b"hello, world"] {
            assert_eq!(not_after(bytes), None);
        }
    }
}
