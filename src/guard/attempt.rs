//! One attempt to pass a pod's pre-delete hook: what is read from its HookRun, and which run to create. Creates
//! nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::hook_run::{HookPhase, HookRunStatus, MetricResult};
use crate::api::workload::WorkloadHook;
use crate::api::{annotation, workload_key};
use crate::podtask::pod::Pod;
use crate::workload::action::NewHookRun;
use crate::workload::hooks::{self, HookType};
use crate::workload::name;

/// First part of the key of the guard's attempts; those of workloads begin with a purpose.
const GUARD: &str = "DeleteGuard";
/// Maximum number of metrics in a message.
const METRICS_REPORTED: usize = 4;
/// Maximum number of bytes of the hook's message that are repeated.
const MAX_MESSAGE_BYTES: usize = 300;

/// A HookRun before the deletion of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Name of the run.
    pub name: String,
    /// The uid of the pod that the run belongs to.
    pub pod_uid: String,
    /// The node whose agent runs it.
    node: Option<String>,
    /// Kind, name and uid of its owners.
    owners: Vec<(String, String, String)>,
    /// Who created it, and for what.
    pub(super) owner: AttemptOwner,
    /// Phase of the run; `Pending` until it is started.
    pub phase: HookPhase,
    /// True when a person approved it.
    pub approved: bool,
    /// Creation time.
    pub created: Timestamp,
    /// When its last measurement ended.
    pub ended: Timestamp,
    /// True when the run is being deleted.
    pub deleting: bool,
    /// True when the deletion is to be requested again once the run has succeeded.
    pub finishes: bool,
    /// Progress of its metrics, for messages.
    pub(super) progress: String,
}

/// The creator of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptOwner {
    /// The guard.
    Guard { template: String, retry: String, number: u32 },
    /// The controller of a workload, for a deletion.
    Workload,
}

impl Attempt {
    /// Reads an attempt; none if the run serves another purpose, or reports the hook of an agent's operation.
    pub fn read(meta: &ObjectMeta, status: &HookRunStatus) -> Option<Self> {
        let notes = meta.annotations.as_ref()?;
        let label = |key: &str| meta.labels.as_ref()?.get(key).cloned();
        if label(annotation::OPERATION).is_some() {
            return None;
        }
        let created = meta.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let measured = status.metric_results.iter().flat_map(|result| &result.measurements);
        let ended = measured.filter_map(|one| one.finished_at).max().or(status.started_at);
        let owners = meta.owner_references.iter().flatten();
        let owners = owners.map(|owner| (owner.kind.clone(), owner.name.clone(), owner.uid.clone()));
        Some(Self {
            name: meta.name.clone()?,
            pod_uid: notes.get(workload_key::HOOK_POD)?.clone(),
            node: label(annotation::NODE),
            owners: owners.collect(),
            owner: attempt_owner(workload_key::task(notes)?)?,
            phase: status.phase.unwrap_or(HookPhase::Pending),
            approved: notes.get(annotation::APPROVE).is_some_and(|value| value == "true"),
            created,
            ended: ended.unwrap_or(created),
            deleting: meta.deletion_timestamp.is_some(),
            finishes: label(annotation::DELETE_GUARD).is_some_and(|value| value == annotation::FINISH),
            progress: progress(status),
        })
    }

    /// True when the controller created it for the deletion of this very pod. `controller`: the uid of the pod's
    /// controller.
    pub(super) fn is_of(&self, pod: &Pod, controller: Option<&str>) -> bool {
        let [(kind, name, uid)] = self.owners.as_slice() else { return false };
        let here = self.node == pod.node;
        self.pod_uid == pod.uid
            && match &self.owner {
                AttemptOwner::Guard { template, retry, number } => {
                    here && (kind.as_str(), name, uid) == ("Pod", &pod.name, &pod.uid)
                        && self.name == run_name(pod, template, retry, *number)
                }
                // Without a node, the controller runs it.
                AttemptOwner::Workload => (here || self.node.is_none()) && controller == Some(uid.as_str()),
            }
    }

    /// True when the guard itself created it.
    pub fn is_guards(&self) -> bool {
        matches!(self.owner, AttemptOwner::Guard { .. })
    }

