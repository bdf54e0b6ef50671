//! Decides how long each call of an operation may take: an effect, an observation, a write of the journal.

use std::time::Duration;

use crate::operation::effect::Effect;
use crate::operation::state::Operation;
use crate::process::clock;

/// Minimum time limit of an effect, even after the deadline: cleanup may still be necessary.
pub(super) const MIN_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time limit of a repeatable effect: a removal, a change through the API server.
const MAX_REPEATABLE: Duration = Duration::from_secs(15);
/// Maximum time limit of the fence that is created before the spec is changed back: twice what it takes on a busy
/// node.
const MAX_FENCE_BACK: Duration = Duration::from_secs(2);

/// Time limit of a journal write that no first touch of a container depends on. After this limit the operation goes on
/// without the write, as it does when the disk is full: a container that is down must come up.
pub(super) const JOURNAL_LIMIT: Duration = Duration::from_secs(2);
/// Time limit of the write before an effect while the pod is drained: it must take traffic again if the disk hangs.
const DRAINED_JOURNAL_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of `effect`. A pull gets all the time that is left. Any other effect gets its own duration and half of
/// the rest: a call that is never answered must leave time to observe its result and to go on.
pub(super) fn effect(operation: &Operation, effect: &Effect) -> Duration {
    let end =
        if operation.rollback_cause.is_none() { operation.forward_until() } else { operation.deadline_at };
    let left = clock::until(end);
    match effect {
        Effect::Pull { .. } => left,
        Effect::PreStop { budget_seconds: own, .. }
        | Effect::StopStandby { grace_seconds: own, .. }
        | Effect::Stop { timeout_seconds: own, .. } => share(left, Duration::from_secs(*own)),
        // A container is down, and can be brought up without this fence.
        Effect::Fence { by_process: true, .. } if operation.rollback_cause.is_some() => {
            share(left, Duration::ZERO).min(MAX_FENCE_BACK)
        }
        Effect::Fence { .. } | Effect::Standby { .. } | Effect::Create { .. } | Effect::Start { .. } => {
            share(left, Duration::ZERO)
        }
        // This effect can be repeated later, and the next effect may be waiting.
        Effect::Remove { .. } | Effect::Respec { .. } | Effect::Gate { .. } => {
            share(left, Duration::ZERO).min(MAX_REPEATABLE)
        }
    }
}

/// `own` plus half of the rest of `left`; at least [`MIN_LIMIT`], which is enough for cleanup.
fn share(left: Duration, own: Duration) -> Duration {
    (own + left.saturating_sub(own) / 2).max(MIN_LIMIT)
}

/// Time limit of an observation. It is short enough that one lost answer does not use up all remaining time.
pub(super) fn observation(operation: &Operation) -> Duration {
    share(clock::until(operation.deadline_at), Duration::ZERO)
}

/// Time limit of the journal write before an effect. If a container was touched, and during cleanup, it is
/// [`JOURNAL_LIMIT`]. Otherwise the write may take until the operation's deadline, or [`DRAINED_JOURNAL_LIMIT`], and at
/// least [`JOURNAL_LIMIT`].
pub(super) fn journal_write(operation: &Operation) -> Duration {
    if operation.touched() || operation.ending.is_some() {
        return JOURNAL_LIMIT;
    }
    let is_drained = operation.drain.as_ref().is_some_and(|drain| drain.begun);
    let longest = if is_drained { DRAINED_JOURNAL_LIMIT } else { Duration::MAX };
    clock::until(operation.forward_until()).min(longest).max(JOURNAL_LIMIT)
}
