//! `spec.pod.order: StartFirst`: which pods are asked, what waits, and what follows from a refusal or from a standby that did
//! not prove itself.

use super::*;
use crate::api::annotation;
use crate::api::request::{Order, PreHookPhase, Request};

fn start_first(more: &Value) -> Value {
    let mut spec = json!({"pod": {"order": "StartFirst"}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

fn orders(decision: &Decision) -> Vec<(&str, Order)> {
    let begins = decision.writes.iter().filter(|write| matches!(write.what, What::Begin(_)));
    let order = |text: &Option<String>| Request::parse(text.as_deref()).unwrap().unwrap().order;
    begins
        .map(|write| (write.pod.name.as_str(), order(&write.patch.annotations[annotation::REQUEST])))
        .collect()
}

/// Makes the pod not Ready because of its container.
fn unready(pod: &mut Value, state: &Value) {
    ready(pod, false, at(0));
    pod["status"]["containerStatuses"] = json!([{"name": "app", "ready": false, "state": state, "restartCount": 0, "image": "", "imageID": ""}]);
}

#[test]
fn a_container_that_runs_and_is_not_ready_is_waited_for() {
    let mut pods: Vec<_> = (0..3).map(pod).collect();
    unready(&mut pods[0], &json!({"running": {}}));
    unready(&mut pods[1], &json!({"waiting": {"reason": "CrashLoopBackOff"}}));
    let spec = start_first(&json!({"maxUnavailable": 3, "containers": [{"name": "app", "image": "app:2"}],
        "allowTemplateDrift": true}));
    let decision = reconcile(&spec, &pods, &[], 1);
    assert_eq!(orders(&decision), [("web-1", Order::StopFirst), ("web-2", Order::StartFirst)]);
    assert!(
        decision.status.message.contains("waiting for 1 pods whose container runs"),
        "{}",
        decision.status.message
    );
    pods.truncate(1);
    let decision = reconcile(&spec, &pods, &[], 1);
    assert!(begun(&decision).is_empty(), "{:?}", decision.writes);
    assert_eq!((decision.status.phase, &*decision.status.reason), (RolloutPhase::Running, "PodsUnavailable"));
    ready(&mut pods[0], true, at(2));
    pods[0]["status"]["containerStatuses"][0]["ready"] = json!(true);
    assert_eq!(orders(&reconcile(&spec, &pods, &[], 3)), [("web-0", Order::StartFirst)]);
}

/// The spec alone cannot ask for that: every agent would refuse it.
#[test]
fn a_pod_that_waits_for_its_start_has_no_hook_at_the_handover() {
    let mut pods: Vec<_> = (0..2).map(pod).collect();
    unready(&mut pods[0], &json!({"waiting": {"reason": "CrashLoopBackOff"}}));
    let hook = json!({"templateName": "warm", "phase": "Handover"});
    let spec = json!({"pod": {"order": "StartFirst", "preHook": hook}, "maxUnavailable": 2});
    let decision = reconcile(&spec, &pods, &[], 1);
    let requests = decision.writes.iter().map(|write| {
        let text = write.patch.annotations[annotation::REQUEST].as_deref();
        let request = Request::parse(text).unwrap().unwrap();
        (request.order, request.pre_hook.map(|hook| (hook.template_name, hook.phase)))
    });
    let warm = ("warm".to_owned(), PreHookPhase::Handover);
    assert_eq!(requests.collect::<Vec<_>>(), [(Order::StopFirst, None), (Order::StartFirst, Some(warm))]);
    let stop_first = json!({"pod": {"preHook": hook}});
    let problems = check::spec(&rollout(&stop_first).spec);
    assert!(problems[0].starts_with("spec.pod.preHook.phase: Handover requires"), "{problems:?}");
}

/// Nothing was touched, and the pod is never asked again. The threshold and a pause hold for it as for any other failure.
#[test]
fn a_refusal_or_a_standby_that_ended_is_a_failure_with_the_reason_of_the_agent() {
    for (phase, step, reason) in
        [("Refused", None, "CannotStartFirst"), ("Failed", Some("Standby"), "NotStartedBeside")]
    {
        let mut pods: Vec<_> = (0..2).map(pod).collect();
        let order = reconcile(&start_first(&json!({})), &pods, &[], 1);
        assert_eq!(orders(&order), [("web-0", Order::StartFirst)]);
        apply(&mut pods[0], &order.writes[0]);
        say(&mut pods[0], phase, step);
        let said = pods[0]["metadata"]["annotations"]["inplace.dev/status"].as_str().unwrap();
        let said = said.replace(r#""reason":"""#, &format!(r#""reason":"{reason}""#));
        pods[0]["metadata"]["annotations"]["inplace.dev/status"] = json!(said);
        let end = reconcile(&start_first(&json!({})), &pods, &[], 2);
        let failure = &end.status.failures[0];
        assert_eq!((&*failure.reason, &*failure.message), (phase, &*format!("{reason}: said")));
        assert!(end.events.iter().any(|event| event.message.contains(reason)), "{:?}", end.events);
        assert_eq!(end.status.reason, "FailureThreshold");
        assert!(begun(&end).is_empty());
        apply(&mut pods[0], &end.writes[0]);
        let more = |spec: Value| orders(&reconcile(&start_first(&spec), &pods, &[], 3)).len();
        assert_eq!(more(json!({"failureThreshold": 2})), 1, "the other pod");
        assert_eq!(more(json!({"failureThreshold": 2, "paused": true})), 0);
    }
}

#[test]
fn what_every_agent_would_refuse_is_refused_at_admission() {
    let problems = |more: Value| check::spec(&rollout(&more).spec);
    assert_eq!(problems(start_first(&json!({}))), Vec::<String>::new());
    let several = problems(start_first(&json!({"containers": [{"name": "app"}, {"name": "side"}]})));
    assert!(several[0].starts_with("spec.pod.order: one container at a time"), "{several:?}");
    let stop = problems(json!({"pod": {"order": "StartFirst", "engine": "Stop"}}));
    assert!(stop[0].starts_with("spec.pod.order: the engine Stop"), "{stop:?}");
    assert!(problems(json!({"containers": [{"name": "app"}, {"name": "side"}]})).is_empty());
    let grace = json!({"terminationGracePeriodSeconds": 5});
    assert!(problems(json!({"pod": grace})).is_empty());
    for by_kubelet in [
        json!({"pod": {"terminationGracePeriodSeconds": 5, "engine": "Respec"}}),
        json!({"pod": grace, "containers": [{"name": "app", "image": "a:2"}]}),
    ] {
        let refused = problems(by_kubelet);
        assert!(refused[0].starts_with("spec.pod.terminationGracePeriodSeconds: the kubelet"), "{refused:?}");
    }
}
