//! Decides the next step: a pure function of the operation, the current snapshot and the time.
//!
//! It is level-triggered: events may be lost or duplicated, responses may never arrive, and the process may die at
//! any point. Only this file declares success, and only from what the snapshot shows.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::{Action, Engine, Step};
use crate::failure::Class;
use crate::operation::decision::overdue;
pub use crate::operation::decision::{Next, Waiting};
use crate::operation::drain::{close, unconfirmed};
use crate::operation::duplicate::stop_duplicate;
use crate::operation::effect::{Effect, Verb};
use crate::operation::end::end;
use crate::operation::group;
use crate::operation::hook::{Moment, Passage, pass};
use crate::operation::last_failure::LastFailure;
use crate::operation::note::Note;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::probe::stopped_by_kubelet;
use crate::operation::replace::{Progress, foreign_start, replace};
use crate::operation::respec::overruled;
use crate::operation::rollback::rollback;
use crate::operation::sandbox_lost::sandbox_lost;
use crate::operation::snapshot::{Container, Declared, Owner, PullPolicy, Sandbox, Snapshot, State};
use crate::operation::standby;
use crate::operation::state::{Operation, Target, later};
use crate::operation::unclear;
use crate::operation::verify::{Verdict, verify};

/// How long an image that was observed on the node is assumed to be there.
const PULL_IS_FRESH: SignedDuration = SignedDuration::from_secs(2);
/// How often a container may restart by itself before it is touched.
const MAX_RESTARTS_BEFORE_TOUCH: u32 = 5;

