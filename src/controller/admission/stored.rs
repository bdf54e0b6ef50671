//! The certificates in the Secret, and the decision about the next step. Pure.
//!
//! A certificate is replaced in two steps: first the API server is configured to trust both; only after it has
//! had that configuration for a while, the new one is served. So no request ever meets a certificate that is not
//! trusted.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use crate::controller::admission::certificate::Pair;

/// Annotations of the Secret: the names in the certificates, and the ends of their validity.
const NAMES: &str = "inplace.dev/webhook-names";
const UNTIL: &str = "inplace.dev/webhook-until";
const NEXT_UNTIL: &str = "inplace.dev/webhook-next-until";
/// The key in the Secret with the authority that signed the previous certificate.
const PREVIOUS: &str = "previous-ca.crt";

/// The durations of the certificates' rotation.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long a certificate is valid.
    pub lifetime: Duration,
    /// How long before its end the next one is made.
    pub renew_before: Duration,
    /// How long after the change of the API server's configuration the next certificate is served: by then all
    /// API servers have observed the change.
    pub settle: Duration,
    /// How often each process reads the Secret.
    pub poll: Duration,
    /// How long a process without a certificate waits for one that the leader makes; then it makes one itself.
    pub await_leader: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(86_400);
        Self {
            lifetime: 90 * DAY,
            renew_before: 30 * DAY,
            settle: Duration::from_secs(60),
            poll: Duration::from_secs(10),
            await_leader: Duration::from_secs(15),
        }
    }
}

/// The content of the Secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StoredCertificates {
    names: Vec<String>,
    /// The certificate that is served.
    pub(super) serving: Pair,
    next: Option<Pair>,
    /// The previous authority: processes that have not read the Secret since still serve what it signed.
    previous: Option<String>,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// There is none that can be served: make one, and serve it at once.
    Make,
    /// Make the next one, and have the API server trust it.
    Announce,
    /// Serve the next one.
    Promote,
    /// Do nothing.
    Rest,
}

/// Decides the next step. `trusted_for` is how long the API server has trusted the stored authorities.
pub(super) fn step(
    stored: Option<&StoredCertificates>,
    names: &[String],
    trusted_for: Option<Duration>,
    now: Timestamp,
    terms: &Terms,
) -> Step {
    let Some(stored) = stored.filter(|stored| stored.names == names && stored.serving.until > now) else {
        return Step::Make;
    };
    let due = stored.serving.until.checked_sub(terms.renew_before).is_ok_and(|due| due <= now);
    match &stored.next {
        Some(next) if next.until <= now => Step::Announce,
        Some(_) if trusted_for.is_some_and(|trusted_for| trusted_for >= terms.settle) => Step::Promote,
        None if due => Step::Announce,
        _ => Step::Rest,
    }
}

impl StoredCertificates {
    /// The content with the first certificate.
    pub(super) fn first(names: &[String], serving: Pair) -> Self {
        Self { names: names.to_vec(), serving, next: None, previous: None }
    }

    /// The content with the certificate that will be served next.
    #[must_use]
    pub(super) fn announced(self, next: Pair) -> Self {
        Self { next: Some(next), ..self }
    }

    /// The content in which the next certificate is the served one.
    #[must_use]
    pub(super) fn promoted(self) -> Self {
        match self.next {
            Some(next) => {
                Self { names: self.names, previous: Some(self.serving.ca), serving: next, next: None }
            }
            None => self,
        }
    }

    /// All authorities that the API server has to trust now, as PEM.
    pub(super) fn trust(&self) -> String {
        let next = self.next.as_ref().map(|next| next.ca.as_str());
        let all = [next, Some(self.serving.ca.as_str()), self.previous.as_deref()];
        all.into_iter().flatten().collect()
    }

