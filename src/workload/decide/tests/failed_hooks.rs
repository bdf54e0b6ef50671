//! A hook that failed is named in a condition, with its pod, its `HookRun` and what to do.

use super::*;
use crate::workload::hooks::TemplateState;

fn with_hook(draft: &Draft, field: &str) -> Draft {
    draft.clone().with(&format!("/{field}"), json!({"hook": {"templateName": "test"}}))
}

#[test]
fn a_failed_pre_inplace_hook_is_named_and_stops_the_update_only_if_nothing_else_continues() {
    let old =
        with_hook(&in_place(), "preInplaceUpdateStrategy").with("/updateStrategy/maxUnavailable", json!(2));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    sight.runs[0].phase = HookPhase::Failed;
    let (run, pod) = (sight.runs[0].name.clone(), sight.runs[0].pod_uid.replace("uid-", ""));
    let decision = step(&mut sight, &new);
    let (status, reason, message) = condition(&decision, "UpdateFailed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "HookFailed"), "{message}");
    for part in [&run, &format!("pod {pod}"), "Failed", "spec.preInplaceUpdateStrategy.retry"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(condition(&decision, "Progressing").0, "True", "the hook of another pod runs");
    assert_eq!(condition(&decision, "ScaleFailed").0, "False");

    sight.runs[1].phase = HookPhase::Error;
    let decision = step(&mut sight, &new);
    let (status, reason, _) = condition(&decision, "Progressing");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "HookFailed"));
    assert!(condition(&decision, "UpdateFailed").2.starts_with("2 pods"), "{decision:?}");

    let retry = new.clone().with("/preInplaceUpdateStrategy/retry", json!(true));
    step(&mut sight, &retry);
    let decision = step(&mut sight, &new);
    assert_eq!(condition(&decision, "UpdateFailed").1, "NoFailure", "the hooks run again");
    assert_eq!(condition(&decision, "Progressing").0, "True");
}

#[test]
fn a_failed_hook_does_not_stop_an_update_while_an_updated_pod_is_not_available_yet() {
    let old =
        with_hook(&in_place(), "preInplaceUpdateStrategy").with("/updateStrategy/maxUnavailable", json!(2));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    sight.runs[0].phase = HookPhase::Failed;
    sight.runs[1].phase = HookPhase::Successful;
    let updated = sight.runs[1].pod_uid.replace("uid-", "");
    step(&mut sight, &new);
    agents_succeed(&mut sight, "app:2");
    sight.pod(&updated).ready_since = None;
    step(&mut sight, &new);
    let decision = step(&mut sight, &new);
    assert_eq!(condition(&decision, "Progressing").0, "True", "{decision:?}");
    assert_eq!(condition(&decision, "UpdateFailed").1, "HookFailed");
}

#[test]
fn a_failed_pre_delete_hook_of_a_scale_in_is_a_failure_of_scaling() {
    let draft = with_hook(&deployment(), "preDeleteUpdateStrategy");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &draft.revision());
    let fewer = draft.with("/replicas", json!(2));
    step(&mut sight, &fewer);
    hooks_end(&mut sight, HookPhase::Inconclusive);
    let run = sight.runs[0].name.clone();
    let decision = step(&mut sight, &fewer);
    let (status, reason, message) = condition(&decision, "ScaleFailed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "HookFailed"), "{message}");
    assert!(message.contains(&run) && message.contains("spec.preDeleteUpdateStrategy.retry"), "{message}");
    assert_eq!(condition(&decision, "UpdateFailed").0, "False");
}

#[test]
fn a_failed_pre_delete_hook_of_an_update_is_a_failure_of_the_update() {
    for old in [deployment(), in_place()] {
        let old = with_hook(&old, "preDeleteUpdateStrategy").with("/updateStrategy/maxUnavailable", json!(1));
        let new = old.clone().image("app:2");
        let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
        step(&mut sight, &new);
        hooks_end(&mut sight, HookPhase::Failed);
        let decision = step(&mut sight, &new);
        assert_eq!(condition(&decision, "UpdateFailed").1, "HookFailed");
        assert_eq!(condition(&decision, "Progressing").1, "HookFailed");
        assert_eq!(condition(&decision, "ScaleFailed").0, "False");
    }
}

