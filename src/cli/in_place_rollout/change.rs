//! `rollout pause|resume ipr/NAME` sets `spec.paused`; `cancel ipr/NAME` deletes the rollout. Both refuse a
//! rollout that has ended.

use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::exit::Exit;
use crate::cli::in_place_rollout::names::RolloutName;
use crate::cli::in_place_rollout::server::RolloutClient;
use crate::cli::output::{Data, line};

/// Sets `spec.paused`, unless the rollout has ended.
pub(in crate::cli) async fn pause(
    name: &RolloutName,
    paused: bool,
    cluster: &ClusterArgs,
    output: Option<Data>,
) -> Result<Exit, Failed> {
    let server = RolloutClient::connect(cluster).await?;
    let now = open(&server, name).await?;
    let changed = now.spec.paused != paused;
    let now = if changed { server.pause(name, paused).await? } else { now };
    let (state, already, then) = if paused {
        ("paused", "paused", "pods in progress are completed, no further pod is started")
    } else {
        ("resumed", "not paused", "it continues")
    };
    match output {
        Some(form) => form.print(&now),
        None if changed => line(&format!("{name} {state}: {then}")),
        None => line(&format!("{name} was already {already}")),
    }
    Ok(Exit::Done)
}

/// Deletes the rollout, unless it has ended.
pub(in crate::cli) async fn cancel(
    name: &RolloutName,
    cluster: &ClusterArgs,
    output: Option<Data>,
) -> Result<Exit, Failed> {
    let server = RolloutClient::connect(cluster).await?;
    let now = open(&server, name).await?;
    server.delete(name, now.metadata.uid.clone()).await?;
    match output {
        Some(form) => form.print(&now),
        None => line(&format!(
            "{name} deleted: pods that have been touched are completed, no further pod is started"
        )),
    }
    Ok(Exit::Done)
}

/// Returns the rollout, or an error if it has ended.
async fn open(
    server: &RolloutClient,
    name: &RolloutName,
) -> Result<crate::api::in_place_rollout::InPlaceRollout, Failed> {
    let now = server.rollout(name).await?;
    match now.status.as_ref().filter(|status| status.phase.is_terminal()) {
        Some(status) => Err(Failed::Refused(format!(
            "{name} has ended ({:?}): nothing was changed; create a new one with `inplace restart` or `inplace swap`",
            status.phase
        ))),
        None => Ok(now),
    }
}
