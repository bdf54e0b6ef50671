//! The controller of `InPlaceRollout`s against an API server that misbehaves. The test plays the agents and all other
//! clients.

mod budgets;
mod ends;
mod faults;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::api_server::Store;
use super::argocd;
use super::workloads::{Fixture, name, open};

/// `rollout_fixture/web`, a `Deployment`, its `ReplicaSet` and its pods.
struct RolloutFixture {
    fixture: Fixture,
}

impl RolloutFixture {
    /// With this many pods, all Ready for a long time.
    async fn with(pods: u32) -> Self {
        let fixture = Fixture::start().await;
        let labels = json!({"app": "web"});
        let spec = json!({"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"containers": [{"name": "app", "image": "app:1"}]}}});
        let deployment = fixture.api.put(json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"namespace": "shop", "name": "web"}, "spec": spec}));
        let owner = |kind: &str, of: &Value| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name(of), "uid": of["metadata"]["uid"], "controller": true}]);
        let set = fixture.api.put(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": spec,
            "metadata": {"namespace": "shop", "name": "web-1", "labels": labels, "ownerReferences": owner("Deployment", &deployment)}}));
        for index in 0..pods {
            fixture.api.put(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "shop", "name": format!("web-1-{index}"), "labels": labels, "annotations": {},
                    "creationTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": owner("ReplicaSet", &set)},
                "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "app:1"}]},
                "status": {"phase": "Running", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]}}));
        }
        Self { fixture }
    }

    /// Creates a rollout of all pods.
    fn restart(&self, rollout: &str, more: &Value) -> String {
        let mut spec = json!({"target": {"workloadRef": {"kind": "Deployment", "name": "web"}},
            "containers": [{"name": "app"}], "maxUnavailable": 1});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let made = self.fixture.api.put(json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
            "metadata": {"namespace": "shop", "name": rollout, "generation": 1, "creationTimestamp": inplace::process::clock::now()},
            "spec": spec}));
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The user changes the spec.
    fn rollout(&self, rollout: &str, change: impl FnOnce(&mut Value)) {
        self.fixture.api.edit_of("inplacerollouts", "shop", rollout, |object| {
            change(&mut object["spec"]);
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
        });
    }

    async fn status(&self, rollout: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let there = |store: &Store| {
            store.get("inplacerollouts", "shop", rollout).filter(|object| {
                object["status"]["observedGeneration"] == object["metadata"]["generation"]
                    && is(&object["status"])
            })
        };
        self.fixture.api.until(what, |store| there(store).is_some()).await;
        let object = self.fixture.api.store(|store| there(store)).unwrap();
        argocd::agrees(&object);
        object["status"].clone()
    }

    async fn phase(&self, rollout: &str, phase: &str) -> Value {
        self.status(rollout, phase, |status| status["phase"] == phase).await
    }

    /// The agents carry out all requests, at most `limit` at once, until the rollout's status is as `until` says.
    /// Returns the names of the pods that got a request, once per request.
    async fn agents(&self, rollout: &str, limit: usize, until: impl Fn(&Value) -> bool) -> Vec<String> {
        let mut asked = Vec::new();
        let there = |store: &Store| {
            until(
                &store
                    .get("inplacerollouts", "shop", rollout)
                    .map_or(Value::Null, |object| object["status"].clone()),
            )
        };
        loop {
            let open = |store: &Store| -> Vec<_> {
                store.pods().filter(|pod| open(pod).is_some()).map(name).collect()
            };
            self.fixture
                .api
                .until("something is asked for, or over", |store| there(store) || !open(store).is_empty())
                .await;
            let now = self.fixture.api.store(|store| open(store));
            if now.is_empty() {
                return asked;
            }
            assert!(now.len() <= limit, "{now:?}");
            for pod in now {
                self.answer(&pod, "Succeeded");
                asked.push(pod);
            }
        }
    }

    /// The agent of a pod reports how its request ended.
    fn answer(&self, pod: &str, phase: &str) {
        self.fixture.api.edit("shop", pod, |pod| {
            let id = open(pod).unwrap().id;
            say(pod, &id, phase, "");
        });
    }

    /// The agent of a pod has carried out its request, and the pod names `image`.
    fn swapped(&self, index: u32, image: &str) {
        self.fixture.api.edit("shop", &format!("web-1-{index}"), |pod| {
            pod["spec"]["containers"][0]["image"] = json!(image);
            let id = open(pod).unwrap().id;
            say(pod, &id, "Succeeded", "");
        });
    }

    fn pod(&self, index: u32) -> Value {
        self.fixture.api.pod("shop", &format!("web-1-{index}"))
    }

    /// Waits until exactly these pods have a request without an answer.
    async fn open(&self, names: &[&str]) {
        let wanted: BTreeSet<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let open =
            |store: &Store| store.pods().filter(|pod| open(pod).is_some()).map(name).collect::<BTreeSet<_>>();
        self.fixture.api.until(&format!("{names:?} are asked"), |store| open(store) == wanted).await;
    }
}

fn say(pod: &mut Value, id: &str, phase: &str, step: &str) {
    let container = json!({"name": "app", "action": "Restart", "engine": "Recreate", "downtimeMs": 61,
        "from": {"containerID": "a", "attempt": 0, "image": "app:1", "imageID": "i"}});
    let answer = json!({"id": id, "phase": phase, "step": Some(step).filter(|step| !step.is_empty()), "reason": "", "message": "as the agent says",
        "startedAt": null, "finishedAt": null, "containers": [container]});
    pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
}

