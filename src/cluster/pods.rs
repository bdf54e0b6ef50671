//! The pods of one node as the API server shows them, kept up to date by one watch, and what is written to them.
//!
//! Must not decide: it tells what is there, and does what it is told once.

mod write;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cluster::pod::Pod;
use crate::cluster::server::{Selection, Server};
use crate::cluster::slices::{PodSlices, Slices};
use crate::cluster::store::{Kept, Store};
use crate::operation::snapshot::{Declared, PodRef};

/// The pods of a node. Clones share them, but each counts its own [`Self::changed`].
#[derive(Clone, Debug)]
pub struct NodePods {
    server: Server,
    node: Arc<str>,
    store: Store<Pod>,
    slices: Slices,
}

impl Kept for Pod {
    /// The uid that the runtime knows.
    fn key(&self) -> String {
        self.reference().uid
    }
}

impl NodePods {
    /// Watches the pods of `node` until `stop`. Nothing is known yet when this returns: [`Self::has_synced`].
    pub fn watch(client: kube::Client, node: &str, stop: CancellationToken) -> Self {
        let server = Server::new(client);
        let selection = Selection {
            what: format!("the pods of node {node}"),
            fields: Some(format!("spec.nodeName={node}")),
            from_memory: true,
            ..Selection::default()
        };
        let slices = Slices::new(server.clone());
        let store = Store::watch(server.clone(), selection, stop);
        Self { server, node: node.into(), store, slices }
    }

    /// The node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// All of them, by uid.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.store.list()
    }

    /// The pod with this uid, the one that the runtime knows.
    pub fn get(&self, runtime_uid: &str) -> Option<Arc<Pod>> {
        self.store.get(runtime_uid)
    }

    /// The same in the words of the decisions; `None` when the API server does not know the pod.
    pub fn declared(&self, runtime_uid: &str) -> Option<Declared> {
        self.store.look(runtime_uid, Pod::declared)
    }

    /// What the `EndpointSlice`s of its namespace say of a pod; they are watched as long as somebody holds such an answer.
    pub fn slices(&self, pod: &PodRef) -> PodSlices {
        self.slices.of(&pod.namespace, self.api_uid(pod))
    }

    /// True while the watch runs: what is told here is then as new as the API server can tell.
    pub fn is_current(&self) -> bool {
        self.store.is_current()
    }

    /// True once the pods were listed: what is not here was not there then.
    pub fn has_synced(&self) -> bool {
        self.store.has_synced()
    }

    /// Returns when anything has changed since this clone last asked: a pod, or whether this is current. Many changes
    /// are told as one.
    pub async fn changed(&mut self) {
        self.store.changed().await;
    }

    /// A pod as a patch of ours was answered.
    fn learn(&self, pod: Pod) {
        self.store.learn(pod);
    }
}
