//! Tests of each decision of the guard and of its causes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::*;
use crate::api::hook_run::HookRunStatus;

const NOW: &str = "2026-03-01T12:00:00Z";

/// A running guarded pod, merged with `more`.
fn pod(more: &Value) -> core::Pod {
    let mut pod = json!({
        "metadata": {"namespace": "shop", "name": "web-0", "uid": "1234-56789", "labels": {"inplace.dev/delete-guard": "true"},
            "annotations": {"inplace.dev/pre-delete-hook": "drain"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "app:1"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7", "hostIP": "10.0.0.1"},
    });
    merge(&mut pod, more);
    serde_json::from_value(pod).unwrap()
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

fn note(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {format!("inplace.dev/{key}"): value}}})
}

/// The name that the guard gives a run; any name for other runs.
fn name_of(attempt_owner: &str) -> String {
    let parts: Vec<_> = attempt_owner.split('/').collect();
    match parts.as_slice() {
        ["DeleteGuard", template, "", number] => {
            format!("pre-delete-hook-web-0-12345678-{template}-{number}")
        }
        ["DeleteGuard", template, retry, number] => {
            format!("pre-delete-hook-web-0-12345678-{template}-{retry}-{number}")
        }
        _ => attempt_owner.replace('/', "-"),
    }
}

/// A run of the guard, or of the workload that `attempt_owner` names.
fn attempt(attempt_owner: &str, phase: Option<&str>, ended: &str, more: &Value) -> Attempt {
    let owner = if attempt_owner.starts_with("DeleteGuard") {
        json!({"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "1234-56789"})
    } else {
        json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "web", "uid": "w", "controller": true})
    };
    let mut meta = json!({"name": name_of(attempt_owner), "creationTimestamp": "2026-03-01T11:00:00Z",
        "labels": {"inplace.dev/node": "n1"}, "ownerReferences": [owner],
        "annotations": {"inplace.dev/task": attempt_owner, "inplace.dev/pod-uid": "1234-56789"}});
    merge(&mut meta, more);
    let measured =
        json!([{"phase": "Successful", "startedAt": ended, "finishedAt": ended, "value": "a secret"}]);
    let status = json!({"phase": phase, "message": "so it is", "metricResults": [{"name": "webtest", "phase": "Running",
        "successful": 2, "failed": 1, "error": 3, "measurements": measured}]});
    let (meta, status): (ObjectMeta, HookRunStatus) =
        (serde_json::from_value(meta).unwrap(), serde_json::from_value(status).unwrap());
    Attempt::read(&meta, &status).unwrap()
}

fn decided(pod: &core::Pod, attempts: &[Attempt]) -> Verdict {
    let (namespace, now) = (Namespace::default(), NOW.parse().unwrap());
    decide(&GuardInput {
        pod,
        of_owner: None,
        attempts: attempts.to_vec(),
        namespace,
        longest_hold: None,
        now,
    })
}

/// The message of a refusal; any other verdict fails the test.
fn held(verdict: Verdict) -> String {
    match verdict {
        Verdict::Held(_, message) => message,
        other => panic!("{other:?}"),
    }
}

fn ask(verdict: Verdict) -> (NewHookRun, Option<String>) {
    match verdict {
        Verdict::StartHook(run, why) => (*run, why),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_with_the_label_is_guarded_until_it_has_ended() {
    assert!(is_guarded(&pod(&json!({}))));
    let pending = |init: Value, app: Value| {
        let status = |name: &str, more: Value| {
            let mut one =
                json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0});
            merge(&mut one, &more);
            one
        };
        json!({"status": {"phase": "Pending", "initContainerStatuses": [status("init", init)],
            "containerStatuses": [status("app", app)]}})
    };
    let waits = || json!({"state": {"waiting": {"reason": "ImagePullBackOff"}}});
    for guarded in [
        json!({"status": {"phase": "Pending"}}),
        pending(json!({"state": {"running": {}}}), waits()),
        pending(json!({"state": {"terminated": {"exitCode": 0}}}), waits()),
        pending(waits(), json!({"state": waits()["state"], "lastState": {"terminated": {"exitCode": 1}}})),
        pending(waits(), json!({"state": waits()["state"], "restartCount": 1})),
    ] {
        assert!(is_guarded(&pod(&guarded)), "it has begun to start, or nothing is known: {guarded}");
    }
    let never_ran = pending(waits(), waits());
    assert!(!is_guarded(&pod(&never_ran)), "its image cannot be pulled");
    for exempt in [
        json!({"metadata": {"labels": {"inplace.dev/delete-guard": "false"}}}),
        json!({"metadata": {"labels": null}}),
        json!({"metadata": {"deletionTimestamp": NOW}}),
        json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
        json!({"status": {"phase": "Succeeded"}}),
        json!({"status": {"phase": "Failed"}}),
        json!({"spec": {"nodeName": null}}),
        json!({"spec": {"nodeName": ""}}),
    ] {
        assert!(!is_guarded(&pod(&exempt)), "{exempt}");
    }
}

