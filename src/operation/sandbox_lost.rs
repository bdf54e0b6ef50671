//! Handles a pod whose sandbox ends during an operation. After a reboot or a crash of the sandbox, the
//! kubelet creates a new sandbox and starts every container in it. This ends the operation, and may well be
//! the result that was requested.
//!
//! Decides when such an operation waits, cleans up or ends. It must not create or start anything in the new sandbox.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::{Action, Step};
use crate::operation::decision::{Next, Waiting};
use crate::operation::effect::{Leftover, remove};
use crate::operation::end::never_started;
use crate::operation::note::Note;
use crate::operation::snapshot::{Container, Sandbox, Snapshot};
use crate::operation::state::{Operation, Target, later};

/// The interval between two observations while the new sandbox comes up.
const REQUEUE: SignedDuration = SignedDuration::from_millis(250);

/// Decides the next step when the pod's sandbox is not the operation's, or does not run. A touched
/// container counts as restarted once it runs in the new sandbox, and as swapped once it runs there from the
/// requested image. Nothing is created in the new sandbox.
pub(super) fn sandbox_lost(
    operation: &Operation,
    sandbox: &Sandbox,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Next {
    let is_another = sandbox.id != operation.sandbox_id;
    let what = if is_another { "replaced" } else { "not ready" };
    let follows = operation.touched() && operation.in_cluster && sandbox.owner.is_kubelet();
    if !follows || now >= operation.deadline_at {
        return Next::Note(Note::End(operation.lost(what)));
    }
    // The kubelet may use the same names next.
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
            // The kubelet does not replace a container that it has started from the current spec.
            Some(_) if !target.touched => return Next::Note(Note::End(operation.lost(what))),
            _ => {}
        }
    }
    if instances.len() == operation.targets.len() {
        return Next::Note(Note::Moved(sandbox.id.clone(), instances));
    }
    // There is nothing to measure, and the pod gets another address.
    if operation.step == Step::PostHook {
        return Next::Note(Note::Step(Step::Swap));
    }
    let on = "waiting for the kubelet to start the containers in a new sandbox".to_owned();
    Next::Wait(Waiting { until: later(now, REQUEUE).min(operation.deadline_at), on })
}

/// True when `instance` is the result that `target` was to reach.
fn has_arrived(operation: &Operation, target: &Target, instance: &Container) -> bool {
    match (target.action, &operation.rollback_cause) {
        (Action::Restart, _) => true,
        (Action::Swap, Some(_)) => instance.image_id == target.from.image_id,
        (Action::Swap, None) => target.pulled.as_ref().is_some_and(|pulled| pulled.id == instance.image_id),
    }
}
