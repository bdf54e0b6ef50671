//! `plan`: prints what a restart or swap would do, with which engine and why, from the objects of the API server.
//! Touches nothing.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use k8s_openapi::api::core::v1::Pod;

use crate::api::request::{ContainerRequest, Request};
use crate::cli::completion;
use crate::cli::exit::Exit;
use crate::cli::output::line;
use crate::cli::pod::answer::Notes;
use crate::cli::pod::assemble::assemble;
use crate::cli::pod::flags::RequestFlags;
use crate::cli::pod::names::{Named, PodName, Word, sorted};
use crate::cli::pod::plan_view::PlanView;
use crate::cli::pod::server::PodClient;
use crate::cli::pod::{ClusterArgs, Data, DataParser, Failed, hooks, plan_workload, write};
use crate::cluster;
use crate::operation::snapshot::{Declared, Gate};
use crate::process::clock;

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The pods, and with a new image the containers to swap; or with -f one gamedeployment/NAME or gamestatefulset/NAME
    #[arg(value_name = "POD|CONTAINER=IMAGE", required = true, add = ArgValueCompleter::new(completion::subjects))]
    words: Vec<Word>,
    /// The new manifest of a workload: shows field by field what is changed in place, and what needs new pods; `-` for
    /// standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["container"])]
    file: Option<PathBuf>,
    /// Containers to restart; not required if the pod has only one
    #[arg(short, long, value_name = "NAME", value_delimiter = ',', add = ArgValueCompleter::new(completion::containers))]
    container: Vec<String>,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    flags: RequestFlags,
    #[command(flatten)]
    cluster: ClusterArgs,
}

pub(super) async fn run(args: PlanArgs) -> Result<Exit, Failed> {
    let PlanArgs { words, file, container, flags, output, cluster } = args;
    let Named { pods, workloads, images } = sorted(words);
    if let Some(file) = file {
        let [workload] = workloads.as_slice() else {
            return Err(Failed::Usage("-f needs one gamedeployment/NAME or gamestatefulset/NAME".to_owned()));
        };
        if !pods.is_empty() || !images.is_empty() {
            return Err(Failed::Usage("-f and pods or images cannot be combined".to_owned()));
        }
        return plan_workload::run(workload, &file, &cluster, output).await;
    }
    if let Some(workload) = workloads.first() {
        return Err(Failed::Usage(format!(
            "`plan` accepts only pods without -f: name a pod of {workload}, use --dry-run of restart and swap to \
             check the rollout for all of them, or give its new manifest with -f"
        )));
    }
    if pods.is_empty() {
        return Err(Failed::Usage("the pod is missing: write pod/NAME".to_owned()));
    }
    let server = PodClient::connect(&cluster).await?;
    let mut asked = Vec::with_capacity(pods.len());
    for name in pods {
        let pod = server.pod(&name).await?;
        let targets = targets(&name, &pod, &container, &images)?;
        let request =
            flags.request(flags.id("plan")?, targets).map_err(|bad| Failed::Refused(bad.to_string()))?;
        write::check(&name, &pod, &request)?;
        asked.push((name, pod, request));
    }
    show(&server, asked, output).await
}

/// The restarts, then the swaps, in the given order.
fn targets(
    name: &PodName,
    pod: &Pod,
    restarts: &[String],
    swaps: &[ContainerRequest],
) -> Result<Vec<ContainerRequest>, Failed> {
    if restarts.is_empty() && !swaps.is_empty() {
        return Ok(swaps.to_vec());
    }
    let mut targets = write::restarts(name, pod, restarts)?;
    targets.extend_from_slice(swaps);
    Ok(targets)
}

/// Prints the plan of each request. Touches nothing.
pub(super) async fn show(
    server: &PodClient,
    asked: Vec<(PodName, Pod, Request)>,
    output: Option<Data>,
) -> Result<Exit, Failed> {
    let (mut exit, mut views) = (Exit::Done, Vec::with_capacity(asked.len()));
    for (_, pod, request) in asked {
        let view = plan_view(server, &pod, request).await?;
        if view.refusal().is_some() {
            exit = Exit::Refused;
        }
        views.push(view);
    }
    if let Some(form) = output {
        form.print_list(&views);
        return Ok(exit);
    }
    views.iter().flat_map(PlanView::lines).for_each(|text| line(&text));
    line("nothing was touched");
    Ok(exit)
}

/// Why an agent would refuse `request`, as far as the API server's objects show it.
pub(super) async fn likely_refusal(server: &PodClient, pod: &Pod, request: &Request) -> Option<String> {
    plan_view(server, pod, request.clone()).await.ok()?.refusal().map(str::to_owned)
}

async fn plan_view(server: &PodClient, pod: &Pod, request: Request) -> Result<PlanView, Failed> {
    let (mut declared, other_gates) = declared(pod)?;
    let may_be_used = declared.gate == Gate::Absent && !other_gates.is_empty();
    if may_be_used {
        declared.gate = Gate::Open;
    }
    let node = match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
        Some(name) => server.node(name).await,
        None => None,
    };
    let mut seen = assemble(pod, declared, node.as_ref(), clock::now());
    if may_be_used && request.drained_by().is_some() {
        seen.unseen
            .push(format!("whether the agent uses a readiness gate of the pod ({})", other_gates.join(", ")));
    }
    seen.situation.hooks = hooks::named(server, pod, &request, &mut seen.unseen).await;
    let (notes, id) = (Notes::of(&pod.metadata), &request.id);
    let present = match notes.end_of(id) {
        Some(_) => Some(write::not_run_again(id)),
        None => write::about_the_present_one(&notes, id),
    };
    Ok(PlanView::of(pod, seen, request, present))
}

/// The pod as input of the decisions, converted by the same code as in the agent, and the names of its other readiness
/// gates.
fn declared(pod: &Pod) -> Result<(Declared, Vec<String>), Failed> {
    let trimmed = serde_json::to_value(pod).and_then(serde_json::from_value::<cluster::pod::Pod>);
    let trimmed = trimmed.map_err(|error| Failed::Other(format!("the pod cannot be read: {error}")))?;
    // A user has no right to read the flags of the agents, but sees whose condition of a gate they have written.
    let gate = trimmed.gate(&trimmed.gates_of_agents()).1.clone();
    let other_gates = trimmed.other_gates().map(str::to_owned).collect();
    Ok((Declared { gate, ..trimmed.declared(true) }, other_gates))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_gate_counts_whose_condition_an_agent_has_written() {
        let pod = |reason: &str| -> Pod {
            let condition = json!({"type": "KruisePodReady", "status": "True", "reason": reason});
            serde_json::from_value(json!({"metadata": {"name": "web"},
                "spec": {"containers": [], "readinessGates": [{"conditionType": "KruisePodReady"}]},
                "status": {"conditions": [condition]}}))
            .unwrap()
        };
        let of = |reason: &str| {
            let (declared, others) = declared(&pod(reason)).unwrap();
            (declared.gate, others.join(","))
        };
        assert_eq!(of("InPlaceReady"), (Gate::Open, "KruisePodReady".to_owned()));
        // Of another writer: the agent may use it, so that a drain is no reason for a refusal.
        assert_eq!(of("Other"), (Gate::Absent, "KruisePodReady".to_owned()));
    }
}
