//! With `failurePolicy: Ignore` each container has a request of its own, and one that fails does not keep the others from being
//! restarted.

use super::*;
use crate::api::container_recreate_request::ContainerRecreateState;

fn both(more: &Value) -> RecreateRequest {
    let mut spec =
        json!({"containers": [{"name": "app"}, {"name": "side"}], "strategy": {"failurePolicy": "Ignore"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object(&spec, &json!({}))
}

/// The pod after a patch, with the agent's answer to the request for the container at this index.
fn answered_with(patch: &PodPatch, index: usize, phase: &str) -> Pod {
    patched(patch, |pod| {
        answered(pod, phase, &json!({"reason": "Exited", "stoppedAt": at(2)}));
        let text = pod["metadata"]["annotations"]["inplace.dev/status"].as_str().unwrap();
        let mut status: Value = serde_json::from_str(text).unwrap();
        status["id"] = json!(format!("recreate-u-1-{index}"));
        status["containers"][0]["name"] = json!(["app", "side"][index]);
        pod["metadata"]["annotations"]["inplace.dev/status"] = json!(status.to_string());
    })
}

fn shown(states: &[ContainerRecreateState]) -> Vec<(&str, RecreatePhase, bool)> {
    states.iter().map(|state| (state.name.as_str(), state.phase.unwrap(), state.is_killed)).collect()
}

#[test]
fn a_container_that_fails_does_not_keep_the_next_one_from_being_restarted() {
    let object = both(&json!({}));
    let first = decide(&object, Some(&pod(|_| ())), at(1)).patch.unwrap();
    let request = requested(&first);
    assert_eq!((request.id.as_str(), request.containers.len()), ("recreate-u-1-0", 1));
    assert_eq!(request.containers[0].name, "app");

    let failed = answered_with(&first, 0, "Failed");
    let then = decide(&object, Some(&failed), at(5));
    let after_first = then.status.unwrap().container_recreate_states;
    let (app, side) = (("app", RecreatePhase::Failed, true), ("side", RecreatePhase::Pending, false));
    assert_eq!(shown(&after_first), [app, side]);
    let second = then.patch.unwrap();
    let request = requested(&second);
    assert_eq!((request.id.as_str(), request.containers[0].name.as_str()), ("recreate-u-1-1", "side"));

    // The agent has accepted it; the outcome of the first one is only in the record.
    let runs = answered_with(&second, 1, "Running");
    let shown_now = decide(&object, Some(&runs), at(6)).status.unwrap().container_recreate_states;
    assert_eq!(shown(&shown_now), [app, ("side", RecreatePhase::Recreating, true)]);

    let done = answered_with(&second, 1, "Succeeded");
    let status = decide(&object, Some(&done), at(9)).status.unwrap();
    assert_eq!(status.phase, Some(RecreatePhase::Completed));
    assert_eq!(shown(&status.container_recreate_states), [app, ("side", RecreatePhase::Succeeded, true)]);
    assert!(status.message.starts_with("1 of 2 containers failed: app: "), "{}", status.message);
}

#[test]
fn an_operation_of_another_client_comes_between_two_containers_and_nothing_is_forgotten() {
    let object = both(&json!({}));
    let first = decide(&object, Some(&pod(|_| ())), at(1)).patch.unwrap();
    let mut ended = answered_with(&first, 0, "Succeeded");
    ended.base.request = Some("by-hand".to_owned());
    let waits = decide(&object, Some(&ended), at(5));
    let recorded = waits.patch.unwrap();
    assert!(!recorded.annotations.contains_key("inplace.dev/request"), "{recorded:?}");
    // The answer of the agent is that to the other request now.
    let mut other = patched(&recorded, |_| ());
    other.base.request = Some("by-hand".to_owned());
    assert_eq!(decide(&object, Some(&other), at(7)).patch, None);
    other.base.request = None;
    let next = decide(&object, Some(&other), at(9));
    assert_eq!(requested(&next.patch.unwrap()).id, "recreate-u-1-1");
    let app = ("app", RecreatePhase::Succeeded, true);
    assert_eq!(shown(&next.status.unwrap().container_recreate_states)[0], app);
}

/// Nobody answers the request for the first one, or its agent has gone while it worked.
#[test]
fn a_request_that_is_not_answered_is_replaced_by_that_for_the_next_container() {
    let object = both(&json!({}));
    let first = decide(&object, Some(&pod(|_| ())), at(1)).patch.unwrap();
    let runs = answered_with(&first, 0, "Running");
    for (silent, second) in [(patched(&first, |_| ()), 200), (runs, 2000)] {
        let next = decide(&object, Some(&silent), at(second));
        assert_eq!(requested(&next.patch.unwrap()).id, "recreate-u-1-1");
        assert_eq!(shown(&next.status.unwrap().container_recreate_states)[0].1, RecreatePhase::Failed);
    }
    // A group restart has the pod: the request is withdrawn, and the object ends in time.
    let mut grouped = patched(&first, |_| ());
    grouped.base.answer = Some(
        serde_json::from_value(
            json!({"id": "group-1", "phase": "Running", "step": "Swap", "reason": "", "message": "",
            "startedAt": null, "finishedAt": null, "containers": [], "group": {"epoch": 1, "phase": "Stop"}}),
        )
        .unwrap(),
    );
    let waits = decide(&object, Some(&grouped), at(900)).patch.unwrap();
    assert_eq!(waits.annotations.get("inplace.dev/request"), Some(&None));
    let mut waiting = patched(&waits, |_| ());
    waiting.base.answer = grouped.base.answer;
    assert_eq!(
        decide(&object, Some(&waiting), at(1000)).status.unwrap().phase,
        Some(RecreatePhase::Recreating)
    );
    let status = decide(&object, Some(&waiting), at(1600)).status.unwrap();
    assert_eq!(status.phase, Some(RecreatePhase::Completed), "{status:?}");
}

/// Its user may change the list at any time.
#[test]
fn a_list_that_changes_after_the_first_request_ends_the_object() {
    let object = both(&json!({}));
    let first = decide(&object, Some(&pod(|_| ())), at(1)).patch.unwrap();
    let changed = both(&json!({"containers": [{"name": "side"}, {"name": "app"}]}));
    let decision = decide(&changed, Some(&answered_with(&first, 0, "Succeeded")), at(5));
    assert!(message(&decision).contains("spec.containers changed"));
}

#[test]
fn a_container_that_is_not_reached_before_the_deadline_has_failed() {
    let object = both(&json!({"activeDeadlineSeconds": 30}));
    let first = decide(&object, Some(&pod(|_| ())), at(0)).patch.unwrap();
    assert_eq!(requested(&first).deadline_seconds, 15, "the second one has the other half");
    let done = answered_with(&first, 0, "Succeeded");
    let status = decide(&object, Some(&done), at(30)).status.unwrap();
    let (app, side) = (("app", RecreatePhase::Succeeded, true), ("side", RecreatePhase::Failed, false));
    assert_eq!(shown(&status.container_recreate_states), [app, side]);
    assert!(status.message.contains("the deadline passed"), "{}", status.message);
}

#[test]
fn what_is_left_on_the_pod_is_withdrawn() {
    let object = both(&json!({}));
    let first = decide(&object, Some(&pod(|_| ())), at(1)).patch.unwrap();
    let second = decide(&object, Some(&answered_with(&first, 0, "Failed")), at(5)).patch.unwrap();
    let asked = patched(&second, |_| ());
    let patch = withdraw(&asked, "u-1");
    assert_eq!(patch.annotations["inplace.dev/request"], None);
    assert!(!withdraw(&asked, "u").annotations.contains_key("inplace.dev/request"), "of another object");
    // Another client has removed the record: which containers have ended is not known any more.
    let mut lost = asked;
    lost.record = None;
    let recreating = RecreateRequest {
        before: ContainerRecreateRequestStatus {
            phase: Some(RecreatePhase::Recreating),
            ..ContainerRecreateRequestStatus::default()
        },
        ..object
    };
    assert!(message(&decide(&recreating, Some(&lost), at(6))).contains("the outcome is unknown"));
}