fn record(pod: &Value) -> Value {
    pod["metadata"]["annotations"]["inplace.dev/rollout"]
        .as_str()
        .map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

fn is_worked_on(pod: &Value) -> bool {
    !pod["metadata"]["labels"]["inplace.dev/rollout-uid"].is_null()
}

fn all() -> Vec<String> {
    (0..4).map(|index| format!("web-1-{index}")).collect()
}

#[tokio::test]
async fn every_pod_is_restarted_once_under_the_budget() {
    let rollout_fixture = RolloutFixture::with(4).await;
    let _controller = rollout_fixture.fixture.controller();
    let uid = rollout_fixture.restart("one", &json!({}));
    let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, all(), "by name, each once");
    let status = rollout_fixture.phase("one", "Succeeded").await;
    let count = |field: &str| status[field].as_i64().unwrap();
    assert_eq!(
        [count("pods"), count("wanted"), count("done"), count("busy"), count("failed")],
        [4, 4, 4, 0, 0]
    );
    assert_eq!(status["downtimeMs"], json!({"median": 61, "most": 61}));
    assert_eq!(status["target"], "Deployment/web");
    let of = |kind: &str| {
        let conditions = status["conditions"].as_array().unwrap();
        conditions.iter().find(|one| one["type"] == kind).unwrap()["status"].clone()
    };
    assert_eq!([of("Progressing"), of("Complete"), of("Failed")], ["False", "True", "False"]);
    for index in 0..4 {
        let pod = rollout_fixture.pod(index);
        assert_eq!((&record(&pod)["stage"], &record(&pod)["rollout"]), (&json!("Done"), &json!(uid)));
        assert!(!is_worked_on(&pod), "{pod:#}");
    }
    let reported =
        |store: &Store| store.events.iter().map(|event| event["reason"].clone()).collect::<Vec<_>>();
    let wanted = ["RolloutStarted", "RolloutSucceeded"];
    rollout_fixture.fixture.api.until("it is reported", |store| reported(store) == wanted).await;
    // The rollout has ended: nothing is written any more, whatever happens.
    rollout_fixture.fixture.api.forget();
    rollout_fixture.fixture.api.remove("shop", "web-1-0");
    rollout_fixture.restart("two", &json!({"paused": true}));
    rollout_fixture.phase("two", "Paused").await;
    let writes = rollout_fixture.fixture.api.writes();
    assert!(!writes.iter().any(|line| line.contains("pod ") || line.contains("shop/one")), "{writes:#?}");
}

#[tokio::test]
async fn a_pod_that_fails_stops_it_and_a_pause_and_a_partition_hold_it() {
    let rollout_fixture = RolloutFixture::with(4).await;
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"partition": 3}));
    rollout_fixture.open(&["web-1-0"]).await;
    rollout_fixture.answer("web-1-0", "Succeeded");
    let status = rollout_fixture.status("one", "it is held", |status| status["reason"] == "Partition").await;
    assert_eq!((&status["phase"], &status["wanted"]), (&json!("Paused"), &json!(1)));
    rollout_fixture.rollout("one", |spec| {
        spec["partition"] = json!(0);
        spec["paused"] = json!(true);
    });
    rollout_fixture.status("one", "it is paused", |status| status["reason"] == "Paused").await;
    rollout_fixture.open(&[]).await;
    rollout_fixture.rollout("one", |spec| spec["paused"] = json!(false));
    rollout_fixture.open(&["web-1-1"]).await;
    rollout_fixture.answer("web-1-1", "Failed");
    let status = rollout_fixture.phase("one", "Failed").await;
    assert_eq!((&status["reason"], &status["failed"]), (&json!("FailureThreshold"), &json!(1)), "{status:#}");
    let failure = &status["failures"][0];
    assert_eq!((&failure["pod"], &failure["message"]), (&json!("web-1-1"), &json!("as the agent says")));
    rollout_fixture.open(&[]).await;
    let reported = |store: &Store| {
        let warnings = store.events.iter().filter(|event| event["type"] == "Warning");
        warnings.map(|event| event["reason"].clone()).collect::<Vec<_>>()
    };
    rollout_fixture
        .fixture
        .api
        .until("it is reported", |store| reported(store) == ["PodFailed", "RolloutFailed"])
        .await;
}

#[tokio::test]
async fn a_spec_that_contradicts_itself_fails_where_nobody_refused_it() {
    let rollout_fixture = RolloutFixture::with(1).await;
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"containers": [{"name": "App"}], "maxUnavailable": "many"}));
    let status = rollout_fixture.phase("one", "Failed").await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("spec.maxUnavailable: `many`") && message.contains("spec.containers[0].name"),
        "{message}"
    );
    assert_eq!(status["reason"], "Invalid");
    // An empty selector would select all pods of the namespace. The watches of each controller are open before.
    rollout_fixture.fixture.api.arrived("WATCH pods", 4).await;
    let watches = rollout_fixture.fixture.api.count("WATCH pods");
    rollout_fixture.restart("two", &json!({"target": {"selector": {}}}));
    rollout_fixture.phase("two", "Failed").await;
    assert_eq!(rollout_fixture.fixture.api.count("WATCH pods"), watches, "no pod is watched for it");
}
