//! The rollback after a failure: every container that was touched runs again. It is tried
//! once and never rolled back itself.

use jiff::Timestamp;

use crate::api::status::Action;
use crate::operation::decision::{Next, overdue};
use crate::operation::effect::{Leftover, remove};
use crate::operation::end::never_started;
use crate::operation::group;
use crate::operation::note::Note;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::probe::stopped_by_kubelet;
use crate::operation::replace::{Progress, foreign_start, replace};
use crate::operation::replacement::Replacement;
use crate::operation::respec::overruled;
use crate::operation::snapshot::{Snapshot, State};
use crate::operation::standby;
use crate::operation::state::{Operation, Target};
use crate::operation::verify::{Verdict, verify};

/// The next step of the rollback: every touched container, last one first, once. A container that was to be restarted
/// only has to run; a swapped one has to run its previous image.
pub(super) fn rollback(
    operation: &Operation,
    failure: &Failure,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Next {
    let give_up = |then: Failure| {
        let (failure, then) = (failure.clone(), Some(then));
        Next::Note(Note::End(Outcome::Failed { failure, then, touched: true }))
    };
    let in_time = |next: Next| {
        let is_late = overdue(operation, &next, now, operation.deadline_at);
        if is_late { give_up(operation.late("Rollback")) } else { next }
    };
    let returning = || operation.targets.iter().filter(|target| target.touched);
    if let Some(then) = overruled(returning().filter(|target| target.back.is_some()), snapshot) {
        return give_up(then);
    }
    for target in returning().rev() {
        if let Some(note) = stopped_by_kubelet(operation, target, snapshot) {
            return Next::Note(note);
        }
        if target.back.is_some() && target.reached.is_some() {
            continue;
        }
        let next = if target.back.is_none() {
            match prepare(operation, target, snapshot, now) {
                Some(next) => next,
                None => continue,
            }
        } else {
            match replace(operation, target, snapshot, now) {
                Progress::Next(next) => next,
                Progress::Held => return group::wait(operation, now),
                Progress::Failed(then) => return give_up(then),
                Progress::Running(instance) => {
                    return Next::Note(Note::reached(target, instance, snapshot, now));
                }
            }
        };
        return in_time(next);
    }
    if let Some(next) = returning().find_map(|target| standby::make_way(operation, target, snapshot, now)) {
        return in_time(next);
    }
    match verify(operation, returning().filter(|target| target.back.is_some()), snapshot, now) {
        Verdict::Next(next) => in_time(next),
        Verdict::Failed(then) => give_up(then),
        Verdict::Proven => Next::Note(Note::End(Outcome::RolledBack(failure.clone()))),
    }
}

/// Prepares the rollback of `target`. `None` when it needs none.
pub(super) fn prepare(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    let instances = snapshot.instances(&target.name);
    if let Some(instance) = never_started(operation, &instances) {
        return Some(Next::Do(remove(instance, Leftover::NeverStarted)));
    }
    let running = instances.iter().rev().find(|instance| instance.state == State::Running);
    // The spec may differ from what runs, so it must be restored in any case.
    let respecced = target.change.is_some() && target.action == Action::Swap;
    if !respecced
        && running.is_some_and(|instance| {
            target.action == Action::Restart || instance.id == target.from.container_id
        })
    {
        return None;
    }
    let foreign = instances
        .iter()
        .find(|instance| instance.attempt >= target.forward.attempt && instance.state == State::Created);
    if let Some(waiting) = foreign.and_then(|instance| foreign_start(instance, now)) {
        return Some(Next::Wait(waiting));
    }
    let replaces = running
        .or(instances.last())
        .map_or_else(|| target.from.container_id.clone(), |instance| instance.id.clone());
    let attempt = instances
        .iter()
        .map(|instance| instance.attempt)
        .max()
        .unwrap_or(target.from.attempt)
        .saturating_add(1);
    let pre_stop_at = target.forward.pre_stop_at.filter(|_| replaces == target.forward.replaces);
    let replacement = Replacement { pre_stop_at, ..Replacement::of(replaces, attempt) };
    Some(Next::Note(Note::Back(target.name.clone(), replacement)))
}
