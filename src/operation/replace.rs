//! Replaces one container instance by another: fence, preStop, stop, create, start, remove the fence. In a pod
//! without a kubelet, the new container is created before the old one is stopped, so that the create call is not part
//! of the downtime.
//!
//! | the snapshot shows | next step |
//! |---|---|
//! | no replacement, no fence of the next attempt | create the fence: `make` |
//! | no replacement, a fence of another attempt | remove that fence once no kubelet may act on it: `make` |
//! | no replacement, a fence of its attempt that cannot be removed | continue with the attempt after all fences: `after_fences` |
//! | no replacement, the old instance runs (beside a kubelet) | preStop, then stop: `stop` |
//! | no replacement, the old instance has ended | create, at a barrier once that is open: `make` |
//! | created, without a kubelet, the old instance runs | preStop, then stop: `settle` |
//! | created here | create the fence again if it is gone, then start: `settle` |
//! | created by a kubelet | wait for its start, at most 10 s, then start it, or, where no clone is possible, wait for the next one: `kubelets_start` |
//! | created here, and another instance runs | continue with that one: `duplicate::give_way` |
//! | running alone | remove the fence; done: `settle` |
//! | running beside another instance that runs or is about to | failed; the one created here is stopped: `duplicate::stop_duplicate` |
//! | created here, exited before it started, not refused by the runtime | remove it and create it again; if it cannot be removed, or no other container has the configuration, continue with the next attempt: `cut_off` |
//! | created by a kubelet, its start was lost | continue with the next attempt: `lost_start` |
//! | exited otherwise | failed: `ended` |
//! | state unknown | wait; without a kubelet remove it and create it again: `clear_up` |
//!
//! Every decision is derived from the snapshot. It does not matter which program did a step, or whether the response
//! to a call was lost. Nothing here executes an effect.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::{Action, Engine};
use crate::operation::decision::{Next, Waiting};
use crate::operation::duplicate::give_way;
use crate::operation::effect::{Effect, ImageChoice, Leftover, Verb, remove};
use crate::operation::fence::{REQUEUE, fence_again, held_shortly, unfence};
use crate::operation::group;
use crate::operation::last_failure::LastFailure;
use crate::operation::note::{Note, Overtaking};
use crate::operation::outcome::Failure;
use crate::operation::replacement::Replacement;
use crate::operation::respec::{self, respec, stop_and_wait};
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{MIN_STOP_SECONDS, Operation, Target, is_over, later};
use crate::operation::unclear;

/// How long a created container of another program may wait for that program to start it.
const FOREIGN_START: SignedDuration = SignedDuration::from_secs(10);
/// How long a creation may take until the runtime can report the state of the new container.
const CREATION: SignedDuration = SignedDuration::from_secs(3);
/// How many refused starts are accepted where no other program starts the container.
const MAX_STARTS: u32 = 3;
/// The pause before the next look at a container that its kubelet has collected, and may start only minutes later.
const COLLECTED: SignedDuration = SignedDuration::from_millis(250);
/// The pause before the next start is requested from a runtime that lost the previous one.
const CUT_OFF_PAUSE: SignedDuration = SignedDuration::from_millis(500);
/// The progress of a replacement.
pub(super) enum Progress<'a> {
    /// There is something to do or to wait for.
    Next(Next),
    /// The container waits for the other pods of the group.
    Held,
    /// The new instance runs as the only one, and no fence is left that could be removed by now.
    Running(&'a Container),
    /// The replacement failed.
    Failed(Failure),
}

/// The next step for `target`.
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

/// True when `instance` is the kubelet's replacement for the instance that ended, with an attempt number counted from
/// 0 again. The kubelet's collection of dead containers, once a minute, keeps the newest of a name, and that is a
/// fence that does not run. Kubelets before 1.24 then lose the attempt numbers.
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

