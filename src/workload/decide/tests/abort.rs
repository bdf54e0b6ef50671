//! The abort of an update: all pods go back to the stable revision in place, within the budget, and no pod is updated to
//! the aborted revision again before a person acts.

use jiff::SignedDuration;

use super::*;
use crate::workload::report::Report;
use crate::workload::revision::Revision;

fn aborting() -> Draft {
    in_place()
        .with("/replicas", json!(5))
        .with("/updateStrategy/maxUnavailable", json!(2))
        .with("/updateStrategy/onFailure", json!("Abort"))
        .annotated(workload_key::FAILURE_THRESHOLD, "1")
}

/// Time passes, and the next controller has only what the API server stores.
fn wait(sight: &mut Sight, seconds: i64) {
    sight.now += SignedDuration::from_secs(seconds);
    sight.before = Report::of_deployment(&sight.before.deployment());
}

/// One agent fails and rolls back, the other one succeeds.
fn one_fails(sight: &mut Sight, image: &str) -> String {
    let asked: Vec<_> =
        sight.pods.iter().filter(|pod| pod.request.is_some()).map(|pod| pod.name.clone()).collect();
    let pod = sight.pod(&asked[0]);
    let failed = answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify));
    agents_succeed(sight, image);
    let pod = sight.pod(&asked[0]);
    pod.images[0].1 = "app:1".to_owned();
    pod.answer = Some(failed);
    asked[0].clone()
}

/// A stable workload, whose update has failed on one pod and succeeded on another one.
fn failed(old: &Draft) -> (Draft, Sight) {
    let new = old.clone().image("app:2");
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, old);
    assert_eq!(step(&mut sight, &new).requested().len(), 2);
    one_fails(&mut sight, "app:2");
    (new, sight)
}

fn events(decision: &Decision) -> Vec<&'static str> {
    let reported = |action: &Action| match action {
        Action::Report(event) => Some(event.reason),
        _ => None,
    };
    decision.actions.iter().filter_map(reported).collect()
}

/// A pod of another template cannot be updated in place, and it does not hold up the abort.
#[test]
fn a_pod_that_blocks_the_update_does_not_keep_failed_pods_from_aborting_it() {
    let old = aborting();
    let (new, mut sight) = failed(&old);
    let blocks = old.clone().with("/template/spec/containers/0/env", json!([{"name": "A", "value": "1"}]));
    let revision = blocks.revision();
    sight.pods[4] = pod(&sight.pods[4].name, &revision);
    sight.revisions.push(revision);
    let decision = step(&mut sight, &new);
    assert_eq!(events(&decision), ["Aborting"], "{decision:#?}");
}

#[test]
fn a_failed_update_goes_back_in_place_and_stays_there_until_retry() {
    let old = aborting();
    let stable = old.revision().name;
    let (new, mut sight) = failed(&old);
    // First the abort is recorded, and nothing else is done.
    let decision = step(&mut sight, &new);
    assert_eq!(events(&decision), ["Aborting"], "{decision:#?}");
    assert_eq!(decision.actions.len(), 1, "{decision:#?}");
    assert_eq!(decision.requeue_at, Some(sight.now));
    let revision = sight.before.update_revision.clone();
    assert_eq!((&sight.before.aborted_revision, &sight.before.stable_revision), (&revision, &stable));
    assert_eq!(condition(&decision, "Progressing").1, "Aborting");
    assert_eq!(condition(&decision, "Reconciling").0, "True");
    let cause = condition(&decision, "UpdateFailed").2;
    assert!(cause.contains("1 pods could not be updated") && cause.contains(&stable), "{cause}");
    // Only the pod that was changed gets a request, once the ends of both tasks are recorded.
    wait(&mut sight, 1);
    assert!(step(&mut sight, &new).requested().is_empty());
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requested().len(), 1, "{decision:#?}");
    assert_eq!(requests(&decision)[0].containers[0].image.as_deref(), Some("app:1"));
    agents_succeed(&mut sight, "app:1");
    step(&mut sight, &new);
    let decision = step(&mut sight, &new);
    assert_eq!(condition(&decision, "Progressing").1, "Aborted");
    assert_eq!(condition(&decision, "UpdateFailed").2, cause, "the cause stays");
    assert_eq!(condition(&decision, "Stalled").1, "Aborted");
    assert!(sight.pods.iter().all(|pod| pod.label == stable && pod.images[0].1 == "app:1"));
    assert_eq!(decision.report.as_ref().unwrap().update_revision, revision);
    for _ in 0..5 {
        wait(&mut sight, 1000);
        let decision = step(&mut sight, &new);
        assert!(decision.actions.is_empty(), "{decision:#?}");
    }
    // A retry begins the update again, and is confirmed only once the abort is not recorded any more.
    let retry = new.clone().annotated(workload_key::RETRY, "true");
    let first = step(&mut sight, &retry);
    assert!(!first.actions.contains(&Action::ClearRetry));
    assert_eq!(sight.before.aborted_revision, "");
    let second = step(&mut sight, &retry);
    assert!(second.actions.contains(&Action::ClearRetry));
    let asked: usize = [first, second, step(&mut sight, &new)].iter().map(|one| one.requested().len()).sum();
    assert_eq!(asked, 2, "the update continues within its budget");
}

