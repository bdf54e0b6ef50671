//! `inPlaceUpdateStrategy.order: StartFirst`: which requests have it, what waits, what is refused, and what follows from a
//! standby that did not prove itself.

use crate::api::request::Order;

use super::*;

fn start_first() -> Draft {
    in_place().with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StartFirst"}))
}

/// Three pods at the revision of `draft`.
fn three(draft: &Draft) -> Sight {
    let mut sight = sight(&FIVE[..3], &draft.revision());
    for pod in &mut sight.pods {
        pod.ready_since = Some(at(-200_000));
    }
    sight
}

#[test]
fn every_request_starts_first_and_has_the_time_for_the_proof() {
    let of = |way: &str, strategy: Value, min_ready: i32| {
        let one = in_place()
            .with("/minReadySeconds", json!(min_ready))
            .with("/updateStrategy/type", json!(way))
            .with("/updateStrategy/inPlaceUpdateStrategy", strategy);
        let two = one.clone().image("app:2");
        let requests = requests(&step(&mut three(&one), &two));
        assert_eq!(requests.len(), 3);
        requests[0].check().unwrap();
        let request = requests[0].clone();
        (request.order, request.grace_period_seconds, request.min_ready_seconds, request.deadline_seconds)
    };
    let first = Order::StartFirst;
    assert_eq!(of("InplaceUpdate", json!({"order": "StartFirst"}), 0), (first, 0, 0, 606), "no drain");
    assert_eq!(of("InplaceUpdate", json!({"order": "StartFirst"}), 30), (first, 0, 30, 660));
    assert_eq!(of("HotPatchUpdate", json!({"order": "StartFirst"}), 30), (first, 0, 30, 660));
    let drains = json!({"order": "StartFirst", "gracePeriodSeconds": 20});
    assert_eq!(of("InplaceUpdate", drains.clone(), 30), (first, 20, 30, 680), "asked for");
    assert_eq!(of("HotPatchUpdate", drains.clone(), 30), (first, 0, 30, 660));
    let (_, grace, ready, deadline) = of("InplaceUpdate", drains, 1_000_000);
    assert!(2 * ready + grace + 600 <= deadline && deadline == 86_400, "{ready} {deadline}");
    assert_eq!(of("InplaceUpdate", json!({}), 30), (Order::StopFirst, 0, 30, 630));
}

/// A request whose deadline is shorter than the stops is refused on every pod.
#[test]
fn a_long_grace_period_of_the_pod_fits_into_the_deadline() {
    for (order, least) in [("StopFirst", 600 + 600), ("StartFirst", 4 * 600)] {
        let one = in_place()
            .with("/template/spec/terminationGracePeriodSeconds", json!(600))
            .with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": order}));
        let request = requests(&step(&mut three(&one), &one.clone().image("app:2"))).remove(0);
        assert!(request.deadline_seconds > least, "{order}: {}", request.deadline_seconds);
    }
}

#[test]
fn a_container_that_runs_and_is_not_ready_is_waited_for() {
    let one = start_first();
    let two = one.clone().image("app:2");
    let mut sight = three(&one);
    for name in ["web-a", "web-b"] {
        let pod = sight.pod(name);
        (pod.ready_since, pod.unready) = (None, vec![("app".to_owned(), name == "web-b")]);
    }
    let decision = step(&mut sight, &two);
    assert_eq!(decision.requested(), ["web-b", "web-c"]);
    let orders: Vec<_> = requests(&decision).iter().map(|request| request.order).collect();
    assert_eq!(orders, [Order::StopFirst, Order::StartFirst], "nothing of web-b runs");
    let (status, reason, message) = condition(&step(&mut sight, &two), "Progressing");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Updating"));
    assert!(message.contains("waiting for 1 pods to be Ready, for example web-a: "), "{message}");
    agents_succeed(&mut sight, "app:2");
    // Of those that are updated, the first one was delayed by its kubelet.
    sight.pod("web-b").ready_since = Some(at(-1));
    sight.pod("web-a").images[0].1 = "app:1".to_owned();
    step(&mut sight, &two);
    for _ in 0..3 {
        let decision = step(&mut sight, &two);
        assert!(requests(&decision).is_empty(), "{:?}", decision.actions);
        assert_eq!(condition(&decision, "Progressing").1, "PodsNotReady");
        assert_eq!(condition(&decision, "UpdateFailed").0, "False");
        assert!(decision.deleted().is_empty());
    }
    let stop_first = two.clone().with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StopFirst"}));
    assert_eq!(sight.clone().decide(&stop_first).requested(), ["web-a"]);
    let pod = sight.pod("web-a");
    (pod.ready_since, pod.unready) = (Some(at(-1)), Vec::new());
    assert_eq!(requests(&step(&mut sight, &two))[0].order, Order::StartFirst);
}

