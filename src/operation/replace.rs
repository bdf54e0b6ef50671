//! Putting one life of a container in the place of another: fence, preStop, stop, create, start, remove the fence.
//! Where no kubelet looks on, the new one is created before the old one is stopped, which takes that call out of the
//! downtime.
//!
//! Every answer is derived from what is seen; it does not matter which of the steps has been done by whom or whether
//! its reply was lost.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::{Action, Engine};
use crate::operation::answer::{Next, Waiting};
use crate::operation::effect::{Effect, ImageChoice, Leftover, Verb};
use crate::operation::last_failure::LastFailure;
use crate::operation::note::Note;
use crate::operation::outcome::Failure;
use crate::operation::respec::{self, respec, stop_and_wait};
use crate::operation::snapshot::{Container, Declared, Snapshot, State};
use crate::operation::state::{LEAST_STOP_SECONDS, Operation, Replacement, Target, is_over, later};

/// How long somebody else's created container may wait for its maker to start it.
const FOREIGN_START: SignedDuration = SignedDuration::from_secs(10);
/// What a creation may take until the runtime can tell the state of what it made.
const CREATION: SignedDuration = SignedDuration::from_secs(3);
/// How long after its start a container of which the runtime can tell nothing is waited for.
const UNCLEAR: SignedDuration = SignedDuration::from_secs(5);
/// How long the fence outlives the start. A kubelet that saw the new life before it ran asks for the guarded name a
/// moment later, for it looks at the image in between.
const FENCE_HOLDS: SignedDuration = SignedDuration::from_millis(250);
/// How long it outlives the start at most where an API server tells when the kubelet has seen the new life run: one that
/// asks a registry before each start (imagePullPolicy Always) asks for the guarded name only after the answer.
const FENCE_HOLDS_AT_MOST: SignedDuration = SignedDuration::from_secs(30);
/// How often a start may be refused where there is no other way out.
const STARTS: u32 = 3;
/// How often a runtime that does not answer is asked, once the deadline is over, to stop one of two container instances.
const LATE_STOPS: u32 = 10;
/// How long a runtime that lost a start is left alone before it is asked for another one.
const CUT_OFF_PAUSE: SignedDuration = SignedDuration::from_millis(500);
/// How soon to look again for something that others do.
const REQUEUE: SignedDuration = SignedDuration::from_millis(20);

/// Where a replacement stands.
pub(super) enum Progress<'a> {
    /// Something is to be done or awaited.
    Next(Next),
    /// The new life runs, alone, and no fence is left that could be removed by now.
    Running(&'a Container),
    /// It cannot be done.
    Failed(Failure),
}

/// What to do next for `target`.
pub(super) fn replace<'a>(
    operation: &Operation,
    target: &Target,
    snapshot: &'a Snapshot,
    now: Timestamp,
) -> Progress<'a> {
    if target.touched
        && target.stopped_at.is_none()
        && let Some(at) = target.ended(snapshot)
    {
        return Progress::Next(Next::Note(Note::Stopped(target.name.clone(), at)));
    }
    match (target.engine, &target.change) {
        (Engine::Respec, Some(change)) => return respec(operation, target, change, snapshot, now),
        (Engine::Stop, _) => return stop_and_wait(operation, target, snapshot, now),
        (Engine::Recreate | Engine::Respec, _) => {}
    }
    let replacement = target.replacement();
    let instances = snapshot.instances(&target.name);
    let new = instances.iter().rev().find(|instance| instance.attempt == replacement.attempt);
    match new
        .or_else(|| instances.iter().find(|instance| is_counted_anew(operation, target, instance, snapshot)))
    {
        Some(new) => settle(operation, target, snapshot, new, now),
        None => make(operation, target, replacement, snapshot, now),
    }
}

/// Whether `instance` is what a kubelet made in the place of the one that ended, counted from the beginning. Its collection of
/// dead containers, once a minute, keeps the newest of a name: a fence that does not run. Kubelets before 1.24 forget the
/// attempts then.
pub(super) fn is_counted_anew(
    operation: &Operation,
    target: &Target,
    instance: &Container,
    snapshot: &Snapshot,
) -> bool {
    let ended = target.touched && snapshot.by_id(&target.replacement().replaces).is_none();
    ended
        && !operation.unsupervised
        && !operation.made(instance)
        && instance.attempt <= target.from.attempt
        && instance.created_at >= operation.begun_at
        && instance.state == State::Running
}

