//! The certificate that the server presents to clients. It can be replaced at any time. Must never print its key.

use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::metrics::gauge::Gauge;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::controller::admission::expiry;

/// `None` at first: then no client can connect.
#[derive(Default)]
pub(super) struct ServedCertificate {
    served: RwLock<Option<Arc<CertifiedKey>>>,
    /// The end of its validity, in seconds since 1970.
    pub(super) expiry: Gauge,
}

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoCertificate {
    /// It is not PEM, or incomplete.
    #[error("certificate or key is not PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// The key is of an unsupported kind, or belongs to another certificate.
    #[error("certificate and key cannot be used: {0}")]
    Unfit(#[from] rustls::Error),
}

impl ServedCertificate {
    /// Serves this certificate from now on, unless it is served already. Existing connections stay open.
    pub(super) fn serve(&self, cert: &str, key: &str) -> Result<(), NoCertificate> {
        let chain = CertificateDer::pem_slice_iter(cert.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        if self.now().is_some_and(|served_certificate| served_certificate.cert == chain) {
            return Ok(());
        }
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let until = chain.first().and_then(|leaf| expiry::not_after(leaf));
        let pair = CertifiedKey::from_der(chain, key, &ring::default_provider())?;
        self.expiry.set(until.map_or(0, jiff::Timestamp::as_second));
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(pair));
        tracing::info!("the webhook serves a new certificate");
        Ok(())
    }

    pub(super) fn is_there(&self) -> bool {
        self.now().is_some()
    }

    fn now(&self) -> Option<Arc<CertifiedKey>> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl std::fmt::Debug for ServedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServedCertificate")
    }
}

impl ResolvesServerCert for ServedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.now()
    }
}
