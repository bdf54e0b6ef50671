//! The messages to users who delete a guarded pod: the progress of its hook, and what to do. Decides nothing.

use jiff::Timestamp;

use crate::api::annotation::{DELETE_GUARD, DELETE_GUARD_OVERRIDE, DELETE_GUARD_RETRY, PRE_DELETE_HOOK};
use crate::guard::Attempt;
use crate::podtask::pod::Pod;
use crate::workload::action::NewHookRun;

/// What to do while a deletion is refused only for some time. A client that retries in a loop needs no advice.
const RETRY_ADVICE: &str = "Repeat the deletion after that; a controller repeats it by itself";

pub(super) fn no_hook(namespace: &str, pod: &Pod) -> String {
    let name = &pod.name;
    format!(
        "pod {name} is guarded (label {DELETE_GUARD}), but no pre-delete hook is configured for it: name a HookTemplate \
         with `kubectl -n {namespace} annotate pod {name} {PRE_DELETE_HOOK}=TEMPLATE`, or remove the guard with `kubectl -n \
         {namespace} label pod {name} {DELETE_GUARD}-`"
    )
}

/// The message when a run was created just now.
pub fn started(pod: &str, run: &NewHookRun, why: Option<&str>) -> String {
    let why = why.map(|why| format!(" {why}.")).unwrap_or_default();
    format!(
        "pod {pod} is guarded: its pre-delete hook was started as HookRun {}.{why} {RETRY_ADVICE}",
        run.name
    )
}

/// The message for a dry run, which creates no run.
pub fn would_start(pod: &str, run: &NewHookRun, why: Option<&str>) -> String {
    let why = why.map(|why| format!(" {why}.")).unwrap_or_default();
    format!(
        "pod {pod} is guarded: without the dry run its pre-delete hook would be started as HookRun {}, and the \
         deletion would be refused until it has succeeded.{why}",
        run.name
    )
}

/// The message when the pod under review was replaced by another pod of the same name.
pub fn replaced(pod: &str) -> String {
    format!(
        "pod {pod} was replaced by another pod of the same name. Check the new pod, and repeat the deletion if it is meant"
    )
}

/// The message for a review without the pod's uid, which an API server always sends.
pub fn unnamed(pod: &str) -> String {
    format!("the deletion of pod {pod} is refused: the admission review does not contain the uid of the pod")
}

/// The message when another client created a run under the guard's name.
pub fn taken(run: &str, instead: &str) -> String {
    format!(
        "HookRun {run} was not created by the controller for this pod and is ignored: HookRun {instead} is used instead"
    )
}

pub(super) fn running(pod: &Pod, attempt: &Attempt) -> String {
    let Attempt { name, phase, progress, created, .. } = attempt;
    format!(
        "pod {} is guarded and cannot be deleted before its pre-delete hook has succeeded: HookRun {name} is {phase:?} \
         since {} ({progress}). {RETRY_ADVICE}",
        pod.name,
        seconds(*created)
    )
}

pub(super) fn failed(namespace: &str, pod: &Pod, attempt: &Attempt) -> String {
    let Attempt { name, phase, progress, ended, .. } = attempt;
    format!(
        "pod {0} is guarded and its pre-delete hook has not succeeded: HookRun {name} is {phase:?} since {1} ({progress}). \
         Fix the cause, then run the hook again with `kubectl -n {namespace} annotate pod {0} --overwrite \
         {DELETE_GUARD_RETRY}=ANOTHER-VALUE`; to allow the deletion without the hook, `kubectl -n {namespace} annotate pod {0} \
         {DELETE_GUARD_OVERRIDE}=REASON`",
        pod.name,
        seconds(*ended)
    )
}

pub(super) fn expired(attempt: &Attempt) -> String {
    format!(
        "HookRun {} has succeeded at {}, too long ago to count, so the hook runs again",
        attempt.name,
        seconds(attempt.ended)
    )
}

pub(super) fn run_deleting(pod: &Pod, run: &str) -> String {
    format!("pod {} is guarded, and its HookRun {run} is being deleted. {RETRY_ADVICE}", pod.name)
}

pub(super) fn terminating(namespace: &str, pod: &Pod) -> String {
    format!(
        "pod {0} is guarded, and its pre-delete hook cannot be started because namespace {namespace} is being deleted: to \
         allow the deletion of its pods without their hooks, `kubectl annotate namespace {namespace} {DELETE_GUARD_OVERRIDE}=REASON`; for this \
         pod alone, `kubectl -n {namespace} annotate pod {0} {DELETE_GUARD_OVERRIDE}=REASON`",
        pod.name
    )
}

fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
