//! The agent with CRI-O, which does not report a container's configuration and answers a taken name with the
//! existing container. The agent cannot clone a container there, and creates nothing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::api_server::Store;
use super::super::runtime::Exec;
use super::Fixture;

fn spec_image(pod: &Value) -> String {
    pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
}

impl Fixture {
    /// One node with CRI-O 1.37, the pod `web-0`, and a kubelet that follows the pod's spec.
    pub(super) async fn with_crio() -> Arc<Self> {
        let fixture = Arc::new(Self::found().await);
        fixture.runtime.model(super::super::runtime::Model::become_crio);
        fixture.pod("web-0");
        fixture.kubelet_of_spec("web-0");
        fixture
    }

    /// A kubelet that replaces the container when the image in the spec changes, restarts it once per image when it
    /// ends, and reports the running container.
    fn kubelet_of_spec(self: &Arc<Self>, name: &'static str) {
        let fixture = Arc::clone(self);
        tokio::spawn(async move {
            let what = format!("{name}/app");
            let (mut spec, mut restarted) = (spec_image(&fixture.api.pod("shop", name)), false);
            let image = |store: &Store| store.pod("shop", name).map(|pod| spec_image(&pod));
            loop {
                let changed =
                    fixture.api.until("another image", |store| image(store).is_some_and(|now| now != spec));
                if restarted {
                    // In back-off, only a new image starts a container.
                    changed.await;
                } else {
                    let ended = fixture.runtime.until("an end", |model| model.running(&what).is_empty());
                    tokio::select! {
                        () = changed => {}
                        () = ended => {}
                    }
                }
                let now = spec_image(&fixture.api.pod("shop", name));
                restarted = now == spec;
                spec = now;
                let started = fixture.runtime.model(|model| {
                    if restarted { model.kubelet_restarts(&what) } else { model.kubelet_swaps(&what, &spec) }
                });
                let id = started.unwrap();
                let attempt = fixture.runtime.model(|model| model.container(&id).unwrap().attempt());
                fixture.api.edit("shop", name, |pod| super::show(pod, &id, attempt));
            }
        });
    }

    /// Asserts that nothing was created, started or removed through the runtime's socket.
    #[track_caller]
    fn nothing_was_made(&self) {
        let made: Vec<_> = self.runtime.story();
        let forbidden = ["CreateContainer", "StartContainer", "RemoveContainer", "UpdateContainerResources"];
        let made: Vec<_> =
            made.iter().filter(|call| forbidden.iter().any(|start| call.starts_with(start))).collect();
        assert!(made.is_empty(), "{made:?}");
    }
}

#[tokio::test]
async fn a_swap_is_pulled_for_the_pod_and_left_to_its_kubelet() {
    let fixture = Fixture::with_crio().await;
    let _agent = fixture.agent().await;
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    let status = fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["containers"][0]["engine"], "Respec", "{status:#}");
    assert_eq!(fixture.runtime.only("web-0/app").image(), "img:v2");
    fixture.nothing_was_made();
    let pulled = fixture.runtime.model(|model| model.pulled_for.clone());
    let [Some(sandbox), ..] = pulled.as_slice() else { panic!("{pulled:?}") };
    // CRI-O has a signature policy per namespace.
    let metadata = sandbox.metadata.as_ref().unwrap();
    assert_eq!((metadata.namespace.as_str(), metadata.name.as_str()), ("shop", "web-0"));
    assert_eq!(sandbox.labels["io.kubernetes.pod.uid"], metadata.uid);
}

#[tokio::test]
async fn a_restart_is_left_to_the_kubelet() {
    let fixture = Fixture::with_crio().await;
    let _agent = fixture.agent().await;
    for (id, engine, taken) in [("auto", "Auto", "Respec"), ("stop", "Stop", "Stop")] {
        let before = fixture.runtime.only("web-0/app");
        fixture.pod_request(
            "web-0",
            Some(&json!({ "id": id, "containers": [{ "name": "app" }], "engine": engine }).to_string()),
        );
        let status = fixture.reported("web-0", id, "Succeeded").await;
        assert_eq!(status["containers"][0]["engine"], taken, "{status:#}");
        let after = fixture.runtime.only("web-0/app");
        assert_eq!((after.attempt(), after.image_id), (before.attempt() + 1, before.image_id));
    }
    fixture.pod_request("web-0", Some(r#"{"id":"clone","containers":[{"name":"app"}],"engine":"Recreate"}"#));
    let status = fixture.reported("web-0", "clone", "Refused").await;
    assert_eq!(status["reason"], "RuntimeUnsupported", "{status:#}");
    fixture.nothing_was_made();
}

#[tokio::test]
async fn an_image_that_ends_is_rolled_back() {
    let fixture = Fixture::with_crio().await;
    fixture.runtime.model(|model| model.image("img:v2").dies_after = Some((Duration::from_millis(20), 3)));
    let _agent = fixture.agent().await;
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    let status = fixture.reported("web-0", "text-", "RolledBack").await;
    assert_eq!(status["reason"], "Exited", "{status:#}");
    assert_eq!(fixture.runtime.only("web-0/app").image(), "img:v1");
    assert_eq!(spec_image(&fixture.api.pod("shop", "web-0")), "img:v1");
    fixture.nothing_was_made();
}

/// CRI-O before 1.28 lists the image of a container by a digest of its repository, which is not the ID of the pulled image.
#[tokio::test]
async fn an_image_that_is_listed_by_its_digest_is_the_one_that_was_pulled() {
    for (ends, phase, image) in [(false, "Succeeded", "img:v2"), (true, "RolledBack", "img:v1")] {
        let fixture = Fixture::with_crio().await;
        fixture.runtime.model(super::super::runtime::Model::become_old_crio);
        if ends {
            let soon = Some((Duration::from_millis(20), 3));
            fixture.runtime.model(|model| model.image("img:v2").dies_after = soon);
        }
        let _agent = fixture.agent().await;
        fixture.pod_request("web-0", Some("swap app=img:v2"));
        let status = fixture.reported("web-0", "text-", phase).await;
        assert_eq!(fixture.runtime.only("web-0/app").image(), image, "{status:#}");
        fixture.nothing_was_made();
    }
}

#[tokio::test]
async fn hooks_run_before_and_after() {
    let fixture = Fixture::with_crio().await;
    fixture.runtime.exec(|container, _| Exec::ok(container.image()));
    for (name, image) in [("before", "img:v1"), ("after", "img:v2")] {
        fixture.api.put(json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
            "metadata": { "namespace": "shop", "name": name },
            "spec": { "metrics": [{ "name": "runs", "count": 1, "successCondition": format!("result == '{image}'"),
                "provider": { "exec": { "container": "app", "command": ["which"] } } }] } }));
    }
    let _agent = fixture.agent().await;
    let request = json!({ "id": "hooked", "containers": [{ "name": "app", "image": "img:v2" }],
        "preHook": { "templateName": "before" }, "postHook": { "templateName": "after" } });
    fixture.pod_request("web-0", Some(&request.to_string()));
    fixture.reported("web-0", "hooked", "Succeeded").await;
    assert_eq!(fixture.runtime.calls("ExecSync").len(), 2);
    fixture.nothing_was_made();
}
