//! `rollout status ipr/NAME`: prints the progress of a rollout, and follows it until it has ended or waits for a
//! person. Changes nothing.

use std::time::Duration;

use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::exit::Exit;
use crate::cli::form::Data;
use crate::cli::in_place_rollout::follow::{End, follow};
use crate::cli::in_place_rollout::names::RolloutName;
use crate::cli::in_place_rollout::server::RolloutClient;
use crate::cli::in_place_rollout::verdict::{failures, verdict};
use crate::cli::output::{line, message};
use crate::process::signals;

/// Follows the rollout for at most `wait_limit`, or prints its current state and exits.
pub(in crate::cli) async fn run(
    name: &RolloutName,
    watch: bool,
    wait_limit: Option<Duration>,
    cluster: &ClusterArgs,
    output: Option<Data>,
) -> Result<Exit, Failed> {
    let server = RolloutClient::connect(cluster).await?;
    let first = server.rollout(name).await?;
    let end = if watch {
        let mut interrupt = signals::interrupt().map_err(|error| Failed::Other(error.to_string()))?;
        follow(&server, first, wait_limit, &mut interrupt).await?
    } else {
        let exit = verdict(&first, &server.flags).end.unwrap_or(Exit::Done);
        End { rollout: first, exit, note: None }
    };
    if let Some(form) = &output {
        form.print(&end.rollout);
    }
    Ok(report_end(&end, &server.flags, output.is_none()))
}

/// Prints the result and the failed pods for a person. With JSON or YAML output, prints only what the data does
/// not contain. `flags` are those of a command that the user is to run next.
pub(super) fn report_end(end: &End, flags: &str, text: bool) -> Exit {
    let name = RolloutName(end.rollout.metadata.name.clone().unwrap_or_default());
    match &end.note {
        Some(note) => message(&format!("inplace: {name} {note}")),
        None if text => {
            line(&format!("{name}: {}", verdict(&end.rollout, flags).message));
            for failure in failures(&end.rollout) {
                line(&format!("  {failure}"));
            }
        }
        None => {}
    }
    end.exit
}
