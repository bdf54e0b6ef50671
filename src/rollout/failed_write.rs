//! What follows from a decision of which a write has failed: the status says what was observed, and nothing that was
//! only planned. Decides nothing about a pod.

use jiff::Timestamp;

use crate::api::in_place_rollout::{InPlaceRolloutStatus, RolloutPhase};
use crate::podtask::write::Event;
use crate::rollout::decide::{Decision, What};
use crate::rollout::desired::Rollout;
use crate::rollout::report;
use crate::rollout::stop_reason;

/// The reason when a write of the decision failed.
pub(super) const WRITE_FAILED: &str = "WriteFailed";

/// The status and the events after `decision`, of which a write has failed with `error`. The phase is never terminal,
/// and `Paused` only by `spec.paused`: the write is still to be done.
pub fn after(
    rollout: &Rollout,
    decision: Decision,
    error: &str,
    now: Timestamp,
) -> (InPlaceRolloutStatus, Vec<Event>) {
    let Decision { status: decided, writes, .. } = decision;
    let begun = writes.iter().filter(|write| matches!(write.what, What::Begin(_))).count();
    let phase = match decided.phase {
        RolloutPhase::Paused if rollout.spec.paused => RolloutPhase::Paused,
        _ if decided.abort.is_some() => RolloutPhase::Aborting,
        _ => RolloutPhase::Running,
    };
    // `Aborted` has the reason why the rollout stopped, which does not stop the way back.
    let kept = stop_reason::kept(&decided.reason).filter(|_| decided.phase != RolloutPhase::Aborted);
    let retries = format!("{error}; the controller retries");
    let (reason, message) = match kept {
        Some(reason) => (reason, format!("{}; {retries}", decided.message)),
        None => (WRITE_FAILED, retries),
    };
    let mut status = InPlaceRolloutStatus {
        observed_generation: rollout.generation,
        phase,
        reason: reason.to_owned(),
        message,
        finished_at: None,
        // On the way back the decision has subtracted the pods that it begins.
        done: if rollout.aborts() { rollout.before.done } else { decided.done },
        busy: decided.busy.saturating_sub(report::number(begun)),
        ..decided
    };
    report::conditions(rollout, &mut status, now);
    let events = report::events(rollout, &status);
    (status, events)
}