/// The next step while there is no new instance yet.
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
    // The kubelet's collection of dead containers keeps the newest of a name, which may be the fence. The fence may
    // serve as the source if it is a clone. If no container is left, the configuration was read before the stop.
    let spare = guard.filter(|fence| !fence.holder);
    let source = source_of(target, replacement, snapshot).or(spare).map(|instance| &instance.id);
    let Some(source) = source.or(target.touched.then_some(&target.from.container_id)) else {
        if snapshot.sandbox.as_ref().is_some_and(|sandbox| sandbox.owner.is_kubelet()) {
            // It ended by itself, and its kubelet has collected it: that starts the next one.
            let on = format!("waiting for the kubelet to start {name}");
            return Progress::Next(Next::Wait(Waiting { until: later(now, COLLECTED), on }));
        }
        let message = "no earlier container of that name is left whose configuration could be cloned";
        return Progress::Failed(Failure::Create { container: container(), message: message.to_owned() });
    };
    // A source other than the replaced instance may have another image.
    let image = image_of(operation, target)
        .or_else(|| (*source != target.from.container_id).then(|| image_before(target)));
    if !fenced {
        // A fence from a test creation: it proved that the replacement can be created, and was not removed in time.
        let is_test = |fence: &&Container| fence.attempt > guarded && operation.can_remove(&fence.id);
        if let Some(fence) = snapshot.fences(name).find(is_test) {
            return do_(remove(fence, Leftover::Fence));
        }
    }
    let is_kept = keeps_name(operation, target, replacement, snapshot, now);
    let own = snapshot.fences(name).find(|fence| is_kept && fence.attempt == replacement.attempt);
    // Not before the stop: without this program a kubelet could not restart the container, which still runs.
    let lacks_own = is_kept && own.is_none() && !target.touched && group::may_stop(operation, snapshot);
    if (!fenced || lacks_own) && !replacement.unfenced {
        return match failed(Verb::Fence) {
            // What has stopped is better started without a fence than not at all.
            Some(_) if target.touched => Progress::Next(Next::Note(Note::Unfenced(container()))),
            Some(message) => Progress::Failed(Failure::TestCreation { container: container(), message }),
            None => do_(Effect::Fence {
                container: container(),
                source: source.clone(),
                attempt: if fenced { replacement.attempt } else { guarded },
                image,
                test_create: !fenced && !target.touched,
                by_process: false,
            }),
        };
    }
    // A holder whose process never began or has ended still reserves the name, but a kubelet collects it.
    let idle = |fence: &&Container| fence.holder && fence.state != State::Running;
    if let Some(fence) = guard.into_iter().chain(own).find(idle)
        && !target.touched
        && operation.can_remove(&fence.id)
    {
        return do_(remove(fence, Leftover::Fence));
    }
    // In a rollback, the fence of the forward replacement reserves the name that is needed now.
    let needless = |fence: &&Container| fence.attempt != guarded && own.is_none_or(|own| own.id != fence.id);
    let removable = |fence: &&Container| needless(fence) && operation.can_remove(&fence.id);
    if let Some(fence) = snapshot.fences(name).find(removable) {
        let held = held_shortly(operation, target, snapshot, now).map(Next::Wait);
        return Progress::Next(held.unwrap_or_else(|| Next::Do(remove(fence, Leftover::Fence))));
    }
    if snapshot.fences(name).filter(needless).any(|fence| fence.attempt == replacement.attempt) {
        return Progress::Next(after_fences(target, replacement, snapshot));
    }
    if !group::may_stop(operation, snapshot) {
        return Progress::Held;
    }
    let running = snapshot.running(name);
    if running.len() > 1 {
        return Progress::Failed(Failure::Duplicate { container: container(), count: running.len() });
    }
    // Only the instance that was to be replaced is ever stopped.
    if let Some(other) = running.first().filter(|instance| instance.id != replacement.replaces) {
        let what = format!("attempt {} runs", other.attempt);
        return Progress::Failed(Failure::Changed { container: container(), what });
    }
    if !operation.unsupervised
        && let Some(old) = snapshot.by_id(&replacement.replaces).filter(|old| old.may_run())
    {
        return stop(operation, target, replacement, old, now);
    }
    if own.is_some() {
        return Progress::Held;
    }
    if let Some(message) = failed(Verb::Create) {
        return Progress::Failed(Failure::Create { container: container(), message });
    }
    if let Some(waiting) = others_start(operation, target, snapshot, now) {
        return Progress::Next(Next::Wait(waiting));
    }
    let (attempt, limits) = (replacement.attempt, limits_of(name, source, snapshot));
    do_(Effect::Create { container: container(), source: source.clone(), attempt, image, limits })
}

