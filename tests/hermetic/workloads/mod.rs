//! The controller of workloads against an API server that misbehaves: calls that are lost, late or refused, and
//! concurrent writes of other clients, change neither the number of pods nor what they run.
//!
//! The test plays the kubelets and the agents.

mod another;
mod budgets;
mod claims;
mod definitions;
mod denied;
mod faults;
mod hook_templates;
mod owners;
mod pages;
mod resizes;
mod sidecars;

use std::collections::BTreeSet;

use clap::Parser as _;
use inplace::api::request::Request;
use inplace::controller;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::api_server::{ApiServer, Store};
use super::argocd;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    args: controller::Args,
}

/// A fake cluster.
pub(crate) struct Fixture {
    pub(crate) api: ApiServer,
}

/// A controller; it ends when this is dropped, as if killed.
pub(crate) struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a controller that gets the lease at once.
pub(crate) fn controller_at(api: &ApiServer) -> Running {
    controller_with(api, &[])
}

/// The same with more flags.
pub(crate) fn controller_with(api: &ApiServer, flags: &[&str]) -> Running {
    let lead = |store: &mut Store| {
        if store.get("leases", "inplace-system", "inplace-controller").is_some() {
            store.remove_of("leases", "inplace-system", "inplace-controller");
        }
    };
    api.store(lead);
    let config = api.kubeconfig();
    let words =
        ["x", "--namespace=inplace-system", "--listen=127.0.0.1:0", "--kubeconfig", config.to_str().unwrap()];
    let args = Line::parse_from(words.iter().chain(flags)).args;
    Running(tokio::spawn(async move {
        controller::run(args).await.unwrap();
    }))
}

impl Fixture {
    pub(crate) async fn start() -> Self {
        // As in main.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { api: ApiServer::start().await }
    }

    /// Starts a controller that gets the lease at once.
    pub(crate) fn controller(&self) -> Running {
        controller_at(&self.api)
    }

    /// `shop/web`, updated in place.
    fn deployment(&self, replicas: u32) {
        self.api.put(json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
            "metadata": {"namespace": "shop", "name": "web", "generation": 1},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template("app:1"),
                "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1}},
        }));
    }

    fn web(&self) -> Value {
        self.api.get("gamedeployments", "shop", "web").unwrap()
    }

    /// The user changes the spec.
    fn spec(&self, change: impl FnOnce(&mut Value)) {
        self.api.edit_of("gamedeployments", "shop", "web", |web| {
            change(&mut web["spec"]);
            web["metadata"]["generation"] = json!(web["metadata"]["generation"].as_i64().unwrap() + 1);
        });
    }

    /// Kubelets start every pod.
    fn kubelet(&self) {
        let names: Vec<_> = self.api.store(|store| store.pods().map(name).collect());
        for name in names {
            self.api.edit("shop", &name, bring_up);
        }
    }

    /// Waits until there are this many pods and the status reports all of them as Ready.
    async fn ready(&self, many: usize) {
        self.api.until("the pods are there", |store| store.pods().count() == many).await;
        self.kubelet();
        self.reported("readyReplicas", many).await;
    }

    /// Waits for a number in the status of the newest generation.
    async fn reported(&self, field: &str, number: usize) {
        let what = format!("{field} is {number}");
        let is = |web: &Value| web["status"][field] == number;
        self.status(&what, is).await;
    }

    async fn status(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let of_now = |store: &Store| {
            let web = store.get("gamedeployments", "shop", "web").unwrap();
            web["status"]["observedGeneration"] == web["metadata"]["generation"] && is(&web)
        };
        self.api.until(what, of_now).await;
        let web = self.web();
        argocd::agrees(&web);
        web
    }

    fn names(&self) -> BTreeSet<String> {
        self.api.store(|store| store.pods().map(name).collect())
    }

    /// The agents carry out all requests until all pods have the image.
    async fn agents_bring(&self, image: &str, many: usize) {
        let done = |store: &Store| store.pods().filter(|pod| runs(pod) == image).count() == many;
        while !self.api.store(|store| done(store)) {
            let asked = |store: &Store| store.pods().any(|pod| open(pod).is_some()) || done(store);
            self.api.until("a pod is asked for", asked).await;
            let open = self
                .api
                .store(|store| store.pods().filter(|pod| open(pod).is_some()).map(name).collect::<Vec<_>>());
            // The budget is one.
            assert!(open.len() <= 1, "{open:?}");
            for name in open {
                self.api.edit("shop", &name, carry_out);
            }
        }
        self.reported("updatedReadyReplicas", many).await;
    }
}

fn template(image: &str) -> Value {
    json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": image}]}})
}

pub(crate) fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

fn runs(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap()
}

fn bring_up(pod: &mut Value) {
    pod["spec"]["nodeName"] = json!("node-1");
    pod["status"] = json!({"phase": "Running", "podIP": "10.0.0.7", "hostIP": "192.0.2.1",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-20T10:00:05Z"}]});
}

/// The request on a pod that has no answer yet.
pub(crate) fn open(pod: &Value) -> Option<Request> {
    let annotation = |key: &str| pod["metadata"]["annotations"][key].as_str();
    let request = Request::parse(annotation("inplace.dev/request")).unwrap()?;
    let answer = annotation("inplace.dev/status").unwrap_or("{}");
    let answer: Value = serde_json::from_str(answer).unwrap();
    (answer["id"] != request.id.as_str()).then_some(request)
}

fn carry_out(pod: &mut Value) {
    let request = open(pod).unwrap();
    for target in &request.containers {
        pod["spec"]["containers"][0]["image"] = json!(target.image);
    }
    let answer = json!({"id": request.id, "phase": "Succeeded", "step": null, "reason": "", "message": "",
        "startedAt": null, "finishedAt": null, "containers": []});
    pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
}
