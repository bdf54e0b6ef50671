//! What is a violation: decisions over the records of a run, which come from the Kubernetes API and from the CRI of both
//! nodes. Knows nothing of the program under test but the meaning of its statuses. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use inplace::api::status::Phase;

use super::{
    excuse::explanation,
    history::{DeleteCall, Ended, FaultSpan, GuardedDeletion, History, Instance, Last, SECOND, Settled},
    plan::{Fault, Operation as Op, Part},
};

/// How long a pod may take until its sandbox has its final form, if the runtime dies meanwhile.
const CREATION: i64 = 30 * SECOND;
/// How many more instances one fault of the runtime may cause.
const AGAIN: usize = 2;
/// The instances of an operation that has failed: the new one three times, if the kubelet starts it again, and the old one.
const MOST_OF_FAILED: usize = 4;
/// How the message of a request that has failed says that it has changed nothing: after it began, and before.
const UNTOUCHED: [&str; 2] = ["The running containers were not touched", "Nothing was touched"];

/// Pairs of containers of one name in one pod that ran at the same time, by the runtime's own times. Fences and standbys
/// have names of their own.
pub(super) fn duplicates(history: &History) -> BTreeSet<String> {
    let mut groups: BTreeMap<_, Vec<&Instance>> = BTreeMap::new();
    for instance in history.instances.values().filter(|instance| !instance.is_fence) {
        groups.entry((&instance.uid, &instance.name)).or_default().push(instance);
    }
    let mut found = BTreeSet::new();
    for ((uid, name), mut instances) in groups {
        instances.sort_by_key(|instance| (instance.started_at, instance.id.clone()));
        for (index, one) in instances.iter().enumerate() {
            for other in &instances[index + 1..] {
                let (Some(a), Some(b)) = (one.ran(), other.ran()) else { continue };
                if a.0 < b.1 && b.0 < a.1 {
                    found.insert(format!(
                        "two running containers {name} in pod {uid}: {} (attempt {}, {} to {}) and {} (attempt {}, {} to {})",
                        one.id, one.attempt, a.0, end(a.1), other.id, other.attempt, b.0, end(b.1)
                    ));
                }
            }
        }
    }
    found
}

fn end(at: i64) -> String {
    if at == i64::MAX { "now".to_owned() } else { at.to_string() }
}

/// Pods that got another sandbox, although their node was not rebooted.
pub(super) fn replaced_sandboxes(history: &History, faults: &[FaultSpan]) -> BTreeSet<String> {
    let mut pods: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for sandbox in history.sandboxes.values() {
        pods.entry(&sandbox.uid).or_default().push(sandbox);
    }
    let mut found = BTreeSet::new();
    for (uid, mut sandboxes) in pods {
        sandboxes.sort_by_key(|sandbox| sandbox.created_at);
        for pair in sandboxes.windows(2) {
            let [old, new] = pair else { continue };
            if !may_replace_sandbox(faults, new.node, old.created_at, new.created_at) {
                found.insert(format!(
                    "pod {} ({uid}) has another sandbox: {} after {}",
                    new.pod, new.id, old.id
                ));
            }
        }
    }
    found
}

/// A sandbox ends with its node. While a pod is created, a kubelet that cannot finish its sandbox makes another one.
fn may_replace_sandbox(faults: &[FaultSpan], node: usize, from: i64, to: i64) -> bool {
    faults.iter().any(|span| {
        span.node == node
            && span.overlaps(from - SECOND, to)
            && matches!(
                span.fault,
                Fault::Reboot | Fault::Kill(Part::Containerd) | Fault::Stop(Part::Containerd)
            )
            && (span.fault == Fault::Reboot || to - from < CREATION)
    })
}

/// What is wrong with an operation that has ended.
pub(super) fn wrong_end(ended: &Ended, faults: &[FaultSpan]) -> Option<String> {
    let describe = |what: &str| {
        let Ended { operation, pod, id, phase, reason, message, started, images, .. } = ended;
        Some(format!(
            "{operation:?} {id} on {pod}: {what}; {phase:?} {reason} {message:?}, {started} started, {images:?}"
        ))
    };
    if !is_expected(ended) && explanation(ended, faults).is_none() {
        return describe("not the expected end, and no fault explains it");
    }
    let [before, wanted, after] = &ended.images;
    if after != if ended.phase == Phase::Succeeded { wanted } else { before } {
        return describe("not the image that the end implies");
    }
    let lost = runtime_faults(faults, ended.node, ended.asked - SECOND, ended.settled);
    let is_untouched = matches!(ended.phase, Phase::Refused | Phase::Cancelled)
        || UNTOUCHED.iter().any(|text| ended.message.contains(text));
    // One whose end was not seen may have been carried out.
    let is_first_untouched = matches!(ended.first, Some(Phase::Refused | Phase::Cancelled));
    let of_first = usize::from(ended.operation == Op::Replaced && !is_first_untouched);
    let most = AGAIN * lost
        + of_first
        + match ended.phase {
            _ if is_untouched => 0,
            Phase::Succeeded => 1,
            _ => MOST_OF_FAILED,
        };
    match ended.started {
        0 if ended.phase == Phase::Succeeded && lost == 0 => describe("a success without a new instance"),
        started if started > most && is_untouched => describe("a new instance, although nothing was touched"),
        started if started > most => describe("more new instances than the end implies"),
        _ => None,
    }
}

