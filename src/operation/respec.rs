//! Leaving it to the kubelet: the image in the pod's spec is changed, or the container is stopped, and what the kubelet
//! makes of that is watched.
//!
//! A kubelet that holds the container back although its spec has changed is helped: after a head start, the new life is
//! created here under the name that the kubelet would take, with the hash that it expects. The fence that this takes is put up
//! before the spec is changed: a kubelet that collects dead containers could take one that is made after the old container
//! has ended, and has not started yet, for the newest of them, and remove the container that it makes itself.

use jiff::{SignedDuration, Timestamp};

use crate::operation::answer::{Next, Waiting};
use crate::operation::effect::{Effect, ImageChoice, Leftover, Verb};
use crate::operation::engine::SpecChange;
use crate::operation::note::Note;
use crate::operation::outcome::Failure;
use crate::operation::replace::{Progress, do_, is_counted_anew, make, remove, settle, source_of, stop};
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{Operation, Target, later, seconds};

/// What a kubelet takes at most to create the new life after the old one ended, when nothing holds it back.
const HEAD_START: SignedDuration = SignedDuration::from_millis(250);
/// The same on the way back, where a container that failed is down already. Should the kubelet begin at the same moment,
/// one of the two finds the name taken.
const HEAD_START_BACK: SignedDuration = SignedDuration::from_millis(50);
/// How long it may take a kubelet to hear of a change of mind. One that had begun to end a container until then takes the
/// container's grace in addition.
const CHANGE_OF_MIND: SignedDuration = SignedDuration::from_secs(2);
/// The same at most on the way back, where the API server may have been away a moment ago: a kubelet pauses up to 30 s, or
/// twice that, between two attempts to watch (client-go, `reflector.go`).
const HEARD_AT_LAST: SignedDuration = SignedDuration::from_secs(60);
/// How soon to look again while something is about to happen, and while nothing is.
const REQUEUE: SignedDuration = SignedDuration::from_millis(20);
const REQUEUE_LATER: SignedDuration = SignedDuration::from_millis(250);
/// How long something counts as about to happen.
const SOON: SignedDuration = SignedDuration::from_secs(2);

/// What to do next for a target whose pod's spec is changed.
pub(super) fn respec<'a>(
    operation: &Operation,
    target: &Target,
    change: &SpecChange,
    snapshot: &'a Snapshot,
    now: Timestamp,
) -> Progress<'a> {
    let replacement = target.replacement();
    let returns = operation.turned_back.is_some();
    let Some(changed_at) = replacement.respec_at else {
        if let Some(message) = operation.given_up(Verb::Respec, &target.name) {
            let (container, message) = (target.name.clone(), message.to_owned());
            return Progress::Failed(Failure::Respec { container, message });
        }
        if !change.settled && now < later(operation.begun_at, CHANGE_OF_MIND) {
            let on = format!("the kubelet to bring {} to what the pod's spec says", target.name);
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
        // The life from before may run on, unless its kubelet had begun to end it.
        let kept = new.id == target.from.container_id;
        if !kept && !returns && target.made_hash != new.spec_hash {
            // Also of one that is no good: should it be asked for again, its kubelet will hold it back.
            let hashed = Note::Hashed(target.name.clone(), new.spec_hash.clone());
            return Progress::Next(Next::Note(hashed));
        }
        let heard = later(later(changed_at, CHANGE_OF_MIND), seconds(target.grace_seconds));
        if kept && new.state == State::Running && now < heard {
            return Progress::Next(Next::Wait(wait(target, changed_at, now)));
        }
        if !kept || new.state == State::Running {
            return settle(operation, target, snapshot, new, now);
        }
    }
    if let Some(fence) = obstructing(operation, target, change, snapshot) {
        return do_(remove(fence, Leftover::Fence));
    }
    // One that its kubelet still made under the spec from before: it will be replaced like the one before it.
    let newest = instances.last().filter(|instance| instance.attempt >= replacement.attempt);
    if let Some(newest) = newest.filter(|newest| newest.state == State::Exited) {
        let (name, replaces) = (target.name.clone(), newest.id.clone());
        let attempt = newest.attempt.saturating_add(1);
        return Progress::Next(Next::Note(Note::Overtaken { name, replaces, attempt, cut_short: false }));
    }
    let alive = snapshot.by_id(&replacement.replaces).is_some_and(|old| old.state != State::Exited);
    if newest.is_some() || alive || !can_help(operation, target, change) {
        return Progress::Next(Next::Wait(wait(target, changed_at, now)));
    }
    let ended = snapshot.by_id(&replacement.replaces).and_then(|old| old.finished_at);
    // Noted before the clock was set back.
    let ended = ended.filter(|ended| *ended < later(now, SOON));
    let head_start = match (returns, replacement.cut_shorts) {
        (false, _) => HEAD_START,
        (true, 0 | 1) => HEAD_START_BACK,
        // What its kubelet ended twice it may end again: until it has heard, each try costs a life.
        (true, times) => SignedDuration::from_secs(1 << (times - 1).min(5)),
    };
    let help_from = later(ended.map_or(changed_at, |ended| ended.max(changed_at)), head_start);
    if now < help_from {
        let until = help_from.min(later(now, REQUEUE));
        let on = format!("the kubelet to start {}", target.name);
        return Progress::Next(Next::Wait(Waiting { until, on }));
    }
    make(operation, target, replacement, snapshot, now)
}

