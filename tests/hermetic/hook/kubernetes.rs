//! The provider `kubernetes`: annotations of the hook's pod, and of no other pod.

use inplace::api::hook_run::{HookPhase, HookRunStatus, Measurement};
use inplace::hook::executor::Executor;
use inplace::hook::settings::Settings;
use serde_json::{Value, json};

use super::super::api_server::{ApiServer, Fault, pods};
use super::{api_client, once_with, settings, shop, spec};

/// A cluster with the pod `shop/web-0`, and an executor with a client for it.
struct Fixture {
    api: ApiServer,
    executor: Executor,
    uid: String,
}

impl Fixture {
    async fn start() -> Self {
        let api = ApiServer::start().await;
        let pod = api.put(pods::pod("shop", "web-0", "node-1"));
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        let executor = Executor::new(Settings { server: Some(api_client(&api).await), ..settings() });
        Self { api, executor, uid }
    }

    async fn once(&self, function: &str, fields: &[(&str, &str)]) -> (HookPhase, Measurement) {
        once_with(&self.executor, &shop("web-0", &self.uid), provider(function, fields), &json!({})).await
    }

    fn annotations(&self) -> Value {
        self.api.pod("shop", "web-0")["metadata"]["annotations"].clone()
    }
}

fn provider(function: &str, fields: &[(&str, &str)]) -> Value {
    let fields: Vec<_> = fields
        .iter()
        .map(|(key, value)| json!({"path": format!("metadata.annotations.{key}"), "value": value}))
        .collect();
    json!({"kubernetes": {"function": function, "fields": fields}})
}

#[tokio::test]
async fn get_compares_and_shows_what_is_there() {
    let fixture = Fixture::start().await;
    let (phase, _) = fixture.once("get", &[("cni.example/ip", "10.0.0.7/32")]).await;
    assert_eq!(phase, HookPhase::Successful);
    let (phase, measurement) =
        fixture.once("get", &[("cni.example/ip", "10.0.0.7/32"), ("cni.example/ip", "x")]).await;
    assert_eq!((phase, measurement.value.as_str()), (HookPhase::Failed, "10.0.0.7/32"));
    assert!(measurement.message.contains("cni.example/ip is \"10.0.0.7/32\", not \"x\""), "{measurement:?}");
    let (phase, measurement) = fixture.once("get", &[("absent", "x")]).await;
    assert_eq!(phase, HookPhase::Failed);
    assert!(measurement.message.contains("metadata.annotations.absent is not set"), "{measurement:?}");
    assert!(fixture.api.writes().is_empty());
}

#[tokio::test]
async fn what_is_not_there_yet_is_polled_for_as_long_as_it_takes() {
    let fixture = Fixture::start().await;
    let metric = json!([{
        "name": "m", "interval": "100ms", "successfulLimit": 1, "provider": provider("get", &[("ready", "yes")]),
    }]);
    let (spec, place) = (spec(&metric), shop("web-0", &fixture.uid));
    let run = fixture.executor.run(&spec, HookRunStatus::default(), &place, |_| {});
    let drive = async {
        // More often than errors would be tolerated.
        fixture.api.arrived("GET pod", 7).await;
        fixture.api.edit("shop", "web-0", |pod| pod["metadata"]["annotations"]["ready"] = json!("yes"));
    };
    let (status, ()) = tokio::join!(run, drive);
    assert_eq!(status.phase, Some(HookPhase::Successful), "{status:#?}");
    assert!(status.metric_results[0].failed >= 6 && status.metric_results[0].error == 0);
}

#[tokio::test]
async fn patch_sets_what_differs_and_nothing_else() {
    let fixture = Fixture::start().await;
    let odd = "\"quoted\", \\ and }";
    let (phase, _) = fixture.once("patch", &[("example.dev/a~b", odd), ("plain", "1")]).await;
    assert_eq!(phase, HookPhase::Successful);
    assert_eq!(
        (fixture.annotations()["example.dev/a~b"].as_str(), fixture.annotations()["plain"].as_str()),
        (Some(odd), Some("1"))
    );
    assert_eq!(fixture.annotations()["cni.example/ip"], "10.0.0.7/32");
    let (phase, _) = fixture.once("patch", &[("plain", "1")]).await;
    assert_eq!((phase, fixture.api.writes().len()), (HookPhase::Successful, 1));
}

#[tokio::test]
async fn a_pod_without_annotations_gets_its_first_one_and_loses_none_that_came_meanwhile() {
    let fixture = Fixture::start().await;
    fixture.api.edit("shop", "web-0", |pod| {
        pod["metadata"].as_object_mut().unwrap().remove("annotations");
    });
    fixture.api.before("PATCH pod", |store| {
        store.edit("shop", "web-0", |pod| pod["metadata"]["annotations"] = json!({"theirs": "1"}));
    });
    let (phase, measurement) = fixture.once("patch", &[("ours", "1")]).await;
    assert_eq!(phase, HookPhase::Successful, "{measurement:?}");
    assert_eq!(fixture.annotations(), json!({"theirs": "1", "ours": "1"}));
}

#[tokio::test]
async fn what_cannot_be_known_is_an_error_and_touches_nothing() {
    let fixture = Fixture::start().await;
    let before = fixture.annotations();
    // A hook may not set this project's own keys.
    for key in ["inplace.dev/request", "inplace.dev/status", "kubernetes.io/config.mirror"] {
        let (phase, measurement) = fixture.once("patch", &[("fine", "1"), (key, "restart app")]).await;
        assert_eq!(phase, HookPhase::Error);
        assert!(measurement.message.contains("a hook may not set"), "{measurement:?}");
    }
    assert!(fixture.api.calls().is_empty());
    // Another pod of the same name.
    for function in ["get", "patch"] {
        let provider = provider(function, &[("cni.example/ip", "10.0.0.7/32")]);
        let (phase, measurement) =
            once_with(&fixture.executor, &shop("web-0", "another"), provider, &json!({})).await;
        assert_eq!(phase, HookPhase::Error);
        assert!(measurement.message.contains("another pod has its name"), "{measurement:?}");
    }
    fixture.api.on("GET pod").fault(Fault::Answer(503, "not today"));
    let (phase, measurement) = fixture.once("get", &[("cni.example/ip", "10.0.0.7/32")]).await;
    assert_eq!(phase, HookPhase::Error);
    assert!(measurement.message.contains("not today"), "{measurement:?}");
    let without = Executor::new(settings());
    let place = shop("web-0", &fixture.uid);
    let (phase, measurement) = once_with(&without, &place, provider("get", &[("a", "b")]), &json!({})).await;
    assert_eq!(phase, HookPhase::Error);
    assert_eq!(measurement.message, "kubernetes: this test has no API server");
    assert_eq!((fixture.annotations(), fixture.api.writes().len()), (before, 0));
}

#[tokio::test]
async fn a_command_needs_a_node() {
    let exec = json!({"exec": {"container": "app", "command": ["true"]}});
    let (phase, measurement) =
        once_with(&Executor::new(settings()), &shop("web-0", "u"), exec, &json!({})).await;
    assert_eq!(phase, HookPhase::Error);
    assert!(measurement.message.contains("this test has no container runtime"), "{measurement:?}");
}
