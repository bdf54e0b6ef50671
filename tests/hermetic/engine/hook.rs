//! Hooks in an operation, measured at a server whose answers the test sets, one measurement after the other.

use std::sync::Arc;
use std::time::Duration;

use inplace::api::request::Request;
use inplace::api::status::{Phase, Status, Step};
use inplace::hook::address_policy::AddressPolicy;
use inplace::hook::executor::Executor;
use inplace::hook::runner::Metrics;
use inplace::hook::settings::Settings;
use inplace::node::Error;
use inplace::node::drive::{Observer, OperationEvent};
use inplace::node::hook::{Hooks, TemplateCache, Templates};
use inplace::operation::outcome::Withdrawal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Fixture, nobody, request};
use crate::support::hook_server::HookServer;
use crate::support::wait::until;

/// A server whose path `before` waits and whose path `after` passes.
fn hook_server() -> HookServer {
    // As main does; another test may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let hook_server = HookServer::open();
    hook_server.say("after", 1);
    hook_server
}

/// The hooks that query this server: `drain` polls until it returns 1, `check` queries once, `count` three times.
fn hooks(hook_server: &HookServer) -> Hooks {
    let address_policy = AddressPolicy::new(vec!["127.0.0.0/8".parse().unwrap()]);
    let settings = Settings {
        role: "this test".into(),
        runtime: None,
        server: None,
        address_policy,
        max_at_once: 4,
        exec: true,
    };
    let files = TemplateCache::default();
    let template = |path: &str, more: Value| {
        let mut metric = json!({
            "name": "webtest",
            "successCondition": "asInt(result) == 1",
            "provider": {"web": {"url": format!("http://127.0.0.1:{}/{path}", hook_server.port), "jsonPath": "{$.done}"}},
        });
        metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = json!({"metrics": [metric], "args": [{"name": "PodName"}]});
        serde_json::from_value(spec).unwrap()
    };
    let all = [
        ("drain", template("before", json!({"interval": "100ms", "successfulLimit": 1}))),
        // No measurement begins between the end of one, as the journal shows it, and the end of the process.
        ("count", template("before", json!({"interval": "10s", "successfulLimit": 3}))),
        ("once", template("before", json!({}))),
        ("check", template("after", json!({}))),
        ("broken", template("before", json!({"successCondition": "asInt(result"}))),
    ];
    let known = all.map(|(name, spec)| (("shop".to_owned(), name.to_owned()), spec));
    files.fill(known.into());
    Hooks {
        executor: Executor::new(settings),
        templates: Templates::Files(files),
        metrics: Metrics::default(),
    }
}

/// A fixture whose node runs hooks.
async fn fixture(hook_server: &HookServer) -> Fixture {
    let mut fixture = Fixture::open().await;
    fixture.node = fixture.node.with_hooks(hooks(hook_server));
    fixture
}

fn restart(before: &str, more: &str) -> Request {
    request(&format!(
        r#"{{"id":"h","containers":[{{"name":"app"}}],"preHook":{{"templateName":"{before}"}}{more}}}"#
    ))
}

impl Fixture {
    /// Begins `request` in a process of its own.
    fn begin(&self, request: Request) -> JoinHandle<Result<Status, Error>> {
        let (node, pod, control) = (self.node.clone(), self.pod.clone(), self.control());
        tokio::spawn(async move { node.carry_out(&pod, request, control, &nobody()).await })
    }

    /// Waits until the journal holds this many finished measurements of the pre-hook.
    async fn wrote(&self, measured: i32) {
        let written = || {
            let hook = self.node.journal.load(&self.pod).unwrap().open?.pre_hook?;
            Some(hook.status.metric_results.first()?.count)
        };
        self.patiently(until(|| written().is_some_and(|count| count >= measured))).await;
    }
}