/// Whether a fence keeps the name of the new instance itself until that may be started: at a barrier a kubelet must not
/// create it in the moment between the stop and the creation. A container that ends before it is stopped is its kubelet's
/// to restart.
fn keeps_name(
    operation: &Operation,
    target: &Target,
    replacement: &Replacement,
    snapshot: &Snapshot,
    now: Timestamp,
) -> bool {
    let old = snapshot.by_id(&replacement.replaces);
    !group::may_start(operation, snapshot, now) && (target.touched || old.is_some_and(Container::may_run))
}

/// Continues with the first attempt after all fences, because the name of this one stays reserved. A kubelet cannot
/// create it either.
fn after_fences(target: &Target, replacement: &Replacement, snapshot: &Snapshot) -> Next {
    let last = snapshot.fences(&target.name).map(|fence| fence.attempt).max();
    Next::Note(Note::Overtaken {
        name: target.name.clone(),
        replaces: replacement.replaces.clone(),
        attempt: last.unwrap_or(replacement.attempt).saturating_add(1),
        by: Overtaking::OwnInstance,
    })
}

/// Stops the instance that is to be replaced: preStop first, then the stop itself.
pub(super) fn stop<'a>(
    operation: &Operation,
    target: &Target,
    replacement: &Replacement,
    old: &Container,
    now: Timestamp,
) -> Progress<'a> {
    let (container, id) = (target.name.clone(), old.id.clone());
    // As a kubelet does: without a grace period the handler is not run.
    let runs_pre_stop = target.has_pre_stop && target.grace_seconds > 0;
    if runs_pre_stop && old.state == State::Running && replacement.pre_stop_at.is_none() {
        return do_(Effect::PreStop { container, id, budget_seconds: target.grace_seconds });
    }
    if let Some(message) = operation.given_up(Verb::Stop, &target.name) {
        return Progress::Failed(Failure::Stop { container, message: message.to_owned() });
    }
    let spent =
        replacement.pre_stop_at.map_or(0, |at| now.duration_since(at).as_secs().max(0).unsigned_abs());
    let timeout_seconds = target.grace_seconds.saturating_sub(spent).max(MIN_STOP_SECONDS);
    do_(Effect::Stop { container, id, timeout_seconds })
}

/// The next step when `new` already has the name of the new attempt.
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
            // Created on the way forward by a call that was considered lost. The rollback needs its name.
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
                let what =
                    format!("attempt {} runs although attempt {} was created", other.attempt, new.attempt);
                return Progress::Failed(Failure::Changed { container: container(), what });
            }
            // A container in an unknown state may be running. An old one whose state nothing can
            // report any more does not count.
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
            if !ours && let Some(waiting) = kubelets_start(target, new, now) {
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
            if ours && !group::may_start(operation, snapshot, now) {
                return Progress::Held;
            }
            do_(Effect::Start { container: container(), id: new.id.clone() })
        }
        State::Running => {
            let running = snapshot.running(&target.name).len();
            if running > 1 {
                return Progress::Failed(Failure::Duplicate { container: container(), count: running });
            }
            match unfence(operation, target, snapshot, now) {
                // Until the kubelet has reported the new instance as running, the fence may stay
                // while everything else continues.
                Some(Next::Wait(_)) if held_shortly(operation, target, snapshot, now).is_none() => {
                    Progress::Running(new)
                }
                Some(next) => Progress::Next(next),
                None => Progress::Running(new),
            }
        }
        State::Exited => {
            let next = if ours {
                cut_off(operation, target, snapshot, new, now)
            } else {
                lost_start(operation, target, new)
            };
            next.map_or_else(|| Progress::Failed(ended(operation, target, new)), Progress::Next)
        }
        State::Unknown if ours && was_half_made(operation, target, new, now) => {
            do_(remove(new, Leftover::NeverStarted))
        }
        State::Unknown => Progress::Next(clear_up(operation, target, new, now)),
    }
}

/// Decides about `instance`, whose state the runtime cannot report. After a restart of the runtime this lasts until
/// the container is stopped. A kubelet does that by itself. Without a kubelet, a container created here is removed,
/// which ends its process, and is created again.
pub(super) fn clear_up(operation: &Operation, target: &Target, instance: &Container, now: Timestamp) -> Next {
    let may_remove = operation.made(instance) && operation.can_remove(&instance.id);
    if operation.unsupervised && may_remove && unclear::lasts(target, instance, now) {
        return Next::Do(remove(instance, Leftover::NeverStarted));
    }
    let on = format!("waiting for the runtime to report the state of {}", target.name);
    Next::Wait(Waiting { until: later(now, REQUEUE), on })
}