#[test]
fn the_first_who_asks_has_the_hook_started_and_it_is_always_the_same_one() {
    let pod = pod(&json!({}));
    let (run, why) = ask(decided(&pod, &[]));
    assert_eq!((run.name.as_str(), why), ("pre-delete-hook-web-0-12345678-drain-1", None));
    assert_eq!((run.template.as_str(), run.node.as_deref()), ("drain", Some("n1")));
    assert_eq!(run.labels["hookrun-type"], "pre-delete-step");
    assert_eq!(run.labels["instance-id"], instance(&pod));
    let args: Vec<_> = run.args.iter().map(|arg| format!("{}={}", arg.name, arg.value)).collect();
    let expected =
        ["PodName=web-0", "PodNamespace=shop", "PodIP=10.0.0.7", "HostIP=10.0.0.1", "PodContainer[0]=app"];
    assert_eq!(args, expected);
    assert_eq!(ask(decided(&pod, &[])).0, run);
    // The run that was created is read back as an attempt of this pod.
    let meta = json!({"name": run.name, "annotations": run.annotations, "labels": {"inplace.dev/node": run.node},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "1234-56789"}]});
    let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
    let mut made = Attempt::read(&meta, &HookRunStatus::default()).unwrap();
    let reported = held(decided(&pod, std::slice::from_ref(&made)));
    assert!(
        reported.contains(&run.name)
            && reported.contains("Pending")
            && reported.contains("nothing measured yet")
    );
    made.deleting = true;
    assert!(held(decided(&pod, &[made])).contains("is being deleted"));
}

#[test]
fn a_hook_lets_its_pod_go_when_it_has_succeeded_and_for_a_while() {
    let pod = pod(&json!({}));
    let key = "DeleteGuard/drain//1";
    let going = attempt(key, Some("Running"), "2026-03-01T11:59:00Z", &json!({}));
    let reported = held(decided(&pod, &[going]));
    for part in [
        "web-0",
        "pre-delete-hook-web-0-12345678-drain-1",
        "Running since 2026-03-01T11:00:00Z",
        "webtest",
        "2 successful, 1 failed",
    ] {
        assert!(reported.contains(part), "{part}: {reported}");
    }
    assert!(!reported.contains("a secret"), "{reported}");
    let passed = attempt(key, Some("Successful"), "2026-03-01T11:50:01Z", &json!({}));
    let verdict = decided(&pod, &[passed]);
    assert!(
        matches!(&verdict, Verdict::Passed(run, _) if run == "pre-delete-hook-web-0-12345678-drain-1"),
        "{verdict:?}"
    );
    let stale = attempt(key, Some("Successful"), "2026-03-01T11:50:00Z", &json!({}));
    let (run, why) = ask(decided(&pod, std::slice::from_ref(&stale)));
    assert!(run.name.ends_with("-drain-2") && why.as_ref().unwrap().contains("11:50:00"), "{run:?} {why:?}");
    // Runs for another pod, another template or an update in place do not count.
    for stranger in [
        attempt(key, Some("Successful"), NOW, &json!({"annotations": {"inplace.dev/pod-uid": "other"}})),
        attempt("DeleteGuard/other//1", Some("Successful"), NOW, &json!({})),
        attempt("ScaleIn//1", Some("Successful"), NOW, &json!({})),
    ] {
        assert_eq!(ask(decided(&pod, &[stranger])).0.name, "pre-delete-hook-web-0-12345678-drain-1");
    }
    assert_eq!(Attempt::read(&ObjectMeta::default(), &HookRunStatus::default()), None);
    // A person's approval is valid for this pod even if the hook has failed.
    let by_hand = json!({"annotations": {"inplace.dev/approve": "true"}});
    for phase in [None, Some("Failed"), Some("Successful")] {
        let approved = attempt(key, phase, "2026-03-01T10:00:00Z", &by_hand);
        assert!(matches!(decided(&pod, &[approved]), Verdict::Passed(..)), "{phase:?}");
    }
}