#[test]
fn a_failed_post_inplace_hook_is_named_instead_of_a_failed_pod() {
    let old =
        with_hook(&in_place(), "postInplaceUpdateStrategy").with("/updateStrategy/maxUnavailable", json!(1));
    for (threshold, progressing) in [("1", "False"), ("3", "True")] {
        let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, threshold);
        let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
        let name = step(&mut sight, &new).requested()[0].to_owned();
        let pod = sight.pod(&name);
        let mut failed = answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Rollback));
        failed.reason = "PostHookFailed".to_owned();
        failed.message = "postHook check ended as Failed (HookRun post-x)".to_owned();
        pod.answer = Some(failed);
        step(&mut sight, &new);
        let decision = step(&mut sight, &new);
        let (status, reason, message) = condition(&decision, "UpdateFailed");
        assert_eq!((status.as_str(), reason.as_str()), ("True", "HookFailed"), "{message}");
        for part in [name.as_str(), "HookRun post-x", "spec.postInplaceUpdateStrategy.retry"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(condition(&decision, "Progressing").0, progressing, "{decision:?}");
    }
}

/// The task is the same, and so is the key of its runs.
#[test]
fn a_failed_hook_is_over_when_the_update_gets_one_of_another_kind() {
    let old =
        with_hook(&in_place(), "preDeleteUpdateStrategy").with("/updateStrategy/maxUnavailable", json!(1));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    hooks_end(&mut sight, HookPhase::Failed);
    assert_eq!(condition(&step(&mut sight, &new), "UpdateFailed").1, "HookFailed");
    let new = with_hook(&new, "preInplaceUpdateStrategy");
    let decision = step(&mut sight, &new);
    assert_eq!(decision.asked().len(), 1, "{decision:#?}");
    let decision = step(&mut sight, &new);
    assert_eq!(condition(&decision, "UpdateFailed").1, "NoFailure", "the new hook runs");
    let kinds: Vec<_> = sight.runs.iter().map(|run| run.kind).collect();
    assert_eq!(kinds, [HookType::PreInplace]);
    hooks_end(&mut sight, HookPhase::Failed);
    let run = sight.runs[0].name.clone();
    let (_, reason, message) = condition(&step(&mut sight, &new), "UpdateFailed");
    assert_eq!(reason, "HookFailed", "{message}");
    assert!(message.contains(&run) && message.contains("spec.preInplaceUpdateStrategy.retry"), "{message}");
}

#[test]
fn a_hook_after_the_update_that_cannot_be_run_is_found_before_the_hook_before_it_runs() {
    let after = json!({"hook": {"templateName": "after"}});
    let old = with_hook(&in_place(), "preInplaceUpdateStrategy")
        .with("/postInplaceUpdateStrategy", after)
        .with("/updateStrategy/maxUnavailable", json!(1));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    let stays = |sight: &mut Sight, state: TemplateState, says: &str| {
        sight.templates.insert("after".to_owned(), state);
        let decision = step(sight, &new);
        assert!(decision.asked().is_empty() && decision.requested().is_empty(), "{decision:#?}");
        let (_, reason, message) = condition(&decision, "UpdateFailed");
        assert_eq!(reason, "HookTemplate", "{message}");
        assert!(message.starts_with("HookTemplate after ") && message.contains(says), "{message}");
    };
    stays(&mut sight, TemplateState::Missing, "does not exist: create it, pod web-");
    stays(&mut sight, TemplateState::Invalid("it sets annotations".to_owned()), "it sets annotations");
    sight.templates.insert("after".to_owned(), TemplateState::Valid);
    assert_eq!(step(&mut sight, &new).asked().len(), 1);
    hooks_end(&mut sight, HookPhase::Successful);
    stays(&mut sight, TemplateState::Missing, "does not exist");
    sight.templates.insert("after".to_owned(), TemplateState::Valid);
    let decision = step(&mut sight, &new);
    assert_eq!(
        (decision.requested().len(), condition(&decision, "UpdateFailed").1.as_str()),
        (1, "NoFailure")
    );
}

