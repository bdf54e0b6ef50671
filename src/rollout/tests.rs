//! Tests of single decisions: what follows from which input.

use std::sync::Arc;

use serde_json::{Value, json};

use super::check;
use super::decide::{Decision, RolloutInput, What, decide};
use super::desired::Rollout;
use super::fixtures::*;
use super::pod::Pod;
use super::target::TargetState;
use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutStatus, RolloutPhase};
use crate::podtask::disruption::{Disruption, DisruptionAllowance, Meta, Selected};

mod abort;
mod clocks;
mod failed_writes;
mod overlapping;
mod places;
mod prefetch;
mod start_first;
mod together;

fn reconcile(more: &Value, pods: &[Value], budgets: &[Disruption], now: i64) -> Decision {
    let pods: Vec<Pod> = pods.iter().map(read).collect();
    decide(&rollout(more), seen(&target(), &pods, budgets, at(now)))
}

fn begun(decision: &Decision) -> Vec<&str> {
    let begins = decision.writes.iter().filter(|write| matches!(write.what, What::Begin(_)));
    begins.map(|write| write.pod.name.as_str()).collect()
}

#[test]
fn what_serves_nobody_goes_first_and_costs_nothing_then_what_is_cheap_then_by_name() {
    let mut pods: Vec<_> = (0..4).map(pod).collect();
    pods[2]["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"] = json!("-5");
    assert_eq!(begun(&reconcile(&json!({}), &pods, &[], 1)), ["web-2"]);
    ready(&mut pods[3], false, at(0));
    assert_eq!(begun(&reconcile(&json!({}), &pods, &[], 1)), ["web-3"]);
    assert_eq!(begun(&reconcile(&json!({"maxUnavailable": "50%"}), &pods, &[], 1)), ["web-3", "web-2"]);
    // Ready, but not for long enough.
    ready(&mut pods[3], true, at(0));
    let decision = reconcile(&json!({"pod": {"minReadySeconds": 30}}), &pods, &[], 1);
    assert_eq!((begun(&decision), decision.requeue_at), (vec!["web-3"], Some(at(30))));
}

#[test]
fn a_pod_that_has_failed_stays_failed_while_its_agent_works_on_it_after_all() {
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    let order = reconcile(&json!({}), &pods, &[], 1);
    apply(&mut pods[0], &order.writes[0]);
    let silent = reconcile(&json!({}), &pods, &[], 121);
    apply(&mut pods[0], &silent.writes[0]);
    say(&mut pods[0], "Running", Some("Swap"));
    let late = reconcile(&json!({}), &pods, &[], 130);
    assert_eq!((late.status.busy, late.status.failed, begun(&late).len()), (1, 1, 0), "{:?}", late.status);
    assert!(late.renewals.is_empty());
    say(&mut pods[0], "Succeeded", None);
    let done = reconcile(&json!({}), &pods, &[], 140);
    assert_eq!((done.status.done, done.status.failed), (1, 0));
}

#[test]
fn a_rollout_whose_requests_were_withdrawn_has_not_succeeded() {
    let mut pods: Vec<_> = (0..1).map(pod).collect();
    let order = reconcile(&json!({}), &pods, &[], 1);
    apply(&mut pods[0], &order.writes[0]);
    let text = pods[0]["metadata"]["annotations"]["inplace.dev/rollout"].as_str().unwrap().to_owned();
    pods[0]["metadata"]["annotations"]["inplace.dev/rollout"] = json!(text.replace("Ordered", "Dropped"));
    pods[0]["metadata"]["annotations"].as_object_mut().unwrap().remove("inplace.dev/request");
    let decision = reconcile(&json!({}), &pods, &[], 2);
    assert_eq!((decision.status.phase, &*decision.status.reason), (RolloutPhase::Failed, "SomePodsFailed"));
    assert!(decision.status.message.contains("1 withdrawn"), "{}", decision.status.message);
}

