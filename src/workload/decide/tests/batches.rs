//! When the next batch of an update may begin: limits that allow none, and new containers that have to stay up first.

use super::*;

/// An object that was stored before admission refused these limits.
#[test]
fn limits_under_which_no_pod_may_be_unavailable_update_no_pod_and_the_condition_says_so() {
    for (way, surge) in [("InplaceUpdate", 0), ("RollingUpdate", 0), ("HotPatchUpdate", 1)] {
        let strategy = json!({"type": way, "maxUnavailable": 0, "maxSurge": surge});
        let one = deployment().with("/updateStrategy", strategy);
        let mut sight = sight(&["web-a", "web-b", "web-c"], &one.revision());
        assert_eq!(condition(&step(&mut sight, &one), "UpdateFailed").1, "NoFailure", "nothing to update");
        let two = one.clone().image("app:2");
        // A pod that serves nobody is not taken either: the user said none.
        sight.pod("web-a").ready_since = None;
        let decision = step(&mut sight, &two);
        assert!(requests(&decision).is_empty() && decision.deleted().is_empty(), "{:?}", decision.actions);
        assert!(sight.pods.iter().all(|pod| pod.task.is_none()), "{way}: {:?}", decision.actions);
        let (status, reason, message) = condition(&decision, "UpdateFailed");
        assert_eq!((status.as_str(), reason.as_str()), ("True", "NoBudget"));
        assert!(message.starts_with("spec.updateStrategy.maxUnavailable: it "), "{message}");
        assert_eq!(condition(&decision, "Progressing").1, "NoBudget");
        let mended = two.with("/updateStrategy/maxUnavailable", json!(1));
        let decision = step(&mut sight, &mended);
        assert!(sight.pods.iter().any(|pod| pod.task.is_some()) || !decision.deleted().is_empty());
    }
}

/// An image that exits after a few seconds must not reach the next batch before that.
#[test]
fn an_updated_pod_is_available_only_min_ready_seconds_after_its_restart() {
    let one = in_place().with("/minReadySeconds", json!(30)).with("/updateStrategy/maxUnavailable", json!(1));
    let two = other_image(&one, 0, "app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &one.revision());
    sight.now += jiff::SignedDuration::from_secs(60);
    assert_eq!(requests(&step(&mut sight, &two)).len(), 1);
    // The pod has no readiness gate and no probe: its Ready condition never changes.
    agents_succeed(&mut sight, "app:2");
    let restarted = Some(sight.now);
    for pod in sight.pods.iter_mut().filter(|pod| pod.answer.is_some()) {
        pod.answer.as_mut().unwrap().containers =
            serde_json::from_value(json!([{"name": "app", "action": "Swap",
            "engine": "Respec", "from": {"containerID": "a", "attempt": 0, "image": "app:1", "imageID": ""},
            "to": null, "stoppedAt": null, "startedAt": at(0), "readyAt": restarted, "downtimeMs": null}]))
            .unwrap();
    }
    let recorded = step(&mut sight, &two);
    assert!(requests(&recorded).is_empty());
    let waits = sight.decide(&two);
    assert!(requests(&waits).is_empty(), "{:?}", waits.actions);
    assert_eq!(waits.requeue_at, restarted.map(|at| at + jiff::SignedDuration::from_secs(30)));
    sight.now += jiff::SignedDuration::from_secs(30);
    assert_eq!(requests(&step(&mut sight, &two)).len(), 1);
}

#[test]
fn the_agent_accepts_a_new_container_only_after_min_ready_seconds_and_has_the_time_for_it() {
    let of = |min_ready: i32, way: &str, policy: &str, grace: i32| {
        let one = two_containers().with("/minReadySeconds", json!(min_ready)).with(
            "/updateStrategy",
            json!({"type": way, "maxUnavailable": 3,
                   "inPlaceUpdateStrategy": {"policy": policy, "gracePeriodSeconds": grace}}),
        );
        let two = other_image(&other_image(&one, 0, "a:2"), 1, "b:2");
        let mut sight = sight(&["web-a"], &one.revision());
        sight.pod("web-a").ready_since = Some(at(-200_000));
        let request = requests(&step(&mut sight, &two)).remove(0);
        request.check().unwrap();
        assert!(
            request.seconds_to_prove() + u64::from(request.grace_period_seconds) + 600
                <= request.deadline_seconds.into()
        );
        (request.min_ready_seconds, request.deadline_seconds)
    };
    assert_eq!(of(30, "InplaceUpdate", "DisOrdered", 0), (30, 630));
    assert_eq!(of(30, "InplaceUpdate", "OrderedReady", 10), (30, 670), "one container after the other");
    assert_eq!(of(30, "HotPatchUpdate", "DisOrdered", 10), (30, 630));
    assert_eq!(of(100_000, "InplaceUpdate", "OrderedReady", 43_200).1, 86_400, "the longest deadline");
}

/// An image that exits after 5 s: the agent sees it, because the request asks for longer, and runs the old one.
#[test]
fn an_image_that_dies_early_stops_the_update_after_the_first_batch() {
    let one = in_place().with("/minReadySeconds", json!(30)).with("/updateStrategy/maxUnavailable", json!(1));
    let two = other_image(&one, 0, "app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &one.revision());
    let mut asked = 0;
    for _ in 0..40 {
        let decision = step(&mut sight, &two);
        asked += requests(&decision).len();
        let proves = requests(&decision).first().map(|request| request.min_ready_seconds);
        sight.now += jiff::SignedDuration::from_secs(5);
        for pod in &mut sight.pods {
            let Some(task) = pod.task.clone().filter(|task| task.stage == Stage::Ordered) else { continue };
            let survives = proves.is_some_and(|seconds| seconds <= 5);
            let phase = if survives { Phase::Succeeded } else { Phase::RolledBack };
            pod.answer = Some(answer(&task.id(), phase, Some(Step::Verify)));
        }
    }
    assert_eq!(asked, 1);
    assert_eq!(condition(&step(&mut sight, &two), "UpdateFailed").1, "TooManyFailures");
}
