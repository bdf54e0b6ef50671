//! Two thousand pods in one `GameDeployment` on a real API server: a whole update in place, what it costs the API server and
//! the controller, and that the budget holds at every moment. Nodes, kubelets and agents are played by [`nodes`].

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

mod figures;
mod nodes;

use std::{
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
use tokio::time::timeout;

use self::{
    figures::{Figures, Process},
    nodes::Nodes,
};
use crate::{api_server::ApiServer, installed::binary};

const PODS: u32 = 2000;
/// Ten percent.
const BUDGET: u32 = PODS / 10;
/// A workload beside it, to compare with.
const FEW: u32 = 100;
/// Changes of pods that are none of the controller's business.
const NOISE: u32 = 500;
/// Calls of the controller per pod of the rollout: the request and its end; and a tenth for all that is told of the
/// workload itself, now and then tried again.
const CALLS: f64 = 2.2;
/// Mebibytes of resident memory: twice what was measured.
const RSS: f64 = 60.0;
/// How long a part may take on a machine that does much else.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn two_thousand_pods_are_updated_in_place_within_their_budget() {
    let server = ApiServer::start().await;
    server.know_our_kinds().await;
    // Without the webhooks: nobody could reach them here.
    for file in ["namespace", "controller-rbac"] {
        let done = server.kubectl(&["apply", "-f", &format!("daemonset/base/{file}.yaml")], "");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let client = server.admin().await;
    // A controller would make it.
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    let accounts = Api::default_namespaced(client.clone());
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let nodes = Nodes::start(&client).await;
    let controller = Controller::start(&server).await;
    let process = Process(controller.0.id());
    let world = World { client, nodes, process };

    world.create("few", FEW).await;
    let few = world.noise("few").await;

    let start = world.figures().await;
    world.create("many", PODS).await;
    let created = world.figures().await;
    start.until(&created).print("created", PODS);

    assert_eq!(world.nodes.most(), 0, "somebody was asked before there was anything to ask");
    world.set_image("many", "app:v2").await;
    world.all_at("many", PODS, "app:v2").await;
    let updated = world.figures().await;
    let rollout = created.until(&updated);
    rollout.print("updated in place", PODS);
    let most = world.nodes.most();
    let many = world.noise("many").await;
    eprintln!(
        "out at once: {most} of {BUDGET}; a change of a pod that is none of its business costs the controller {few:.2} ms \
         among {FEW} pods, {many:.2} ms among {PODS}"
    );

    // The nodes see to it that it is used up.
    assert_eq!(most, BUDGET);
    assert_eq!(world.nodes.done(), PODS, "each once");
    let calls = rollout.calls_per(PODS);
    assert!(calls <= CALLS, "{calls:.2} calls for a pod");
    assert!(updated.rss <= RSS, "{:.1} MiB", updated.rss);
}

struct World {
    client: Client,
    nodes: Nodes,
    process: Process,
}

impl World {
    async fn create(&self, name: &str, replicas: u32) {
        let object: GameDeployment = serde_json::from_value(manifest(name, replicas)).unwrap();
        let api = Api::default_namespaced(self.client.clone());
        api.create(&PostParams::default(), &object).await.unwrap();
        self.all_at(name, replicas, "app:v1").await;
    }

    async fn set_image(&self, name: &str, image: &str) {
        let patch =
            json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]);
        let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
        let api: Api<GameDeployment> = Api::default_namespaced(self.client.clone());
        api.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Waits until so many are there, all of them at that image and Ready, as the workload itself says.
    async fn all_at(&self, name: &str, replicas: u32, image: &str) {
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
        if let Ok(found) = timeout(LONG, await_condition(api.clone(), name, is_so)).await {
            found.unwrap();
            return;
        }
        let status = api.get(name).await.unwrap().status;
        panic!("{name} does not get there: {status:#?}\n{:?}", self.nodes);
    }

    /// What a change of one pod that asks for nothing costs the controller, in milliseconds of its time.
    async fn noise(&self, workload: &str) -> f64 {
        let api: Api<Pod> = Api::default_namespaced(self.client.clone());
        let pods =
            api.list_metadata(&ListParams::default().labels(&format!("app={workload}"))).await.unwrap();
        let name = pods.items[0].metadata.name.clone().unwrap();
        let before = self.process.at_rest().await;
        for number in 0..NOISE {
            let patch = json!({"metadata": {"annotations": {"noise": number.to_string()}}});
            api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
        self.process.at_rest().await.saturating_sub(before).as_secs_f64() * 1000.0 / f64::from(NOISE)
    }

    async fn figures(&self) -> Figures {
        self.process.at_rest().await;
        Figures::now(&self.client, &self.process, &self.nodes).await
    }
}

/// The controller as it is shipped, with the rights of its account; killed with the value.
struct Controller(Child);

impl Controller {
    async fn start(server: &ApiServer) -> Self {
        let accounts = Api::<ServiceAccount>::namespaced(server.admin().await, "inplace-system");
        let request = serde_json::from_value(json!({"spec": {"audiences": []}})).unwrap();
        let made =
            accounts.create_token_request("inplace-controller", &PostParams::default(), &request).await;
        let kubeconfig = server.kubeconfig_of(&made.unwrap().status.unwrap().token);
        let log = kubeconfig.with_extension("log");
        let mut command = Command::new(binary());
        command.args(["controller", "--namespace", "inplace-system", "--identity", "one"]);
        command.args(["--listen", "127.0.0.1:0"]).env("KUBECONFIG", kubeconfig);
        let log = std::fs::File::create(log).unwrap();
        Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
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
