//! The admission webhooks: what would contradict itself or could never be carried out is refused before it is stored, a
//! guarded pod stays until its hook has succeeded, new pods get a readiness gate where a namespace wants that, and hooks and
//! rollouts are written by those who have the rights that they amount to.
//!
//! Every process serves them; the leader keeps the certificates. Asked about are our own kinds, pods with the label of the
//! guard, evictions, and new pods in namespaces with a label: nothing else in the cluster can be held up.
//!
//! ```text
//!  API server ──▶ serve (HTTPS) ──▶ review ──▶ validate ──▶ workload::check, hook::check
//!                   ▲ tls, body,          ├──▶ rights ────▶ SubjectAccessReviews
//!                   │ connections         ├──▶ guard ─────▶ workload::guard ──▶ HookRuns
//!                   │                     └──▶ gate
//!                   └── keeper: kept in the Secret, made by certificate, trusted through the configurations
//! ```

mod body;
mod bounded;
mod certificate;
mod connections;
mod gate;
mod guard;
mod renewal;
mod review;
mod rights;
mod serve;
mod served_certificate;
mod stored;
mod tls;
mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::SignedDuration;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cluster::server::Server;
use body::Memory;
use connections::Connections;
use guard::{Guard, GuardTerms};
use renewal::{CertificateRenewal, Source};
use rights::{Accounts, Rights};
use serve::Judges;
use served_certificate::ServedCertificate;
use tls::Tls;

pub use renewal::{CONFIGURATION, GATE_CONFIGURATION, SECRET};
pub use stored::Terms;

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
    /// Authorities (PEM) of the certificates by which API servers authenticate themselves: nobody else may connect. Read again
    /// when it changes. The API server needs its certificate in a kubeconfig (--admission-control-config-file) [default: anybody]
    #[arg(long, value_name = "FILE")]
    pub webhook_client_ca: Option<PathBuf>,
    /// The user that controllers write as [default: system:serviceaccount:NAMESPACE:inplace-controller]
    #[arg(long, value_name = "USER")]
    pub controller_user: Option<String>,
    /// The user that agents write as [default: system:serviceaccount:NAMESPACE:inplace-agent]
    #[arg(long, value_name = "USER")]
    pub agent_user: Option<String>,
    /// Whom the delete guard holds
    #[command(flatten)]
    pub guard: GuardArgs,
}

/// Whom the delete guard holds.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Delete guard")]
pub struct GuardArgs {
    /// Users whom it does not hold. The scheduler deletes for a pod of a higher priority, which a label of a lower one must not
    /// stop. Empty: it holds everybody
    #[arg(long, value_name = "USER,...", value_delimiter = ',', default_value = SCHEDULER)]
    pub guard_exempt_users: Vec<String>,
    /// Groups whom it does not hold, as system:masters
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    pub guard_exempt_groups: Vec<String>,
    /// A pod is held for so long at most from when its deletion was first refused, as 6h [default: until its hook has succeeded]
    #[arg(long, value_name = "DURATION", value_parser = longest)]
    pub guard_longest_hold: Option<SignedDuration>,
    /// A pod's label counts only in a Namespace that has it too
    #[arg(long)]
    pub guard_labelled_namespaces_only: bool,
}

/// Whom the guard does not hold unless another list is given.
const SCHEDULER: &str = "system:kube-scheduler";

impl Default for GuardArgs {
    fn default() -> Self {
        Self {
            guard_exempt_users: vec![SCHEDULER.to_owned()],
            guard_exempt_groups: Vec::new(),
            guard_longest_hold: None,
            guard_labelled_namespaces_only: false,
        }
    }
}

fn longest(text: &str) -> Result<SignedDuration, String> {
    let parsed: SignedDuration = text.parse().map_err(|error| format!("no duration: {error}"))?;
    if parsed > SignedDuration::ZERO { Ok(parsed) } else { Err("it must be more than 0".to_owned()) }
}

/// The webhooks of one process. Clones show the same certificate.
#[derive(Clone)]
pub struct Webhooks {
    renewal: CertificateRenewal,
    judges: Judges,
    connections: Arc<Connections>,
    client_ca: Option<PathBuf>,
}

impl Webhooks {
    /// Those that `args` ask for, with certificates for the Service in `namespace`.
    pub fn new(args: &WebhookArgs, server: Server, namespace: &str, terms: Terms) -> Self {
        let source = if let (Some(cert), Some(key)) = (&args.webhook_cert, &args.webhook_key) {
            Source::Files { cert: cert.clone(), key: key.clone() }
        } else {
            let service = format!("{SECRET}.{namespace}.svc");
            Source::Made(std::iter::once(service).chain(args.webhook_names.iter().cloned()).collect())
        };
        let named = |given: &Option<String>, name: &str| {
            given.clone().unwrap_or_else(|| format!("system:serviceaccount:{namespace}:{name}"))
        };
        let accounts = Accounts {
            controller: named(&args.controller_user, "inplace-controller"),
            agent: named(&args.agent_user, "inplace-agent"),
        };
        // An empty name is nobody's.
        let given = |names: &[String]| names.iter().filter(|name| !name.is_empty()).cloned().collect();
        let guard = GuardTerms {
            exempt_users: given(&args.guard.guard_exempt_users),
            exempt_groups: given(&args.guard.guard_exempt_groups),
            longest_hold: args.guard.guard_longest_hold,
            labelled_namespaces_only: args.guard.guard_labelled_namespaces_only,
        };
        let judges = Judges {
            guard: Guard::new(server.clone(), guard),
            rights: Rights {
                server: server.clone(),
                accounts,
                api_server_only: args.webhook_client_ca.is_some(),
            },
            memory: Memory::default(),
        };
        let served_certificate = Arc::new(ServedCertificate::default());
        Self {
            renewal: CertificateRenewal {
                server,
                namespace: namespace.to_owned(),
                source,
                terms,
                served_certificate,
            },
            judges,
            connections: Arc::new(Connections::new(serve::CONNECTIONS)),
            client_ca: args.webhook_client_ca.clone(),
        }
    }

    /// Has `registry` show what happens here.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Connections to the webhooks that were closed, or not let in, because there were too many";
        registry.register("webhook_connections_closed", help, self.connections.closed.clone());
    }

    /// Answers on `listener` until `stop`.
    ///
    /// # Errors
    /// When TLS cannot be had at all.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        let served_certificate = Arc::clone(&self.renewal.served_certificate);
        let tls =
            Arc::new(Tls::new(served_certificate, self.client_ca.clone()).map_err(std::io::Error::other)?);
        let (connections, judges) = (Arc::clone(&self.connections), self.judges.clone());
        tokio::join!(
            serve::run(listener, Arc::clone(&tls), connections, judges, stop.clone()),
            self.renewal.follow(&tls, &stop)
        );
        Ok(())
    }

    /// What only one process does: makes and rotates the certificates, and asks again for those who ask the guard only once,
    /// until `stop`.
    pub async fn lead(&self, stop: &CancellationToken) {
        tokio::join!(self.renewal.lead(stop), guard::finish::run(&self.judges.guard, stop));
    }

    /// Says what is missing.
    ///
    /// # Errors
    /// While there is no certificate, so nobody can be answered.
    pub fn ready(&self) -> Result<(), String> {
        if self.renewal.served_certificate.is_there() {
            return Ok(());
        }
        Err(format!("the webhooks have no certificate yet (Secret {SECRET}; the log says why)"))
    }
}