/// There is no new life yet.
pub(super) fn make<'a>(
    operation: &Operation,
    target: &Target,
    replacement: &Replacement,
    snapshot: &'a Snapshot,
    now: Timestamp,
) -> Progress<'a> {
    let name = &target.name;
    let container = || name.clone();
    let failed = |verb| operation.given_up(verb, name).map(str::to_owned);
    let guarded = replacement.attempt.saturating_add(1);
    let guard = snapshot.fences(name).find(|fence| fence.attempt == guarded);
    let fenced = guard.is_some();
    // A kubelet's collection of dead containers keeps the newest of a name, which may be the fence: it may be a clone too. Where
    // nothing is left, its configuration was read before the stop.
    let spare = guard.filter(|fence| !fence.holder);
    let source = source_of(target, replacement, snapshot).or(spare).map(|instance| &instance.id);
    let Some(source) = source.or(target.touched.then_some(&target.from.container_id)) else {
        let message = "every earlier container of that name is gone, with the configuration to clone";
        return Progress::Failed(Failure::Create { container: container(), message: message.to_owned() });
    };
    // Another life than the one from before may have had another image.
    let image = image_of(operation, target)
        .or_else(|| (*source != target.from.container_id).then(|| image_before(target)));
    if !fenced {
        // What has shown that the replacement can be created, and whose maker had no time to remove it.
        let rehearsed = |fence: &&Container| fence.attempt > guarded && operation.can_remove(&fence.id);
        if let Some(fence) = snapshot.fences(name).find(rehearsed) {
            return do_(remove(fence, Leftover::Fence));
        }
        if let Some(message) = failed(Verb::Fence) {
            return Progress::Failed(Failure::Rehearsal { container: container(), message });
        }
        return do_(Effect::Fence {
            container: container(),
            source: source.clone(),
            attempt: guarded,
            image,
            rehearse: !target.touched,
            by_process: false,
        });
    }
    // A process that never began, or is over, holds the name still; but a kubelet collects it.
    let idle = |fence: &&Container| fence.holder && fence.state != State::Running;
    if let Some(fence) = guard.filter(idle)
        && !target.touched
        && operation.can_remove(&fence.id)
    {
        return do_(remove(fence, Leftover::Fence));
    }
    // On the way back the fence of the way there holds the name that is needed now.
    if let Some(fence) = snapshot.fences(name).find(|fence| fence.attempt != guarded) {
        if operation.can_remove(&fence.id) {
            let held = held_shortly(operation, target, snapshot, now).map(Next::Wait);
            return Progress::Next(held.unwrap_or_else(|| Next::Do(remove(fence, Leftover::Fence))));
        }
        if fence.attempt == replacement.attempt {
            let message =
                format!("a fence that cannot be removed holds the name of attempt {}", fence.attempt);
            return Progress::Failed(Failure::Create { container: container(), message });
        }
    }
    let running = snapshot.running(name);
    if running.len() > 1 {
        return Progress::Failed(Failure::Duplicate { container: container(), count: running.len() });
    }
    // Only the life that was to be replaced is ever stopped.
    if let Some(other) = running.first().filter(|instance| instance.id != replacement.replaces) {
        let what = format!("attempt {} runs", other.attempt);
        return Progress::Failed(Failure::Changed { container: container(), what });
    }
    let alive = |instance: &&Container| matches!(instance.state, State::Running | State::Unknown);
    if !operation.unsupervised
        && let Some(old) = snapshot.by_id(&replacement.replaces).filter(alive)
    {
        return stop(operation, target, replacement, old, now);
    }
    if let Some(message) = failed(Verb::Create) {
        return Progress::Failed(Failure::Create { container: container(), message });
    }
    if let Some(waiting) = others_start(operation, target, snapshot, now) {
        return Progress::Next(Next::Wait(waiting));
    }
    let attempt = replacement.attempt;
    do_(Effect::Create { container: container(), source: source.clone(), attempt, image })
}

