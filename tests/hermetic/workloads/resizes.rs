//! cpu and memory in the template of a workload, with an API server that resizes running pods and with one that does not. The
//! test plays the kubelets.

use serde_json::{Value, json};

use super::super::api_server::Fault;
use super::{Fixture, Running, Store, name, open, runs, template};

const LIMITS: [&str; 2] = ["500m", "64Mi"];

impl Fixture {
    /// `shop/web` with limits, and its pods Ready.
    async fn limited(&self, replicas: u32) {
        self.apply_limited(replicas);
        self.ready(replicas as usize).await;
        self.kubelets_take();
        self.reported("updatedReadyReplicas", replicas as usize).await;
        self.api.forget();
    }

    fn apply_limited(&self, replicas: u32) {
        let mut template = template("app:1");
        template["spec"]["containers"][0]["resources"] = of(LIMITS);
        self.api.put(json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
            "metadata": {"namespace": "shop", "name": "web", "generation": 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template,
                "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1}},
        }));
    }

    /// The user changes the limits.
    fn limit(&self, limits: [&str; 2]) {
        self.spec(|spec| spec["template"]["spec"]["containers"][0]["resources"] = of(limits));
    }

    /// Kubelets report that the containers have the resources of the spec.
    fn kubelets_take(&self) {
        for name in self.names() {
            self.api.edit("shop", &name, take);
        }
    }

    /// Waits until one more pod has the limits, and returns its name.
    async fn resized(&self, times: usize, wanted: [&str; 2]) -> String {
        let last = |store: &Store| {
            let calls = resizes(&store.calls);
            let name = calls.last()?.rsplit('/').next()?.to_owned();
            let has = store.pod("shop", &name).is_some_and(|pod| limits(&pod) == wanted);
            (has && calls.len() == times).then_some(name)
        };
        self.api.until("a pod is resized", |store| last(store).is_some()).await;
        self.api.store(|store| last(store)).unwrap()
    }

    async fn condition(&self, kind: &'static str, says: &'static str) {
        let is = |web: &Value| {
            let conditions = web["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let found = conditions.into_iter().find(|condition| condition["type"] == kind);
            found.is_some_and(|found| found["message"].as_str().unwrap_or_default().contains(says))
        };
        self.status(says, is).await;
    }
}

fn of([cpu, memory]: [&str; 2]) -> Value {
    json!({"limits": {"cpu": cpu, "memory": memory}})
}

fn resizes(calls: &[String]) -> Vec<&String> {
    calls.iter().filter(|call| call.starts_with("PATCH pod/resize")).collect()
}

fn limits(pod: &Value) -> [&str; 2] {
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    ["cpu", "memory"].map(|resource| limits[resource].as_str().unwrap_or_default())
}

fn take(pod: &mut Value) {
    if pod["metadata"]["generation"].is_null() {
        pod["metadata"]["generation"] = json!(1);
    }
    let resources = pod["spec"]["containers"][0]["resources"].clone();
    pod["status"]["containerStatuses"] = json!([{"name": "app", "ready": true, "image": "", "imageID": "", "restartCount": 0,
        "resources": resources}]);
    pod["status"]["conditions"].as_array_mut().unwrap().retain(|condition| condition["type"] == "Ready");
}

/// The kubelet cannot resize the pod now, or ever.
fn pend(pod: &mut Value, reason: &str) {
    let generation = pod["metadata"]["generation"].clone();
    pod["status"]["conditions"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "PodResizePending", "status": "True",
        "reason": reason, "message": "not enough cpu", "observedGeneration": generation}));
}

/// A workload with limits, whose API server resizes pods, and its controller.
async fn resized_by_server(replicas: u32) -> (Fixture, Running) {
    let fixture = Fixture::start().await;
    fixture.api.store(|store| store.resizes = true);
    let running = fixture.controller();
    fixture.limited(replicas).await;
    (fixture, running)
}

