//! Derives from a workload's status whether its update is done, in progress, or stopped until a person acts.
//! Pure.

use serde::Serialize;

use crate::api::workload::{Condition, PauseReason};
use crate::cli::workload_rollout::workload::Workload;
use crate::workload::report::{PROGRESSING, UPDATE_FAILED};

/// The state of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in crate::cli) enum State {
    /// Everything that is to be updated is updated.
    Done,
    /// It progresses on its own.
    Going,
    /// It failed, or waits for a person.
    Stopped,
}

/// The state, its reason, and the message for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Verdict {
    pub(in crate::cli) state: State,
    pub(in crate::cli) reason: String,
    pub(in crate::cli) message: String,
}

impl Verdict {
    fn new(state: State, reason: &str, message: impl Into<String>) -> Self {
        Self { state, reason: reason.to_owned(), message: message.into() }
    }
}

/// Evaluates the status of `workload`. `flags` are those of a command that the user is to run next.
pub(in crate::cli) fn verdict(workload: &Workload, flags: &str) -> Verdict {
    let (spec, status) = (&workload.spec, &workload.status);
    if spec.deleting {
        return Verdict::new(State::Stopped, "Deleted", "it is being deleted");
    }
    let condition = |kind: &str| status.conditions.iter().find(|condition| condition.kind == kind);
    let progress = condition(PROGRESSING).filter(|_| status.observed_generation >= spec.generation);
    let Some(progress) = progress else {
        return Verdict::new(
            State::Going,
            "NotSeen",
            "the controller has not observed the latest change yet",
        );
    };
    let far = format!("{}, {} of them Ready", progress.message, status.updated_ready_replicas);
    let failed = condition(UPDATE_FAILED).filter(|condition| condition.status == "True");
    match progress.reason.as_str() {
        "Complete" => {
            return Verdict::new(State::Done, "Complete", format!("successfully rolled out: {far}"));
        }
        "Paused" => return paused(workload, &far, flags),
        "OnDelete" => {
            let message = format!("waits until the pods that are not updated are deleted (OnDelete): {far}");
            return Verdict::new(State::Stopped, "OnDelete", message);
        }
        _ => {}
    }
    if let Some(stopped) = stopped(workload, progress, failed) {
        return stopped;
    }
    // `HeldBack`: the name of that reason in earlier builds.
    if matches!(progress.reason.as_str(), "PartitionReached" | "HeldBack") && steps_left(workload).is_none() {
        return Verdict::new(
            State::Done,
            "PartitionReached",
            format!("rolled out up to its partition: {far}"),
        );
    }
    let also = failed.map(|failed| format!("; {}", failed.message)).unwrap_or_default();
    Verdict::new(State::Going, &progress.reason, format!("waiting: {far}{also}"))
}

/// States that need a person: failed pods, failed hooks, a template that does not fit.
fn stopped(workload: &Workload, progress: &Condition, failed: Option<&Condition>) -> Option<Verdict> {
    let status = &workload.status;
    // A missing agent is expected to come back, a failed write is repeated, and the pods are updated whether or not
    // their claims can grow.
    let passes =
        |failed: &Condition| matches!(failed.reason.as_str(), "NoAgent" | "WriteFailed" | "ClaimNotExpanded");
    if let Some(failed) = failed.filter(|failed| !passes(failed)) {
        return Some(Verdict::new(State::Stopped, &failed.reason, failed.message.clone()));
    }
    let hooks = [
        ("preDelete", &status.pre_delete_hook_condition),
        ("preInplace", &status.pre_inplace_hook_condition),
        ("postInplace", &status.post_inplace_hook_condition),
    ];
    let hooks = hooks.into_iter().flat_map(|(field, list)| list.iter().map(move |hook| (field, hook)));
    let mut failed =
        hooks.filter(|(_, hook)| matches!(hook.phase.as_str(), "Failed" | "Error" | "Inconclusive"));
    if let Some((field, hook)) = failed.next() {
        let message = format!(
            "the {field} hook of pod {} is {}; set spec.{field}UpdateStrategy.retry to run it again",
            hook.pod_name, hook.phase
        );
        return Some(Verdict::new(State::Stopped, "HookFailed", message));
    }
    (progress.status != "True")
        .then(|| Verdict::new(State::Stopped, &progress.reason, progress.message.clone()))
}

