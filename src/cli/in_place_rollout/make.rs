//! `restart` and `swap` of a workload: reads the workload, creates the rollout, and follows it with `--wait`.

use std::time::Duration;

use crate::api::request::{ContainerRequest, Request};
use crate::cli::cluster::{ClusterArgs, Failed};
use crate::cli::dry_run::DryRun;
use crate::cli::exit::Exit;
use crate::cli::form::Data;
use crate::cli::in_place_rollout::draft::{self, Whose, draft};
use crate::cli::in_place_rollout::flags::{OnRolloutFailure, RolloutFlags};
use crate::cli::in_place_rollout::follow::follow;
use crate::cli::in_place_rollout::names::{RolloutName, WorkloadName};
use crate::cli::in_place_rollout::server::RolloutClient;
use crate::cli::in_place_rollout::status::report_end;
use crate::cli::output::{line, message, yaml};
use crate::process::signals;

/// The arguments of `restart` or `swap`.
pub(in crate::cli) struct Order<'a> {
    pub(in crate::cli) verb: &'a str,
    /// `None`: the pods with the labels in `flags`.
    pub(in crate::cli) workload: Option<WorkloadName>,
    /// The containers to restart. If empty, the pod's only container.
    pub(in crate::cli) restarts: Vec<String>,
    /// The containers to swap.
    pub(in crate::cli) swaps: Vec<ContainerRequest>,
    pub(in crate::cli) flags: RolloutFlags,
    pub(in crate::cli) dry_run: DryRun,
    pub(in crate::cli) wait: Wait,
    pub(in crate::cli) output: Option<Data>,
}

/// How long the command follows the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Wait {
    No,
    For(Duration),
    AsLongAsItTakes,
}

/// Creates the rollout. `request` makes the request for one pod from the containers.
pub(in crate::cli) async fn run(
    order: Order<'_>,
    cluster: &ClusterArgs,
    request: impl FnOnce(Vec<ContainerRequest>) -> Result<Request, Failed>,
) -> Result<Exit, Failed> {
    let whose = match (&order.workload, &order.flags.selector) {
        (Some(name), None) => Whose::Workload(name.clone()),
        (None, Some(labels)) => Whose::Labels(labels.clone()),
        _ => return Err(Failed::Usage("name a workload, or its pods with -l; not both".to_owned())),
    };
    if order.swaps.is_empty() && order.flags.on_rollout_failure == Some(OnRolloutFailure::Abort) {
        let problem = "--on-rollout-failure abort: a restart leaves nothing that could be taken back";
        return Err(Failed::Usage(problem.to_owned()));
    }
    let server = RolloutClient::connect(cluster).await?;
    let request = request(targets(&server, &whose, &order).await?)?;
    let draft = draft(order.verb, &whose, request, &order.flags);
    for open in server.rollouts().await? {
        let ended = open.status.as_ref().is_some_and(|status| status.phase.is_terminal());
        if !ended && whose.is_target_of(&open) {
            let name = open.metadata.name.unwrap_or_default();
            message(&format!("ipr/{name} is in progress for {whose}: the new rollout replaces it"));
        }
    }
    if order.dry_run != DryRun::None {
        let made = if order.dry_run.is_sent() { server.create(&draft, true).await? } else { draft.clone() };
        match &order.output {
            Some(form) => form.print(&made),
            None => yaml(&draft),
        }
        message(match order.dry_run {
            DryRun::Client => "nothing was created (dry run): the API server was not asked",
            _ => "nothing was created (dry run): the API server accepts this object",
        });
        return Ok(Exit::Done);
    }
    // From here on Ctrl-C is handled, so that the user always learns what was created.
    let mut interrupt = signals::interrupt().map_err(|error| Failed::Other(error.to_string()))?;
    let made = server.create(&draft, false).await?;
    let name = RolloutName(made.metadata.name.clone().unwrap_or_default());
    let wait_limit = match order.wait {
        Wait::For(time) => Some(time),
        Wait::AsLongAsItTakes => None,
        Wait::No => {
            match &order.output {
                Some(form) => form.print(&made),
                None => line(&format!("{name} created")),
            }
            message(&how_to_follow(&name, &whose, cluster));
            return Ok(Exit::Done);
        }
    };
    message(&format!("{name} created for {whose}"));
    let end = follow(&server, made, wait_limit, &mut interrupt).await?;
    if let Some(form) = &order.output {
        form.print(&end.rollout);
    }
    Ok(report_end(&end, &server.flags, order.output.is_none()))
}

/// The containers, checked against those of the workload or of the pods.
async fn targets(
    server: &RolloutClient,
    whose: &Whose,
    order: &Order<'_>,
) -> Result<Vec<ContainerRequest>, Failed> {
    let choose = |known: &[(String, String)]| {
        if order.swaps.is_empty() {
            draft::restarts(whose, known, &order.restarts).map_err(Failed::Usage)
        } else {
            Ok(order.swaps.clone())
        }
    };
    match whose {
        Whose::Workload(name) => {
            let workload = server.workload(name).await?;
            let known = draft::replaceable(&workload.data["spec"]["template"]["spec"]);
            let targets = choose(&known)?;
            let subject = format!("the template of {name}");
            draft::check(&subject, &known, &targets).map_err(Failed::Refused)?;
            let allowed = order.flags.allow_template_drift;
            draft::check_drift(whose, &known, &targets, allowed).map_err(Failed::Refused)?;
            Ok(targets)
        }
        Whose::Labels(labels) => {
            let mut targets = None;
            for pod in server.pods(&labels.text()).await? {
                let spec = serde_json::to_value(&pod.spec).unwrap_or_default();
                let known = draft::replaceable(&spec);
                let chosen = match &targets {
                    Some(chosen) => chosen,
                    None => targets.insert(choose(&known)?),
                };
                let subject = format!("pod/{}", pod.metadata.name.unwrap_or_default());
                draft::check(&subject, &known, chosen).map_err(Failed::Refused)?;
            }
            targets.ok_or_else(|| {
                let (labels, namespace) = (labels.text(), &server.namespace);
                Failed::Refused(format!("no pod in namespace {namespace} has the labels {labels}"))
            })
        }
    }
}

fn how_to_follow(name: &RolloutName, whose: &Whose, cluster: &ClusterArgs) -> String {
    let flags = cluster.repeated();
    format!(
        "for {whose}; run `inplace rollout status ipr/{}{flags}` to follow it, `inplace cancel \
         ipr/{0}{flags}` to end it",
        name.0
    )
}
