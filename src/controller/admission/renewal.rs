//! Distributes the certificates. The leader makes them, stores them in the Secret and has the API server trust
//! them; every process serves the stored one, or the one in the files that it was configured with. If the leader
//! makes none, the first one is made by a process that needs it. Must not decide when a certificate is replaced
//! (`stored::step` does).

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

/// The Secret in the controller's namespace; the manifests create it empty.
pub const SECRET: &str = "inplace-webhook";
/// The `ValidatingWebhookConfiguration`; every webhook in it belongs to this project.
pub const CONFIGURATION: &str = "inplace";
/// The `MutatingWebhookConfiguration`, which exists only where it was installed.
pub const GATE_CONFIGURATION: &str = "inplace-readiness-gate";
/// The `ValidatingWebhookConfiguration` of ContainerRecreateRequests, which exists only where it was installed.
pub const RECREATE_CONFIGURATION: &str = "inplace-recreate-requests";
/// Interval of reads while there is no certificate to serve.
const POLL_UNTIL_SERVED: Duration = Duration::from_secs(1);

/// The source of the certificates.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// Made by the controllers, for these names.
    Made(Vec<String>),
    /// Files of the operator, who is responsible for their rotation and for the API server's trust.
    Files { cert: PathBuf, key: PathBuf },
}

/// Why there is no certificate.
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

/// Manages the certificates of one process and, on the leader, of all.
#[derive(Clone)]
pub(super) struct CertificateRenewal {
    pub(super) server: Server,
    pub(super) namespace: String,
    pub(super) source: Source,
    pub(super) terms: Terms,
    pub(super) served_certificate: std::sync::Arc<ServedCertificate>,
}

impl CertificateRenewal {
    /// Serves the current certificate, and each one that replaces it, until `stop`. Makes the first one, and has it
    /// trusted, if no other process does in time.
    pub(super) async fn follow(&self, tls: &Tls, stop: &CancellationToken) {
        let (mut reported, began) = (String::new(), Instant::now());
        let (mut makes, mut trusted) = (false, None);
        while !stop.is_cancelled() {
            let taken = match &self.source {
                Source::Made(names) if makes => self.renew(names, false, &mut trusted).await,
                _ => self.take_up().await,
            };
            let is_read = !matches!(taken, Err(Error::Cluster(_)));
            report(&mut reported, taken.and_then(|()| tls.refresh().map_err(Error::from)));
            let is_there = self.served_certificate.is_there();
            // A leader that serves no webhooks, or has its certificate from files, makes none.
            makes |= is_read && !is_there && began.elapsed() >= self.terms.await_leader;
            makes &= trusted.is_none();
            let pause =
                if is_there && !makes { self.terms.poll } else { POLL_UNTIL_SERVED.min(self.terms.poll) };
            rest(pause, stop).await;
        }
    }

    async fn take_up(&self) -> Result<(), Error> {
        match &self.source {
            Source::Made(_) => {
                let secret = self.server.secret(&self.namespace, SECRET).await?;
                // If the Secret is empty, the leader will make a certificate, or else `follow`.
                if let Some(stored) = StoredCertificates::read(&secret) {
                    self.served_certificate.serve(&stored.serving.cert, &stored.serving.key)?;
                }
            }
            Source::Files { cert, key } => {
                let read = |path: &PathBuf| {
                    let path = path.clone();
                    std::fs::read_to_string(&path).map_err(|source| Error::File { path, source })
                };
                self.served_certificate.serve(&read(cert)?, &read(key)?)?;
            }
        }
        Ok(())
    }

    /// Makes, announces and promotes certificates until `stop`.
    pub(super) async fn lead(&self, stop: &CancellationToken) {
        let Source::Made(names) = &self.source else { return };
        let (mut reported, mut trusted) = (String::new(), None);
        while !stop.is_cancelled() {
            report(&mut reported, self.renew(names, true, &mut trusted).await);
            // The steps need no finer interval.
            rest(self.terms.poll.min(self.terms.settle), stop).await;
        }
    }

    /// One step. `trusted` is the bundle that the API server trusts, and since when.
    async fn renew(
        &self,
        names: &[String],
        leads: bool,
        trusted: &mut Option<(String, Instant)>,
    ) -> Result<(), Error> {
        let secret = self.server.secret(&self.namespace, SECRET).await?;
        // A certificate that cannot be served counts as missing.
        let usable = |stored: &StoredCertificates| {
            self.served_certificate.serve(&stored.serving.cert, &stored.serving.key).is_ok()
        };
        let (stored, now) = (StoredCertificates::read(&secret).filter(usable), clock::now());
        let trusted_for = trusted
            .as_ref()
            .filter(|(bundle, _)| stored.as_ref().map(StoredCertificates::trust).as_ref() == Some(bundle));
        let trusted_for = trusted_for.map(|(_, since)| since.elapsed());
        let make = || certificate::make(names, now, self.terms.lifetime);
        // Only the leader replaces a certificate that can be served.
        let step = if leads || stored.is_none() {
            step(stored.as_ref(), names, trusted_for, now, &self.terms)
        } else {
            Step::Rest
        };
        let next = match (step, stored) {
            (Step::Make, _) | (_, None) => StoredCertificates::first(names, make()?),
            (Step::Announce, Some(stored)) => stored.announced(make()?),
            (Step::Promote, Some(stored)) => stored.promoted(),
            (Step::Rest, Some(stored)) => return self.trust(&stored, trusted).await,
        };
        // The observed version is the precondition: of two processes that both make one, one is refused.
        self.server.replace_secret(&next.write(secret)).await?;
        tracing::info!(?step, until = %next.serving.until, "stored the webhook's certificate");
        self.served_certificate.serve(&next.serving.cert, &next.serving.key)?;
        self.trust(&next, trusted).await
    }

    async fn trust(
        &self,
        stored: &StoredCertificates,
        trusted: &mut Option<(String, Instant)>,
    ) -> Result<(), Error> {
        let bundle = stored.trust();
        let kept = certificate::of_others;
        if self.server.trust(Webhooks::Validating(CONFIGURATION), &bundle, kept).await? {
            tracing::info!(
                configuration = CONFIGURATION,
                "wrote the certificate authority that the API server trusts"
            );
            *trusted = None;
        }
        for (optional, name) in [
            (Webhooks::Mutating(GATE_CONFIGURATION), GATE_CONFIGURATION),
            (Webhooks::Validating(RECREATE_CONFIGURATION), RECREATE_CONFIGURATION),
        ] {
            match self.server.trust(optional, &bundle, kept).await {
                Ok(true) => {
                    tracing::info!(
                        configuration = name,
                        "wrote the certificate authority that the API server trusts"
                    );
                    *trusted = None;
                }
                Ok(false) => {}
                Err(error) if error.class() == Class::Gone => {}
                // The rights of an earlier release. The webhooks that every installation has must get their certificate.
                Err(error) if error.class() == Class::Denied => {
                    tracing::warn!(configuration = name, "{}", chain(&error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if trusted.as_ref().is_none_or(|(last, _)| *last != bundle) {
            *trusted = Some((bundle, Instant::now()));
        }
        Ok(())
    }
}

/// Logs a failure once, and again when it changes.
fn report(reported: &mut String, done: Result<(), Error>) {
    let now = done.err().map(|error| chain(&error)).unwrap_or_default();
    if now != *reported && !now.is_empty() {
        tracing::warn!("the webhook's certificate cannot be renewed or served: {now}");
    }
    *reported = now;
}

async fn rest(pause: Duration, stop: &CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = sleep(pause) => {}
    }
}
