//! The admission webhooks. They refuse objects that contradict themselves or could never be applied, before these
//! are stored; they hold a guarded pod until its hook has succeeded; they add a readiness gate to new pods in
//! namespaces that opt in; and they allow hooks and rollouts to be written only by users who have the rights that
//! these amount to.
//!
//! Every process serves the webhooks; the leader manages the certificates, and a process that gets none makes the
//! first one. The API server sends reviews of this project's own kinds, of pods with the guard's label, of evictions,
//! and of new pods in labelled namespaces. Must not block anything else in the cluster.
//!
//! ```text
//!  API server ──▶ serve (HTTPS) ──▶ review ──▶ validate ──▶ workload::check, rollout::check, hook::check
//!                   ▲ tls, body           ├──▶ rights ────▶ SubjectAccessReviews
//!                   │                     ├──▶ guard ─────▶ guard ──▶ HookRuns
//!                   │                     └──▶ gate
//!                   └── renewal: made by certificate, stored in the Secret, trusted through the configurations
//! ```

mod body;
mod bounded;
mod certificate;
mod expiry;
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
use crate::process::connections::Connections;
use body::Memory;
use guard::{Guard, GuardTerms};
use renewal::{CertificateRenewal, Source};
use rights::{Accounts, Rights};
use serve::Handlers;
use served_certificate::ServedCertificate;
use tls::Tls;

pub use renewal::{CONFIGURATION, GATE_CONFIGURATION, RECREATE_CONFIGURATION, SECRET};
pub use stored::Terms;

/// Runs the leader's part of the webhooks, if this process serves any, while this process leads.
pub(super) async fn lead(webhooks: Option<Webhooks>, stop: CancellationToken) {
    if let Some(webhooks) = webhooks {
        webhooks.lead(&stop).await;
    }
}

/// What the webhooks are served with.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Webhooks")]
pub struct WebhookArgs {
    /// Address for the admission webhooks over HTTPS, for example `[::]:9443` [default: no webhooks]
    #[arg(long, env = "INPLACE_WEBHOOK_LISTEN", value_name = "ADDRESS")]
    pub webhook_listen: Option<SocketAddr>,
    /// Names in the certificate, in addition to that of the Service inplace-webhook: for a webhook configuration by URL
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub webhook_names: Vec<String>,
    /// Certificate chain (PEM), read again when it changes [default: the controller creates and renews a certificate]
    #[arg(long, value_name = "FILE", requires = "webhook_key")]
    pub webhook_cert: Option<PathBuf>,
    /// Private key of --webhook-cert (PEM)
    #[arg(long, value_name = "FILE", requires = "webhook_cert")]
    pub webhook_key: Option<PathBuf>,
    /// Certificate authorities (PEM): only clients with a certificate of one of them may connect. Read again when it changes. The
    /// API server needs its client certificate in a kubeconfig (--admission-control-config-file) [default: any client]
    #[arg(long, value_name = "FILE")]
    pub webhook_client_ca: Option<PathBuf>,
    /// User name of the controller at the API server [default: system:serviceaccount:NAMESPACE:inplace-controller]
    #[arg(long, value_name = "USER")]
    pub controller_user: Option<String>,
    /// User name of the agents at the API server [default: system:serviceaccount:NAMESPACE:inplace-agent]
    #[arg(long, value_name = "USER")]
    pub agent_user: Option<String>,
    /// The users that the delete guard exempts, and the limits of the guard
    #[command(flatten)]
    pub guard: GuardArgs,
}

