//! Recognises a new instance that its kubelet ended because a probe of it was due before its start. The replacement
//! then continues with the next instance. It must not excuse an instance that ended for another reason.
//!
//! A kubelet that observes the new instance between its creation and its start reports it as not running until it
//! observes the runtime again, about a second later. A liveness or startup probe that is due in that time counts as
//! failed without being run, and the kubelet ends the instance soon after its start (`doProbe` in
//! pkg/kubelet/prober/worker.go, `computePodActions` in pkg/kubelet/kuberuntime).

use jiff::SignedDuration;

use crate::operation::note::{Note, Overtaking};
use crate::operation::respec::cut_short;
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{Operation, Target, later, seconds};

/// How long such a kubelet may take after the start until it begins to end the instance.
const KUBELET_ACTS_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The minimum time that an instance whose kubelet may end it is observed.
pub(super) const PROBED_SETTLES: SignedDuration = SignedDuration::from_secs(3);
/// How many instances of one replacement may end like this. Neither the exit code nor the time says who ended an
/// instance: one that ends by itself after such a report is replaced as well, as often as this. A start that takes longer than the period of the probe
/// is observed in every attempt.
const MAX_ENDED: u32 = 3;

/// How long an instance is observed whose kubelet has reported it as not started: until that kubelet has begun to end it, and
/// beside a standby until the instance has ended. It can be Ready up to that moment, and the standby must not stop before.
pub(super) fn settles(target: &Target, has_standby: bool) -> SignedDuration {
    let ends = if has_standby { seconds(target.grace_seconds) } else { SignedDuration::ZERO };
    PROBED_SETTLES.saturating_add(ends)
}

/// Notes that the kubelet stopped the new instance of `target` although its image is not the reason.
pub(super) fn stopped_by_kubelet(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
) -> Option<Note> {
    cut_short(operation, target, snapshot).or_else(|| probed_too_early(operation, target, snapshot))
}

/// Notes that the kubelet has reported the new instance of `target` as not started, and later that the kubelet has
/// ended it because of that. `None` for a container without a liveness or startup probe.
fn probed_too_early(operation: &Operation, target: &Target, snapshot: &Snapshot) -> Option<Note> {
    let replacement = target.replacement();
    let declared = snapshot.declared.as_ref()?.container(&target.name)?;
    // An instance that was accepted ends for another reason.
    let is_accepted = target.reached.as_ref().is_some_and(|reached| reached.ready_at.is_some());
    let has_probe = declared.liveness.is_some() || declared.has_startup_probe;
    if operation.unsupervised || is_accepted || !has_probe {
        return None;
    }
    let made = |instance: &&Container| instance.attempt == replacement.attempt && operation.made(instance);
    let new = snapshot.instances(&target.name).into_iter().find(made)?;
    let started_at = new.started_at?;
    if !replacement.reported_unstarted {
        let is_reported = declared.unstarted && declared.container_id.as_deref() == Some(&new.id);
        return is_reported.then(|| Note::ReportedUnstarted(target.name.clone()));
    }
    let until = later(later(started_at, KUBELET_ACTS_WITHIN), seconds(target.grace_seconds));
    let ended = new.state == State::Exited && new.finished_at.is_some_and(|ended| ended < until);
    (ended && replacement.ended_by_probe < MAX_ENDED).then(|| Note::Overtaken {
        name: target.name.clone(),
        replaces: new.id.clone(),
        attempt: new.attempt.saturating_add(1),
        by: Overtaking::Probe,
    })
}

#[cfg(test)]
mod tests;
