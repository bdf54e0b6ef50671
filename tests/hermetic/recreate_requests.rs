//! The controller of `ContainerRecreateRequest`s against an API server that misbehaves. The test plays the agent and the user.

use serde_json::{Value, json};

use super::api_server::Fault;
use super::workloads::{Fixture, controller_with, open};

/// The resource in the paths of the API server.
const KIND: &str = "containerrecreaterequests";

/// `shop/web`, a pod of nobody, and objects for it.
struct RecreateFixture(Fixture);

impl RecreateFixture {
    async fn start() -> Self {
        let fixture = Fixture::start().await;
        fixture.api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": "web", "labels": {}, "annotations": {}},
            "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "app:1"}]}, "status": {"phase": "Running"}}));
        Self(fixture)
    }

    /// The user creates an object.
    fn create(&self, name: &str, labels: &Value, spec: &Value) {
        let mut whole = json!({"podName": "web", "containers": [{"name": "app"}]});
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let meta = json!({"namespace": "shop", "name": name, "labels": labels, "generation": 1,
            "creationTimestamp": inplace::process::clock::now()});
        self.0.api.put(json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest", "metadata": meta, "spec": whole}));
    }

    /// Waits for the request of the object `name` on the pod, and reports its end as the agent.
    async fn carried_out(&self, name: &str, phase: &str) {
        let uid = self.0.api.get(KIND, "shop", name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        let id = format!("recreate-{uid}");
        self.0
            .api
            .until("the pod has the request", |store| {
                store.pods().any(|pod| open(pod).is_some_and(|request| request.id == id))
            })
            .await;
        self.0.api.edit("shop", "web", |pod| {
            let answer = json!({"id": id, "phase": phase, "step": null, "reason": "Why", "message": "as the agent says",
                "startedAt": null, "finishedAt": null, "containers": []});
            pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
        });
    }

    async fn completed(&self, name: &str) -> Value {
        let status = |object: Option<&Value>| object.map_or(Value::Null, |object| object["status"].clone());
        let is = |object: Option<&Value>| status(object)["phase"] == "Completed";
        self.0.api.until("it is completed", |store| is(store.get(KIND, "shop", name).as_ref())).await;
        status(self.0.api.get(KIND, "shop", name).as_ref())
    }

    /// Waits until the pod has no record of an object.
    async fn released(&self) {
        self.0
            .api
            .until("the record is removed", |store| {
                store.pods().all(|pod| {
                    pod["metadata"]["annotations"]["inplace.dev/recreate-request"].is_null()
                        && pod["metadata"]["labels"]["inplace.dev/recreate-request-uid"].is_null()
                })
            })
            .await;
    }
}

#[tokio::test]
async fn a_container_is_restarted_once_whatever_call_is_lost() {
    for (call, fault) in [
        ("PATCH pod", Fault::CutAfterEffect),
        ("PATCH pod", Fault::AnswerAfterEffect(504, "too late")),
        ("PATCH containerrecreaterequest/status", Fault::AnswerAfterEffect(504, "too late")),
        ("PATCH containerrecreaterequest/status", Fault::Answer(429, "slowly")),
    ] {
        let fixture = RecreateFixture::start().await;
        fixture.0.api.on(call).fault(fault);
        let _controller = controller_with(&fixture.0.api, &["--container-recreate-requests"]);
        fixture.create("again", &json!({}), &json!({}));
        fixture.carried_out("again", "Succeeded").await;
        let status = fixture.completed("again").await;
        assert_eq!(
            (&status["message"], &status["containerRecreateStates"][0]["phase"]),
            (&json!("as the agent says"), &json!("Succeeded"))
        );
        fixture.released().await;
        assert!(open(&fixture.0.api.pod("shop", "web")).is_none(), "{call}: nothing is requested again");
    }
}

#[tokio::test]
async fn two_objects_of_one_pod_are_carried_out_one_after_the_other() {
    let fixture = RecreateFixture::start().await;
    let _controller = controller_with(&fixture.0.api, &["--container-recreate-requests"]);
    fixture.create("one", &json!({}), &json!({"ttlSecondsAfterFinished": 0}));
    fixture.0.api.until("one is first", |store| store.pods().any(|pod| open(pod).is_some())).await;
    fixture.create("two", &json!({}), &json!({}));
    fixture
        .0
        .api
        .until("two waits", |store| {
            store.get(KIND, "shop", "two").is_some_and(|object| object["status"]["phase"] == "Pending")
        })
        .await;
    fixture.carried_out("one", "Failed").await;
    fixture.carried_out("two", "Succeeded").await;
    assert_eq!(fixture.completed("two").await["containerRecreateStates"][0]["phase"], "Succeeded");
    fixture.0.api.until("one is deleted", |store| store.get(KIND, "shop", "one").is_none()).await;
}

#[tokio::test]
async fn an_object_that_is_deleted_takes_its_request_back() {
    let fixture = RecreateFixture::start().await;
    let first = controller_with(&fixture.0.api, &["--container-recreate-requests"]);
    fixture.create("again", &json!({}), &json!({}));
    fixture.0.api.until("it is requested", |store| store.pods().any(|pod| open(pod).is_some())).await;
    // No controller sees the deletion.
    drop(first);
    fixture.0.api.store(|store| store.remove_of(KIND, "shop", "again"));
    let _second = controller_with(&fixture.0.api, &["--container-recreate-requests"]);
    fixture.released().await;
    assert!(fixture.0.api.pod("shop", "web")["metadata"]["annotations"]["inplace.dev/request"].is_null());
}

#[tokio::test]
async fn a_kind_that_is_missing_for_a_moment_withdraws_nothing() {
    let fixture = RecreateFixture::start().await;
    let first = controller_with(&fixture.0.api, &["--container-recreate-requests"]);
    fixture.create("again", &json!({}), &json!({}));
    fixture.0.api.until("it is requested", |store| store.pods().any(|pod| open(pod).is_some())).await;
    drop(first);
    // A server that is starting does not have the kind for a moment.
    let missing = Fault::Answer(404, "the server could not find the requested resource");
    fixture.0.api.on("LIST containerrecreaterequests").fault(missing);
    fixture.0.api.forget();
    let _second = controller_with(&fixture.0.api, &["--container-recreate-requests"]);
    fixture.0.api.arrived("LIST containerrecreaterequests", 2).await;
    assert_eq!(fixture.0.api.count("PATCH pod"), 0, "{:?}", fixture.0.api.calls());
    fixture.carried_out("again", "Succeeded").await;
    assert_eq!(fixture.completed("again").await["containerRecreateStates"][0]["phase"], "Succeeded");
}

#[tokio::test]
async fn what_openkruise_serves_and_what_nobody_asked_for_is_left_alone() {
    let fixture = RecreateFixture::start().await;
    let controller = controller_with(&fixture.0.api, &["--container-recreate-requests"]);
    fixture.create("theirs", &json!({"crr.apps.kruise.io/active": "true"}), &json!({}));
    fixture
        .0
        .api
        .until("it is reported", |store| {
            store.events.iter().any(|event| event["reason"] == "RecreateNotServed")
        })
        .await;
    assert!(fixture.0.api.get(KIND, "shop", "theirs").unwrap()["status"].is_null());
    drop(controller);
    fixture.0.api.forget();
    let _without_flag = fixture.0.controller();
    fixture.0.api.arrived("LIST inplacerollouts", 1).await;
    assert_eq!(fixture.0.api.count(&format!("LIST {KIND}")), 0);
}
