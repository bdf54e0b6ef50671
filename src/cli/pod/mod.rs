//! `inplace restart|swap|plan|status|history|cancel`: requests written and followed through the API server.
//!
//! Touches nothing but a pod's request annotation; the agent on the pod's node does the rest.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::cli::exit::Exit;
use crate::cli::output::{self, tell};
use crate::cluster;
use crate::operation::effect::Class;

mod answer;
mod assemble;
mod cancel;
mod history;
mod hooks;
mod live;
mod names;
mod operate;
mod outlook;
mod plan;
mod server;
mod span;
mod status;
mod wait;
mod wish;
mod write;

/// The commands for pods of a cluster.
#[derive(Debug, Subcommand)]
pub enum PodCommand {
    /// Restart containers of running pods in place
    Restart(operate::Restart),
    /// Give containers of running pods another image, with a way back
    Swap(operate::Swap),
    /// Show what a restart or swap would do, and touch nothing
    Plan(plan::PlanArgs),
    /// Show how far requests are, and how they ended
    Status(status::StatusArgs),
    /// Show what was done to a pod in place
    History(history::HistoryArgs),
    /// Withdraw the request of a pod, if nothing has been touched yet
    Cancel(cancel::CancelArgs),
}

/// Which cluster, as kubectl has it.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
struct ClusterArgs {
    /// The namespace of the pods [default: the context's]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig [default: $KUBECONFIG, ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// The form of a result for programs: a list with an entry per pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Data {
    /// On one line
    Json,
    /// A document
    Yaml,
}

impl Data {
    fn print(self, value: &impl Serialize) {
        match self {
            Self::Json => output::json(value),
            Self::Yaml => output::yaml(value),
        }
    }
}

/// Why a command has no result of its own kind.
#[derive(Debug, thiserror::Error)]
enum Failed {
    /// The API server's no, or its silence.
    #[error(transparent)]
    Cluster(#[from] cluster::error::Error),
    /// A wrong command line that clap could not know of.
    #[error("{0}")]
    Usage(String),
    /// It cannot be done as written.
    #[error("{0}")]
    Refused(String),
    /// Something else.
    #[error("{0}")]
    Other(String),
}

impl Failed {
    fn exit(&self) -> Exit {
        match self {
            Self::Cluster(error) => match error.class() {
                Class::Away | Class::Unreached => Exit::ClusterAway,
                Class::Gone | Class::Denied | Class::Final => Exit::Refused,
                Class::NameTaken | Class::Credentials | Class::Refused => Exit::Failed,
            },
            Self::Usage(_) => Exit::Usage,
            Self::Refused(_) => Exit::Refused,
            Self::Other(_) => Exit::Failed,
        }
    }
}

impl PodCommand {
    /// Runs the command to its end.
    pub async fn run(self) -> Exit {
        let ended = match self {
            Self::Restart(args) => operate::restart(args).await,
            Self::Swap(args) => operate::swap(args).await,
            Self::Plan(args) => plan::run(args).await,
            Self::Status(args) => status::run(args).await,
            Self::History(args) => history::run(args).await,
            Self::Cancel(args) => cancel::run(args).await,
        };
        ended.unwrap_or_else(|failed| {
            tell(&format!("inplace: {failed}"));
            failed.exit()
        })
    }
}
