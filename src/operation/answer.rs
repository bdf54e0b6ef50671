//! What a decision can be: something to do, to note, to wait for, or the end.

use jiff::Timestamp;

use crate::operation::effect::{Effect, Verb};
use crate::operation::note::Note;
use crate::operation::outcome::Outcome;
use crate::operation::state::{Operation, later};

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

/// Whether `next` comes too late. A container that is down may still be brought up after the limit, as long as that
/// goes well; nothing else is begun or awaited then. Where nobody else would ever start it, whatever brings it up goes on
/// until it is given up.
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