#[tokio::test]
async fn nothing_is_touched_until_the_hook_has_passed() {
    let hook_server = hook_server();
    let fixture = fixture(&hook_server).await;
    let ended = fixture.begin(restart("drain", r#","postHook":{"templateName":"check"}"#));
    hook_server.arrived("before", 3).await;
    fixture.untouched();
    hook_server.say("before", 1);
    let status = fixture.patiently(ended).await.unwrap().unwrap();
    assert_eq!((status.phase, status.step), (Phase::Succeeded, Some(Step::PostHook)), "{status:#?}");
    fixture.reached(&status, "img:v1");
    assert_eq!(hook_server.count("after"), 1);
}

#[tokio::test]
async fn an_image_that_is_collected_while_a_hook_is_waited_for_is_pulled_again_before_anything_is_touched() {
    let hook_server = hook_server();
    let fixture = fixture(&hook_server).await;
    let swap =
        r#"{"id":"h","containers":[{"name":"app","image":"img:v2"}],"preHook":{"templateName":"drain"}}"#;
    let ended = fixture.begin(request(swap));
    // One query every 100 ms: the image was last observed more than 2 s ago by then.
    hook_server.arrived("before", 25).await;
    fixture.fake.model(|m| m.image("img:v2").present = false);
    fixture.fake.before("StopContainer", |m| {
        let present = m.image("img:v2").present;
        m.history.push(format!("stopped with the image there: {present}"));
    });
    hook_server.say("before", 1);
    let status = fixture.patiently(ended).await.unwrap().unwrap();
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    fixture.reached(&status, "img:v2");
    assert_eq!(fixture.fake.times("stopped with the image there: true"), 1);
}

/// The tag may refer to another image by now, and the registry may be away. Neither matters for the pulled image.
#[tokio::test]
async fn an_image_that_is_on_the_node_is_not_pulled_again_after_a_hook() {
    for reference in ["img", "img:latest"] {
        let hook_server = hook_server();
        let fixture = fixture(&hook_server).await;
        fixture.fake.model(|m| m.remote_image("img:latest").size = 1 << 20);
        let swap = format!(
            r#"{{"id":"h","containers":[{{"name":"app","image":"{reference}"}}],"preHook":{{"templateName":"drain"}}}}"#
        );
        let ended = fixture.begin(request(&swap));
        // One query every 100 ms: the image was last observed more than 2 s ago by then.
        hook_server.arrived("before", 25).await;
        assert_eq!(fixture.fake.calls("PullImage").len(), 1);
        let away = (tonic::Code::Unavailable, "the registry is away".to_owned());
        fixture.fake.model(|m| m.image("img:latest").pull_fails = Some(away));
        hook_server.say("before", 1);
        let status = fixture.patiently(ended).await.unwrap().unwrap();
        assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
        assert_eq!(fixture.fake.calls("PullImage").len(), 1, "{reference}");
    }
}

/// If the image is gone and its tag refers to another one by now, that is not the image that the hook has approved.
#[tokio::test]
async fn another_image_under_the_same_name_after_a_hook_ends_it_untouched() {
    let hook_server = hook_server();
    let fixture = fixture(&hook_server).await;
    fixture.fake.model(|m| m.remote_image("img:latest").size = 1 << 20);
    let swap =
        r#"{"id":"h","containers":[{"name":"app","image":"img:latest"}],"preHook":{"templateName":"drain"}}"#;
    let ended = fixture.begin(request(swap));
    hook_server.arrived("before", 25).await;
    fixture.fake.model(|m| {
        let image = m.image("img:latest");
        (image.present, image.id) = (false, format!("sha256:{}", "e".repeat(64)));
    });
    hook_server.say("before", 1);
    let status = fixture.patiently(ended).await.unwrap().unwrap();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "PullFailed"), "{status:#?}");
    assert!(status.message.contains("no longer on the node"), "{}", status.message);
    fixture.untouched();
}

#[tokio::test]
async fn the_progress_is_reported() {
    let hook_server = hook_server();
    let fixture = fixture(&hook_server).await;
    let (sender, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let observer: Observer = Arc::new(move |operation_event| {
        let text = match operation_event {
            OperationEvent::Status(status) => format!("status {}", status.message),
            OperationEvent::Progress(text) => format!("progress {text}"),
            OperationEvent::Effect { .. } => return,
        };
        let _ = sender.send(text);
    });
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let ended =
        tokio::spawn(async move { node.carry_out(&pod, restart("drain", ""), control, &observer).await });
    let waiting = "waiting for hook drain: webtest:";
    assert_eq!(reported.recv().await.unwrap(), format!("status {waiting} not started"));
    let failed = |text: &str| {
        text.starts_with(&format!("progress {waiting} 0 of 1 successful, ")) && text.ends_with(" failed")
    };
    fixture.patiently(async { while !failed(&reported.recv().await.unwrap()) {} }).await;
    hook_server.say("before", 1);
    assert_eq!(fixture.patiently(ended).await.unwrap().unwrap().phase, Phase::Succeeded);
    let mut statuses = Vec::new();
    while let Some(text) = reported.recv().await {
        statuses.extend(Some(text).filter(|text| text.starts_with("status waiting")));
    }
    // Each report is a write to the API server where there is one.
    assert!(statuses.is_empty(), "{statuses:?}");
}

#[tokio::test]
async fn a_hook_that_says_no_ends_it_with_nothing_touched() {
    let hook_server = hook_server();
    let fixture = fixture(&hook_server).await;
    let status = fixture.ask(restart("once", "")).await.unwrap();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "PreHookFailed"), "{status:#?}");
    assert!(
        status.message.starts_with("hook once did not pass: metric webtest is Failed"),
        "{}",
        status.message
    );
    assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
    fixture.untouched();
    assert_eq!(hook_server.count("before"), 1);
}