#[test]
fn a_pod_that_is_missing_or_being_deleted_counts_against_the_budget() {
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    let begun_of = |target: &TargetState, pods: &[Value]| {
        let pods: Vec<Pod> = pods.iter().map(read).collect();
        let decision = decide(&rollout(&json!({})), seen(target, &pods, &[], at(1)));
        begun(&decision).len()
    };
    let mut wants_three = target();
    let TargetState::Present { desired, .. } = &mut wants_three else { unreachable!() };
    *desired = Some(3);
    assert_eq!((begun_of(&wants_three, &pods), begun_of(&target(), &pods)), (1, 1));
    assert_eq!(begun_of(&wants_three, &pods[..2]), 0, "one is not created yet");
    pods[1]["metadata"]["deletionTimestamp"] = json!(at(2));
    assert_eq!((begun_of(&wants_three, &pods), begun_of(&target(), &pods)), (0, 0), "one is being deleted");
    pods[1]["metadata"]["deletionTimestamp"] = json!(at(1));
    assert_eq!(begun_of(&target(), &pods), 1, "it is stuck, and may have been replaced");
    ready(&mut pods[2], false, at(0));
    assert_eq!(begun_of(&wants_three, &pods), 1, "a pod that is not available is exempt");
}

#[test]
fn what_is_right_already_is_let_alone() {
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    pods[0]["metadata"]["creationTimestamp"] = json!(at(5));
    assert_eq!(begun(&reconcile(&json!({}), &pods, &[], 6)), ["web-1"], "a restart");
    pods[1]["spec"]["containers"][0]["image"] = json!("app:2");
    let swap = json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true});
    let decision = reconcile(&swap, &pods, &[], 6);
    assert_eq!((begun(&decision), decision.status.done), (vec!["web-0"], 1), "a swap");
    // Pods that are being deleted, have ended or belong to another owner do not count.
    pods[0]["metadata"]["deletionTimestamp"] = json!(at(1));
    pods[1]["status"]["phase"] = json!("Succeeded");
    pods[2]["metadata"]["ownerReferences"][0]["uid"] = json!("other");
    let decision = reconcile(&json!({}), &pods, &[], 6);
    assert_eq!((decision.status.pods, decision.status.phase), (0, RolloutPhase::Succeeded));
}

#[test]
fn who_gives_no_answer_has_failed_and_is_never_asked_again() {
    let mut pods = vec![pod(0)];
    let order = reconcile(&json!({}), &pods, &[], 1);
    apply(&mut pods[0], &order.writes[0]);
    assert!(reconcile(&json!({}), &pods, &[], 120).writes.is_empty());
    let decision = reconcile(&json!({}), &pods, &[], 121);
    apply(&mut pods[0], &decision.writes[0]);
    let annotations = pods[0]["metadata"]["annotations"].as_object().unwrap();
    assert!(!annotations.contains_key("inplace.dev/request"), "nobody takes it up later: {annotations:?}");
    assert_eq!(pods[0]["metadata"]["labels"].get("inplace.dev/rollout-uid"), None);
    assert_eq!(
        (decision.status.phase, decision.status.failures[0].reason.as_str()),
        (RolloutPhase::Failed, "NoAgent")
    );
    // The same when another client removed or replaced the request.
    for (with, reason) in [(None, "RequestRemoved"), (Some("restart app #mine"), "RequestReplaced")] {
        let mut pods = vec![pod(0)];
        apply(&mut pods[0], &order.writes[0]);
        pods[0]["metadata"]["annotations"]["inplace.dev/request"] = json!(with);
        if with.is_none() {
            pods[0]["metadata"]["annotations"].as_object_mut().unwrap().remove("inplace.dev/request");
        }
        let decision = reconcile(&json!({}), &pods, &[], 2);
        assert_eq!(decision.status.failures[0].reason, reason);
        apply(&mut pods[0], &decision.writes[0]);
        assert!(begun(&reconcile(&json!({"failureThreshold": 9}), &pods, &[], 3)).is_empty());
    }
}

#[test]
fn a_failure_is_remembered_when_its_pod_is_gone() {
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    let order = reconcile(&json!({}), &pods, &[], 1);
    apply(&mut pods[0], &order.writes[0]);
    say(&mut pods[0], "RolledBack", None);
    let failed = reconcile(&json!({}), &pods, &[], 2);
    assert_eq!(
        (failed.status.phase, failed.status.reason.as_str()),
        (RolloutPhase::Failed, "FailureThreshold")
    );
    let mut goes_on = rollout(&json!({"failureThreshold": 2}));
    goes_on.before = reconcile(&json!({"failureThreshold": 2}), &pods, &[], 2).status;
    let left: Vec<_> = pods[1..].iter().map(read).collect();
    let decision = decide(&goes_on, seen(&target(), &left, &[], at(3)));
    assert_eq!((decision.status.failed, decision.status.pods, begun(&decision)), (1, 2, vec!["web-1"]));
    // All other pods succeed: the rollout has failed all the same.
    let through: Vec<_> = pods[1..]
        .iter()
        .map(|pod| {
            let mut pod = pod.clone();
            say(&mut pod, "Succeeded", None);
            read(&pod)
        })
        .collect();
    let decision = decide(&goes_on, seen(&target(), &through, &[], at(3)));
    assert_eq!(
        (decision.status.phase, decision.status.reason.as_str()),
        (RolloutPhase::Failed, "SomePodsFailed")
    );
}

