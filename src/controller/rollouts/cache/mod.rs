//! A cache of rollouts and of the pods of their targets. One watch delivers all rollouts, one watch per active
//! rollout delivers the pods of its target, and one more delivers the pods that any rollout works on.
//!
//! Must not decide: it reports the state and makes each requested call once (`calls`).

mod calls;
mod kinds;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource as _;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::in_place_rollout::InPlaceRollout;
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::Store;
use crate::cluster::trim::{self, Trimmed, within};
use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;

pub(crate) use calls::Found;
pub(crate) use kinds::{CachedPod, CachedRollout};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InPlaceRollout {}/{}", self.namespace, self.name)
    }
}

impl Key {
    fn of(rollout: &Rollout) -> Self {
        Self { namespace: rollout.namespace.clone(), name: rollout.name.clone() }
    }

    /// The reference to the rollout in events.
    pub(crate) fn reference(&self, uid: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some(InPlaceRollout::api_version(&()).into_owned()),
            kind: Some("InPlaceRollout".to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }
}

/// All rollouts. Clones share the cache.
#[derive(Clone, Debug)]
pub(crate) struct Rollouts {
    store: Store<Trimmed<CachedRollout>>,
}

impl Rollouts {
    /// Watches until `stop`. The cache is empty when this returns; see [`Self::is_current`].
    pub(crate) fn watch(server: &Server, stop: &CancellationToken) -> Self {
        let selection = Selection { what: "InPlaceRollouts".to_owned(), ..Selection::default() };
        Self { store: Store::watch(server.clone(), selection, stop.clone()) }
    }

    /// True if the rollouts have been listed and are as new as the API server can deliver them.
    pub(crate) fn is_current(&self) -> bool {
        self.store.has_synced() && (self.store.is_current() || self.store.is_empty())
    }

    /// Returns when anything has changed since the last call on this clone.
    pub(crate) async fn changed(&mut self) {
        self.store.changed().await;
    }

    /// The rollouts that have changed since the last call, each with its generation. It includes deleted rollouts,
    /// and active rollouts of a namespace in which any rollout has changed. Only one caller may use it.
    pub(crate) fn updates(&self) -> Vec<(Key, i64)> {
        let mut updates = Vec::new();
        for group in self.store.touched() {
            if let Some((namespace, name)) = group.strip_prefix("of/").and_then(|key| key.split_once('/')) {
                let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
                let generation = self.get(&key).map_or(0, |rollout| rollout.generation);
                updates.push((key, generation));
            } else {
                let others = self.store.group(&group);
                let active = others
                    .iter()
                    .filter_map(|cached| cached.value.0.as_ref())
                    .filter(|rollout| rollout.is_active());
                updates.extend(active.map(|rollout| (Key::of(rollout), rollout.generation)));
            }
        }
        updates
    }

    /// The cached rollout; `None` if it is gone or unreadable.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Rollout>> {
        self.store.get(&trim::key(&key.namespace, &key.name))?.value.0.clone()
    }

    /// The name of the newest rollout with the same target that supersedes `rollout`.
    pub(crate) fn newer(&self, rollout: &Rollout) -> Option<String> {
        self.newest_of_target(rollout, |other| other.supersedes(rollout))
    }

    /// The name of an older rollout with the same target that `rollout` waits for.
    pub(crate) fn aborting(&self, rollout: &Rollout) -> Option<String> {
        self.newest_of_target(rollout, |other| rollout.is_newer_than(other) && rollout.waits_for(other))
    }

    /// The active rollouts of the namespace that are older than `rollout` and do not end because of it.
    pub(crate) fn older(&self, rollout: &Rollout) -> Vec<Key> {
        let others = self.store.group(&within(&rollout.namespace));
        let others = others.iter().filter_map(|cached| cached.value.0.as_ref());
        let ends = |other: &Rollout| rollout.has_target_of(other) && !rollout.waits_for(other);
        let older = others.filter(|other| other.is_active() && rollout.is_newer_than(other) && !ends(other));
        older.map(|other| Key::of(other)).collect()
    }

    /// The name of the newest rollout with the same target for which `is` is true.
    fn newest_of_target(&self, rollout: &Rollout, is: impl Fn(&Rollout) -> bool) -> Option<String> {
        let others = self.store.group(&within(&rollout.namespace));
        let others = others.iter().filter_map(|cached| cached.value.0.as_ref());
        others
            .filter(|other| !other.deleting && other.has_target_of(rollout) && is(other))
            .max_by(|one, other| one.age().cmp(&other.age()))
            .map(|newest| newest.name.clone())
    }

    /// All rollouts that can be read.
    pub(crate) fn all(&self) -> Vec<Arc<Rollout>> {
        self.store.list().iter().filter_map(|cached| cached.value.0.clone()).collect()
    }

    /// The uids of the rollouts in progress of `namespace`.
    pub(crate) fn active_in(&self, namespace: &str) -> BTreeSet<String> {
        let all = self.store.group(&within(namespace));
        let all = all.iter().filter_map(|cached| cached.value.0.as_ref());
        all.filter(|rollout| rollout.is_active()).map(|rollout| rollout.uid.clone()).collect()
    }

    /// The uids of the rollouts in progress.
    pub(crate) fn active(&self) -> BTreeSet<String> {
        let all = self.all();
        all.iter().filter(|rollout| rollout.is_active()).map(|rollout| rollout.uid.clone()).collect()
    }
}

/// The cached pods of a target, or the pods that any rollout works on. Clones share the cache.
#[derive(Clone, Debug)]
pub(crate) struct TargetPods {
    pub(in crate::controller::rollouts) store: Store<Trimmed<CachedPod>>,
}

impl TargetPods {
    /// Watches the pods of `namespace` with `labels` until `stop`.
    pub(crate) fn watch(server: &Server, namespace: &str, labels: &str, stop: &CancellationToken) -> Self {
        let selection = Selection {
            what: format!("the pods {labels} of namespace {namespace}"),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.to_owned()),
            ..Selection::default()
        };
        Self { store: Store::watch(server.clone(), selection, stop.clone()) }
    }

    /// Watches the pods that any rollout works on until `stop`.
    pub(crate) fn worked_on(server: &Server, stop: &CancellationToken) -> Self {
        let selection = Selection {
            what: "the pods that a rollout works on".to_owned(),
            labels: Some(annotation::ROLLOUT_UID.to_owned()),
            ..Selection::default()
        };
        Self { store: Store::watch(server.clone(), selection, stop.clone()) }
    }

    /// True if the pods have been listed and are as new as the API server can deliver them.
    pub(crate) fn is_current(&self) -> bool {
        self.store.has_synced() && self.store.is_current()
    }

    /// Returns when anything has changed since the last call on this clone.
    pub(crate) async fn changed(&mut self) {
        self.store.changed().await;
    }

    /// True once the pods have been listed.
    pub(in crate::controller::rollouts) fn has_synced(&self) -> bool {
        self.store.has_synced()
    }

    /// The approximate memory of the cached pods, in bytes.
    pub(in crate::controller::rollouts) fn bytes(&self) -> usize {
        self.store.list().iter().map(|cached| cached.value.1).sum()
    }

    /// All cached pods, each with its namespace.
    pub(crate) fn list(&self) -> Vec<(String, Arc<Pod>)> {
        let all = self.store.list();
        all.iter()
            .map(|cached| (cached.meta.namespace.clone().unwrap_or_default(), Arc::clone(&cached.value.0)))
            .collect()
    }
}
