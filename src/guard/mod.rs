//! The delete guard: decides whether a guarded pod may be deleted or evicted now, and if not, why and what the user
//! can do.
//!
//! A pod is released only when its hook has succeeded, a person overrides the guard, or the longest hold has passed.
//! The guard has no state of its own: its attempts are HookRuns, and the same input gives the same decision on every
//! replica.

mod attempt;
mod messages;
mod taint;
#[cfg(test)]
mod tests;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::annotation;
use crate::api::hook_run::{HookPhase, HookRunStatus};
use crate::api::workload::WorkloadHook;
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::time::later;
use crate::workload::action::NewHookRun;

pub use attempt::{Attempt, renumbered};
pub use messages::{replaced, started, taken, unnamed, would_start};
pub use taint::is_evicted;

/// How long the success of a hook is valid: what the hook prepared may not be true later.
pub const FRESH: SignedDuration = SignedDuration::from_mins(10);
/// Annotation on the API server's copy of a static pod, which its kubelet reads from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The input of a decision about one guarded pod.
#[derive(Clone, Debug)]
pub struct GuardInput<'a> {
    /// The pod to be deleted.
    pub pod: &'a core::Pod,
    /// The pre-delete hook of the `GameDeployment` or `GameStatefulSet` that controls the pod.
    pub of_owner: Option<WorkloadHook>,
    /// The pre-delete hooks so far, of this pod and possibly of others.
    pub attempts: Vec<Attempt>,
    /// The pod's namespace.
    pub namespace: Namespace,
    /// Longest time for which a deletion is refused; absent: until the hook has succeeded.
    pub longest_hold: Option<SignedDuration>,
    /// The time of the decision.
    pub now: Timestamp,
}

/// What a decision depends on in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// The reason of an override for all pods of the namespace.
    pub overridden: Option<String>,
    /// Since when the namespace is being deleted: no object can be created in it.
    pub terminating: Option<Timestamp>,
    /// True when the namespace has the guard's own label.
    pub labelled: bool,
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The pod may be deleted: this HookRun succeeded at this time.
    Passed(String, Timestamp),
    /// The pod may be deleted without its hook: a person overrides the guard on this object, for this reason.
    Overridden(&'static str, String),
    /// The pod may be deleted without its hook: it has been held since then, which is the longest hold.
    Expired(Timestamp),
    /// The pod may not be deleted yet; the sentence says why and what to do. With the attempt that is running, if
    /// any.
    Held(Option<Box<Attempt>>, String),
    /// The pod may not be deleted yet: this run has to be created first. With the reason why it is not the first run,
    /// if so.
    StartHook(Box<NewHookRun>, Option<String>),
}

/// True when the guard decides about this pod at all. A pod that has ended, was never scheduled or has never run a
/// container has nothing to prepare. A pod that is already being deleted cannot be kept any more. A static pod is
/// controlled by its file, not by this copy.
pub fn is_guarded(pod: &core::Pod) -> bool {
    let meta = &pod.metadata;
    let guarded = meta.labels.as_ref().and_then(|all| all.get(annotation::DELETE_GUARD));
    let mirror = note(pod, MIRROR).is_some();
    let read = Pod::read(pod);
    let over = read.has_ended();
    let deleting = read.is_deleting();
    let placed = read.node.is_some_and(|node| !node.is_empty());
    let label = guarded.is_some_and(|value| value == "true");
    label && !mirror && !deleting && !over && placed && !has_never_run(pod, read.phase)
}

/// True when the kubelet reports the containers of the pod, and none of them has ever run, for example because an image
/// cannot be pulled: no hook could reach it.
fn has_never_run(pod: &core::Pod, phase: PodPhase) -> bool {
    let status = pod.status.iter();
    let lists = status.flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
    let mut reported = lists.flatten().flatten().peekable();
    let is_new = |container: &core::ContainerStatus| {
        let waits = container.state.as_ref().is_some_and(|state| state.waiting.is_some());
        let has_ended = container.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
        waits && !has_ended && container.restart_count == 0
    };
    phase == PodPhase::Pending && reported.peek().is_some() && reported.all(is_new)
}

/// Kind and name of the `GameDeployment` or `GameStatefulSet` that controls a pod, unless the pod names its hook
/// itself.
pub fn owner(pod: &core::Pod) -> Option<(&str, &str)> {
    if note(pod, annotation::PRE_DELETE_HOOK).is_some() {
        return None;
    }
    let owners = pod.metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    let ours = owner.api_version.starts_with("tkex.tencent.com/")
        && matches!(owner.kind.as_str(), "GameDeployment" | "GameStatefulSet");
    ours.then_some((owner.kind.as_str(), owner.name.as_str()))
}

/// Decides about a pod that [`is_guarded`].
pub fn decide(input: &GuardInput<'_>) -> Verdict {
    let verdict = by_hook(input);
    let over =
        |since: &Timestamp| input.longest_hold.is_some_and(|longest| later(*since, longest) <= input.now);
    match verdict {
        Verdict::Held(..) | Verdict::StartHook(..) => {
            held_since(input).filter(over).map_or(verdict, Verdict::Expired)
        }
        free => free,
    }
}

/// Since when the deletion of the pod is refused: the earliest of the first refusal of this deletion, the creation of
/// its first hook, and the deletion of its namespace.
fn held_since(input: &GuardInput<'_>) -> Option<Timestamp> {
    let pod = Pod::read(input.pod);
    let own = || input.attempts.iter().filter(|attempt| attempt.is_of(&pod, controller(input.pod)));
    let passed = own().filter(|attempt| attempt.has_passed()).map(|attempt| attempt.created).max();
    let counts = |attempt: &&Attempt| passed.is_none_or(|passed| attempt.created > passed);
    let asked = own().filter(counts).map(|attempt| attempt.created).min();
    [asked, refused_since(input), input.namespace.terminating].into_iter().flatten().min()
}

