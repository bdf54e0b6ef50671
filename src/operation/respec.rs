//! Engines that leave the replacement to the kubelet: either the image in the pod's spec is changed, or the container
//! is stopped. Then the kubelet's reaction is observed.
//!
//! A kubelet may delay the container (back-off) although its spec has changed. After a head start, this program then
//! creates the new instance itself, under the name that the kubelet would take and with the hash that it expects. The
//! fence for this is created before the spec is changed. A fence that is created only after the old container has
//! ended is for a moment a container that does not run, and the newest: the kubelet, which collects dead containers
//! and keeps the newest, would keep it and remove the instance that it creates itself.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::Action;
use crate::operation::decision::{Next, Waiting};
use crate::operation::effect::{Effect, ImageChoice, Leftover, Verb, remove};
use crate::operation::engine::SpecChange;
use crate::operation::note::{Note, Overtaking};
use crate::operation::outcome::Failure;
use crate::operation::replace::{Progress, do_, is_counted_anew, make, settle, source_of, stop};
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{Operation, Target, later, seconds};

/// The maximum time that a kubelet needs to create the new instance after the old one ended, when nothing delays it.
const HEAD_START: SignedDuration = SignedDuration::from_millis(250);
/// The same in a rollback, where a failed container is already down. If the kubelet starts at the same moment, one of
/// the two finds the name taken.
const HEAD_START_BACK: SignedDuration = SignedDuration::from_millis(50);
/// How long a kubelet may need to receive a changed spec. A kubelet that has begun to stop a container by then needs
/// the container's grace period in addition.
const SPEC_RECEIVED_WITHIN: SignedDuration = SignedDuration::from_secs(2);
/// The maximum of the same in a rollback, where the API server may have been away a moment ago: a kubelet pauses up
/// to 30 s, or twice that, between two attempts to watch (client-go, `reflector.go`).
const WATCH_RESUMES_WITHIN: SignedDuration = SignedDuration::from_secs(60);
/// The exit codes of a container that its kubelet stops: by itself, by SIGKILL, by SIGTERM. With another code a new image has
/// failed. A container that ends with another code when it is stopped is taken for a failed one.
const STOPPED: [i32; 3] = [0, 128 + 9, 128 + 15];
/// The interval between two observations while a change is about to happen, and while none is.
const REQUEUE: SignedDuration = SignedDuration::from_millis(20);
const REQUEUE_LATER: SignedDuration = SignedDuration::from_millis(250);
/// How long after an event a change counts as about to happen.
const SOON: SignedDuration = SignedDuration::from_secs(2);

/// The next step for a target whose pod spec is changed.
pub(super) fn respec<'a>(
    operation: &Operation,
    target: &Target,
    change: &SpecChange,
    snapshot: &'a Snapshot,
    now: Timestamp,
) -> Progress<'a> {
    let replacement = target.replacement();
    let returns = operation.rollback_cause.is_some();
    let Some(changed_at) = replacement.respec_at else {
        if let Some(message) = operation.given_up(Verb::Respec, &target.name) {
            let (container, message) = (target.name.clone(), message.to_owned());
            return Progress::Failed(if operation.is_denied_as_replaced() {
                Failure::Superseded { container, message }
            } else {
                Failure::Respec { container, message }
            });
        }
        if !change.settled && now < later(operation.begun_at, SPEC_RECEIVED_WITHIN) {
            let on =
                format!("waiting for the kubelet to bring {} to the state in the pod's spec", target.name);
            return Progress::Next(Next::Wait(Waiting { until: later(now, REQUEUE), on }));
        }
        if let Some(effect) = fence_ahead(operation, target, change, snapshot) {
            return do_(effect);
        }
        let (from, to) = if returns { (&change.to, &change.from) } else { (&change.from, &change.to) };
        let (container, from, to) = (target.name.clone(), from.clone(), to.clone());
        return do_(Effect::Respec { container, from, to });
    };
    let instances = snapshot.instances(&target.name);
    let fits = |instance: &&&Container| {
        let counts = instance.attempt >= replacement.attempt
            || instance.id == target.from.container_id
            || is_counted_anew(operation, target, instance, snapshot);
        counts && fits(target, change, returns, instance)
    };
    if let Some(new) = instances.iter().rev().find(fits) {
        // The old instance may stay, unless the kubelet has begun to stop it.
        let kept = new.id == target.from.container_id;
        if !kept && !returns && target.made_hash != new.spec_hash {
            // The hash of an instance that fails is noted too: if the same image is
            // requested again, the kubelet delays it.
            let hashed = Note::Hashed(target.name.clone(), new.spec_hash.clone());
            return Progress::Next(Next::Note(hashed));
        }
        let received_by = later(later(changed_at, SPEC_RECEIVED_WITHIN), seconds(target.grace_seconds));
        if kept && new.state == State::Running && snapshot.known_until(now) < received_by {
            return Progress::Next(Next::Wait(wait(target, changed_at, now)));
        }
        if !kept || new.state == State::Running {
            return settle(operation, target, snapshot, new, now);
        }
    }
    if let Some(fence) = obstructing(operation, target, change, snapshot) {
        return do_(remove(fence, Leftover::Fence));
    }
    // The kubelet created this instance from the old spec. It will be replaced like the instance before it.
    let newest = instances.last().filter(|instance| instance.attempt >= replacement.attempt);
    if let Some(newest) = newest.filter(|newest| newest.state == State::Exited) {
        let (name, replaces) = (target.name.clone(), newest.id.clone());
        let attempt = newest.attempt.saturating_add(1);
        return Progress::Next(Next::Note(Note::Overtaken {
            name,
            replaces,
            attempt,
            by: Overtaking::OwnInstance,
        }));
    }
    let alive = snapshot.by_id(&replacement.replaces).is_some_and(|old| old.state != State::Exited);
    if newest.is_some() || alive || !can_help(operation, target, change) {
        return Progress::Next(Next::Wait(wait(target, changed_at, now)));
    }
    let ended = snapshot.by_id(&replacement.replaces).and_then(|old| old.finished_at);
    // A time in the future was noted before the clock was set back.
    let ended = ended.filter(|ended| *ended < later(now, SOON));
    let was_down = ended.zip(replacement.respec_sent_at).is_some_and(|(ended, sent)| ended < sent);
    let head_start = match (returns, replacement.cut_shorts) {
        // Nothing shows that the kubelet has received the changed spec. Until then it would stop a new instance.
        (false, _) if was_down => SPEC_RECEIVED_WITHIN,
        (false, _) => HEAD_START,
        (true, 0 | 1) => HEAD_START_BACK,
        // The kubelet stopped two instances and may stop another one. Until it has received the spec change, each
        // attempt costs an instance.
        (true, times) => SignedDuration::from_secs(1 << (times - 1).min(5)),
    };
    let help_from = later(ended.map_or(changed_at, |ended| ended.max(changed_at)), head_start);
    if now < help_from {
        let until = help_from.min(later(now, REQUEUE));
        let on = format!("waiting for the kubelet to start {}", target.name);
        return Progress::Next(Next::Wait(Waiting { until, on }));
    }
    make(operation, target, replacement, snapshot, now)
}

