//! Hooks in a rollout: each pod must pass its own.

use serde_json::{Value, json};

use super::{Fixture, Load};
use crate::{support::hook_server::HookServer, support::wait::eventually};

/// A metric that requests the pod's name from the test server.
pub(super) fn asks(fixture: &Fixture<'_>, hook_server: &HookServer) -> Value {
    let url = format!("http://{}:{}/{{{{ args.PodName }}}}", fixture.cluster.node().ip, hook_server.port);
    json!({"name": "asks", "interval": "1s", "successCondition": "asInt(result) == 1",
        "provider": {"web": {"url": url, "jsonPath": "{$.done}"}}})
}

/// A metric that succeeds when the command succeeds in the pod's container.
fn runs(command: &[&str]) -> Value {
    json!({"name": "runs", "provider": {"exec": {"container": "app", "command": command}}})
}

pub(super) fn template(fixture: &Fixture<'_>, name: &str, metrics: &[Value]) {
    let template = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"metrics": metrics}});
    fixture.cluster.apply(&template.to_string());
}

pub(super) fn each_pod_passes_its_hooks_before_and_after(fixture: &Fixture<'_>) {
    let hook_server = HookServer::open();
    let mut polls = asks(fixture, &hook_server);
    polls["successfulLimit"] = 1.into();
    // The file that the first hook creates in the old container does not exist in the new one.
    template(fixture, "leave", &[polls, runs(&["touch", "/left"])]);
    template(fixture, "return", &[runs(&["test", "!", "-e", "/left"])]);
    let load = Load { fixture, kind: "Deployment", name: "hooked" };
    load.apply(2, false);
    let before = load.pods();
    let hooks = ["--pre-hook", "leave", "--post-hook", "return"];
    let name = fixture.begin(&[&["restart", "deploy/hooked", "--max-unavailable", "1"][..], &hooks].concat());
    let follower = fixture.follow(&name, 2);
    let asked = || before.keys().filter(|pod| !hook_server.queries(pod).is_empty()).count();
    eventually("one of them is asked for again", || {
        before.keys().any(|pod| hook_server.queries(pod).len() > 1).then_some(())
    });
    assert_eq!(asked(), 1, "one at a time");
    load.same_but_restarted(&before, 0);
    for pod in before.keys() {
        hook_server.say(pod, 1);
    }
    let (code, reported) = follower.end();
    assert_eq!(code, Some(0), "{reported}");
    assert_eq!(asked(), 2);
    load.same_but_restarted(&before, 1);

    // At the handover the hook runs in the standby: in the old containers it would fail.
    for pod in before.keys() {
        fixture.cluster.kubectl(&["exec", pod, "--", "touch", "/left"]);
    }
    let hooks = ["--order", "start-first", "--handover-hook", "return"];
    fixture.through(&[&["restart", "deploy/hooked"][..], &hooks].concat(), 2);
    load.same_but_restarted(&before, 2);
}

pub(super) fn a_pod_whose_hook_fails_is_not_touched_and_the_last(fixture: &Fixture<'_>) {
    let hook_server = HookServer::open();
    let mut once = asks(fixture, &hook_server);
    once["count"] = 1.into();
    template(fixture, "never", &[once]);
    let load = Load { fixture, kind: "Deployment", name: "unhooked" };
    load.apply(2, false);
    let before = load.pods();
    let flags = ["--max-unavailable", "1", "--pre-hook", "never", "--wait=3m", "-o", "json"];
    let output = fixture.inplace(&[&["restart", "deploy/unhooked"][..], &flags].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let rollout: Value = serde_json::from_slice(&output.stdout).unwrap();
    let status = &rollout["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("FailureThreshold")));
    assert_eq!((&status["done"], &status["busy"], &status["failed"]), (&json!(0), &json!(0), &json!(1)));
    let failure = &status["failures"][0];
    let why = failure["message"].as_str().unwrap();
    assert!(
        why.starts_with("PreHookFailed: hook never (HookRun ")
            && why.contains("did not pass: metric asks is Failed"),
        "{why}"
    );
    let asked: Vec<_> =
        before.keys().flat_map(|pod| hook_server.queries(pod)).map(|query| query.path).collect();
    assert_eq!(json!(asked), json!([failure["pod"]]), "the other one was never begun");
    load.same_but_restarted(&before, 0);
}