/// True when `new`, whose state the runtime cannot report, is the rest of a creation during which the runtime ended:
/// nothing of this container was stopped yet, so no start of the new one was requested either.
fn was_half_made(operation: &Operation, target: &Target, new: &Container, now: Timestamp) -> bool {
    !target.touched && is_over(new.created_at, CREATION, now) && operation.can_remove(&new.id)
}

/// True when a refused start is retried: no kubelet will start the container, and its image has run before. A swap on
/// its way forward rolls back instead.
fn may_be_started_again(operation: &Operation, target: &Target) -> bool {
    let has_run = target.action == Action::Restart || operation.rollback_cause.is_some();
    operation.unsupervised && has_run && target.replacement().refused_starts < MAX_STARTS
}

/// Continues with the attempt after `instance`, which ended before it started.
fn continue_after(target: &Target, instance: &Container) -> Next {
    Next::Note(Note::Overtaken {
        name: target.name.clone(),
        replaces: instance.id.clone(),
        attempt: instance.attempt.saturating_add(1),
        by: Overtaking::OwnInstance,
    })
}

/// The next step for an instance created here that ended before it started, unless the runtime refused the start: that was
/// lost with the process that requested it, or with the runtime. This says nothing about the image, so the instance is
/// created again.
fn cut_off(
    operation: &Operation,
    target: &Target,
    snapshot: &Snapshot,
    instance: &Container,
    now: Timestamp,
) -> Option<Next> {
    if instance.started_at.is_some() {
        return None;
    }
    // containerd keeps the task of a container whose start was cancelled while it read the task's process ID: the task
    // stays created, its program never runs, and the removal of the container is refused until the pod is gone.
    // A kubelet collects all instances but the newest that has ended: then this one alone has the configuration.
    if !operation.can_remove(&instance.id) || is_only_source(target, snapshot, instance) {
        return Some(continue_after(target, instance));
    }
    let ours = |last_failure: &&LastFailure| {
        last_failure.verb == Verb::Start && last_failure.container == target.name
    };
    if let Some(last_failure) = operation.last_failure.as_ref().filter(ours) {
        // A refusal ends the instance that it is for. If the start was requested more than once, the earlier start
        // was lost, and the later one found what it had left.
        let refused = !last_failure.effect_error.class.is_unavailable() && last_failure.count == 1;
        if refused && !may_be_started_again(operation, target) {
            return None;
        }
        let until = later(last_failure.at, CUT_OFF_PAUSE);
        if now < until {
            let on = format!("retrying to start {}: {}", target.name, last_failure.effect_error.message);
            return Some(Next::Wait(Waiting { until, on }));
        }
    }
    Some(Next::Do(remove(instance, Leftover::NeverStarted)))
}

/// The exit code that containerd reports for a container whose process was gone when containerd started
/// (`unknownExitCode` of its CRI plugin). A container that cannot be started has another one.
const LOST_EXIT_CODE: i32 = 255;

/// The next step for an instance of the kubelet whose start was lost: with the runtime, or with its caller, which is the kubelet
/// or, in its place, this program. This says nothing about the image: the next instance follows, as after one that the
/// kubelet made of an older spec.
fn lost_start(operation: &Operation, target: &Target, instance: &Container) -> Option<Next> {
    let lost = |last_failure: &LastFailure| {
        let is_start = last_failure.verb == Verb::Start && last_failure.container == target.name;
        is_start && last_failure.effect_error.class.is_unavailable()
    };
    let is_lost = instance.exit_code == LOST_EXIT_CODE
        || instance.start_error.as_ref().is_some_and(|error| error.canceled)
        || operation.last_failure.as_ref().is_some_and(lost);
    // The image of a restart has run before, whatever the exit code is.
    let has_run = target.action == Action::Restart && !operation.unsupervised;
    (instance.started_at.is_none() && (has_run || target.change.is_some() && is_lost))
        .then(|| continue_after(target, instance))
}

