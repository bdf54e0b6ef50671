//! The agent: a long-running role on each node that takes requests from pod annotations and carries them out.
//!
//! In a cluster, it serves the pods of its node, which it watches at the API server. Standalone, pods are YAML
//! files in one folder and statuses are JSON files in another; no API server is needed. Must not act on pods of
//! other nodes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::agent::cluster::{
    Answers, Failures, Prefetches, Watched, Writes, confined, register_cache, runner,
};
use crate::agent::dispatcher::Dispatcher;
use crate::agent::metrics::Metrics;
use crate::agent::request_source::{RequestSource, StatusSink};
use crate::agent::standalone::{Manifests, Results};
use crate::agent::traces::{Exporter, TraceArgs, Traces};
use crate::api::annotation;
use crate::cluster::agents::DEFAULT_MAX_OPERATIONS;
use crate::cluster::client::{self, ConnectOptions};
use crate::cluster::groups::GroupRestarts;
use crate::cluster::hooks::HookRuns;
use crate::cluster::pod::further_gate;
use crate::cluster::pods::NodePods;
use crate::cluster::server::Server;
use crate::cri::client::{Client, Readiness};
use crate::hook::executor::Executor;
use crate::hook::runner::Metrics as HookMetrics;
use crate::hook::settings::HookArgs;
use crate::node::holder::{Holder, HolderArgs};
use crate::node::hook::{Hooks, LeftoverHookRuns, TemplateCache, Templates};
use crate::node::lock::{LockError, NodeLock};
use crate::node::settings::NodeArgs;
use crate::node::{Node, journal::JournalError};
use crate::process::metrics::register_release;
use crate::process::{admin, shutdown};

mod announce;
mod cluster;
mod dispatcher;
mod metrics;
mod request_source;
mod standalone;
mod traces;
mod work;

/// The pause between two checks whether the folder of the runtime's socket exists.
const SOCKET_PAUSE: Duration = Duration::from_secs(1);
/// Run the agent of a node: execute the requests in the annotations of its pods
#[derive(Debug, clap::Args)]
// A DaemonSet's own arguments follow the shipped ones and override them.
#[command(args_override_self = true)]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    settings: NodeArgs,
    #[command(flatten)]
    hooks: HookArgs,
    #[command(flatten)]
    traces: TraceArgs,
    /// Work without an API server, from the files in --pods-dir
    #[arg(long, requires = "pods_dir")]
    standalone: bool,
    /// Folder with Pod manifests; their annotation inplace.dev/request is the request
    #[arg(long, env = "INPLACE_PODS_DIR", value_name = "DIR")]
    pods_dir: Option<PathBuf>,
    /// Address for /healthz, /readyz and /metrics
    #[arg(long, env = "INPLACE_LISTEN", default_value = "127.0.0.1:9464", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Maximum number of operations that change containers at the same time on this node. An operation that waits for
    /// a drain, a hook or a pull does not count, nor does one of a group restart with a barrier. A quarter more is for namespaces
    /// that have few
    #[arg(long, env = "INPLACE_MAX_OPERATIONS", default_value_t = DEFAULT_MAX_OPERATIONS, value_parser = clap::value_parser!(u16).range(1..))]
    max_operations: u16,
    /// Maximum number of images pulled from one registry at the same time
    #[arg(long, env = "INPLACE_MAX_PULLS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    max_pulls: u16,
}

/// The API server, and the node whose pods the agent manages.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Cluster")]
struct ClusterArgs {
    /// Name of this node; the agent manages the pods of this node
    #[arg(
        long,
        env = "INPLACE_NODE_NAME",
        value_name = "NAME",
        required_unless_present_any = ["standalone", "downward_node_name"]
    )]
    node_name: Option<String>,
    /// The same from the environment variable that the examples of Kubernetes use.
    #[arg(long, env = "NODE_NAME", hide = true)]
    downward_node_name: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config, or the service account of the pod]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Use the imagePullSecrets of a pod to pull its images; requires RBAC permission to read them
    #[arg(long, env = "INPLACE_ALLOW_PULL_SECRETS")]
    allow_pull_secrets: bool,
    /// Further readiness gates that the agent uses like `InPlaceUpdateReady`, of pods that do not have that gate. No other
    /// controller may write their conditions
    #[arg(
        long,
        env = "INPLACE_READINESS_GATE",
        value_name = "TYPE,...",
        value_delimiter = ',',
        value_parser = further_gate
    )]
    readiness_gate: Vec<String>,
    #[command(flatten)]
    holder: HolderArgs,
}

