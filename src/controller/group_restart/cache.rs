//! Group restarts after a failure: the pods with the label of a group, and the rollouts that were created for them.
//!
//! Must not decide: it reports the state.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::in_place_rollout::InPlaceRollout;
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::{Cached, Store};
use crate::cluster::trim::{Trim, Trimmed, meta_of, readable};
use crate::group_restart::{Earlier, GroupPod};

/// The limit for the cached objects of one kind in a namespace, in bytes.
const MAX_BYTES_OF_NAMESPACE: usize = 32 << 20;

/// Namespace and label value of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The pods of all groups, and the rollouts that were created for them.
#[derive(Debug)]
pub(super) struct Groups {
    pods: Store<Trimmed<Labelled<Pod, GroupPod>>>,
    rollouts: Store<Trimmed<Labelled<InPlaceRollout, Earlier>>>,
}

/// The cached part of an object with the label.
#[derive(Clone, Debug)]
struct Labelled<K, V> {
    group: String,
    value: V,
    bytes: usize,
    kind: std::marker::PhantomData<K>,
}

impl Groups {
    /// Watches until `stop`.
    pub(super) fn watch(server: &Server, stop: &CancellationToken) -> Self {
        Self {
            pods: store(server, "pods of groups", stop),
            rollouts: store(server, "group restarts after a failure", stop),
        }
    }

    /// Returns when a pod or rollout has changed.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = self.pods.changed() => {}
            () = self.rollouts.changed() => {}
        }
    }

    /// The groups that have changed since the last call.
    pub(super) fn touched(&self) -> impl Iterator<Item = GroupKey> {
        let keys = self.pods.touched().into_iter().chain(self.rollouts.touched());
        keys.filter_map(|key| {
            let (namespace, name) = key.split_once('/')?;
            Some(GroupKey { namespace: namespace.to_owned(), name: name.to_owned() })
        })
    }

    /// True while both caches are up to date.
    pub(super) fn is_current(&self) -> bool {
        let (pods, rollouts) = (&self.pods, &self.rollouts);
        pods.has_synced() && pods.is_current() && rollouts.has_synced() && rollouts.is_current()
    }

    /// The pods of a group, and the rollouts that were created for it.
    pub(super) fn of(&self, group: &GroupKey) -> (Vec<GroupPod>, Vec<Earlier>) {
        let key = key(&group.namespace, &group.name);
        let pods = self.pods.group(&key);
        let pods = pods.iter().filter(|pod| pod.meta.deletion_timestamp.is_none());
        let pods = pods.map(|pod| pod.value.value.clone()).collect();
        (pods, self.rollouts.group(&key).iter().map(|rollout| rollout.value.value.clone()).collect())
    }
}

fn store<T: Cached>(server: &Server, what: &str, stop: &CancellationToken) -> Store<T> {
    let labels = Some(annotation::GROUP_RESTART.to_owned());
    let selection = Selection { what: format!("the {what}"), labels, ..Selection::default() };
    Store::watch(server.clone(), selection, stop.clone())
}

fn key(namespace: &str, group: &str) -> String {
    format!("{namespace}/{group}")
}

fn label(meta: &ObjectMeta) -> String {
    meta.labels.as_ref().and_then(|labels| labels.get(annotation::GROUP_RESTART)).cloned().unwrap_or_default()
}

/// A pod, of which only the metadata is read.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl Trim for Labelled<Pod, GroupPod> {
    type Kind = Pod;
    type Source = Named;

    fn trim(source: Named) -> (ObjectMeta, Self) {
        let meta = source.metadata;
        let text = |key| meta.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str);
        let (failure, status) = (text(annotation::GROUP_FAILURE), text(annotation::STATUS));
        let policy = text(annotation::GROUP_RESTART_POLICY).to_owned();
        let bytes = failure.len() + status.len() + policy.len();
        let value = GroupPod {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            failure: serde_json::from_str(failure).ok(),
            status: serde_json::from_str(status).ok(),
            policy,
        };
        let group = label(&meta);
        (meta, Self { group, value, bytes, kind: std::marker::PhantomData })
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![key(meta.namespace.as_deref().unwrap_or_default(), &self.group)]
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        (&self.group, &self.value) == (&before.group, &before.value)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_BYTES_OF_NAMESPACE)
    }
}

impl Trim for Labelled<InPlaceRollout, Earlier> {
    type Kind = InPlaceRollout;
    type Source = Value;

    fn trim(source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&source);
        let phase = readable::<InPlaceRollout>(&meta, source).and_then(|rollout| rollout.status);
        let value = Earlier {
            name: meta.name.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0),
            has_ended: phase.is_some_and(|status| status.phase.is_terminal()),
        };
        let group = label(&meta);
        (meta, Self { group, value, bytes: 0, kind: std::marker::PhantomData })
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![key(meta.namespace.as_deref().unwrap_or_default(), &self.group)]
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        (&self.group, &self.value) == (&before.group, &before.value)
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_BYTES_OF_NAMESPACE)
    }
}
