//! The admission webhooks: what would contradict itself or could never be carried out is refused before it is stored, a
//! guarded pod stays until its hook has succeeded, and new pods get a readiness gate where a namespace wants that.
//!
//! Every process serves them; the leader keeps the certificates. Asked about are our own kinds, pods with the label of the
//! guard, evictions, and new pods in namespaces with a label: nothing else in the cluster can be held up.
//!
//! ```text
//!  API server ──▶ serve (HTTPS) ──▶ review ──▶ validate ──▶ workload::check, hook::check
//!                   ▲ shown               ├──▶ guard ─────▶ workload::guard ──▶ HookRuns
//!                   │                     └──▶ gate
//!                   └── keeper: kept in the Secret, made by certificate, trusted through the configurations
//! ```

mod certificate;
mod gate;
mod guard;
mod keeper;
mod kept;
mod review;
mod serve;
mod shown;
mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cluster::server::Server;
use guard::Guard;
use keeper::{Keeper, Source};
use shown::Shown;

pub use keeper::{CONFIGURATION, GATE_CONFIGURATION, SECRET};
pub use kept::Terms;

/// Keeps the webhooks, if there are any, while this process leads.
pub(super) async fn lead(webhooks: Option<Webhooks>, stop: CancellationToken) {
    if let Some(webhooks) = webhooks {
        webhooks.lead(&stop).await;
    }
}

/// What the webhooks are served with.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Webhooks")]
pub struct WebhookArgs {
    /// Address for the admission webhooks over HTTPS, as 0.0.0.0:9443 [default: none are served]
    #[arg(long, env = "INPLACE_WEBHOOK_LISTEN", value_name = "ADDRESS")]
    pub webhook_listen: Option<SocketAddr>,
    /// Names in the certificate, beside that of the Service inplace-webhook: for a configuration by URL
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub webhook_names: Vec<String>,
    /// A certificate chain of your own (PEM), read again when it changes; without one it is made and renewed here
    #[arg(long, value_name = "FILE", requires = "webhook_key")]
    pub webhook_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "webhook_cert")]
    pub webhook_key: Option<PathBuf>,
}

/// The webhooks of one process. Clones show the same certificate.
#[derive(Clone)]
pub struct Webhooks(Keeper);

impl Webhooks {
    /// Those that `args` ask for, with certificates for the Service in `namespace`.
    pub fn new(args: &WebhookArgs, server: Server, namespace: &str, terms: Terms) -> Self {
        let source = if let (Some(cert), Some(key)) = (&args.webhook_cert, &args.webhook_key) {
            Source::Files { cert: cert.clone(), key: key.clone() }
        } else {
            let service = format!("{SECRET}.{namespace}.svc");
            Source::Made(std::iter::once(service).chain(args.webhook_names.iter().cloned()).collect())
        };
        let shown = Arc::new(Shown::default());
        Self(Keeper { server, namespace: namespace.to_owned(), source, terms, shown })
    }

    /// Answers on `listener` until `stop`.
    ///
    /// # Errors
    /// When TLS cannot be had at all.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        let config = serve::config(Arc::clone(&self.0.shown)).map_err(std::io::Error::other)?;
        let guard = Guard { server: self.0.server.clone() };
        tokio::join!(serve::run(listener, config, guard, stop.clone()), self.0.follow(&stop));
        Ok(())
    }

    /// What only one process does: makes and rotates the certificates, and asks again for those who ask the guard only once,
    /// until `stop`.
    pub async fn lead(&self, stop: &CancellationToken) {
        tokio::join!(self.0.lead(stop), guard::finish::run(&self.0.server, stop));
    }

    /// Says what is missing.
    ///
    /// # Errors
    /// While there is no certificate, so nobody can be answered.
    pub fn ready(&self) -> Result<(), String> {
        if self.0.shown.is_there() {
            return Ok(());
        }
        Err(format!("the webhooks have no certificate yet (Secret {SECRET}; the log says why)"))
    }
}
