//! Behaviour that differs from the reference: the numbers are those of its known bugs.

use super::*;

/// 1: r1 -> r2 changes container a, r3 changes b before the grace period of r2 is over.
#[test]
fn no_part_of_an_update_is_lost_when_another_one_follows_within_its_grace_period() {
    let one = two_containers();
    let two = other_image(&one, 0, "a:2");
    let three = other_image(&two, 1, "b:3");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &one.revision());
    step(&mut sight, &two);
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::Drain)));
    }
    let decision = step(&mut sight, &three);
    assert!(sight.pods.iter().all(|pod| pod.request.is_none()), "taken back first: {decision:?}");
    assert!(sight.pods.iter().all(|pod| pod.label == one.revision().name), "no label moves before its image");
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        pod.answer = Some(answer(&id, Phase::Cancelled, None));
    }
    step(&mut sight, &three);
    let decision = step(&mut sight, &three);
    let wanted: Vec<_> = requests(&decision)
        .iter()
        .map(|request| {
            request
                .containers
                .iter()
                .map(|one| format!("{}={}", one.name, one.image.clone().unwrap()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(wanted, vec![vec!["a=a:2".to_owned(), "b=b:3".to_owned()]; 3]);
}

/// Somebody removes the record of the tasks, but not the last answer of the agent.
#[test]
fn an_old_answer_is_no_answer_to_a_task_after_the_record_was_removed() {
    let one = in_place();
    let two = one.clone().image("app:2");
    let mut sight = sight(&["web-a"], &one.revision());
    step(&mut sight, &two);
    agents_succeed(&mut sight, "app:2");
    step(&mut sight, &two);
    assert_eq!(sight.pod("web-a").label, two.revision().name);
    let first = sight.pod("web-a").answer.clone().unwrap().id;
    // Another client sets the old image and removes all records of the controller.
    let pod = sight.pod("web-a");
    "app:1".clone_into(&mut pod.images[0].1);
    (pod.task, pod.request) = (None, None);
    step(&mut sight, &one);
    assert_eq!(sight.pod("web-a").label, one.revision().name);
    let stripped = sight.clone();
    for answered in [true, false] {
        let mut sight = stripped.clone();
        sight.now += jiff::SignedDuration::from_secs(60);
        if !answered {
            sight.pod("web-a").answer = None;
        }
        for _ in 0..3 {
            step(&mut sight, &two);
        }
        let pod = sight.pod("web-a");
        assert_eq!(pod.label, one.revision().name, "the label moved without a swap");
        assert_ne!(pod.request.as_ref(), Some(&first), "the agent would answer from its journal");
        assert!(pod.request.is_some());
    }
}

#[test]
fn containers_wait_for_one_another_where_the_user_says_so() {
    for (policy, waits) in [("DisOrdered", false), ("OrderedUpdated", false), ("OrderedReady", true)] {
        let path = "/updateStrategy/inPlaceUpdateStrategy/policy";
        let one = two_containers().with(path, json!(policy));
        let two = other_image(&other_image(&one, 0, "a:2"), 1, "b:2");
        let mut sight = sight(&["web-a"], &one.revision());
        let asked = requests(&step(&mut sight, &two));
        let names: Vec<_> = asked[0].containers.iter().map(|target| target.name.as_str()).collect();
        assert_eq!((names, asked[0].each_ready), (vec!["a", "b"], waits), "{policy}");
    }
}

/// 1, too late to withdraw: what the first update did is not repeated, what it did not do is not skipped.
#[test]
fn an_update_that_cannot_be_taken_back_is_followed_by_the_rest() {
    let one = two_containers();
    let two = other_image(&one, 0, "a:2");
    let three = other_image(&two, 1, "b:3");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &one.revision());
    step(&mut sight, &two);
    for pod in &mut sight.pods {
        pod.images[0].1 = "a:2".to_owned();
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::Verify)));
    }
    assert!(step(&mut sight, &three).requested().is_empty());
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        pod.answer = Some(answer(&id, Phase::Succeeded, None));
    }
    step(&mut sight, &three);
    assert!(
        sight.pods.iter().all(|pod| pod.label == sight_revision(&two, &sight)),
        "the truth is written down"
    );
    let decision = step(&mut sight, &three);
    assert!(
        requests(&decision)
            .iter()
            .all(|request| request.containers.len() == 1 && request.containers[0].name == "b")
    );
    assert_eq!(decision.requested().len(), 3);
}

