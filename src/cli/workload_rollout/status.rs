//! `rollout status`: prints the progress of an update, and follows it until it is done or stopped. Changes
//! nothing.

use std::pin::pin;
use std::time::Duration;

use clap::{ArgAction, Args};
use futures_util::StreamExt;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use crate::cli::cluster::Failed;
use crate::cli::exit::Exit;
use crate::cli::form::HasName;
use crate::cli::in_place_rollout;
use crate::cli::output::{line, message};
use crate::cli::span::Seconds;
use crate::cli::workload_rollout::About;
use crate::cli::workload_rollout::server::WorkloadClient;
use crate::cli::workload_rollout::verdict::{State, Verdict, verdict};
use crate::cli::workload_rollout::workload::Workload;

/// Arguments of `rollout status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Follow the update until it is done or stopped; --watch=false prints the current state and exits
    #[arg(short, long, action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value_t = true, default_missing_value = "true", value_name = "BOOL")]
    watch: bool,
    /// Follow the update at most this long, as 30s or 5m; 0 for no limit
    #[arg(long, value_name = "TIME", default_value = "0")]
    timeout: Seconds,
    #[command(flatten)]
    about: About,
}

/// JSON output: the progress of an update.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadProgress<'a> {
    namespace: &'a str,
    workload: String,
    state: State,
    reason: &'a str,
    message: &'a str,
    generation: i64,
    observed_generation: i64,
    update_revision: &'a str,
    wanted: usize,
    total: i32,
    updated: i32,
    updated_ready: i32,
    ready: i32,
}

impl HasName for WorkloadProgress<'_> {
    fn full_name(&self) -> String {
        self.workload.clone()
    }
}

pub(super) async fn run(args: StatusArgs) -> Result<Exit, Failed> {
    let StatusArgs { watch, timeout, about } = args;
    let wait_limit = (timeout != Seconds(0)).then(|| Duration::from_secs(timeout.0.into()));
    if let Some(name) = about.in_place()? {
        return in_place_rollout::status::run(&name, watch, wait_limit, &about.cluster, about.output).await;
    }
    let (server, first) = about.open().await?;
    let text = about.output.is_none();
    let mut reported = String::new();
    let mut report_change = |workload: &Workload, verdict: &Verdict| {
        let now = format!("{}: {}", workload.name, verdict.message);
        if text && now != reported {
            line(&now);
            reported = now;
        }
    };
    let (workload, verdict, exit) = if watch {
        follow(&server, first, wait_limit, &mut report_change).await?
    } else {
        let verdict = verdict(&first, &server.flags);
        report_change(&first, &verdict);
        let exit = if verdict.state == State::Stopped { Exit::Failed } else { Exit::Done };
        (first, verdict, exit)
    };
    if let Some(form) = about.output {
        form.print(&view(&server.namespace, &workload, &verdict));
    }
    Ok(exit)
}

/// Follows the update until it is done, stopped or deleted, or the time is over.
async fn follow(
    server: &WorkloadClient,
    first: Workload,
    wait_limit: Option<Duration>,
    report_change: &mut impl FnMut(&Workload, &Verdict),
) -> Result<(Workload, Verdict, Exit), Failed> {
    let name = first.name.clone();
    let gone = || Failed::Other(format!("{name}: it was deleted or recreated"));
    let until = wait_limit.map(|wait_limit| Instant::now() + wait_limit);
    let mut changes = pin!(server.watch(&name));
    let mut latest = first;
    loop {
        let now = verdict(&latest, &server.flags);
        report_change(&latest, &now);
        match now.state {
            State::Done => return Ok((latest, now, Exit::Done)),
            State::Stopped => return Ok((latest, now, Exit::Failed)),
            State::Going => {}
        }
        let event = match until {
            Some(until) => timeout_at(until, changes.next()).await,
            None => Ok(changes.next().await),
        };
        let object = match event {
            Err(_) | Ok(None) => {
                message(&format!("inplace: {name}: not done within the time of --timeout; it continues"));
                return Ok((latest, now, Exit::TimedOut));
            }
            Ok(Some(Err(error))) => {
                message(&format!("inplace: the watch of the workload failed, retrying: {error}"));
                continue;
            }
            Ok(Some(Ok(Some(object)))) => object,
            Ok(Some(Ok(None))) => return Err(gone()),
        };
        let next = Workload::of(&name, object)?;
        if next.spec.uid != latest.spec.uid {
            return Err(gone());
        }
        latest = next;
    }
}

fn view<'a>(namespace: &'a str, workload: &'a Workload, verdict: &'a Verdict) -> WorkloadProgress<'a> {
    let (spec, status) = (&workload.spec, &workload.status);
    WorkloadProgress {
        namespace,
        workload: workload.name.to_string(),
        state: verdict.state,
        reason: &verdict.reason,
        message: &verdict.message,
        generation: spec.generation,
        observed_generation: status.observed_generation,
        update_revision: &status.update_revision,
        wanted: spec.replicas,
        total: status.replicas,
        updated: status.updated_replicas,
        updated_ready: status.updated_ready_replicas,
        ready: status.ready_replicas,
    }
}
