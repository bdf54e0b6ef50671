//! Reads from and writes to an API server, over real HTTP, against a fake that misbehaves.

mod agents;
mod connect;
mod credentials;
mod groups;
mod watch;
mod write;

use std::time::Duration;

use inplace::api::pod_ref::PodRef;
use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::pod::FurtherGates;
use inplace::cluster::pods::NodePods;
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::api_server::{ApiServer, pods};

/// The node whose pods are watched.
const NODE: &str = "node-1";

/// A fake API server, and a watch of the pods of one of its nodes.
struct Fixture {
    api: ApiServer,
    pods: NodePods,
    /// Ends the watch when it is dropped.
    stop: DropGuard,
}

impl Fixture {
    /// Starts with the pod `shop/web-0`, which is cached when this returns.
    async fn start() -> Self {
        let api = ApiServer::start().await;
        api.put(pods::pod("shop", "web-0", NODE));
        let fixture = Self::watching(api).await;
        fixture.until("it has synced", NodePods::is_current).await;
        fixture
    }

    /// Starts a watch.
    async fn watching(api: ApiServer) -> Self {
        let target = ConnectOptions { kubeconfig: Some(api.kubeconfig()), ..ConnectOptions::default() };
        let (client, _) = connect(&target).await.unwrap();
        let stop = CancellationToken::new();
        let pods = NodePods::watch(client, NODE, FurtherGates::default(), stop.clone());
        Self { api, pods, stop: stop.drop_guard() }
    }

    /// The reference to the present pod `shop/web-0`.
    fn web(&self) -> PodRef {
        let pod = self.api.pod("shop", "web-0");
        let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
        PodRef { namespace: "shop".into(), name: "web-0".into(), uid }
    }

    /// Waits until the watch has delivered what `condition` requires.
    async fn until(&self, what: &str, mut condition: impl FnMut(&NodePods) -> bool) {
        let mut pods = self.pods.clone();
        let coming = async {
            while !condition(&pods) {
                pods.changed().await;
            }
        };
        self.api.patiently(what, coming).await;
    }

    /// Waits until the watch has delivered everything that the server has.
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

/// Status and reason of the gate's condition.
fn gate(pod: &Value) -> Option<(&str, &str)> {
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    let gate = conditions.iter().find(|condition| condition["type"] == "InPlaceUpdateReady")?;
    Some((gate["status"].as_str().unwrap(), gate["reason"].as_str().unwrap()))
}

/// Longer than every deadline of a call.
const LONG: Duration = Duration::from_secs(60);
