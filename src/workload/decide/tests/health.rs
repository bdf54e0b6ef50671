//! What `Ready`, `Reconciling` and `Stalled` say in each state, read as the kstatus library does.

use super::*;

/// The status that kstatus computes, and the reason of `Ready`.
fn kstatus(draft: &Draft, decision: &Decision) -> (&'static str, String) {
    let is = |kind| condition(decision, kind).0 == "True";
    let reason = condition(decision, "Ready").1;
    let observed = decision.report.as_ref().unwrap().generation == draft.spec().generation;
    let all = ["Ready", "Reconciling", "Stalled"].into_iter().filter(|kind| is(kind)).count();
    assert!(all <= 1, "{decision:?}");
    let status = match () {
        () if !observed || is("Reconciling") => "InProgress",
        () if is("Stalled") => "Failed",
        () if is("Ready") => "Current",
        () => "InProgress",
    };
    (status, reason)
}

#[track_caller]
fn check(draft: &Draft, decision: &Decision, status: &str, reason: &str) {
    assert_eq!(kstatus(draft, decision), (status_of(status), reason.to_owned()), "{decision:#?}");
}

fn status_of(status: &str) -> &'static str {
    ["InProgress", "Failed", "Current"].into_iter().find(|known| *known == status).unwrap()
}

#[test]
fn an_update_is_in_progress_until_all_pods_are_updated_and_available() {
    let (old, new) = (in_place(), in_place().image("app:2"));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    check(&old, &step(&mut sight, &old), "Current", "Complete");
    check(&new, &step(&mut sight, &new), "InProgress", "Updating");
    agents_succeed(&mut sight, "app:2");
    sight.pods[0].ready_since = None;
    step(&mut sight, &new);
    check(&new, &step(&mut sight, &new), "InProgress", "Updating");
    sight.pods[0].ready_since = Some(sight.now);
    check(&new, &step(&mut sight, &new), "Current", "Complete");
}

#[test]
fn a_change_of_the_number_of_pods_is_in_progress_until_it_is_complete() {
    let draft = deployment();
    let mut sight = sight(&["web-a", "web-b", "web-c"], &draft.revision());
    let (more, fewer) = (draft.clone().with("/replicas", json!(4)), draft.with("/replicas", json!(2)));
    check(&more, &sight.decide(&more), "InProgress", "Updating");
    check(&fewer, &step(&mut sight, &fewer), "InProgress", "Scaling");
    check(&fewer, &step(&mut sight, &fewer), "Current", "Complete");
}

#[test]
fn a_scale_in_whose_hook_failed_is_stalled() {
    let draft = deployment().with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &draft.revision());
    let fewer = draft.with("/replicas", json!(2));
    check(&fewer, &step(&mut sight, &fewer), "InProgress", "Scaling");
    hooks_end(&mut sight, HookPhase::Failed);
    check(&fewer, &step(&mut sight, &fewer), "Failed", "HookFailed");
}

#[test]
fn failed_pods_stall_an_update_only_when_nothing_is_in_progress_any_more() {
    let old = in_place().with("/updateStrategy/maxUnavailable", json!(2));
    let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "1");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    let names: Vec<_> = step(&mut sight, &new).requested().into_iter().map(str::to_owned).collect();
    let fail = |sight: &mut Sight, name: &str| {
        let pod = sight.pod(name);
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
    };
    fail(&mut sight, &names[0]);
    step(&mut sight, &new);
    check(&new, &step(&mut sight, &new), "InProgress", "TooManyFailures");
    fail(&mut sight, &names[1]);
    step(&mut sight, &new);
    check(&new, &step(&mut sight, &new), "Failed", "TooManyFailures");
}

/// The pod that could not be updated is the last one, and too few failed to stop the update.
#[test]
fn failed_pods_below_the_threshold_stall_an_update_when_the_other_pods_are_done() {
    for policy in ["Pause", "Abort"] {
        let old = in_place().with("/updateStrategy/onFailure", json!(policy));
        let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "2");
        let mut sight = one_fails(&old, &new);
        check(&new, &step(&mut sight, &new), "InProgress", "Updating");
        agents_succeed(&mut sight, "app:2");
        step(&mut sight, &new);
        // A pod that is not available may come, and the next one has its place.
        sight.pod("web-b").ready_since = None;
        check(&new, &step(&mut sight, &new), "InProgress", "Updating");
        sight.pod("web-b").ready_since = Some(at(-900));
        for _ in 0..2 {
            let decision = step(&mut sight, &new);
            check(&new, &decision, "Failed", "PodsFailed");
            assert!(decision.actions.is_empty(), "{decision:#?}");
            assert_eq!(condition(&decision, "Progressing").0, "False");
            let (_, reason, message) = condition(&decision, "UpdateFailed");
            assert_eq!(reason, "PodsFailed");
            assert!(message.contains("nothing more happens") && message.contains("web-a"), "{message}");
            assert_eq!(sight.before.aborted_revision, "");
        }
        // A pause is not the end of an update.
        let paused = new.clone().with("/updateStrategy/paused", json!(true));
        check(&paused, &sight.decide(&paused), "InProgress", "Paused");
        step(&mut sight, &new.clone().annotated(workload_key::RETRY, "true"));
        let decision = step(&mut sight, &new);
        assert_eq!(decision.requested(), ["web-a"]);
        check(&new, &decision, "InProgress", "Updating");
    }
}

