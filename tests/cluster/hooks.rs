//! Hooks of operations on a real node: what they hold back, what users see of them, what remains, and how the
//! next agent continues after a kill.

#![expect(clippy::print_stderr, reason = "the figures are worth reading")]

use std::{fs, sync::OnceLock};

use inplace::api::status::{Phase, Status, Step};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    agent::{self, Agent, USER},
    cluster::Cluster,
    pod::Pod,
    request::{ONE, event, request, restored},
    support::hook_server::HookServer,
    support::wait::eventually,
};

fn hook_server() -> &'static HookServer {
    static SHARED: OnceLock<HookServer> = OnceLock::new();
    SHARED.get_or_init(HookServer::open)
}

/// Applies a template `name` with one metric, whose URL contains the pod's name.
fn template(cluster: &Cluster, name: &str, more: Value) {
    let url = format!("http://{{{{ args.HostIP }}}}:{}/{{{{ args.PodName }}}}", hook_server().port);
    let mut metric = json!({
        "name": "webtest",
        "interval": "1s",
        "successCondition": "asInt(result) == 1",
        "provider": {"web": {"url": url, "jsonPath": "{$.done}"}},
    });
    let Value::Object(more) = more else { panic!("{more} is no object") };
    metric.as_object_mut().unwrap().extend(more);
    apply(cluster, name, &json!({"metrics": [metric]}));
}

fn apply(cluster: &Cluster, name: &str, spec: &Value) {
    let template = json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": {"name": name}, "spec": spec,
    });
    cluster.apply(&template.to_string());
}

/// A request for `app` with hooks.
fn gated(cluster: &Cluster, image: Option<&str>, hooks: &[(&str, &str)]) -> String {
    let hooks =
        hooks.iter().map(|(field, template)| ((*field).to_owned(), json!({"templateName": template})));
    request(cluster, &[("app", image)], Value::Object(hooks.collect()))
}

/// The HookRuns of a pod.
fn runs(pod: &Pod<'_>) -> Vec<Value> {
    let list = pod.cluster.read("/apis/tkex.tencent.com/v1alpha1/namespaces/default/hookruns");
    let is_its = |run: &&Value| run["metadata"]["ownerReferences"][0]["uid"] == pod.uid;
    list["items"].as_array().unwrap().iter().filter(is_its).cloned().collect()
}

/// Waits until a HookRun has that phase.
fn shown(pod: &Pod<'_>, phase: &str) -> Value {
    eventually(&format!("a HookRun that is {phase}"), || {
        runs(pod).into_iter().find(|run| run["status"]["phase"] == phase)
    })
}

fn gone(pod: &Pod<'_>) {
    eventually("the HookRuns to be gone", || runs(pod).is_empty().then_some(()));
}

fn untouched(pod: &Pod<'_>) -> bool {
    pod.facts().running("app").attempt == 0
}

fn at(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(nanoseconds.into()).unwrap()
}

/// The agent's writes to the pod between two moments. Other tests use the same agent.
fn writes_between(pod: &Pod<'_>, from: Timestamp, to: Timestamp) -> Vec<Value> {
    let mut writes = pod.cluster.writes();
    writes.retain(|write| {
        let at: Timestamp = write["requestReceivedTimestamp"].as_str().unwrap().parse().unwrap();
        let is_about_it = write["objectRef"]["resource"] == "pods" && write["objectRef"]["name"] == *pod.name;
        write["user"]["username"] == USER && is_about_it && (from..to).contains(&at)
    });
    writes
}