/// The next step of the operation.
pub fn next(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Next {
    if let Some(outcome) = &operation.outcome {
        return Next::Done(outcome.clone());
    }
    if let Some(next) = end_duplicate(operation, snapshot, now) {
        return delay_retry(operation, next, now);
    }
    let next = match &snapshot.sandbox {
        None => return Next::Done(operation.lost("gone")),
        _ if operation.ending.is_some() => end(operation, snapshot, now),
        _ if snapshot.declared.as_ref().is_some_and(|declared| declared.deleting) => {
            Next::Note(Note::End(operation.lost("about to be stopped")))
        }
        _ if ending(snapshot).is_some() => {
            let why = ending(snapshot).unwrap_or_default();
            Next::Note(Note::End(operation.lost(&format!("about to be stopped because the pod is {why}"))))
        }
        _ if is_deleted_by_force(operation, snapshot) => {
            Next::Note(Note::End(operation.lost("about to be stopped because the pod was force-deleted")))
        }
        Some(sandbox) if sandbox.id != operation.sandbox_id || !sandbox.ready => {
            sandbox_lost(operation, sandbox, snapshot, now)
        }
        Some(_) => match (unclear::change(operation, snapshot, now), &operation.rollback_cause) {
            (Some(note), _) => Next::Note(note),
            (None, None) => forward(operation, snapshot, now),
            (None, Some(failure)) => rollback(operation, failure, snapshot, now),
        },
    };
    delay_retry(operation, next, now)
}

/// Stops the one of two running instances that was created here, however late it is and whatever the outcome of the
/// operation. If the kubelet terminates the pod, it stops both.
fn end_duplicate(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    let sandbox = snapshot.sandbox.as_ref()?;
    if sandbox.id != operation.sandbox_id || !sandbox.ready || leaves(operation, snapshot) {
        return None;
    }
    operation.targets.iter().find_map(|target| stop_duplicate(operation, target, snapshot, now))
}

/// Why nothing may be created in the pod any more although its deletion was not requested.
fn ending(snapshot: &Snapshot) -> Option<&str> {
    snapshot.declared.as_ref()?.ending.as_deref()
}

/// True when the kubelet terminates the pod, or is about to.
pub(super) fn leaves(operation: &Operation, snapshot: &Snapshot) -> bool {
    snapshot.declared.as_ref().is_some_and(Declared::leaves) || is_deleted_by_force(operation, snapshot)
}

/// True when the API server had the pod and no longer has it, while its containers still exist. Static pods are
/// excluded, because a kubelet creates their mirror pods again.
fn is_deleted_by_force(operation: &Operation, snapshot: &Snapshot) -> bool {
    let by_api = |sandbox: &Sandbox| sandbox.owner == Owner::Kubelet;
    operation.in_cluster && snapshot.absent && snapshot.sandbox.as_ref().is_some_and(by_api)
}

/// The outcome of an operation whose pod could not be observed until its deadline; `None` before the deadline, and
/// while a container may be down that no other program starts: the operation continues once the runtime answers.
pub fn unseen(operation: &Operation, now: Timestamp, why: &str) -> Option<Outcome> {
    if now < operation.deadline_at {
        return None;
    }
    if let Some(outcome) = operation.outcome.as_ref().or(operation.ending.as_ref()) {
        return Some(outcome.clone());
    }
    if operation.must_bring_up() {
        return None;
    }
    if let (Some(withdrawal), false) = (operation.withdrawn, operation.touched()) {
        return Some(Outcome::Cancelled(withdrawal));
    }
    let during = format!("the runtime could not be reached: {why}");
    Some(operation.failed(Failure::Deadline { during }))
}

/// The next step before a container is touched; `None` if nothing is left to do or to wait for.
fn untouched(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    let passed = |moment| match pass(operation, moment, now) {
        Passage::Open => None,
        Passage::Next(next) => Some(next),
        Passage::Closed(failure) => Some(fail(operation, failure)),
    };
    group::left(operation, snapshot)
        .or_else(|| standby::left_alone(operation, snapshot))
        .or_else(|| before_touch(operation, snapshot, now))
        .or_else(|| passed(Moment::Before))
        .or_else(|| standby::prove(operation, snapshot, now))
        .or_else(|| passed(Moment::Handover))
        .or_else(|| close(operation, snapshot, now))
}

/// The next step on the way forward.
fn forward(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Next {
    if !operation.touched()
        && let Some(next) = untouched(operation, snapshot, now)
    {
        return next;
    }
    if let Some(failure) = overruled(operation.targets.iter(), snapshot) {
        return fail(operation, failure);
    }
    let (mut is_held, mut failed) = (false, None);
    for target in &operation.targets {
        if failed.is_some() && !target.touched {
            continue;
        }
        if let Some(note) = stopped_by_kubelet(operation, target, snapshot) {
            return Next::Note(note);
        }
        if let Some(reached) = &target.reached {
            if operation.request.each_ready && reached.ready_at.is_none() {
                match verify(operation, std::iter::once(target), snapshot, now) {
                    Verdict::Next(next) => {
                        return within(operation, next, now, operation.forward_until(), "Swap");
                    }
                    Verdict::Failed(failure) => return fail(operation, failure),
                    Verdict::Proven => {}
                }
            }
            continue;
        }
        let others = || replaced_by_others(operation, target, snapshot, now);
        let others = match others() {
            Some(Next::Note(end @ (Note::End(_) | Note::RollBack(_)))) if operation.group.is_some() => {
                failed = Some(Next::Note(end));
                continue;
            }
            others => others,
        };
        if let Some(next) = others.or_else(|| pull_again(operation, target, snapshot.known_until(now))) {
            return within(operation, next, now, operation.forward_until(), "Swap");
        }
        if let Some(next) = enter(operation, Step::Swap) {
            return next;
        }
        if target.engine != Engine::Recreate && !group::may_stop(operation, snapshot) {
            is_held = true;
            continue;
        }
        match replace(operation, target, snapshot, now) {
            Progress::Next(next) => return within(operation, next, now, operation.forward_until(), "Swap"),
            Progress::Held => is_held = true,
            // A container that waits for the other pods is started before the operation fails.
            Progress::Failed(failure) if operation.group.is_some() => failed = Some(fail(operation, failure)),
            Progress::Failed(failure) => return fail(operation, failure),
            Progress::Running(instance) => return Next::Note(Note::reached(target, instance, snapshot, now)),
        }
    }
    if let Some(failed) = failed {
        return if is_held && operation.touched() { Next::Note(Note::GroupFailed) } else { failed };
    }
    if is_held {
        return group::wait(operation, now);
    }
    if !matches!(operation.step, Step::PostHook | Step::Ready)
        && let Some(next) = enter(operation, Step::Verify)
    {
        return next;
    }
    match verify(operation, operation.targets.iter(), snapshot, now) {
        Verdict::Next(next) => within(operation, next, now, operation.forward_until(), "Verify"),
        Verdict::Failed(failure) => fail(operation, failure),
        Verdict::Proven => {
            match pass(operation, Moment::After, now) {
                Passage::Open => {}
                Passage::Next(next) => {
                    return within(
                        operation,
                        next,
                        now,
                        operation.forward_until(),
                        &during(operation, "PostHook"),
                    );
                }
                Passage::Closed(failure) => return fail(operation, failure),
            }
            let ready = operation.drain.as_ref().and_then(|_| enter(operation, Step::Ready));
            ready.unwrap_or(Next::Note(Note::End(Outcome::Succeeded)))
        }
    }
}

/// The next step while nothing was touched: everything that can still end the operation without an effect on the
/// running containers.
fn before_touch(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    if let Some(withdrawal) = operation.withdrawn {
        return Some(Next::Note(Note::End(Outcome::Cancelled(withdrawal))));
    }
    if now >= operation.touch_until() {
        let waits = operation.targets.iter().any(|target| target.image.is_some() && target.pulled.is_none());
        if let Some(failure) = unconfirmed(operation, snapshot) {
            return Some(fail(operation, failure));
        }
        let what = if waits { "Pull".to_owned() } else { during(operation, "Swap had not started") };
        return Some(fail(operation, operation.late(&what)));
    }
    for target in &operation.targets {
        if let Some(next) = replaced_by_others(operation, target, snapshot, now) {
            return Some(next);
        }
    }
    for target in &operation.targets {
        if let (Some(image), None) = (&target.image, &target.pulled) {
            return Some(pull(operation, target, image, is_pulled_anew(target, image, snapshot)));
        }
    }
    None
}

/// Pulls `image` to the node.
fn pull(operation: &Operation, target: &Target, image: &str, anew: bool) -> Next {
    let (container, image) = (target.name.clone(), image.to_owned());
    if let Some(message) = operation.given_up(Verb::Pull, &target.name) {
        let message = message.to_owned();
        let class = operation.last_failure.as_ref().map(|last_failure| last_failure.effect_error.class);
        if class == Some(Class::Credentials) && !operation.touched() {
            let failure = Failure::PullSecrets { container, image, message };
            return Next::Note(Note::End(Outcome::Refused(failure)));
        }
        return fail(operation, Failure::Pull { container, image, message });
    }
    let (like, again) = (target.from.image_id.clone(), target.pulled.clone());
    Next::Do(Effect::Pull { container, image, like, anew, again })
}

/// Checks for the image again if it was pulled some time ago: hooks and a drain may take long, and a kubelet that
/// needs disk space collects images that no container uses. An image that is present is not pulled, whatever its tag
/// refers to by now. `observed_at` is when the last observation began: on a busy node that takes longer than an image is
/// assumed to be there, and would be followed by another pull each time. The change of the spec that is being retried is
/// not preceded by another pull: its success would start the count of the failures anew.
fn pull_again(operation: &Operation, target: &Target, observed_at: Timestamp) -> Option<Next> {
    let is_retried = |failure: &LastFailure| failure.verb == Verb::Respec && failure.container == target.name;
    if operation.last_failure.as_ref().is_some_and(is_retried) {
        return None;
    }
    let image = target.image.as_ref().filter(|_| !target.touched)?;
    let is_fresh = |at: &Timestamp| observed_at < later(*at, PULL_IS_FRESH);
    target.pulled_at.as_ref().is_none_or(|at| !is_fresh(at)).then(|| pull(operation, target, image, false))
}

/// True when the image on the node is not sufficient. A swap to the reference that is already in use
/// means the image that it refers to now. And a kubelet that will query the registry must not find
/// another image than the one that was tried.
fn is_pulled_anew(target: &Target, image: &str, snapshot: &Snapshot) -> bool {
    let declared = snapshot.declared.as_ref().and_then(|declared| declared.container(&target.name));
    declared.map_or(target.from.image == image, |declared| {
        declared.image == image || declared.pull_policy == PullPolicy::Always
    })
}

/// The next step when another program has replaced an instance that is not touched yet. An instance that the kubelet
/// restarted, as after a crash, becomes the one to replace, but only a limited number of times.
fn replaced_by_others(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    if let Some(instance) = restarted(operation, target, snapshot) {
        let about_to_start = foreign_start(instance, now).filter(|_| !by_spec(target));
        return Some(match about_to_start.filter(|_| instance.state == State::Created) {
            Some(waiting) => Next::Wait(waiting),
            None => Next::Note(Note::Rebased(Box::new(instance.clone()))),
        });
    }
    let what = changed(operation, target, snapshot)?;
    Some(fail(operation, Failure::Changed { container: target.name.clone(), what }))
}

/// The instance by which the kubelet replaced one that is not touched yet, as after a crash. Where the kubelet does
/// the swap, it does not matter which instance it stops. A kubelet that has collected the one that ended may count from 0
/// again.
fn restarted<'a>(operation: &Operation, target: &Target, snapshot: &'a Snapshot) -> Option<&'a Container> {
    let by_kubelet = snapshot.sandbox.as_ref().is_some_and(|sandbox| sandbox.owner.is_kubelet());
    let follows = by_spec(target) || (by_kubelet && target.restarts_before_touch < MAX_RESTARTS_BEFORE_TOUCH);
    let newest = snapshot.instances(&target.name).last().copied()?;
    // A rollback restores the previous image. An instance with another image comes from a change by another program.
    let fits = by_spec(target) || newest.image_id == target.from.image_id;
    let counts = follows && fits && !target.touched && newest.state != State::Unknown;
    let is_collected = snapshot.by_id(&target.from.container_id).is_none();
    let is_next =
        newest.attempt >= target.forward.attempt || is_collected && newest.created_at >= operation.begun_at;
    (counts && is_next && newest.operation.is_none()).then_some(newest)
}

