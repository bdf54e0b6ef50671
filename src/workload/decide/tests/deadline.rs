//! The progress deadline: what counts as progress, what counts as time, and what a restarted controller knows.

use jiff::SignedDuration;

use super::*;
use crate::workload::deadline::EXCEEDED;
use crate::workload::report::Report;

fn limited(draft: &Draft) -> Draft {
    draft
        .clone()
        .with("/progressDeadlineSeconds", json!(100))
        .with("/updateStrategy/maxUnavailable", json!(1))
}

fn wait(sight: &mut Sight, seconds: i64) {
    sight.now += SignedDuration::from_secs(seconds);
    // A controller that starts has the status only as the API server stores it.
    sight.before = Report::of_deployment(&sight.before.deployment());
}

fn progressing(decision: &Decision) -> String {
    condition(decision, "Progressing").1
}

fn events(decision: &Decision) -> usize {
    let late = |action: &&Action| matches!(action, Action::Report(event) if event.reason == EXCEEDED);
    decision.actions.iter().filter(late).count()
}

/// Three pods, complete at the first revision, and an update of one at a time that has begun.
fn begun(old: &Draft) -> (Draft, Sight) {
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, old);
    wait(&mut sight, 1000);
    assert_eq!(progressing(&step(&mut sight, &new)), "Updating");
    (new, sight)
}

#[test]
fn an_update_without_progress_is_late_once_and_stalled() {
    let (new, mut sight) = begun(&limited(&in_place()));
    wait(&mut sight, 99);
    let decision = step(&mut sight, &new);
    assert_eq!((progressing(&decision).as_str(), events(&decision)), ("Updating", 0));
    assert_eq!(decision.requeue_at, Some(sight.now + SignedDuration::from_secs(1)));
    wait(&mut sight, 1);
    let decision = step(&mut sight, &new);
    assert_eq!((progressing(&decision).as_str(), events(&decision)), (EXCEEDED, 1), "{decision:#?}");
    assert_eq!(condition(&decision, "Progressing").0, "False");
    assert_eq!(condition(&decision, "Stalled").1, EXCEEDED);
    assert!(condition(&decision, "Stalled").2.contains("no progress for 100 s"), "{decision:#?}");
    wait(&mut sight, 10);
    let decision = step(&mut sight, &new);
    assert_eq!((progressing(&decision).as_str(), events(&decision)), (EXCEEDED, 0), "reported once");
    // The agent works after all.
    agents_succeed(&mut sight, "app:2");
    step(&mut sight, &new);
    assert_eq!(progressing(&step(&mut sight, &new)), "Updating");
}

#[test]
fn each_pod_that_gets_further_starts_the_time_again() {
    let (new, mut sight) = begun(&limited(&in_place()));
    for _ in 0..2 {
        wait(&mut sight, 90);
        agents_succeed(&mut sight, "app:2");
        assert_eq!(progressing(&step(&mut sight, &new)), "Updating");
    }
    wait(&mut sight, 90);
    assert_eq!(progressing(&step(&mut sight, &new)), "Updating", "90 s after the last progress");
    wait(&mut sight, 10);
    assert_eq!(progressing(&step(&mut sight, &new)), EXCEEDED);
}

#[test]
fn a_pod_that_no_agent_accepts_makes_no_progress_by_being_retried() {
    let old = limited(&in_place()).with("/progressDeadlineSeconds", json!(900));
    let (new, mut sight) = begun(&old);
    let mut reasons = Vec::new();
    for _ in 0..60 {
        wait(&mut sight, 30);
        reasons.push(progressing(&step(&mut sight, &new)));
    }
    assert_eq!(reasons.last().map(String::as_str), Some(EXCEEDED), "{reasons:?}");
}

#[test]
fn a_pause_is_no_time_and_another_template_begins_anew() {
    let (new, mut sight) = begun(&limited(&in_place()));
    wait(&mut sight, 60);
    let paused = new.clone().with("/updateStrategy/paused", json!(true));
    step(&mut sight, &paused);
    wait(&mut sight, 5000);
    assert_eq!(progressing(&step(&mut sight, &paused)), "Paused");
    assert_eq!(progressing(&step(&mut sight, &new)), "Updating");
    wait(&mut sight, 99);
    assert_eq!(progressing(&step(&mut sight, &new)), "Updating");
    let other = new.image("app:3");
    // The request of the other template is withdrawn first.
    for _ in 0..3 {
        step(&mut sight, &other);
    }
    wait(&mut sight, 99);
    assert_eq!(progressing(&step(&mut sight, &other)), "Updating");
    wait(&mut sight, 1);
    assert_eq!(progressing(&step(&mut sight, &other)), EXCEEDED);
}

#[test]
fn a_workload_that_was_complete_is_never_late() {
    let old = limited(&in_place());
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &old);
    assert_eq!(sight.before.stable_revision, old.revision().name);
    sight.pods[0].ready_since = None;
    step(&mut sight, &old);
    wait(&mut sight, 5000);
    assert_eq!(progressing(&step(&mut sight, &old)), "Updating");
}