/// Ends the life that is to be replaced.
pub(super) fn stop<'a>(
    operation: &Operation,
    target: &Target,
    replacement: &Replacement,
    old: &Container,
    now: Timestamp,
) -> Progress<'a> {
    let (container, id) = (target.name.clone(), old.id.clone());
    if target.has_pre_stop && old.state == State::Running && replacement.pre_stop_at.is_none() {
        return do_(Effect::PreStop { container, id, budget_seconds: target.grace_seconds });
    }
    if let Some(message) = operation.given_up(Verb::Stop, &target.name) {
        return Progress::Failed(Failure::Stop { container, message: message.to_owned() });
    }
    let spent =
        replacement.pre_stop_at.map_or(0, |at| now.duration_since(at).as_secs().max(0).unsigned_abs());
    let timeout_seconds = target.grace_seconds.saturating_sub(spent).max(LEAST_STOP_SECONDS);
    do_(Effect::Stop { container, id, timeout_seconds })
}

/// The name of the new attempt is taken by `new`.
pub(super) fn settle<'a>(
    operation: &Operation,
    target: &Target,
    snapshot: &'a Snapshot,
    new: &'a Container,
    now: Timestamp,
) -> Progress<'a> {
    let container = || target.name.clone();
    let ours = operation.made(new);
    if image_of(operation, target).is_some_and(|image| image.id != new.image_id) {
        let late = target.pulled.as_ref().is_some_and(|pulled| pulled.id == new.image_id);
        if ours && late && new.state == State::Created && operation.can_remove(&new.id) {
            // Made on the way there by a call that was believed lost; the way back needs its name.
            return do_(remove(new, Leftover::NeverStarted));
        }
        if !ours || late {
            let what = format!("attempt {} was created from {}", new.attempt, new.image);
            return Progress::Failed(Failure::Changed { container: container(), what });
        }
    }
    match new.state {
        State::Created => {
            let replacement = target.replacement();
            if let Some(other) = snapshot.running(&target.name).first() {
                if ours && operation.unsupervised && other.id == replacement.replaces {
                    return stop(operation, target, replacement, other, now);
                }
                if ours && let Some(next) = give_way(operation, target, snapshot, new, other) {
                    return Progress::Next(next);
                }
                let what = format!("attempt {} runs beside the created {}", other.attempt, new.attempt);
                return Progress::Failed(Failure::Changed { container: container(), what });
            }
            // It may run. One from long ago that nobody can tell about any more does not count.
            let unclear = |instance: &&&Container| {
                let recent =
                    instance.attempt >= target.from.attempt || instance.created_at >= operation.begun_at;
                instance.state == State::Unknown && recent
            };
            if let Some(instance) = snapshot.instances(&target.name).iter().find(unclear) {
                if ours && operation.unsupervised && instance.id == replacement.replaces {
                    return stop(operation, target, replacement, instance, now);
                }
                return Progress::Next(clear_up(operation, target, instance, now));
            }
            if !ours && let Some(waiting) = foreign_start(new, now) {
                return Progress::Next(Next::Wait(waiting));
            }
            if let Some(waiting) = others_start(operation, target, snapshot, now) {
                return Progress::Next(Next::Wait(waiting));
            }
            if let Some(message) = operation.given_up(Verb::Start, &target.name) {
                return Progress::Failed(Failure::Start {
                    container: container(),
                    message: message.to_owned(),
                });
            }
            if ours && let Some(effect) = fence_again(operation, target, snapshot, new) {
                return do_(effect);
            }
            do_(Effect::Start { container: container(), id: new.id.clone() })
        }
        State::Running => {
            let running = snapshot.running(&target.name).len();
            if running > 1 {
                return Progress::Failed(Failure::Duplicate { container: container(), count: running });
            }
            match unfence(operation, target, snapshot, now) {
                // Until its kubelet has told that it saw the new one run, the fence may stay beside everything else.
                Some(Next::Wait(_)) if held_shortly(operation, target, snapshot, now).is_none() => {
                    Progress::Running(new)
                }
                Some(next) => Progress::Next(next),
                None => Progress::Running(new),
            }
        }
        State::Exited => match cut_off(operation, target, new, now).filter(|_| ours) {
            Some(next) => Progress::Next(next),
            None => Progress::Failed(ended(operation, target, new)),
        },
        State::Unknown if ours && was_half_made(operation, target, new, now) => {
            do_(remove(new, Leftover::NeverStarted))
        }
        State::Unknown => Progress::Next(clear_up(operation, target, new, now)),
    }
}

