//! Brings certificates where they belong: the leader makes them, keeps them in the Secret and has the API server trust them;
//! every process takes up what is kept, or what is in the files that it was given.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::cluster::error::{Class, Error as ClusterError};
use crate::cluster::server::Server;
use crate::cluster::webhook::Webhooks;
use crate::controller::admission::certificate;
use crate::controller::admission::served_certificate::{NoCertificate, ServedCertificate};
use crate::controller::admission::stored::{Step, StoredCertificates, Terms, step};
use crate::controller::admission::tls::{self, Tls};
use crate::process::clock;
use crate::process::log::chain;

/// The Secret in the controller's namespace; it comes with the manifests, empty.
pub const SECRET: &str = "inplace-webhook";
/// The `ValidatingWebhookConfiguration`; every webhook in it is one of ours.
pub const CONFIGURATION: &str = "inplace";
/// The `MutatingWebhookConfiguration`, where somebody has installed it.
pub const GATE_CONFIGURATION: &str = "inplace-readiness-gate";
/// Between looks while there is nothing to serve yet.
const HURRY: Duration = Duration::from_secs(1);

/// Where certificates come from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Made here, for these names.
    Made(Vec<String>),
    /// Files of the operator, whose business their rotation and the API server's trust are.
    Files { cert: PathBuf, key: PathBuf },
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("no certificate can be made: {0}")]
    Make(#[from] rcgen::Error),
    #[error(transparent)]
    Unusable(#[from] NoCertificate),
    #[error(transparent)]
    Clients(#[from] tls::Error),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
}

/// Keeps the certificates of one process, and, where it leads, of all.
#[derive(Clone)]
pub(super) struct CertificateRenewal {
    pub(super) server: Server,
    pub(super) namespace: String,
    pub(super) source: Source,
    pub(super) terms: Terms,
    pub(super) served_certificate: std::sync::Arc<ServedCertificate>,
}

impl CertificateRenewal {
    /// Takes up what is kept, and whatever takes its place, until `stop`.
    pub(super) async fn follow(&self, tls: &Tls, stop: &CancellationToken) {
        let mut reported = String::new();
        while !stop.is_cancelled() {
            let taken = self.take_up().await;
            report(&mut reported, taken.and_then(|()| tls.refresh().map_err(Error::from)));
            let pause =
                if self.served_certificate.is_there() { self.terms.look } else { HURRY.min(self.terms.look) };
            rest(pause, stop).await;
        }
    }

    async fn take_up(&self) -> Result<(), Error> {
        match &self.source {
            Source::Made(_) => {
                let secret = self.server.secret(&self.namespace, SECRET).await?;
                // Nothing yet: the leader will make one.
                if let Some(stored) = StoredCertificates::read(&secret) {
                    self.served_certificate.show(&stored.serving.cert, &stored.serving.key)?;
                }
            }
            Source::Files { cert, key } => {
                let read = |path: &PathBuf| {
                    let path = path.clone();
                    std::fs::read_to_string(&path).map_err(|source| Error::File { path, source })
                };
                self.served_certificate.show(&read(cert)?, &read(key)?)?;
            }
        }
        Ok(())
    }

    /// Makes, announces and promotes certificates until `stop`.
    pub(super) async fn lead(&self, stop: &CancellationToken) {
        let Source::Made(names) = &self.source else { return };
        let (mut reported, mut trusted) = (String::new(), None);
        while !stop.is_cancelled() {
            report(&mut reported, self.renew(names, &mut trusted).await);
            // Its steps need no more precision than this.
            rest(self.terms.look.min(self.terms.settle), stop).await;
        }
    }

    /// One look. `trusted` is what the API server is known to trust, and since when.
    async fn renew(&self, names: &[String], trusted: &mut Option<(String, Instant)>) -> Result<(), Error> {
        let secret = self.server.secret(&self.namespace, SECRET).await?;
        // What cannot be shown is as good as nothing.
        let usable = |stored: &StoredCertificates| {
            self.served_certificate.show(&stored.serving.cert, &stored.serving.key).is_ok()
        };
        let (stored, now) = (StoredCertificates::read(&secret).filter(usable), clock::now());
        let known = trusted
            .as_ref()
            .filter(|(bundle, _)| stored.as_ref().map(StoredCertificates::trust).as_ref() == Some(bundle));
        let known = known.map(|(_, since)| since.elapsed());
        let make = || certificate::make(names, now, self.terms.lifetime);
        let step = step(stored.as_ref(), names, known, now, &self.terms);
        let next = match (step, stored) {
            (Step::Make, _) | (_, None) => StoredCertificates::first(names, make()?),
            (Step::Announce, Some(stored)) => stored.announced(make()?),
            (Step::Promote, Some(stored)) => stored.promoted(),
            (Step::Rest, Some(stored)) => return self.trust(&stored, trusted).await,
        };
        // With the version that was seen: of two that think they lead one is refused.
        self.server.replace_secret(&next.write(secret)).await?;
        tracing::info!(?step, until = %next.serving.until, "the webhook's certificate");
        self.served_certificate.show(&next.serving.cert, &next.serving.key)?;
        self.trust(&next, trusted).await
    }

    async fn trust(
        &self,
        stored: &StoredCertificates,
        trusted: &mut Option<(String, Instant)>,
    ) -> Result<(), Error> {
        let bundle = stored.trust();
        if self.server.trust(Webhooks::Validating(CONFIGURATION), &bundle).await? {
            tracing::info!(configuration = CONFIGURATION, "the API server was told whom to trust");
            *trusted = None;
        }
        match self.server.trust(Webhooks::Mutating(GATE_CONFIGURATION), &bundle).await {
            Ok(true) => {
                tracing::info!(configuration = GATE_CONFIGURATION, "the API server was told whom to trust");
                *trusted = None;
            }
            Ok(false) => {}
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error.into()),
        }
        if trusted.as_ref().is_none_or(|(known, _)| *known != bundle) {
            *trusted = Some((bundle, Instant::now()));
        }
        Ok(())
    }
}

/// Says what is wrong once, and again when it is something else.
fn report(reported: &mut String, done: Result<(), Error>) {
    let now = done.err().map(|error| chain(&error)).unwrap_or_default();
    if now != *reported && !now.is_empty() {
        tracing::warn!("the webhook's certificate: {now}");
    }
    *reported = now;
}

async fn rest(pause: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = sleep(pause) => {}
    }
}
