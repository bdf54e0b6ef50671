//! Unit tests of `preflight`: every refusal with its reason and its advice.

use super::*;
use crate::operation::fixtures::situation_in_cluster;
use crate::operation::fixtures::{ask, find, instance, pod, pod_in_cluster, situation, source};

#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn every_refusal_has_its_word_and_says_what_to_change() {
    type Change = fn(&mut Situation);
    fn keep(_: &mut Situation) {}
    let cases: [(&str, Change, &str, &str); 21] = [
        ("restart App", keep, "InvalidRequest", "`App` is not a container name"),
        ("restart app", |s| s.snapshot.sandbox = None, "PodNotFound", "no pod"),
        (
            "restart app",
            |s| s.snapshot.sandbox.iter_mut().for_each(|b| b.ready = false),
            "SandboxNotReady",
            "not ready",
        ),
        (
            r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":5}"#,
            keep,
            "NoReadinessGate",
            "remove gracePeriodSeconds",
        ),
        (
            r#"{"containers":[{"name":"app"}],"preHook":{"templateName":"t"}}"#,
            keep,
            "HooksUnavailable",
            "preHook is set",
        ),
        (
            r#"{"containers":[{"name":"app"}],"postHook":{"templateName":"t"}}"#,
            keep,
            "HooksUnavailable",
            "postHook is set",
        ),
        (
            r#"{"containers":[{"name":"app"}],"engine":"Respec"}"#,
            keep,
            "EngineUnavailable",
            "needs an API server",
        ),
        (
            r#"{"containers":[{"name":"app"}],"engine":"Stop"}"#,
            keep,
            "EngineUnavailable",
            "would start the container again",
        ),
        ("restart app", |s| s.runtime.name = "cri-o".into(), "RuntimeUnsupported", "containerd only"),
        ("restart db", keep, "UnknownContainer", "no container db; it has app, side"),
        (
            "restart app",
            |s| find(&mut s.snapshot, "app-2").state = State::Exited,
            "NotRunning",
            "remove the pod and run it again",
        ),
        (
            "restart app",
            |s| s.snapshot.containers.push(instance("app", 3, State::Running)),
            "Duplicate",
            "2 containers named app",
        ),
        (
            "swap app=repo/app:v2",
            |s| s.snapshot.sandbox.iter_mut().for_each(|b| b.owner = Owner::Kubelet),
            "KubeletNamesImages",
            "swap the image there",
        ),
        (
            "swap app=repo/app:v2",
            |s| s.snapshot.sandbox.iter_mut().for_each(|b| b.owner = Owner::KubeletStatic),
            "KubeletNamesImages",
            "manifest",
        ),
        ("restart app", |s| s.sources.clear(), "NotCloneable", "did not report"),
        (
            "restart side",
            |s| {
                s.sources
                    .insert("side".into(), Source { not_cloneable: Some("field 99".into()), ..source() });
            },
            "NotCloneable",
            "field 99",
        ),
        (
            "restart app",
            |s| {
                s.sources.insert("app".into(), Source { image_present: false, ..source() });
            },
            "ImageMissing",
            "repo/app:v1",
        ),
        (
            r#"{"containers":[{"name":"app"}],"deadlineSeconds":36}"#,
            keep,
            "DeadlineTooShort",
            "may take 37 s",
        ),
        (
            r#"{"containers":[{"name":"app"}],"deadlineSeconds":38,"minReadySeconds":2}"#,
            keep,
            "DeadlineTooShort",
            "may take 39 s",
        ),
        (
            r#"{"containers":[{"name":"app","image":"a:v2"}],"deadlineSeconds":55}"#,
            keep,
            "DeadlineTooShort",
            "may take 56 s",
        ),
        (
            r#"{"containers":[{"name":"app"},{"name":"side"}],"deadlineSeconds":68}"#,
            keep,
            "DeadlineTooShort",
            "may take 69 s",
        ),
    ];
    for (text, change, reason, says) in cases {
        let mut situation = situation(pod(Owner::Nobody));
        change(&mut situation);
        let refusal = ask(text, &situation).unwrap_err();
        assert_eq!(refusal.reason(), reason, "{text}");
        assert!(refusal.to_string().contains(says), "{text}: {refusal}");
    }
}