    /// Decodes the Secret. `None` if any part of the served certificate is missing.
    pub(super) fn read(secret: &Secret) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let notes = secret.metadata.annotations.as_ref()?;
        let text = |key: &str| data.get(key).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        let pair = |prefix: &str, until: &str| {
            Some(Pair {
                ca: text(&format!("{prefix}ca.crt"))?,
                cert: text(&format!("{prefix}tls.crt"))?,
                key: text(&format!("{prefix}tls.key"))?,
                until: notes.get(until)?.parse().ok()?,
            })
        };
        Some(Self {
            names: notes.get(NAMES)?.split(',').map(str::to_owned).collect(),
            serving: pair("", UNTIL)?,
            next: pair("next-", NEXT_UNTIL),
            previous: text(PREVIOUS),
        })
    }

    /// Encodes this into `secret`; foreign metadata is preserved.
    pub(super) fn write(&self, mut secret: Secret) -> Secret {
        let mut data = std::collections::BTreeMap::new();
        let mut put = |key: String, text: &str| data.insert(key, ByteString(text.as_bytes().to_vec()));
        for (prefix, pair) in [("", Some(&self.serving)), ("next-", self.next.as_ref())] {
            if let Some(pair) = pair {
                put(format!("{prefix}ca.crt"), &pair.ca);
                put(format!("{prefix}tls.crt"), &pair.cert);
                put(format!("{prefix}tls.key"), &pair.key);
            }
        }
        if let Some(previous) = &self.previous {
            put(PREVIOUS.to_owned(), previous);
        }
        secret.data = Some(data);
        let notes = secret.metadata.annotations.get_or_insert_default();
        notes.insert(NAMES.to_owned(), self.names.join(","));
        notes.insert(UNTIL.to_owned(), self.serving.until.to_string());
        match &self.next {
            Some(next) => notes.insert(NEXT_UNTIL.to_owned(), next.until.to_string()),
            None => notes.remove(NEXT_UNTIL),
        };
        secret
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(day * 86_400).unwrap()
    }

    fn pair(name: &str, until: i64) -> Pair {
        let text = |what: &str| format!("{name}-{what};");
        Pair { ca: text("ca"), cert: text("cert"), key: text("key"), until: at(until) }
    }

    #[test]
    fn a_certificate_is_announced_before_it_is_served() {
        let (names, terms) = (vec!["a.svc".to_owned()], Terms::default());
        let settled = Some(terms.settle);
        let step = |stored: Option<&StoredCertificates>, names: &[String], trusted_for, day| {
            step(stored, names, trusted_for, at(day), &terms)
        };
        assert_eq!(step(None, &names, None, 0), Step::Make);
        let first = StoredCertificates::first(&names, pair("one", 90));
        assert_eq!(step(Some(&first), &names, settled, 59), Step::Rest);
        assert_eq!(step(Some(&first), &names, settled, 60), Step::Announce);
        assert_eq!(step(Some(&first), &names, settled, 90), Step::Make, "too late for steps");
        assert_eq!(step(Some(&first), &["b.svc".to_owned()], settled, 1), Step::Make, "another name");
        let announced = first.announced(pair("two", 150));
        assert_eq!(
            (announced.trust().as_str(), announced.serving.ca.as_str()),
            ("two-ca;one-ca;", "one-ca;")
        );
        assert_eq!(step(Some(&announced), &names, None, 60), Step::Rest, "the API server does not know it");
        assert_eq!(step(Some(&announced), &names, Some(Duration::from_secs(59)), 60), Step::Rest);
        assert_eq!(step(Some(&announced), &names, settled, 60), Step::Promote);
        let promoted = announced.promoted();
        assert_eq!((promoted.trust().as_str(), promoted.serving.ca.as_str()), ("two-ca;one-ca;", "two-ca;"));
        assert_eq!(step(Some(&promoted), &names, settled, 61), Step::Rest);
        let third = promoted.announced(pair("three", 210));
        assert_eq!(third.promoted().trust(), "three-ca;two-ca;", "the oldest is trusted no more");
    }

    #[test]
    fn what_is_written_is_read_back_and_a_part_is_nothing() {
        let one = StoredCertificates::first(&["a".to_owned(), "b".to_owned()], pair("one", 90));
        let mut secret = Secret::default();
        secret.metadata.resource_version = Some("7".to_owned());
        for stored in
            [one.clone(), one.clone().announced(pair("two", 91)), one.announced(pair("two", 91)).promoted()]
        {
            secret = stored.write(secret);
            assert!(StoredCertificates::read(&secret).as_ref() == Some(&stored));
            assert_eq!(secret.metadata.resource_version.as_deref(), Some("7"));
        }
        secret.data.as_mut().unwrap().remove("tls.key");
        assert!(StoredCertificates::read(&secret).is_none());
        assert!(StoredCertificates::read(&Secret::default()).is_none());
    }
}
