//! The addresses of the pods of a group, as a client learns them from the API server. Must not send requests.

use std::net::SocketAddr;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod as Object;
use kube::Api;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::task::JoinHandle;

use crate::client::Addresses;
use crate::cluster::{Cluster, runtime};
use crate::pod::is_ready;

/// The label of the pods of a group.
pub(crate) const GROUP: &str = "bench";
/// The port of the servers.
const PORT: u16 = 8080;

/// Which addresses a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The address of one pod, Ready or not, until another pod is Ready in its place.
    Pod,
    /// The addresses of the two pods, without those of a pod that is not Ready or is being deleted, as a Service has them.
    TwoEndpoints,
}

impl Target {
    /// How many pods a group has.
    pub(crate) fn pods(self) -> usize {
        match self {
            Self::Pod => 1,
            Self::TwoEndpoints => 2,
        }
    }
}

/// Keeps the addresses of a group up to date until dropped.
pub(crate) struct Endpoints {
    pub(crate) addresses: Addresses,
    watching: JoinHandle<()>,
}

impl Endpoints {
    pub(crate) fn follow(cluster: &Cluster, group: &str, target: Target) -> Self {
        let addresses = Addresses::default();
        let api: Api<Object> = Api::namespaced(cluster.client.clone(), "default");
        let of = watcher::Config::default().labels(&format!("{GROUP}={group}"));
        let watching = runtime().spawn(follow(api, of, target, addresses.clone()));
        Self { addresses, watching }
    }
}

impl Drop for Endpoints {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

async fn follow(api: Api<Object>, of: watcher::Config, target: Target, addresses: Addresses) {
    let mut events = Box::pin(watcher(api, of));
    let mut pods = Vec::<Object>::new();
    while let Some(event) = events.next().await {
        let uid = |pod: &Object| pod.metadata.uid.clone();
        match event.expect("the API server runs") {
            Event::Init => pods.clear(),
            Event::InitDone => {}
            Event::InitApply(pod) | Event::Apply(pod) => {
                match pods.iter_mut().find(|old| uid(old) == uid(&pod)) {
                    Some(old) => *old = pod,
                    None => pods.push(pod),
                }
            }
            Event::Delete(pod) => pods.retain(|old| uid(old) != uid(&pod)),
        }
        let mut serving: Vec<_> = pods.iter().filter_map(address).collect();
        if target == Target::Pod {
            serving.drain(..serving.len().saturating_sub(1));
            if serving.is_empty() {
                continue;
            }
        }
        addresses.set(serving);
    }
}

/// The address of a pod that is Ready and stays.
fn address(pod: &Object) -> Option<SocketAddr> {
    let stays = pod.metadata.deletion_timestamp.is_none();
    let ip = pod.status.as_ref()?.pod_ip.as_ref().filter(|_| stays && is_ready(pod))?;
    Some(SocketAddr::new(ip.parse().ok()?, PORT))
}
