//! The end of the validity of a certificate, read from its DER form. Must not check anything else of it.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The tags of the fields on the way to the end of the validity.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of the validity; `None` if the certificate cannot be read.
///
/// ```text
/// Certificate { TBSCertificate { [version] serialNumber signature issuer Validity { notBefore notAfter } ... } ... }
/// ```
pub(super) fn not_after(der: &[u8]) -> Option<Timestamp> {
    let certificate = content(der, SEQUENCE)?;
    let mut fields = content(certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    for _ in ["serialNumber", "signature", "issuer"] {
        fields = element(fields)?.2;
    }
    let validity = content(fields, SEQUENCE)?;
    let (tag, text, _) = element(element(validity)?.2)?;
    let text = std::str::from_utf8(text).ok()?;
    let year = match tag {
        // Two digits: 1950 to 2049.
        UTC_TIME if text.get(..2)? >= "50" => "19",
        UTC_TIME => "20",
        GENERALIZED_TIME => "",
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", format!("{year}{text}")).ok()?;
    TimeZone::UTC.to_timestamp(time).ok()
}

/// The content of the first element, which has this tag.
fn content(der: &[u8], tag: u8) -> Option<&[u8]> {
    element(der).filter(|(found, ..)| *found == tag).map(|(_, content, _)| content)
}

/// The tag and the content of the first element, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        // The low bits say how many bytes the length has.
        let (bytes, rest) =
            rest.split_at_checked(usize::from(first & 0x7f)).filter(|(bytes, _)| bytes.len() <= 4)?;
        (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
    };
    let (content, after) = rest.split_at_checked(length)?;
    Some((tag, content, after))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;
    use crate::controller::admission::certificate;

    #[test]
    fn the_end_is_read_from_both_forms_of_a_time() {
        // From the year 2050 on, certificates have the longer form.
        for (now, days) in [("2026-01-31T12:34:56Z", 90), ("2049-12-31T00:00:01Z", 400)] {
            let now: Timestamp = now.parse().unwrap();
            let lifetime = Duration::from_secs(days * 86_400);
            let pair = certificate::make(&["inplace-webhook.test.svc".to_owned()], now, lifetime).unwrap();
            let der = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
            assert_eq!(not_after(&der), Some(pair.until));
            // A part of it is unreadable.
            for end in 0..der.len() {
                assert!(not_after(&der[..end]).is_none(), "{end}");
            }
        }
    }
}