/// What is wrong with the number of instances that a rollout that has succeeded started in a pod.
pub(super) fn wrong_number(started: usize, node: usize, from: i64, to: i64, faults: &[FaultSpan]) -> bool {
    let lost = runtime_faults(faults, node, from - SECOND, to);
    started > 1 + AGAIN * lost || (started == 0 && lost == 0)
}

/// True if the operation has ended as it does without a fault.
pub(super) fn is_expected(ended: &Ended) -> bool {
    expected(ended.operation) == (ended.phase, ended.reason.as_str())
}

/// How the report counts the end: phase, reason, and the fault that explains it.
pub(super) fn end_of(ended: &Ended, faults: &[FaultSpan]) -> String {
    let Ended { phase, reason, .. } = ended;
    match explanation(ended, faults) {
        _ if *phase == Phase::Succeeded => format!("{phase:?}"),
        Some(span) if !is_expected(ended) => format!("{phase:?}/{reason} by {:?}", span.fault),
        _ => format!("{phase:?}/{reason}"),
    }
}

/// How many faults of the node's runtime there were between the two: one that dies during a start loses the instance, and
/// the kubelet makes another one.
fn runtime_faults(faults: &[FaultSpan], node: usize, from: i64, to: i64) -> usize {
    let is_runtime = |span: &&FaultSpan| {
        matches!(
            span.fault,
            Fault::Reboot
                | Fault::Kill(Part::Containerd)
                | Fault::Stop(Part::Containerd)
                | Fault::Freeze(Part::Containerd)
        )
    };
    faults.iter().filter(is_runtime).filter(|span| span.node == node && span.overlaps(from, to)).count()
}

/// What is wrong with a pod at the begin of an operation, compared with the end of the one before: it is another pod, or was
/// restarted without a request.
pub(super) fn changed_since(
    pod: &str,
    node: usize,
    last: &Last,
    now: &Settled,
    faults: &[FaultSpan],
) -> Option<String> {
    let old = &last.settled;
    if old.uid != now.uid {
        return Some(format!("{pod} is another pod: {} instead of {}", now.uid, old.uid));
    }
    let may_restart = last.phase == Phase::RolledBack || runtime_faults(faults, node, last.at, i64::MAX) > 0;
    (old.id != now.id && !may_restart)
        .then(|| format!("{pod} was restarted without a request: {} instead of {}", now.id, old.id))
}

/// The end that an operation has without a fault.
fn expected(operation: Op) -> (Phase, &'static str) {
    match operation {
        Op::SwapToCrash => (Phase::RolledBack, "Exited"),
        Op::SwapToMissing => (Phase::Failed, "PullFailed"),
        Op::HookFails => (Phase::Failed, "PreHookFailed"),
        Op::StartFirstCrash => (Phase::Failed, "NotStartedBeside"),
        Op::Unknown => (Phase::Refused, "UnknownContainer"),
        _ => (Phase::Succeeded, ""),
    }
}

/// What is wrong with a deletion under the guard: the hook had not approved when the pod was gone or marked. The time
/// at which a call was made proves nothing: the guard may decide on it later.
pub(super) fn unapproved(deletion: &GuardedDeletion) -> Option<String> {
    let GuardedDeletion { pod, calls, answers } = deletion;
    let deleted = calls.iter().filter_map(DeleteCall::deleted).min()?;
    let approved = answers.iter().any(|(at, approves)| *approves && *at <= deleted);
    (!approved).then(|| {
        format!("{pod} was deleted by {deleted}, although its hook did not approve: {answers:?}, {calls:?}")
    })
}

/// Requests that have ended, by the pod's uid and their id: each ends once.
#[derive(Debug, Default)]
pub(super) struct Ends(BTreeMap<(String, String), Phase>);

impl Ends {
    /// Takes in a status; returns what is wrong with it.
    pub(super) fn fold(&mut self, uid: &str, id: &str, phase: Phase) -> Option<String> {
        let key = (uid.to_owned(), id.to_owned());
        match self.0.get(&key) {
            Some(ended) if *ended != phase => {
                Some(format!("request {id} of pod {uid} had ended as {ended:?}, and is {phase:?} now"))
            }
            Some(_) => None,
            None => {
                if phase.is_terminal() {
                    self.0.insert(key, phase);
                }
                None
            }
        }
    }

    /// How the request ended; `None` if its end was not seen.
    pub(super) fn of(&self, uid: &str, id: &str) -> Option<Phase> {
        self.0.get(&(uid.to_owned(), id.to_owned())).copied()
    }
}

/// True if a request of a client of a pod on that node may fail between the two times: the fault killed the app itself.
pub(super) fn may_be_refused(faults: &[FaultSpan], node: usize, from: i64, to: i64) -> bool {
    faults
        .iter()
        .any(|span| span.fault == Fault::Reboot && span.node == node && span.overlaps(from - SECOND, to))
}

/// What must not be left when nothing is in progress.
pub(super) fn left(history: &History) -> Vec<String> {
    let is_left = |one: &&Instance| one.gone.is_none() && (one.is_fence || one.is_standby || one.is_created);
    let kind = |one: &Instance| match (one.is_fence, one.is_standby) {
        (true, _) => "fence",
        (_, true) => "standby",
        _ => "container that never started",
    };
    let line = |one: &Instance| format!("a {} {} ({}) in pod {}", kind(one), one.id, one.name, one.uid);
    history.instances.values().filter(is_left).map(line).collect()
}

#[cfg(test)]
#[path = "checker_tests.rs"]
mod tests;