#[test]
fn a_hook_that_is_polled_gates_a_restart_and_nothing_comes_between() {
    let cluster = Cluster::shared();
    Agent::shared();
    template(cluster, "drain", json!({"successfulLimit": 1}));
    let pod = Pod::run(cluster, "polled", ONE);
    let id = pod.request(&gated(cluster, None, &[("preHook", "drain")]));
    let run = shown(&pod, "Running");
    let name = run["metadata"]["name"].as_str().unwrap();
    assert!(
        name.starts_with(&format!("pre-inplace-hook-{}-", pod.name)) && name.ends_with("-drain"),
        "{name}"
    );
    assert_eq!(run["metadata"]["labels"]["hookrun-type"], "pre-inplace-step");
    assert_eq!(run["metadata"]["labels"]["inplace.dev/node"], cluster.node().name.as_str());
    let table = cluster.kubectl(&["get", "hookrun", name]);
    assert!(table.contains("PHASE") && table.contains("Running"), "{table}");
    eventually("three questions", || (hook_server().queries(&pod.name).len() >= 3).then_some(()));
    // A step that takes long is reported.
    let waiting = |status: &Status| {
        status.step == Some(Step::PreHook) && status.message.starts_with("waiting for hook drain: webtest:")
    };
    pod.reported("it waits for the hook", waiting);
    assert!(untouched(&pod));
    hook_server().say(&pod.name, 1);
    let status = pod.answer(&id);
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");

    let asked = hook_server().queries(&pod.name);
    let (not_yet, passed) = (&asked[asked.len() - 2], &asked[asked.len() - 1]);
    assert_eq!((not_yet.said, passed.said), (0, 1), "it was asked again after it had passed: {asked:?}");
    let ended =
        pod.facts().of("app").find(|instance| instance.attempt == 0).map(|instance| at(instance.finished_at));
    let ended = ended.or(status.containers[0].stopped_at).unwrap();
    let (from_not_yet, from_passed) = (ended.duration_since(not_yet.at), ended.duration_since(passed.at));
    eprintln!(
        "from the last \"not yet\" to the end of the old container: {} ms, from \"done\": {} ms",
        from_not_yet.as_millis(),
        from_passed.as_millis()
    );
    assert!(passed.at < ended, "stopped at {ended}, the hook passed at {}", passed.at);
    let between = writes_between(&pod, not_yet.at, ended);
    // Only the swap itself, if it lasts, as on a busy node: a step is written after 2 s. So is the progress of a hook, every half
    // minute.
    let steps = usize::try_from(from_passed.as_secs() / 2).unwrap();
    let lasted = passed.at.duration_since(status.started_at.unwrap()).as_secs() >= 30;
    assert!(between.len() <= steps + usize::from(lasted), "{between:#?}");
    gone(&pod);
}

#[test]
fn a_hook_that_fails_touches_nothing_and_stays_until_the_next_one() {
    let cluster = Cluster::shared();
    Agent::shared();
    template(cluster, "once", json!({"count": 1}));
    let pod = Pod::run(cluster, "fails", ONE);
    let before = pod.facts().settled();
    let status = pod.ask(&gated(cluster, None, &[("preHook", "once")]), Phase::Failed);
    assert_eq!((status.reason.as_str(), status.step), ("PreHookFailed", Some(Step::PreHook)), "{status:#?}");
    let run = shown(&pod, "Failed");
    let name = run["metadata"]["name"].as_str().unwrap();
    assert!(
        status
            .message
            .starts_with(&format!("hook once (HookRun {name}) did not pass: metric webtest is Failed"))
    );
    assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
    assert_eq!(event(&pod, "InPlaceFailed"), status.message);
    assert_eq!(pod.facts(), before);
    eprintln!("{}", status.message);

    hook_server().say(&pod.name, 1);
    pod.ask(&gated(cluster, None, &[("preHook", "once")]), Phase::Succeeded);
    gone(&pod);
}

#[test]
fn a_hook_that_fails_afterwards_takes_a_swap_back() {
    let cluster = Cluster::shared();
    Agent::shared();
    template(cluster, "check", json!({"count": 1}));
    let pod = Pod::run(cluster, "after", ONE);
    let swap = gated(cluster, Some("lab/app:v2"), &[("postHook", "check")]);
    let status = pod.ask(&swap, Phase::RolledBack);
    assert_eq!(status.reason, "PostHookFailed", "{status:#?}");
    assert_eq!(restored(&pod, &status.containers[0], "lab/app:v1").version, "v1");
    assert_eq!(shown(&pod, "Failed")["metadata"]["labels"]["hookrun-type"], "post-inplace-step");
    hook_server().say(&pod.name, 1);
    pod.ask(&gated(cluster, Some("lab/app:v2"), &[("postHook", "check")]), Phase::Succeeded);
    assert_eq!(pod.facts().settled().running("app").version, "v2");
    gone(&pod);
}

