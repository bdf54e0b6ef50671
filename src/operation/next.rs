//! What to do next: a pure function of the operation, what is seen now, and the time.
//!
//! Level-triggered: events may be lost or doubled, replies may never come, the process may die anywhere. Success is
//! declared here only, and only from what is seen.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::{Action, Step};
use crate::operation::effect::{Class, Effect, Leftover, Verb};
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::replace::{Progress, ended, foreign_start, remove, replace, unclear_state, unfence};
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{Note, Operation, Reached, Replacement, Target, later};

/// How long a swapped container is watched even when `minReadySeconds` asks for less: an image that dies at once
/// must not count as a success.
const SWAP_SETTLES: SignedDuration = SignedDuration::from_millis(1000);
/// The same for a restart, whose image has run before.
const RESTART_SETTLES: SignedDuration = SignedDuration::from_millis(250);
/// How soon to look again while watching.
const WATCH: SignedDuration = SignedDuration::from_millis(50);

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Carry this out, once, and look again.
    Do(Effect),
    /// Take this into the operation and ask again.
    Note(Note),
    /// Look again at the time given, or earlier.
    Wait(Waiting),
    /// It is over.
    Done(Outcome),
}

/// What is being waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// When to look again at the latest.
    pub until: Timestamp,
    /// For people.
    pub on: String,
}

