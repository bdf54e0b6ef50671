//! The objects for the policy tests: nodes, tokens and pods.

use std::cell::Cell;

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::{Value, json};

use super::cases::{OWN, answered, manifest, report, running};
use crate::api_server::ApiServer;
use crate::support::wait::{WAIT_LIMIT, eventually_async};

pub(super) const NAMESPACE: &str = "shop";

/// Two nodes, a namespace with its service account, and many pods; nothing runs them.
pub(super) struct World<'a> {
    pub(super) server: &'a ApiServer,
    /// The namespace of the agents.
    pub(super) home: &'static str,
    admin: Client,
    made: Cell<u32>,
}

impl<'a> World<'a> {
    pub(super) async fn new(server: &'a ApiServer) -> Self {
        let admin = server.admin().await;
        let world = Self { server, home: "inplace-system", admin, made: Cell::new(0) };
        let make = PostParams::default();
        for node in [OWN, "node-b"] {
            let node = serde_json::from_value(json!({"metadata": {"name": node}})).unwrap();
            Api::<Node>::all(world.admin.clone()).create(&make, &node).await.unwrap();
        }
        let shop = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
        Api::<Namespace>::all(world.admin.clone()).create(&make, &shop).await.unwrap();
        // A controller would create the service account.
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        Api::<ServiceAccount>::namespaced(world.admin.clone(), NAMESPACE)
            .create(&make, &account)
            .await
            .unwrap();
        world
    }

    /// Creates a pod that is Running according to its status.
    pub(super) async fn pod(&self, node: &str, request: &str, reported: Option<&str>) -> String {
        self.made.set(self.made.get() + 1);
        let name = format!("web-{}", self.made.get());
        let pods = Api::<Pod>::namespaced(self.admin.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &object(&name, node, request, reported)).await.unwrap();
        let status = json!({"status": running()});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        name
    }

    /// A token of the agent's service account, bound to a pod or to none.
    pub(super) async fn token(&self, pod: Option<&Pod>) -> String {
        let bound = pod.map(|pod| json!({"kind": "Pod", "apiVersion": "v1", "name": pod.metadata.name, "uid": pod.metadata.uid}));
        let request: TokenRequest =
            serde_json::from_value(json!({"spec": {"audiences": [], "boundObjectRef": bound}})).unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(self.admin.clone(), self.home);
        let made =
            accounts.create_token_request("inplace-agent", &PostParams::default(), &request).await.unwrap();
        made.status.unwrap().token
    }

