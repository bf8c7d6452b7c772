//! The end of a certificate's validity. Nothing is verified.

/// Returns `notAfter` in seconds since 1970. `None` if the bytes are not a certificate in DER.
pub fn not_after(certificate: &[u8]) -> Option<i64> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn certificate(expires: u64) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(["perennial".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(expires);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn both_encodings_of_a_time_are_read() {
        assert_eq!(not_after(&certificate(1)), Some(1));
        assert_eq!(not_after(&certificate(1_794_749_566)), Some(1_794_749_566));
        assert_eq!(not_after(&certificate(2_871_763_200)), Some(2_871_763_200), "a GeneralizedTime, from 2050 on");
    }

    #[test]
    fn a_certificate_without_a_valid_time_has_no_end() {
        let mut certificate = certificate(2_871_763_200);
        let at = certificate.windows(15).position(|bytes| bytes == b"20610101000000Z").unwrap();
        certificate[at + 4..at + 6].copy_from_slice(b"13");
        assert_eq!(not_after(&certificate), None);
    }

    #[test]
    fn bytes_that_are_not_a_certificate_have_no_end() {
        for bytes in [&b""[..], b"\x30", b"\x30\x82\xff\xff", b"\x30\x84\xff\xff\xff\xff\x00", b"hello, world"] {
            assert_eq!(not_after(bytes), None);
        }
    }
}