/// Three pods, of which `web-a` could not be updated; the others are in progress.
fn one_fails(old: &Draft, new: &Draft) -> Sight {
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, old);
    assert_eq!(step(&mut sight, new).requested().len(), 3);
    let pod = sight.pod("web-a");
    pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
    step(&mut sight, new);
    sight
}

/// The next pod has its place.
#[test]
fn a_failed_pod_that_may_come_back_soon_stalls_nothing() {
    let old = in_place().with("/updateStrategy/maxUnavailable", json!(1));
    let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &old);
    let decision = step(&mut sight, &new);
    let [name] = decision.requested()[..] else { panic!("{:#?}", decision.actions) };
    let pod = sight.pod(name);
    pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
    (pod.ready_since, pod.unready_since) = (None, Some(at(-10)));
    step(&mut sight, &new);
    check(&new, &step(&mut sight, &new), "InProgress", "Updating");
    sight.pod(name).unready_since = Some(at(-100));
    check(&new, &step(&mut sight, &new), "Failed", "PodsFailed");
    let pod = sight.pod(name);
    (pod.ready_since, pod.unready_since) = (Some(at(-900)), None);
    assert_eq!(step(&mut sight, &new).requested().len(), 1);
}

#[test]
fn a_failed_pod_that_the_partition_holds_back_stalls_nothing() {
    let old = in_place();
    let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "2");
    let mut sight = one_fails(&old, &new);
    let held = new.with("/updateStrategy/partition", json!(1));
    agents_succeed(&mut sight, "app:2");
    step(&mut sight, &held);
    check(&held, &step(&mut sight, &held), "Current", "PartitionReached");
}

/// The budget allows the other pods to be updated later.
#[test]
fn an_update_with_a_failed_pod_that_waits_for_a_budget_is_in_progress() {
    let old = in_place();
    let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "2");
    let mut sight = one_fails(&old, &new);
    for pod in sight.pods.iter_mut().filter(|pod| pod.name != "web-a") {
        (pod.task, pod.request) = (None, None);
    }
    sight.disruptions = super::disruptions::allowing(0, &[]);
    check(&new, &step(&mut sight, &new), "InProgress", "PodDisruptionBudget");
    sight.disruptions = super::disruptions::allowing(2, &[]);
    assert_eq!(step(&mut sight, &new).requested(), ["web-b", "web-c"]);
}

#[test]
fn a_change_that_cannot_be_made_in_place_is_stalled() {
    let old = in_place();
    let new = old.clone().with("/template/spec/hostNetwork", json!(true));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    check(&new, &step(&mut sight, &new), "Failed", "NotInPlace");
}

#[test]
fn a_missing_hook_template_is_waited_for() {
    let old = in_place().with("/preInplaceUpdateStrategy", json!({"hook": {"templateName": "absent"}}));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    check(&new, &step(&mut sight, &new), "InProgress", "HookTemplate");
}

#[test]
fn a_pause_is_in_progress_only_while_pods_are_left_to_update() {
    let old = in_place().with("/updateStrategy/paused", json!(true));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    check(&old, &step(&mut sight, &old), "Current", "Complete");
    check(&new, &step(&mut sight, &new), "InProgress", "Paused");
}

#[test]
fn a_partition_that_is_reached_is_ready_unless_canary_steps_are_left() {
    let old = in_place().with("/updateStrategy/partition", json!(3));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    check(&new, &step(&mut sight, &new), "Current", "PartitionReached");
    sight.pods[0].ready_since = None;
    check(&new, &step(&mut sight, &new), "InProgress", "MinimumPodsUnavailable");
    let steps = json!([{"partition": 3}, {"pause": {}}]);
    let old = in_place().with("/updateStrategy/canary", json!({"steps": steps}));
    let new = old.clone().image("app:2");
    let mut sight = super::sight(&["web-a", "web-b", "web-c"], &old.revision());
    check(&old, &step(&mut sight, &old), "Current", "Complete");
    check(&new, &step(&mut sight, &new), "InProgress", "PartitionReached");
}

#[test]
fn on_delete_is_ready_because_the_spec_leaves_the_update_to_a_person() {
    let old = deployment().with("/updateStrategy/type", json!("OnDelete"));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    check(&new, &step(&mut sight, &new), "Current", "OnDelete");
}
