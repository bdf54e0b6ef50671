//! Observes both nodes over CRI and the pods at the API server, independently of the program under test, as long as it
//! lives. Decides nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use inplace::{
    api::{
        annotation::{CONTAINER_NAME, HOLDER, POD_NAME, POD_UID, STANDBY},
        status::Phase,
    },
    cri::{
        client::Client,
        endpoint::Endpoint,
        error::Error,
        proto::v1::{Container, ContainerState},
    },
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, runtime::watcher};
use tokio::{task::JoinHandle, time::sleep};
use tokio_stream::StreamExt;

use super::{
    checker::Ends,
    history::{History, Instance, Sandbox},
};
use crate::{
    agent::status,
    cluster::{Cluster, Node, runtime},
    traffic::now,
};

/// The time between two observations of a node.
const PAUSE: Duration = Duration::from_millis(60);
/// A call that takes longer is made again.
const CALL: Duration = Duration::from_secs(5);

/// Nanoseconds since 1970.
pub(super) fn clock() -> i64 {
    i64::try_from(now().as_nanosecond()).unwrap()
}

/// The observations so far; ends when dropped.
pub(super) struct Watch {
    pub(super) history: Arc<Mutex<History>>,
    pub(super) pods: Arc<Mutex<Pods>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The pods of the namespace `default`, by name, as the API server showed them last.
#[derive(Default)]
pub(super) struct Pods {
    pub(super) by_name: BTreeMap<String, Pod>,
    ends: Ends,
    /// Requests that ended twice.
    pub(super) wrong: Vec<String>,
}

impl Watch {
    pub(super) fn begin(cluster: &Cluster, nodes: &[Node]) -> Self {
        let (history, pods) = (Arc::<Mutex<History>>::default(), Arc::<Mutex<Pods>>::default());
        let mut tasks = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let endpoint = Endpoint::parse(&node.endpoint).unwrap();
            tasks.push(runtime().spawn(observe(index, endpoint, Arc::clone(&history))));
        }
        let api = Api::namespaced(cluster.client.clone(), "default");
        tasks.push(runtime().spawn(follow(api, Arc::clone(&pods))));
        Self { history, pods, tasks }
    }

    /// The pod with that name, as it was shown last.
    pub(super) fn pod(&self, name: &str) -> Option<Pod> {
        self.pods.lock().unwrap().by_name.get(name).cloned()
    }

    /// How the request of the pod with that uid ended; `None` if its end was not seen.
    pub(super) fn end(&self, uid: &str, id: &str) -> Option<Phase> {
        self.pods.lock().unwrap().ends.of(uid, id)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn observe(node: usize, endpoint: Endpoint, history: Arc<Mutex<History>>) {
    let client = Client::new(&endpoint, None).within(CALL);
    loop {
        // A runtime that does not answer is asked again.
        if let Ok((instances, sandboxes)) = look(node, &client, &history).await {
            let at = clock();
            history.lock().unwrap().fold(node, at, instances, sandboxes);
        }
        sleep(PAUSE).await;
    }
}

/// All containers and sandboxes of pods. Times that are known are not asked for again.
async fn look(
    node: usize,
    client: &Client,
    history: &Mutex<History>,
) -> Result<(Vec<Instance>, Vec<Sandbox>), Error> {
    let mut instances = Vec::new();
    for container in client.containers(None).await? {
        let known = history.lock().unwrap().instances.get(&container.id).cloned();
        let Some(mut instance) = instance(node, &container, known) else { continue };
        let state = container.state();
        let is_missing = (state != ContainerState::ContainerCreated && instance.started_at == 0)
            || (state == ContainerState::ContainerExited && instance.finished_at == 0);
        if is_missing && let Some(answer) = client.container(&container.id, false).await? {
            let status = answer.status.unwrap_or_default();
            (instance.started_at, instance.finished_at) = (status.started_at, status.finished_at);
        }
        instances.push(instance);
    }
    let sandboxes = client.sandboxes(None).await?.into_iter().filter_map(|sandbox| {
        Some(Sandbox {
            uid: sandbox.labels.get(POD_UID)?.clone(),
            pod: sandbox.labels.get(POD_NAME)?.clone(),
            created_at: sandbox.created_at,
            id: sandbox.id,
            node,
            gone: None,
        })
    });
    Ok((instances, sandboxes.collect()))
}

fn instance(node: usize, container: &Container, known: Option<Instance>) -> Option<Instance> {
    let (labels, state) = (&container.labels, container.state());
    Some(Instance {
        id: container.id.clone(),
        node,
        sandbox: container.pod_sandbox_id.clone(),
        uid: labels.get(POD_UID)?.clone(),
        name: labels.get(CONTAINER_NAME)?.clone(),
        attempt: container.metadata.as_ref()?.attempt,
        is_fence: labels.contains_key(HOLDER),
        is_standby: labels.contains_key(STANDBY),
        is_running: state == ContainerState::ContainerRunning,
        is_created: state == ContainerState::ContainerCreated,
        ..known.unwrap_or_default()
    })
    .map(|instance| Instance { gone: None, ..instance })
}

/// Follows all pods. An outage of the API server is waited out.
async fn follow(api: Api<Pod>, pods: Arc<Mutex<Pods>>) {
    let events = watcher(api, watcher::Config::default());
    tokio::pin!(events);
    let mut listed = BTreeMap::new();
    while let Some(event) = events.next().await {
        let Ok(event) = event else {
            sleep(PAUSE).await;
            continue;
        };
        let mut pods = pods.lock().unwrap();
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(pod) => {
                pods.check(&pod);
                listed.insert(pod.metadata.name.clone().unwrap_or_default(), pod);
            }
            watcher::Event::InitDone => pods.by_name = std::mem::take(&mut listed),
            watcher::Event::Apply(pod) => {
                pods.check(&pod);
                pods.by_name.insert(pod.metadata.name.clone().unwrap_or_default(), pod);
            }
            watcher::Event::Delete(pod) => {
                pods.by_name.remove(pod.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }
}

impl Pods {
    fn check(&mut self, pod: &Pod) {
        let (Some(uid), Some(status)) = (&pod.metadata.uid, status(pod)) else { return };
        self.wrong.extend(self.ends.fold(uid, &status.id, status.phase));
    }
}