/// 2: rollback inside the grace period.
#[test]
fn a_rollback_within_the_grace_period_takes_the_request_back_and_leaves_the_pod_as_it_was() {
    let (old, new) = (in_place(), in_place().image("app:2"));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::Drain)));
    }
    step(&mut sight, &old);
    assert!(sight.pods.iter().all(|pod| pod.request.is_none()));
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        pod.answer = Some(answer(&id, Phase::Cancelled, None));
    }
    step(&mut sight, &old);
    let decision = step(&mut sight, &old);
    assert_eq!((decision.actions.len(), columns(&old, &decision)), (0, [3, 3, 3, 3, 3]));
}

/// 3, 4: the agent's report decides, never whether an image id changed.
#[test]
fn a_rollback_after_a_failed_update_repairs_what_was_left_behind() {
    let (old, new) = (in_place(), in_place().image("app:2"));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    // One pod was rolled back by its agent, one was left with the gate closed and the new image, one with the gate
    // closed and the old image.
    for (at, (phase, image)) in
        [(Phase::RolledBack, "app:1"), (Phase::Failed, "app:2"), (Phase::Failed, "app:1")]
            .into_iter()
            .enumerate()
    {
        let pod = &mut sight.pods[at];
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), phase, Some(Step::Verify)));
        image.clone_into(&mut pod.images[0].1);
        pod.ready_since = pod.ready_since.filter(|_| phase == Phase::RolledBack);
    }
    step(&mut sight, &new);
    let decision = step(&mut sight, &old);
    assert_eq!(columns(&old, &decision)[1], 1, "two of them are not what their label says");
    assert_eq!(decision.requested(), ["web-b", "web-c"]);
    let asked = requests(&decision);
    assert_eq!(asked[0].containers[0].image.as_deref(), Some("app:1"));
    assert_eq!(
        asked[1].containers[0].image, None,
        "the image is right: a restart lets it into traffic again"
    );
    for name in ["web-b", "web-c"] {
        let pod = sight.pod(name);
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Succeeded, None));
        pod.images[0].1 = "app:1".to_owned();
        pod.ready_since = Some(at(0));
    }
    step(&mut sight, &old);
    let decision = step(&mut sight, &old);
    assert_eq!((decision.actions.len(), columns(&old, &decision)), (0, [3, 3, 3, 3, 3]));
}

/// 6: `paused` is the user's field.
#[test]
fn paused_stops_updates_and_not_scaling_and_is_left_as_the_user_set_it() {
    let (old, new) = (in_place(), in_place().image("app:2").with("/updateStrategy/paused", json!(true)));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty());
    assert_eq!(condition(&decision, "Progressing").1, "Paused");
    let decision = step(&mut sight, &new.clone().with("/replicas", json!(4)));
    assert_eq!(decision.created().len(), 1);
    let Some(Action::CreatePod { body, .. }) = decision.actions.last() else {
        panic!("{:?}", decision.actions)
    };
    assert_eq!(body["spec"]["containers"][0]["image"], "app:1", "no pod gets the paused revision");
    assert_eq!(step(&mut sight, &new.with("/replicas", json!(2))).deleted().len(), 1);
}

