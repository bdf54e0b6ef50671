//! `cancel`: removes the request annotation from a pod, which cancels the request unless it has touched a
//! container; deletes `InPlaceRollout`s.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;

use crate::cli::cluster::label_selector;
use crate::cli::completion;
use crate::cli::dry_run::{DryRun, DryRunArgs};
use crate::cli::exit::Exit;
use crate::cli::in_place_rollout::change;
use crate::cli::in_place_rollout::names::RolloutName;
use crate::cli::output::{line, message};
use crate::cli::pod::answer::{Notes, is_touched, progress};
use crate::cli::pod::names::PodName;
use crate::cli::pod::selection::Selection;
use crate::cli::pod::server::{PodClient, Scope};
use crate::cli::pod::{ClusterArgs, Data, DataParser, Failed, HasName, write};

/// Number of attempts when the pod's metadata changes between the read and the patch.
const MAX_TRIES: u32 = 8;

/// Arguments of `cancel`.
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The pods: NAME or pod/NAME; or InPlaceRollouts: ipr/NAME
    #[arg(value_name = "POD|ipr/NAME", add = ArgValueCompleter::new(completion::pods), required_unless_present_any = ["selector", "all", "field_selector", "node"],
        conflicts_with_all = ["selector", "all", "field_selector", "node"])]
    names: Vec<String>,
    /// The pods with these labels that have a request
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = label_selector)]
    selector: Option<String>,
    /// Only this request
    #[arg(long)]
    id: Option<String>,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    cluster: ClusterArgs,
}

/// JSON output for one pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cancelled {
    namespace: String,
    name: String,
    id: Option<String>,
    /// Whether the annotation was removed.
    withdrawn: bool,
    message: String,
}

impl HasName for Cancelled {
    fn full_name(&self) -> String {
        format!("pod/{}", self.name)
    }
}

pub(super) async fn run(args: CancelArgs) -> Result<Exit, Failed> {
    let CancelArgs { names, selector, id, output, dry_run: DryRunArgs { dry_run }, selection, cluster } =
        args;
    let rollouts = names.iter().filter_map(|name| RolloutName::read(std::slice::from_ref(name)));
    let rollouts = rollouts.collect::<Result<Vec<_>, _>>().map_err(Failed::Usage)?;
    if !rollouts.is_empty() {
        let wrong = match id {
            _ if rollouts.len() < names.len() => {
                "pods and InPlaceRollouts cannot be combined: use two commands"
            }
            Some(_) => "--id is for pods",
            None => return change::cancel(&rollouts, dry_run, &cluster, output).await,
        };
        return Err(Failed::Usage(wrong.to_owned()));
    }
    let pods = names.iter().map(|name| name.parse()).collect::<Result<Vec<PodName>, _>>();
    let mut pods = pods.map_err(Failed::Usage)?;
    let server = PodClient::connect(&cluster).await?;
    if names.is_empty() {
        let scope = Scope { selector, fields: selection.fields(), ..Scope::default() };
        let found = server.list(&scope).await?;
        let open = found.into_iter().filter(|meta| is_open(&Notes::of(meta)));
        pods.extend(open.filter_map(|meta| meta.name.map(PodName)));
        if pods.is_empty() {
            message(&format!("no such pod of namespace {} has a request to withdraw", server.namespace));
        }
    }
    let (mut exit, mut views) = (Exit::Done, Vec::new());
    for name in pods {
        let (id, ended) = match cancel(&server, &name, id.as_deref(), dry_run).await {
            Ok((id, message)) => (Some(id), Ok(message)),
            Err(failed) => (id.clone(), Err(failed)),
        };
        let is_done = ended.is_ok();
        let message = ended.unwrap_or_else(|failed| {
            exit = exit.worse(failed.exit());
            message(&format!("inplace: {failed}"));
            failed.to_string()
        });
        if is_done && output.is_none() {
            line(&message);
        }
        let (namespace, name, withdrawn) =
            (server.namespace.clone(), name.0, is_done && dry_run == DryRun::None);
        views.push(Cancelled { namespace, name, id, withdrawn, message });
    }
    if let Some(form) = output {
        form.print_list(&views);
    }
    Ok(exit)
}