/// The verdict of a pause by a person or by a canary step. A canary pause with a duration ends by itself.
fn paused(workload: &Workload, far: &str, flags: &str) -> Verdict {
    // The user's own pause goes on after that of a step.
    let pause = workload.status.pause_conditions.first().map(|pause| pause.reason);
    let pause = pause.filter(|_| !workload.spec.update.paused);
    let (step, length) = steps_left(workload).unwrap_or_default();
    let seconds = length.filter(|_| pause == Some(PauseReason::PausedByCanaryPauseStep));
    if let Some(seconds) = seconds {
        let message = format!("canary step {step} pauses for {seconds} s: {far}");
        return Verdict::new(State::Going, "CanaryPause", message);
    }
    let why = match pause {
        None => "it is paused".to_owned(),
        Some(PauseReason::PausedByCanaryPauseStep) => {
            format!("canary step {step} pauses until it is resumed")
        }
        Some(PauseReason::PausedByStepBasedHook) => format!("the hook of canary step {step} did not succeed"),
    };
    let resume = format!("inplace rollout resume {}{flags}", workload.name);
    Verdict::new(State::Stopped, "Paused", format!("{why} (`{resume}`): {far}"))
}

/// The index of the current canary step, if any is left, and the duration of its pause in seconds.
fn steps_left(workload: &Workload) -> Option<(usize, Option<i32>)> {
    let canary = workload.spec.update.canary.as_ref()?;
    let at = workload.status.current_step_index.and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
    let step = canary.steps.get(at)?;
    Some((at, step.pause.as_ref().and_then(|pause| pause.duration)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::workload_rollout::workload::Kind;
    use crate::cli::workload_rollout::workload::tests::workload;

    fn reported(status: &str, reason: &str) -> Value {
        json!({"type": "Progressing", "status": status, "reason": reason, "message": "2 of 5 pods are at revision r"})
    }

    #[expect(clippy::needless_pass_by_value, reason = "a case is written in one line")]
    fn judged(spec: Value, status: Value, conditions: Value) -> Verdict {
        let mut whole = json!({"observedGeneration": 2, "updatedReadyReplicas": 1, "conditions": conditions});
        whole.as_object_mut().unwrap().extend(status.as_object().unwrap().clone());
        verdict(&workload(Kind::Deployment, &spec, &whole), " -n shop")
    }

    #[test]
    fn the_conditions_of_the_controller_mean_done_in_progress_or_stalled() {
        let failed = |reason: &str, message: &str| {
            json!([reported("True", "Updating"),
            {"type": "UpdateFailed", "status": "True", "reason": reason, "message": message}])
        };
        let hook = json!({"preInplaceHookCondition": [{"podName": "web-x", "phase": "Failed"}]});
        let running = json!({"preInplaceHookCondition": [{"podName": "web-x", "phase": "Running"}]});
        let none = || json!({});
        for (status, conditions, state, reason, says) in [
            (
                none(),
                json!([reported("True", "Complete")]),
                State::Done,
                "Complete",
                "successfully rolled out: 2 of 5",
            ),
            (
                none(),
                json!([reported("True", "PartitionReached")]),
                State::Done,
                "PartitionReached",
                "up to its partition",
            ),
            (none(), json!([reported("True", "Updating")]), State::Going, "Updating", "1 of them Ready"),
            (running, json!([reported("True", "Updating")]), State::Going, "Updating", "waiting"),
            (none(), json!([]), State::Going, "NotSeen", "has not observed"),
            (
                json!({"observedGeneration": 1}),
                json!([reported("True", "Complete")]),
                State::Going,
                "NotSeen",
                "not observed",
            ),
            (
                none(),
                json!([reported("False", "Paused")]),
                State::Stopped,
                "Paused",
                "(`inplace rollout resume gamedeployment.tkex.tencent.com/web -n shop`)",
            ),
            (
                none(),
                json!([reported("True", "OnDelete")]),
                State::Stopped,
                "OnDelete",
                "until the pods that are not updated are deleted",
            ),
            (none(), failed("PodsFailed", "2 pods"), State::Stopped, "PodsFailed", "2 pods"),
            (none(), failed("NoAgent", "pod web-x"), State::Going, "Updating", "1 of them Ready; pod web-x"),
            (
                none(),
                failed("WriteFailed", "timed out"),
                State::Going,
                "Updating",
                "1 of them Ready; timed out",
            ),
            (
                none(),
                failed("ClaimNotExpanded", "claim data-game-0 stays at 1Gi"),
                State::Going,
                "Updating",
                "claim data-game-0 stays at 1Gi",
            ),
            (none(), failed("NoBudget", "maxUnavailable"), State::Stopped, "NoBudget", "maxUnavailable"),
            (
                none(),
                json!([reported("False", "TooManyFailures")]),
                State::Stopped,
                "TooManyFailures",
                "2 of 5",
            ),
            (
                hook,
                json!([reported("True", "Updating")]),
                State::Stopped,
                "HookFailed",
                "spec.preInplaceUpdateStrategy.retry",
            ),
        ] {
            let verdict = judged(none(), status, conditions);
            assert_eq!((verdict.state, verdict.reason.as_str()), (state, reason), "{verdict:?}");
            assert!(verdict.message.contains(says), "{verdict:?}");
        }
    }

    #[test]
    fn a_canary_pause_with_a_duration_goes_on_by_itself() {
        let spec = |pause: Value| {
            json!({"updateStrategy": {"paused": false,
            "canary": {"steps": [{"partition": 3}, {"pause": pause}, {"partition": 0}]}}})
        };
        let at = |index: i32, why: &str| {
            json!({"currentStepIndex": index,
            "pauseConditions": [{"reason": why, "startTime": "2026-11-20T10:00:00Z"}]})
        };
        let paused = || json!([reported("False", "Paused")]);
        for (spec, status, state, says) in [
            (
                spec(json!({"duration": 60})),
                at(1, "PausedByCanaryPauseStep"),
                State::Going,
                "step 1 pauses for 60 s",
            ),
            (spec(json!({})), at(1, "PausedByCanaryPauseStep"), State::Stopped, "until it is resumed"),
            (spec(json!({})), at(0, "PausedByStepBasedHook"), State::Stopped, "hook of canary step 0"),
        ] {
            let verdict = judged(spec, status, paused());
            assert_eq!(verdict.state, state, "{verdict:?}");
            assert!(verdict.message.contains(says), "{verdict:?}");
        }
        let mut own = spec(json!({"duration": 60}));
        own["updateStrategy"]["paused"] = json!(true);
        let own = judged(own, at(1, "PausedByCanaryPauseStep"), paused());
        assert_eq!(
            own.state,
            State::Stopped,
            "the pause of the user does not end with that of the step: {own:?}"
        );
        assert!(own.message.starts_with("it is paused (`inplace rollout resume "), "{own:?}");
        // Between canary steps the update is held back, and continues by itself.
        let held = judged(
            spec(json!({})),
            json!({"currentStepIndex": 0}),
            json!([reported("True", "PartitionReached")]),
        );
        assert_eq!(held.state, State::Going);
        let over = judged(
            spec(json!({})),
            json!({"currentStepIndex": 3}),
            json!([reported("True", "PartitionReached")]),
        );
        assert_eq!(over.state, State::Done);
    }
}