/// 10: the hook after an update ends before the pod takes traffic again, and its failure is a failed update.
#[test]
fn the_post_hook_is_part_of_the_update_and_is_tried_again_on_demand() {
    let hook = json!({"hook": {"templateName": "test", "args": [{"name": "k", "value": "v"}]}});
    let old = in_place().with("/postInplaceUpdateStrategy", hook);
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    let decision = step(&mut sight, &new);
    let request = &requests(&decision)[0];
    assert_eq!(request.post_hook.as_ref().unwrap().template_name, "test");
    assert!(request.pre_hook.is_none() && decision.asked().is_empty());
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::PostHook)));
    }
    step(&mut sight, &new);
    assert_eq!(
        (sight.before.post_inplace.len(), sight.before.post_inplace[0].phase.as_str()),
        (3, "Running")
    );
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        let rolled_back = answer(&id, Phase::RolledBack, Some(Step::Rollback));
        pod.answer = Some(Status { reason: "PostHookFailed".to_owned(), ..rolled_back });
    }
    step(&mut sight, &new);
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty(), "it is not tried again by itself");
    assert_eq!(sight.before.post_inplace[0].phase, "Failed");
    let retry = new.with("/postInplaceUpdateStrategy/retry", json!(true));
    assert!(!step(&mut sight, &retry).actions.contains(&Action::ClearRetry), "the status has the stop");
    let decision = step(&mut sight, &retry);
    assert!(decision.actions.contains(&Action::ClearRetry));
    let ids: Vec<_> = requests(&decision).into_iter().map(|request| request.id).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.ends_with("-1001")), "another id each: {ids:?}");
}

/// 11: approvals.
#[test]
fn an_approval_is_worth_nothing_for_another_target_and_nothing_twice() {
    let (old, new) = (seed(5), seed(5).image("app:2"));
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &new);
    assert_eq!(sight.runs.len(), 2);
    hooks_end(&mut sight, HookPhase::Successful);
    let newer = seed(5).image("app:3");
    let decision = step(&mut sight, &newer);
    assert!(decision.requested().is_empty(), "approved for app:2 only");
    step(&mut sight, &newer);
    let decision = step(&mut sight, &newer);
    let fresh = sight.runs.iter().filter(|run| run.phase == HookPhase::Running).count();
    assert_eq!((fresh, sight.runs.len()), (2, 2), "{decision:?}");
    hooks_end(&mut sight, HookPhase::Successful);
    assert_eq!(step(&mut sight, &newer).requested().len(), 2);
    // The approval of the same hook is not valid for a deletion either.
    let decision = step(&mut sight, &newer.clone().with("/replicas", json!(0)));
    assert!(decision.deleted().is_empty());
}

/// 14: a missing template is reported, and nothing is done in the meantime.
#[test]
fn a_hook_template_that_is_not_there_is_said_in_a_condition() {
    let mut sight = sight(&FIVE, &seed(5).revision());
    sight.templates.clear();
    let decision = step(&mut sight, &seed(4));
    assert!(decision.deleted().is_empty() && decision.asked().is_empty());
    let (status, _, message) = condition(&decision, "ScaleFailed");
    assert!(status == "True" && message.contains("HookTemplate test does not exist"), "{message}");
    let decision = step(&mut sight, &seed(5).image("app:2"));
    assert_eq!(condition(&decision, "UpdateFailed").1, "HookTemplate");
    sight.templates.insert("test".to_owned(), crate::workload::hooks::TemplateState::Valid);
    let decision = step(&mut sight, &seed(5).image("app:2"));
    assert_eq!((decision.asked().len(), condition(&decision, "UpdateFailed").0.as_str()), (2, "False"));
}

/// 16 and bd112c461: broken pods.
#[test]
fn broken_old_pods_do_not_hold_their_own_repair_back() {
    for policy in ["OrderedReady", "Parallel"] {
        let old = stateful_set()
            .with("/podManagementPolicy", json!(policy))
            .with("/updateStrategy", json!({"type": "InplaceUpdate"}));
        let mut sight = sight(&["web-0", "web-1", "web-2"], &old.revision());
        for pod in &mut sight.pods {
            pod.ready_since = None;
        }
        let decision = step(&mut sight, &old.clone().image("app:2"));
        assert_eq!(decision.requested(), ["web-2"], "{policy}");
        sight.pods[2].ready_since = Some(at(-60));
        agents_succeed(&mut sight, "app:2");
        assert_eq!(step(&mut sight, &old.clone().image("app:2")).requested(), ["web-1"], "{policy}");
    }
}

