//! The cleanup at the end of an operation: decides what must be removed, whatever the outcome.
//!
//! It removes only fences, replacements that never ran, and old instances that no other program removes. It must not
//! change the outcome.

use jiff::{SignedDuration, Timestamp};

use crate::operation::decision::Next;
use crate::operation::drain::{reopen, settle};
use crate::operation::effect::{Effect, Leftover, Verb, remove};
use crate::operation::fence::unfence;
use crate::operation::next::leaves;
use crate::operation::outcome::Outcome;
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::standby;
use crate::operation::state::{Operation, later};

/// How long after the deadline the cleanup is retried.
pub(super) const CLEANING: SignedDuration = SignedDuration::from_secs(15);

/// The next step of the cleanup, whatever the outcome: no fence, no replacement that never ran, and no old instances
/// where no other program removes them.
pub(super) fn end(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Next {
    let Some(outcome) = operation.ending.clone() else { return Next::Done(operation.lost("gone")) };
    if let Some(last) = &operation.last_failure
        && now >= later(operation.deadline_at, CLEANING)
    {
        // A gate that cannot be changed does not prevent the stop of a standby. The periodic sweep removes what is left.
        let mut targets = operation.targets.iter().filter(|_| last.verb == Verb::Gate);
        let leave = targets.find_map(|target| standby::leave(operation, target, snapshot, now));
        return leave.unwrap_or(Next::Done(outcome));
    }
    for target in &operation.targets {
        let instances = snapshot.instances(&target.name);
        // Before the fence: while the fence exists, a kubelet cannot start the next attempt beside this container.
        if let Some(instance) = never_started(operation, &instances) {
            return Next::Do(remove(instance, Leftover::NeverStarted));
        }
        if let Some(next) = unfence(operation, target, snapshot, now) {
            return next;
        }
        if snapshot.standbys(&target.name).any(Container::may_run)
            && let Some(next) = reopen(operation, &outcome, snapshot)
        {
            return next;
        }
        if let Some(next) = standby::leave(operation, target, snapshot, now) {
            return next;
        }
        let old = |instance: &&&Container| {
            instance.attempt < target.from.attempt
                && instance.state == State::Exited
                && operation.can_remove(&instance.id)
        };
        if operation.unsupervised
            && target.reached.is_some()
            && let Some(instance) = instances.iter().find(old)
        {
            return Next::Do(remove(instance, Leftover::Old));
        }
    }
    settle(operation, &outcome, snapshot).unwrap_or(Next::Done(outcome))
}

/// The outcome of an operation for which nothing is decided, which is an error of this program: once the time for its cleanup
/// is over.
pub fn undecided(operation: &Operation, now: Timestamp) -> Option<Outcome> {
    let is_over = now >= later(operation.deadline_at, CLEANING);
    let ending = || operation.ending.clone();
    let failed = || operation.failed(operation.late("an internal error of the agent"));
    is_over.then(|| ending().unwrap_or_else(failed))
}

/// Effects that remove the fences of a pod that its kubelet terminates, while another effect takes long. The
/// kubelet cannot stop a running container that the pod's spec does not name: its termination fails, and it
/// retries some ten seconds later.
pub fn obstructing<'a>(
    operation: &'a Operation,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = Effect> + 'a {
    let leaves = leaves(operation, snapshot);
    let targets = operation.targets.iter().filter(move |_| leaves);
    let fences = targets.flat_map(|target| snapshot.fences(&target.name));
    fences.filter(|fence| operation.can_remove(&fence.id)).map(|fence| remove(fence, Leftover::Fence))
}

/// A container that this operation created, that never ran, and whose removal was not given up.
pub(super) fn never_started<'a>(operation: &Operation, instances: &[&'a Container]) -> Option<&'a Container> {
    let mut created = instances
        .iter()
        .copied()
        .filter(|instance| instance.state == State::Created && operation.made(instance));
    created.find(|instance| operation.can_remove(&instance.id))
}
