//! `rollout undo`: writes the template of an earlier revision into the workload, unless the workload was changed
//! concurrently.

use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::cli::cluster::Failed;
use crate::cli::dry_run::DryRunArgs;
use crate::cli::exit::Exit;
use crate::cli::form::HasName;
use crate::cli::output::line;
use crate::cli::workload_rollout::About;
use crate::cli::workload_rollout::past::{self, Way, images, way};
use crate::cli::workload_rollout::workload::Workload;
use crate::cluster::patch::{self, VERSION};

/// Number of attempts when the workload changes between the read and the patch.
const MAX_TRIES: u32 = 8;

/// Arguments of `rollout undo`.
#[derive(Debug, Args)]
pub(super) struct UndoArgs {
    /// The revision to roll back to; 0 for the previous one
    #[arg(long, value_name = "N", default_value_t = 0)]
    to_revision: i64,
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    about: About,
}

/// JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Undone {
    namespace: String,
    workload: String,
    revision: i64,
    name: String,
    /// False when the template already was that of the revision.
    changed: bool,
    message: String,
}

impl HasName for Undone {
    fn full_name(&self) -> String {
        self.workload.clone()
    }
}

pub(super) async fn run(args: UndoArgs) -> Result<Exit, Failed> {
    let UndoArgs { to_revision, dry_run: DryRunArgs { dry_run }, about } = args;
    let wanted = (to_revision != 0).then_some(to_revision);
    about.no_rollout("revision to roll back to")?;
    let (server, mut workload) = about.open().await?;
    for _ in 0..MAX_TRIES {
        let past = past::of(&workload.spec.uid, server.revisions().await?);
        let way = way(&past, &workload.spec.template, wanted);
        let (target, changed) = match way {
            Ok(Way::There(past)) => (past, false),
            Ok(Way::Back(past)) => (past, true),
            Err(why) => {
                return Err(Failed::Refused(format!("{}: {why}; nothing was changed", workload.name)));
            }
        };
        let change = vec![
            patch::test(VERSION, workload.version.clone()),
            patch::replace(["spec", "template"], json!(target.revision.template)),
        ];
        if !changed || !dry_run.is_sent() || server.patch(&workload.name, change, dry_run).await?.is_some() {
            let message = message(&workload, target, changed) + dry_run.suffix();
            let undone = Undone {
                namespace: server.namespace,
                workload: workload.name.to_string(),
                revision: target.revision.number,
                name: target.revision.name.clone(),
                changed,
                message,
            };
            match about.output {
                Some(form) => form.print(&undone),
                None => line(&undone.message),
            }
            return Ok(Exit::Done);
        }
        workload = server.workload(&workload.name).await?;
    }
    Err(Failed::Other(format!("{}: other clients keep changing it; nothing was changed", workload.name)))
}

fn message(workload: &Workload, target: &past::Past, changed: bool) -> String {
    let revision = &target.revision;
    let which = format!("revision {} ({})", revision.number, revision.name);
    if !changed {
        return format!("{}: skipped: its template is already that of {which}", workload.name);
    }
    let (before, now) = (images(&workload.spec.template), images(&revision.template));
    let what = if before == now { format!("{now}, other fields") } else { format!("{before} -> {now}") };
    let paused =
        if workload.spec.update.paused { "; it is paused: no pod changes until it is resumed" } else { "" };
    format!("{} rolled back to {which}: {what}{paused}", workload.name)
}
