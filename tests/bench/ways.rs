//! The ways to restart or update a server in a pod: by this project, by the kubelet, and with a new pod. Must not measure.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use inplace::api::status::Phase;
use inplace::cri::client::Client;
use k8s_openapi::api::core::v1::Pod as Object;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::cluster::{Cluster, block_on};
use crate::endpoints::{Endpoints, GROUP, Target};
use crate::pod::{Pod, container, is_ready};
use crate::support::wait::eventually;

/// The container of the manifests.
const CONTAINER: &str = "web";
/// Grace period of a stop on the node.
const GRACE: Duration = Duration::from_secs(30);
/// Time limit of an operation.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    StartFirstRestart,
    StartFirstSwap,
    StopFirstRestart,
    StopFirstSwap,
    /// The container is stopped on the node, and its kubelet starts it again.
    KubeletRestart,
    /// The image in the pod's spec is changed, as by `kubectl set image`.
    KubeletSwap,
    /// The pod is deleted, and a new one with the other image is created at once.
    Recreate,
}

impl Way {
    pub(crate) const ALL: [Self; 7] = [
        Self::StartFirstRestart,
        Self::StartFirstSwap,
        Self::StopFirstRestart,
        Self::StopFirstSwap,
        Self::KubeletRestart,
        Self::KubeletSwap,
        Self::Recreate,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::StartFirstRestart => "inplace, StartFirst: restart",
            Self::StartFirstSwap => "inplace, StartFirst: new image",
            Self::StopFirstRestart => "inplace, StopFirst: restart",
            Self::StopFirstSwap => "inplace, StopFirst: new image",
            Self::KubeletRestart => "kubelet: container stopped on the node",
            Self::KubeletSwap => "kubelet: image patched",
            Self::Recreate => "pod deleted, new one created",
        }
    }

    pub(crate) fn starts_first(self) -> bool {
        matches!(self, Self::StartFirstRestart | Self::StartFirstSwap)
    }

    /// Whether another image answers afterwards.
    pub(crate) fn swaps(self) -> bool {
        !matches!(self, Self::StartFirstRestart | Self::StopFirstRestart | Self::KubeletRestart)
    }

    /// Whether the kubelet, which delays a second start within ten minutes, creates the new container.
    pub(crate) fn needs_new_pods(self) -> bool {
        matches!(self, Self::KubeletRestart | Self::KubeletSwap | Self::Recreate)
    }
}

/// A server that a user could run: the manifest of its pod, with an image of the lab.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) spec: Value,
}

/// The pods that one client asks. The first one is operated on.
pub(crate) struct Group<'a> {
    cluster: &'a Cluster,
    server: &'a Server,
    name: String,
    pods: Vec<Pod<'a>>,
    /// Deleted with the group and not earlier, because that would shorten their grace period.
    replaced: Vec<Pod<'a>>,
    pub(crate) endpoints: Endpoints,
}

impl<'a> Group<'a> {
    /// Creates the pods, without waiting until they are Ready.
    pub(crate) fn create(cluster: &'a Cluster, server: &'a Server, target: Target) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", server.name, NEXT.fetch_add(1, Ordering::Relaxed));
        let pods = (0..target.pods()).map(|_| create(cluster, &name, server, None)).collect();
        let endpoints = Endpoints::follow(cluster, &name, target);
        Self { cluster, server, name, pods, replaced: Vec::new(), endpoints }
    }

    /// Waits until a client has the addresses of all pods.
    pub(crate) fn await_ready(&self) {
        eventually("all pods of the group are Ready", || {
            (self.endpoints.addresses.get().len() == self.pods.len()).then_some(())
        });
    }

    /// Restarts or updates the first pod's server, and waits until it is Ready again.
    pub(crate) fn operate(&mut self, way: Way, client: &Client) {
        let pod = &self.pods[0];
        let before = pod.get();
        let image = way.swaps().then(|| other(&image(&before)));
        match way {
            Way::StartFirstRestart | Way::StartFirstSwap => ask(pod, image.as_deref(), "StartFirst"),
            Way::StopFirstRestart | Way::StopFirstSwap => ask(pod, image.as_deref(), "StopFirst"),
            Way::KubeletRestart => block_on(client.stop(&id(&before).unwrap(), GRACE)).unwrap(),
            Way::KubeletSwap => {
                let patch = json!({"spec": {"containers": [{"name": CONTAINER, "image": image}]}});
                block_on(pod.api.patch(&pod.name, &PatchParams::default(), &Patch::Strategic(patch)))
                    .unwrap();
            }
            Way::Recreate => {
                block_on(pod.api.delete(&pod.name, &DeleteParams::default())).unwrap();
                let new = create(self.cluster, &self.name, self.server, image.as_deref());
                new.wait_for(WAIT_LIMIT, "it is Ready", is_ready);
                self.replaced.push(mem::replace(&mut self.pods[0], new));
                return;
            }
        }
        pod.wait_for(WAIT_LIMIT, "another container is Ready", |pod| {
            is_ready(pod) && container(pod, CONTAINER).is_some_and(|web| web.ready) && id(pod) != id(&before)
        });
    }
}

fn create<'a>(cluster: &'a Cluster, group: &str, server: &Server, image: Option<&str>) -> Pod<'a> {
    let mut spec = server.spec.clone();
    if let Some(image) = image {
        spec["containers"][0]["image"] = image.into();
    }
    Pod::make(cluster, server.name, json!({"metadata": {"labels": {GROUP: group}}, "spec": spec}))
}

/// Restarts or updates in place through a request.
fn ask(pod: &Pod<'_>, image: Option<&str>, order: &str) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let id = format!("bench-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let mut target = json!({"name": CONTAINER});
    if let Some(image) = image {
        target["image"] = image.into();
    }
    pod.ask(&json!({"id": id, "containers": [target], "order": order}).to_string(), Phase::Succeeded);
}

/// The image in the pod's spec.
fn image(pod: &Object) -> String {
    pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
}

/// The other one of the two images of a server.
fn other(image: &str) -> String {
    let (repository, tag) = image.rsplit_once(':').unwrap();
    format!("{repository}:{}", if tag == "v1" { "v2" } else { "v1" })
}

/// The runtime's id of the container, as the kubelet reports it.
fn id(pod: &Object) -> Option<String> {
    Some(container(pod, CONTAINER)?.container_id.as_ref()?.rsplit('/').next()?.to_owned())
}