/// A pod breaks while another one waits for its hook: the one that waits may not begin, and holds the broken one back no
/// longer.
#[test]
fn a_pod_that_breaks_is_updated_before_one_that_waits_until_others_are_available() {
    let hook = json!({"hook": {"templateName": "test"}});
    let old = deployment()
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 1}))
        .with("/preInplaceUpdateStrategy", hook);
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    let chosen = sight.pods.iter().position(|pod| pod.task.is_some()).unwrap();
    let broken = (chosen + 1) % 3;
    sight.pods[broken].ready_since = None;
    sight.pods[broken].unready_since = Some(sight.now);
    let decision = step(&mut sight, &new);
    assert!(sight.pods[chosen].task.as_ref().unwrap().stage == Stage::Chosen, "it may be Ready again soon");
    assert_eq!(decision.requeue_at, Some(at(60)));
    sight.now = at(60);
    let mut requested = Vec::new();
    for _ in 0..3 {
        requested.extend(step(&mut sight, &new).requested().into_iter().map(str::to_owned));
        hooks_end(&mut sight, HookPhase::Successful);
    }
    assert_eq!(requested, [sight.pods[broken].name.clone()]);
    assert!(!sight.pods[chosen].leaving && sight.pods[chosen].request.is_none(), "it goes on to serve");
}

/// 16: a broken new revision is repaired by the next one.
#[test]
fn a_broken_new_pod_holds_the_rest_back_and_not_its_own_repair() {
    let old = stateful_set().with("/updateStrategy", json!({"type": "InplaceUpdate"}));
    let (bad, good) = (old.clone().image("app:bad"), old.clone().image("app:good"));
    let mut sight = sight(&["web-0", "web-1", "web-2"], &old.revision());
    step(&mut sight, &bad);
    agents_succeed(&mut sight, "app:bad");
    sight.pod("web-2").ready_since = None;
    step(&mut sight, &bad);
    assert!(step(&mut sight, &bad).requested().is_empty(), "web-1 still serves and is left alone");
    assert_eq!(step(&mut sight, &good).requested(), ["web-2"]);
}

/// 18: no hook runs for a change that cannot be made.
#[test]
fn a_change_that_is_not_in_place_asks_no_hook_and_says_what_to_do() {
    let changed = seed(5).with("/template/spec/hostNetwork", json!(true));
    let mut sight = sight(&FIVE, &seed(5).revision());
    let decision = step(&mut sight, &changed);
    assert!(decision.asked().is_empty() && decision.deleted().is_empty() && decision.requested().is_empty());
    let (status, reason, message) = condition(&decision, "UpdateFailed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "NotInPlace"));
    assert!(message.contains("spec.hostNetwork") && message.contains("RollingUpdate"), "{message}");
    assert!(step(&mut sight, &changed).actions.is_empty(), "and does not try again and again");
    let fallback = changed.annotated(workload_key::FALLBACK, "Recreate");
    assert_eq!(step(&mut sight, &fallback).asked().len(), 2, "pods are recreated, after their hooks");
}

/// 21: the order of pods changes between reconciles.
#[test]
fn never_more_hooks_than_the_budget_whatever_the_order() {
    let (old, new) = (seed(5), seed(5).image("app:2"));
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &new);
    for round in 0..5 {
        sight.pods.rotate_left(1);
        sight.pods[0].cost = Some(f64::from(round) - 10.0);
        sight.pods[1].ready_since = Some(at(-i64::from(round)));
        step(&mut sight, &new);
        assert_eq!(sight.runs.len(), 2);
    }
}

/// The agent is missing.
#[test]
fn a_request_that_nobody_takes_up_is_taken_back_said_and_tried_again_later() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requested().len(), 3);
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requeue_at, Some(at(120)));
    sight.now = at(120);
    step(&mut sight, &new);
    assert!(sight.pods.iter().all(|pod| pod.request.is_none()), "a late agent finds nothing to do");
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty());
    let (_, reason, message) = condition(&decision, "UpdateFailed");
    assert!(reason == "NoAgent" && message.contains("DaemonSet"), "{reason} {message}");
    sight.now = at(300);
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requested().len(), 3);
    assert!(requests(&decision).iter().all(|request| request.id.ends_with("-1300")));
}

