//! The decisions about one `ContainerRecreateRequest`, from its creation to its deletion.

use super::*;
use crate::api::container_recreate_request::RecreatePhase;
use crate::api::request::Request;
use crate::podtask::write::PodPatch;
use serde_json::{Value, json};

mod separate;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000 + second).unwrap()
}

/// An object that was created at second 0.
fn object(spec: &Value, status: &Value) -> RecreateRequest {
    let mut whole = json!({"podName": "web-0", "containers": [{"name": "app"}]});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let object = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
        "metadata": {"namespace": "shop", "name": "again", "uid": "u-1", "resourceVersion": "7", "creationTimestamp": at(0)},
        "spec": whole, "status": status});
    RecreateRequest::read(serde_json::from_value(object).unwrap())
}

fn core_pod() -> Value {
    json!({"metadata": {"namespace": "shop", "name": "web-0", "uid": "p", "resourceVersion": "3", "labels": {}, "annotations": {}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "app:1"}, {"name": "side", "image": "side:1"}]},
        "status": {"phase": "Running"}})
}

fn pod(with: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = core_pod();
    with(&mut pod);
    Pod::read(&serde_json::from_value(pod).unwrap())
}

/// The pod after the patch of a decision, and then `with`.
fn patched(patch: &PodPatch, with: impl FnOnce(&mut Value)) -> Pod {
    pod(|pod| {
        for (key, value) in patch.annotations.iter().filter(|(_, value)| value.is_some()) {
            pod["metadata"]["annotations"][key] = json!(value);
        }
        with(pod);
    })
}

fn answered(pod: &mut Value, phase: &str, more: &Value) {
    let report = json!({"name": "app", "action": "Restart", "engine": "Recreate",
        "from": {"containerID": "a", "attempt": 0, "image": "app:1", "imageID": "i"}, "stoppedAt": more["stoppedAt"]});
    let answer = json!({"id": "recreate-u-1", "phase": phase, "step": "Swap", "reason": more["reason"].as_str().unwrap_or_default(),
        "message": "as the agent says", "startedAt": null, "finishedAt": null, "containers": [report]});
    pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
}

fn requested(patch: &PodPatch) -> Request {
    Request::parse(patch.annotations["inplace.dev/request"].as_deref()).unwrap().unwrap()
}

fn message(decision: &Decision) -> String {
    let status = decision.status.as_ref().unwrap();
    assert_eq!(status.phase, Some(RecreatePhase::Completed), "{status:?}");
    assert!(status.completion_time.is_some() && decision.patch.is_none(), "{decision:?}");
    let failed = |state: &crate::api::container_recreate_request::ContainerRecreateState| {
        state.phase == Some(RecreatePhase::Failed)
    };
    assert!(status.container_recreate_states.iter().all(failed), "{status:?}");
    status.message.clone()
}

