//! The delete guard: whether a guarded pod may be deleted or evicted now, and if not, why and what to do.
//!
//! Graceful or not at all: only a hook that has succeeded, or a person's word, lets it go. Nothing is remembered: the
//! attempts are HookRuns, and the same look gives the same decision, whoever looks.

mod attempt;
mod taint;
#[cfg(test)]
mod tests;
mod words;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::annotation;
use crate::api::hook_run::{HookPhase, HookRunStatus};
use crate::api::workload::WorkloadHook;
use crate::workload::action::NewHookRun;
use crate::workload::pods::{Pod, PodPhase};
use crate::workload::task::later;

pub use attempt::{Attempt, renumbered};
pub use taint::is_evicted;
pub use words::{asked, replaced, taken, unnamed, would_ask};

/// An approval holds for so long: what was prepared then need not be true later.
pub const FRESH: SignedDuration = SignedDuration::from_mins(10);
/// On the API server's copy of a pod that a kubelet has from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What is known when somebody wants a guarded pod to go.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// The pod.
    pub pod: &'a core::Pod,
    /// The pre-delete hook of the `GameDeployment` or `GameStatefulSet` that controls it.
    pub of_owner: Option<WorkloadHook>,
    /// The pre-delete hooks so far, of this pod and maybe of others.
    pub attempts: Vec<Attempt>,
    /// Its namespace.
    pub namespace: Namespace,
    /// A pod is held for no longer than this; absent: for as long as its hook takes.
    pub longest_hold: Option<SignedDuration>,
    /// The time.
    pub now: Timestamp,
}

/// What counts of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// Why all its pods may go without their hooks.
    pub overridden: Option<String>,
    /// Since when it is being deleted: nothing can be made in it.
    pub terminating: Option<Timestamp>,
    /// True with the guard's own label on it.
    pub labelled: bool,
}

/// What follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It may go: this HookRun has succeeded, then.
    Passed(String, Timestamp),
    /// It may go without: a person said so, there, for this reason.
    Overridden(&'static str, String),
    /// It may go without: it was held for as long as pods are held at most, since then.
    Expired(Timestamp),
    /// It may not go yet; the sentence says why and what to do. With the attempt that is under way, if one is.
    Held(Option<Box<Attempt>>, String),
    /// It may not go yet: this run has to be made first. Why it is not the first one, if it is not.
    Ask(Box<NewHookRun>, Option<String>),
}

/// True when this pod has to be asked about at all. What has ended or never began has nothing to prepare; what is on its way
/// out already is deleted by its kubelet; a static pod's file decides, not its copy here.
pub fn is_held(pod: &core::Pod) -> bool {
    let meta = &pod.metadata;
    let guarded = meta.labels.as_ref().and_then(|all| all.get(annotation::DELETE_GUARD));
    let mirror = note(pod, MIRROR).is_some();
    let seen = Pod::read(pod);
    let over = matches!(seen.phase, PodPhase::Succeeded | PodPhase::Failed);
    let placed = seen.node.is_some_and(|node| !node.is_empty());
    guarded.is_some_and(|value| value == "true") && !mirror && !seen.deleting && !over && placed
}

/// The kind and the name of the workload of ours that controls a pod whose hook is not named by itself.
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

/// Decides about a pod that [`is_held`].
pub fn decide(seen: &Seen<'_>) -> Verdict {
    let verdict = by_hook(seen);
    let over =
        |since: &Timestamp| seen.longest_hold.is_some_and(|longest| later(*since, longest) <= seen.now);
    match verdict {
        Verdict::Held(..) | Verdict::Ask(..) => {
            held_since(seen).filter(over).map_or(verdict, Verdict::Expired)
        }
        free => free,
    }
}

/// Since when the pod is held: since this deletion was first refused, its first hook was started, or its namespace goes.
fn held_since(seen: &Seen<'_>) -> Option<Timestamp> {
    let pod = Pod::read(seen.pod);
    let own = || seen.attempts.iter().filter(|attempt| attempt.is_of(&pod, controller(seen.pod)));
    let passed = own().filter(|attempt| attempt.has_passed()).map(|attempt| attempt.created).max();
    let counts = |attempt: &&Attempt| passed.is_none_or(|passed| attempt.created > passed);
    let asked = own().filter(counts).map(|attempt| attempt.created).min();
    [asked, refused_since(seen), seen.namespace.terminating].into_iter().flatten().min()
}

/// Since when this deletion is refused, as the controller wrote it. What was before a hook passed was another deletion.
fn refused_since(seen: &Seen<'_>) -> Option<Timestamp> {
    let conditions = seen.pod.status.as_ref()?.conditions.as_ref()?;
    let held = conditions.iter().find(|condition| condition.type_ == annotation::DELETE_GUARD_HELD)?;
    let since = held.last_transition_time.as_ref()?.0;
    let pod = Pod::read(seen.pod);
    let own = seen.attempts.iter().filter(|attempt| attempt.is_of(&pod, controller(seen.pod)));
    let passed = own.filter(|attempt| attempt.has_passed()).map(|attempt| attempt.ended).max();
    (held.status == "True" && passed.is_none_or(|passed| since > passed)).then_some(since)
}

