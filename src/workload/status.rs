//! Status of an update: whether it makes progress, and if not, what the user can do. Decides nothing about pods.

use crate::api::game_deployment::UpdateType;
use crate::api::status::{Phase, Step as RequestStep};
use crate::api::workload::HookCondition;
use crate::podtask::foreign::ForeignStep;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::Purpose;
use crate::podtask::time::{later, whole_seconds};
use crate::workload::act::Acts;
use crate::workload::action::{Action, Why};
use crate::workload::canary::{Held, Step};
use crate::workload::failed_hook;
use crate::workload::input::ReconcileInput;
use crate::workload::report::Report;
use crate::workload::scale::Scaling;
use crate::workload::spec::WorkloadSpec;
use crate::workload::survey::Survey;
use crate::workload::update::BROKEN_AFTER;
use crate::workload::view::PodView;

/// The reason when so many pods failed that no more are started.
pub const TOO_MANY: &str = "TooManyFailures";
/// The reason when a hook did not succeed.
const HOOK_FAILED: &str = "HookFailed";
/// What a message about failed pods says after their number if they stop the update: [`recorded_stop`] reads it.
const STOPPED: &str = "pods could not be updated and no more are started";

/// What follows for the other pods after some could not be updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// So many failed that no more are started.
    Stopped,
    /// They continue.
    Continue,
    /// They are done, or wait for the failed ones.
    Rest,
}

impl Others {
    /// What the message says after the number of pods that failed.
    fn text(self) -> &'static str {
        match self {
            Self::Stopped => STOPPED,
            Self::Continue => "pods could not be updated and the others continue",
            Self::Rest => "pods could not be updated and nothing more happens before a user acts",
        }
    }
}

/// Pods whose post-inplace hook has not succeeded, as their agents report. It runs before the pod takes traffic
/// again.
pub fn post_inplace(input: &ReconcileInput<'_>) -> Vec<HookCondition> {
    let reported = |view: &PodView<'_>| {
        let task = view.pod.task.as_ref().filter(|task| !task.deletes() && task.stage != Stage::Done)?;
        let answer = view.pod.answer.as_ref().filter(|answer| answer.id == task.id())?;
        let at_hook = answer.step == Some(RequestStep::PostHook);
        // An operation that was rolled back because of its hook ends at the step Rollback.
        let ended_by_hook = at_hook || failed_hook::failed_afterwards(view);
        let phase = match answer.phase {
            Phase::Running if at_hook => "Running",
            // The failure of an update to an earlier template does not stop the present update.
            Phase::Failed | Phase::RolledBack if ended_by_hook && task.target == input.update_name() => {
                "Failed"
            }
            _ => return None,
        };
        Some(HookCondition {
            pod_name: view.pod.name.clone(),
            start_time: Some(answer.started_at.map_or(task.at, whole_seconds)),
            phase: phase.to_owned(),
        })
    };
    input.views.iter().filter_map(reported).collect()
}

/// What prevents the update from completing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateFailure {
    /// The reason for programs.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
    /// True when the update does not continue before a person has acted.
    pub stops: bool,
    /// True when so many pods failed that no more are started.
    pub failed_pods: bool,
}

impl UpdateFailure {
    pub(super) fn new(reason: &'static str, message: String, stops: bool) -> Self {
        Self { reason, message, stops, failed_pods: false }
    }
}

/// What stopped the update to `revision`, as the last report has it, if so many pods failed then. The pods may be gone: their
/// successors would get the template that failed.
pub fn recorded_stop(spec: &WorkloadSpec, before: &Report, revision: &str) -> Option<UpdateFailure> {
    if before.update_revision != revision || !spec.is_in_place() {
        return None;
    }
    before.conditions.iter().find_map(|condition| {
        let reason = [TOO_MANY, HOOK_FAILED].into_iter().find(|reason| *reason == condition.reason)?;
        let (failed, what_follows) = condition.message.split_once(' ')?;
        let is_enough = failed.parse().is_ok_and(|failed: usize| failed >= spec.threshold());
        let is_stop = is_enough && what_follows.starts_with(STOPPED);
        let message = condition.message.clone();
        is_stop.then(|| UpdateFailure { failed_pods: true, ..UpdateFailure::new(reason, message, true) })
    })
}