#[test]
fn at_the_threshold_nothing_more_is_touched() {
    let more = json!({"maxUnavailable": 3});
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    let order = reconcile(&more, &pods, &[], 1);
    for (pod, write) in pods.iter_mut().zip(&order.writes) {
        apply(pod, write);
    }
    say(&mut pods[0], "Failed", None);
    say(&mut pods[1], "Running", Some("Pull"));
    say(&mut pods[2], "Running", Some("Verify"));
    let decision = reconcile(&more, &pods, &[], 2);
    let recalls = decision.writes.iter().filter(|write| write.what == What::Recall);
    assert_eq!(recalls.map(|write| &*write.pod.name).collect::<Vec<_>>(), ["web-1"]);
    assert_eq!(
        (decision.status.phase, &*decision.status.reason),
        (RolloutPhase::Running, "FailureThreshold")
    );
}

#[test]
fn at_the_deadline_only_what_is_not_touched_is_taken_back() {
    let more = json!({"maxUnavailable": 2, "deadlineSeconds": 60});
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    let order = reconcile(&more, &pods, &[], 1);
    assert_eq!(order.requeue_at, Some(at(60)));
    for (pod, write) in pods.iter_mut().zip(&order.writes) {
        apply(pod, write);
    }
    say(&mut pods[1], "Running", Some("Swap"));
    let decision = reconcile(&more, &pods, &[], 60);
    let recalled: Vec<_> = decision.writes.iter().map(|write| (&*write.pod.name, &write.what)).collect();
    assert_eq!(recalled, [("web-0", &What::Recall)]);
    assert_eq!(
        (decision.status.phase, decision.status.reason.as_str()),
        (RolloutPhase::Running, "DeadlineExceeded")
    );
}

#[test]
fn a_budget_that_lets_nobody_go_is_waited_for_and_one_that_is_not_counted_yet_too() {
    let pods: Vec<_> = (0..4).map(pod).collect();
    let more = json!({"maxUnavailable": 4});
    assert_eq!(begun(&reconcile(&more, &pods, &[budget(2)], 1)), ["web-0", "web-1"]);
    let decision = reconcile(&more, &pods, &[budget(0)], 1);
    assert_eq!((begun(&decision).len(), decision.requeue_at), (0, Some(at(2))));
    assert_eq!(decision.status.message, "0 of 4 pods are done, waiting for PodDisruptionBudget pdb");
    let mut old = budget(2);
    old.metadata.generation = 2;
    assert!(begun(&reconcile(&more, &pods, &[old], 1)).is_empty());
    // Both budgets must allow it.
    let other = Disruption { metadata: Meta { name: "other".into(), ..budget(0).metadata }, ..budget(1) };
    let decision = reconcile(&more, &pods, &[budget(2), other], 1);
    assert_eq!(begun(&decision), ["web-0"]);
    assert_eq!(decision.writes[0].what, What::Begin(vec!["pdb".into(), "other".into()]));
    // A pod that is being evicted is left alone.
    let mut evicting = budget(2);
    evicting.status.disrupted_pods = [("web-0".to_owned(), at(0))].into();
    assert_eq!(begun(&reconcile(&more, &pods, &[evicting], 1)), ["web-1", "web-2"]);
}

#[test]
fn what_does_not_serve_goes_without_a_claim_while_enough_others_do() {
    let mut sick = pod(0);
    ready(&mut sick, false, at(0));
    let claims = |budget: Disruption| {
        DisruptionAllowance::new([Arc::new(budget)], "v1").claim(&read(&sick).base, false)
    };
    assert_eq!(claims(budget(0)), Ok(Vec::new()));
    let mut short = budget(0);
    short.status.current_healthy = 2;
    assert_eq!(claims(short.clone()), Err("pdb".to_owned()));
    short.always_allows_unready = true;
    assert_eq!(claims(short), Ok(Vec::new()));
    // An empty selector selects all pods or none, depending on the API version.
    let mut all = budget(0);
    all.pods = Selected::Empty;
    let claims =
        |version| DisruptionAllowance::new([Arc::new(all.clone())], version).claim(&read(&pod(0)).base, true);
    assert!(claims("v1").is_err());
    assert_eq!(claims("v1beta1"), Ok(Vec::new()));
}

