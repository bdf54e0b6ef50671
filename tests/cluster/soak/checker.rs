//! What is a violation: decisions over the records of a run, which come from the Kubernetes API and from the CRI of both
//! nodes. Knows nothing of the program under test but the meaning of its statuses. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use inplace::api::status::Phase;

use super::{
    history::{Ended, FaultSpan, History, Instance, SECOND},
    plan::{Fault, Operation as Op, Part},
};

/// How long after a fault its effects may still be felt.
pub(super) const AFTERMATH: i64 = 30 * SECOND;

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
            && (span.fault == Fault::Reboot || to - from < AFTERMATH)
    })
}

/// What is wrong with an operation that has ended.
pub(super) fn wrong_end(ended: &Ended, faults: &[FaultSpan]) -> Option<String> {
    let is_disturbed =
        faults.iter().any(|span| span.disturbs(ended.node, ended.asked - AFTERMATH, ended.ended));
    let describe = |what: &str| {
        let Ended { operation, pod, id, phase, reason, message, started, images, .. } = ended;
        Some(format!(
            "{operation:?} {id} on {pod}: {what}; {phase:?} {reason} {message:?}, {started} started, {images:?}"
        ))
    };
    let is_expected = expected(ended.operation).contains(&ended.phase);
    let may_fail = is_disturbed && matches!(ended.phase, Phase::Failed | Phase::RolledBack);
    if !is_expected && !may_fail {
        return describe(if is_disturbed { "an end that no fault explains" } else { "not the expected end" });
    }
    let [before, wanted, after] = &ended.images;
    if after != if ended.phase == Phase::Succeeded { wanted } else { before } {
        return describe("not the image that the end implies");
    }
    let is_runtime_disturbed = runtime_disturbed(faults, ended.node, ended.asked - SECOND, ended.settled);
    let is_untouched = matches!(ended.phase, Phase::Refused | Phase::Cancelled)
        || ended.message.contains("The running containers were not touched");
    match (ended.phase, ended.started) {
        (Phase::Succeeded, 1) => None,
        (Phase::Succeeded, 2) if ended.operation == Op::Replaced => None,
        (Phase::Succeeded, _) if is_runtime_disturbed => None,
        (Phase::Succeeded, 0) => describe("a success without a new instance"),
        (Phase::Succeeded, _) => describe("more than one new instance"),
        (_, 0) => None,
        (_, _) if is_untouched && !is_runtime_disturbed => {
            describe("a new instance, although nothing was touched")
        }
        _ => None,
    }
}

/// True if the runtime of the node was disturbed between the two: one that dies during a start loses the instance, and
/// the kubelet makes another one.
fn runtime_disturbed(faults: &[FaultSpan], node: usize, from: i64, to: i64) -> bool {
    faults.iter().any(|span| {
        let is_runtime = matches!(
            span.fault,
            Fault::Reboot
                | Fault::Kill(Part::Containerd)
                | Fault::Stop(Part::Containerd)
                | Fault::Freeze(Part::Containerd)
        );
        is_runtime && span.node == node && span.overlaps(from, to)
    })
}

/// True if a container may be restarted without a request since that time, at which an operation had ended: its node was
/// rebooted, its runtime was disturbed, or the kubelet has not seen yet that an image was rolled back.
pub(super) fn may_restart(phase: Phase, node: usize, since: i64, faults: &[FaultSpan]) -> bool {
    phase == Phase::RolledBack || runtime_disturbed(faults, node, since, i64::MAX)
}

/// The ends that an operation may have without a fault.
fn expected(operation: Op) -> &'static [Phase] {
    match operation {
        Op::SwapToCrash => &[Phase::RolledBack],
        Op::SwapToMissing | Op::HookFails | Op::StartFirstCrash => &[Phase::Failed],
        Op::Unknown => &[Phase::Refused],
        _ => &[Phase::Succeeded],
    }
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
}

/// True if a request of a client of a pod on that node may fail: the fault killed the app itself.
pub(super) fn may_be_refused(faults: &[FaultSpan], node: usize, at: i64) -> bool {
    faults
        .iter()
        .any(|span| span.fault == Fault::Reboot && span.node == node && span.overlaps(at - SECOND, at))
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