#[test]
fn without_abort_the_pods_stay_as_they_are() {
    let (new, mut sight) = failed(&aborting().with("/updateStrategy/onFailure", json!("Pause")));
    step(&mut sight, &new);
    for _ in 0..3 {
        assert!(step(&mut sight, &new).actions.is_empty());
    }
    assert_eq!(condition(&sight.decide(&new), "Progressing").1, "TooManyFailures");
}

#[test]
fn a_controller_that_is_killed_before_the_abort_is_recorded_decides_it_again() {
    let (new, mut sight) = failed(&aborting());
    let before = sight.before.clone();
    step(&mut sight, &new);
    sight.before = before;
    assert_eq!(events(&sight.decide(&new)), ["Aborting"]);
}

#[test]
fn another_template_ends_the_abort() {
    let (new, mut sight) = failed(&aborting());
    step(&mut sight, &new);
    let other = new.clone().image("app:3");
    let decision = step(&mut sight, &other);
    assert_eq!(sight.before.aborted_revision, "");
    assert_eq!(decision.requested().len(), 2, "{decision:#?}");
}

#[test]
fn pods_that_are_created_during_an_abort_have_the_stable_revision() {
    for draft in [aborting(), aborting().with("/updateStrategy/type", json!("RollingUpdate"))] {
        let stable = draft.revision().name;
        let (new, mut sight) = failed(&aborting());
        step(&mut sight, &new);
        let more = new
            .with("/replicas", json!(7))
            .with("/updateStrategy/type", draft.spec["updateStrategy"]["type"].clone());
        let decision = step(&mut sight, &more);
        let labels: Vec<_> = decision
            .actions
            .iter()
            .filter_map(|action| match action {
                Action::CreatePod { body, .. } => {
                    Some(body["metadata"]["labels"][workload_key::REVISION].clone())
                }
                _ => None,
            })
            .collect();
        assert_eq!(labels, vec![json!(stable); 2], "{decision:#?}");
    }
}

#[test]
fn a_late_update_goes_back_by_recreation_where_pods_are_recreated() {
    let old = deployment()
        .with("/updateStrategy", json!({"type": "RollingUpdate", "maxUnavailable": 1, "onFailure": "Abort"}))
        .with("/progressDeadlineSeconds", json!(60));
    let new = old.clone().image("absent:1");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &old);
    step(&mut sight, &new);
    let made = sight.decide(&new).created().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut broken = pod(&made[0], &new.revision());
    broken.phase = PodPhase::Pending;
    broken.ready_since = None;
    broken.created = sight.now;
    step(&mut sight, &new);
    sight.pods.push(broken);
    step(&mut sight, &new);
    wait(&mut sight, 61);
    assert_eq!(events(&step(&mut sight, &new)), ["Aborting"]);
    let decision = step(&mut sight, &new);
    assert_eq!(decision.deleted(), [made[0].as_str()]);
    let decision = step(&mut sight, &new);
    assert_eq!(decision.created().len(), 1);
}