#[test]
fn a_claim_is_written_anew_before_it_lapses() {
    let mut one = pod(0);
    let order = reconcile(&json!({}), &[one.clone()], &[budget(1)], 1);
    apply(&mut one, &order.writes[0]);
    let mut claimed = budget(0);
    claimed.status.disrupted_pods = [("web-0".to_owned(), at(1))].into();
    let fresh = reconcile(&json!({}), &[one.clone()], &[claimed.clone()], 30);
    assert_eq!((fresh.renewals.len(), fresh.requeue_at), (0, Some(at(61))));
    say(&mut one, "Running", Some("PreHook"));
    let due = reconcile(&json!({}), &[one.clone()], &[claimed.clone()], 61);
    assert_eq!(due.renewals, [("pdb".to_owned(), "web-0".to_owned())]);
    claimed.status.disrupted_pods = [("web-0".to_owned(), at(121))].into();
    let again = reconcile(&json!({}), &[one], &[claimed], 181);
    assert_eq!((again.renewals.len(), again.requeue_at), (1, Some(at(241))), "also if nothing changes");
}

#[test]
fn a_target_is_waited_for_for_a_minute() {
    let mut new = rollout(&json!({}));
    new.before.started_at = None;
    let decision = |now| decide(&new, seen(&TargetState::Absent, &[], &[], at(now)));
    assert_eq!((decision(5).status.phase, decision(5).requeue_at), (RolloutPhase::Pending, Some(at(7))));
    assert_eq!(decision(60).status.reason, "TargetNotFound");
    // The start is recorded before any pod is begun.
    let pods = [read(&pod(0))];
    let first = decide(&new, seen(&target(), &pods, &[], at(3)));
    assert_eq!(
        (first.writes.len(), first.status.started_at, first.requeue_at),
        (0, Some(at(3)), Some(at(3)))
    );
}

#[test]
fn of_two_of_the_same_second_the_newer_is_the_one_that_was_reconciled_later() {
    let made = |name: &str| {
        let mut made = rollout(&json!({}));
        (made.name, made.before.started_at) = (name.to_owned(), None);
        made
    };
    let (mut first, mut second) = (made("b"), made("a"));
    let in_order =
        |first: &Rollout, second: &Rollout| second.is_newer_than(first) && !first.is_newer_than(second);
    assert!(in_order(&second, &first), "by name while nobody has looked");
    first.before.phase = RolloutPhase::Failed;
    first.before.finished_at = Some(at(0));
    assert!(in_order(&first, &second), "it ended at the first look");
    first.before.started_at = Some(at(0));
    assert!(in_order(&first, &second));
    second.before.started_at = Some(at(1));
    assert!(in_order(&first, &second) && second.supersedes(&first));
    second.before.phase = RolloutPhase::Superseded;
    assert!(!second.supersedes(&first) && !first.supersedes(&second), "one is left");
}

/// What is refused before it begins, or still waits, leaves nobody to the pods.
#[test]
fn a_rollout_that_has_begun_is_superseded_by_one_that_has_begun() {
    let old = rollout(&json!({"containers": [{"name": "app", "image": "app:2"}]}));
    let mut new = rollout(&json!({"containers": [{"name": "app", "image": "app:3"}]}));
    (new.name, new.created, new.before.started_at) = ("two".to_owned(), at(5), None);
    assert!(!new.supersedes(&old), "it is not known whether it begins");
    let waiting = Rollout { before: InPlaceRolloutStatus::default(), ..old.clone() };
    assert!(new.supersedes(&waiting), "of two that have not begun only the newer one begins");
    new.before.phase = RolloutPhase::Failed;
    new.before.finished_at = Some(at(6));
    assert!(!new.supersedes(&old) && !new.supersedes(&waiting), "it was refused");
    new.before = InPlaceRolloutStatus { started_at: Some(at(6)), ..InPlaceRolloutStatus::default() };
    assert!(new.supersedes(&old));
    new.before.phase = RolloutPhase::Succeeded;
    assert!(new.supersedes(&old));
}