#[test]
fn an_object_becomes_one_request_and_its_answer_the_status() {
    let strategy = json!({"failurePolicy": "Fail", "orderedRecreate": true, "terminationGracePeriodSeconds": 30,
        "unreadyGracePeriodSeconds": 3, "minStartedSeconds": 10});
    let object = object(
        &json!({"containers": [{"name": "side"}, {"name": "app"}], "strategy": strategy, "activeDeadlineSeconds": 300}),
        &json!({}),
    );
    let first = decide(&object, Some(&pod(|_| ())), at(20));
    let patch = first.patch.unwrap();
    let request = requested(&patch);
    let names: Vec<_> = request.containers.iter().map(|target| target.name.as_str()).collect();
    assert_eq!((request.id.as_str(), names), ("recreate-u-1", vec!["side", "app"]));
    assert!(request.each_ready && request.containers.iter().all(|target| target.image.is_none()));
    assert_eq!(request.termination_grace_period_seconds, Some(30));
    let seconds = [request.grace_period_seconds, request.min_ready_seconds];
    assert_eq!((seconds, request.deadline_seconds, request.ready_timeout_seconds), ([3, 10], 280, 280));
    assert_eq!(patch.labels["inplace.dev/recreate-request-uid"].as_deref(), Some("u-1"));
    assert_eq!(first.status.unwrap().phase, Some(RecreatePhase::Recreating));

    // The status was not written: the record says that the request was.
    let asked = patched(&patch, |_| ());
    let again = decide(&object, Some(&asked), at(21));
    assert_eq!(again.patch, None);
    assert_eq!(again.status.unwrap().phase, Some(RecreatePhase::Recreating));

    let done = patched(&patch, |pod| answered(pod, "Succeeded", &json!({"stoppedAt": at(22)})));
    let ended = decide(&object, Some(&done), at(25)).status.unwrap();
    assert_eq!((ended.phase, ended.completion_time), (Some(RecreatePhase::Completed), Some(at(25))));
    assert_eq!(ended.message, "as the agent says");
    let states = ended.container_recreate_states.iter();
    let states: Vec<_> = states.map(|state| (state.name.as_str(), state.phase, state.is_killed)).collect();
    let succeeded = Some(RecreatePhase::Succeeded);
    assert_eq!(states, [("side", succeeded, true), ("app", succeeded, true)]);

    // The same when the status of a group restart has replaced that of the request.
    let replaced = patched(&patch, |pod| {
        let group = json!({"id": "g", "phase": "Running", "step": null, "reason": "", "message": "", "startedAt": null,
            "finishedAt": null, "containers": [],
            "group": {"epoch": 1, "endedRequest": "recreate-u-1", "endedPhase": "Succeeded"}});
        pod["metadata"]["annotations"]["inplace.dev/status"] = json!(group.to_string());
    });
    let ended = decide(&object, Some(&replaced), at(25)).status.unwrap();
    let states = ended.container_recreate_states.iter();
    assert!(
        states.clone().count() == 2
            && states.clone().all(|state| state.phase == succeeded && state.is_killed)
    );
}

#[test]
fn what_has_no_counterpart_is_refused_by_its_name_and_touches_nothing() {
    for (spec, words) in [
        (json!({"podName": "gone"}), "spec.podName: pod gone does not exist"),
        (json!({"containers": [{"name": "db"}]}), "spec.containers[0].name: pod web-0 has no container `db`"),
        (
            json!({"containers": [{"name": "app", "preStop": {}}]}),
            "spec.containers[0].preStop: it is read-only",
        ),
        (json!({"containers": []}), "spec.containers: name 1 to"),
        (
            json!({"containers": [{"name": "app"}, {"name": "app"}]}),
            "spec.containers[1].name: `app` is named twice",
        ),
        (
            json!({"containers": [{"name": "app"}, {"name": "app"}], "strategy": {"failurePolicy": "Ignore"}}),
            "spec.containers[1].name: `app` is named twice",
        ),
        (json!({"strategy": {"failurePolicy": "Retry"}}), "`Retry` is none of Fail, Ignore"),
        (
            json!({"strategy": {"terminationGracePeriodSeconds": -1}}),
            "spec.strategy.terminationGracePeriodSeconds: 0 to",
        ),
        (
            json!({"strategy": {"terminationGracePeriodSeconds": 60}, "activeDeadlineSeconds": 60}),
            "spec.strategy.terminationGracePeriodSeconds: 60 does not fit",
        ),
        (json!({"strategy": {"minStartedSeconds": -1}}), "spec.strategy.minStartedSeconds: 0 to"),
        (
            json!({"strategy": {"unreadyGracePeriodSeconds": 60}, "activeDeadlineSeconds": 60}),
            "spec.strategy.unreadyGracePeriodSeconds: 60 does not fit",
        ),
        (json!({"strategy": {"newField": true}}), "spec.strategy.newField: this program does not know"),
        (json!({"ttlSecondsAfterFinished": -1}), "spec.ttlSecondsAfterFinished: it is less than 0"),
    ] {
        let object = object(&spec, &json!({}));
        let found = pod(|_| ());
        let found = Some(&found).filter(|found| found.base.name == object.spec.pod_name);
        let decision = decide(&object, found, at(1));
        let text = message(&decision);
        assert!(text.starts_with("nothing was touched") && text.contains(words), "{spec}: {text}");
        assert_eq!(decision.event.unwrap().reason, "RecreateRefused");
    }
}

