//! `rollout pause|resume ipr/NAME` sets `spec.paused`; `cancel ipr/NAME...` deletes rollouts. Both refuse a
//! rollout that has ended.

use crate::api::in_place_rollout::InPlaceRollout;
use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::dry_run::DryRun;
use crate::cli::exit::Exit;
use crate::cli::form::Data;
use crate::cli::in_place_rollout::names::RolloutName;
use crate::cli::in_place_rollout::server::RolloutClient;
use crate::cli::output::{line, message};

/// Sets `spec.paused`, unless the rollout has ended.
pub(in crate::cli) async fn pause(
    name: &RolloutName,
    paused: bool,
    dry_run: DryRun,
    cluster: &ClusterArgs,
    output: Option<Data>,
) -> Result<Exit, Failed> {
    let server = RolloutClient::connect(cluster).await?;
    let now = open(&server, name).await?;
    let changed = now.spec.paused != paused;
    let now = if changed && dry_run.is_sent() { server.pause(name, paused, dry_run).await? } else { now };
    let suffix = dry_run.suffix();
    let (state, already, then) = if paused {
        ("paused", "paused", "pods in progress are completed, no further pod is started")
    } else {
        ("resumed", "not paused", "it continues")
    };
    match output {
        Some(form) => form.print(&now),
        None if changed => line(&format!("{name} {state}: {then}{suffix}")),
        None => line(&format!("{name} was already {already}{suffix}")),
    }
    Ok(Exit::Done)
}

/// Deletes each rollout that has not ended. One that cannot be deleted does not keep the others.
pub(in crate::cli) async fn cancel(
    names: &[RolloutName],
    dry_run: DryRun,
    cluster: &ClusterArgs,
    output: Option<Data>,
) -> Result<Exit, Failed> {
    let server = RolloutClient::connect(cluster).await?;
    let (mut exit, mut deleted) = (Exit::Done, Vec::new());
    for name in names {
        match delete(&server, name, dry_run).await {
            Ok(rollout) => {
                if output.is_none() {
                    let then = "pods that have been touched are completed, no further pod is started";
                    line(&format!("{name} deleted: {then}{}", dry_run.suffix()));
                }
                deleted.push(rollout);
            }
            Err(failed) => {
                exit = exit.worse(failed.exit());
                message(&format!("inplace: {failed}"));
            }
        }
    }
    match (output, deleted.as_slice()) {
        (Some(form), several) if names.len() > 1 => form.print_list(several),
        (Some(form), [one]) => form.print(one),
        _ => {}
    }
    Ok(exit)
}

/// Deletes the rollout, unless it has ended. Returns it as it was.
async fn delete(
    server: &RolloutClient,
    name: &RolloutName,
    dry_run: DryRun,
) -> Result<InPlaceRollout, Failed> {
    let now = open(server, name).await?;
    if dry_run.is_sent() {
        server.delete(name, now.metadata.uid.clone(), dry_run).await?;
    }
    Ok(now)
}

/// Returns the rollout, or an error if it has ended.
async fn open(server: &RolloutClient, name: &RolloutName) -> Result<InPlaceRollout, Failed> {
    let now = server.rollout(name).await?;
    match now.status.as_ref().filter(|status| status.phase.is_terminal()) {
        Some(status) => Err(Failed::Refused(format!(
            "{name} has ended ({:?}): nothing was changed; create a new one with `inplace restart` or `inplace swap`",
            status.phase
        ))),
        None => Ok(now),
    }
}