/// What to do next.
pub fn next(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Next {
    if let Some(outcome) = &operation.outcome {
        return Next::Done(outcome.clone());
    }
    let next = match &snapshot.sandbox {
        None => return Next::Done(lost(operation, "gone")),
        _ if operation.ending.is_some() => end(operation, snapshot, now),
        Some(sandbox) if sandbox.id != operation.sandbox_id => {
            Next::Note(Note::End(lost(operation, "another one")))
        }
        Some(sandbox) if !sandbox.ready => Next::Note(Note::End(lost(operation, "not ready"))),
        Some(_) => match &operation.turned_back {
            None => forward(operation, snapshot, now),
            Some(failure) => back(operation, failure, snapshot, now),
        },
    };
    pace(operation, next, now)
}

/// What becomes of an operation whose pod could not be looked at until its deadline.
pub fn unseen(operation: &Operation, now: Timestamp, why: &str) -> Option<Outcome> {
    if now < operation.deadline_at {
        return None;
    }
    if let Some(outcome) = operation.outcome.as_ref().or(operation.ending.as_ref()) {
        return Some(outcome.clone());
    }
    if let (Some(withdrawal), false) = (operation.withdrawn, operation.touched()) {
        return Some(Outcome::Cancelled(withdrawal));
    }
    let during = format!("the runtime could not be reached: {why}");
    Some(failed(operation, Failure::Deadline { during }))
}

/// The way there.
fn forward(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Next {
    if !operation.touched()
        && let Some(next) = still_free(operation, snapshot, now)
    {
        return next;
    }
    for target in &operation.targets {
        if target.reached.is_some() {
            continue;
        }
        if !target.touched
            && let Some(what) = changed(operation, target, snapshot)
        {
            return fail(operation, Failure::Changed { container: target.name.clone(), what });
        }
        if let Some(next) = enter(operation, Step::Swap) {
            return next;
        }
        match replace(operation, target, snapshot, now) {
            Progress::Next(next) => return within(operation, next, now, operation.forward_until(), "Swap"),
            Progress::Failed(failure) => return fail(operation, failure),
            Progress::Running(life) => return Next::Note(reached(target, life, snapshot)),
        }
    }
    if let Some(next) = enter(operation, Step::Verify) {
        return next;
    }
    match verify(operation, operation.targets.iter(), snapshot, now) {
        Verdict::Next(next) => within(operation, next, now, operation.forward_until(), "Verify"),
        Verdict::Failed(failure) => fail(operation, failure),
        Verdict::Proven => Next::Note(Note::End(Outcome::Succeeded)),
    }
}

/// Everything that can still end the operation without anybody having felt it.
fn still_free(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    if let Some(withdrawal) = operation.withdrawn {
        return Some(Next::Note(Note::End(Outcome::Cancelled(withdrawal))));
    }
    if now >= operation.touch_until() {
        let waits = operation.targets.iter().any(|target| target.image.is_some() && target.pulled.is_none());
        let during = if waits { "Pull" } else { "Swap had not begun" }.to_owned();
        return Some(fail(operation, Failure::Deadline { during }));
    }
    for target in &operation.targets {
        if let Some(what) = changed(operation, target, snapshot) {
            return Some(fail(operation, Failure::Changed { container: target.name.clone(), what }));
        }
    }
    for target in &operation.targets {
        if let (Some(image), None) = (&target.image, &target.pulled) {
            if let Some(message) = operation.given_up(Verb::Pull, &target.name) {
                let (container, image, message) = (target.name.clone(), image.clone(), message.to_owned());
                return Some(fail(operation, Failure::Pull { container, image, message }));
            }
            let (container, image, like) = (target.name.clone(), image.clone(), target.from.image_id.clone());
            return Some(Next::Do(Effect::Pull { container, image, like }));
        }
    }
    None
}

/// What somebody else did to a container that we have not touched. One that merely died is replaced all the same, and
/// what was there when the request was taken up is nobody's doing.
fn changed(operation: &Operation, target: &Target, snapshot: &Snapshot) -> Option<String> {
    if target.touched {
        return None;
    }
    let foreign = |life: &&Container| life.attempt >= target.forward.attempt && !operation.made(life);
    let newer = snapshot.lives(&target.name).into_iter().find(foreign)?;
    Some(format!("attempt {} is there and {}", newer.attempt, newer.state))
}

/// The way back: every container that was touched, last one first, once. One that was to be restarted only has to
/// run, a swapped one has to run what it ran before.
fn back(operation: &Operation, failure: &Failure, snapshot: &Snapshot, now: Timestamp) -> Next {
    let give_up = |then: Failure| {
        let (failure, then) = (failure.clone(), Some(then));
        Next::Note(Note::End(Outcome::Failed { failure, then, touched: true }))
    };
    let returning = || operation.targets.iter().filter(|target| target.touched);
    for target in returning().rev() {
        if target.back.is_some() && target.reached.is_some() {
            continue;
        }
        let next = if target.back.is_none() {
            match turn(operation, target, snapshot, now) {
                Some(next) => next,
                None => continue,
            }
        } else {
            match replace(operation, target, snapshot, now) {
                Progress::Next(next) => next,
                Progress::Failed(then) => return give_up(then),
                Progress::Running(life) => return Next::Note(reached(target, life, snapshot)),
            }
        };
        if overdue(operation, &next, now, operation.deadline_at) {
            return give_up(Failure::Deadline { during: "Rollback".to_owned() });
        }
        return next;
    }
    match verify(operation, returning().filter(|target| target.back.is_some()), snapshot, now) {
        Verdict::Next(next) => {
            if overdue(operation, &next, now, operation.deadline_at) {
                return give_up(Failure::Deadline { during: "Rollback".to_owned() });
            }
            next
        }
        Verdict::Failed(then) => give_up(then),
        Verdict::Proven => Next::Note(Note::End(Outcome::RolledBack(failure.clone()))),
    }
}

/// Makes `target` ready for its way back. `None` when it never left.
fn turn(operation: &Operation, target: &Target, snapshot: &Snapshot, now: Timestamp) -> Option<Next> {
    let lives = snapshot.lives(&target.name);
    if let Some(life) = never_started(operation, &lives) {
        return Some(Next::Do(remove(life, Leftover::NeverStarted)));
    }
    let running = lives.iter().rev().find(|life| life.state == State::Running);
    if running.is_some_and(|life| target.action == Action::Restart || life.id == target.from.container_id) {
        return None;
    }
    let foreign =
        lives.iter().find(|life| life.attempt >= target.forward.attempt && life.state == State::Created);
    if let Some(waiting) = foreign.and_then(|life| foreign_start(life, now)) {
        return Some(Next::Wait(waiting));
    }
    let replaces =
        running.or(lives.last()).map_or_else(|| target.from.container_id.clone(), |life| life.id.clone());
    let attempt =
        lives.iter().map(|life| life.attempt).max().unwrap_or(target.from.attempt).saturating_add(1);
    let pre_stop_at = target.forward.pre_stop_at.filter(|_| replaces == target.forward.replaces);
    let replacement = Replacement { replaces, attempt, pre_stop_at };
    Some(Next::Note(Note::Back(target.name.clone(), replacement)))
}

/// Whether the new lives have proven themselves.
enum Verdict {
    Next(Next),
    Failed(Failure),
    Proven,
}

fn verify<'a>(
    operation: &Operation,
    targets: impl Iterator<Item = &'a Target>,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Verdict {
    let mut wait: Option<Waiting> = None;
    for target in targets {
        let Some(reached) = &target.reached else { continue };
        let running = snapshot.running(&target.name);
        if running.len() > 1 {
            return Verdict::Failed(Failure::Duplicate {
                container: target.name.clone(),
                count: running.len(),
            });
        }
        let life = snapshot.by_id(&reached.to.container_id);
        match life {
            Some(life) if life.state == State::Running => {
                let least = if target.action == Action::Swap { SWAP_SETTLES } else { RESTART_SETTLES };
                // What ran before has nothing left to prove on the way back.
                let asked =
                    if operation.turned_back.is_some() { 0 } else { operation.request.min_ready_seconds };
                let settles = least.max(SignedDuration::from_secs(i64::from(asked)));
                let proven_at = later(life.started_at.unwrap_or(life.created_at), settles);
                if reached.ready_at.is_none() && now >= proven_at {
                    return Verdict::Next(Next::Note(Note::Proven(target.name.clone(), now)));
                }
                if reached.ready_at.is_none() {
                    let until = proven_at.min(later(now, WATCH));
                    wait.get_or_insert(Waiting { until, on: format!("{} to stay up", target.name) });
                }
            }
            Some(life) if life.state == State::Unknown => {
                wait.get_or_insert(unclear_state(target, now));
            }
            Some(life) => return Verdict::Failed(ended(operation, target, life)),
            None => {
                let what = "the new one was removed by somebody else".to_owned();
                return Verdict::Failed(Failure::Changed { container: target.name.clone(), what });
            }
        }
    }
    wait.map_or(Verdict::Proven, |waiting| Verdict::Next(Next::Wait(waiting)))
}

/// Cleaning up, whatever the outcome: no fence, nothing half-made, and no old lives where nobody else removes them.
fn end(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Next {
    let Some(outcome) = operation.ending.clone() else { return Next::Done(lost(operation, "gone")) };
    for target in &operation.targets {
        let lives = snapshot.lives(&target.name);
        // Before the fence: as long as it is there, a kubelet must not start the next attempt beside it.
        if let Some(life) = never_started(operation, &lives) {
            return Next::Do(remove(life, Leftover::NeverStarted));
        }
        if let Some(next) = unfence(operation, target, snapshot, now) {
            return next;
        }
        let old = |life: &&&Container| {
            life.attempt < target.from.attempt
                && life.state == State::Exited
                && operation.can_remove(&life.id)
        };
        if operation.unsupervised
            && target.reached.is_some()
            && let Some(life) = lives.iter().find(old)
        {
            return Next::Do(remove(life, Leftover::Old));
        }
    }
    Next::Done(outcome)
}

/// A container that this operation created and that does not run, if it can be removed.
fn never_started<'a>(operation: &Operation, lives: &[&'a Container]) -> Option<&'a Container> {
    let mut created =
        lives.iter().copied().filter(|life| life.state == State::Created && operation.made(life));
    created.find(|life| operation.can_remove(&life.id))
}