/// Which users the delete guard exempts, and its limits.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Delete guard")]
pub struct GuardArgs {
    /// Users that the delete guard exempts. The scheduler deletes pods for a pod of a higher priority, and a label on a pod of a
    /// lower priority must not prevent that. Empty: no user is exempt
    #[arg(long, value_name = "USER,...", value_delimiter = ',', default_value = SCHEDULER)]
    pub guard_exempt_users: Vec<String>,
    /// Groups that the delete guard exempts, for example system:masters
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    pub guard_exempt_groups: Vec<String>,
    /// Longest time for which the deletion of a pod is refused, from the first refusal on, for example 6h [default: until its hook
    /// has succeeded]
    #[arg(long, value_name = "DURATION", value_parser = longest)]
    pub guard_longest_hold: Option<SignedDuration>,
    /// Guard a pod with the label only if its Namespace has the label, too
    #[arg(long)]
    pub guard_labelled_namespaces_only: bool,
}

/// The user that the guard exempts by default.
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
    let parsed: SignedDuration = text.parse().map_err(|error| format!("not a duration: {error}"))?;
    if parsed > SignedDuration::ZERO { Ok(parsed) } else { Err("must be more than 0".to_owned()) }
}

/// The webhooks of one process. Clones share the same certificate and limits.
#[derive(Clone)]
pub struct Webhooks {
    renewal: CertificateRenewal,
    handlers: Handlers,
    connections: Arc<Connections>,
    client_ca: Option<PathBuf>,
}

impl Webhooks {
    /// The webhooks that `args` configure, with certificates for the Service in `namespace`.
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
        // An empty name matches no user.
        let given = |names: &[String]| names.iter().filter(|name| !name.is_empty()).cloned().collect();
        let guard = GuardTerms {
            exempt_users: given(&args.guard.guard_exempt_users),
            exempt_groups: given(&args.guard.guard_exempt_groups),
            longest_hold: args.guard.guard_longest_hold,
            labelled_namespaces_only: args.guard.guard_labelled_namespaces_only,
        };
        let handlers = Handlers {
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
            handlers,
            connections: Arc::new(Connections::new("the webhook", serve::MAX_CONNECTIONS)),
            client_ca: args.webhook_client_ca.clone(),
        }
    }

    /// Registers the metrics of the webhooks in `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Connections to the webhooks that were closed or rejected because there were too many";
        registry.register("webhook_connections_closed", help, self.connections.closed.clone());
        self.handlers.guard.denials.register(registry);
        let help = "End of the validity of the certificate that the webhooks serve, in seconds since 1970; 0 while there is none or \
                    it cannot be read";
        let expiry = &self.renewal.served_certificate.expiry;
        registry.register("webhook_certificate_expiry_timestamp_seconds", help, expiry.clone());
    }

    /// Serves the webhooks on `listener` until `stop`.
    ///
    /// # Errors
    /// When TLS cannot be configured.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) -> std::io::Result<()> {
        let served_certificate = Arc::clone(&self.renewal.served_certificate);
        let tls =
            Arc::new(Tls::new(served_certificate, self.client_ca.clone()).map_err(std::io::Error::other)?);
        let (connections, handlers) = (Arc::clone(&self.connections), self.handlers.clone());
        tokio::join!(
            serve::run(listener, Arc::clone(&tls), connections, handlers, stop.clone()),
            self.renewal.follow(&tls, &stop)
        );
        Ok(())
    }

    /// Answers one request at `path` without a connection: the status and the body of the answer.
    #[cfg(any(fuzzing, feature = "faults"))]
    pub async fn answer(&self, path: &'static str, body: Vec<u8>) -> (u16, Vec<u8>) {
        serve::answer(self.handlers.clone(), path, body).await
    }

    /// Runs what only the leader does, until `stop`: creates and rotates the certificates, and repeats deletions
    /// for clients that send them to the guard only once.
    pub async fn lead(&self, stop: &CancellationToken) {
        tokio::join!(self.renewal.lead(stop), guard::finish::run(&self.handlers.guard, stop));
    }

    /// Whether reviews can be answered.
    ///
    /// # Errors
    /// While there is no certificate, so no client can connect; the text says what is missing.
    pub fn ready(&self) -> Result<(), String> {
        if self.renewal.served_certificate.is_there() {
            return Ok(());
        }
        Err(format!("the webhooks have no certificate yet (Secret {SECRET}; the log says why)"))
    }
}