/// True when this program can create the new container instance exactly as the kubelet would.
fn can_help(operation: &Operation, target: &Target, change: &SpecChange) -> bool {
    let returns = operation.rollback_cause.is_some();
    let hash_known = if returns { !target.from_hash.is_empty() } else { change.hash.is_some() };
    change.cloneable && hash_known
}

/// The next effect on fences before the spec is changed. If no fence can be created, the change is made without one.
fn fence_ahead(
    operation: &Operation,
    target: &Target,
    change: &SpecChange,
    snapshot: &Snapshot,
) -> Option<Effect> {
    if let Some(fence) = obstructing(operation, target, change, snapshot) {
        return Some(remove(fence, Leftover::Fence));
    }
    let replacement = target.replacement();
    let is_taken =
        snapshot.instances(&target.name).iter().any(|instance| instance.attempt >= replacement.attempt);
    let attempt = replacement.attempt.saturating_add(1);
    if let Some(fence) = snapshot.fences(&target.name).find(|fence| fence.attempt == attempt) {
        let is_idle = fence.state != State::Running && operation.can_remove(&fence.id);
        return is_idle.then(|| remove(fence, Leftover::Fence));
    }
    if is_taken || replacement.fence_tried || !can_help(operation, target, change) {
        return None;
    }
    let source = source_of(target, replacement, snapshot)?.id.clone();
    let (container, image) = (target.name.clone(), Some(image(operation, target, change)));
    Some(Effect::Fence { container, source, attempt, image, test_create: false, by_process: true })
}

/// A fence under the name that the kubelet takes next, because another instance was created in the meantime. If this
/// program created that instance, the fence stays: the kubelet must not take the next name, and this program will
/// create the next instance as well.
fn obstructing<'a>(
    operation: &Operation,
    target: &Target,
    change: &SpecChange,
    snapshot: &'a Snapshot,
) -> Option<&'a Container> {
    let newest = *snapshot.instances(&target.name).last()?;
    if operation.made(newest) && can_help(operation, target, change) {
        return None;
    }
    let obstructs = |fence: &&Container| {
        fence.attempt <= newest.attempt.saturating_add(1) && operation.can_remove(&fence.id)
    };
    snapshot.fences(&target.name).find(obstructs)
}

/// The failure when the pod's spec holds neither the image that it was changed to nor the image before the change.
/// Both are accepted, because data from the API server may be out of date.
pub(super) fn overruled<'a>(
    mut targets: impl Iterator<Item = &'a Target>,
    snapshot: &Snapshot,
) -> Option<Failure> {
    let declared = snapshot.declared.as_ref()?;
    targets.find_map(|target| {
        let change = target.change.as_ref().filter(|_| target.replacement().respec_at.is_some())?;
        let image = &declared.container(&target.name)?.image;
        let (container, image) = (target.name.clone(), image.clone());
        (image != change.from && image != change.to).then_some(Failure::Overruled { container, image })
    })
}

