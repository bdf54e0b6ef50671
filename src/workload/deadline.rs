//! The progress deadline of an update: when it progressed last, and whether that is too long ago. The time is in the
//! status, so that another replica of the controller continues to count. Stops and starts nothing.

use jiff::Timestamp;

use crate::api::status::Phase;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::PodTask;
use crate::podtask::time::{later, whole_seconds};
use crate::workload::action::{Action, Why};
use crate::workload::input::ReconcileInput;
use crate::workload::report::Report;
use crate::workload::view::PodView;

/// The reason when an update made no progress for too long.
pub const EXCEEDED: &str = "ProgressDeadlineExceeded";

/// The state of the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// When the update progressed last, or when its state changed.
    pub last_progress: Timestamp,
    /// True when there was no progress for longer than the spec allows.
    pub exceeded: bool,
    /// When the deadline is over.
    pub requeue_at: Option<Timestamp>,
}

/// Time counts only while an update is to continue: not while it is complete or paused, a `PodDisruptionBudget` does not
/// allow it, or the rest is left to a person.
fn counts(reason: &str) -> bool {
    !matches!(
        reason,
        "" | "Complete" | "Paused" | "OnDelete" | "PartitionReached" | "PodDisruptionBudget" | "Aborted"
    )
}

/// The deadline of the update to `revision`, whose state is `reason`.
pub fn of(
    input: &ReconcileInput<'_>,
    before: &Report,
    revision: &str,
    reason: &str,
    actions: &[Action],
) -> Deadline {
    let now = whole_seconds(input.now);
    let last = before.progressing();
    let last_reason = last.map_or("", |condition| condition.reason.as_str());
    let known = last.and_then(|condition| condition.last_update_time.or(condition.last_transition_time));
    let same = before.update_revision == revision && !input.spec.update.retry;
    let stopped = last.is_some_and(|last| last.status == "False" && last.reason != EXCEEDED);
    let last_progress = match known.filter(|_| same) {
        // What stopped the update is over, because a person has acted. What is done now has its whole time.
        Some(_) if stopped && reason != last_reason => now,
        // The state is the same as before, or is only reported as exceeded.
        Some(known) if counts(reason) && counts(last_reason) => {
            let acted = actions.iter().any(|action| progresses(input, action)).then_some(now);
            input.views.iter().flat_map(|view| times(input, view)).chain(acted).fold(known, Timestamp::max)
        }
        Some(known) if reason == last_reason => known,
        _ => now,
    };
    // An update that was complete once is not late when a pod becomes unavailable.
    let counts = counts(reason) && before.stable_revision != revision;
    let end = input.spec.progress_deadline.filter(|_| counts).map(|span| later(last_progress, span));
    Deadline {
        last_progress,
        exceeded: end.is_some_and(|end| end <= input.now),
        requeue_at: end.filter(|end| *end > input.now),
    }
}

/// When this pod progressed, as it shows itself. A clock of a node may be wrong: times to come do not count yet.
fn times(input: &ReconcileInput<'_>, view: &PodView<'_>) -> impl Iterator<Item = Timestamp> {
    let own = view.pod.task.as_ref().filter(|task| !task.deletes()).map(PodTask::id);
    let answer = view.pod.answer.as_ref().filter(|answer| Some(&answer.id) == own.as_ref());
    let answer = answer.filter(|answer| !matches!(answer.phase, Phase::Refused | Phase::Cancelled));
    let available = view.pod.available_at(input.spec.min_ready).filter(|_| view.is_at(input.update_name()));
    let now = input.now;
    [
        Some(view.pod.created),
        answer.and_then(|answer| answer.started_at),
        answer.and_then(|answer| answer.finished_at),
        available,
    ]
    .into_iter()
    .flatten()
    .filter(move |time| *time <= now)
    .map(whole_seconds)
}

/// True when this write takes a pod further. A pod that is only retried because no agent answered is not.
fn progresses(input: &ReconcileInput<'_>, action: &Action) -> bool {
    match action {
        Action::CreatePod { .. } | Action::DeletePod { .. } => true,
        Action::PatchPod { pod, why, .. } => {
            let Some(view) = input.views.iter().find(|view| view.pod.uid == pod.uid) else { return false };
            match why {
                Why::Updated | Why::Metadata => true,
                Why::NotUpdated => {
                    matches!(&view.task_state, TaskState::Ended(end) if end.stage == Stage::Failed)
                }
                Why::Chosen | Why::Resize | Why::InPlace | Why::HotPatch => {
                    let retried = view.is_unanswered(input.update_name());
                    view.task_state != TaskState::Waiting && !retried
                }
                _ => false,
            }
        }
        _ => false,
    }
}