/// The wait for another program to start a container that it created, while that may still happen.
pub(super) fn foreign_start(instance: &Container, now: Timestamp) -> Option<Waiting> {
    (!is_over(instance.created_at, FOREIGN_START, now)).then(|| Waiting {
        until: later(now, REQUEUE),
        on: format!("waiting for the kubelet to start {}", instance.name),
    })
}

/// The same for the new instance of a target. Where this program creates no clone, it does not start the instance either: a
/// kubelet that has lost it creates another one, and CRI-O removes a container whose start is requested twice.
fn kubelets_start(target: &Target, instance: &Container, now: Timestamp) -> Option<Waiting> {
    let is_cloneable = target.change.as_ref().is_some_and(|change| change.cloneable);
    let may_start = target.engine == Engine::Recreate || is_cloneable;
    let until_another = || Waiting {
        until: later(now, COLLECTED),
        on: format!("waiting for the kubelet to start {}, or to create another one", instance.name),
    };
    foreign_start(instance, now).or_else(|| (!may_start).then(until_another))
}

/// The same for a container under another name than the replacement's. A kubelet that finds no earlier instance
/// counts attempts from 0 again, and no fence reserves those names.
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

/// The failure of a new instance that has ended.
pub(super) fn ended(operation: &Operation, target: &Target, instance: &Container) -> Failure {
    let container = target.name.clone();
    if let Some(started) = instance.started_at {
        // A runtime may record the start of a process that ends at once only after its end.
        let uptime = instance.finished_at.map_or(SignedDuration::ZERO, |end| end.duration_since(started));
        let uptime = uptime.max(SignedDuration::ZERO);
        let uptime_ms = i64::try_from(uptime.as_millis()).unwrap_or(i64::MAX);
        return Failure::Exited { container, code: instance.exit_code, uptime_ms };
    }
    let reported =
        operation.last_failure.as_ref().filter(|s| s.verb == Verb::Start && s.container == target.name);
    // A call that was not answered does not say why.
    let says_why = |last_failure: &&LastFailure| {
        instance.start_error.is_none() || !last_failure.effect_error.class.is_unavailable()
    };
    let message = match (reported.filter(says_why), &instance.start_error) {
        (Some(last_failure), _) => last_failure.effect_error.message.clone(),
        (None, Some(error)) => error.message.clone(),
        (None, None) => format!("the runtime reports exit code {} without a start", instance.exit_code),
    };
    Failure::Start { container, message }
}

/// The image for the current replacement: in a rollback the previous image, otherwise the pulled one. `None` for a
/// restart, which keeps the image of its source.
fn image_of(operation: &Operation, target: &Target) -> Option<ImageChoice> {
    if let Some(change) = &target.change {
        return Some(respec::image(operation, target, change));
    }
    if operation.rollback_cause.is_some() && target.action == Action::Swap {
        return Some(image_before(target));
    }
    target.pulled.clone()
}

fn image_before(target: &Target) -> ImageChoice {
    ImageChoice { reference: target.from.image.clone(), id: target.from.image_id.clone(), spec_hash: None }
}

/// The container whose configuration is cloned: the replaced instance, or, if that was removed, the newest one.
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

/// True when the configuration can be cloned from no other container.
fn is_only_source(target: &Target, snapshot: &Snapshot, instance: &Container) -> bool {
    let is_other = |other: &&Container| other.id != instance.id;
    !snapshot.instances(&target.name).iter().any(is_other)
        && snapshot.fences(&target.name).all(|fence| fence.holder)
}

/// The newest instance of `name` that has run, if it is newer than the source: in a rollback, the one that is taken back.
/// The time counts, because a kubelet may count attempts from 0 again.
fn limits_of(name: &str, source: &str, snapshot: &Snapshot) -> Option<String> {
    let instances = snapshot.instances(name);
    let has_run = instances.iter().filter(|instance| instance.started_at.is_some());
    let newest = has_run.max_by_key(|instance| instance.created_at)?;
    let is_newer = snapshot.by_id(source).is_none_or(|source| newest.created_at > source.created_at);
    (newest.id != source && is_newer).then(|| newest.id.clone())
}

pub(super) fn do_<'a>(effect: Effect) -> Progress<'a> {
    Progress::Next(Next::Do(effect))
}

#[cfg(test)]
mod tests;
