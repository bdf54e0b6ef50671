//! The stop reason: why no more pods get a request, untouched requests are withdrawn, and the rollout gets its final
//! phase once the remaining tasks have ended.

use jiff::{SignedDuration, Timestamp};

use crate::api::in_place_rollout::RolloutPhase;
use crate::podtask::time::later;
use crate::rollout::decide::RolloutInput;
use crate::rollout::desired::Rollout;
use crate::rollout::target::TargetState;

/// Why a rollout stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StopReason {
    pub(super) phase: RolloutPhase,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl StopReason {
    pub(super) fn failed(reason: &'static str, message: impl Into<String>) -> Self {
        Self { phase: RolloutPhase::Failed, reason, message: message.into() }
    }

    /// The same reason; a deadline that is newly exceeded names the pods that no agent reached.
    #[must_use]
    pub(super) fn naming(mut self, before: &str, unreachable: Option<String>) -> Self {
        if let Some(pods) =
            unreachable.filter(|_| [LATE, STALLED].contains(&self.reason) && before != self.reason)
        {
            self.message = format!("{}: {pods}", self.message);
        }
        self
    }

    /// True when the rollout stops because of failed pods or of too little progress.
    pub(super) fn is_failure_of_pods(&self) -> bool {
        [THRESHOLD, STALLED].contains(&self.reason)
    }

    pub(super) fn superseded(message: String) -> Self {
        Self { phase: RolloutPhase::Superseded, reason: SUPERSEDED, message }
    }
}

const SUPERSEDED: &str = "Superseded";
const LATE: &str = "DeadlineExceeded";
const STALLED: &str = "ProgressDeadlineExceeded";
const GONE: &str = "TargetGone";
const DRIFT: &str = "TemplateDrift";
pub(super) const THRESHOLD: &str = "FailureThreshold";
/// The reasons that are kept until the last task has ended.
const KEPT: [&str; 5] = [SUPERSEDED, LATE, STALLED, GONE, DRIFT];

/// `reason`, if it is kept until the last task has ended.
pub(super) fn kept(reason: &str) -> Option<&'static str> {
    KEPT.into_iter().find(|kept| *kept == reason)
}

pub(super) fn deadline(rollout: &Rollout, started: Timestamp) -> Option<Timestamp> {
    rollout.spec.deadline_seconds.map(|seconds| later(started, SignedDuration::from_secs(seconds.into())))
}

/// When the rollout stops unless a pod is done or fails before.
pub(super) fn progress_deadline(rollout: &Rollout, progressed_at: Option<Timestamp>) -> Option<Timestamp> {
    let seconds = rollout.spec.progress_deadline_seconds?;
    Some(later(progressed_at?, SignedDuration::from_secs(seconds.into())))
}

/// Whether the rollout, or its way back, stops. `started`: when that began. `Superseded`, both deadlines, `TargetGone` and
/// `TemplateDrift` are kept until the last task has ended. The others are computed again each time: a changed spec can
/// lift them. The template of the owner does not limit the way back.
pub(super) fn stop_reason(
    rollout: &Rollout,
    input: &RolloutInput<'_>,
    started: Timestamp,
    failed: usize,
    most: usize,
    progressed: bool,
) -> Option<StopReason> {
    if let Some(reason) = kept(&rollout.before.reason) {
        // What the status says beside the reason follows a semicolon.
        let message = rollout.before.message.split("; ").next().unwrap_or_default().to_owned();
        let phase = if reason == SUPERSEDED { RolloutPhase::Superseded } else { RolloutPhase::Failed };
        return Some(StopReason { phase, reason, message });
    }
    if let Some(newer) = input.newer {
        return Some(StopReason::superseded(format!(
            "InPlaceRollout {newer} is newer and has the same target"
        )));
    }
    if deadline(rollout, started).is_some_and(|end| end <= input.now) {
        let message = format!(
            "the rollout was not complete after {} s (spec.deadlineSeconds)",
            rollout.spec.deadline_seconds.unwrap_or(0)
        );
        return Some(StopReason::failed(LATE, message));
    }
    if *input.target == TargetState::Absent {
        return Some(StopReason::failed(
            GONE,
            format!("{} was deleted during the rollout", rollout.target()),
        ));
    }
    let any_image = rollout.spec.allow_template_drift || rollout.aborts();
    if let Some(drift) = input.target.drift(rollout).filter(|_| !any_image) {
        return Some(StopReason::failed(DRIFT, drift));
    }
    let progressed_at = rollout.before.progressed_at.filter(|_| !rollout.spec.paused && !progressed);
    if progress_deadline(rollout, progressed_at).is_some_and(|end| end <= input.now) {
        let message = format!(
            "no further pod was done for {} s (spec.progressDeadlineSeconds)",
            rollout.spec.progress_deadline_seconds.unwrap_or(0)
        );
        return Some(StopReason::failed(STALLED, message));
    }
    (failed >= most).then(|| {
        let message =
            format!("{failed} pods have failed, and failureThreshold is {most}: see status.failures");
        StopReason::failed(THRESHOLD, message)
    })
}
