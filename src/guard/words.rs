//! The messages to users who delete a guarded pod: the progress of its hook, and what to do. Decides nothing.

use jiff::Timestamp;

use crate::api::annotation::{DELETE_GUARD, DELETE_GUARD_OVERRIDE, DELETE_GUARD_RETRY, PRE_DELETE_HOOK};
use crate::guard::Attempt;
use crate::podtask::pod::Pod;
use crate::workload::action::NewHookRun;

/// A client that retries in a loop needs no advice.
const AGAIN: &str = "Delete it again then; a controller does so by itself";

pub(super) fn no_hook(namespace: &str, pod: &Pod) -> String {
    let name = &pod.name;
    format!(
        "pod {name} is guarded (label {DELETE_GUARD}), but nothing says which hook it has to pass: name a HookTemplate with \
         `kubectl -n {namespace} annotate pod {name} {PRE_DELETE_HOOK}=TEMPLATE`, or take the guard off with `kubectl -n \
         {namespace} label pod {name} {DELETE_GUARD}-`"
    )
}

/// The message when a run was created just now.
pub fn asked(pod: &str, run: &NewHookRun, why: Option<&str>) -> String {
    let why = why.map(|why| format!(" {why}.")).unwrap_or_default();
    format!("pod {pod} is guarded: its pre-delete hook was started as HookRun {}.{why} {AGAIN}", run.name)
}

/// The message for a dry run, which creates no run.
pub fn would_ask(pod: &str, run: &NewHookRun, why: Option<&str>) -> String {
    let why = why.map(|why| format!(" {why}.")).unwrap_or_default();
    format!(
        "pod {pod} is guarded: without the dry run its pre-delete hook would be started as HookRun {}, and the pod stay \
         until that has succeeded.{why}",
        run.name
    )
}

/// The message when the pod under review was replaced by another pod of the same name.
pub fn replaced(pod: &str) -> String {
    format!(
        "the name {pod} belongs to another pod than the one that was to be deleted. Look at it, and delete it again then"
    )
}

/// The message for a review without the pod's uid, which an API server always sends.
pub fn unnamed(pod: &str) -> String {
    format!("which pod of the name {pod} is to be deleted is not said: the review has no uid of it")
}

/// The message when another client created a run under the guard's name.
pub fn taken(run: &str, instead: &str) -> String {
    format!(
        "HookRun {run} was not made by the controller for this pod, it counts for nothing: {instead} takes its place"
    )
}

pub(super) fn going(pod: &Pod, attempt: &Attempt) -> String {
    let Attempt { name, phase, progress, created, .. } = attempt;
    format!(
        "pod {} is guarded and stays until its pre-delete hook has succeeded: HookRun {name} is {phase:?} since {} \
         ({progress}). {AGAIN}",
        pod.name,
        seconds(*created)
    )
}

pub(super) fn failed(namespace: &str, pod: &Pod, attempt: &Attempt) -> String {
    let Attempt { name, phase, progress, ended, .. } = attempt;
    format!(
        "pod {0} is guarded and its pre-delete hook has not succeeded: HookRun {name} is {phase:?} since {1} ({progress}). \
         When the cause is mended, have it run again with `kubectl -n {namespace} annotate pod {0} --overwrite \
         {DELETE_GUARD_RETRY}=ANOTHER-VALUE`; to let the pod go without it, `kubectl -n {namespace} annotate pod {0} \
         {DELETE_GUARD_OVERRIDE}=REASON`",
        pod.name,
        seconds(*ended)
    )
}

pub(super) fn stale(attempt: &Attempt) -> String {
    format!(
        "What HookRun {} prepared by {} need not be so any more, so it is asked anew",
        attempt.name,
        seconds(attempt.ended)
    )
}

pub(super) fn leaving(pod: &Pod, run: &str) -> String {
    format!("pod {} is guarded, and its HookRun {run} is just being deleted. {AGAIN}", pod.name)
}

pub(super) fn terminating(namespace: &str, pod: &Pod) -> String {
    format!(
        "pod {0} is guarded, and its pre-delete hook cannot be started because namespace {namespace} is being deleted: to let \
         its pods go without their hooks, `kubectl annotate namespace {namespace} {DELETE_GUARD_OVERRIDE}=REASON`; for this \
         pod alone, `kubectl -n {namespace} annotate pod {0} {DELETE_GUARD_OVERRIDE}=REASON`",
        pod.name
    )
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
