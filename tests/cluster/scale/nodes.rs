//! Simulated nodes: the test writes what kubelets and agents would write about their pods.
//! A new pod is bound, runs, and becomes Ready with its gate open. A request is processed as by an agent beside a
//! kubelet: accepted, the image changed, the container down and up again, and the end reported. A container takes
//! half a second; the first ones wait until as many pods are down as the budget permits.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use inplace::api::{
    annotation::{GATE, REQUEST, STATUS},
    request::Request,
    status::{Action, ContainerInstance, ContainerReport, Engine, Phase, Status, Step},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
    runtime::watcher::{self, watcher},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Semaphore, watch::Sender},
    task::JoinHandle,
    time::{Instant, sleep},
};
use tokio_stream::StreamExt;

use super::{
    figures::Calls,
    lag::{Ledger, Watch},
    sizes::Sizes,
};

/// How long a container takes to start.
const START: Duration = Duration::from_millis(500);
/// Maximum number of concurrent requests to the API server.
const AT_ONCE: usize = 32;

/// The simulated nodes; they end when dropped.
pub(super) struct Nodes {
    shared: Arc<Shared>,
    watching: JoinHandle<()>,
}

struct Shared {
    pods: Api<Pod>,
    client: Client,
    sizes: Sizes,
    ledger: Ledger,
    /// When each request was seen, and when its end was written.
    asked: Mutex<Vec<Instant>>,
    ended: Mutex<Vec<Instant>>,
    registry_gate: Semaphore,
    up: AtomicU32,
    out: AtomicU32,
    most: Sender<u32>,
    done: AtomicU32,
    patches: AtomicU32,
    statuses: AtomicU32,
    bindings: AtomicU32,
}

impl Nodes {
    pub(super) async fn start(client: &Client, sizes: Sizes) -> Self {
        let api: Api<Node> = Api::all(client.clone());
        for number in 0..sizes.nodes {
            let node = json!({"metadata": {"name": format!("node-{number}")}});
            api.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        }
        let shared = Arc::new(Shared {
            pods: Api::default_namespaced(client.clone()),
            client: client.clone(),
            sizes,
            ledger: Ledger::default(),
            asked: Mutex::default(),
            ended: Mutex::default(),
            registry_gate: Semaphore::new(AT_ONCE),
            up: AtomicU32::new(0),
            out: AtomicU32::new(0),
            most: Sender::new(0),
            done: AtomicU32::new(0),
            patches: AtomicU32::new(0),
            statuses: AtomicU32::new(0),
            bindings: AtomicU32::new(0),
        });
        let watching = tokio::spawn(serve(Arc::clone(&shared)));
        Self { shared, watching }
    }

    /// Maximum number of pods with a running request at once.
    pub(super) fn most(&self) -> u32 {
        *self.shared.most.borrow()
    }

    /// Number of finished requests.
    pub(super) fn done(&self) -> u32 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// When each pod was written, and when a watch had that.
    pub(super) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// The times from the end of a pod until the request of the next one was seen, once as many pods are down as the
    /// budget permits. The shortest first.
    pub(super) fn reactions(&self) -> Vec<Duration> {
        let sorted = |times: &Mutex<Vec<Instant>>| {
            let mut times = times.lock().unwrap().clone();
            times.sort();
            times
        };
        let asked =
            sorted(&self.shared.asked).into_iter().skip(usize::try_from(self.shared.sizes.budget()).unwrap());
        let pairs = asked.zip(sorted(&self.shared.ended));
        let mut reactions: Vec<_> =
            pairs.map(|(asked, ended)| asked.saturating_duration_since(ended)).collect();
        reactions.sort();
        reactions
    }

    /// The nodes' own requests to the API server.
    pub(super) fn calls(&self) -> Calls {
        let count = |number: &AtomicU32| f64::from(number.load(Ordering::Relaxed));
        Calls::from([
            ("PATCH pods".to_owned(), count(&self.shared.patches)),
            ("PATCH pods/status".to_owned(), count(&self.shared.statuses)),
            ("POST pods/binding".to_owned(), count(&self.shared.bindings)),
        ])
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |number: &AtomicU32| number.load(Ordering::Relaxed);
        write!(
            out,
            "{} pods came up, {} requests have ended, {} are open",
            count(&self.shared.up),
            self.done(),
            count(&self.shared.out)
        )
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Processes new pods, and new requests on pods.
async fn serve(shared: Arc<Shared>) {
    let metadata: Api<PartialObjectMeta<Pod>> = Api::default_namespaced(shared.client.clone());
    let events = watcher(metadata, watcher::Config::default());
    tokio::pin!(events);
    let mut known: HashMap<String, Option<String>> = HashMap::new();
    while let Some(event) = events.next().await {
        let (watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) = event.unwrap() else { continue };
        let name = pod.metadata.name.unwrap();
        shared.ledger.saw(Watch::All, &name, pod.metadata.resource_version.as_deref());
        let text = pod.metadata.annotations.as_ref().and_then(|all| all.get(REQUEST)).map(String::as_str);
        let request = Request::parse(text).unwrap();
        let number = known.len();
        let id = request.as_ref().map(|request| request.id.clone());
        match known.insert(name.clone(), id.clone()) {
            None => drop(tokio::spawn(Arc::clone(&shared).come_up(name, number))),
            Some(last) if id.is_some() && last != id => {
                shared.asked.lock().unwrap().push(Instant::now());
                drop(tokio::spawn(Arc::clone(&shared).carry_out(name, request.unwrap())));
            }
            Some(_) => {}
        }
    }
}

impl Shared {
    async fn come_up(self: Arc<Self>, name: String, number: usize) {
        let nodes = usize::try_from(self.sizes.nodes).unwrap();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": format!("node-{}", number % nodes)},
        });
        {
            let _cycle = self.registry_gate.acquire().await.unwrap();
            let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"))
                .header("content-type", "application/json")
                .body(serde_json::to_vec(&binding).unwrap());
            self.client.request::<Value>(request.unwrap()).await.unwrap();
            self.bindings.fetch_add(1, Ordering::Relaxed);
        }
        self.report(&name, "app:v1", 0, true, Some(number)).await;
        self.up.fetch_add(1, Ordering::Relaxed);
    }