/// Handles a kubelet that had not read the changed spec yet and stopped the instance created here from it. The instance
/// is created again, unless the kubelet has done so: once, or, in a rollback, until the kubelet has read the spec, but
/// twice at most if its exit code is not that of a stop.
///
/// A kubelet works on a pod with the spec that it had when it began, and may have waited for a second by then
/// (`pod_workers.go` in pkg/kubelet waits for a newer list of containers).
pub(super) fn cut_short(operation: &Operation, target: &Target, snapshot: &Snapshot) -> Option<Note> {
    let replacement = target.replacement();
    let newest = *snapshot.instances(&target.name).last()?;
    let is_stop = STOPPED.contains(&newest.exit_code);
    let returns = operation.rollback_cause.is_some();
    let (times, until) = if returns {
        // The image that ran before may itself be one that crashes.
        (if is_stop { u32::MAX } else { 2 }, later(replacement.respec_at?, WATCH_RESUMES_WITHIN))
    } else {
        // What was created late has the same time.
        (1, later(replacement.respec_at?.max(newest.created_at), SPEC_RECEIVED_WITHIN))
    };
    // The image of a restart and of a rollback has run before.
    let counts = is_stop || returns || target.action == Action::Restart;
    let ended = |instance: &Container| instance.state == State::Exited && instance.started_at.is_some();
    let (replaces, attempt, at) = if newest.attempt == replacement.attempt {
        let at = newest.finished_at.filter(|_| operation.made(newest) && ended(newest) && counts)?;
        (newest.id.clone(), newest.attempt.saturating_add(1), at)
    } else {
        let before = &target.reached.as_ref()?.to;
        let gone = snapshot
            .by_id(&before.container_id)
            .is_none_or(|instance| operation.made(instance) && ended(instance));
        let replaced = gone && before.attempt == replacement.attempt && newest.attempt > before.attempt;
        (before.container_id.clone(), newest.attempt, Some(newest.created_at).filter(|_| replaced)?)
    };
    let again = Note::Overtaken { name: target.name.clone(), replaces, attempt, by: Overtaking::OldSpec };
    (replacement.cut_shorts < times && at < until).then_some(again)
}

/// The next step for a target that is only stopped, so that the kubelet restarts it.
pub(super) fn stop_and_wait<'a>(
    operation: &Operation,
    target: &Target,
    snapshot: &'a Snapshot,
    now: Timestamp,
) -> Progress<'a> {
    let replacement = target.replacement();
    if let Some(new) =
        snapshot.instances(&target.name).into_iter().rev().find(|l| l.attempt >= replacement.attempt)
    {
        // The kubelet creates another instance after one that it could not start.
        if new.state == State::Exited && new.started_at.is_none() && !operation.made(new) {
            return Progress::Next(Next::Wait(wait(target, new.created_at, now)));
        }
        return settle(operation, target, snapshot, new, now);
    }
    match snapshot.by_id(&replacement.replaces) {
        Some(old) if old.may_run() => stop(operation, target, replacement, old, now),
        old => {
            let ended = old.and_then(|old| old.finished_at).unwrap_or(operation.begun_at);
            Progress::Next(Next::Wait(wait(target, ended, now)))
        }
    }
}

/// The image of an instance that this program creates in place of the kubelet.
pub(super) fn image(operation: &Operation, target: &Target, change: &SpecChange) -> ImageChoice {
    if operation.rollback_cause.is_some() {
        let hash = Some(target.from_hash.clone()).filter(|hash| !hash.is_empty());
        return ImageChoice {
            reference: change.from.clone(),
            id: target.from.image_id.clone(),
            spec_hash: hash,
        };
    }
    let id = target.pulled.as_ref().map_or(&target.from.image_id, |pulled| &pulled.id);
    ImageChoice { reference: change.to.clone(), id: id.clone(), spec_hash: change.hash.clone() }
}

/// True when `instance` was created from the desired spec.
fn fits(target: &Target, change: &SpecChange, returns: bool, instance: &Container) -> bool {
    if returns {
        return instance.spec_hash == target.from_hash;
    }
    match &change.hash {
        Some(hash) => instance.spec_hash == *hash,
        None => instance.spec_hash != target.from_hash,
    }
}

fn wait(target: &Target, since: Timestamp, now: Timestamp) -> Waiting {
    let pause = if now < later(since, SOON) { REQUEUE } else { REQUEUE_LATER };
    Waiting { until: later(now, pause), on: format!("waiting for the kubelet to replace {}", target.name) }
}

#[cfg(test)]
mod late_kubelet;
#[cfg(test)]
mod tests;
