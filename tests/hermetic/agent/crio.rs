//! The agent with CRI-O, which does not report a container's configuration and answers a taken name with the
//! existing container. The agent cannot clone a container there, and creates nothing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::api_server::Store;
use super::super::runtime::Exec;
use super::Town;

fn spec_image(pod: &Value) -> String {
    pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()
}

impl Town {
    /// One node with CRI-O 1.37, the pod `web-0`, and a kubelet that follows the pod's spec.
    pub(super) async fn with_crio() -> Arc<Self> {
        let town = Arc::new(Self::found().await);
        town.runtime.model(super::super::runtime::Model::become_crio);
        town.pod("web-0");
        town.kubelet_of_spec("web-0");
        town
    }

    /// A kubelet that replaces the container when the image in the spec changes, restarts it once per image when it
    /// ends, and reports the running container.
    fn kubelet_of_spec(self: &Arc<Self>, name: &'static str) {
        let town = Arc::clone(self);
        tokio::spawn(async move {
            let what = format!("{name}/app");
            let (mut spec, mut restarted) = (spec_image(&town.api.pod("shop", name)), false);
            let image = |store: &Store| store.pod("shop", name).map(|pod| spec_image(&pod));
            loop {
                let changed =
                    town.api.until("another image", |store| image(store).is_some_and(|now| now != spec));
                if restarted {
                    // In back-off, only a new image starts a container.
                    changed.await;
                } else {
                    let ended = town.runtime.until("an end", |model| model.running(&what).is_empty());
                    tokio::select! {
                        () = changed => {}
                        () = ended => {}
                    }
                }
                let now = spec_image(&town.api.pod("shop", name));
                restarted = now == spec;
                spec = now;
                let started = town.runtime.model(|model| {
                    if restarted { model.kubelet_restarts(&what) } else { model.kubelet_swaps(&what, &spec) }
                });
                let id = started.unwrap();
                let attempt = town.runtime.model(|model| model.container(&id).unwrap().attempt());
                town.api.edit("shop", name, |pod| super::show(pod, &id, attempt));
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
    let town = Town::with_crio().await;
    let _agent = town.agent().await;
    town.pod_request("web-0", Some("swap app=img:v2"));
    let status = town.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["containers"][0]["engine"], "Respec", "{status:#}");
    assert_eq!(town.runtime.only("web-0/app").image(), "img:v2");
    town.nothing_was_made();
    let pulled = town.runtime.model(|model| model.pulled_for.clone());
    let [Some(sandbox), ..] = pulled.as_slice() else { panic!("{pulled:?}") };
    // CRI-O has a signature policy per namespace.
    let metadata = sandbox.metadata.as_ref().unwrap();
    assert_eq!((metadata.namespace.as_str(), metadata.name.as_str()), ("shop", "web-0"));
    assert_eq!(sandbox.labels["io.kubernetes.pod.uid"], metadata.uid);
}

#[tokio::test]
async fn a_restart_is_left_to_the_kubelet() {
    let town = Town::with_crio().await;
    let _agent = town.agent().await;
    for (id, engine, taken) in [("auto", "Auto", "Respec"), ("stop", "Stop", "Stop")] {
        let before = town.runtime.only("web-0/app");
        town.pod_request(
            "web-0",
            Some(&json!({ "id": id, "containers": [{ "name": "app" }], "engine": engine }).to_string()),
        );
        let status = town.reported("web-0", id, "Succeeded").await;
        assert_eq!(status["containers"][0]["engine"], taken, "{status:#}");
        let after = town.runtime.only("web-0/app");
        assert_eq!((after.attempt(), after.image_id), (before.attempt() + 1, before.image_id));
    }
    town.pod_request("web-0", Some(r#"{"id":"clone","containers":[{"name":"app"}],"engine":"Recreate"}"#));
    let status = town.reported("web-0", "clone", "Refused").await;
    assert_eq!(status["reason"], "RuntimeUnsupported", "{status:#}");
    town.nothing_was_made();
}

#[tokio::test]
async fn an_image_that_ends_is_rolled_back() {
    let town = Town::with_crio().await;
    town.runtime.model(|model| model.image("img:v2").dies_after = Some((Duration::from_millis(20), 3)));
    let _agent = town.agent().await;
    town.pod_request("web-0", Some("swap app=img:v2"));
    let status = town.reported("web-0", "text-", "RolledBack").await;
    assert_eq!(status["reason"], "Exited", "{status:#}");
    assert_eq!(town.runtime.only("web-0/app").image(), "img:v1");
    assert_eq!(spec_image(&town.api.pod("shop", "web-0")), "img:v1");
    town.nothing_was_made();
}

#[tokio::test]
async fn hooks_run_before_and_after() {
    let town = Town::with_crio().await;
    town.runtime.exec(|container, _| Exec::ok(container.image()));
    for (name, image) in [("before", "img:v1"), ("after", "img:v2")] {
        town.api.put(json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
            "metadata": { "namespace": "shop", "name": name },
            "spec": { "metrics": [{ "name": "runs", "count": 1, "successCondition": format!("result == '{image}'"),
                "provider": { "exec": { "container": "app", "command": ["which"] } } }] } }));
    }
    let _agent = town.agent().await;
    let request = json!({ "id": "hooked", "containers": [{ "name": "app", "image": "img:v2" }],
        "preHook": { "templateName": "before" }, "postHook": { "templateName": "after" } });
    town.pod_request("web-0", Some(&request.to_string()));
    town.reported("web-0", "hooked", "Succeeded").await;
    assert_eq!(town.runtime.calls("ExecSync").len(), 2);
    town.nothing_was_made();
}
