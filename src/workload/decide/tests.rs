//! Sequences of decisions, applied to a small simulated cluster.

use serde_json::{Value, json};

use crate::api::annotation;
use crate::api::hook_run::HookPhase;
use crate::api::request::Request;
use crate::api::status::{Phase, Status, Step};
use crate::api::workload_key;
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::state::Stage;
use crate::podtask::task::{PodTask, Purpose};
use crate::workload::action::{Action, NewHookRun, Why};
use crate::workload::claims::{Claim, ClaimOwner};
use crate::workload::decide::Decision;
use crate::workload::fixtures::{
    Draft, Sight, answer, at, deployment, pod, sight, stateful_set, write_resize,
};
use crate::workload::hooks::{HookType, Run};

mod abort;
mod batches;
mod canary;
mod claims;
mod deadline;
mod disruptions;
mod environment;
mod failed_hooks;
mod faults;
mod foreign;
mod health;
mod held_back;
mod hook_fields;
mod new_pods;
mod numbers;
mod prefetch;
mod priority;
mod replaced;
mod resize;
mod resize_again;
mod scale;
mod seeds;
mod start_first;
mod surge;
mod undo;

const FIVE: [&str; 5] = ["web-a", "web-b", "web-c", "web-d", "web-e"];

/// The seeds' `GameDeployment`: in place, partition 2, maxUnavailable 2, grace 30, a pre-delete hook.
fn seed(replicas: u32) -> Draft {
    deployment()
        .with("/replicas", json!(replicas))
        .with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}))
        .with(
            "/updateStrategy",
            json!({"type": "InplaceUpdate", "partition": 2, "maxUnavailable": 2,
                   "inPlaceUpdateStrategy": {"gracePeriodSeconds": 30}}),
        )
}

/// Applies a decision as the controller and garbage collection would.
fn carry_out(sight: &mut Sight, decision: &Decision) {
    for action in &decision.actions {
        match action {
            Action::WriteRevision(revision, _) => {
                sight.revisions.retain(|cached| cached.name != revision.name);
                sight.revisions.push(revision.clone());
            }
            Action::DeleteRevision(name) => sight.revisions.retain(|cached| cached.name != *name),
            Action::DeletePod { pod, .. } => sight.pods.retain(|cached| cached.name != pod.name),
            Action::PatchPod { pod, patch, .. } => write(sight.pod(&pod.name), patch),
            Action::Resize { pod, spec, .. } => write_resize(sight.pod(&pod.name), spec),
            Action::CreateClaim { name, .. } => drop(sight.claims.insert(name.clone(), Claim::default())),
            Action::OwnClaim { claim, change } => {
                let owners = &mut sight.claims.get_mut(&claim.name).unwrap().owners;
                owners.retain(|owner| !change.remove.contains(&owner.uid));
                owners.extend(change.add.iter().map(|owner| ClaimOwner {
                    is_pod: owner["kind"] == "Pod",
                    name: owner["name"].as_str().unwrap().to_owned(),
                    uid: owner["uid"].as_str().unwrap().to_owned(),
                }));
            }
            Action::GrowClaim { claim, storage } => {
                sight.claims.get_mut(&claim.name).unwrap().storage = Some(storage.clone());
            }
            Action::CreateRun(run) => sight.runs.push(made(run, sight.now)),
            Action::DeleteRun(name) => sight.runs.retain(|run| run.name != *name),
            _ => {}
        }
    }
    if let Some(report) = &decision.report {
        sight.before = report.clone();
    }
}

fn made(run: &NewHookRun, now: jiff::Timestamp) -> Run {
    Run {
        name: run.name.clone(),
        kind: run.kind,
        key: run.annotations[workload_key::TASK].clone(),
        pod_uid: run.annotations.get(workload_key::HOOK_POD).cloned().unwrap_or_default(),
        phase: HookPhase::Running,
        approved: false,
        created: Some(now),
        deleting: false,
    }
}

fn write(pod: &mut Pod, patch: &crate::podtask::write::PodPatch) {
    if let Some(Some(label)) = patch.labels.get(workload_key::REVISION) {
        pod.label.clone_from(label);
    }
    for (key, value) in patch.labels.iter().filter(|(key, _)| *key != workload_key::REVISION) {
        match value {
            Some(value) => drop(pod.labels.insert(key.clone(), value.clone())),
            None => drop(pod.labels.remove(key)),
        }
    }
    pod.surge &= patch.labels.get(workload_key::SURGE) != Some(&None);
    for (key, value) in &patch.annotations {
        match key.as_str() {
            workload_key::TASK => pod.task = value.as_ref().map(|text| serde_json::from_str(text).unwrap()),
            workload_key::LEAVING => pod.leaving = value.is_some(),
            workload_key::PREFETCH => pod.prefetch.clone_from(value),
            annotation::REQUEST => {
                pod.request = Request::parse(value.as_deref()).unwrap().map(|request| request.id);
            }
            _ => {}
        }
    }
}

fn step(sight: &mut Sight, draft: &Draft) -> Decision {
    let decision = sight.decide(draft);
    carry_out(sight, &decision);
    decision
}

/// Ends every open hook in this phase.
fn hooks_end(sight: &mut Sight, phase: HookPhase) {
    for run in &mut sight.runs {
        run.phase = phase;
    }
}

/// Ends the open hooks of updates in place with success; those of scale-ins go on.
fn update_hooks_pass(sight: &mut Sight) {
    for run in sight.runs.iter_mut().filter(|run| run.key.starts_with("InPlace/")) {
        run.phase = HookPhase::Successful;
    }
}

/// Makes agents carry out every open request.
fn agents_succeed(sight: &mut Sight, image: &str) {
    for pod in &mut sight.pods {
        let Some(task) = pod.task.clone().filter(|task| task.stage == Stage::Ordered) else { continue };
        image.clone_into(&mut pod.images[0].1);
        pod.restarts += 1;
        pod.answer = Some(answer(&task.id(), Phase::Succeeded, None));
    }
}

/// DESIRED UPDATED `UPDATED_READY` READY TOTAL.
fn columns(draft: &Draft, decision: &Decision) -> [usize; 5] {
    let counts = decision.report.as_ref().unwrap().counts;
    [draft.spec().replicas, counts.updated, counts.updated_ready, counts.ready, counts.total]
}

fn requests(decision: &Decision) -> Vec<Request> {
    let text = |action: &Action| match action {
        Action::PatchPod { patch, .. } => patch.annotations.get(annotation::REQUEST).cloned().flatten(),
        _ => None,
    };
    decision
        .actions
        .iter()
        .filter_map(text)
        .map(|text| Request::parse(Some(&text)).unwrap().unwrap())
        .collect()
}

fn condition(decision: &Decision, kind: &str) -> (String, String, String) {
    let conditions = &decision.report.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|condition| condition.kind == kind).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

fn in_place() -> Draft {
    deployment().with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 3}))
}

fn sight_revision(draft: &Draft, sight: &Sight) -> String {
    crate::workload::revision::find("web", &draft.spec().template, &sight.seen().history, 0).revision.name
}

fn two_containers() -> Draft {
    in_place().with(
        "/template/spec/containers",
        json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]),
    )
}

fn other_image(draft: &Draft, container: usize, image: &str) -> Draft {
    draft.clone().with(&format!("/template/spec/containers/{container}/image"), json!(image))
}
