//! The cluster-wide role: reconciles workloads and rollouts, and runs the hooks that no agent runs.
//!
//! Any number of processes may run. One leads, elected by a Lease, and runs the controllers. The others stand by
//! and report ready as well, since each of them could take over. All of them serve the admission webhooks. Never
//! talks to a node.

pub mod admission;
mod bounds;
mod config_restart;
mod definitions;
mod disruptions;
mod events;
mod group_restart;
mod hook_runs;
mod new_rollout;
mod nodes;
mod observed;
mod pods;
mod queue;
mod reconciler;
mod recreate_requests;
mod rollouts;
mod workloads;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::cluster::agents::Agents;
use crate::cluster::client::{self, ConnectOptions};
use crate::cluster::lease::Election;
use crate::cluster::server::Server;
use crate::controller::admission::{Terms, WebhookArgs, Webhooks};
use crate::controller::disruptions::Disruptions;
use crate::controller::nodes::NodeCache;
use crate::hook::executor::Executor;
use crate::hook::runner;
use crate::hook::settings::HookArgs;
use crate::process::metrics::register_release;
use crate::process::{admin, listen, random, shutdown};

/// The Lease of the leader election.
const LEASE: &str = "inplace-controller";

/// Run the controller: reconcile GameDeployments, GameStatefulSets and InPlaceRollouts, and run the hooks that no agent runs
#[derive(Debug, clap::Args)]
// The user's arguments in a Deployment follow the shipped ones and override them.
#[command(args_override_self = true)]
pub struct Args {
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod]
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    context: Option<String>,
    /// Namespace of the Lease and of the agents [default: that of the kubeconfig or of the pod]
    #[arg(long, env = "INPLACE_NAMESPACE", value_name = "NAME", help_heading = "Cluster")]
    namespace: Option<String>,
    /// Name of this process in the Lease and in events
    #[arg(long, env = "HOSTNAME", default_value = "controller", value_name = "NAME")]
    identity: String,
    /// Address for /healthz, /readyz and /metrics
    #[arg(long, env = "INPLACE_LISTEN", default_value = "127.0.0.1:9465", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Carry out the ContainerRecreateRequests (apps.kruise.io/v1alpha1) that OpenKruise does not serve
    #[arg(long, env = "INPLACE_CONTAINER_RECREATE_REQUESTS", help_heading = "OpenKruise")]
    container_recreate_requests: bool,
    #[command(flatten)]
    hooks: HookArgs,
    #[command(flatten)]
    webhooks: WebhookArgs,
}

/// Why the controller cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no usable configuration of a client for the API server.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::error::Error),
    /// Signals cannot be watched, or a listen address is not available.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed, with its argument.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// What all controllers share.
#[derive(Clone)]
struct Common {
    server: Server,
    /// The namespace of the agents.
    namespace: String,
    /// The name of this process, for events.
    identity: String,
    executor: Executor,
    hook_metrics: runner::Metrics,
    workload_metrics: workloads::Metrics,
    rollout_metrics: rollouts::Metrics,
    definition_metrics: definitions::Metrics,
    /// None if this process serves no webhooks.
    webhooks: Option<Webhooks>,
    /// True if ContainerRecreateRequests are carried out.
    recreate_requests: bool,
}

/// Sets the metrics of the leader back when it is dropped: also when its work is dropped because it does not end in time.
/// Alerts take the sum or the maximum over all controllers.
struct Leading {
    leads: Gauge,
    hooks: runner::Metrics,
    workloads: workloads::Metrics,
    definitions: definitions::Metrics,
}

impl Leading {
    fn begin(leads: Gauge, common: &Common) -> Self {
        leads.set(1);
        let Common { hook_metrics, workload_metrics, definition_metrics, .. } = common;
        Self {
            leads,
            hooks: hook_metrics.clone(),
            workloads: workload_metrics.clone(),
            definitions: definition_metrics.clone(),
        }
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.leads.set(0);
        self.hooks.reset();
        self.workloads.reset();
        self.definitions.reset();
    }
}

/// Reads the object of a watch event as the caches of the rollouts and of the `ContainerRecreateRequest`s do.
#[cfg(any(fuzzing, feature = "faults"))]
pub fn watched(event: &[u8]) {
    rollouts::watched(event);
    recreate_requests::watched(event);
}