/// What to do about `instance`, of which the runtime can tell nothing: after a runtime's own restart that lasts until somebody ends it.
/// A kubelet does that by itself; without one, what was made here is removed, which ends its process, and made again.
pub(super) fn clear_up(operation: &Operation, target: &Target, instance: &Container, now: Timestamp) -> Next {
    let since = instance.started_at.unwrap_or(instance.created_at);
    let may_remove = operation.made(instance) && operation.can_remove(&instance.id);
    if operation.unsupervised && may_remove && is_over(since, UNCLEAR, now) {
        return Next::Do(remove(instance, Leftover::NeverStarted));
    }
    let on = format!("the runtime to tell the state of {}", target.name);
    Next::Wait(Waiting { until: later(now, REQUEUE), on })
}

/// Whether `new`, of which the runtime can tell nothing, is what is left of a creation in the middle of which the runtime
/// ended: nothing of this container was stopped yet, so nobody was asked to start the new one either.
fn was_half_made(operation: &Operation, target: &Target, new: &Container, now: Timestamp) -> bool {
    !target.touched && is_over(new.created_at, CREATION, now) && operation.can_remove(&new.id)
}

/// The fence once more, where it is gone before the new life runs. A kubelet collects what does not run once a minute, and
/// keeps the newest of a name: for the moment before its start that is the new life, and a fence that does not run goes.
fn fence_again(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    new: &Container,
) -> Option<Effect> {
    let attempt = new.attempt.saturating_add(1);
    let guarded = snapshot.fences(&target.name).any(|fence| fence.attempt == attempt);
    // Without one it is still better off running than not.
    if guarded || operation.unsupervised || operation.given_up(Verb::Fence, &target.name).is_some() {
        return None;
    }
    let (container, source) = (target.name.clone(), new.id.clone());
    Some(Effect::Fence { container, source, attempt, image: None, rehearse: false, by_process: false })
}

/// The same while the start of the container `id` takes its time, as it does on a busy node.
pub fn while_it_starts(
    operation: &Operation,
    snapshot: &Snapshot,
    container: &str,
    id: &str,
) -> Option<Effect> {
    if snapshot.declared.as_ref().is_some_and(Declared::leaves) {
        return None;
    }
    let target = operation.targets.iter().find(|target| target.name == container)?;
    let new =
        snapshot.by_id(id).filter(|instance| instance.state == State::Created && operation.made(instance))?;
    fence_again(operation, target, snapshot, new)
}

/// Whether a kubelet has made the replacement while the fence of `attempt`, which does not run yet, was made from `source`,
/// and not started it yet. Its collection keeps the newest of what does not run: it would note that one as to be removed,
/// for being older than the fence, and remove it even if it runs by then.
pub fn is_overtaken(snapshot: &Snapshot, container: &str, attempt: u32, source: &str) -> bool {
    snapshot.instances(container).into_iter().any(|instance| {
        instance.state == State::Created
            && instance.attempt.saturating_add(1) == attempt
            && instance.id != source
    })
}

/// What to do about the one created here when a kubelet has started `other` before it: that is the new life then. A fence
/// that is collected before the start guards nothing.
fn give_way(
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
        // Ours never ran, and is removed at the end.
        let (name, replaces) = (target.name.clone(), target.replacement().replaces.clone());
        return Some(Next::Note(Note::Overtaken {
            name,
            replaces,
            attempt: other.attempt,
            cut_short: false,
        }));
    }
    let counted_anew = is_counted_anew(operation, target, other, snapshot);
    (counted_anew && operation.can_remove(&ours.id)).then(|| Next::Do(remove(ours, Leftover::NeverStarted)))
}