    /// A client of the agent of `node`, with the token of its pod there.
    pub(super) async fn agent(&self, node: &str) -> Client {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": format!("inplace-agent-{node}")},
            "spec": {"nodeName": node, "serviceAccountName": "inplace-agent", "containers": [{"name": "agent", "image": "inplace"}]},
        }))
        .unwrap();
        let pods = Api::<Pod>::namespaced(self.admin.clone(), self.home);
        let pod = pods.create(&PostParams::default(), &pod).await.unwrap();
        self.server.client(&self.token(Some(&pod)).await).await
    }

    /// Waits until the policy is in force: the API server applies it a moment after it was written.
    pub(super) async fn in_force(&self, agent: &Client) {
        let pod = self.pod(OWN, "restart app", None).await;
        let pods = Api::<Pod>::namespaced(agent.clone(), NAMESPACE);
        let try_it = PatchParams { dry_run: true, ..PatchParams::default() };
        let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        eventually_async(WAIT_LIMIT, "the policy to come into force", async || {
            match pods.patch(&pod, &try_it, &label).await {
                Err(Error::Api(status)) if status.message.contains("ValidatingAdmissionPolicy") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// The largest request (64 containers, 16 KiB) is within the API server's cost limit of a policy.
    pub(super) async fn large(&self, agent: &Client) {
        let name = |index: usize| format!("container-{index:02}");
        let image =
            |index: usize, tag: &str| format!("registry.example/{}/app-{index}:{tag}", "team".repeat(30));
        let containers = |tag: &str| -> Vec<Value> {
            (0..64).map(|index| json!({"name": name(index), "image": image(index, tag)})).collect()
        };
        let request = json!({"containers": containers("v2"), "reason": "r".repeat(2500)}).to_string();
        assert!((14_000..16_384).contains(&request.len()), "{}", request.len());
        let pod = json!({
            "metadata": {"name": "large", "annotations": {"inplace.dev/request": request}},
            "spec": {"nodeName": OWN, "automountServiceAccountToken": false, "containers": containers("v1")},
        });
        let pods = Api::<Pod>::namespaced(self.admin.clone(), NAMESPACE);
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
        let own = Api::<Pod>::namespaced(agent.clone(), NAMESPACE);
        // Image by image and all at once; a status with a "from" for each; and no right for an image that is not
        // named.
        let status = |tag: &str| {
            let reports = (0..64).map(|index| report(&name(index), &image(index, tag))).collect();
            serde_json::to_string(&answered(reports)).unwrap()
        };
        for change in [
            json!({"metadata": {"annotations": {"inplace.dev/status": status("v1")}}}),
            json!({"spec": {"containers": containers("v2")[63..]}}),
            json!({"metadata": {"annotations": {"inplace.dev/status": status("v1").replace("Running", "Failed")}},
                "spec": {"containers": containers("v2")}}),
            json!({"spec": {"containers": containers("v1")}}),
        ] {
            own.patch("large", &PatchParams::default(), &Patch::Strategic(change)).await.unwrap();
        }
        let strange = Patch::Strategic(json!({"spec": {"containers": containers("v3")}}));
        let denied = own.patch("large", &PatchParams::default(), &strange).await.unwrap_err().to_string();
        assert!(denied.contains("names no image"), "{denied}");
    }

    /// If the account is given more rights than the shipped role, the policy still holds.
    pub(super) async fn with_every_right(&self, agent: &Client) {
        let pod = self.pod(OWN, "restart app", None).await;
        let binding = serde_json::from_value(json!({
            "metadata": {"name": "too-much"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "inplace-agent", "namespace": "inplace-system"}],
        }))
        .unwrap();
        let bindings = Api::<ClusterRoleBinding>::all(self.admin.clone());
        bindings.create(&PostParams::default(), &binding).await.unwrap();
        let nothing_else = |what: &str, done: Result<(), Error>| {
            let reported = done.unwrap_err().to_string();
            assert!(
                reported.contains("changes pods and their status, and nothing else"),
                "{what}: {reported}"
            );
        };
        let pods = Api::<Pod>::namespaced(agent.clone(), NAMESPACE);
        // RBAC is evaluated first, and takes effect after a moment.
        eventually_async(WAIT_LIMIT, "the new right to come into force", async || {
            match pods.delete(&pod, &DeleteParams::default()).await {
                Err(Error::Api(status)) if status.message.contains("cannot delete") => Err(status.message),
                _ => Ok(()),
            }
        })
        .await;
        nothing_else("delete", pods.delete(&pod, &DeleteParams::default()).await.map(drop));
        let made = object("made", OWN, "", None);
        nothing_else("create", pods.create(&PostParams::default(), &made).await.map(drop));
        nothing_else("evict", pods.evict(&pod, &EvictParams::default()).await.map(drop));
        let body = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "repo/app:v1"}]}});
        let debug = pods
            .patch_subresource("ephemeralcontainers", &pod, &PatchParams::default(), &Patch::Strategic(body))
            .await;
        nothing_else("ephemeral container", debug.map(drop));
    }
}

/// A [`manifest`] as an object.
pub(super) fn object(name: &str, node: &str, request: &str, reported: Option<&str>) -> Pod {
    serde_json::from_value(manifest(name, node, request, reported)).unwrap()
}
