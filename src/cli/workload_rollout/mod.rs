//! `inplace rollout status|history|undo|pause|resume`: follows, reverts, pauses and resumes updates of a
//! `GameDeployment` or a `GameStatefulSet`; follows, pauses and resumes `InPlaceRollout`s.
//! Of a workload it writes `spec.template`, `spec.updateStrategy.paused` and the approval of a canary step, and nothing
//! else; the controller does the rest.

use clap::{Arg, Args, Subcommand};

use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::dry_run::DryRunArgs;
use crate::cli::exit::Exit;
use crate::cli::form::{Data, DataParser};
use crate::cli::in_place_rollout::change;
use crate::cli::in_place_rollout::names::RolloutName;
use crate::cli::output::message;

mod history;
pub(super) mod past;
mod pause;
mod server;
mod status;
mod undo;
pub(super) mod verdict;
pub(super) mod workload;
/// Follow, undo or pause the updates of workloads
#[derive(Debug, Args)]
pub struct RolloutCommand {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Follow an update to its end; fails if the update has failed or is stopped
    Status(status::StatusArgs),
    /// Show the revisions of a workload
    #[command(mut_args(of_workload))]
    History(history::HistoryArgs),
    /// Roll back to the template of an earlier revision
    #[command(mut_args(of_workload))]
    Undo(undo::UndoArgs),
    /// Start no further updates; scaling continues
    Pause(ChangeArgs),
    /// Continue with updates, and resume the canary step that waits
    Resume(ChangeArgs),
}

/// The help of commands that refuse an `InPlaceRollout`.
fn of_workload(arg: Arg) -> Arg {
    if arg.get_id() == "workload" {
        arg.help("The workload: gamedeployment/NAME or gamestatefulset/NAME, also as two words")
    } else {
        arg
    }
}

/// Arguments of all verbs: the workload, the cluster and the form of the result.
#[derive(Clone, Debug, Args)]
struct About {
    /// The workload: gamedeployment/NAME or gamestatefulset/NAME, also as two words; or ipr/NAME, an InPlaceRollout
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    workload: Vec<String>,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
struct ChangeArgs {
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    about: About,
}

impl About {
    /// The name of the `InPlaceRollout`, if the arguments name one.
    fn in_place(&self) -> Result<Option<RolloutName>, Failed> {
        RolloutName::read(&self.workload).transpose().map_err(Failed::Usage)
    }

    /// Refuses an `InPlaceRollout` for a command that only workloads support.
    fn no_rollout(&self, what: &str) -> Result<(), Failed> {
        match self.in_place()? {
            None => Ok(()),
            Some(name) => Err(Failed::Usage(format!(
                "{name} has no {what}: an InPlaceRollout is not undone; `inplace restart` and `inplace swap` \
                 create a new one, `inplace cancel` ends this one"
            ))),
        }
    }

    /// Connects to the API server and reads the workload.
    async fn open(&self) -> Result<(server::WorkloadClient, workload::Workload), Failed> {
        let name = workload::Name::read(&self.workload).map_err(Failed::Usage)?;
        let server = server::WorkloadClient::connect(&self.cluster).await?;
        let workload = server.workload(&name).await?;
        Ok((server, workload))
    }
}

impl RolloutCommand {
    /// Runs the command and returns its exit code.
    pub async fn run(self) -> Exit {
        let ended = self.carry_out().await;
        ended.unwrap_or_else(|failed| {
            message(&format!("inplace: {failed}"));
            failed.exit()
        })
    }

    async fn carry_out(self) -> Result<Exit, Failed> {
        match self.verb {
            Verb::Status(args) => status::run(args).await,
            Verb::History(args) => history::run(args).await,
            Verb::Undo(args) => undo::run(args).await,
            Verb::Pause(args) => pause(args, true).await,
            Verb::Resume(args) => pause(args, false).await,
        }
    }
}

async fn pause(args: ChangeArgs, paused: bool) -> Result<Exit, Failed> {
    let ChangeArgs { dry_run: DryRunArgs { dry_run }, about } = args;
    match about.in_place()? {
        Some(name) => change::pause(&name, paused, dry_run, &about.cluster, about.output).await,
        None => pause::run(about, paused, dry_run).await,
    }
}
