//! Decides which of two container instances stays when a kubelet has created its own beside the one created here: the
//! kubelet's, because a kubelet tracks only that one. Nothing here executes an effect.

use jiff::Timestamp;

use crate::operation::decision::Next;
use crate::operation::effect::{Effect, Leftover, Verb, remove};
use crate::operation::note::{Note, Overtaking};
use crate::operation::replace::is_counted_anew;
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{MIN_STOP_SECONDS, Operation, Target};

/// How often, after the deadline, a runtime that does not respond is asked to stop one of two container instances.
const MAX_LATE_STOPS: u32 = 10;

/// Decides about the container created here when a kubelet has started `other` before it: `other` then becomes the
/// new instance. This happens when the fence was collected before the start and no longer protects the name.
pub(super) fn give_way(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    ours: &Container,
    other: &Container,
) -> Option<Next> {
    if operation.unsupervised || operation.made(other) {
        return None;
    }
    if other.attempt == ours.attempt.saturating_add(1) {
        // The container created here never ran and is removed at the end.
        let (name, replaces) = (target.name.clone(), target.replacement().replaces.clone());
        return Some(Next::Note(Note::Overtaken {
            name,
            replaces,
            attempt: other.attempt,
            by: Overtaking::OwnInstance,
        }));
    }
    let counted_anew = is_counted_anew(operation, target, other, snapshot);
    (counted_anew && operation.can_remove(&ours.id)).then(|| Next::Do(remove(ours, Leftover::NeverStarted)))
}

/// Resolves a duplicate: the kubelet started its own replacement despite the fence. The kubelet tracks only the
/// newest instance and would never stop the other one, so the instance created here is stopped. This is tried some
/// times even after the deadline.
pub(super) fn stop_duplicate(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    let (ours, theirs) = match snapshot.running(&target.name).as_slice() {
        [one, other] if operation.made(one) => (*one, *other),
        [one, other] => (*other, *one),
        [ours] => (*ours, about_to_run(ours, snapshot)?),
        _ => return None,
    };
    if operation.unsupervised || !operation.made(ours) || operation.made(theirs) {
        return None;
    }
    let replacement = target.replacement();
    if replacement.replaces != ours.id {
        // A kubelet that counts from 0 again has the lower attempt.
        if theirs.attempt < ours.attempt && !is_counted_anew(operation, target, theirs, snapshot) {
            return None;
        }
        let (name, replaces, attempt) = (target.name.clone(), ours.id.clone(), theirs.attempt);
        return Some(Next::Note(Note::Overtaken { name, replaces, attempt, by: Overtaking::OwnInstance }));
    }
    // If the instance still runs after repeated stops, a person has to resolve it.
    let tries = operation.last_failure.as_ref().filter(|last_failure| last_failure.verb == Verb::Stop);
    let is_overdue = now >= operation.deadline_at;
    if is_overdue && tries.is_some_and(|last_failure| last_failure.count >= MAX_LATE_STOPS)
        || operation.given_up(Verb::Stop, &target.name).is_some()
    {
        return None;
    }
    let (container, id) = (target.name.clone(), ours.id.clone());
    let grace_seconds = if is_overdue { 0 } else { target.grace_seconds };
    let timeout_seconds = grace_seconds.max(MIN_STOP_SECONDS);
    Some(Next::Do(Effect::Stop { container, id, timeout_seconds }))
}

/// The instance that was created after `ours` and is not started yet. A kubelet that observed `ours` before its start
/// creates one, starts it a moment later, and then has no more than that one in view.
fn about_to_run<'a>(ours: &Container, snapshot: &'a Snapshot) -> Option<&'a Container> {
    let newest = *snapshot.instances(&ours.name).last()?;
    (newest.state == State::Created && newest.attempt > ours.attempt).then_some(newest)
}