/// No request follows from a change of resources alone, and no hook after it.
#[test]
fn a_hook_after_the_update_that_cannot_be_run_does_not_hold_a_resize_up() {
    let after = json!({"hook": {"templateName": "absent"}});
    let with_cpu = |cpu: &str| super::resize::with_cpu(cpu).with("/postInplaceUpdateStrategy", after.clone());
    let mut sight = sight(&["web-a", "web-b", "web-c"], &with_cpu("1").revision());
    let decision = step(&mut sight, &with_cpu("2"));
    assert_eq!(condition(&decision, "UpdateFailed").1, "NoFailure", "{decision:#?}");
    let decision = step(&mut sight, &with_cpu("2"));
    let resizes = |action: &&Action| matches!(action, Action::Resize { .. });
    assert_eq!(decision.actions.iter().filter(resizes).count(), 1, "{decision:#?}");
}

#[test]
fn the_failed_hook_of_a_canary_step_is_named() {
    let steps = json!([{"partition": 2}, {"hook": {"templateName": "test"}}, {"partition": 0}]);
    let old = in_place().with("/updateStrategy/canary", json!({"steps": steps}));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    for _ in 0..3 {
        step(&mut sight, &old);
    }
    for _ in 0..8 {
        step(&mut sight, &new);
        agents_succeed(&mut sight, "app:2");
    }
    let run = sight.runs[0].name.clone();
    hooks_end(&mut sight, HookPhase::Failed);
    step(&mut sight, &new);
    let decision = step(&mut sight, &new);
    let (status, reason, message) = condition(&decision, "UpdateFailed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "HookFailed"), "{message}");
    for part in [run.as_str(), "canary step 1", "inplace rollout resume"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(condition(&decision, "Progressing").1, "HookFailed");
}

#[test]
fn the_annotation_for_a_retry_runs_a_failed_hook_again() {
    for field in ["preInplaceUpdateStrategy", "preDeleteUpdateStrategy"] {
        let old = with_hook(&in_place(), field).with("/updateStrategy/maxUnavailable", json!(1));
        let new = match field {
            "preInplaceUpdateStrategy" => old.clone().image("app:2"),
            _ => old.clone().with("/replicas", json!(2)),
        };
        let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
        step(&mut sight, &new);
        hooks_end(&mut sight, HookPhase::Failed);
        step(&mut sight, &new);
        let retried = new.clone().annotated(workload_key::RETRY, "true");
        let decision = step(&mut sight, &retried);
        assert!(decision.actions.contains(&Action::ClearRetry), "{decision:#?}");
        step(&mut sight, &new);
        assert_eq!(sight.runs.len(), 1, "{field}");
        assert_eq!(sight.runs[0].phase, HookPhase::Running, "{field}");
    }
}

/// A recreation that waits for a failed hook frees no place.
#[test]
fn failed_hooks_of_an_update_do_not_stop_a_scale_in() {
    let old = with_hook(&deployment(), "preDeleteUpdateStrategy")
        .with("/replicas", json!(5))
        .with("/updateStrategy/maxUnavailable", json!(2));
    let new = old.clone().image("app:2");
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &new);
    let fewer = new.with("/replicas", json!(3));
    for _ in 0..8 {
        for at in 0..sight.runs.len() {
            let uid = sight.runs[at].pod_uid.clone();
            let pod = sight.pods.iter().find(|pod| pod.uid == uid);
            let is_update =
                pod.and_then(|pod| pod.task.as_ref()).is_some_and(|t| t.purpose == Purpose::Recreate);
            sight.runs[at].phase = if is_update { HookPhase::Failed } else { HookPhase::Successful };
        }
        step(&mut sight, &fewer);
    }
    assert_eq!(sight.pods.len(), 3, "{sight:#?}");
}
