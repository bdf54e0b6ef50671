//! `inplace rollout status|history|undo|pause|resume`: updates of a `GameDeployment` or a `GameStatefulSet`, followed,
//! taken back and held.
//!
//! Writes `spec.template` and `spec.updateStrategy.paused` and nothing else; the controller does the rest.

use clap::{Args, Subcommand};

use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::exit::Exit;
use crate::cli::output::{Data, tell};

mod history;
mod past;
mod pause;
mod server;
mod status;
mod undo;
mod verdict;
mod workload;

/// Follow, take back or hold the updates of workloads
#[derive(Debug, Args)]
pub struct RolloutCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Follow an update to its end; fails when it has failed or stands still
    Status(status::StatusArgs),
    /// Show the revisions that can be gone back to
    History(history::HistoryArgs),
    /// Go back to the template of an earlier revision
    Undo(undo::UndoArgs),
    /// Begin no more updates; scaling goes on
    Pause(About),
    /// Go on with updates, and end the pause of a canary step
    Resume(About),
}

/// Which workload, where, and in which form the result is wanted.
#[derive(Clone, Debug, Args)]
struct About {
    /// The workload: gamedeployment/NAME or gamestatefulset/NAME, also as two words
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    workload: Vec<String>,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_enum)]
    output: Option<Data>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl About {
    /// The API server and the workload as it is now.
    async fn open(&self) -> Result<(server::Server, workload::Workload), Failed> {
        let name = workload::Name::read(&self.workload).map_err(Failed::Usage)?;
        let server = server::Server::connect(&self.cluster).await?;
        let workload = server.workload(&name).await?;
        Ok((server, workload))
    }
}

impl RolloutCommand {
    /// Runs the command to its end.
    pub async fn run(self) -> Exit {
        let ended = match self.verb {
            Verb::Status(args) => status::run(args).await,
            Verb::History(args) => history::run(args).await,
            Verb::Undo(args) => undo::run(args).await,
            Verb::Pause(about) => pause::run(about, true).await,
            Verb::Resume(about) => pause::run(about, false).await,
        };
        ended.unwrap_or_else(|failed| {
            tell(&format!("inplace: {failed}"));
            failed.exit()
        })
    }
}