/// A pod that becomes not Ready while its hook runs keeps its task, and is asked when it is Ready again.
#[test]
fn a_pod_that_is_not_ready_when_its_hook_has_passed_waits() {
    let one = start_first().with("/preInplaceUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let two = one.clone().image("app:2");
    let mut sight = three(&one);
    step(&mut sight, &two);
    let pod = sight.pod("web-a");
    (pod.ready_since, pod.unready) = (None, vec![("app".to_owned(), false)]);
    hooks_end(&mut sight, HookPhase::Successful);
    let decision = step(&mut sight, &two);
    assert_eq!(decision.requested(), ["web-b", "web-c"]);
    assert!(condition(&decision, "Progressing").2.contains("for example web-a"));
    let pod = sight.pod("web-a");
    (pod.ready_since, pod.unready) = (Some(at(-1)), Vec::new());
    assert_eq!(step(&mut sight, &two).requested(), ["web-a"]);
}

/// Nothing was touched: the pods count as failed, and nothing is asked, deleted or created again until a person acts.
#[test]
fn a_refusal_or_a_standby_that_ended_is_reported_and_never_repeated() {
    for (phase, step_of, reason) in
        [(Phase::Refused, None, "CannotStartFirst"), (Phase::Failed, Some(Step::Standby), "NotStartedBeside")]
    {
        let one = start_first()
            .with("/updateStrategy/maxUnavailable", json!(1))
            .with("/updateStrategy/maxSurge", json!(1))
            .annotated("inplace.dev/in-place-fallback", "Recreate");
        let two = one.clone().image("app:2");
        let mut sight = three(&one);
        let mut asked = 0;
        for _ in 0..20 {
            let decision = step(&mut sight, &two);
            asked += requests(&decision).len();
            assert!(decision.deleted().iter().all(|name| !FIVE.contains(name)), "{:?}", decision.actions);
            sight.now += jiff::SignedDuration::from_secs(600);
            for pod in sight.pods.iter_mut().filter(|pod| pod.answer.is_none()) {
                let Some(task) = pod.task.clone().filter(|task| task.stage == Stage::Ordered) else {
                    continue;
                };
                let ended = answer(&task.id(), phase, step_of);
                pod.answer = Some(Status { reason: reason.to_owned(), ..ended });
            }
        }
        assert_eq!(asked, 1, "{reason}: the threshold");
        let decision = step(&mut sight, &two);
        let (status, stops, message) = condition(&decision, "UpdateFailed");
        assert_eq!((status.as_str(), stops.as_str()), ("True", "TooManyFailures"));
        assert!(message.contains(&format!("{phase}: {reason}: as it is")), "{message}");
        assert_eq!(condition(&decision, "Stalled").0, "True");
        let retry = two.clone().annotated("inplace.dev/retry", "true");
        step(&mut sight, &retry);
        assert_eq!(requests(&step(&mut sight, &two)).len(), 1, "a person asked for it");
    }
}

/// With `Abort`, a pod at which nothing was touched has nothing to go back from.
#[test]
fn an_abort_leaves_pods_alone_whose_standby_ended() {
    let one = start_first().with("/updateStrategy/onFailure", json!("Abort"));
    let two = one.clone().image("app:2");
    let mut sight = three(&one);
    sight.before.stable_revision = one.revision().name;
    step(&mut sight, &two);
    for pod in &mut sight.pods {
        let ended = answer(pod.request.as_ref().unwrap(), Phase::Failed, Some(Step::Standby));
        pod.answer = Some(Status { reason: "NotStartedBeside".to_owned(), ..ended });
    }
    for _ in 0..6 {
        let decision = step(&mut sight, &two);
        assert!(requests(&decision).is_empty() && decision.deleted().is_empty(), "{:?}", decision.actions);
    }
    assert_eq!(condition(&step(&mut sight, &two), "Progressing").1, "Aborted");
}

/// Its image stopped being Ready after the update had been accepted: the way back is what makes it Ready again.
#[test]
fn an_abort_takes_an_updated_pod_back_that_is_not_ready() {
    let one = start_first().with("/updateStrategy/onFailure", json!("Abort"));
    let two = one.clone().image("app:2");
    let mut sight = three(&one);
    step(&mut sight, &two);
    agents_succeed(&mut sight, "app:2");
    step(&mut sight, &two);
    sight.before.stable_revision = one.revision().name;
    sight.before.aborted_revision = two.revision().name;
    let pod = sight.pod("web-a");
    (pod.ready_since, pod.unready) = (None, vec![("app".to_owned(), false)]);
    let back = requests(&step(&mut sight, &two));
    let orders: Vec<_> = back.iter().map(|request| request.order).collect();
    assert_eq!(orders, [Order::StopFirst, Order::StartFirst, Order::StartFirst]);
}

#[test]
fn what_the_template_rules_out_is_said_and_not_asked() {
    let one = two_containers()
        .with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StartFirst"}))
        .annotated("inplace.dev/in-place-fallback", "Recreate");
    let two = other_image(&other_image(&one, 0, "a:2"), 1, "b:2");
    let post_start = start_first().with(
        "/template/spec/containers/0/lifecycle",
        json!({"postStart": {"exec": {"command": ["warm-up"]}}}),
    );
    for (one, two, says) in [
        (one, two, "pod web-a: the containers a, b change at once"),
        (post_start.clone(), post_start.image("app:2"), "pod web-a: container app has a postStart handler"),
    ] {
        let mut sight = three(&one);
        for _ in 0..3 {
            let decision = step(&mut sight, &two);
            assert!(
                requests(&decision).is_empty() && decision.deleted().is_empty(),
                "{:?}",
                decision.actions
            );
            let (_, reason, message) = condition(&decision, "UpdateFailed");
            assert_eq!(reason, "CannotStartFirst");
            assert!(message.starts_with(says) && message.contains("order to StopFirst"), "{message}");
            assert_eq!(condition(&decision, "Stalled").0, "True");
            let (status, reason, _) = condition(&decision, "Progressing");
            assert_eq!((status.as_str(), reason.as_str()), ("False", "CannotStartFirst"));
        }
        let stop = two.with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StopFirst"}));
        assert_eq!(requests(&step(&mut sight, &stop)).len(), 3);
    }
}

/// The task failed after the pod was touched, and its readiness gate is closed: only an operation opens it again.
#[test]
fn a_pod_that_a_failed_update_left_out_of_traffic_is_repaired() {
    let one = two_containers().with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StartFirst"}));
    let two = other_image(&one, 0, "a:2");
    let mut sight = three(&one);
    step(&mut sight, &two);
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Failed, Some(Step::Verify)));
        (pod.ready_since, pod.unready) = (None, vec![("a".to_owned(), false)]);
    }
    step(&mut sight, &two);
    let back = requests(&step(&mut sight, &one));
    assert_eq!(back.len(), 3);
    assert!(
        back.iter().all(|request| request.order == Order::StopFirst && request.containers.len() == 2),
        "{back:?}"
    );
}

#[test]
fn a_set_starts_first_too() {
    let one = stateful_set().with(
        "/updateStrategy",
        json!({"type": "InplaceUpdate", "inPlaceUpdateStrategy": {"order": "StartFirst"}}),
    );
    let mut sight = sight(&["web-0", "web-1", "web-2"], &one.revision());
    let decision = step(&mut sight, &one.clone().image("app:2"));
    assert_eq!(decision.requested(), ["web-2"]);
    assert_eq!(requests(&decision)[0].order, Order::StartFirst);
}
