//! What is read from and written to an API server, over real HTTP, against one that misbehaves.

mod connect;
mod credentials;
mod watch;
mod write;

use std::time::Duration;

use inplace::cluster::client::{Target, connect};
use inplace::cluster::pods::NodePods;
use inplace::operation::snapshot::PodRef;
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::api_server::{ApiServer, pods};

/// The node whose pods are watched.
const NODE: &str = "node-1";

/// A cluster and a watch of one of its nodes.
struct Site {
    api: ApiServer,
    pods: NodePods,
    /// Ends the watch when it is dropped.
    stop: DropGuard,
}

impl Site {
    /// With pod `shop/web-0`, which is known when this returns.
    async fn start() -> Self {
        let api = ApiServer::start().await;
        api.put(pods::pod("shop", "web-0", NODE));
        let site = Self::watching(api).await;
        site.until("it has synced", NodePods::is_current).await;
        site
    }

    /// Begins to watch.
    async fn watching(api: ApiServer) -> Self {
        let target = Target { kubeconfig: Some(api.kubeconfig()), context: None };
        let (client, _) = connect(&target).await.unwrap();
        let stop = CancellationToken::new();
        let pods = NodePods::watch(client, NODE, stop.clone());
        Self { api, pods, stop: stop.drop_guard() }
    }

    /// The pod as it was first.
    fn web(&self) -> PodRef {
        let pod = self.api.pod("shop", "web-0");
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        PodRef { namespace: "shop".into(), name: "web-0".into(), uid }
    }

    /// Waits for what the watch is to bring.
    async fn until(&self, what: &str, mut condition: impl FnMut(&NodePods) -> bool) {
        let mut pods = self.pods.clone();
        let coming = async {
            while !condition(&pods) {
                pods.changed().await;
            }
        };
        self.api.patiently(what, coming).await;
    }

    /// Waits until the watch has brought everything that the server has.
    async fn caught_up(&self) {
        let last = self.api.put(pods::pod("shop", "last", NODE));
        let uid = last["metadata"]["uid"].as_str().unwrap().to_owned();
        let last = PodRef { namespace: "shop".into(), name: "last".into(), uid };
        self.until("the last pod is known", |pods| pods.get(&last).is_some()).await;
        self.api.remove("shop", "last");
        self.until("the last pod is gone", |pods| pods.get(&last).is_none()).await;
        self.api.forget();
    }
}

/// The image of the first container.
fn image(pod: &Value) -> &str {
    pod["spec"]["containers"][0]["image"].as_str().unwrap()
}

/// What the pod's gate says: status and reason.
fn gate(pod: &Value) -> Option<(&str, &str)> {
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let gate = conditions.iter().find(|condition| condition["type"] == "InPlaceUpdateReady")?;
    Some((gate["status"].as_str().unwrap(), gate["reason"].as_str().unwrap()))
}

/// Long after every limit of a call.
const LONG: Duration = Duration::from_secs(60);
