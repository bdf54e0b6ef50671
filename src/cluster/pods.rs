//! A cache of the pods of one node, updated by one watch, and the writes to them.
//!
//! Must not decide: it reports the state and makes each requested write once.

mod write;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::api::pod_ref::PodRef;
use crate::cluster::pod::{FurtherGates, Pod};
use crate::cluster::server::{Selection, Server};
use crate::cluster::slices::{PodSlices, Slices};
use crate::cluster::store::{Cached, Share, Store};
use crate::operation::snapshot::{Declared, Gate, Origin};
use crate::process::clock;

/// The limit for the cached pods of one namespace on the node, in bytes. It is more than its kubelet runs, plus
/// thousands of pods that have ended. A limit is needed because any user who may create pods can name a node.
const MAX_BYTES_OF_NAMESPACE: usize = 8 << 20;
/// The same for all namespaces: a quarter of the agent's memory limit.
const MAX_BYTES: usize = 32 << 20;

/// The pods of a node. Clones share the cache, but each clone tracks its own [`Self::changed`].
#[derive(Clone, Debug)]
pub struct NodePods {
    server: Server,
    node: Arc<str>,
    store: Store<Pod>,
    slices: Slices,
    further_gates: FurtherGates,
}

impl Cached for Pod {
    /// The uid at the API server: it is unique, whatever the annotations of the pods say.
    fn key(&self) -> String {
        self.api_uid().to_owned()
    }

    fn share(&self) -> Option<Share> {
        let namespace = self.reference().namespace;
        let most_of_all = Some(MAX_BYTES);
        Some(Share { namespace, bytes: self.bytes(), most: MAX_BYTES_OF_NAMESPACE, most_of_all })
    }
}

impl NodePods {
    /// Watches the pods of `node` until `stop`. The cache is empty when this returns; see [`Self::has_synced`].
    /// `further_gates`: the readiness gates to use for pods without that of this project.
    pub fn watch(
        client: kube::Client,
        node: &str,
        further_gates: FurtherGates,
        stop: CancellationToken,
    ) -> Self {
        let server = Server::new(client);
        let selection = Selection {
            what: format!("the pods of node {node}"),
            fields: Some(format!("spec.nodeName={node}")),
            from_memory: true,
            ..Selection::default()
        };
        let slices = Slices::new(server.clone());
        let store = Store::watch(server.clone(), selection, stop);
        Self { server, node: node.into(), store, slices, further_gates }
    }

    /// The name of the node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// All cached pods, by uid.
    pub fn list(&self) -> Vec<Arc<Pod>> {
        self.store.list()
    }

    /// The pod with this namespace, name and uid. The uid is the one on its node; see [`Pod::reference`].
    pub fn get(&self, pod: &PodRef) -> Option<Arc<Pod>> {
        let is = |cached: &Arc<Pod>| cached.reference() == *pod;
        // The cache key of a static pod is its uid at the API server, which differs from the one on its node.
        self.store.get(&pod.uid).filter(is).or_else(|| self.store.list().into_iter().find(is))
    }

    /// The spec and the reported status of a pod, as the decisions need them; `None` if the API server does not
    /// have the pod.
    pub fn declared(&self, pod: &PodRef) -> Option<Declared> {
        // Check first whether the cache is current: what is read after the check is at least as new.
        let current = self.is_current();
        self.get(pod).map(|cached| {
            let gate = self.gate(&cached).1.clone();
            Declared { gate, ..cached.declared_at(current, clock::now()) }
        })
    }

    /// The readiness gate to use for `pod`, and its state.
    pub fn gate<'a>(&self, pod: &'a Pod) -> (&'a str, &'a Gate) {
        pod.gate(&self.further_gates)
    }

    /// The origin of the pod, as the API server reports it.
    pub fn origin(&self, pod: &PodRef) -> Origin {
        self.get(pod).map_or(Origin::Unknown, |cached| cached.origin())
    }

    /// What the `EndpointSlice`s of the pod's namespace say about the pod. They are watched as long as such a value
    /// exists.
    pub fn slices(&self, pod: &PodRef) -> PodSlices {
        self.slices.of(&pod.namespace, self.api_uid(pod))
    }

    /// True while the watch is connected: the cache is then as new as the API server can deliver it.
    pub fn is_current(&self) -> bool {
        self.store.is_current()
    }

    /// True once the pods have been listed: a pod that is not in the cache did not exist then.
    pub fn has_synced(&self) -> bool {
        self.store.has_synced()
    }

    /// Returns when anything has changed since the last call on this clone: a pod, or whether the cache is current.
    /// Several changes may be combined into one.
    pub async fn changed(&mut self) {
        self.store.changed().await;
    }

    /// Stores a pod that a patch returned, before the watch delivers it.
    fn upsert(&self, pod: Pod) {
        self.store.upsert(pod);
    }
}
