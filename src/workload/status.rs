//! Status of an update: whether it makes progress, and if not, what the user can do. Decides nothing about pods.

use crate::api::game_deployment::UpdateType;
use crate::api::status::{Phase, Step};
use crate::api::workload::HookCondition;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::time::whole_seconds;
use crate::workload::canary::Held;
use crate::workload::input::ReconcileInput;
use crate::workload::survey::Survey;
use crate::workload::view::PodView;

/// Pods whose post-inplace hook has not succeeded, as their agents report. It runs before the pod takes traffic
/// again.
pub fn post_inplace(input: &ReconcileInput<'_>) -> Vec<HookCondition> {
    let reported = |view: &PodView<'_>| {
        let task = view.pod.task.as_ref().filter(|task| !task.deletes() && task.stage != Stage::Done)?;
        let answer = view.pod.answer.as_ref().filter(|answer| answer.id == task.id())?;
        let phase = match answer.phase {
            Phase::Running => "Running",
            Phase::Failed | Phase::RolledBack => "Failed",
            _ => return None,
        };
        let at_hook = answer.step == Some(Step::PostHook);
        at_hook.then(|| HookCondition {
            pod_name: view.pod.name.clone(),
            start_time: Some(answer.started_at.map_or(task.at, whole_seconds)),
            phase: phase.to_owned(),
        })
    };
    input.views.iter().filter_map(reported).collect()
}

/// What prevents the update from completing, if anything: a reason for programs and a message for people.
pub fn update_failure(
    input: &ReconcileInput<'_>,
    survey: &Survey<'_>,
    gate: Option<String>,
) -> Option<(&'static str, String)> {
    if let Some(blocked) = &survey.blocked {
        return Some(("NotInPlace", blocked.clone()));
    }
    if let Some(no_budget) = &survey.no_budget {
        return Some(("NoBudget", no_budget.clone()));
    }
    if let Some(gate) = gate {
        return Some(("HookTemplate", gate));
    }
    let update = input.update_name();
    let of_stage =
        |wanted: Stage| input.views.iter().filter(move |view| view.last_failure(update) == Some(wanted));
    let note = |view: &PodView<'_>| match (&view.task_state, &view.pod.task) {
        (TaskState::Ended(end), _) => end.line(),
        (_, Some(task)) => task.note.clone(),
        _ => String::new(),
    };
    if let Some(first) = of_stage(Stage::Failed).next() {
        let then = if survey.stopped { "no more are started" } else { "the others continue" };
        let message = format!(
            "{} pods could not be updated and {then}: pod {}: {}; change the template, or set retry",
            survey.failed,
            first.pod.name,
            note(first)
        );
        return Some((if survey.stopped { "TooManyFailures" } else { "PodsFailed" }, message));
    }
    let first = of_stage(Stage::Unanswered).next()?;
    Some(("NoAgent", format!("pod {}: {}; it is retried automatically", first.pod.name, note(first))))
}

/// Whether the update makes progress or is complete, the reason, and the number of updated pods.
pub fn progress(
    input: &ReconcileInput<'_>,
    survey: &Survey<'_>,
    held: Held,
    update_failure: Option<(&'static str, String)>,
    reached: &dyn Fn(Held) -> bool,
) -> (bool, &'static str, String) {
    let update = input.update_name();
    let updated = input.views.iter().filter(|view| view.is_at(update)).count();
    let far = format!("{updated} of {} pods are at revision {update}", input.spec.replicas);
    if survey.old == 0 && reached(held) {
        return (true, "Complete", far);
    }
    if survey.paused {
        return (false, "Paused", far);
    }
    if let Some((reason, _)) =
        update_failure.filter(|(reason, _)| *reason != "PodsFailed" && *reason != "NoAgent")
    {
        return (false, reason, far);
    }
    if survey.way == UpdateType::OnDelete {
        return (true, "OnDelete", far);
    }
    if reached(held) {
        return (true, "PartitionReached", far);
    }
    (true, "Updating", far)
}