/// All controllers. Each is a loop that compares the actual state with the desired state, and ends at once when
/// `stop` is cancelled. A new controller is added here.
fn controllers(common: &Common, stop: &CancellationToken) -> Vec<BoxFuture<'static, ()>> {
    let agents = Agents::watch(common.server.clone(), &common.namespace, stop.clone());
    let disruptions = Disruptions::watch(common.server.clone(), stop);
    let nodes = NodeCache::watch(common.server.clone(), stop);
    vec![
        hook_runs::run(common.clone(), agents.clone(), stop.clone()).boxed(),
        workloads::run(common.clone(), agents.clone(), disruptions.clone(), nodes.clone(), stop.clone())
            .boxed(),
        rollouts::run(common.clone(), agents, disruptions, nodes, stop.clone()).boxed(),
        config_restart::run(common.clone(), stop.clone()).boxed(),
        group_restart::run(common.clone(), stop.clone()).boxed(),
        recreate_requests::run(common.clone(), stop.clone()).boxed(),
        definitions::run(common.server.clone(), common.definition_metrics.clone(), stop.clone()).boxed(),
        admission::lead(common.webhooks.clone(), stop.clone()).boxed(),
    ]
}

/// Runs the controller until SIGTERM.
///
/// # Errors
/// When it cannot start, or when a listen address is taken.
pub async fn run(args: Args) -> Result<(), Error> {
    let io = |what: String| |source| Error::Io { what, source };
    let Args {
        kubeconfig,
        context,
        namespace,
        identity,
        listen,
        container_recreate_requests,
        hooks,
        webhooks: webhook_args,
    } = args;
    let stop = shutdown::on_signal().map_err(io("signals cannot be watched".to_owned()))?;
    let (api, own) =
        client::connect(&ConnectOptions { kubeconfig, context, ..ConnectOptions::default() }).await?;
    let namespace = namespace.unwrap_or(own);
    let server = Server::new(api);
    let webhooks = webhook_args
        .webhook_listen
        .map(|_| Webhooks::new(&webhook_args, server.clone(), &namespace, Terms::default()));
    let mut registry = Registry::with_prefix("inplace");
    register_release(&mut registry);
    let leads = Gauge::<i64>::default();
    registry.register("leader", "1 while this process is the leader, 0 while it is not", leads.clone());
    if let Some(webhooks) = &webhooks {
        webhooks.register(&mut registry);
    }
    let common = Common {
        server: server.clone(),
        namespace: namespace.clone(),
        identity: identity.clone(),
        executor: Executor::new(hooks.settings("the controller", None, Some(server.clone()))),
        hook_metrics: runner::Metrics::new(&mut registry),
        workload_metrics: workloads::Metrics::new(&mut registry),
        rollout_metrics: rollouts::Metrics::new(&mut registry),
        definition_metrics: definitions::Metrics::new(&mut registry),
        webhooks: webhooks.clone(),
        recreate_requests: container_recreate_requests,
    };
    // A process that restarts under the same name must be a different candidate: hence the random suffix.
    let suffix = random::number().map_err(io("no identity can be generated".to_owned()))?;
    let me = format!("{identity}_{suffix:016x}");
    let election = Election::new(server, &namespace, LEASE, &me);
    let asked = webhooks.clone();
    let ready = move || std::future::ready(asked.as_ref().map_or(Ok(()), Webhooks::ready)).boxed();
    let router = admin::router(Arc::new(ready), Arc::new(registry));
    tracing::info!(identity = me, namespace, "controller started");
    let (ended, answered, ()) = tokio::join!(
        async {
            let ended = admin::serve(listen, router, stop.clone()).await;
            // Without this address the process cannot be monitored, so it ends: the failure then becomes visible.
            stop.cancel();
            ended.map_err(io(format!("--listen {listen}")))
        },
        async {
            let (Some(webhooks), Some(address)) = (webhooks, webhook_args.webhook_listen) else {
                return Ok(());
            };
            let ended = async { webhooks.serve(listen::bind(address).await?, stop.clone()).await }.await;
            stop.cancel();
            ended.map_err(io(format!("--webhook-listen {address}")))
        },
        election.run(stop.clone(), |over| {
            let (common, leads) = (common.clone(), leads.clone());
            async move {
                let _leading = Leading::begin(leads, &common);
                join_all(controllers(&common, &over)).await;
            }
        }),
    );
    tracing::info!("controller stopped");
    ended.and(answered)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The work of a leader that does not end in time is dropped.
    #[tokio::test]
    async fn a_leader_whose_work_is_dropped_is_not_shown_as_one() {
        let (leads, mut registry) = (Gauge::<i64>::default(), Registry::default());
        let leading = Leading {
            leads: leads.clone(),
            hooks: runner::Metrics::new(&mut registry),
            workloads: workloads::Metrics::new(&mut registry),
            definitions: definitions::Metrics::new(&mut registry),
        };
        leads.set(1);
        let mut work = Box::pin(async {
            let _leading = leading;
            std::future::pending::<()>().await;
        });
        assert!(work.as_mut().now_or_never().is_none());
        assert_eq!(leads.get(), 1);
        drop(work);
        assert_eq!(leads.get(), 0);
    }
}