#[tokio::test]
async fn pods_are_resized_one_after_the_other_and_stay() {
    let (fixture, _running) = resized_by_server(3).await;
    let before = fixture.names();
    fixture.limit(["1", "128Mi"]);
    for times in 1..=3 {
        let name = fixture.resized(times, ["1", "128Mi"]).await;
        let pod = fixture.api.pod("shop", &name);
        assert_ne!(
            pod["metadata"]["labels"]["controller-revision-hash"],
            fixture.web()["status"]["updateRevision"]
        );
        fixture.condition("Progressing", "1 pods are being resized").await;
        fixture.api.edit("shop", &name, |pod| pend(pod, "Deferred"));
        fixture.condition("Progressing", "Deferred: not enough cpu").await;
        fixture.api.edit("shop", &name, take);
    }
    fixture.reported("updatedReadyReplicas", 3).await;
    assert_eq!(fixture.names(), before);
    assert_eq!(fixture.api.count("PATCH pod/resize"), 3);
    // The image is changed by the agent, after the resize.
    fixture.spec(|spec| {
        let container = &mut spec["template"]["spec"]["containers"][0];
        container["resources"] = of(["2", "128Mi"]);
        container["image"] = json!("app:2");
    });
    let name = fixture.resized(4, ["2", "128Mi"]).await;
    let asked = |pod: &Value| open(pod).is_some();
    assert!(!asked(&fixture.api.pod("shop", &name)));
    fixture.api.edit("shop", &name, take);
    fixture
        .api
        .until("the agent is asked", |store| store.pod("shop", &name).is_some_and(|pod| asked(&pod)))
        .await;
}

#[tokio::test]
async fn what_no_node_can_give_fails_one_pod_and_an_undo_brings_it_back() {
    let (fixture, _running) = resized_by_server(2).await;
    let before = fixture.names();
    fixture.limit(["64", "64Mi"]);
    let name = fixture.resized(1, ["64", "64Mi"]).await;
    fixture.api.edit("shop", &name, |pod| pend(pod, "Infeasible"));
    fixture.condition("UpdateFailed", "Infeasible: not enough cpu").await;
    let said = |event: &Value| {
        event["message"].as_str().is_some_and(|text| text.contains("Infeasible: not enough cpu"))
    };
    fixture.api.until("an event says so", |store| store.events.iter().any(said)).await;
    assert_eq!(fixture.names(), before, "no pod is recreated");
    fixture.limit(LIMITS);
    let back = |store: &Store| store.pod("shop", &name).is_some_and(|pod| limits(&pod) == LIMITS);
    fixture.api.until("the pod has its own limits", back).await;
    fixture.kubelets_take();
    fixture.reported("updatedReadyReplicas", 2).await;
    assert_eq!(fixture.names(), before);
}

/// Kubernetes 1.33 does not lower a memory limit of a container that is not restarted.
#[tokio::test]
async fn what_the_api_server_refuses_fails_the_pod_with_its_words_and_is_not_tried_again() {
    let (fixture, _running) = resized_by_server(1).await;
    fixture.limit(["500m", "32Mi"]);
    fixture.condition("UpdateFailed", "memory limits cannot be decreased").await;
    // Whatever happens to the pod.
    let name = fixture.names().pop_first().unwrap();
    fixture.api.edit("shop", &name, |pod| pod["metadata"]["labels"]["seen"] = json!("1"));
    fixture.limit(["500m", "16Mi"]);
    fixture.condition("UpdateFailed", "memory limits cannot be decreased").await;
    assert!(fixture.api.count("PATCH pod/resize") <= 2, "{:?}", fixture.api.calls());
}

/// Another client writes the pod at the same time, or the answer is lost: the resize is made once in the end.
#[tokio::test]
async fn a_resize_that_is_disturbed_is_made_in_the_end() {
    let (fixture, _running) = resized_by_server(1).await;
    fixture.api.on("PATCH pod/resize").fault(Fault::Answer(503, "later"));
    fixture.api.on("PATCH pod/resize").nth(2).fault(Fault::CutAfterEffect);
    fixture.limit(["1", "64Mi"]);
    let name = fixture.names().pop_first().unwrap();
    let has = |store: &Store| store.pod("shop", &name).is_some_and(|pod| limits(&pod) == ["1", "64Mi"]);
    fixture.api.until("the pod is resized", has).await;
    fixture.kubelets_take();
    fixture.reported("updatedReadyReplicas", 1).await;
}

