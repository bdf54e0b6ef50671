//! Makes a certificate and an authority that signs nothing else: the authority's key is dropped when the function
//! returns. Recognizes these authorities in a bundle. The time is an argument. Must not store anything.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

/// Allowance for the differences between the machines' clocks.
const SKEW: Duration = Duration::from_secs(3600);
/// The beginning of the name of every authority.
const AUTHORITY: &str = "inplace-webhook-ca";
/// The form of what follows: a space and the beginning of a time, in which `d` is a digit.
const SINCE: &[u8] = b" dddd-dd-ddT";

/// A certificate with its key and its authority; all PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pair {
    /// The certificate of the authority.
    pub(super) ca: String,
    /// The certificate that is served.
    pub(super) cert: String,
    /// The private key of `cert`.
    pub(super) key: String,
    /// The end of the validity.
    pub(super) until: Timestamp,
}

/// A new pair for these names and addresses.
///
/// # Errors
/// When one of the names is not a valid name, or when no randomness is available.
pub(super) fn make(names: &[String], now: Timestamp, lifetime: Duration) -> Result<Pair, rcgen::Error> {
    let until = now.checked_add(lifetime).unwrap_or(now);
    let epoch = date_time_ymd(1970, 1, 1);
    let seconds = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or_default());
    let params = |names: &[String], called: String| {
        let mut params = CertificateParams::new(names)?;
        params.not_before = epoch + seconds(now).saturating_sub(SKEW);
        params.not_after = epoch + seconds(until);
        // Each authority has a name of its own: during a replacement two are trusted at the same time.
        params.distinguished_name.push(DnType::CommonName, called);
        Ok::<_, rcgen::Error>(params)
    };
    let mut ca = params(&[], format!("{AUTHORITY} {now}"))?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
    let mut cert = params(names, "inplace-webhook".to_owned())?;
    cert.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    cert.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    cert.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let cert = cert.signed_by(&key, &ca)?;
    Ok(Pair { ca: ca.pem(), cert: cert.pem(), key: key.serialize_pem(), until })
}

/// The certificates in `bundle` that are neither authorities of [`make`] nor in `authorities`; all PEM. What
/// cannot be read is left out.
pub(super) fn of_others(bundle: &str, authorities: &str) -> String {
    // The Secret may contain an authority of others, which must not be added at each call.
    let known: Vec<_> = certificates(authorities).map(|(_, der)| der).collect();
    let others = certificates(bundle).filter(|(_, der)| !is_own(der) && !known.contains(der));
    others.map(|(pem, _)| pem).collect()
}

/// The certificates in a bundle, each as PEM and as DER.
fn certificates(bundle: &str) -> impl Iterator<Item = (String, CertificateDer<'static>)> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let bodies = bundle.split(BEGIN).skip(1).filter_map(|part| part.split_once(END));
    bodies.filter_map(|(body, _)| {
        let pem = format!("{BEGIN}{body}{END}\n");
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        Some((pem, der))
    })
}

/// Whether a certificate contains the name of an authority of [`make`].
fn is_own(der: &[u8]) -> bool {
    let fits = |(byte, form): (&u8, &u8)| if *form == b'd' { byte.is_ascii_digit() } else { byte == form };
    let is_since = |part: &[u8]| part.iter().zip(SINCE).all(fits);
    let mut parts = der.windows(AUTHORITY.len() + SINCE.len());
    parts.any(|part| part.strip_prefix(AUTHORITY.as_bytes()).is_some_and(is_since))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_others_made_is_kept() {
        let now = "2026-01-31T12:34:56Z".parse().unwrap();
        let make = || make(&["inplace-webhook.test.svc".to_owned()], now, SKEW).unwrap().ca;
        let (one, two) = (other("other"), other(AUTHORITY));
        let mixed = format!("{}# a comment\n{one}{}{two}", make(), make());
        assert_eq!(of_others(&mixed, &make()), format!("{one}{two}"));
        assert_eq!(of_others(one.trim_end(), ""), one);
        for nothing in ["", "hello", "-----BEGIN CERTIFICATE-----\n%\n-----END CERTIFICATE-----", &make()] {
            assert_eq!(of_others(nothing, ""), "");
        }
    }

    #[test]
    fn a_stored_authority_of_others_is_not_added_again() {
        let (stored, one) = (other("stored"), other("one"));
        // Another client may have written the same certificate with other line ends.
        let bundle = format!("{stored}{one}{}", stored.replace('\n', "\r\n"));
        assert_eq!(of_others(&bundle, &stored), one);
    }

    /// An authority of others, with this common name.
    fn other(name: &str) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap().pem()
    }
}