#[test]
fn fields_without_an_effect_of_their_own_are_accepted() {
    let strategy =
        json!({"failurePolicy": "Ignore", "forceRecreate": true, "terminationGracePeriodSeconds": null});
    let decision = decide(&object(&json!({"strategy": strategy}), &json!({})), Some(&pod(|_| ())), at(1));
    let request = requested(&decision.patch.unwrap());
    assert_eq!((request.deadline_seconds, request.termination_grace_period_seconds), (600, None));
}

#[test]
fn another_operation_is_waited_for_until_the_deadline() {
    let busy = pod(|pod| pod["metadata"]["annotations"]["inplace.dev/request"] = json!("restart app #9"));
    let object = object(&json!({"activeDeadlineSeconds": 30}), &json!({}));
    let waits = decide(&object, Some(&busy), at(10));
    assert_eq!((waits.patch, waits.again), (None, Some(at(12))));
    let status = waits.status.unwrap();
    assert_eq!(status.phase, Some(RecreatePhase::Pending));
    assert!(status.message.contains("waiting for another operation on the pod: request text-"), "{status:?}");
    assert!(message(&decide(&object, Some(&busy), at(30))).contains("the deadline passed"));
}

#[test]
fn a_failure_of_the_agent_and_its_silence_are_reported_and_bounded() {
    let object = object(&json!({}), &json!({"phase": "Recreating"}));
    let patch =
        decide(&super::tests::object(&json!({}), &json!({})), Some(&pod(|_| ())), at(0)).patch.unwrap();
    let refused = patched(&patch, |pod| answered(pod, "Refused", &json!({"reason": "NoReadinessGate"})));
    let text = message(&decide(&object, Some(&refused), at(1)));
    assert_eq!(text, "Refused: NoReadinessGate: as the agent says");
    let silent = patched(&patch, |_| ());
    assert_eq!(
        decide(&object, Some(&silent), at(119)).status.unwrap().phase,
        Some(RecreatePhase::Recreating)
    );
    assert!(message(&decide(&object, Some(&silent), at(120))).starts_with("NoAgent"));
    let lost = patched(&patch, |pod| answered(pod, "Running", &json!({"stoppedAt": at(5)})));
    let working = decide(&object, Some(&lost), at(10)).status.unwrap();
    let state = &working.container_recreate_states[0];
    assert_eq!((state.phase, state.is_killed), (Some(RecreatePhase::Recreating), true));
    assert!(message(&decide(&object, Some(&lost), at(720))).starts_with("AgentLost"));
    assert!(message(&decide(&object, None, at(1))).contains("pod web-0 is gone"));
    assert!(message(&decide(&object, Some(&pod(|_| ())), at(1))).contains("the outcome is unknown"));
}

#[test]
fn a_completed_object_leaves_no_record_and_goes_when_its_time_is_over() {
    let patch = decide(&object(&json!({}), &json!({})), Some(&pod(|_| ())), at(0)).patch.unwrap();
    let status = json!({"phase": "Completed", "completionTime": at(9)});
    let completed = object(&json!({"ttlSecondsAfterFinished": 60}), &status);
    let done = patched(&patch, |pod| answered(pod, "Succeeded", &json!({})));
    let cleaned = decide(&completed, Some(&done), at(10));
    let removed = cleaned.patch.unwrap();
    assert_eq!(removed.annotations, [("inplace.dev/recreate-request".to_owned(), None)].into());
    assert_eq!(removed.labels, [("inplace.dev/recreate-request-uid".to_owned(), None)].into());
    assert_eq!((cleaned.status, cleaned.delete, cleaned.again), (None, false, Some(at(69))));
    // A request that no agent accepted goes with it; that of another client stays.
    let silent = decide(&completed, Some(&patched(&patch, |_| ())), at(10)).patch.unwrap();
    assert_eq!(silent.annotations["inplace.dev/request"], None);
    let foreign = patched(&patch, |pod| {
        pod["metadata"]["annotations"]["inplace.dev/request"] = json!("restart app #2");
    });
    assert!(!withdraw(&foreign, "u-1").annotations.contains_key("inplace.dev/request"));
    assert!(decide(&completed, None, at(69)).delete);
    assert!(
        !decide(&object(&json!({}), &status), None, at(999_999)).delete,
        "without a time to live it stays"
    );
}