/// Since when this deletion is refused, from the condition that the controller wrote. A refusal before a hook passed
/// belongs to an earlier deletion.
fn refused_since(input: &GuardInput<'_>) -> Option<Timestamp> {
    let conditions = input.pod.status.as_ref()?.conditions.as_ref()?;
    let held = conditions.iter().find(|condition| condition.type_ == annotation::DELETE_GUARD_HELD)?;
    let since = held.last_transition_time.as_ref()?.0;
    let pod = Pod::read(input.pod);
    let own = input.attempts.iter().filter(|attempt| attempt.is_of(&pod, controller(input.pod)));
    let passed = own.filter(|attempt| attempt.has_passed()).map(|attempt| attempt.ended).max();
    (held.status == "True" && passed.is_none_or(|passed| since > passed)).then_some(since)
}

/// True when this refusal is the first one of a deletion: the hold begins here, whether or not a hook can be started.
pub fn begins(input: &GuardInput<'_>, verdict: &Verdict) -> bool {
    let refuses = matches!(verdict, Verdict::Held(..) | Verdict::StartHook(..));
    input.longest_hold.is_some() && refuses && refused_since(input).is_none()
}

/// The guard's attempt in the HookRun with `meta`, if it belongs to this pod.
pub fn attempt(pod: &core::Pod, meta: &ObjectMeta, status: &HookRunStatus) -> Option<Attempt> {
    let of_pod = |attempt: &Attempt| attempt.is_guards() && attempt.is_of(&Pod::read(pod), None);
    Attempt::read(meta, status).filter(of_pod)
}

/// The uid of a pod's controller.
fn controller(pod: &core::Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

fn by_hook(input: &GuardInput<'_>) -> Verdict {
    let pod = Pod::read(input.pod);
    let namespace = input.pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(reason) = note(input.pod, annotation::DELETE_GUARD_OVERRIDE) {
        return Verdict::Overridden("pod", reason.to_owned());
    }
    if let Some(reason) = &input.namespace.overridden {
        return Verdict::Overridden("namespace", reason.clone());
    }
    let named = note(input.pod, annotation::PRE_DELETE_HOOK);
    let named = named.map(|name| WorkloadHook { template_name: name.to_owned(), args: Vec::new() });
    let by_owner = named.is_none();
    let Some(hook) = named.or_else(|| input.of_owner.clone()) else {
        return Verdict::Held(None, messages::no_hook(namespace, &pod));
    };
    let about = |attempt: &&Attempt| {
        attempt.is_of(&pod, controller(input.pod))
            && match &attempt.owner {
                attempt::AttemptOwner::Guard { template, .. } => *template == hook.template_name,
                // The run that the workload's own controller created to delete this pod: the hook is not run twice.
                attempt::AttemptOwner::Workload => by_owner,
            }
    };
    let (leaving, attempts): (Vec<_>, Vec<_>) =
        input.attempts.iter().filter(about).partition(|attempt| attempt.deleting);
    let fresh = |attempt: &&&Attempt| attempt.has_passed() && !is_stale(attempt, input.now);
    if let Some(passed) = attempts.iter().find(fresh) {
        return Verdict::Passed(passed.name.clone(), passed.ended);
    }
    let going = |attempt: &&&Attempt| !attempt.has_passed() && !attempt.phase.is_completed();
    if let Some(going) = attempts.iter().find(going) {
        return Verdict::Held(Some(Box::new((*going).clone())), messages::running(&pod, going));
    }
    let retry = attempt::retry(note(input.pod, annotation::DELETE_GUARD_RETRY));
    let numbered = attempts.iter().filter_map(|attempt| match &attempt.owner {
        attempt::AttemptOwner::Guard { retry: of, number, .. } if *of == retry => Some((*number, attempt)),
        _ => None,
    });
    let (number, why) = match numbered.max_by_key(|(number, _)| *number) {
        None => (1, None),
        Some((number, last)) if last.has_passed() => (number + 1, Some(messages::expired(last))),
        Some((_, last)) => return Verdict::Held(None, messages::failed(namespace, &pod, last)),
    };
    if input.namespace.terminating.is_some() {
        return Verdict::Held(None, messages::terminating(namespace, &pod));
    }
    let run = attempt::run(namespace, &pod, &hook, &retry, number);
    if leaving.iter().any(|attempt| attempt.name == run.name) {
        return Verdict::Held(None, messages::run_deleting(&pod, &run.name));
    }
    Verdict::StartHook(Box::new(run), why)
}

/// The label value that selects the attempts of a pod.
pub fn instance(pod: &core::Pod) -> String {
    attempt::instance(&Pod::read(pod))
}

/// The message that no object can be created in a namespace that is being deleted, as [`decide`] gives it when this
/// is cached.
pub fn terminating(pod: &core::Pod) -> String {
    messages::terminating(pod.metadata.namespace.as_deref().unwrap_or_default(), &Pod::read(pod))
}

/// An approval by a person does not expire for this pod.
fn is_stale(attempt: &Attempt, now: Timestamp) -> bool {
    attempt.phase == HookPhase::Successful && !attempt.approved && later(attempt.ended, FRESH) <= now
}

/// An annotation that is not empty.
fn note<'a>(pod: &'a core::Pod, key: &str) -> Option<&'a str> {
    let value = pod.metadata.annotations.as_ref()?.get(key)?.trim();
    (!value.is_empty()).then_some(value)
}
