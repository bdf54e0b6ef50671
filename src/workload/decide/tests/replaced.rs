//! How many pods an update replaces at the same time, whether they are available or not, and which pod of an ordered set
//! is the next one.

use jiff::SignedDuration;

use super::*;

/// Decides, and carries it out. Pods that are created run, and are not Ready.
fn round(sight: &mut Sight, draft: &Draft) -> Vec<String> {
    let decision = step(sight, draft);
    for action in &decision.actions {
        let Action::CreatePod { name, body } = action else { continue };
        let label = body["metadata"]["labels"][workload_key::REVISION].as_str().unwrap();
        let revision = sight.revisions.iter().find(|revision| revision.name == label).unwrap();
        let new = Pod { created: sight.now, ready_since: None, ..pod(name, revision) };
        sight.pods.push(new);
    }
    decision.deleted().into_iter().map(str::to_owned).collect()
}

fn rounds(sight: &mut Sight, draft: &Draft, rounds: usize) -> Vec<String> {
    (0..rounds).flat_map(|_| round(sight, draft)).collect()
}

/// How many pods have this image.
fn having(sight: &Sight, image: &str) -> usize {
    sight.pods.iter().filter(|pod| pod.image("app") == Some(image)).count()
}

/// The pods with this image become available.
fn serve(sight: &mut Sight, image: &str) {
    let since = sight.now - SignedDuration::from_secs(3600);
    for pod in sight.pods.iter_mut().filter(|pod| pod.image("app") == Some(image)) {
        pod.ready_since = Some(since);
    }
}

/// The kubelet reports since when the pod is not Ready.
fn break_now(sight: &mut Sight, name: &str) {
    let now = sight.now;
    let pod = sight.pod(name);
    (pod.ready_since, pod.unready_since) = (None, Some(now));
}

