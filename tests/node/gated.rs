//! Hooks without a cluster: templates in the folder of manifests, measured from this node, gating a real restart.

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    oracle::Oracle,
    site::{Site, eventually},
};

/// The agent's arguments that permit requests to a server on this machine.
const ALLOWED: [&str; 2] = ["--hook-allow", "127.0.0.0/8"];

fn template(site: &Site, oracle: &Oracle, name: &str, more: &Value) {
    let mut metric = json!({
        "name": "webtest",
        "interval": "1s",
        "successCondition": "asInt(result) == 1",
        "provider": {"web": {
            "url": format!("http://127.0.0.1:{}/{{{{ args.PodName }}}}", oracle.port),
            "headers": [{"key": "authorization", "value": "Bearer s3cret"}],
            "jsonPath": "{$.done}",
        }},
    });
    metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let template = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": {"name": name},
        "spec": {"metrics": [metric]},
    });
    site.write(&format!("{name}.yaml"), &template.to_string());
}

fn gated(id: &str, template: &str) -> String {
    json!({"id": id, "containers": [{"name": "app"}], "preHook": {"templateName": template}}).to_string()
}

#[test]
fn a_hook_in_a_file_gates_a_restart() {
    let (site, oracle) = (Site::new(), Oracle::open());
    site.run("web");
    let before = site.running("web");
    let _agent = site.agent(&ALLOWED);
    template(&site, &oracle, "drain", &json!({"successfulLimit": 1}));
    site.wish("web", &gated("polled", "drain"));
    eventually("two questions", || (oracle.asked("web").len() >= 2).then_some(()));
    assert_eq!(site.running("web"), before);
    oracle.say("web", 1);
    let status = site.ended("web", "polled", "Succeeded");
    assert_eq!(site.running("web").attempt, before.attempt + 1);
    let stopped: jiff::Timestamp = status["containers"][0]["stoppedAt"].as_str().unwrap().parse().unwrap();
    let passed = oracle.asked("web").into_iter().find(|asked| asked.said == 1).unwrap();
    assert!(stopped > passed.at, "stopped at {stopped}, the hook passed at {}", passed.at);
    assert_eq!(oracle.asked("web").last().unwrap(), &passed, "it was asked again after it had passed");

    // A hook that fails, and a hook that cannot be parsed.
    let before = site.running("web");
    oracle.say("web", 0);
    template(&site, &oracle, "once", &json!({"count": 1}));
    site.wish("web", &gated("refused", "once"));
    let status = site.ended("web", "refused", "Failed");
    assert_eq!(status["reason"], "PreHookFailed", "{status:#}");
    site.write("bad.yaml", "apiVersion: tkex.tencent.com/v1alpha1\nkind: HookTemplate\nmetadata: {name: bad}\nspec: {metrics: [], metric: []}\n");
    let bad = site.state.join("status/bad.yaml.json");
    let told = eventually("an answer to the bad file", || fs::read_to_string(&bad).ok());
    assert!(told.contains("HookTemplate: no such field: spec.metric"), "{told}");
    site.wish("web", &gated("missing", "bad"));
    assert_eq!(site.ended("web", "missing", "Refused")["reason"], "HookTemplateMissing");
    assert_eq!(site.running("web"), before);
}

/// Waits until this many measurements are in the journal, and verifies that the journal contains no secret.
fn await_measured(site: &Site, measured: i64) {
    eventually("finished measurements in the journal", || {
        let text = fs::read_to_string(site.state.join("journal/uid-web.json")).ok()?;
        assert!(!text.contains("s3cret"), "{text}");
        let entry: Value = serde_json::from_str(&text).ok()?;
        let count = entry["open"]["pre_hook"]["status"]["metricResults"][0]["count"].as_i64()?;
        (count >= measured).then_some(())
    });
}

#[test]
fn a_template_that_changed_while_nobody_was_there_is_not_passed() {
    let (site, oracle) = (Site::new(), Oracle::open());
    site.run("web");
    let before = site.running("web");
    oracle.say("web", 1);
    let mut agent = site.agent(&ALLOWED);
    template(&site, &oracle, "count", &json!({"successfulLimit": 100}));
    site.wish("web", &gated("killed", "count"));
    await_measured(&site, 1);
    agent.signal(Signal::SIGKILL);
    agent.end();
    template(&site, &oracle, "count", &json!({"successfulLimit": 1}));
    let _agent = site.agent(&ALLOWED);
    let status = site.ended("web", "killed", "Failed");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("HookTemplate count was changed or removed"), "{message}");
    assert_eq!((&status["reason"], site.running("web")), (&json!("PreHookFailed"), before));
}

#[test]
fn killed_in_the_middle_it_measures_nothing_twice() {
    let (site, oracle) = (Site::new(), Oracle::open());
    site.run("web");
    let before = site.running("web");
    oracle.say("web", 1);
    let mut agent = site.agent(&ALLOWED);
    template(&site, &oracle, "count", &json!({"successfulLimit": 4}));
    site.wish("web", &gated("killed", "count"));
    for measured in [1, 3] {
        await_measured(&site, measured);
        agent.signal(Signal::SIGKILL);
        agent.end();
        assert_eq!(site.running("web"), before);
        agent = site.agent(&ALLOWED);
    }
    site.ended("web", "killed", "Succeeded");
    assert_eq!(site.running("web").attempt, before.attempt + 1);
    assert_eq!(oracle.asked("web").len(), 4);
}