#[test]
fn an_abort_whose_pods_fail_stops_and_never_loops() {
    let (new, mut sight) = failed(&aborting());
    step(&mut sight, &new);
    step(&mut sight, &new);
    let name = step(&mut sight, &new).requested()[0].to_owned();
    let failing = sight.pod(&name);
    failing.answer = Some(answer(failing.request.as_ref().unwrap(), Phase::Failed, Some(Step::Verify)));
    failing.ready_since = None;
    step(&mut sight, &new);
    for _ in 0..5 {
        wait(&mut sight, 1000);
        let decision = step(&mut sight, &new);
        assert!(decision.actions.is_empty(), "{decision:#?}");
        assert_eq!(condition(&decision, "Progressing").1, "AbortFailed");
        assert_eq!(condition(&decision, "Stalled").0, "True");
        assert!(condition(&decision, "UpdateFailed").2.contains(&name), "{decision:#?}");
    }
}

#[test]
fn a_paused_update_is_not_aborted_before_it_is_resumed() {
    let (new, mut sight) = failed(&aborting());
    let paused = new.clone().with("/updateStrategy/paused", json!(true));
    assert!(events(&step(&mut sight, &paused)).is_empty());
    assert_eq!(sight.before.aborted_revision, "");
    assert_eq!(events(&step(&mut sight, &new)), ["Aborting"]);
}

#[test]
fn the_steps_of_an_aborted_update_begin_again_after_a_retry() {
    let steps = json!([{"partition": 3}, {"pause": {}}, {"partition": 0}]);
    let (new, mut sight) = failed(&aborting().with("/updateStrategy/canary", json!({"steps": steps})));
    for _ in 0..3 {
        step(&mut sight, &new);
    }
    assert_eq!(sight.before.aborted_revision, sight.before.update_revision);
    agents_succeed(&mut sight, "app:1");
    step(&mut sight, &new);
    step(&mut sight, &new);
    assert_eq!(sight.before.steps.index, None);
    let retry = new.annotated(workload_key::RETRY, "true");
    step(&mut sight, &retry);
    assert_eq!(sight.before.steps.index, Some(0));
}

#[test]
fn the_failed_hook_of_a_canary_step_begins_no_abort_however_long_it_waits() {
    let steps = json!([{"partition": 3}, {"hook": {"templateName": "test"}}, {"partition": 0}]);
    let old = aborting()
        .with("/updateStrategy/canary", json!({"steps": steps}))
        .with("/progressDeadlineSeconds", json!(60));
    let new = old.clone().image("app:2");
    let mut sight = sight(&FIVE, &old.revision());
    for _ in 0..3 {
        step(&mut sight, &old);
    }
    for _ in 0..8 {
        step(&mut sight, &new);
        agents_succeed(&mut sight, "app:2");
    }
    hooks_end(&mut sight, HookPhase::Failed);
    step(&mut sight, &new);
    let paused = new.clone().with("/updateStrategy/paused", json!(true));
    for _ in 0..3 {
        wait(&mut sight, 100);
        let decision = step(&mut sight, &paused);
        assert!(events(&decision).is_empty(), "{decision:#?}");
        assert_eq!(condition(&decision, "Progressing").1, "HookFailed");
    }
    assert_eq!(sight.before.aborted_revision, "");
}

#[test]
fn an_abort_whose_stable_revision_is_gone_moves_no_pod_to_the_aborted_one() {
    for way in ["RollingUpdate", "InplaceUpdate"] {
        let old = aborting().with("/updateStrategy/type", json!(way));
        let (new, mut sight) = failed(&aborting());
        let new = new.with("/updateStrategy/type", json!(way));
        step(&mut sight, &new.clone().with("/updateStrategy/type", json!("InplaceUpdate")));
        assert_eq!(sight.before.aborted_revision, sight.before.update_revision);
        sight.pods.iter_mut().for_each(|pod| pod.task = None);
        sight.revisions.retain(|revision| revision.name != old.revision().name);
        for _ in 0..3 {
            let decision = step(&mut sight, &new);
            assert!(decision.deleted().is_empty() && decision.requested().is_empty(), "{way}: {decision:#?}");
            assert_eq!(condition(&decision, "UpdateFailed").1, "AbortFailed", "{way}");
            assert_eq!(condition(&decision, "Stalled").0, "True", "{way}");
        }
    }
}