    /// True when it releases the pod.
    pub fn has_passed(&self) -> bool {
        self.approved || self.phase == HookPhase::Successful
    }
}

fn key(template: &str, retry: &str, number: u32) -> String {
    format!("{GUARD}/{template}/{retry}/{number}")
}

/// `DeleteGuard/TEMPLATE/RETRY/NUMBER`, or `ScaleIn/...` and `Recreate/...` of a workload.
fn attempt_owner(key: &str) -> Option<AttemptOwner> {
    let mut parts = key.split('/');
    match parts.next()? {
        GUARD => {
            let (template, retry) = (parts.next()?.to_owned(), parts.next()?.to_owned());
            Some(AttemptOwner::Guard { template, retry, number: parts.next()?.parse().ok()? })
        }
        "ScaleIn" | "Recreate" => Some(AttemptOwner::Workload),
        _ => None,
    }
}

/// The form of the retry annotation's value in names; empty without the annotation.
pub(super) fn retry(value: Option<&str>) -> String {
    value.map(name::safe_hash).unwrap_or_default()
}

/// The label value that selects the attempts of a pod: the same as for a workload's own hooks.
pub(super) fn instance(pod: &Pod) -> String {
    name::bounded(&pod.instance, name::LABEL)
}

/// The name of the run of one attempt: the same on every replica.
fn run_name(pod: &Pod, template: &str, retry: &str, number: u32) -> String {
    let uid: String = pod.uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    let retried = if retry.is_empty() { String::new() } else { format!("-{retry}") };
    let whole = format!("pre-delete-hook-{}-{uid}-{template}{retried}-{number}", pod.name);
    name::bounded(&whole, name::NAME)
}

/// The run of one attempt.
pub(super) fn run(namespace: &str, pod: &Pod, hook: &WorkloadHook, retry: &str, number: u32) -> NewHookRun {
    let template = &hook.template_name;
    let mut args = hooks::given(hook);
    args.extend(hooks::injected(namespace, pod));
    NewHookRun {
        name: run_name(pod, template, retry, number),
        kind: HookType::PreDelete,
        template: template.clone(),
        args,
        labels: BTreeMap::from([
            (annotation::HOOK_TYPE.to_owned(), annotation::PRE_DELETE.to_owned()),
            (workload_key::HOOK_INSTANCE.to_owned(), instance(pod)),
        ]),
        annotations: workload_key::task_annotations(&key(template, retry, number))
            .into_iter()
            .chain([(workload_key::HOOK_POD.to_owned(), pod.uid.clone())])
            .collect(),
        node: pod.node.clone(),
    }
}

/// The same run under another number: the next one, or `number`. `None`: it is not a run of the guard.
pub fn renumbered(pod: &core::Pod, run: &NewHookRun, number: Option<u32>) -> Option<NewHookRun> {
    let AttemptOwner::Guard { template, retry, number: last } =
        attempt_owner(workload_key::task(&run.annotations)?)?
    else {
        return None;
    };
    let number = number.unwrap_or(last.saturating_add(1));
    let mut run = run.clone();
    run.name = run_name(&Pod::read(pod), &template, &retry, number);
    run.annotations.extend(workload_key::task_annotations(&key(&template, &retry, number)));
    Some(run)
}

/// The progress of each metric and the hook's message; never a measured value.
fn progress(status: &HookRunStatus) -> String {
    let metric = |result: &MetricResult| {
        let MetricResult { name, phase, successful, failed, inconclusive, error, .. } = result;
        let other = if inconclusive + error == 0 {
            String::new()
        } else {
            format!(", {inconclusive} neither, {error} not measurable")
        };
        format!("{name} {phase:?}: {successful} successful, {failed} failed{other}")
    };
    let mut reported: Vec<_> = status.metric_results.iter().take(METRICS_REPORTED).map(metric).collect();
    if !status.message.is_empty() {
        let mut end = MAX_MESSAGE_BYTES.min(status.message.len());
        while !status.message.is_char_boundary(end) {
            end -= 1;
        }
        reported.push(status.message[..end].to_owned());
    }
    if reported.is_empty() { "nothing measured yet".to_owned() } else { reported.join("; ") }
}
