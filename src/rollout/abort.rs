//! The abort of a rollout: when it begins, when the way back stops, and what the status says. The way back has the budget
//! and the order of the rollout itself; this module moves no pod.
//!
//! ```text
//!  failureThreshold or progressDeadlineSeconds, onFailure: Abort
//!     │ status.abort is written first; untouched requests are withdrawn, requests in progress end
//!     ▼
//!  Aborting ──no pod names the new images any more──▶ Aborted
//!     └────── pods do not come back, or a deadline ─▶ AbortFailed
//! ```
//!
//! The status comes first, because a pod that goes back is no failed pod any more: without it a controller that takes over
//! would find fewer failures than there were, and continue the rollout.

use jiff::Timestamp;

use crate::api::in_place_rollout::{InPlaceRolloutStatus, RolloutAbort, RolloutPhase, SOME_FAILED};
use crate::api::workload::UpdateFailurePolicy;
use crate::podtask::state::Stage;
use crate::podtask::write::Event;
use crate::rollout::back;
use crate::rollout::budget::Bounds;
use crate::rollout::decide::RolloutInput;
use crate::rollout::desired::Rollout;
use crate::rollout::report::{self, PAUSED, Waits, number};
use crate::rollout::stop_reason::{StopReason, THRESHOLD, stop_reason};
use crate::rollout::target::TargetState;
use crate::rollout::view::{Left, PodView, State};

/// The reason while pods go back and wait for nothing in particular.
const ABORTING: &str = "Aborting";
/// What the status and the event say when an abort begins.
const BEGINS: &str = "pods with the new images go back to those from before";

/// The abort that begins because the rollout stops for `cause`; `None`: none begins.
pub(super) fn begins(
    rollout: &Rollout,
    cause: Option<&StopReason>,
    target: &TargetState,
    now: Timestamp,
) -> Option<RolloutAbort> {
    let cause = cause.filter(|cause| cause.is_failure_of_pods())?;
    let wanted = rollout.spec.on_failure == UpdateFailurePolicy::Abort && !rollout.aborts();
    wanted.then(|| {
        let template = target.names_new_images(rollout);
        let message = [Some(cause.message.clone()), template].into_iter().flatten().collect::<Vec<_>>();
        RolloutAbort {
            reason: cause.reason.to_owned(),
            message: message.join("; "),
            started_at: Some(now),
            ..RolloutAbort::default()
        }
    })
}