#[test]
fn a_hook_that_failed_holds_until_a_person_says_something() {
    let key = "DeleteGuard/drain//1";
    for phase in ["Failed", "Error", "Inconclusive"] {
        let failed = attempt(key, Some(phase), "2026-03-01T11:00:00Z", &json!({}));
        let reported = held(decided(&pod(&json!({})), std::slice::from_ref(&failed)));
        let parts = [phase, "so it is", "delete-guard-retry=", "delete-guard-override=", "-n shop"];
        assert!(parts.iter().all(|part| reported.contains(part)), "{reported}");
        // Exactly one new attempt for each new value of the retry annotation.
        let retried = pod(&note("delete-guard-retry", "again 1"));
        let (run, why) = ask(decided(&retried, std::slice::from_ref(&failed)));
        assert_eq!(
            (ask(decided(&retried, std::slice::from_ref(&failed))).0.name, why),
            (run.name.clone(), None)
        );
        let again = attempt(&run.annotations["inplace.dev/task"], Some("Failed"), NOW, &json!({}));
        held(decided(&retried, &[failed.clone(), again.clone()]));
        let (third, _) = ask(decided(&pod(&note("delete-guard-retry", "again 2")), &[failed.clone(), again]));
        assert_ne!(third.name, run.name);
        // While an attempt is running, a retry starts no second one.
        let going = attempt(key, Some("Running"), NOW, &json!({}));
        held(decided(&retried, &[going]));
        let overridden = pod(&note("delete-guard-override", " it burns "));
        assert_eq!(decided(&overridden, &[failed]), Verdict::Overridden("pod", "it burns".to_owned()));
    }
    ask(decided(&pod(&note("delete-guard-override", " ")), &[]));
}

#[test]
fn the_hook_of_the_workload_counts_and_so_does_its_own_run() {
    let owned = |kind: &str, version: &str| {
        pod(&json!({"metadata": {"annotations": null, "ownerReferences":
            [{"apiVersion": version, "kind": kind, "name": "web", "uid": "w", "controller": true}]}}))
    };
    let ours = owned("GameDeployment", "tkex.tencent.com/v1alpha1");
    assert_eq!(owner(&ours), Some(("GameDeployment", "web")));
    assert_eq!(owner(&owned("GameDeployment", "other/v1")), None);
    assert_eq!(owner(&owned("ReplicaSet", "apps/v1")), None);
    assert_eq!(owner(&pod(&json!({}))), None, "what the pod names itself comes first");
    assert!(held(decided(&ours, &[])).contains("inplace.dev/pre-delete-hook=TEMPLATE"));
    let with = |attempts: &[Attempt]| {
        let hook = WorkloadHook { template_name: "leave".to_owned(), args: Vec::new() };
        let (namespace, now) = (Namespace::default(), NOW.parse().unwrap());
        let attempts = attempts.to_vec();
        decide(&GuardInput { pod: &ours, of_owner: Some(hook), attempts, namespace, longest_hold: None, now })
    };
    assert_eq!(ask(with(&[])).0.template, "leave");
    for attempt_owner in ["ScaleIn//1", "Recreate/web-2/4"] {
        assert!(matches!(
            with(&[attempt(attempt_owner, Some("Successful"), NOW, &json!({}))]),
            Verdict::Passed(..)
        ));
        held(with(&[attempt(attempt_owner, Some("Running"), NOW, &json!({}))]));
    }
    let meta = json!({"name": "x", "annotations": {"inplace.dev/task": "InPlace/web-2/4", "inplace.dev/pod-uid": "u"}});
    let in_place = Attempt::read(&serde_json::from_value(meta).unwrap(), &HookRunStatus::default());
    assert_eq!(in_place, None, "an update in place is no deletion");
}