/// `wait --for=condition=Ready` and pipelines continue a canary only if all of its pods are done.
#[test]
fn a_partition_with_failed_pods_is_not_ready() {
    let more = json!({"partition": 2, "failureThreshold": 3, "maxUnavailable": 2});
    let mut pods: Vec<_> = (0..4).map(pod).collect();
    for (now, write) in [(1, 0), (1, 1)] {
        let decision = reconcile(&more, &pods, &[], now);
        let begins = decision.writes.iter().find(|one| one.pod.name == format!("web-{write}")).unwrap();
        apply(&mut pods[write], begins);
    }
    say(&mut pods[0], "Succeeded", None);
    say(&mut pods[1], "RolledBack", None);
    for write in reconcile(&more, &pods, &[], 2).writes {
        let index = usize::from(write.pod.name == "web-1");
        apply(&mut pods[index], &write);
    }
    let status = reconcile(&more, &pods, &[], 3).status;
    assert_eq!((status.phase, &*status.reason, status.failed), (RolloutPhase::Paused, "SomePodsFailed", 1));
    let is = |kind: &str| status.conditions.iter().any(|one| one.kind == kind && one.status == "True");
    assert!(is("Stalled") && !is("Ready"), "{:?}", status.conditions);
    assert!(status.message.contains("spec.partition holds back 2 pods"), "{}", status.message);
}

#[test]
fn an_owner_that_would_take_the_restarts_for_failures_is_not_asked_to() {
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    pods[0]["status"]["containerStatuses"] = json!([{"name": "app", "image": "app:1", "imageID": "", "ready": true,
        "restartCount": 2}]);
    let pods: Vec<Pod> = pods.iter().map(read).collect();
    let decision = |more: Value, limit: usize, started: Option<i64>| {
        let mut target = target();
        let TargetState::Present { gives_up_at, .. } = &mut target else { unreachable!() };
        *gives_up_at = Some(limit);
        let mut rollout = rollout(&more);
        rollout.before.started_at = started.map(at);
        decide(&rollout, seen(&target, &pods, &[], at(1)))
    };
    for started in [None, Some(0)] {
        let status = decision(json!({}), 5, started).status;
        assert_eq!((status.phase, &*status.reason), (RolloutPhase::Failed, "BackoffLimit"));
        assert!(status.message.contains("there were 2, and the rollout needs 3 more"), "{}", status.message);
        assert!(status.message.ends_with("set backoffLimit to at least 6"), "{}", status.message);
        for (more, limit) in [(json!({}), 6), (json!({"partition": 1}), 5), (json!({"partition": 3}), 1)] {
            let decision = decision(more, limit, started);
            assert!(!decision.status.phase.is_terminal(), "{:?}", decision.status);
        }
    }
}