    async fn carry_out(self: Arc<Self>, name: String, request: Request) {
        let out = self.out.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.send_if_modified(|most| {
            let more = out > *most;
            *most = out.max(*most);
            more
        });
        let [target] = &request.containers[..] else { panic!("{request:?}") };
        let image = target.image.clone().unwrap();
        let mut answer = answer(&request, &image);
        self.answer(&name, &answer, None).await;
        answer.step = Some(Step::Swap);
        self.answer(&name, &answer, Some(&image)).await;
        self.report(&name, "app:v1", 0, false, None).await;
        self.most.subscribe().wait_for(|most| *most >= self.sizes.budget()).await.unwrap();
        sleep(START).await;
        self.report(&name, &image, 1, true, None).await;
        answer.phase = Phase::Succeeded;
        answer.finished_at = Some(now());
        // Counted before the write, because the controller may observe the write before this task continues.
        self.out.fetch_sub(1, Ordering::Relaxed);
        self.answer(&name, &answer, None).await;
        self.ended.lock().unwrap().push(Instant::now());
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes what the agent would write.
    async fn answer(&self, name: &str, answer: &Status, image: Option<&str>) {
        let mut patch =
            json!({"metadata": {"annotations": {STATUS: serde_json::to_string(answer).unwrap()}}});
        if let Some(image) = image {
            patch["spec"] = json!({"containers": [{"name": "app", "image": image}]});
        }
        let _cycle = self.registry_gate.acquire().await.unwrap();
        let patch = Patch::Strategic(patch);
        let sent = Instant::now();
        let pod = self.pods.patch_metadata(name, &PatchParams::default(), &patch).await.unwrap();
        self.ledger.wrote(name, pod.metadata.resource_version.as_deref(), sent);
        self.patches.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes what the kubelet would write. For a new pod that includes its address, and the gate that the agent
    /// opens.
    async fn report(&self, name: &str, image: &str, restarts: i32, ready: bool, new: Option<usize>) {
        let state = if ready { json!({"running": {"startedAt": now()}}) } else { json!({"waiting": {}}) };
        let is = |kind: &str, is: bool| json!({"type": kind, "status": if is { "True" } else { "False" }, "lastTransitionTime": seconds()});
        let mut status = json!({
            "phase": "Running",
            "conditions": [is("Ready", ready), is("ContainersReady", ready)],
            "containerStatuses": [{
                "name": "app", "image": image, "imageID": format!("{image}@id"), "ready": ready,
                "restartCount": restarts, "state": state, "containerID": format!("containerd://{restarts}"),
            }],
        });
        if let Some(number) = new {
            status["podIP"] = format!("10.{}.{}.1", number / 250, number % 250).into();
            status["conditions"].as_array_mut().unwrap().push(is(GATE, true));
        }
        let _cycle = self.registry_gate.acquire().await.unwrap();
        let patch = Patch::Strategic(json!({"status": status}));
        let sent = Instant::now();
        let pod = self.pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
        self.ledger.wrote(name, pod.metadata.resource_version.as_deref(), sent);
        self.statuses.fetch_add(1, Ordering::Relaxed);
    }
}

/// The status of a request that has just been accepted.
fn answer(request: &Request, image: &str) -> Status {
    let instance = |attempt: u32, image: &str| ContainerInstance {
        container_id: attempt.to_string(),
        attempt,
        image: image.to_owned(),
        image_id: format!("{image}@id"),
    };
    Status {
        id: request.id.clone(),
        phase: Phase::Running,
        step: Some(Step::Pull),
        reason: String::new(),
        message: String::new(),
        started_at: Some(now()),
        finished_at: None,
        group: None,
        containers: vec![ContainerReport {
            name: "app".to_owned(),
            action: Action::Swap,
            engine: Engine::Respec,
            from: instance(0, "app:v1"),
            to: Some(instance(1, image)),
            stopped_at: None,
            started_at: None,
            ready_at: None,
            downtime_ms: Some(500),
        }],
    }
}

#[allow(clippy::disallowed_methods, reason = "the cluster's time is the machine's")]
pub(super) fn now() -> Timestamp {
    Timestamp::now()
}

/// The current time in a kubelet's format.
pub(super) fn seconds() -> String {
    Timestamp::from_second(now().as_second()).unwrap().to_string()
}