/// What to do about a second life that a kubelet has started beside the one made here, which the fence is there to prevent.
/// The kubelet knows the newest alone and would never end the other: the one made here gives way. However late it is, that is
/// tried some times.
pub(super) fn yield_to_twin(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    let running = snapshot.running(&target.name);
    let [ours, theirs] = running.as_slice() else { return None };
    if operation.unsupervised || !operation.made(ours) || operation.made(theirs) {
        return None;
    }
    let replacement = target.replacement();
    if replacement.replaces != ours.id {
        let (name, replaces, attempt) = (target.name.clone(), ours.id.clone(), theirs.attempt);
        return Some(Next::Note(Note::Overtaken { name, replaces, attempt, cut_short: false }));
    }
    // Asked for more than once and still there: that is for a person to see.
    let tries = operation.last_failure.as_ref().filter(|last_failure| last_failure.verb == Verb::Stop);
    let is_overdue = now >= operation.deadline_at;
    if is_overdue && tries.is_some_and(|last_failure| last_failure.count >= LATE_STOPS)
        || operation.given_up(Verb::Stop, &target.name).is_some()
    {
        return None;
    }
    let (container, id) = (target.name.clone(), ours.id.clone());
    let grace_seconds = if is_overdue { 0 } else { target.grace_seconds };
    let timeout_seconds = grace_seconds.max(LEAST_STOP_SECONDS);
    Some(Next::Do(Effect::Stop { container, id, timeout_seconds }))
}

/// Whether a start that the runtime refused deserves another try: where no kubelet will make one, of an image that has
/// run before. A swap on its way there has a better way out.
fn may_be_started_again(operation: &Operation, target: &Target) -> bool {
    let has_run = target.action == Action::Restart || operation.turned_back.is_some();
    operation.unsupervised && has_run && target.replacement().refused_starts < STARTS
}

/// What becomes of a life that is over before it began, with no word from the runtime why: its start was lost with the
/// process that asked for it, or with the runtime, and says nothing about the image. It is made again.
fn cut_off(operation: &Operation, target: &Target, instance: &Container, now: Timestamp) -> Option<Next> {
    if instance.started_at.is_some() || !operation.can_remove(&instance.id) {
        return None;
    }
    let ours = |last_failure: &&LastFailure| {
        last_failure.verb == Verb::Start && last_failure.container == target.name
    };
    if let Some(last_failure) = operation.last_failure.as_ref().filter(ours) {
        // A refusal ends the life it is about: if it was asked for again, the start before was lost, and this one found
        // what was left of it.
        let refused = !last_failure.effect_error.class.is_away() && last_failure.count == 1;
        if refused && !may_be_started_again(operation, target) {
            return None;
        }
        let until = later(last_failure.at, CUT_OFF_PAUSE);
        if now < until {
            let on = format!("another try to start {}: {}", target.name, last_failure.effect_error.message);
            return Some(Next::Wait(Waiting { until, on }));
        }
    }
    Some(Next::Do(remove(instance, Leftover::NeverStarted)))
}

