//! Handles a pod whose sandbox ends during an operation. After a reboot or a crash of the sandbox, the
//! kubelet creates a new sandbox and starts every container in it. This ends the operation, and may well be
//! the result that was requested.
//!
//! Decides when such an operation waits, cleans up or ends. It must not create or start anything in the new sandbox.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::{Action, Step};
use crate::operation::decision::{Next, Waiting};
use crate::operation::effect::{Effect, Leftover, Verb, remove};
use crate::operation::end::never_started;
use crate::operation::engine::SpecChange;
use crate::operation::note::Note;
use crate::operation::outcome::Failure;
use crate::operation::rollback::prepare;
use crate::operation::snapshot::{Container, Sandbox, Snapshot};
use crate::operation::state::{Operation, Target, later};

/// The interval between two observations while the new sandbox comes up.
const REQUEUE: SignedDuration = SignedDuration::from_millis(250);
/// What the operation waits for.
const AWAITED: &str = "waiting for the kubelet to start the containers in a new sandbox";

/// Decides the next step when the pod's sandbox is not the operation's, or does not run. A touched
/// container counts as restarted once it runs in the new sandbox, and as swapped once it runs there from the
/// requested image. Nothing is created in the new sandbox: a swap that fails is rolled back in the pod's spec only.
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
    if let Some(next) = put_back(operation, snapshot, now) {
        return next;
    }
    if now >= operation.forward_until() && can_put_back(operation) {
        return Next::Note(Note::RollBack(operation.late(AWAITED)));
    }
    let mut instances: Vec<Container> = Vec::new();
    for target in operation.targets.iter().filter(|_| is_another && sandbox.ready) {
        match snapshot.running(&target.name).last() {
            Some(instance) if has_arrived(operation, target, instance) => instances.push((*instance).clone()),
            // The kubelet does not replace a container that it has started from the current spec.
            Some(_) if !target.touched => {
                let failure = Failure::Sandbox { what: what.to_owned() };
                return Next::Note(if can_put_back(operation) {
                    Note::RollBack(failure)
                } else {
                    Note::End(operation.failed(failure))
                });
            }
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
    Next::Wait(Waiting { until: later(now, REQUEUE).min(operation.deadline_at), on: AWAITED.to_owned() })
}

/// The swaps that have changed the pod's spec, last one first.
fn respecced(operation: &Operation) -> impl Iterator<Item = (&Target, &SpecChange)> {
    let swaps = operation.targets.iter().rev().filter(|t| t.touched && t.action == Action::Swap);
    swaps.filter_map(|target| Some((target, target.change.as_ref()?)))
}

/// True when the previous images are to be restored in the pod's spec after a failure.
fn can_put_back(operation: &Operation) -> bool {
    operation.can_roll_back() && respecced(operation).next().is_some()
}

/// The next step of a rollback until the pod's spec has the previous images again. The kubelet does the rest.
fn put_back(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    operation.rollback_cause.as_ref()?;
    let is_open = |target: &Target| target.back.as_ref().is_none_or(|back| back.respec_at.is_none());
    let (target, change) = respecced(operation).find(|(target, _)| is_open(target))?;
    if target.back.is_none() {
        return prepare(operation, target, snapshot, now);
    }
    let container = target.name.clone();
    if let Some(message) = operation.given_up(Verb::Respec, &container) {
        let message = message.to_owned();
        return Some(Next::Note(Note::End(operation.failed(Failure::Respec { container, message }))));
    }
    Some(Next::Do(Effect::Respec { container, from: change.to.clone(), to: change.from.clone() }))
}

/// True when `instance` is the result that `target` was to reach.
fn has_arrived(operation: &Operation, target: &Target, instance: &Container) -> bool {
    match (target.action, &operation.rollback_cause) {
        (Action::Restart, _) => true,
        (Action::Swap, Some(_)) => instance.image_id == target.from.image_id,
        (Action::Swap, None) => target.pulled.as_ref().is_some_and(|pulled| pulled.id == instance.image_id),
    }
}