/// True when this refusal is the first one of a deletion: the hold counts from here, whether or not a hook can be started.
pub fn begins(seen: &Seen<'_>, verdict: &Verdict) -> bool {
    let refuses = matches!(verdict, Verdict::Held(..) | Verdict::Ask(..));
    seen.longest_hold.is_some() && refuses && refused_since(seen).is_none()
}

/// The attempt of the guard that the HookRun with `meta` is, if it is one for this very pod.
pub fn attempt(pod: &core::Pod, meta: &ObjectMeta, status: &HookRunStatus) -> Option<Attempt> {
    let of_pod = |attempt: &Attempt| attempt.is_guards() && attempt.is_of(&Pod::read(pod), None);
    Attempt::read(meta, status).filter(of_pod)
}

/// The uid of whoever controls a pod.
fn controller(pod: &core::Pod) -> Option<&str> {
    let owners = pod.metadata.owner_references.as_ref()?;
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

fn by_hook(seen: &Seen<'_>) -> Verdict {
    let pod = Pod::read(seen.pod);
    let namespace = seen.pod.metadata.namespace.as_deref().unwrap_or_default();
    if let Some(reason) = note(seen.pod, annotation::DELETE_GUARD_OVERRIDE) {
        return Verdict::Overridden("pod", reason.to_owned());
    }
    if let Some(reason) = &seen.namespace.overridden {
        return Verdict::Overridden("namespace", reason.clone());
    }
    let named = note(seen.pod, annotation::PRE_DELETE_HOOK);
    let named = named.map(|name| WorkloadHook { template_name: name.to_owned(), args: Vec::new() });
    let by_owner = named.is_none();
    let Some(hook) = named.or_else(|| seen.of_owner.clone()) else {
        return Verdict::Held(None, words::no_hook(namespace, &pod));
    };
    let about = |attempt: &&Attempt| {
        attempt.is_of(&pod, controller(seen.pod))
            && match &attempt.whose {
                attempt::AttemptOwner::Guard { template, .. } => *template == hook.template_name,
                // The one that the workload's own controller made to delete this pod: nobody is asked twice.
                attempt::AttemptOwner::Workload => by_owner,
            }
    };
    let (leaving, attempts): (Vec<_>, Vec<_>) =
        seen.attempts.iter().filter(about).partition(|attempt| attempt.deleting);
    let fresh = |attempt: &&&Attempt| attempt.has_passed() && !is_stale(attempt, seen.now);
    if let Some(passed) = attempts.iter().find(fresh) {
        return Verdict::Passed(passed.name.clone(), passed.ended);
    }
    let going = |attempt: &&&Attempt| !attempt.has_passed() && !attempt.phase.is_completed();
    if let Some(going) = attempts.iter().find(going) {
        return Verdict::Held(Some(Box::new((*going).clone())), words::going(&pod, going));
    }
    let retry = attempt::retry(note(seen.pod, annotation::DELETE_GUARD_RETRY));
    let numbered = attempts.iter().filter_map(|attempt| match &attempt.whose {
        attempt::AttemptOwner::Guard { retry: of, number, .. } if *of == retry => Some((*number, attempt)),
        _ => None,
    });
    let (number, why) = match numbered.max_by_key(|(number, _)| *number) {
        None => (1, None),
        Some((number, last)) if last.has_passed() => (number + 1, Some(words::stale(last))),
        Some((_, last)) => return Verdict::Held(None, words::failed(namespace, &pod, last)),
    };
    if seen.namespace.terminating.is_some() {
        return Verdict::Held(None, words::terminating(namespace, &pod));
    }
    let run = attempt::run(namespace, &pod, &hook, &retry, number);
    if leaving.iter().any(|attempt| attempt.name == run.name) {
        return Verdict::Held(None, words::leaving(&pod, &run.name));
    }
    Verdict::Ask(Box::new(run), why)
}

/// The label by which the attempts of a pod are found.
pub fn instance(pod: &core::Pod) -> String {
    attempt::instance(&Pod::read(pod))
}

/// Says that nothing can be made in a namespace that is being deleted, as [`decide`] does when it is known before.
pub fn terminating(pod: &core::Pod) -> String {
    words::terminating(pod.metadata.namespace.as_deref().unwrap_or_default(), &Pod::read(pod))
}

/// What a person approved stays approved for this pod.
fn is_stale(attempt: &Attempt, now: Timestamp) -> bool {
    attempt.phase == HookPhase::Successful && !attempt.approved && later(attempt.ended, FRESH) <= now
}

/// An annotation that is not empty.
fn note<'a>(pod: &'a core::Pod, key: &str) -> Option<&'a str> {
    let value = pod.metadata.annotations.as_ref()?.get(key)?.trim();
    (!value.is_empty()).then_some(value)
}