/// True when the kubelet itself swaps the container.
fn by_spec(target: &Target) -> bool {
    target.engine == Engine::Respec && target.action == Action::Swap
}

/// What another program did to a container that this operation has not touched. A container that merely exited is
/// replaced all the same, and everything that existed when the operation began is ignored.
fn changed(operation: &Operation, target: &Target, snapshot: &Snapshot) -> Option<String> {
    if target.touched {
        return None;
    }
    let foreign =
        |instance: &&Container| instance.attempt >= target.forward.attempt && !operation.made(instance);
    let newer = snapshot.instances(&target.name).into_iter().find(foreign)?;
    Some(format!("attempt {} exists and is {}", newer.attempt, newer.state))
}

/// Delays an effect that failed a moment ago.
fn delay_retry(operation: &Operation, next: Next, now: Timestamp) -> Next {
    let (Next::Do(effect), Some(last_failure)) = (&next, &operation.last_failure) else { return next };
    if last_failure.verb != effect.verb() || last_failure.container != effect.container() {
        return next;
    }
    let first = match (last_failure.verb, last_failure.effect_error.class) {
        (Verb::Pull, Class::Refused | Class::Gone) => SignedDuration::from_secs(1),
        (_, Class::NameTaken) => SignedDuration::from_millis(20),
        _ => SignedDuration::from_millis(100),
    };
    let doublings = last_failure.count.saturating_sub(1).min(6);
    let again = later(last_failure.at, first * 2_i32.pow(doublings));
    if now >= again {
        return next;
    }
    let on = format!("retrying: {}", last_failure.effect_error.message);
    // Do not wait past a limit at which the decision changes.
    let limits = [operation.touch_until(), operation.forward_until(), operation.deadline_at];
    let until = limits.into_iter().filter(|limit| now < *limit).fold(again, Timestamp::min);
    Next::Wait(Waiting { until, on })
}

fn within(operation: &Operation, next: Next, now: Timestamp, limit: Timestamp, during: &str) -> Next {
    if overdue(operation, &next, now, limit) {
        return fail(operation, operation.late(during));
    }
    next
}

fn fail(operation: &Operation, failure: Failure) -> Next {
    let forbids_rollback =
        matches!(failure, Failure::Duplicate { .. } | Failure::Overruled { .. } | Failure::Superseded { .. });
    Next::Note(if operation.can_roll_back() && !forbids_rollback {
        Note::RollBack(failure)
    } else {
        Note::End(operation.failed(failure))
    })
}

/// What the operation is doing: the hook that it waits for, otherwise `otherwise`.
fn during(operation: &Operation, otherwise: &str) -> String {
    operation.hook_progress().map_or_else(|| otherwise.to_owned(), |hook| format!("waiting for {hook}"))
}

fn enter(operation: &Operation, step: Step) -> Option<Next> {
    (operation.step != step).then_some(Next::Note(Note::Step(step)))
}

#[cfg(test)]
pub(super) mod interference;
#[cfg(test)]
mod tests;