/// Whether the new container instance can be created here as the kubelet would.
fn can_help(operation: &Operation, target: &Target, change: &SpecChange) -> bool {
    let returns = operation.turned_back.is_some();
    let hash_known = if returns { !target.from_hash.is_empty() } else { change.hash.is_some() };
    change.cloneable && hash_known
}

/// What is to be done about fences before the spec is changed. Where one cannot be had, the change is made without it.
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
    Some(Effect::Fence { container, source, attempt, image, rehearse: false, by_process: true })
}

/// A fence under the name that the kubelet takes next: it has made another container instance in the meantime. Where that one
/// was made here, the kubelet is not to take the next name: it is helped again.
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

/// The failure when the pod's spec does not say any more what it was changed to, nor what it said before: a view of the
/// API server may be old.
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

/// A kubelet that had not read the changed spec yet ends what was created here under it, once, or, on the way back, until
/// it has: that is made again, unless the kubelet has done so.
///
/// It looks at a pod with the spec it had when it began to, and may have been waiting for a second by then (`pod_workers.go`
/// in pkg/kubelet waits for a newer list of containers).
pub(super) fn cut_short(operation: &Operation, target: &Target, snapshot: &Snapshot) -> Option<Note> {
    let replacement = target.replacement();
    let (times, heard) = match operation.turned_back {
        None => (1, CHANGE_OF_MIND),
        Some(_) => (u32::MAX, HEARD_AT_LAST),
    };
    let until = later(replacement.respec_at?, heard);
    let newest = *snapshot.instances(&target.name).last()?;
    let ended = |instance: &Container| instance.state == State::Exited && instance.started_at.is_some();
    let (replaces, attempt, at) = if newest.attempt == replacement.attempt {
        let at = newest.finished_at.filter(|_| operation.made(newest) && ended(newest))?;
        (newest.id.clone(), newest.attempt.saturating_add(1), at)
    } else {
        let before = &target.reached.as_ref()?.to;
        let gone = snapshot
            .by_id(&before.container_id)
            .is_none_or(|instance| operation.made(instance) && ended(instance));
        let replaced = gone && before.attempt == replacement.attempt && newest.attempt > before.attempt;
        (before.container_id.clone(), newest.attempt, Some(newest.created_at).filter(|_| replaced)?)
    };
    let again = Note::Overtaken { name: target.name.clone(), replaces, attempt, cut_short: true };
    (replacement.cut_shorts < times && at < until).then_some(again)
}

/// What to do next for a target that is only stopped.
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
        // Its kubelet makes another one after one that it could not start.
        if new.state == State::Exited && new.started_at.is_none() && !operation.made(new) {
            return Progress::Next(Next::Wait(wait(target, new.created_at, now)));
        }
        return settle(operation, target, snapshot, new, now);
    }
    match snapshot.by_id(&replacement.replaces) {
        Some(old) if matches!(old.state, State::Running | State::Unknown) => {
            stop(operation, target, replacement, old, now)
        }
        old => {
            let ended = old.and_then(|old| old.finished_at).unwrap_or(operation.begun_at);
            Progress::Next(Next::Wait(wait(target, ended, now)))
        }
    }
}

/// The image of a life that is created for the kubelet.
pub(super) fn image(operation: &Operation, target: &Target, change: &SpecChange) -> ImageChoice {
    if operation.turned_back.is_some() {
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

/// Whether `instance` was made under the spec as it is to be.
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
    Waiting { until: later(now, pause), on: format!("the kubelet to replace {}", target.name) }
}

#[cfg(test)]
mod tests;
