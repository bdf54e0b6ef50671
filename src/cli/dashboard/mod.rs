//! `inplace dashboard`: a page on the loopback interface that shows rollouts, workloads, pods and their operations as they
//! change. Reads with the rights of the user. Writes nothing.
//!
//! | file | does |
//! |---|---|
//! | `kinds` | what is kept of each kind of objects |
//! | `cache` | one watch for each kind |
//! | `seen` | the steps of operations, as they arrive |
//! | `timeline`, `cells`, `view` | pure: what each page shows |
//! | `server` | HTTP: the token, the page, its data |
//! | `page/` | the page: HTML, CSS and JavaScript, without anything from elsewhere |

use std::net::Ipv4Addr;

use tokio::net::TcpListener;

use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::dashboard::cache::Cache;
use crate::cli::exit::Exit;
use crate::cli::output::{line, message};
use crate::process::{random, shutdown};

mod cache;
mod cells;
mod kinds;
mod seen;
mod server;
#[cfg(test)]
mod tests;
mod timeline;
mod view;

/// Show rollouts, workloads and pods in a browser, read only
///
/// It serves a page on 127.0.0.1 until it is interrupted, and prints its URL. The URL contains a token: keep it to
/// yourself, because who has it sees what you may see of the cluster.
#[derive(Debug, clap::Args)]
pub struct DashboardCommand {
    /// The port; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// In all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl DashboardCommand {
    /// Runs the command and returns its exit code.
    pub async fn run(self) -> Exit {
        Box::pin(run(self)).await.unwrap_or_else(|failed| {
            message(&format!("inplace: {failed}"));
            failed.exit()
        })
    }
}

async fn run(args: DashboardCommand) -> Result<Exit, Failed> {
    let DashboardCommand { port, all_namespaces, cluster } = args;
    let (client, namespace) = cluster.connect().await?;
    let stop = shutdown::on_signal().map_err(|error| failed("signals cannot be handled", &error))?;
    let cache = Cache::open(&client, (!all_namespaces).then_some(namespace), &stop).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener.map_err(|error| failed(&format!("port {port} cannot be used"), &error))?;
    let address = listener.local_addr().map_err(|error| failed("the address is unknown", &error))?;
    if stop.run_until_cancelled(cache.synced()).await.is_none() {
        return Ok(Exit::Done);
    }
    let token = random::uuid().map_err(|error| failed("there is no token", &error))?;
    line(&format!("http://{address}/{token}/"));
    message("open this URL in a browser; Ctrl-C ends the dashboard");
    let served = server::serve(listener, &token, cache, stop).await;
    served.map(|()| Exit::Done).map_err(|error| failed("the page cannot be served", &error))
}

fn failed(what: &str, error: &std::io::Error) -> Failed {
    Failed::Other(format!("{what}: {error}"))
}
