//! The role on a node that stays: takes requests from pods' annotations and carries them out.
//!
//! Standalone: pods are YAML files in a folder, answers are JSON files in another; no API server is needed.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::agent::desk::Desk;
use crate::agent::metrics::Metrics;
use crate::agent::pods_dir::PodsDir;
use crate::agent::results::Results;
use crate::cri::client::{Client, Readiness};
use crate::node::lock::{LockError, NodeLock};
use crate::node::settings::NodeArgs;
use crate::node::{Node, journal::JournalError};
use crate::process::{admin, shutdown};

mod desk;
mod metrics;
mod pods_dir;
mod results;

/// How long to wait for the folder of a runtime's socket to appear.
const SOCKET_PAUSE: Duration = Duration::from_secs(1);

/// Carry out the requests in pods' annotations, until stopped
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: NodeArgs,
    /// Work without an API server, from the files in --pods-dir
    #[arg(long, required = true)]
    standalone: bool,
    /// Folder with Pod manifests; the annotation inplace.dev/request in them is the request
    #[arg(long, env = "INPLACE_PODS_DIR", value_name = "DIR")]
    pods_dir: PathBuf,
    /// Address for /healthz, /readyz and /metrics
    #[arg(long, env = "INPLACE_LISTEN", default_value = "127.0.0.1:9464", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Operations open at once on this node; more wait for their turn
    #[arg(long, env = "INPLACE_MAX_OPERATIONS", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    max_operations: u16,
    /// Images pulled at once on this node
    #[arg(long, env = "INPLACE_MAX_PULLS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    max_pulls: u16,
}

/// Why the agent cannot work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No runtime is known.
    #[error(transparent)]
    Endpoint(#[from] crate::cri::endpoint::NoEndpoint),
    /// Somebody else is at work.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The journal cannot be kept.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A folder or an address cannot be had.
    #[error("{what}: {source}")]
    Io {
        /// Which, and what for.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Runs the agent until SIGTERM.
///
/// # Errors
/// When it cannot begin, or its address is taken.
pub async fn run(args: Args) -> Result<(), Error> {
    let Args { settings, standalone: _, pods_dir, listen, max_operations, max_pulls } = args;
    let io = |what: String| move |source| Error::Io { what, source };
    let stop = shutdown::on_signal().map_err(io("signals cannot be watched".to_owned()))?;
    let endpoint = settings.endpoint()?;
    let Some(_lock) = lock(endpoint.path().as_ref(), &stop).await? else { return Ok(()) };
    let mut registry = Registry::with_prefix("inplace");
    let metrics = Metrics::new(&mut registry);
    let client = Client::new(&endpoint, Some(metrics.observer()));
    let node =
        Node::new(client.clone(), &settings.state_dir, usize::from(max_pulls), settings.image_reserve)?;
    metrics::register_pulls(&mut registry, &node.pulls);
    let results = Results::open(&settings.state_dir)
        .map_err(io(format!("results cannot be kept in {}", settings.state_dir.display())))?;
    let pods = PodsDir::watch(&pods_dir).map_err(io(format!("--pods-dir {}", pods_dir.display())))?;
    tracing::info!(endpoint = endpoint.path(), pods_dir = %pods_dir.display(), "agent started");
    let desk = Desk::new(node, results, metrics, usize::from(max_operations), stop.clone());
    let served = admin::serve(listen, admin::router(readiness(client), Arc::new(registry)), stop.clone());
    let (served, ()) = tokio::join!(
        async {
            let served = served.await;
            // Without its address it cannot be watched: it ends, so that somebody notices.
            stop.cancel();
            served
        },
        desk.run(pods)
    );
    tracing::info!("agent stopped");
    served.map_err(io(format!("--listen {listen}")))
}

/// The lock of the node, also when the runtime has not made its folder yet. `None`: stopped before.
async fn lock(socket: &std::path::Path, stop: &CancellationToken) -> Result<Option<NodeLock>, Error> {
    let mut told = false;
    loop {
        match NodeLock::for_agent(socket) {
            Ok(lock) => return Ok(Some(lock)),
            Err(LockError::NoFolder(folder)) => {
                if !told {
                    tracing::warn!(folder = %folder.display(), "the runtime's folder is not there yet, waiting");
                    told = true;
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

/// Ready means that the runtime answers and says that it is ready itself.
fn readiness(client: Client) -> admin::Readiness {
    Arc::new(move || {
        let client = client.within(Duration::from_secs(2));
        Box::pin(async move {
            match client.status().await.map_err(|error| error.to_string())? {
                Readiness::Ready => Ok(()),
                Readiness::NotReady(why) => Err(format!("the runtime is not ready: {why}")),
            }
        })
    })
}