/// True when the pod that `stop` names is updated all the same: its agent reported the success late.
pub fn is_made_good(input: &ReconcileInput<'_>, stop: &UpdateFailure) -> bool {
    let named = stop.message.split_once(": pod ").and_then(|(_, rest)| rest.split_once(':'));
    let is_updated = |name: &str| {
        input.views.iter().any(|view| view.pod.name == name && view.was_updated_to(input.update_name()))
    };
    named.is_some_and(|(name, _)| is_updated(name))
}

/// What prevents the update from completing, if anything. `problem`: why a hook cannot be run. `goes_on`: true when the
/// partition is reached in spite of failed pods, or the progress deadline is to abort the update.
pub fn update_failure(
    input: &ReconcileInput<'_>,
    survey: &Survey<'_>,
    scaling: &Scaling<'_>,
    acts: &Acts,
    step: &Step,
    problem: Option<String>,
    goes_on: &dyn Fn() -> bool,
) -> Option<UpdateFailure> {
    // Failed pods end an update and begin an abort, whatever else holds it up.
    let recorded = survey.recorded_stop.clone().filter(|_| survey.failed < input.spec.threshold());
    let retries = input.spec.retries_update();
    let is_stopped = survey.stopped && !retries;
    let stopped = || if is_stopped { failed_pods(input, Others::Stopped) } else { None };
    if let Some(failed) = recorded.or_else(stopped) {
        return Some(failed);
    }
    if let Some((reason, blocked)) = &survey.blocked {
        return Some(UpdateFailure::new(reason, blocked.clone(), true));
    }
    if let Some(no_budget) = &survey.no_budget {
        return Some(UpdateFailure::new("NoBudget", no_budget.clone(), true));
    }
    if let Some(problem) = problem {
        return Some(UpdateFailure::new("HookTemplate", problem, true));
    }
    if let Some(view) =
        input.views.iter().find(|view| view.foreign_step(input.now) == Some(ForeignStep::Stuck))
    {
        let left = view.pod.foreign.as_ref().map(|update| update.restarting.join(", ")).unwrap_or_default();
        let message = format!(
            "pod {}: a bk-bcs operator began to update container {left} in place, and it does not run its new image: see \
             `kubectl describe pod {}`; change the template to an image that starts, or delete the pod",
            view.pod.name, view.pod.name
        );
        return Some(UpdateFailure::new("ForeignUpdate", message, true));
    }
    if let Some(message) = &step.failed_hook {
        return Some(UpdateFailure::new(HOOK_FAILED, message.clone(), true));
    }
    if let Some(message) = failed_hook::message(&acts.failed_hooks, false) {
        let stops = !others_continue(input, scaling, acts);
        return Some(UpdateFailure::new(HOOK_FAILED, message, stops));
    }
    // A pause, a retry and `OnDelete` have their own states.
    let has_failed = of_stage(input, Stage::Failed).next().is_some();
    let may_rest = has_failed && survey.moving() && !retries && !goes_on();
    let rest = may_rest && !others_continue(input, scaling, acts) && !others_wait(input, survey, acts);
    failed_pods(input, if rest { Others::Rest } else { Others::Continue }).or_else(|| unanswered(input))
}

/// The pods that could not be updated.
fn failed_pods(input: &ReconcileInput<'_>, others: Others) -> Option<UpdateFailure> {
    let first = of_stage(input, Stage::Failed).next()?;
    let (reason, what) = if failed_hook::failed_afterwards(first) {
        (
            HOOK_FAILED,
            "fix the hook and set spec.postInplaceUpdateStrategy.retry to true, or change the template",
        )
    } else if others == Others::Stopped {
        (TOO_MANY, "change the template, or set retry")
    } else {
        ("PodsFailed", "change the template, or set retry")
    };
    let message = format!(
        "{} {}: pod {}: {}; {what}",
        of_stage(input, Stage::Failed).count(),
        others.text(),
        first.pod.name,
        note(first)
    );
    let failed_pods = others == Others::Stopped;
    Some(UpdateFailure { failed_pods, ..UpdateFailure::new(reason, message, others != Others::Continue) })
}

/// The pods whose request no agent accepted.
fn unanswered(input: &ReconcileInput<'_>) -> Option<UpdateFailure> {
    let first = of_stage(input, Stage::Unanswered).next()?;
    let message = format!("pod {}: {}; it is retried automatically", first.pod.name, note(first));
    Some(UpdateFailure::new("NoAgent", message, false))
}