#[test]
fn failures_stop_a_rollout_at_the_threshold() {
    let old = in_place().with("/replicas", json!(5)).with("/updateStrategy/maxUnavailable", json!(1));
    let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "2");
    let mut sight = sight(&FIVE, &old.revision());
    for round in 1..=2 {
        let decision = step(&mut sight, &new);
        assert_eq!(decision.requested().len(), 1, "round {round}");
        let name = decision.requested()[0].to_owned();
        let pod = sight.pod(&name);
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
    }
    assert!(step(&mut sight, &new).requested().is_empty());
    let decision = step(&mut sight, &new);
    assert!(decision.actions.is_empty());
    assert_eq!(condition(&decision, "UpdateFailed").1, "TooManyFailures");
    assert_eq!(condition(&decision, "Progressing").0, "False");
    let again = new.annotated(workload_key::RETRY, "true");
    assert!(!step(&mut sight, &again).actions.contains(&Action::ClearRetry), "the status has the stop");
    let decision = step(&mut sight, &again);
    assert!(decision.actions.contains(&Action::ClearRetry));
    assert_eq!(decision.requested().len(), 1);
}

#[test]
fn another_update_type_replaces_pods_that_could_not_be_updated_in_place() {
    let old = in_place();
    let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "1");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &old);
    assert_eq!(step(&mut sight, &new).requested().len(), 3);
    for pod in &mut sight.pods {
        let id = pod.request.clone().unwrap();
        pod.answer = Some(answer(&id, Phase::RolledBack, Some(Step::Verify)));
    }
    step(&mut sight, &new);
    assert_eq!(condition(&step(&mut sight, &new), "UpdateFailed").1, "TooManyFailures");
    let decision = step(&mut sight, &new.with("/updateStrategy/type", json!("RollingUpdate")));
    assert_eq!(decision.deleted(), ["web-a", "web-b", "web-c"], "{:#?}", decision.actions);
    assert_eq!(condition(&decision, "UpdateFailed").0, "False");
}

#[test]
fn what_somebody_else_asked_of_a_pod_is_waited_for() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    sight.pods[0].request = Some("mine".to_owned());
    assert_eq!(step(&mut sight, &new).requested(), ["web-b", "web-c"]);
    sight.pods[0].answer = Some(answer("mine", Phase::Succeeded, None));
    assert_eq!(step(&mut sight, &new).requested(), ["web-a"]);
}

#[test]
fn a_pod_that_never_ran_is_made_anew_instead_of_being_updated_in_place() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    sight.pods[1].phase = PodPhase::Pending;
    sight.pods[1].ready_since = None;
    let decision = step(&mut sight, &new);
    assert_eq!((decision.deleted(), decision.requested()), (vec!["web-b"], vec!["web-a", "web-c"]));
}

#[test]
fn a_task_that_another_controller_began_is_continued() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    let target = sight_revision(&new, &sight);
    sight.pods[0].task = Some(PodTask {
        labelled: None,
        environments: Vec::new(),
        gate_closed: false,
        claims: Vec::new(),
        purpose: Purpose::InPlace,
        target,
        number: 7,
        at: at(-5),
        stage: Stage::Chosen,
        seconds: 0,
        note: String::new(),
    });
    let decision = step(&mut sight, &new);
    let ids: Vec<_> = requests(&decision).into_iter().map(|request| request.id).collect();
    assert!(ids[0].ends_with("-7"), "{ids:?}");
}

#[test]
fn the_body_of_a_value_is_never_needed_to_tell_what_is_wrong() {
    // Secrets in the environment never reach a condition or an event.
    let secret = json!([{"name": "TOKEN", "value": "s3cret"}]);
    let new = in_place().with("/template/spec/containers/0/env", secret);
    let sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    let decision = sight.decide(&new);
    let reported: Vec<Value> =
        decision.report.unwrap().conditions.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
    let events: Vec<_> = decision.actions.iter().filter_map(|action| action.event(None)).collect();
    assert!(!format!("{reported:?}{events:?}").contains("s3cret"));
}