/// Takes the fences away, but not right after a start, or after what did not start went away.
pub(super) fn unfence(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Next> {
    let fence = snapshot.fences(&target.name).find(|fence| operation.can_remove(&fence.id))?;
    let held = held(operation, target, snapshot, now).map(Next::Wait);
    Some(held.unwrap_or_else(|| Next::Do(remove(fence, Leftover::Fence))))
}

/// The wait for as long as somebody may act on what was there before a start, or before a removal.
fn held(operation: &Operation, target: &Target, snapshot: &Snapshot, now: Timestamp) -> Option<Waiting> {
    let shortly = held_shortly(operation, target, snapshot, now);
    if shortly.is_some() || !operation.in_cluster {
        return shortly;
    }
    let running = snapshot.running(&target.name);
    let unseen =
        running.iter().find(|instance| operation.made(instance) && !is_reported(snapshot, instance))?;
    let since = unseen.started_at.filter(|since| *since <= now)?;
    let on = format!("the kubelet to see {}", target.name);
    (now < later(since, FENCE_HOLDS_AT_MOST)).then(|| Waiting { until: later(now, REQUEUE * 3), on })
}

/// The same for somebody who acts at once.
fn held_shortly(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Waiting> {
    let started = snapshot.running(&target.name).iter().filter_map(|instance| instance.started_at).max();
    let until = later(started.max(operation.removed_at)?, FENCE_HOLDS);
    // A clock that was set back holds nothing.
    let soon = now < until && until < later(now, FENCE_HOLDS * 2);
    soon.then(|| Waiting { until, on: format!("{} to be seen by others", target.name) })
}

/// Whether the kubelet has told that `instance` runs. It does so when it begins to act on what it saw, and does one thing
/// after the other.
fn is_reported(snapshot: &Snapshot, instance: &Container) -> bool {
    let reported = snapshot.declared.as_ref().and_then(|declared| declared.container(&instance.name));
    reported
        .is_some_and(|reported| reported.running && reported.container_id.as_deref() == Some(&instance.id))
}

/// The wait for somebody else to start what it created, while that may still happen.
pub(super) fn foreign_start(instance: &Container, now: Timestamp) -> Option<Waiting> {
    (!is_over(instance.created_at, FOREIGN_START, now)).then(|| Waiting {
        until: later(now, REQUEUE),
        on: format!("the kubelet to start {}", instance.name),
    })
}

/// The same for one under another name than that of the replacement. A kubelet that finds no trace of earlier lives any
/// more counts from the beginning, which no fence guards.
fn others_start(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Option<Waiting> {
    let attempt = target.replacement().attempt;
    let others = |instance: &&Container| {
        instance.state == State::Created && instance.attempt != attempt && !operation.made(instance)
    };
    foreign_start(snapshot.instances(&target.name).into_iter().find(others)?, now)
}

/// Why a new life is over.
pub(super) fn ended(operation: &Operation, target: &Target, instance: &Container) -> Failure {
    let container = target.name.clone();
    if let Some(started) = instance.started_at {
        // A runtime may note the start of one that ends at once only after its end.
        let lived = instance.finished_at.map_or(SignedDuration::ZERO, |end| end.duration_since(started));
        let lived = lived.max(SignedDuration::ZERO);
        let lived_ms = i64::try_from(lived.as_millis()).unwrap_or(i64::MAX);
        return Failure::Exited { container, code: instance.exit_code, lived_ms };
    }
    let reported =
        operation.last_failure.as_ref().filter(|s| s.verb == Verb::Start && s.container == target.name);
    let message = reported.map_or_else(
        || format!("the runtime gave up with code {}", instance.exit_code),
        |last_failure| last_failure.effect_error.message.clone(),
    );
    Failure::Start { container, message }
}

/// The image for the replacement under way: on the way back the one from before, else the one that was pulled, and
/// none for a restart, which keeps what its source has.
fn image_of(operation: &Operation, target: &Target) -> Option<ImageChoice> {
    if let Some(change) = &target.change {
        return Some(respec::image(operation, target, change));
    }
    if operation.turned_back.is_some() && target.action == Action::Swap {
        return Some(image_before(target));
    }
    target.pulled.clone()
}

fn image_before(target: &Target) -> ImageChoice {
    ImageChoice { reference: target.from.image.clone(), id: target.from.image_id.clone(), spec_hash: None }
}

/// Whose configuration is cloned: the life from before, or, if that was removed meanwhile, the newest there is.
pub(super) fn source_of<'a>(
    target: &Target,
    replacement: &Replacement,
    snapshot: &'a Snapshot,
) -> Option<&'a Container> {
    snapshot
        .by_id(&target.from.container_id)
        .or_else(|| snapshot.by_id(&replacement.replaces))
        .or_else(|| snapshot.instances(&target.name).last().copied())
}

pub(super) fn remove(container: &Container, what: Leftover) -> Effect {
    Effect::Remove { container: container.name.clone(), id: container.id.clone(), what }
}

pub(super) fn do_<'a>(effect: Effect) -> Progress<'a> {
    Progress::Next(Next::Do(effect))
}

#[cfg(test)]
mod tests;
