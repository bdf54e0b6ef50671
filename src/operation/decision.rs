//! The possible results of a decision: an effect, a note, a wait, or the end. Also decides when a step comes too late.

use jiff::Timestamp;

use crate::operation::effect::{Effect, Verb};
use crate::operation::note::Note;
use crate::operation::outcome::Outcome;
use crate::operation::state::{Operation, later};

/// The result of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Execute this effect once, then observe again.
    Do(Effect),
    /// Apply this note to the operation and decide again.
    Note(Note),
    /// Observe again at the given time or earlier.
    Wait(Waiting),
    /// The operation has ended.
    Done(Outcome),
}

/// What is being waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// When to observe again at the latest.
    pub until: Timestamp,
    /// What is awaited, for people.
    pub on: String,
}

/// True when `next` comes too late. After the limit, a container that is down may still be brought up while that
/// succeeds without failures; nothing else is begun or awaited. Where no other program would ever start the
/// container, the effects that bring it up continue until they are given up.
pub(super) fn overdue(operation: &Operation, next: &Next, now: Timestamp, limit: Timestamp) -> bool {
    let brings_up = match next {
        Next::Note(_) | Next::Done(_) => return false,
        Next::Do(_) if operation.must_bring_up() => return false,
        Next::Wait(_) if operation.must_bring_up() => {
            let tried =
                operation.last_failure.as_ref().map_or(limit, |last_failure| last_failure.at.max(limit));
            return now >= later(tried, operation.way_back());
        }
        Next::Do(effect) => matches!(effect.verb(), Verb::Create | Verb::Start | Verb::Remove),
        Next::Wait(_) => false,
    };
    let goes_well = operation.last_failure.is_none() && now < later(limit, operation.way_back());
    now >= limit && !(brings_up && goes_well)
}