/// The pods whose last task ended at this stage.
fn of_stage<'s, 'a>(
    input: &'s ReconcileInput<'a>,
    stage: Stage,
) -> impl Iterator<Item = &'s PodView<'a>> + use<'s, 'a> {
    input.views.iter().filter(move |view| ended_at(input, view, stage))
}

/// True when the last task of the pod ended at this stage: towards the newest revision, or back to its own if it is between two.
fn ended_at(input: &ReconcileInput<'_>, view: &PodView<'_>, stage: Stage) -> bool {
    let is_not_back = || view.between_revisions && view.last_failure(&view.pod.label) == Some(stage);
    input.failure(view) == Some(stage) || is_not_back()
}

fn note(view: &PodView<'_>) -> String {
    match (&view.task_state, &view.pod.task) {
        (TaskState::Ended(end), _) => end.line(),
        (_, Some(task)) => task.note.clone(),
        _ => String::new(),
    }
}

/// True when the update continues in spite of pods that failed or wait for a failed hook: another pod has a task, is written or
/// created now, is retried later, or is updated and not available yet.
fn others_continue(input: &ReconcileInput<'_>, scaling: &Scaling<'_>, acts: &Acts) -> bool {
    let update = input.update_name();
    let waits_for_failed =
        |view: &PodView<'_>| acts.failed_hooks.iter().any(|failed| failed.pod == view.pod.name);
    let continues = |view: &PodView<'_>| {
        let updates = view.task_state == TaskState::Waiting && !view.waits_for(Purpose::ScaleIn);
        let retried = view.is_unanswered(update);
        let comes = view.is_at(update) && !view.available;
        updates || retried || comes || matches!(view.task_state, TaskState::Busy { .. })
    };
    let writes = |action: &Action| match action {
        Action::PatchPod { why, .. } => *why != Why::Prefetch,
        Action::DeletePod { .. } | Action::CreateRun(_) => true,
        _ => false,
    };
    !scaling.create_pods.is_empty()
        || acts.actions.iter().any(writes)
        || input.views.iter().any(|view| continues(view) && !waits_for_failed(view))
}

/// True when pods wait for something that comes without a person: a budget, an agent, another client, the end of a pod, or a
/// place that a pod takes which may soon be available.
fn others_wait(input: &ReconcileInput<'_>, survey: &Survey<'_>, acts: &Acts) -> bool {
    let recovers = |view: &PodView<'_>| {
        let has_failed = ended_at(input, view, Stage::Failed);
        let since = view.pod.unready_since;
        let is_recent = || since.map_or(!has_failed, |since| later(since, BROKEN_AFTER) > input.now);
        !view.available && (view.ready || is_recent())
    };
    // A pod that is created gets the ordinal, or the number, of one that is gone.
    let is_replaced = || input.pods.iter().any(|pod| pod.is_deleting());
    !acts.budgets.is_empty()
        || !survey.not_ready.is_empty()
        || is_replaced()
        || input.views.iter().any(|view| view.is_taken() || recovers(view))
}

/// Whether the update makes progress or is complete, the reason, and the number of updated pods.
pub fn progress(
    input: &ReconcileInput<'_>,
    survey: &Survey<'_>,
    held: Held,
    update_failure: Option<&UpdateFailure>,
    reached: &dyn Fn(Held) -> bool,
) -> (bool, &'static str, String) {
    let update = input.update_name();
    let updated = input.views.iter().filter(|view| view.is_at(update)).count();
    let far = format!("{updated} of {} pods are at revision {update}", input.spec.replicas);
    // The last pod that was held back may be lost: its successor has the old revision again.
    if input.is_everywhere() && reached(held) {
        return (true, "Complete", far);
    }
    let stopped = update_failure.filter(|failure| failure.stops);
    // The pause after a failed canary hook is that of the step, not of the user.
    if survey.paused && stopped.is_none_or(|failure| failure.reason != HOOK_FAILED) {
        return (false, "Paused", far);
    }
    if let Some(failure) = stopped {
        return (false, failure.reason, far);
    }
    if survey.way == UpdateType::OnDelete {
        return (true, "OnDelete", far);
    }
    if reached(held) {
        return (true, "PartitionReached", far);
    }
    (true, "Updating", far)
}
