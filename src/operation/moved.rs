//! A pod whose sandbox ends in mid-operation: after a reboot, or a crash of the sandbox, its kubelet makes another one and
//! starts every container in it. That ends what was under way, and may well be what was asked for.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::Action;
use crate::operation::answer::{Next, Waiting};
use crate::operation::effect::Leftover;
use crate::operation::end::never_started;
use crate::operation::note::Note;
use crate::operation::replace::remove;
use crate::operation::snapshot::{Container, Sandbox, Snapshot};
use crate::operation::state::{Operation, Target, later};

/// How soon to look again.
const REQUEUE: SignedDuration = SignedDuration::from_millis(250);

/// What follows when the pod's sandbox is not the one from before, or does not run. A container that was touched counts as
/// restarted once it runs in the new one, and as swapped once it runs there from the image that was asked for. Nothing is
/// created there.
pub(super) fn moved(operation: &Operation, sandbox: &Sandbox, snapshot: &Snapshot, now: Timestamp) -> Next {
    let is_another = sandbox.id != operation.sandbox_id;
    let what = if is_another { "another one" } else { "not ready" };
    let follows = operation.touched() && operation.in_cluster && sandbox.owner.is_kubelet();
    if !follows || now >= operation.deadline_at {
        return Next::Note(Note::End(operation.lost(what)));
    }
    // Their names may be the ones that the kubelet takes next.
    for target in &operation.targets {
        let fence = snapshot.fences(&target.name).find(|fence| operation.can_remove(&fence.id));
        if let Some(fence) = fence {
            return Next::Do(remove(fence, Leftover::Fence));
        }
        if let Some(instance) = never_started(operation, &snapshot.instances(&target.name)) {
            return Next::Do(remove(instance, Leftover::NeverStarted));
        }
    }
    let mut instances: Vec<Container> = Vec::new();
    for target in operation.targets.iter().filter(|_| is_another && sandbox.ready) {
        match snapshot.running(&target.name).last() {
            Some(instance) if has_arrived(operation, target, instance) => instances.push((*instance).clone()),
            // Its kubelet does not replace what it has started from the spec as it is.
            Some(_) if !target.touched => return Next::Note(Note::End(operation.lost(what))),
            _ => {}
        }
    }
    if instances.len() == operation.targets.len() {
        return Next::Note(Note::Moved(sandbox.id.clone(), instances));
    }
    let on = "the kubelet to start the containers in a new sandbox".to_owned();
    Next::Wait(Waiting { until: later(now, REQUEUE).min(operation.deadline_at), on })
}

/// Whether `instance` is what `target` was to come to.
fn has_arrived(operation: &Operation, target: &Target, instance: &Container) -> bool {
    match (target.action, &operation.turned_back) {
        (Action::Restart, _) => true,
        (Action::Swap, Some(_)) => instance.image_id == target.from.image_id,
        (Action::Swap, None) => target.pulled.as_ref().is_some_and(|pulled| pulled.id == instance.image_id),
    }
}
