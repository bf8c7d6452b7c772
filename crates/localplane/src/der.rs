//! DER, PEM and base64 encoding for certificates with several groups.
//!
//! rcgen supports one value per attribute type, but a Kubernetes identity has one `O` per group. A
//! certificate is created with rcgen, then its subject is replaced here and it is signed again.

use rcgen::SigningKey;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;

/// Encoded object identifiers `2.5.4.3` and `2.5.4.10`.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];

/// Number of fields before the subject: version, serial number, signature algorithm, issuer,
/// validity.
const BEFORE_SUBJECT: usize = 5;

/// Returns the certificate with the subject `CN=name` and one `O` per group, signed again by
/// `issuer`.
pub(crate) fn with_subject(
    certificate: &[u8],
    name: &str,
    groups: &[String],
    issuer: &impl SigningKey,
) -> Result<Vec<u8>, rcgen::Error> {
    let unreadable = || rcgen::Error::CouldNotParseCertificate;
    let outer = children(certificate).and_then(|mut c| c.pop()).and_then(children_of).ok_or_else(unreadable)?;
    let [tbs, algorithm, _signature] = outer[..] else { return Err(unreadable()) };
    let mut fields = children_of(tbs).ok_or_else(unreadable)?;
    let subject = subject(name, groups);
    *fields.get_mut(BEFORE_SUBJECT).ok_or_else(unreadable)? = &subject;

    let tbs = tlv(SEQUENCE, &fields.concat());
    let mut signature = vec![0]; // no unused bits
    signature.extend(issuer.sign(&tbs)?);
    Ok(tlv(SEQUENCE, &[tbs, algorithm.to_vec(), tlv(BIT_STRING, &signature)].concat()))
}

fn subject(name: &str, groups: &[String]) -> Vec<u8> {
    let attribute = |kind: [u8; 3], value: &str| {
        let pair = [tlv(OBJECT_IDENTIFIER, &kind), tlv(UTF8_STRING, value.as_bytes())].concat();
        tlv(SET, &tlv(SEQUENCE, &pair))
    };
    let mut names: Vec<u8> = groups.iter().flat_map(|group| attribute(ORGANIZATION, group)).collect();
    names.extend(attribute(COMMON_NAME, name));
    tlv(SEQUENCE, &names)
}

fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut out = vec![tag];
    if content.len() >= 0x80 {
        out.push(0x80 | u8::try_from(significant.len()).unwrap_or(u8::MAX));
        out.extend(significant);
    } else {
        out.push(length[length.len() - 1]);
    }
    out.extend(content);
    out
}

/// Returns the elements inside this element, each with its header.
fn children_of(element: &[u8]) -> Option<Vec<&[u8]>> {
    let (header, _) = extent(element)?;
    children(&element[header..])
}

/// Splits a sequence of elements.
fn children(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let (header, content) = extent(bytes)?;
        let (element, rest) = bytes.split_at_checked(header.checked_add(content)?)?;
        found.push(element);
        bytes = rest;
    }
    Some(found)
}

/// Returns the lengths of header and content of the first element.
fn extent(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*bytes.get(1)?);
    if first < 0x80 {
        return Some((2, first));
    }
    let count = first & 0x7f;
    let digits = bytes.get(2..2 + count)?;
    Some((2 + count, digits.iter().try_fold(0_usize, |n, byte| n.checked_mul(256)?.checked_add((*byte).into()))?))
}

/// Encodes as standard base64 with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_usize, |n, byte| n << 8 | usize::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let shift = 18 - 6 * digit;
            text.push(if digit <= chunk.len() { char::from(DIGITS[group >> shift & 63]) } else { '=' });
        }
    }
    text
}

/// Encodes as a PEM block.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    // 48 bytes are 64 base64 characters.
    let lines: Vec<_> = bytes.chunks(48).map(base64).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_the_vectors_of_rfc_4648() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn lengths_use_the_short_and_the_long_form() {
        assert_eq!(tlv(4, &[7])[..2], [4, 1]);
        assert_eq!(tlv(4, &[7; 0x80])[..3], [4, 0x81, 0x80]);
        assert_eq!(tlv(4, &[7; 0x1234])[..4], [4, 0x82, 0x12, 0x34]);
        for size in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x12345] {
            let element = tlv(4, &vec![7; size]);
            assert_eq!(children(&element).unwrap(), [&element[..]], "{size}");
        }
    }

    #[test]
    fn invalid_der_is_rejected() {
        for bytes in [&[][..], &[0x30], &[0x30, 5, 1], &[0x30, 0x89, 1, 1, 1, 1, 1, 1, 1, 1, 1]] {
            let key = rcgen::KeyPair::generate().unwrap();
            assert!(with_subject(bytes, "user", &[], &key).is_err(), "{bytes:?}");
        }
    }
}