#[test]
fn a_namespace_that_goes_has_a_way_out() {
    let pod = pod(&json!({}));
    let within = |namespace: Namespace, attempts: &[Attempt]| {
        let now = NOW.parse().unwrap();
        let attempts = attempts.to_vec();
        decide(&GuardInput { pod: &pod, of_owner: None, attempts, namespace, longest_hold: None, now })
    };
    let going = Namespace { terminating: Some(NOW.parse().unwrap()), ..Namespace::default() };
    let reported = held(within(going.clone(), &[]));
    assert!(
        reported.contains("kubectl annotate namespace shop inplace.dev/delete-guard-override=REASON"),
        "{reported}"
    );
    assert_eq!(reported, terminating(&pod));
    let passed = attempt("DeleteGuard/drain//1", Some("Successful"), NOW, &json!({}));
    assert!(matches!(within(going.clone(), &[passed]), Verdict::Passed(..)));
    let overridden = Namespace { overridden: Some("all over".to_owned()), ..going };
    assert_eq!(within(overridden, &[]), Verdict::Overridden("namespace", "all over".to_owned()));
}

#[test]
fn only_what_the_controller_made_for_this_very_pod_counts() {
    let pod = pod(&json!({}));
    let key = "DeleteGuard/drain//1";
    let owner = |more: &Value| {
        let mut owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "1234-56789"});
        merge(&mut owner, more);
        json!({"ownerReferences": [owner]})
    };
    for other in [
        json!({"name": "by-hand"}),
        json!({"labels": {"inplace.dev/node": "n2"}}),
        json!({"labels": null}),
        json!({"ownerReferences": null}),
        owner(&json!({"uid": "other"})),
        owner(&json!({"name": "web-1"})),
        owner(&json!({"kind": "Job"})),
    ] {
        let passed = attempt(key, Some("Successful"), NOW, &other);
        assert!(matches!(decided(&pod, &[passed]), Verdict::StartHook(..)), "{other}");
    }
    let one = owner(&json!({}))["ownerReferences"][0].clone();
    let two = json!({"ownerReferences": [one, one]});
    assert!(matches!(decided(&pod, &[attempt(key, Some("Successful"), NOW, &two)]), Verdict::StartHook(..)));
    let meta = json!({"name": "x", "labels": {"inplace.dev/operation": "id", "inplace.dev/node": "n1"},
        "annotations": {"inplace.dev/task": key, "inplace.dev/pod-uid": "1234-56789", "inplace.dev/approve": "true"}});
    let shown = Attempt::read(&serde_json::from_value(meta).unwrap(), &HookRunStatus::default());
    assert_eq!(shown, None, "a hook of an operation is none of a deletion");
    assert!(matches!(
        decided(&pod, &[attempt(key, Some("Successful"), NOW, &json!({}))]),
        Verdict::Passed(..)
    ));
}

#[test]
fn a_pod_is_held_no_longer_than_it_may_be() {
    let pod = pod(&json!({}));
    let within = |longest: Option<i64>, namespace: Namespace, attempts: &[Attempt]| {
        let (attempts, now) = (attempts.to_vec(), NOW.parse().unwrap());
        let longest_hold = longest.map(SignedDuration::from_mins);
        decide(&GuardInput { pod: &pod, of_owner: None, attempts, namespace, longest_hold, now })
    };
    let key = "DeleteGuard/drain//1";
    // Created an hour ago.
    for phase in ["Running", "Failed"] {
        let run = attempt(key, Some(phase), NOW, &json!({}));
        let since = "2026-03-01T11:00:00Z".parse().unwrap();
        assert_eq!(
            within(Some(60), Namespace::default(), std::slice::from_ref(&run)),
            Verdict::Expired(since)
        );
        held(within(Some(61), Namespace::default(), std::slice::from_ref(&run)));
        held(within(None, Namespace::default(), &[run]));
    }
    // No hook was started yet; what passed before this deletion does not count.
    ask(within(Some(1), Namespace::default(), &[]));
    let passed = attempt(key, Some("Successful"), "2026-03-01T11:00:00Z", &json!({}));
    ask(within(Some(1), Namespace::default(), &[passed]));
    let foreign = attempt(key, Some("Running"), NOW, &json!({"labels": {"inplace.dev/node": "n2"}}));
    ask(within(Some(1), Namespace::default(), &[foreign]));
    let going =
        Namespace { terminating: Some("2026-03-01T11:59:00Z".parse().unwrap()), ..Namespace::default() };
    assert!(matches!(within(Some(1), going.clone(), &[]), Verdict::Expired(_)));
    held(within(Some(2), going, &[]));
}