#[test]
fn a_template_that_is_not_there_or_does_not_fit_is_refused() {
    let cluster = Cluster::shared();
    Agent::shared();
    let web = json!({"url": "http://{{ args.token }}/", "jsonPath": "{$.done}"});
    let metric =
        json!({"name": "webtest", "successCondition": "asInt(result) == 1", "provider": {"web": web}});
    apply(cluster, "unfit", &json!({"metrics": [metric], "args": [{"name": "token"}]}));
    let pod = Pod::run(cluster, "unfit", ONE);
    for (template, reason, says) in [
        ("nowhere", "HookTemplateMissing", "create it in namespace default"),
        ("unfit", "HookTemplateInvalid", "args.token was not resolved"),
    ] {
        let status = pod.ask(&gated(cluster, None, &[("preHook", template)]), Phase::Refused);
        assert_eq!(status.reason, reason, "{status:#?}");
        assert!(status.message.contains(says), "{}", status.message);
    }
    assert!(untouched(&pod) && runs(&pod).is_empty());
    // `plan` shows the same in advance.
    template(cluster, "planned", json!({"successfulLimit": 1}));
    let plan = |hook: &str| {
        let output = cluster.inplace(&["plan", &pod.name, "-c", "app", "--pre-hook", hook]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (good, bad) = (plan("planned"), plan("nowhere"));
    let expected = format!("hook planned (PreHook), with PodName={}", pod.name);
    assert!(good.contains(&expected) && good.contains("steps: PreHook, Swap, Verify"), "{good}");
    assert!(bad.contains("would be refused (HookTemplateMissing)"), "{bad}");
}

#[test]
fn a_person_can_approve_a_hook_or_end_it() {
    let cluster = Cluster::shared();
    Agent::shared();
    template(cluster, "by-hand", json!({"successfulLimit": 1}));
    let pod = Pod::run(cluster, "by-hand", ONE);
    let run = || shown(&pod, "Running")["metadata"]["name"].as_str().unwrap().to_owned();
    let id = pod.request(&gated(cluster, None, &[("preHook", "by-hand")]));
    cluster.kubectl(&["patch", "hookrun", &run(), "--type=merge", "-p", r#"{"spec":{"terminate":true}}"#]);
    let status = pod.answer(&id);
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "PreHookFailed"), "{status:#?}");
    assert!(untouched(&pod), "ended is not approved");

    let id = pod.request(&gated(cluster, None, &[("preHook", "by-hand")]));
    cluster.kubectl(&["annotate", "hookrun", &run(), "inplace.dev/approve=true"]);
    let status = pod.answer(&id);
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert!(hook_server().queries(&pod.name).iter().all(|query| query.said == 0));
    gone(&pod);
}

#[test]
fn the_next_agent_measures_nothing_again_that_was_finished() {
    let cluster = Cluster::leased();
    let agent = Agent::start(&cluster, &[]);
    // The agent is killed between two measurements, on a busy machine too.
    template(&cluster, "count", json!({"interval": "5s", "successfulLimit": 4}));
    let pod = Pod::run(&cluster, "killed", ONE);
    hook_server().say(&pod.name, 1);
    let id = pod.request(&gated(&cluster, None, &[("preHook", "count")]));
    let journal = agent::state(&cluster.node()).join(format!("journal/{}.json", pod.uid));
    let run = eventually("two finished measurements in the journal, and the HookRun", || {
        let entry: Value = serde_json::from_slice(&fs::read(&journal).ok()?).ok()?;
        let count = entry["open"]["pre_hook"]["status"]["metricResults"][0]["count"].as_i64()?;
        (count >= 2).then(|| runs(&pod).first().cloned())?
    });
    agent.kill();
    assert!(untouched(&pod));
    let _agent = Agent::start(&cluster, &[]);
    let status = pod.answer(&id);
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert_eq!(hook_server().queries(&pod.name).len(), 4, "{run:#}");
    gone(&pod);
}