#[test]
fn every_bad_field_is_named() {
    let problems = |spec: Value| {
        let object = json!({"metadata": {"name": "one"}, "spec": spec});
        check::rollout(None, &serde_json::from_value::<InPlaceRollout>(object).unwrap()).join("; ")
    };
    let target = json!({"workloadRef": {"kind": "Deployment", "name": "web"}});
    let containers = json!([{"name": "app"}]);
    assert_eq!(problems(json!({"target": target, "containers": containers})), "");
    for (spec, says) in [
        (json!({"target": {}, "containers": containers}), "spec.target: name a workloadRef or a selector"),
        (json!({"target": {"selector": {}}, "containers": containers}), "spec.target.selector: is empty"),
        (
            json!({"target": {"workloadRef": {"kind": "CronJob", "name": "a"}}, "containers": containers}),
            "spec.target.workloadRef.kind: `CronJob` is none of Deployment (apps/v1)",
        ),
        (
            json!({"target": {"selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}, "containers": containers}),
            "matchExpressions[0].operator: `Like`",
        ),
        (json!({"target": target, "containers": []}), "spec.containers: name 1 to 64"),
        (
            json!({"target": target, "containers": [{"name": "app", "image": "A"}]}),
            "spec.containers[0].image: `A`",
        ),
        (
            json!({"target": target, "containers": containers, "maxUnavailable": "x"}),
            "spec.maxUnavailable: `x`",
        ),
        (
            json!({"target": target, "containers": containers, "maxUnavailable": 0}),
            "spec.maxUnavailable: it is 0, so no pod that is available could be restarted: set it to 1 or more",
        ),
        (
            json!({"target": target, "containers": containers, "maxUnavailable": "0%"}),
            "spec.maxUnavailable: ",
        ),
        (json!({"target": target, "containers": containers, "partition": -1}), "spec.partition: `-1`"),
        (
            json!({"target": target, "containers": containers, "pod": {"gracePeriodSeconds": 600}}),
            "spec.pod.gracePeriodSeconds: 600 does not fit into deadlineSeconds 600",
        ),
        (
            json!({"target": target, "containers": containers, "pod": {"minReadySeconds": -3}}),
            "spec.pod.minReadySeconds: -3",
        ),
    ] {
        let reported = problems(spec);
        assert!(reported.contains(says), "{says} in {reported}");
    }
}

#[test]
fn only_how_fast_and_how_long_can_be_changed() {
    let object = |more: Value| {
        let mut spec =
            json!({"target": {"selector": {"matchLabels": {"a": "b"}}}, "containers": [{"name": "app"}]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value::<InPlaceRollout>(json!({"metadata": {"name": "one"}, "spec": spec})).unwrap()
    };
    let old = object(json!({}));
    let fine = json!({"maxUnavailable": 3, "partition": 1, "paused": true, "failureThreshold": 2, "deadlineSeconds": 9,
        "ttlSecondsAfterFinished": 9});
    assert!(check::rollout(Some(&old), &object(fine)).is_empty());
    let other =
        check::rollout(Some(&old), &object(json!({"containers": [{"name": "b"}], "pod": {"reason": "x"}})));
    assert!(other[0].starts_with("spec.containers: cannot be changed") && other.len() == 2, "{other:?}");
}

#[test]
fn a_spec_that_becomes_invalid_ends_the_rollout_with_its_last_counts() {
    let mut broken = rollout(&json!({"maxUnavailable": "many"}));
    (broken.before.pods, broken.before.done) = (4, 3);
    let decision = decide(&broken, seen(&target(), &[], &[], at(5)));
    let status = &decision.status;
    assert_eq!((status.phase, &*status.reason), (RolloutPhase::Failed, "Invalid"));
    assert_eq!((status.pods, status.done, status.started_at), (4, 3, Some(at(0))));
}

#[test]
fn a_rollout_without_progress_fails_and_a_pause_does_not_count() {
    let more = json!({"progressDeadlineSeconds": 60});
    let pods = [read(&pod(0)), read(&pod(1))];
    let mut one = rollout(&more);
    let run = |one: &mut Rollout, pods: &[Pod], now| {
        // No disruption is allowed: the rollout waits.
        let decision = decide(one, seen(&target(), pods, &[budget(0)], at(now)));
        one.before = decision.status.clone();
        decision
    };
    let first = run(&mut one, &pods, 10);
    assert_eq!((first.status.progressed_at, first.status.phase), (Some(at(10)), RolloutPhase::Running));
    assert_eq!(run(&mut one, &pods, 69).status.phase, RolloutPhase::Running);
    let mut paused = one.clone();
    let late = run(&mut one, &pods, 70);
    assert_eq!((late.status.phase, &*late.status.reason), (RolloutPhase::Failed, "ProgressDeadlineExceeded"));
    // Paused for longer than that, and resumed: the time counts from then on.
    paused.spec.paused = true;
    assert_eq!(run(&mut paused, &pods, 500).status.progressed_at, None);
    paused.spec.paused = false;
    let resumed = run(&mut paused, &pods, 600);
    assert_eq!((resumed.status.phase, resumed.status.progressed_at), (RolloutPhase::Running, Some(at(600))));
    // A pod that is done is progress.
    let mut done = pod(0);
    say(&mut done, "Succeeded", None);
    let done = [read(&done), pods[1].clone()];
    assert_eq!(run(&mut paused, &done, 660).status.progressed_at, Some(at(660)));
    assert_eq!(run(&mut paused, &done, 700).status.phase, RolloutPhase::Running);
    assert_eq!(run(&mut paused, &done, 720).status.reason, "ProgressDeadlineExceeded");
    // Without the field it waits for ever.
    let mut patient = rollout(&json!({}));
    run(&mut patient, &pods, 10);
    assert_eq!(run(&mut patient, &pods, 90_000).status.phase, RolloutPhase::Running);
}