fn rolling(replicas: usize, unavailable: usize, surge: usize) -> Draft {
    let strategy = json!({"type": "RollingUpdate", "maxUnavailable": unavailable, "maxSurge": surge,
        "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}});
    deployment().with("/replicas", json!(replicas)).with("/updateStrategy", strategy)
}

/// Pods `web-0`, `web-1` and so on.
fn pods(count: usize, draft: &Draft) -> Sight {
    let names: Vec<_> = (0..count).map(|ordinal| format!("web-{ordinal}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    sight(&names, &draft.revision())
}

/// An ordered set of three, all of which are not Ready.
fn ordered() -> (Draft, Sight) {
    let draft = stateful_set();
    let mut sight = pods(3, &draft);
    sight.pods.iter_mut().for_each(|pod| pod.ready_since = None);
    (draft.image("app:2"), sight)
}

#[test]
fn pods_that_are_not_ready_for_long_enough_are_replaced_within_the_limit() {
    let old = rolling(6, 2, 0).with("/minReadySeconds", json!(30));
    let new = old.clone().image("app:2");
    let mut sight = pods(6, &old);
    sight.pods.iter_mut().for_each(|pod| pod.ready_since = Some(at(-10)));
    assert_eq!(rounds(&mut sight, &new, 6).len(), 2);
    assert_eq!(having(&sight, "app:1"), 4);
    // Their successors are Ready, and not for long enough.
    for pod in sight.pods.iter_mut().filter(|pod| pod.ready_since.is_none()) {
        pod.ready_since = Some(at(0));
    }
    sight.now = at(29);
    assert!(rounds(&mut sight, &new, 3).is_empty());
    sight.now = at(30);
    assert_eq!(rounds(&mut sight, &new, 3).len(), 2);
}

/// What all pods need is down, and the new image is bad.
#[test]
fn of_pods_that_are_all_down_no_more_are_replaced_than_may_be_unavailable() {
    let parallel = stateful_set().with("/podManagementPolicy", json!("Parallel"));
    for (draft, unavailable, surge) in [(deployment(), 5, 0), (deployment(), 0, 1), (parallel, 5, 0)] {
        let strategy = rolling(20, unavailable, surge).spec["updateStrategy"].clone();
        let old = draft.with("/replicas", json!(20)).with("/updateStrategy", strategy);
        let bad = old.clone().image("app:bad");
        let mut sight = pods(20, &old);
        sight.pods.iter_mut().for_each(|pod| pod.ready_since = None);
        assert_eq!(rounds(&mut sight, &bad, 8).len(), unavailable);
        assert_eq!(having(&sight, "app:1"), 20 - unavailable);
        // Another template replaces those of the bad image, too.
        let good = old.image("app:good");
        let mut deleted = 0;
        for _ in 0..80 {
            let now = round(&mut sight, &good).len();
            assert!(now <= unavailable.max(1), "{now}");
            deleted += now;
            serve(&mut sight, "app:good");
        }
        assert!(deleted >= 20);
        assert_eq!((having(&sight, "app:good"), sight.pods.len()), (20, 20));
    }
}

#[test]
fn a_pod_whose_hook_has_passed_waits_until_fewer_are_being_replaced() {
    let old = rolling(6, 2, 0).with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let new = old.clone().image("app:2");
    let mut sight = pods(6, &old);
    step(&mut sight, &new);
    hooks_end(&mut sight, HookPhase::Successful);
    let chosen: Vec<_> =
        sight.pods.iter().filter(|pod| pod.task.is_some()).map(|pod| pod.name.clone()).collect();
    assert_eq!(chosen.len(), 2);
    // Both break, and another pod is evicted.
    for name in &chosen {
        sight.pod(name).ready_since = None;
    }
    sight.pods.pop();
    let deleted = rounds(&mut sight, &new, 4);
    assert_eq!(deleted.len(), 1, "its successor and that of the evicted pod are not available");
    let waits = chosen.iter().find(|name| !deleted.contains(name)).unwrap().clone();
    assert_eq!(sight.pod(&waits).task.as_ref().unwrap().stage, Stage::Chosen);
    assert_eq!(sight.runs.len(), 1, "its hook does not run again");
    serve(&mut sight, "app:2");
    assert_eq!(round(&mut sight, &new)[0], waits);
}

/// No pod can be created while the only one is Pending.
#[test]
fn a_pod_that_holds_up_the_creation_of_others_is_replaced() {
    let old = rolling(4, 1, 0).with("/scaleStrategy", json!({"createBatch": 1}));
    let mut sight = pods(1, &old);
    (sight.pods[0].phase, sight.pods[0].ready_since) = (PodPhase::Pending, None);
    // One that is being deleted does not take the place of a new one.
    let mut terminating = pods(2, &old);
    terminating.pods[0] = sight.pods[0].clone();
    terminating.pods[1].deletion = Some(at(0));
    for mut sight in [sight, terminating] {
        assert_eq!(round(&mut sight, &old.clone().image("app:2")), ["web-0"]);
    }
    // The first pod of an ordered set never becomes Ready, and its template is repaired.
    let (repaired, mut sight) = ordered();
    sight.pods.truncate(1);
    assert_eq!(round(&mut sight, &repaired), ["web-0"]);
}

/// The same with numbers from 100 on.
fn numbered_pods(count: usize, draft: &Draft) -> Sight {
    let mut sight = pods(count, draft);
    for (index, pod) in (100..).zip(&mut sight.pods) {
        pod.index = Some(index);
    }
    sight
}

/// Without a range no pod is created, also none in the place of another one.
#[test]
fn no_pod_is_replaced_while_the_index_range_is_invalid() {
    let old = rolling(5, 2, 0).annotated(workload_key::INDEX_ON, "true");
    let numbered = |range: &str| old.clone().image("app:2").annotated(workload_key::INDEX_RANGE, range);
    let invalid = numbered(r#"{"podStartIndex":105,"podEndIndex":100}"#);
    let enough = numbered(r#"{"podStartIndex":100,"podEndIndex":105}"#);
    for count in [3, 5] {
        let mut sight = numbered_pods(count, &old);
        sight.pods[0].ready_since = None;
        assert!(rounds(&mut sight, &invalid, 3).is_empty());
        assert_eq!((having(&sight, "app:1"), sight.pods.len()), (count, count));
        rounds(&mut sight, &enough, 3);
        assert_eq!((having(&sight, "app:2"), sight.pods.len()), (2, 5));
    }
}

/// The index range is too small, so that a pod is missing until another one is gone.
#[test]
fn a_pod_that_is_broken_is_replaced_although_another_one_has_no_number() {
    let old = rolling(5, 2, 0)
        .annotated(workload_key::INDEX_ON, "true")
        .annotated(workload_key::INDEX_RANGE, r#"{"podStartIndex":100,"podEndIndex":103}"#);
    let new = old.clone().image("app:2");
    let mut sight = numbered_pods(3, &old);
    assert!(sight.decide(&new).deleted().is_empty(), "too few serve");
    for pod in &mut sight.pods[..2] {
        pod.ready_since = None;
    }
    let decision = sight.decide(&new);
    let [deleted] = decision.deleted()[..] else { panic!("{:#?}", decision.actions) };
    // It has its number until it is gone.
    sight.pod(deleted).deletion = Some(at(0));
    assert!(sight.decide(&new).deleted().is_empty());
}

/// The number of a pod is used until the pod is gone.
#[test]
fn no_further_pod_is_replaced_while_one_that_is_being_deleted_has_the_last_number() {
    let old = rolling(5, 1, 0)
        .annotated(workload_key::INDEX_ON, "true")
        .annotated(workload_key::INDEX_RANGE, r#"{"podStartIndex":100,"podEndIndex":105}"#);
    let new = old.clone().image("app:2");
    let mut sight = numbered_pods(5, &old);
    // It is Pending: without a pod that is being deleted, the missing ones would wait for it.
    sight.pods[0].phase = PodPhase::Pending;
    sight.pods[0].ready_since = None;
    sight.pods[4].deletion = Some(at(0));
    let decision = sight.decide(&new);
    assert!(decision.created().is_empty() && decision.deleted().is_empty(), "{:#?}", decision.actions);
    sight.pods.pop();
    assert_eq!(sight.decide(&new).created().len(), 1);
}

#[test]
fn an_ordered_set_waits_for_the_replacement_before_it_takes_the_next_pod() {
    let (new, mut sight) = ordered();
    // A pod above one that is not available would not be created again.
    assert_eq!(sight.decide(&new).deleted(), ["web-0"]);
    let began = sight.now;
    sight.pod("web-0").deletion = Some(began);
    for _ in 0..3 {
        assert!(round(&mut sight, &new).is_empty(), "web-0 is not gone");
    }
    sight.pods.retain(|pod| pod.name != "web-0");
    assert!(rounds(&mut sight, &new, 4).is_empty(), "its successor is not available");
    assert_eq!((having(&sight, "app:2"), sight.pods.len()), (1, 3));
    // All recover: the rest follows from the highest ordinal, each after the one before.
    serve(&mut sight, "app:1");
    serve(&mut sight, "app:2");
    assert_eq!(rounds(&mut sight, &new, 3), ["web-2"]);
    serve(&mut sight, "app:2");
    assert_eq!(rounds(&mut sight, &new, 3), ["web-1"]);
}

/// The set loses its quorum for a moment when `web-2` goes.
#[test]
fn an_ordered_set_whose_other_pods_break_for_a_moment_takes_none_of_them() {
    let (new, mut sight) = ordered();
    serve(&mut sight, "app:1");
    assert_eq!(sight.decide(&new).deleted(), ["web-2"]);
    sight.pods.retain(|pod| pod.name != "web-2");
    break_now(&mut sight, "web-1");
    sight.now += SignedDuration::from_secs(59);
    let decision = sight.decide(&new);
    assert!(decision.deleted().is_empty() && decision.created().is_empty(), "{:#?}", decision.actions);
    assert_eq!(decision.requeue_at, Some(sight.now + SignedDuration::from_secs(1)));
    let mut recovered = sight.clone();
    serve(&mut recovered, "app:1");
    let decision = recovered.decide(&new);
    assert_eq!((decision.deleted().len(), decision.created()), (0, vec!["web-2"]));
    // Without `web-1`, there would never be a `web-2` again.
    sight.now += SignedDuration::from_secs(1);
    assert_eq!(sight.decide(&new).deleted(), ["web-1"]);
}

#[test]
fn a_request_that_nobody_takes_up_does_not_change_the_order_of_the_ordinals() {
    let old = stateful_set().with("/updateStrategy", json!({"type": "InplaceUpdate"}));
    let new = old.clone().image("app:2");
    let mut sight = pods(3, &old);
    assert_eq!(step(&mut sight, &new).requested(), ["web-2"]);
    for second in [120, 121, 299] {
        sight.now = at(second);
        assert!(step(&mut sight, &new).requested().is_empty(), "{second}");
    }
    assert_eq!(condition(&sight.decide(&new), "UpdateFailed").1, "NoAgent");
    // A pod that serves nobody does not wait for that.
    let mut broken = sight.clone();
    broken.pod("web-0").ready_since = None;
    assert_eq!(step(&mut broken, &new).requested(), ["web-0"]);
    sight.now = at(300);
    assert_eq!(step(&mut sight, &new).requested(), ["web-2"]);
    // One that failed is passed over, if the threshold lets the update continue.
    let new = new.annotated(workload_key::FAILURE_THRESHOLD, "2");
    let pod = sight.pod("web-2");
    pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
    let requested: Vec<_> = (0..2).flat_map(|_| requests(&step(&mut sight, &new))).collect();
    assert_eq!(requested.len(), 1);
    assert!(sight.pod("web-1").request.is_some());
}
