//! `rollout pause|resume`: sets `spec.updateStrategy.paused` of a workload, and nothing else.

use serde::Serialize;

use crate::cli::cluster::Failed;
use crate::cli::exit::Exit;
use crate::cli::output::line;
use crate::cli::workload_rollout::About;
use crate::cluster::patch;

/// JSON output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Set {
    namespace: String,
    workload: String,
    paused: bool,
    /// False when the field already had the value.
    changed: bool,
}

pub(super) async fn run(about: About, paused: bool) -> Result<Exit, Failed> {
    let (server, workload) = about.open().await?;
    let changed = workload.spec.update.paused != paused;
    // The patch needs `spec.updateStrategy`, which the defaults of the CRD always create.
    let change = vec![patch::add(["spec", "updateStrategy", "paused"], paused)];
    if changed && server.patch(&workload.name, change).await?.is_none() {
        return Err(Failed::Other(format!(
            "{}: has no spec.updateStrategy; nothing was changed",
            workload.name
        )));
    }
    let (state, then) = if paused {
        ("paused", "updates in progress are completed, scaling continues")
    } else {
        ("resumed", "updates continue")
    };
    let already = if paused { "paused" } else { "not paused" };
    match about.output {
        Some(form) => {
            let workload = workload.name.to_string();
            form.print(&Set { namespace: server.namespace, workload, paused, changed });
        }
        None if changed => line(&format!("{} {state}: {then}", workload.name)),
        None => line(&format!("{} was already {already}", workload.name)),
    }
    Ok(Exit::Done)
}
