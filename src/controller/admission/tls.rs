//! The TLS configuration of the webhooks: it uses the certificate that is currently served, and decides which
//! clients may connect. Must not read a request.
//!
//! Without a client authority every client may connect. With one, only clients that have a certificate of it. The
//! file is read again when it changes; if the new content cannot be used, the old one stays in force.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use crate::controller::admission::served_certificate::ServedCertificate;

/// Why there is no usable configuration.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{}: not a certificate of an authority: {source}", path.display())]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("an authority for clients: {0}")]
    Verifier(#[from] VerifierBuilderError),
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// The configuration in force.
pub(super) struct Tls {
    served_certificate: Arc<ServedCertificate>,
    client_ca: Option<PathBuf>,
    /// The content of the client authority's file, and the configuration that was made of it.
    current: RwLock<(Vec<u8>, Arc<ServerConfig>)>,
}

impl Tls {
    pub(super) fn new(
        served_certificate: Arc<ServedCertificate>,
        client_ca: Option<PathBuf>,
    ) -> Result<Self, Error> {
        let text = client_ca.as_deref().map(read).transpose()?;
        let config = config(&served_certificate, client_ca.as_deref().zip(text.as_deref()))?;
        let current = RwLock::new((text.unwrap_or_default(), Arc::new(config)));
        Ok(Self { served_certificate, client_ca, current })
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Reads the client authority's file again, and applies it if it has changed.
    pub(super) fn refresh(&self) -> Result<(), Error> {
        let Some(path) = &self.client_ca else { return Ok(()) };
        let text = read(path)?;
        if self.current.read().unwrap_or_else(PoisonError::into_inner).0 == text {
            return Ok(());
        }
        let config = config(&self.served_certificate, Some((path, &text)))?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (text, Arc::new(config));
        tracing::info!("the webhook uses the new client certificate authority");
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

fn config(
    served_certificate: &Arc<ServedCertificate>,
    client_ca: Option<(&Path, &[u8])>,
) -> Result<ServerConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let verified = match client_ca {
        None => versions.with_no_client_auth(),
        Some((path, text)) => {
            let mut roots = RootCertStore::empty();
            for authority in CertificateDer::pem_slice_iter(text) {
                let pem = |source| Error::Pem { path: path.to_owned(), source };
                roots.add(authority.map_err(pem)?)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            versions.with_client_cert_verifier(verifier)
        }
    };
    let mut config = verified.with_cert_resolver(Arc::clone(served_certificate) as _);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