/// Why the agent cannot start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No runtime endpoint is configured or found.
    #[error(transparent)]
    Endpoint(#[from] crate::cri::endpoint::NoEndpoint),
    /// The node lock cannot be acquired: another agent or command holds it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The journal cannot be opened or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// No client for the API server can be created.
    #[error(transparent)]
    Cluster(#[from] crate::cluster::error::Error),
    /// No HTTP client for the collector of traces can be created.
    #[error("--otlp-endpoint: no HTTP client can be created: {0}")]
    Traces(#[source] reqwest::Error),
    /// A folder or an address cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// The folder or address, and its purpose.
        what: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// Runs the agent until SIGTERM.
///
/// # Errors
/// If the agent cannot start, or its listen address is in use.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signal().map_err(io("signals cannot be watched".to_owned()))?;
    Box::pin(run_until(args, stop)).await
}

/// Runs the agent until `stop`.
///
/// # Errors
/// If the agent cannot start, or its listen address is in use.
pub async fn run_until(args: Args, stop: CancellationToken) -> Result<(), Error> {
    let Args { settings, cluster, hooks, traces, standalone, pods_dir, listen, max_operations, max_pulls } =
        args;
    let endpoint = settings.endpoint()?;
    let Some(_lock) = lock(endpoint.path().as_ref(), &stop).await? else { return Ok(()) };
    let mut registry = Registry::with_prefix("inplace");
    register_release(&mut registry);
    let metrics = Metrics::new(&mut registry);
    let runtime = Client::new(&endpoint, Some(metrics.observer()));
    let node =
        Node::new(runtime.clone(), &settings.state_dir, usize::from(max_pulls), settings.image_reserve)?;
    metrics::register_pulls(&mut registry, &node.pulls);
    let max_operations = usize::from(max_operations);
    let name = cluster.node_name.or(cluster.downward_node_name).unwrap_or_default();
    let traces = traces.exporter(&name, &mut registry, stop.clone()).map_err(Error::Traces)?;
    let background = std::future::ready(()).boxed();
    let mut context = AgentContext { listen, runtime, max_operations, background, traces, stop };
    if let (true, Some(folder)) = (standalone, pods_dir) {
        let results = Results::open(&settings.state_dir)
            .map_err(io(format!("results cannot be stored in {}", settings.state_dir.display())))?;
        let template_cache = TemplateCache::default();
        let requests = Manifests::watch(&folder, results.clone(), template_cache.clone())
            .map_err(io(format!("--pods-dir {}", folder.display())))?;
        tracing::info!(endpoint = endpoint.path(), pods_dir = %folder.display(), "agent started");
        let executor = Executor::new(hooks.settings("this agent", Some(context.runtime.clone()), None));
        let node = node.with_hooks(Hooks {
            executor,
            templates: Templates::Files(template_cache),
            metrics: HookMetrics::default(),
        });
        return context.serve(node, metrics, registry, results, requests, None).await;
    }
    let target = ConnectOptions {
        kubeconfig: cluster.kubeconfig,
        context: cluster.context,
        ..ConnectOptions::default()
    };
    let (api, namespace) = client::connect(&target).await?;
    // The watch of the pods runs until the last operation has reached a safe point.
    let watching = CancellationToken::new();
    let _watching = watching.clone().drop_guard();
    let pods = NodePods::watch(api.clone(), &name, cluster.readiness_gate.into(), watching.clone());
    let server = Server::new(api);
    let groups = GroupRestarts::watch(server.clone(), watching.clone());
    let role = format!("the agent of node {name}");
    let executor = Executor::new(hooks.settings(role, Some(context.runtime.clone()), Some(server.clone())));
    let hook_metrics = HookMetrics::new(&mut registry);
    let (what, label) = (format!("the HookRuns of node {name}"), format!("{}={name}", annotation::NODE));
    let runs = HookRuns::watch(server.clone(), &what, &label, watching);
    let hook_parts = (server.clone(), executor.clone(), runs.clone());
    let leftover_runs =
        LeftoverHookRuns::of(&node.journal).await.delete(server.clone(), pods.clone(), runs.clone());
    let (runner, stop) =
        (runner(hook_parts, pods.clone(), hook_metrics.clone(), context.stop.clone()), context.stop.clone());
    let confined = confined::watch(server.clone(), namespace, confined::register(&mut registry));
    let node = node
        .with_cluster(pods.clone(), groups.clone(), Holder::new(cluster.holder), cluster.allow_pull_secrets)
        .with_hooks(Hooks {
            executor,
            templates: Templates::Cluster { server, runs },
            metrics: hook_metrics.clone(),
        });
    let prefetches = Prefetches::new(pods.clone(), node.clone(), &mut registry).run(stop.clone());
    let failures = Failures::new(pods.clone(), node.clone()).run(stop.clone());
    context.background = async move {
        let others = async { tokio::join!(leftover_runs, confined) };
        tokio::join!(runner.run(), prefetches, failures, stop.run_until_cancelled(others));
    }
    .boxed();
    let writes = Writes::new(&mut registry);
    register_cache(&mut registry, &pods);
    let answers = Answers::new(pods.clone(), groups.clone(), writes.clone());
    let requests = Watched::new(pods.clone(), answers.clone(), groups, node.journal.clone(), writes);
    tracing::info!(endpoint = endpoint.path(), node = name, "agent started");
    let ended = context.serve(node, metrics, registry, answers.clone(), requests, Some(pods)).await;
    answers.finish().await;
    ended
}

/// The parts of an agent that do not depend on the source of requests.
struct AgentContext {
    listen: SocketAddr,
    runtime: Client,
    max_operations: usize,
    /// Runs the HookRuns of the node, and pulls images ahead of requests.
    background: BoxFuture<'static, ()>,
    /// What takes the traces of operations, and what sends them.
    traces: (Traces, Exporter),
    stop: CancellationToken,
}

impl AgentContext {
    async fn serve<B: StatusSink>(
        self,
        node: Node,
        metrics: Metrics,
        registry: Registry,
        sink: B,
        requests: impl RequestSource,
        pods: Option<NodePods>,
    ) -> Result<(), Error> {
        let Self { listen, runtime, max_operations, background, traces: (traces, exporter), stop } = self;
        let dispatcher = Dispatcher::new(node, sink, metrics, traces, max_operations, stop.clone());
        let router = admin::router(readiness(runtime, pods), Arc::new(registry));
        let (served, (), (), ()) = tokio::join!(
            async {
                let served = admin::serve(listen, router, stop.clone()).await;
                // Without its listen address, the agent cannot be monitored. It ends, so that the failure is
                // visible.
                stop.cancel();
                served
            },
            dispatcher.run(requests),
            background,
            exporter.run()
        );
        tracing::info!("agent stopped");
        served.map_err(io(format!("--listen {listen}")))
    }
}

fn io(what: String) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { what, source }
}

/// Acquires the lock of the node; waits if the runtime has not created its folder yet. `None` if `stop` is
/// cancelled first.
async fn lock(socket: &std::path::Path, stop: &CancellationToken) -> Result<Option<NodeLock>, Error> {
    let mut reported = false;
    loop {
        match NodeLock::for_agent(socket) {
            Ok(lock) => return Ok(Some(lock)),
            Err(LockError::NoFolder(folder)) => {
                if !reported {
                    tracing::warn!(
                        folder = %folder.display(),
                        "the folder of the runtime's socket does not exist yet: waiting"
                    );
                    reported = true;
                }
            }
            Err(error) => return Err(error.into()),
        }
        tokio::select! {
            () = tokio::time::sleep(SOCKET_PAUSE) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

/// The agent is ready if the runtime answers and is ready itself, and the node's pods have been listed once. An API
/// server that becomes unreachable later does not make the agent unready: running operations continue, and another
/// agent could do no more. The metric `inplace_watch_connected` reports it.
fn readiness(client: Client, pods: Option<NodePods>) -> admin::Readiness {
    Arc::new(move || {
        let client = client.within(Duration::from_secs(2));
        let listed = pods.as_ref().is_none_or(NodePods::has_synced);
        Box::pin(async move {
            match client.status().await.map_err(|error| error.to_string())? {
                Readiness::NotReady(why) => Err(format!("the runtime is not ready: {why}")),
                Readiness::Ready if !listed => {
                    Err("the pods of this node have not been listed yet".to_owned())
                }
                Readiness::Ready => Ok(()),
            }
        })
    })
}
