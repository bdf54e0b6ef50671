//! Decides which effects need a permit or a slot of the node, and when an operation returns them.
//!
//! Does not wait itself: `drive` does.

use std::time::Duration;

use crate::node::Node;
use crate::node::slot::Urgency;
use crate::operation::effect::{Effect, Verb};
use crate::operation::state::{Operation, Target};

/// How long a slot is kept during a stop. A process that ends at once lets its operation continue with the same slot; one
/// that takes its time does not keep the slot from others.
const SHORT_STOP: Duration = Duration::from_millis(500);

/// Whether `effect` may be carried out now. An effect that touches a healthy container needs a permit; an effect
/// that brings a container up needs none. Nor does one in a prepared pod of a group with a barrier: those that have stopped
/// wait for the others.
pub(super) fn has_permit(node: &Node, operation: &Operation, effect: &Effect) -> bool {
    let touches = !matches!(effect.verb(), Verb::Pull | Verb::Gate | Verb::Remove);
    let free = operation.touched() || operation.rollback_cause.is_some() || operation.ending.is_some();
    let group = operation.group.as_ref().filter(|group| group.task.barrier);
    let stops_with_others = group.is_some_and(|group| group.prepared_at.is_some());
    free || stops_with_others || !touches || node.permit.is_held()
}

/// Whether `effect` may be carried out now because it needs no slot, or because the operation holds one or could acquire
/// it.
pub(super) fn has_slot(node: &Node, operation: &Operation, effect: &Effect) -> bool {
    // Not a removal: a kubelet may wait for that of a fence.
    let works = matches!(effect.verb(), Verb::Fence | Verb::Standby | Verb::Create | Verb::Start);
    !works || node.slot.try_acquire(urgency(operation))
}

/// How urgently the operation needs a slot.
pub(super) fn urgency(operation: &Operation) -> Urgency {
    let is_down = |target: &Target| target.stopped_at.is_some() && target.reached.is_none();
    if operation.targets.iter().any(is_down) { Urgency::Down } else { Urgency::Up }
}

/// Returns what others may use while `effect` runs.
pub(super) fn before(node: &Node, operation: &Operation, effect: &Effect) {
    // Only whether the image is there is asked again.
    if matches!(effect, Effect::Pull { again: Some(_), .. }) {
        return;
    }
    match effect.verb() {
        // The API server may be slow.
        Verb::Gate => while_waiting(node, operation),
        Verb::Stop => node.slot.release_after(SHORT_STOP),
        Verb::Pull | Verb::PreStop | Verb::StopStandby | Verb::Respec => node.slot.release(),
        Verb::Fence | Verb::Create | Verb::Start | Verb::Standby | Verb::Remove => {}
    }
}

/// Returns what the operation needs no longer after `effect`. It keeps the slot from the fence to the start, so that no
/// other operation comes between the stop and the start.
pub(super) fn after(node: &Node, effect: &Effect) {
    let goes_on = matches!(effect.verb(), Verb::Fence | Verb::Stop | Verb::Create | Verb::Remove);
    if !goes_on {
        node.slot.release();
    }
}

/// Returns what the operation does not need while it waits. The permit is returned while no container is touched, and
/// while the operation waits for a hook or for the other pods of a group. It is retained while a fence runs: nothing else
/// would manage the pod during the wait for another permit.
pub(super) fn while_waiting(node: &Node, operation: &Operation) {
    node.slot.release();
    let waits_for_group = operation.group.as_ref().is_some_and(|group| group.stopped_at.is_some());
    let waits = waits_for_group || operation.awaited_hook().is_some();
    if (!operation.touched() && !operation.is_fenced_ahead()) || waits {
        node.permit.give_back();
    }
}
