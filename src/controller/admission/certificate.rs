//! Makes a certificate and an authority that signs nothing else: the authority's key is dropped when the function
//! returns. The time is an argument. Must not store anything.

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// Allowance for the differences between the machines' clocks.
const SKEW: Duration = Duration::from_secs(3600);

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
    let mut ca = params(&[], format!("inplace-webhook-ca {now}"))?;
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