#[tokio::test]
async fn a_hook_that_says_no_afterwards_leads_back() {
    for (text, phase, image) in
        [("swap app=img:v2", Phase::RolledBack, "img:v1"), ("restart app", Phase::Failed, "img:v1")]
    {
        let hook_server = hook_server();
        hook_server.say("after", 0);
        let fixture = fixture(&hook_server).await;
        let named = restart("once", r#","postHook":{"templateName":"check"}"#);
        let request = Request { pre_hook: None, post_hook: named.post_hook, ..request(text) };
        let status = fixture.ask(request).await.unwrap();
        assert_eq!((status.phase, status.reason.as_str()), (phase, "PostHookFailed"), "{status:#?}");
        fixture.reached(&status, image);
    }
}

#[tokio::test]
async fn one_that_never_answers_is_ended_in_time() {
    let hook_server = hook_server();
    hook_server.hang("before");
    let fixture = fixture(&hook_server).await;
    let status = fixture.ask(restart("drain", r#","deadlineSeconds":8"#)).await.unwrap();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "DeadlineExceeded"), "{status:#?}");
    assert!(
        status.message.contains("waiting for hook drain: webtest: 0 of 1 successful"),
        "{}",
        status.message
    );
    assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
    fixture.untouched();
}

#[tokio::test]
async fn withdrawn_it_asks_nobody_any_more() {
    let hook_server = hook_server();
    let fixture = fixture(&hook_server).await;
    let ended = fixture.begin(restart("drain", ""));
    hook_server.arrived("before", 2).await;
    fixture.withdraw.send_replace(Some(Withdrawal::Replaced));
    let status = fixture.patiently(ended).await.unwrap().unwrap();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Cancelled, "RequestReplaced"), "{status:#?}");
    fixture.untouched();
    let at_the_end = hook_server.count("before");
    // Another operation takes as long as several measurements would.
    fixture.restart().await.unwrap();
    // The server may have received one only now that was on its way when the request was withdrawn.
    let times = hook_server.count("before");
    assert!(times <= at_the_end + 1, "{times} after {at_the_end}");
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(hook_server.count("before"), times);
}

#[tokio::test]
async fn the_next_process_measures_nothing_again_that_was_finished() {
    let hook_server = hook_server();
    hook_server.say("before", 1);
    let mut fixture = fixture(&hook_server).await;
    for measured in 1..=2 {
        let process = fixture.begin(restart("count", ""));
        fixture.wrote(measured).await;
        process.abort();
        assert!(process.await.unwrap_err().is_cancelled());
        fixture.next_process();
        fixture.node = fixture.node.clone().with_hooks(hooks(&hook_server));
    }
    let status = fixture.resume().await.unwrap().unwrap();
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    fixture.reached(&status, "img:v1");
    assert_eq!(hook_server.count("before"), 3);
}

#[tokio::test]
async fn a_process_that_is_to_end_leaves_the_hook_to_the_next_one() {
    let hook_server = hook_server();
    let mut fixture = fixture(&hook_server).await;
    let process = fixture.begin(restart("drain", ""));
    hook_server.arrived("before", 1).await;
    fixture.wrote(1).await;
    fixture.shutdown.cancel();
    let ended = fixture.patiently(process).await.unwrap();
    assert_eq!(ended.unwrap_err().reason(), "Interrupted");
    fixture.next_process();
    fixture.node = fixture.node.clone().with_hooks(hooks(&hook_server));
    hook_server.say("before", 1);
    fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v1");
}

#[tokio::test]
async fn a_template_that_is_not_there_or_cannot_be_run_is_refused() {
    let hook_server = hook_server();
    let fixture = fixture(&hook_server).await;
    for (name, reason, says) in [
        (
            "nobody",
            "HookTemplateMissing",
            "the HookTemplate nobody, which does not exist: create it in namespace shop",
        ),
        ("broken", "HookTemplateInvalid", "metric `webtest`: successCondition"),
    ] {
        let error = fixture.ask(restart(name, "")).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
    assert_eq!(hook_server.count("before"), 0);
    fixture.untouched();
    // A node without hooks refuses the request instead of skipping them.
    let plain = Fixture::open().await;
    assert_eq!(plain.ask(restart("drain", "")).await.unwrap_err().reason(), "HooksUnavailable");
}
