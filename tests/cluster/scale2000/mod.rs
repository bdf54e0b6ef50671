//! Two thousand pods in one `GameDeployment` on a real API server: a whole update in place, its cost for the API
//! server and the controller, and that the budget holds at every moment. Nodes, kubelets and agents are simulated
//! by [`nodes`]. [`group`] has a group restart.

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

mod figures;
mod group;
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
    figures::{Figures, at_rest},
    nodes::Nodes,
};
use crate::support::process::Process;
use crate::{api_server::ApiServer, installed::binary};

const PODS: u32 = 2000;
/// Ten percent.
const BUDGET: u32 = PODS / 10;
/// Pods of a smaller workload, for comparison.
const FEW: u32 = 100;
/// Changes of pods that need no action of the controller.
const NOISE: u32 = 500;
/// Budget: calls of the controller per pod of the rollout. The request and its end, and a tenth for the
/// workload's own status and for occasional retries.
const CALLS: f64 = 2.2;
/// Budget: mebibytes of resident memory, twice the measured value.
const RSS: f64 = 60.0;
/// Time limit of a part on a busy machine.
const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn two_thousand_pods_are_updated_in_place_within_their_budget() {
    let (world, _server) = World::start().await;

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

    // The simulated nodes are slow enough that the budget is used up.
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
    _controller: Controller,
}

impl World {
    /// An API server, a controller, and nodes without pods.
    async fn start() -> (Self, ApiServer) {
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
        let nodes = Nodes::start(&client).await;
        let controller = Controller::start(&server).await;
        let process = Process(controller.0.id());
        (Self { client, nodes, process, _controller: controller }, server)
    }

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

    /// Waits until this number of pods exists, all with that image and Ready, according to the workload's status.
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

    /// The controller's processor time in milliseconds per change of a pod that needs no action.
    async fn noise(&self, workload: &str) -> f64 {
        let api: Api<Pod> = Api::default_namespaced(self.client.clone());
        let pods =
            api.list_metadata(&ListParams::default().labels(&format!("app={workload}"))).await.unwrap();
        let name = pods.items[0].metadata.name.clone().unwrap();
        let before = at_rest(self.process).await;
        for number in 0..NOISE {
            let patch = json!({"metadata": {"annotations": {"noise": number.to_string()}}});
            api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        }
        at_rest(self.process).await.saturating_sub(before).as_secs_f64() * 1000.0 / f64::from(NOISE)
    }

    async fn figures(&self) -> Figures {
        at_rest(self.process).await;
        Figures::now(&self.client, self.process, &self.nodes).await
    }
}

/// The shipped controller, with the rights of its account; killed when dropped.
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