#[test]
fn the_failed_hook_of_a_pod_begins_no_abort_however_long_it_waits() {
    let old = aborting()
        .with("/preInplaceUpdateStrategy", json!({"hook": {"templateName": "test"}}))
        .with("/progressDeadlineSeconds", json!(60));
    let new = old.clone().image("app:2");
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &old);
    step(&mut sight, &new);
    hooks_end(&mut sight, HookPhase::Failed);
    for _ in 0..3 {
        let decision = step(&mut sight, &new);
        assert!(events(&decision).is_empty(), "{decision:#?}");
        assert_eq!(condition(&decision, "Progressing").1, "HookFailed");
        wait(&mut sight, 100);
    }
    assert_eq!(sight.before.aborted_revision, "");
}

/// There is no revision to go back to before a pod at the earlier one was available.
#[test]
fn an_update_from_a_template_that_never_ran_is_not_aborted() {
    let bad = aborting().image("app:bad");
    let mut sight = sight(&FIVE, &bad.revision());
    for pod in &mut sight.pods {
        pod.ready_since = None;
    }
    step(&mut sight, &bad);
    let worse = bad.clone().image("app:worse");
    assert_eq!(step(&mut sight, &worse).requested().len(), 2);
    for pod in sight.pods.iter_mut().filter(|pod| pod.request.is_some()) {
        let id = pod.request.clone().unwrap();
        pod.answer = Some(answer(&id, Phase::RolledBack, Some(Step::Verify)));
    }
    for _ in 0..2 {
        let decision = step(&mut sight, &worse);
        assert!(events(&decision).is_empty(), "{decision:#?}");
        assert_eq!(condition(&decision, "Progressing").1, "TooManyFailures");
        assert_eq!((&*sight.before.stable_revision, &*sight.before.aborted_revision), ("", ""));
    }
    let untouched = sight.pods.iter_mut().find(|pod| pod.task.is_none()).unwrap();
    untouched.ready_since = Some(at(-900));
    assert_eq!(events(&step(&mut sight, &worse)), ["Aborting"]);
    assert_eq!(sight.before.stable_revision, bad.revision().name);
}

/// A template that is applied while there are no pods is complete, and nothing shows that it serves.
#[test]
fn an_update_that_began_without_pods_goes_back_to_the_revision_that_served() {
    let old = aborting().with("/progressDeadlineSeconds", json!(60));
    let stable = old.revision().name;
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &old);
    let none = old.with("/replicas", json!(0));
    for _ in 0..3 {
        step(&mut sight, &none);
    }
    assert!(sight.pods.is_empty());
    let new = none.image("app:2");
    for _ in 0..3 {
        wait(&mut sight, 100);
        assert_eq!(condition(&step(&mut sight, &new), "Progressing").1, "Complete");
    }
    let bad = sight.revisions.iter().find(|revision| revision.name != stable).unwrap().clone();
    let five = new.with("/replicas", json!(5));
    sight.pods = FIVE.map(|name| Pod { ready_since: None, ..pod(name, &bad) }).into();
    assert!(events(&step(&mut sight, &five)).is_empty());
    wait(&mut sight, 60);
    assert_eq!(events(&step(&mut sight, &five)), ["Aborting"]);
    assert_eq!((&sight.before.aborted_revision, &sight.before.stable_revision), (&bad.name, &stable));
}

#[test]
fn an_abort_with_surge_pods_ends_without_them() {
    let old = aborting()
        .with("/updateStrategy/maxUnavailable", json!(0))
        .with("/updateStrategy/maxSurge", json!(1));
    let stable = old.revision().name;
    let new = old.clone().image("app:2");
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &old);
    for _ in 0..3 {
        let made: Vec<String> = step(&mut sight, &new).created().into_iter().map(str::to_owned).collect();
        for name in made {
            let mut surge = pod(&name, &Revision { number: 2, ..new.revision() });
            surge.surge = true;
            sight.pods.push(surge);
        }
    }
    let asked = sight.pods.iter().find(|pod| pod.request.is_some()).map(|pod| pod.name.clone());
    let failing = sight.pod(&asked.unwrap());
    failing.answer = Some(answer(failing.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
    for _ in 0..10 {
        wait(&mut sight, 1);
        step(&mut sight, &new);
        agents_succeed(&mut sight, "app:1");
    }
    let decision = step(&mut sight, &new);
    assert!(decision.actions.is_empty(), "{decision:#?}");
    assert_eq!(condition(&decision, "Progressing").1, "Aborted");
    assert_eq!(sight.pods.len(), 5);
    assert!(sight.pods.iter().all(|pod| pod.label == stable && !pod.surge), "{:#?}", sight.pods);
}