/// The same abort with the counts and failures of now.
pub(super) fn counted(before: &RolloutAbort, views: &[PodView<'_>]) -> RolloutAbort {
    let count = |is: &dyn Fn(&PodView<'_>) -> bool| number(views.iter().filter(|view| is(view)).count());
    let failed = |view: &PodView<'_>| view.has_not_returned();
    let (failures, failed) = report::failures((&before.failures, before.failed), views, failed, false);
    RolloutAbort {
        pods: count(&|view| view.returns()),
        returned: count(&|view| view.is_back() && view.outcome() == Some(Stage::Done)),
        failed,
        skipped: count(&|view| matches!(view.state, State::Left(Left::Changed | Left::Unrecorded))),
        failures,
        ..before.clone()
    }
}

/// Why the way back stops. The deadlines of the spec count again from its start.
pub(super) fn stops(
    rollout: &Rollout,
    input: &RolloutInput<'_>,
    views: &[PodView<'_>],
    bounds: Bounds,
    abort: &RolloutAbort,
    progressed: bool,
) -> Option<StopReason> {
    let started = abort.started_at.unwrap_or(input.now);
    let failed = usize::try_from(abort.failed).unwrap_or(0);
    let stop_reason = stop_reason(rollout, input, started, 0, 1, progressed)
        .or_else(|| {
            (failed >= bounds.failures).then(|| {
                let most = bounds.failures;
                let message = format!(
                    "{failed} pods did not come back, and failureThreshold is {most}: see status.abort.failures"
                );
                StopReason::failed(THRESHOLD, message)
            })
        })
        .or_else(|| {
            let open = views.iter().filter(|view| matches!(view.state, State::Waiting | State::Taken));
            let more = open.filter_map(|view| back::containers(rollout, view.pod).ok()).map(|one| one.len());
            let why = input.target.gives_up(rollout, views.iter().map(|view| view.pod), more.sum())?;
            Some(StopReason::failed("BackoffLimit", why))
        })?;
    let phase = match stop_reason.phase {
        RolloutPhase::Failed => RolloutPhase::AbortFailed,
        phase => phase,
    };
    Some(StopReason { phase, ..stop_reason })
}

/// Sets phase, reason and message of an aborted rollout.
pub(super) fn phase(
    rollout: &Rollout,
    status: &mut InPlaceRolloutStatus,
    views: &[PodView<'_>],
    stop_reason: Option<&StopReason>,
    waits: &Waits,
) {
    let abort = status.abort.clone().unwrap_or_default();
    // What follows from a swap that has just ended is decided once its end is on record.
    let open = |view: &PodView<'_>| match view.state {
        State::Waiting | State::Taken => true,
        State::Ended(_) => !view.is_back(),
        State::Busy { .. } | State::Done | State::Failed | State::Dropped | State::Left(_) => false,
    };
    let begins = rollout.before.abort.is_none();
    let open = begins || status.busy > 0 || views.iter().any(open);
    let withdrawn =
        views.iter().filter(|view| view.is_back() && view.outcome() == Some(Stage::Dropped)).count();
    let cause = format!("aborted: {}", abort.message);
    // The pods that go back are counted once the status says that they do.
    let back = if begins { BEGINS.to_owned() } else { back_line(&abort) };
    let (phase, reason, message) = match stop_reason {
        Some(stop_reason) => {
            let phase = if status.busy > 0 { RolloutPhase::Aborting } else { stop_reason.phase };
            (phase, stop_reason.reason, format!("{}; {back}; {cause}", stop_reason.message))
        }
        None if open => {
            let line = waits.line(&back, status.busy, 0);
            if rollout.spec.paused {
                (RolloutPhase::Paused, PAUSED, format!("{line}; paused by spec.paused; {cause}"))
            } else {
                let reason = waits.reason(status.busy);
                let reason = if reason.is_empty() { ABORTING } else { reason };
                (RolloutPhase::Aborting, reason, format!("{line}; {cause}"))
            }
        }
        None if abort.failed > 0 || withdrawn > 0 => {
            let withdrawn = if withdrawn > 0 { format!(", {withdrawn} withdrawn") } else { String::new() };
            (RolloutPhase::AbortFailed, SOME_FAILED, format!("{back}{withdrawn}; {cause}"))
        }
        None => (RolloutPhase::Aborted, abort.reason.as_str(), format!("{back}; {cause}")),
    };
    status.phase = phase;
    reason.clone_into(&mut status.reason);
    status.message = message;
}

fn back_line(abort: &RolloutAbort) -> String {
    let some = |count: i32, text: &str| (count > 0).then(|| format!("{count} {text}"));
    let parts = [
        Some(format!("{} of {} pods are back at their images from before", abort.returned, abort.pods)),
        some(abort.failed, "did not come back: see status.abort.failures"),
        some(
            abort.skipped,
            "left as they are: another client changed their image, or no image from before is on record",
        ),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The events of an abort between the last status and this one.
pub(super) fn events(before: &InPlaceRolloutStatus, status: &InPlaceRolloutStatus) -> Vec<Event> {
    let Some(abort) = &status.abort else { return Vec::new() };
    let mut events = Vec::new();
    if before.abort.is_none() {
        let message = format!("{}; {BEGINS}", abort.message);
        events.push(Event::warning("RolloutAborting", message));
    }
    let reported = before.abort.iter().flat_map(|abort| &abort.failures);
    let reported: Vec<_> = reported.map(|failure| failure.uid.as_str()).collect();
    for failure in abort.failures.iter().filter(|failure| !reported.contains(&failure.uid.as_str())) {
        let message = format!("pod {}: {}: {}", failure.pod, failure.reason, failure.message);
        events.push(Event::warning("PodNotReturned", message));
    }
    events
}
