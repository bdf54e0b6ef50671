//! An API server, the shipped controller and simulated nodes, and what a test does with them.

use std::{
    fs,
    process::{Child, Command, Stdio},
    time::Duration,
};

use inplace::api::game_deployment::GameDeployment;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::time::{sleep, timeout};

use super::{
    figures::{Figures, at_rest},
    nodes::{Nodes, seconds},
    sizes::Sizes,
};
use crate::support::{panics, process::Process};
use crate::{api_server::ApiServer, installed::binary};

/// Changes of pods that need no action of the controller.
const NOISE: u32 = 500;
/// Changes of pods after each of which the controller decides again, and the time between them, so that no two are
/// decided together.
const DECIDED: u32 = 40;
const APART: Duration = Duration::from_millis(250);

pub(super) struct World {
    pub(super) client: Client,
    pub(super) nodes: Nodes,
    pub(super) sizes: Sizes,
    controller: Controller,
}

impl World {
    /// An API server, a controller, and nodes without pods.
    pub(super) async fn start(sizes: Sizes) -> (Self, ApiServer) {
        let server = ApiServer::start().await;
        server.know_our_kinds().await;
        // Without the webhooks, which are not reachable here.
        for file in ["namespace", "controller-rbac"] {
            let done = server.kubectl(&["apply", "-f", &format!("daemonset/base/{file}.yaml")], "");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        let client = server.admin().await;
        // A controller would create the service account.
        let account: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
        let accounts = Api::default_namespaced(client.clone());
        accounts.create(&PostParams::default(), &account).await.unwrap();
        let nodes = Nodes::start(&client, sizes).await;
        let controller = Controller::start(&server).await;
        (Self { client, nodes, sizes, controller }, server)
    }

    /// The controller's process.
    fn process(&self) -> Process {
        Process(self.controller.process.id())
    }

    pub(super) async fn create(&self, name: &str, replicas: u32) {
        let object: GameDeployment = serde_json::from_value(manifest(name, replicas)).unwrap();
        let api = Api::default_namespaced(self.client.clone());
        api.create(&PostParams::default(), &object).await.unwrap();
        self.all_at(name, replicas, "app:v1").await;
    }

    pub(super) async fn set_image(&self, name: &str, image: &str) {
        self.replace(name, "/spec/template/spec/containers/0/image", json!(image)).await;
    }

    /// Replaces the controller by a new one, and waits until that has created a pod of the workload, which then has
    /// this number of pods.
    pub(super) async fn replace_controller(&mut self, server: &ApiServer, name: &str, replicas: u32) {
        self.controller = Controller::start(server).await;
        self.replace(name, "/spec/replicas", json!(replicas)).await;
        self.all_at(name, replicas, "app:v1").await;
    }

    async fn replace(&self, name: &str, field: &str, value: Value) {
        let patch = json!([{"op": "replace", "path": field, "value": value}]);
        let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
        let api: Api<GameDeployment> = Api::default_namespaced(self.client.clone());
        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until this number of pods exists, all with that image and Ready, according to the workload's status.
    pub(super) async fn all_at(&self, name: &str, replicas: u32, image: &str) {
        let wanted = i32::try_from(replicas).unwrap();
        let image = json!(image);
        let api: Api<GameDeployment> = Api::default_namespaced(self.client.clone());
        let is_so = |object: Option<&GameDeployment>| {
            let Some((object, status)) = object.and_then(|object| Some((object, object.status.as_ref()?)))
            else {
                return false;
            };
            object.spec.template.0["spec"]["containers"][0]["image"] == image
                && object.metadata.generation == Some(status.observed_generation)
                && [status.replicas, status.updated_ready_replicas] == [wanted; 2]
        };
        if let Ok(found) = timeout(self.sizes.long(), await_condition(api.clone(), name, is_so)).await {
            found.unwrap();
            return;
        }
        let status = api.get(name).await.unwrap().status;
        panic!("{name} does not get there: {status:#?}\n{:?}", self.nodes);
    }

    /// The controller's processor time in milliseconds per change of a pod that needs no action.
    pub(super) async fn noise(&self, workload: &str) -> f64 {
        let (api, name) = self.one_of(workload).await;
        let before = at_rest(self.process()).await;
        for number in 0..NOISE {
            let patch = json!({"metadata": {"annotations": {"noise": number.to_string()}}});
            api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
        at_rest(self.process()).await.saturating_sub(before).as_secs_f64() * 1000.0 / f64::from(NOISE)
    }

    /// The same per change after which the controller decides about the workload again and writes its status: a pod
    /// becomes unready, or ready.
    pub(super) async fn decided(&self, workload: &str) -> f64 {
        let (api, name) = self.one_of(workload).await;
        let before = at_rest(self.process()).await;
        for number in 0..DECIDED {
            let is = if number % 2 == 0 { "False" } else { "True" };
            let ready = json!({"type": "Ready", "status": is, "lastTransitionTime": seconds()});
            let patch = Patch::Strategic(json!({"status": {"conditions": [ready]}}));
            api.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
            sleep(APART).await;
        }
        at_rest(self.process()).await.saturating_sub(before).as_secs_f64() * 1000.0 / f64::from(DECIDED)
    }

    /// The name of a pod of the workload.
    async fn one_of(&self, workload: &str) -> (Api<Pod>, String) {
        let api: Api<Pod> = Api::default_namespaced(self.client.clone());
        let selection = ListParams::default().labels(&format!("app={workload}")).limit(1);
        let pods = api.list_metadata(&selection).await.unwrap();
        (api, pods.items[0].metadata.name.clone().unwrap())
    }

    pub(super) async fn figures(&self) -> Figures {
        at_rest(self.process()).await;
        Figures::now(&self.client, self.process(), &self.nodes).await
    }
}

/// The shipped controller, with the rights of its account; killed when dropped.
struct Controller {
    process: Child,
    log: NamedTempFile,
}

impl Controller {
    async fn start(server: &ApiServer) -> Self {
        let accounts = Api::<ServiceAccount>::namespaced(server.admin().await, "inplace-system");
        let request = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
        let made =
            accounts.create_token_request("inplace-controller", &PostParams::default(), &request).await;
        let kubeconfig = server.kubeconfig_of(&made.unwrap().status.unwrap().token);
        // A file of its own: the folder of the API server may be removed before the controller ends.
        let log = NamedTempFile::new().unwrap();
        let mut command = Command::new(binary());
        command.args(["controller", "--namespace", "inplace-system", "--identity", "one"]);
        command.args(["--listen", "127.0.0.1:0"]).env("KUBECONFIG", kubeconfig);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.reopen().unwrap());
        Self { process: command.spawn().unwrap(), log }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        panics::assert_none(|| fs::read_to_string(self.log.path()).unwrap());
    }
}

fn manifest(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": "10%"},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "automountServiceAccountToken": false,
                    "containers": [{"name": "app", "image": "app:v1"}],
                },
            },
        },
    })
}
