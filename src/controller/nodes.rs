//! The nodes of the cluster: what decisions need of each. One watch, shared by all controllers, updates the cache.
//!
//! Must not decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node as Core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio_util::sync::CancellationToken;

use crate::api::workload_key;
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::Store;
use crate::cluster::trim::{self, Trim, Trimmed};
use crate::podtask::priority::NodeLabels;
use crate::workload::order::{Node, Nodes};

/// The most bytes of the labels of a node that are cached; a node with more counts as one without labels.
const MAX_LABEL_BYTES: usize = 16 << 10;

/// All nodes. Clones share the cache, but each clone tracks its own [`Self::changed`].
#[derive(Clone, Debug)]
pub(super) struct NodeCache(Store<Trimmed<CachedNode>>);

/// The cached part of a node.
#[derive(Clone, Debug)]
struct CachedNode(Node);

/// The group of a node and of the objects on it.
pub(super) fn group(name: &str) -> String {
    format!("node/{name}")
}

impl NodeCache {
    /// Watches until `stop`.
    pub(super) fn watch(server: Server, stop: &CancellationToken) -> Self {
        let selection = Selection { what: "nodes".to_owned(), ..Selection::default() };
        Self(Store::watch(server, selection, stop.clone()))
    }

    /// True once the nodes have been listed.
    pub(super) fn has_synced(&self) -> bool {
        self.0.has_synced()
    }

    /// Returns when anything has changed since the last call on this clone.
    pub(super) async fn changed(&mut self) {
        self.0.changed().await;
    }

    /// The groups of the nodes that have changed since the last call. Only one caller may use it.
    pub(super) fn touched(&self) -> BTreeSet<String> {
        self.0.touched()
    }

    /// The cached nodes of these names.
    pub(super) fn of<'a>(&self, names: impl Iterator<Item = &'a str>) -> Nodes {
        let names: BTreeSet<&str> = names.collect();
        let node = |name: &str| Some((name.to_owned(), self.0.get(&trim::key("", name))?.value.0.clone()));
        names.into_iter().filter_map(node).collect()
    }

    /// The labels of the nodes of these names.
    pub(super) fn labels<'a>(&self, names: impl Iterator<Item = &'a str>) -> NodeLabels {
        self.of(names).into_iter().map(|(name, node)| (name, node.labels)).collect()
    }
}

impl Trim for CachedNode {
    type Kind = Core;
    type Source = Core;

    fn trim(source: Core) -> (ObjectMeta, Self) {
        let annotation = |key: &str| source.metadata.annotations.as_ref().and_then(|all| all.get(key));
        let cost = annotation(workload_key::NODE_COST).and_then(|text| text.parse().ok());
        let cost = cost.filter(|cost: &f64| cost.is_finite());
        let conditions = source.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let labels: BTreeMap<_, _> = source.metadata.labels.clone().unwrap_or_default();
        let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
        let labels = Arc::new(if bytes > MAX_LABEL_BYTES { BTreeMap::new() } else { labels });
        (source.metadata, Self(Node { cost, ready, at_once: None, labels }))
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![group(meta.name.as_deref().unwrap_or_default())]
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0 == before.0
    }
}