#[tokio::test]
async fn without_the_subresource_no_pod_is_touched() {
    let fixture = Fixture::start().await;
    let _running = fixture.controller();
    fixture.limited(2).await;
    let before = fixture.api.store(|store| store.pods().map(name).collect::<Vec<_>>());
    fixture.limit(["1", "64Mi"]);
    fixture.condition("UpdateFailed", "limits.cpu (the API server has no resize of pods").await;
    assert!(resizes(&fixture.api.calls()).is_empty());
    assert!(fixture.api.store(|store| store.pods().all(|pod| limits(pod) == LIMITS && runs(pod) == "app:1")));
    assert_eq!(fixture.api.store(|store| store.pods().map(name).collect::<Vec<_>>()), before);
}

/// The controller asks once in five minutes, and the API server is rolled back in between.
#[tokio::test]
async fn a_subresource_that_is_gone_fails_the_pod() {
    let (fixture, _running) = resized_by_server(1).await;
    fixture.api.on("PATCH pod/resize").first(|store| store.resizes = false);
    fixture.limit(["1", "64Mi"]);
    fixture.condition("UpdateFailed", "could not find the requested resource").await;
}

/// A fallback that replaces pods needs a definite answer, however long the API server gives none.
#[tokio::test]
async fn no_pod_is_replaced_while_it_is_unknown_whether_it_can_be_resized() {
    let fixture = Fixture::start().await;
    fixture.api.store(|store| store.resizes = true);
    fixture.api.on("LIST resources").fault(Fault::Answer(503, "later"));
    fixture.api.on("LIST resources").nth(2).fault(Fault::Answer(403, "not yet"));
    let _running = fixture.controller();
    fixture.limited(2).await;
    let before = fixture.names();
    fixture.api.store(|store| {
        let mut web = store.get("gamedeployments", "shop", "web").unwrap();
        web["metadata"]["annotations"] = json!({"inplace.dev/in-place-fallback": "Recreate"});
        store.put(web);
    });
    fixture.limit(["1", "64Mi"]);
    for times in 1..=2 {
        let name = fixture.resized(times, ["1", "64Mi"]).await;
        fixture.api.edit("shop", &name, take);
    }
    fixture.reported("updatedReadyReplicas", 2).await;
    assert_eq!(fixture.names(), before);
    assert_eq!(fixture.api.count("LIST resources"), 3);
}

#[tokio::test]
async fn a_resize_that_a_webhook_takes_back_fails_the_pod_and_is_not_written_again() {
    let fixture = Fixture::start().await;
    fixture.api.store(|store| (store.resizes, store.keeps_resources) = (true, true));
    let _running = fixture.controller();
    fixture.limited(1).await;
    fixture.limit(["1", "64Mi"]);
    fixture.condition("UpdateFailed", "the API server stored other resources").await;
    assert_eq!(fixture.api.count("PATCH pod/resize"), 1);
}

#[tokio::test]
async fn plan_knows_whether_the_api_server_resizes_pods() {
    let fixture = Fixture::start().await;
    fixture.apply_limited(1);
    let mut new = fixture.web();
    new["spec"]["template"]["spec"]["containers"][0]["resources"] = of(["1", "64Mi"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.yaml");
    std::fs::write(&file, new.to_string()).unwrap();
    let plan = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_inplace"));
        command.args(["plan", "gamedeployment/web", "-f"]).arg(&file);
        let output = command.arg("--kubeconfig").arg(fixture.api.kubeconfig()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, text) = plan();
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains(
            "limits.cpu: refused: cannot be changed in a running pod: the API server has no resize"
        ),
        "{text}"
    );
    fixture.api.store(|store| store.resizes = true);
    let (code, text) = plan();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("limits.cpu: in place: the running pod is resized"), "{text}");
}