#[test]
fn a_healthy_update_whose_pods_have_to_stay_ready_for_long_is_never_late() {
    let old = limited(&in_place()).with("/minReadySeconds", json!(99));
    assert!(crate::workload::check::deployment(None, &old.object(), false).is_empty());
    let (new, mut sight) = begun(&old);
    for _ in 0..3 {
        wait(&mut sight, 1);
        let ordered = |pod: &Pod| pod.task.as_ref().is_some_and(|task| task.stage == Stage::Ordered);
        for pod in sight.pods.iter_mut().filter(|pod| ordered(pod)) {
            pod.ready_since = Some(sight.now);
        }
        agents_succeed(&mut sight, "app:2");
        for _ in 0..99 {
            let decision = step(&mut sight, &new);
            assert!(matches!(progressing(&decision).as_str(), "Updating" | "Complete"), "{decision:#?}");
            wait(&mut sight, 1);
        }
    }
}

#[test]
fn without_a_deadline_an_update_is_never_late() {
    let (new, mut sight) = begun(&in_place().with("/updateStrategy/maxUnavailable", json!(1)));
    wait(&mut sight, 100_000);
    let decision = step(&mut sight, &new);
    assert_ne!(progressing(&decision), EXCEEDED);
    assert!(decision.requeue_at.is_none_or(|at| at > sight.now));
}

#[test]
fn a_hook_that_is_run_again_after_a_failure_has_its_whole_time() {
    let hook = json!({"hook": {"templateName": "test"}});
    let old = limited(&in_place()).with("/preInplaceUpdateStrategy", hook);
    let (new, mut sight) = begun(&old);
    wait(&mut sight, 10);
    hooks_end(&mut sight, HookPhase::Failed);
    assert_eq!(progressing(&step(&mut sight, &new)), "HookFailed");
    // A person needs longer than the deadline to fix the hook.
    wait(&mut sight, 5000);
    assert_eq!(progressing(&step(&mut sight, &new)), "HookFailed");
    let retry = new.clone().with("/preInplaceUpdateStrategy/retry", json!(true));
    step(&mut sight, &retry);
    wait(&mut sight, 1);
    let decision = step(&mut sight, &new);
    assert_eq!((progressing(&decision).as_str(), decision.asked().len()), ("Updating", 1), "{decision:#?}");
    wait(&mut sight, 99);
    assert_eq!(progressing(&step(&mut sight, &new)), "Updating");
    wait(&mut sight, 1);
    assert_eq!(progressing(&step(&mut sight, &new)), EXCEEDED, "the hook that runs is limited as before");
}

#[test]
fn an_update_that_a_person_made_possible_is_not_late_at_once() {
    let old = limited(&in_place()).with("/updateStrategy/maxUnavailable", json!(0));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &old);
    step(&mut sight, &new);
    wait(&mut sight, 5000);
    assert_eq!(progressing(&step(&mut sight, &new)), "NoBudget");
    let possible = limited(&new);
    assert_eq!(progressing(&step(&mut sight, &possible)), "Updating");
    wait(&mut sight, 99);
    assert_eq!(progressing(&step(&mut sight, &possible)), "Updating");
    wait(&mut sight, 1);
    assert_eq!(progressing(&step(&mut sight, &possible)), EXCEEDED);
}

/// Fewer pods failed than stop the update, and the others are done: the deadline decides if it aborts the update.
#[test]
fn failed_pods_below_the_threshold_leave_an_abort_to_the_deadline() {
    for (policy, before, after) in [("Abort", "Updating", "Aborting"), ("Pause", "PodsFailed", "PodsFailed")]
    {
        let old = limited(&in_place())
            .with("/updateStrategy/maxUnavailable", json!(3))
            .with("/updateStrategy/onFailure", json!(policy));
        let (new, mut sight) = begun(&old);
        let pod = sight.pod("web-a");
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
        step(&mut sight, &new);
        agents_succeed(&mut sight, "app:2");
        step(&mut sight, &new);
        wait(&mut sight, 99);
        assert_eq!(progressing(&step(&mut sight, &new)), before);
        wait(&mut sight, 1);
        assert_eq!(progressing(&step(&mut sight, &new)), after);
    }
}

/// The pod that leaves has the old image, and its hook takes longer than the deadline.
#[test]
fn an_update_that_is_complete_but_for_a_pod_that_leaves_is_not_aborted() {
    let old = limited(&in_place())
        .with("/updateStrategy/onFailure", json!("Abort"))
        .with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &old);
    let fewer = old.with("/replicas", json!(2));
    step(&mut sight, &fewer);
    let new = fewer.image("app:2");
    for _ in 0..8 {
        wait(&mut sight, 1);
        step(&mut sight, &new);
        update_hooks_pass(&mut sight);
        agents_succeed(&mut sight, "app:2");
    }
    for _ in 0..3 {
        wait(&mut sight, 1000);
        let decision = step(&mut sight, &new);
        assert_eq!((progressing(&decision).as_str(), events(&decision)), ("Complete", 0), "{decision:#?}");
        assert_eq!(sight.before.aborted_revision, "");
    }
    assert_eq!(sight.pods.len(), 3);
}