#[test]
fn what_the_api_server_shows_can_stand_in_the_way() {
    type Change = fn(&mut Declared);
    let drained = r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":20,"deadlineSeconds":57}"#;
    let swapped =
        r#"{"containers":[{"name":"app","image":"a:v2"}],"gracePeriodSeconds":20,"deadlineSeconds":98}"#;
    let (short, keep): (_, Change) = (drained.replace("57", "56"), |_| {});
    let confirmed = r#"{"containers":[{"name":"app"}],"drain":"Confirmed"}"#;
    let cases: [(&str, Change, &str, &str); 9] = [
        ("restart app", keep, "", ""),
        ("restart app", |it| it.deleting = true, "Deleting", "is being deleted"),
        (drained, keep, "", ""),
        (drained, |it| it.gate = Gate::Unset, "", ""),
        (drained, |it| it.gate = Gate::Absent, "NoReadinessGate", "add the gate to the pod's template"),
        (confirmed, keep, "", ""),
        (confirmed, |it| it.gate = Gate::Absent, "NoReadinessGate", "remove drain, or add the gate"),
        // The required time includes the drain.
        (&short, keep, "DeadlineTooShort", "may take 57 s"),
        (swapped, keep, "", ""),
    ];
    for (text, change, reason, says) in cases {
        let mut situation = situation(pod_in_cluster());
        change(situation.snapshot.declared.as_mut().unwrap());
        match ask(text, &situation) {
            Ok(_) => assert_eq!(reason, "", "{text}"),
            Err(refusal) => {
                assert_eq!(refusal.reason(), reason, "{text}: {refusal}");
                assert!(refusal.to_string().contains(says), "{text}: {refusal}");
            }
        }
    }
}

#[test]
fn what_is_admitted_gets_an_attempt_above_all_that_the_name_has_seen() {
    let mut situation = situation(pod(Owner::Kubelet));
    situation.snapshot.containers.push(instance("app", 7, State::Created));
    let (.., targets, _) = ask("restart app,side", &situation).unwrap().into_parts();
    assert_eq!(targets.iter().map(|target| target.next_attempt).collect::<Vec<_>>(), [8, 3]);
}

#[test]
fn the_shortest_deadline_that_is_admitted_leaves_time_to_begin() {
    for (text, admitted) in [
        (r#"{"containers":[{"name":"app"}],"deadlineSeconds":37}"#, 5),
        (r#"{"containers":[{"name":"app","image":"a:v2"}],"deadlineSeconds":56}"#, 5),
        (r#"{"containers":[{"name":"app","image":"a:v2"}],"deadlineSeconds":600,"minReadySeconds":520}"#, 6),
    ] {
        let operation = crate::operation::fixtures::Bench::new(text, pod(Owner::Nobody)).operation;
        let left = operation.touch_until().duration_since(operation.begun_at).as_secs();
        assert_eq!(left, admitted, "{text}");
    }
}

/// The pod gives its containers 30 s to stop.
#[test]
fn the_grace_period_of_a_request_takes_the_place_of_the_pods() {
    let restart = |own: &str| format!(r#"{{"containers":[{{"name":"app"}}],"deadlineSeconds":60{own}}}"#);
    let own = |seconds: u32| restart(&format!(r#","terminationGracePeriodSeconds":{seconds}"#));
    for (text, seconds) in [(restart(""), 30), (own(30), 30), (own(5), 5), (own(0), 0), (own(40), 40)] {
        let operation = crate::operation::fixtures::Bench::new(&text, pod(Owner::Kubelet)).operation;
        assert_eq!(operation.targets[0].grace_seconds, seconds, "{text}");
    }
    let long = ask(&own(59), &situation(pod(Owner::Kubelet))).unwrap_err().to_string();
    assert!(long.contains("may take 66 s"), "{long}");
}

#[test]
fn what_the_spec_does_not_declare_is_refused_in_a_cluster() {
    for text in
        ["restart setup", "swap setup=repo/app:v2", r#"{"containers":[{"name":"app"},{"name":"setup"}]}"#]
    {
        for state in [State::Running, State::Exited] {
            let mut snapshot = pod_in_cluster();
            snapshot.containers.push(instance("setup", 0, state));
            let refusal = ask(text, &situation_in_cluster(snapshot)).unwrap_err();
            assert_eq!(refusal.reason(), "UndeclaredContainer", "{text}: {refusal}");
            assert!(refusal.to_string().contains("can be replaced in place: app"), "{refusal}");
        }
    }
    // Without an API server the kind of the container is unknown.
    let mut snapshot = pod(Owner::NodeRun);
    snapshot.containers.push(instance("setup", 0, State::Running));
    let mut situation = situation(snapshot);
    situation.sources.insert("setup".into(), source());
    ask("restart setup", &situation).unwrap();
}