#[test]
fn an_object_that_openkruise_serves_is_left_alone() {
    let mut served = object(&json!({}), &json!({}));
    served.kruise_label = Some("crr.apps.kruise.io/active".to_owned());
    let decision = decide(&served, Some(&pod(|_| ())), at(1));
    assert_eq!((decision.patch, decision.status), (None, None));
    assert_eq!(decision.event.unwrap().reason, "RecreateNotServed");
}

/// The writer of an object decides how long its names are, and how many there are.
#[test]
fn an_object_of_any_size_ends_with_a_small_status() {
    let many: Vec<_> = (0..400).map(|index| json!({"name": format!("c{index}")})).collect();
    let long: Vec<_> =
        (0..60).map(|index| json!({"name": format!("c{index}"), "x".repeat(50_000): 1})).collect();
    for (spec, words) in [
        (json!({"podName": "x".repeat(1_000_000), "containers": many}), "spec.podName: it is not a name"),
        (json!({"containers": many}), "spec.containers: name 1 to 64 containers"),
        (
            json!({"containers": [{"name": "x".repeat(1_000_000)}]}),
            "spec.containers[0].name: it is not a name",
        ),
        (json!({"containers": long}), "does not know the field"),
    ] {
        for pod in [None, Some(&pod(|_| ()))] {
            let decision = decide(&object(&spec, &json!({})), pod, at(1));
            let size = json!(decision.status).to_string().len();
            assert!(size < 100_000, "{size} bytes");
            let message = message(&decision);
            assert!(
                pod.is_none()
                    || message.len() <= 4096
                        && (message.contains(words) || spec["containers"] == json!(long)),
                "{message}"
            );
        }
    }
}

#[test]
fn the_end_of_another_object_is_recorded_before_its_pod_is_asked_again() {
    let first = decide(&object(&json!({}), &json!({})), Some(&pod(|_| ())), at(0)).patch.unwrap();
    let done = patched(&first, |pod| answered(pod, "Succeeded", &json!({"stoppedAt": at(1)})));
    let mut other = object(&json!({"containers": [{"name": "side"}]}), &json!({}));
    other.uid = "u-2".to_owned();
    let waits = decide(&other, Some(&done), at(2));
    assert_eq!((waits.patch, waits.status.unwrap().phase), (None, Some(RecreatePhase::Pending)));
    // Its controller may never come back.
    assert!(decide(&other, Some(&done), at(599)).patch.is_none());
    other.spec.active_deadline_seconds = Some(5000);
    assert!(decide(&other, Some(&done), at(800)).patch.is_some());
}

#[test]
fn a_pod_that_is_newer_than_the_object_is_not_the_one_that_was_asked_for() {
    let newer = pod(|pod| pod["metadata"]["creationTimestamp"] = json!(at(1)));
    let message = message(&decide(&object(&json!({}), &json!({})), Some(&newer), at(2)));
    assert!(message.contains("was created after this object"), "{message}");
    let same = pod(|pod| pod["metadata"]["creationTimestamp"] = json!(at(0)));
    assert!(decide(&object(&json!({}), &json!({})), Some(&same), at(2)).patch.is_some());
}

#[test]
fn an_object_works_on_its_own_pod_only() {
    let mut object = object(&json!({}), &json!({}));
    assert!(object.works_on("u-1", "web-0"));
    assert!(!object.works_on("u-2", "web-0") && !object.works_on("u-1", "web-1"), "its podName may change");
    object.kruise_label = Some("crr.apps.kruise.io/node-name".to_owned());
    assert!(!object.works_on("u-1", "web-0"), "OpenKruise serves it now");
}
