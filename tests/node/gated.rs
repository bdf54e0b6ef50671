//! Hooks without a cluster: templates in the folder of manifests, measured from this node, gating a real restart.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{fixture::Fixture, support::hook_server::HookServer, support::wait::eventually};

/// The agent's arguments that permit requests to a server on this machine.
const ALLOWED: [&str; 2] = ["--hook-allow", "127.0.0.0/8"];

fn template(fixture: &Fixture, hook_server: &HookServer, name: &str, more: &Value) {
    let mut metric = json!({
        "name": "webtest",
        "interval": "1s",
        "successCondition": "asInt(result) == 1",
        "provider": {"web": {
            "url": format!("http://127.0.0.1:{}/{{{{ args.PodName }}}}", hook_server.port),
            "headers": [{"key": "authorization", "value": "Bearer s3cret"}],
            "jsonPath": "{$.done}",
        }},
    });
    metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let template = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": {"name": name},
        "spec": {"metrics": [metric]},
    });
    fixture.write(&format!("{name}.yaml"), &template.to_string());
}

fn gated(id: &str, template: &str) -> String {
    json!({"id": id, "containers": [{"name": "app"}], "preHook": {"templateName": template}}).to_string()
}

#[test]
fn a_hook_in_a_file_gates_a_restart() {
    let (fixture, hook_server) = (Fixture::new(), HookServer::open());
    fixture.run("web");
    let before = fixture.running("web");
    let _agent = fixture.agent(&ALLOWED);
    template(&fixture, &hook_server, "drain", &json!({"successfulLimit": 1}));
    fixture.ask("web", &gated("polled", "drain"));
    eventually("two questions", || (hook_server.queries("web").len() >= 2).then_some(()));
    assert_eq!(fixture.running("web"), before);
    hook_server.say("web", 1);
    let status = fixture.ended("web", "polled", "Succeeded");
    assert_eq!(fixture.running("web").attempt, before.attempt + 1);
    let stopped: jiff::Timestamp = status["containers"][0]["stoppedAt"].as_str().unwrap().parse().unwrap();
    let passed = hook_server.queries("web").into_iter().find(|query| query.said == 1).unwrap();
    assert!(stopped > passed.at, "stopped at {stopped}, the hook passed at {}", passed.at);
    assert_eq!(hook_server.queries("web").last().unwrap(), &passed, "it was asked again after it had passed");

    // A hook that fails, and a hook that cannot be parsed.
    let before = fixture.running("web");
    hook_server.say("web", 0);
    template(&fixture, &hook_server, "once", &json!({"count": 1}));
    fixture.ask("web", &gated("refused", "once"));
    let status = fixture.ended("web", "refused", "Failed");
    assert_eq!(status["reason"], "PreHookFailed", "{status:#}");
    fixture.write("bad.yaml", "apiVersion: tkex.tencent.com/v1alpha1\nkind: HookTemplate\nmetadata: {name: bad}\nspec: {metrics: [], metric: []}\n");
    let bad = fixture.state.join("status/bad.yaml.json");
    let reported = eventually("an answer to the bad file", || fs::read_to_string(&bad).ok());
    assert!(reported.contains("HookTemplate: unknown field: spec.metric"), "{reported}");
    fixture.ask("web", &gated("missing", "bad"));
    assert_eq!(fixture.ended("web", "missing", "Refused")["reason"], "HookTemplateMissing");
    assert_eq!(fixture.running("web"), before);
}

/// Waits until this many measurements are in the journal, and verifies that the journal contains no secret.
fn await_measured(fixture: &Fixture, measured: i64) {
    eventually("finished measurements in the journal", || {
        let text = fs::read_to_string(fixture.state.join("journal/uid-web.json")).ok()?;
        assert!(!text.contains("s3cret"), "{text}");
        let entry: Value = serde_json::from_str(&text).ok()?;
        let count = entry["open"]["pre_hook"]["status"]["metricResults"][0]["count"].as_i64()?;
        (count >= measured).then_some(())
    });
}

#[test]
fn a_template_that_changed_while_nobody_was_there_is_not_passed() {
    let (fixture, hook_server) = (Fixture::new(), HookServer::open());
    fixture.run("web");
    let before = fixture.running("web");
    hook_server.say("web", 1);
    let mut agent = fixture.agent(&ALLOWED);
    template(&fixture, &hook_server, "count", &json!({"successfulLimit": 100}));
    fixture.ask("web", &gated("killed", "count"));
    await_measured(&fixture, 1);
    agent.signal(Signal::SIGKILL);
    agent.end();
    template(&fixture, &hook_server, "count", &json!({"successfulLimit": 1}));
    let _agent = fixture.agent(&ALLOWED);
    let status = fixture.ended("web", "killed", "Failed");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("HookTemplate count was changed or deleted"), "{message}");
    assert_eq!((&status["reason"], fixture.running("web")), (&json!("PreHookFailed"), before));
}

#[test]
fn killed_in_the_middle_it_measures_nothing_twice() {
    let (fixture, hook_server) = (Fixture::new(), HookServer::open());
    fixture.run("web");
    let before = fixture.running("web");
    hook_server.say("web", 1);
    let mut agent = fixture.agent(&ALLOWED);
    // No measurement begins between the end of one, as the journal shows it, and the kill.
    template(&fixture, &hook_server, "count", &json!({"successfulLimit": 4, "interval": "5s"}));
    fixture.ask("web", &gated("killed", "count"));
    for measured in [1, 3] {
        await_measured(&fixture, measured);
        agent.signal(Signal::SIGKILL);
        agent.end();
        assert_eq!(fixture.running("web"), before);
        agent = fixture.agent(&ALLOWED);
    }
    fixture.ended("web", "killed", "Succeeded");
    assert_eq!(fixture.running("web").attempt, before.attempt + 1);
    assert_eq!(hook_server.queries("web").len(), 4);
}