#[test]
fn a_hold_counts_from_the_first_refusal_that_the_controller_wrote() {
    let key = "DeleteGuard/drain//1";
    let held_at = |at: &str, more: &Value| {
        let mut condition =
            json!({"type": "inplace.dev/DeleteGuardHeld", "status": "True", "lastTransitionTime": at});
        merge(&mut condition, more);
        pod(&json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, condition]}}))
    };
    let decided_for = |pod: &core::Pod, longest: Option<i64>, attempts: &[Attempt]| {
        let (attempts, now) = (attempts.to_vec(), NOW.parse().unwrap());
        let (longest_hold, namespace) = (longest.map(SignedDuration::from_mins), Namespace::default());
        let seen = GuardInput { pod, of_owner: None, attempts, namespace, longest_hold, now };
        let verdict = decide(&seen);
        let begins = begins(&seen, &verdict);
        (verdict, begins)
    };
    // Refused an hour ago; no hook was ever started.
    let since: Timestamp = "2026-03-01T11:00:00Z".parse().unwrap();
    let held = held_at("2026-03-01T11:00:00Z", &json!({}));
    assert_eq!(decided_for(&held, Some(60), &[]), (Verdict::Expired(since), false));
    assert!(matches!(decided_for(&held, Some(61), &[]), (Verdict::StartHook(..), false)));
    assert!(matches!(decided_for(&held, None, &[]), (Verdict::StartHook(..), false)), "no hold is limited");
    // The condition is missing or different.
    for other in [
        pod(&json!({})),
        held_at("2026-03-01T11:00:00Z", &json!({"status": "False"})),
        held_at("2026-03-01T11:00:00Z", &json!({"type": "Held"})),
        held_at("2026-03-01T11:00:00Z", &json!({"lastTransitionTime": null})),
    ] {
        assert!(matches!(decided_for(&other, Some(60), &[]), (Verdict::StartHook(..), true)), "{other:?}");
        assert!(!decided_for(&other, None, &[]).1);
    }
    // A hook that passed after that belongs to another deletion.
    let passed = attempt(key, Some("Successful"), "2026-03-01T11:30:00Z", &json!({}));
    assert!(matches!(
        decided_for(&held, Some(60), std::slice::from_ref(&passed)),
        (Verdict::StartHook(..), true)
    ));
    let later = held_at("2026-03-01T11:31:00Z", &json!({}));
    assert!(matches!(
        decided_for(&later, Some(60), std::slice::from_ref(&passed)),
        (Verdict::StartHook(..), false)
    ));
    assert!(matches!(decided_for(&later, Some(29), &[passed]), (Verdict::Expired(_), false)));
    // A released pod is not held.
    let fresh = attempt(key, Some("Successful"), NOW, &json!({}));
    assert!(matches!(decided_for(&pod(&json!({})), Some(60), &[fresh]), (Verdict::Passed(..), false)));
}

#[test]
fn a_run_under_another_number_is_the_guards_as_well() {
    let retried = pod(&note("delete-guard-retry", "again"));
    for pod in [pod(&json!({})), retried] {
        let (run, _) = ask(decided(&pod, &[]));
        let next = renumbered(&pod, &run, None).unwrap();
        let far = renumbered(&pod, &next, Some(1_234_567)).unwrap();
        for (run, number) in [(&next, "2"), (&far, "1234567")] {
            assert!(run.name.ends_with(&format!("-{number}")), "{}", run.name);
            let meta = json!({"name": run.name, "annotations": run.annotations, "labels": {"inplace.dev/node": run.node},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": "1234-56789"}]});
            let meta: ObjectMeta = serde_json::from_value(meta).unwrap();
            let made = super::attempt(&pod, &meta, &HookRunStatus::default()).unwrap();
            assert!(held(decided(&pod, &[made])).contains(&run.name));
        }
    }
}
