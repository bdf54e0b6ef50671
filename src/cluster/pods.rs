//! The pods of one node as the API server shows them, kept up to date by one watch, and what is written to them.
//!
//! Must not decide: it tells what is there, and does what it is told once.

mod write;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cluster::pod::Pod;
use crate::cluster::server::{Selection, Server};
use crate::cluster::slices::{PodSlices, Slices};
use crate::cluster::store::{Cached, Share, Store};
use crate::operation::snapshot::{Declared, Origin, PodRef};
use crate::process::clock;

/// How much is kept of the pods that a namespace has on the node, in bytes: more than its kubelet runs, and thousands of those
/// that have ended. Anybody who may create pods names a node.
const MOST_OF_NAMESPACE: usize = 8 << 20;

/// The pods of a node. Clones share them, but each counts its own [`Self::changed`].
#[derive(Clone, Debug)]
pub struct NodePods {
    server: Server,
    node: Arc<str>,
    store: Store<Pod>,
    slices: Slices,
}

impl Cached for Pod {
    /// The API server's own uid: no two pods share it, whatever their annotations say.
    fn key(&self) -> String {
        self.api_uid().to_owned()
    }

    fn share(&self) -> Option<Share> {
        let namespace = self.reference().namespace;
        Some(Share { namespace, bytes: self.bytes(), most: MOST_OF_NAMESPACE })
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

    /// The pod of this namespace, name and uid: the uid that its node has, which [`Pod::reference`] tells.
    pub fn get(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        let is = |shown: &Arc<Pod>| shown.reference() == *pod;
        // A static pod has another uid here.
        self.store.get(&pod.uid).filter(is).or_else(|| self.store.list().into_iter().find(is))
    }

    /// The same in the words of the decisions; `None` when the API server does not know the pod.
    pub fn declared(&self, pod: &PodRef) -> Option<Declared> {
        // First whether it is current: what is found then is at least as new.
        let current = self.is_current();
        self.get(pod).map(|shown| shown.declared_at(current, clock::now()))
    }

    /// Where the pod comes from, as far as the API server tells.
    pub fn origin(&self, pod: &PodRef) -> Origin {
        self.get(pod).map_or(Origin::Unknown, |shown| shown.origin())
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