/// Removes the request. Returns its id and what the removal means.
async fn cancel(
    server: &PodClient,
    name: &PodName,
    only: Option<&str>,
    dry_run: DryRun,
) -> Result<(String, String), Failed> {
    let mut meta = server.meta(name).await?;
    for _ in 0..MAX_TRIES {
        let notes = Notes::of(&meta);
        let id = to_cancel(name, &notes, only).map_err(Failed::Refused)?;
        if !dry_run.is_sent() || server.patch(name, write::patch(&meta, None), dry_run).await? {
            let then = "it ends now, unless it has touched a container in the meantime";
            return Ok((
                id.clone(),
                format!("{name}: request {id} is withdrawn; {then}{}", dry_run.suffix()),
            ));
        }
        meta = write::again(server, name, &meta).await?;
    }
    Err(Failed::Other(format!("{name}: other clients keep changing the pod; nothing was withdrawn")))
}

/// True if the pod has a request that can be withdrawn.
fn is_open(notes: &Notes) -> bool {
    let is_going = notes.under_way().is_some_and(|status| !is_touched(status)) && notes.request.is_some();
    is_going || notes.unanswered()
}

/// The id of the request to remove, or why there is none.
fn to_cancel(name: &PodName, notes: &Notes, only: Option<&str>) -> Result<String, String> {
    if notes.request.is_none() {
        return Err(format!("{name} has no request to withdraw"));
    }
    let id = notes.requested.clone().unwrap_or_else(|| "that cannot be read".to_owned());
    if let Some(only) = only
        && only != id
    {
        return Err(format!("the request of {name} is {id}, not {only}: nothing was withdrawn"));
    }
    match &notes.status {
        Some(status) if notes.end_of(&id).is_some() => {
            Err(format!("request {id} of {name} has already ended ({}): {}", status.phase, status.message))
        }
        Some(status) if status.id == id && is_touched(status) => Err(format!(
            "request {id} of {name} has touched containers and is completed ({}): nothing was withdrawn",
            progress(status)
        )),
        _ => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status::{Phase, Status, Step};
    use crate::cli::pod::answer::tests::{meta, status};

    type Case<'a> = (Option<&'a str>, Option<&'a Status>, Option<&'a str>, Result<&'a str, &'a str>);

    #[test]
    fn only_what_is_written_and_has_not_ended_is_withdrawn() {
        let open = status("a", Phase::Running, Some(Step::Pull));
        let over = status("a", Phase::Succeeded, None);
        let written = Some(r#"{"id":"a","containers":[{"name":"app"}]}"#);
        let touched = status("a", Phase::Running, Some(Step::Swap));
        let cases: [Case<'_>; 9] = [
            (written, None, None, Ok("a")),
            (written, Some(&open), None, Ok("a")),
            (written, Some(&open), Some("a"), Ok("a")),
            (written, Some(&open), Some("b"), Err("is a, not b")),
            (written, Some(&touched), None, Err("has touched containers and is completed")),
            (written, Some(&over), None, Err("has already ended (Succeeded)")),
            (Some(r#"{"id":"b","containers":[{"name":"app"}]}"#), Some(&over), None, Ok("b")),
            (Some("reboot"), None, None, Ok("that cannot be read")),
            (None, Some(&open), None, Err("no request")),
        ];
        for (request, answer, only, expect) in cases {
            let found = to_cancel(&PodName("web".into()), &Notes::of(&meta(request, answer)), only);
            match (found, expect) {
                (Ok(id), Ok(expected)) => assert_eq!(id, expected),
                (Err(why), Err(says)) => assert!(why.contains(says), "{why}"),
                (found, expect) => panic!("{found:?} is not {expect:?}"),
            }
        }
    }
}