/// Holds back what failed a moment ago.
fn pace(operation: &Operation, next: Next, now: Timestamp) -> Next {
    let (Next::Do(effect), Some(setback)) = (&next, &operation.setback) else { return next };
    if setback.verb != effect.verb() || setback.container != effect.container() {
        return next;
    }
    let first = match (setback.verb, setback.trouble.class) {
        (Verb::Pull, Class::Refused | Class::Gone) => SignedDuration::from_secs(1),
        (_, Class::NameTaken) => SignedDuration::from_millis(20),
        _ => SignedDuration::from_millis(100),
    };
    let doublings = setback.count.saturating_sub(1).min(6);
    let again = later(setback.at, first * 2_i32.pow(doublings));
    if now >= again {
        return next;
    }
    let on = format!("another try: {}", setback.trouble.message);
    // Not past a moment that decides.
    let limits = [operation.touch_until(), operation.forward_until(), operation.deadline_at];
    let until = limits.into_iter().filter(|limit| now < *limit).fold(again, Timestamp::min);
    Next::Wait(Waiting { until, on })
}

fn within(operation: &Operation, next: Next, now: Timestamp, limit: Timestamp, during: &str) -> Next {
    if overdue(operation, &next, now, limit) {
        return fail(operation, Failure::Deadline { during: during.to_owned() });
    }
    next
}

/// Whether `next` comes too late. A container that is down may still be brought up after the limit, as long as that
/// goes well; nothing else is begun or awaited then.
fn overdue(operation: &Operation, next: &Next, now: Timestamp, limit: Timestamp) -> bool {
    let brings_up = match next {
        Next::Note(_) | Next::Done(_) => return false,
        Next::Do(effect) => matches!(effect.verb(), Verb::Create | Verb::Start | Verb::Remove),
        Next::Wait(_) => false,
    };
    let goes_well = operation.setback.is_none() && now < later(limit, operation.way_back());
    now >= limit && !(brings_up && goes_well)
}

fn fail(operation: &Operation, failure: Failure) -> Next {
    Next::Note(if operation.can_turn_back() && !matches!(failure, Failure::Duplicate { .. }) {
        Note::TurnBack(failure)
    } else {
        Note::End(failed(operation, failure))
    })
}

fn failed(operation: &Operation, failure: Failure) -> Outcome {
    match &operation.turned_back {
        Some(first) => Outcome::Failed { failure: first.clone(), then: Some(failure), touched: true },
        None => Outcome::Failed { failure, then: None, touched: operation.touched() },
    }
}

fn lost(operation: &Operation, what: &str) -> Outcome {
    operation.ending.clone().unwrap_or_else(|| failed(operation, Failure::Sandbox { what: what.to_owned() }))
}

fn enter(operation: &Operation, step: Step) -> Option<Next> {
    (operation.step != step).then_some(Next::Note(Note::Step(step)))
}

fn reached(target: &Target, life: &Container, snapshot: &Snapshot) -> Note {
    // Downtime counts from the end of the life that was asked to be replaced, also on the way back.
    let stopped_at = snapshot.by_id(&target.from.container_id).and_then(|old| old.finished_at);
    let reached = Reached { to: life.incarnation(), stopped_at, started_at: life.started_at, ready_at: None };
    Note::Reached(target.name.clone(), reached)
}

#[cfg(test)]
mod tests;
