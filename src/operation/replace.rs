//! Putting one life of a container in the place of another: fence, preStop, stop, create, start, remove the fence.
//!
//! Every answer is derived from what is seen; it does not matter which of the steps has been done by whom or whether
//! its reply was lost.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::Action;
use crate::operation::effect::{Effect, ImageChoice, Leftover, Verb};
use crate::operation::next::{Next, Waiting};
use crate::operation::outcome::Failure;
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{Operation, Replacement, Target, later};

/// What the kubelet leaves of the grace period for the stop, however long preStop took.
const LEAST_STOP_SECONDS: u64 = 2;
/// How long somebody else's created container may wait for its maker to start it.
const FOREIGN_START: SignedDuration = SignedDuration::from_secs(10);
/// How soon to look again for something that others do.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_millis(20);

/// Where a replacement stands.
pub(super) enum Progress<'a> {
    /// Something is to be done or awaited.
    Next(Next),
    /// The new life runs, alone, and no fence is left.
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
    let replacement = target.replacement();
    let lives = snapshot.lives(&target.name);
    match lives.iter().rev().find(|life| life.attempt == replacement.attempt) {
        Some(new) => settle(operation, target, snapshot, new, now),
        None => make(operation, target, replacement, snapshot, now),
    }
}

/// There is no new life yet.
fn make<'a>(
    operation: &Operation,
    target: &Target,
    replacement: &Replacement,
    snapshot: &'a Snapshot,
    now: Timestamp,
) -> Progress<'a> {
    let name = &target.name;
    let container = || name.clone();
    let failed = |verb| operation.given_up(verb, name).map(str::to_owned);
    let image = image_of(operation, target);
    let Some(source) = source_of(target, replacement, snapshot) else {
        return Progress::Failed(Failure::Create {
            container: container(),
            message: "every earlier container of that name is gone, with the configuration to clone"
                .to_owned(),
        });
    };
    let guarded = replacement.attempt.saturating_add(1);
    if !snapshot.fences(name).any(|fence| fence.attempt == guarded) {
        if let Some(message) = failed(Verb::Fence) {
            return Progress::Failed(Failure::Rehearsal { container: container(), message });
        }
        return do_(Effect::Fence {
            container: container(),
            source: source.id.clone(),
            attempt: guarded,
            image,
        });
    }
    // On the way back the fence of the way there holds the name that is needed now.
    if let Some(fence) = snapshot.fences(name).find(|fence| fence.attempt != guarded) {
        return do_(remove(fence, Leftover::Fence));
    }
    let running = snapshot.running(name);
    if running.len() > 1 {
        return Progress::Failed(Failure::Duplicate { container: container(), count: running.len() });
    }
    let ends = running
        .first()
        .copied()
        .or_else(|| snapshot.by_id(&replacement.replaces).filter(|life| life.state == State::Unknown));
    if let Some(old) = ends {
        if target.has_pre_stop && old.state == State::Running && replacement.pre_stop_at.is_none() {
            let budget_seconds = target.grace_seconds;
            return do_(Effect::PreStop { container: container(), id: old.id.clone(), budget_seconds });
        }
        if let Some(message) = failed(Verb::Stop) {
            return Progress::Failed(Failure::Stop { container: container(), message });
        }
        let spent =
            replacement.pre_stop_at.map_or(0, |at| now.duration_since(at).as_secs().max(0).unsigned_abs());
        let timeout_seconds = target.grace_seconds.saturating_sub(spent).max(LEAST_STOP_SECONDS);
        return do_(Effect::Stop { container: container(), id: old.id.clone(), timeout_seconds });
    }
    if let Some(message) = failed(Verb::Create) {
        return Progress::Failed(Failure::Create { container: container(), message });
    }
    let attempt = replacement.attempt;
    do_(Effect::Create { container: container(), source: source.id.clone(), attempt, image })
}

/// The name of the new attempt is taken by `new`.
fn settle<'a>(
    operation: &Operation,
    target: &Target,
    snapshot: &'a Snapshot,
    new: &'a Container,
    now: Timestamp,
) -> Progress<'a> {
    let container = || target.name.clone();
    let ours = new.operation.as_deref() == Some(operation.request.id.as_str());
    let image = image_of(operation, target);
    if !ours && image.is_some_and(|image| image.id != new.image_id) {
        let what = format!("somebody else created attempt {} from {}", new.attempt, new.image);
        return Progress::Failed(Failure::Changed { container: container(), what });
    }
    match new.state {
        State::Created => {
            let patience = later(new.created_at, FOREIGN_START);
            if !ours && now < patience {
                return Progress::Next(Next::Wait(Waiting {
                    until: later(now, LOOK_AGAIN),
                    on: format!("the kubelet to start {}", target.name),
                }));
            }
            if let Some(message) = operation.given_up(Verb::Start, &target.name) {
                return Progress::Failed(Failure::Start {
                    container: container(),
                    message: message.to_owned(),
                });
            }
            do_(Effect::Start { container: container(), id: new.id.clone() })
        }
        State::Running => {
            let running = snapshot.running(&target.name).len();
            if running > 1 {
                return Progress::Failed(Failure::Duplicate { container: container(), count: running });
            }
            match snapshot.fences(&target.name).next() {
                Some(fence) if operation.given_up(Verb::Remove, &target.name).is_none() => {
                    do_(remove(fence, Leftover::Fence))
                }
                _ => Progress::Running(new),
            }
        }
        State::Exited => Progress::Failed(ended(operation, target, new)),
        State::Unknown => Progress::Next(Next::Wait(Waiting {
            until: later(now, LOOK_AGAIN),
            on: format!("the runtime to tell the state of {}", target.name),
        })),
    }
}

/// Why a new life is over.
pub(super) fn ended(operation: &Operation, target: &Target, life: &Container) -> Failure {
    let container = target.name.clone();
    match life.started_at {
        Some(started) => {
            let lived = life.finished_at.map_or(SignedDuration::ZERO, |end| end.duration_since(started));
            let lived_ms = i64::try_from(lived.as_millis()).unwrap_or(i64::MAX);
            Failure::Exited { container, code: life.exit_code, lived_ms }
        }
        None => {
            let told =
                operation.setback.as_ref().filter(|s| s.verb == Verb::Start && s.container == target.name);
            let message = told.map_or_else(
                || format!("the runtime gave up with code {}", life.exit_code),
                |setback| setback.trouble.message.clone(),
            );
            Failure::Start { container, message }
        }
    }
}

/// The image for the replacement under way: on the way back the one from before, else the one that was pulled, and
/// none for a restart, which keeps what its source has.
fn image_of(operation: &Operation, target: &Target) -> Option<ImageChoice> {
    if operation.turned_back.is_some() && target.action == Action::Swap {
        return Some(ImageChoice { reference: target.from.image.clone(), id: target.from.image_id.clone() });
    }
    target.pulled.clone()
}

/// Whose configuration is cloned: the life from before, or, if that was removed meanwhile, the newest there is.
fn source_of<'a>(
    target: &Target,
    replacement: &Replacement,
    snapshot: &'a Snapshot,
) -> Option<&'a Container> {
    snapshot
        .by_id(&target.from.container_id)
        .or_else(|| snapshot.by_id(&replacement.replaces))
        .or_else(|| snapshot.lives(&target.name).last().copied())
}

pub(super) fn remove(container: &Container, what: Leftover) -> Effect {
    Effect::Remove { container: container.name.clone(), id: container.id.clone(), what }
}

fn do_<'a>(effect: Effect) -> Progress<'a> {
    Progress::Next(Next::Do(effect))
}
