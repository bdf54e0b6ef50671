//! `inplace restart|swap|plan|status|history|cancel`: writes and follows requests through the API server.
//! On a pod it changes only the request annotation; the agent on the pod's node does the rest.

use clap::Subcommand;

use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::exit::Exit;
use crate::cli::form::{Data, DataParser, HasName};
use crate::cli::output::message;

pub(super) mod answer;
mod assemble;
mod cancel;
mod flags;
mod history;
mod hooks;
mod live;
mod names;
mod operate;
mod plan;
mod plan_view;
mod plan_workload;
mod selection;
mod server;
mod status;
mod wait;
mod write;

/// The commands for pods of a cluster.
#[derive(Debug, Subcommand)]
pub enum PodCommand {
    /// Restart containers of running pods in place
    Restart(operate::Restart),
    /// Swap the image of containers of running pods, with a rollback on failure
    Swap(operate::Swap),
    /// Show what a restart or swap would do, and touch nothing
    Plan(plan::PlanArgs),
    /// Show the progress and results of requests
    Status(status::StatusArgs),
    /// Show what was done to a pod in place
    History(history::HistoryArgs),
    /// Withdraw the request of a pod, if nothing has been touched yet
    Cancel(cancel::CancelArgs),
}

impl PodCommand {
    /// Runs the command and returns its exit code.
    pub async fn run(self) -> Exit {
        let ended = match self {
            Self::Restart(args) => Box::pin(operate::restart(args)).await,
            Self::Swap(args) => Box::pin(operate::swap(args)).await,
            Self::Plan(args) => plan::run(args).await,
            Self::Status(args) => status::run(args).await,
            Self::History(args) => history::run(args).await,
            Self::Cancel(args) => cancel::run(args).await,
        };
        ended.unwrap_or_else(|failed| {
            message(&format!("inplace: {failed}"));
            failed.exit()
        })
    }
}
