//! Group restarts after a failure: the pods with the label of a group, and the rollouts that were created for them.
//!
//! Must not decide: it reports the state.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::group::Strategy;
use crate::api::group_failure::GroupFailure;
use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::status::Status;
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::{Cached, Store};
use crate::cluster::trim::{Trim, Trimmed, key, meta_of, readable};
use crate::controller::bounds::MAX_BYTES_OF_NAMESPACE;
use crate::group_restart::{Earlier, GroupPod, NAME_PART};

/// Namespace and label value of a group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The pods of all groups, and the rollouts that were created for them.
#[derive(Debug)]
pub(super) struct Groups {
    pods: Store<Trimmed<Labelled<GroupPod>>>,
    rollouts: Store<Trimmed<Labelled<Earlier>>>,
}

/// The cached part of an object with the label.
#[derive(Clone, Debug)]
struct Labelled<V> {
    group: String,
    /// `None` for one that does not count.
    value: Option<V>,
    bytes: usize,
}

/// What is read from an object with the label.
trait Read: Clone + std::fmt::Debug + PartialEq + Send + Sync + Sized + 'static {
    type Kind: Resource<DynamicType = ()>;
    type Source: DeserializeOwned;

    /// Splits an object into its metadata, the value if it counts, and the size of the value in bytes.
    fn read(source: Self::Source) -> (ObjectMeta, Option<Self>, usize);
}

impl<V: Read> Trim for Labelled<V> {
    type Kind = V::Kind;
    type Source = V::Source;

    fn trim(source: V::Source) -> (ObjectMeta, Self) {
        let (meta, value, bytes) = V::read(source);
        let label = meta.labels.as_ref().and_then(|labels| labels.get(annotation::GROUP_RESTART));
        let group = label.cloned().unwrap_or_default();
        (meta, Self { group, value, bytes })
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

    /// The pods of a group that have not ended.
    pub(super) fn pods(&self, group: &GroupKey) -> Vec<GroupPod> {
        let pods = self.pods.group(&key(&group.namespace, &group.name));
        let pods = pods.iter().filter(|pod| pod.meta.deletion_timestamp.is_none());
        pods.filter_map(|pod| pod.value.value.clone()).collect()
    }

    /// The group restarts that were created for a group.
    pub(super) fn rollouts(&self, group: &GroupKey) -> Vec<Earlier> {
        let rollouts = self.rollouts.group(&key(&group.namespace, &group.name));
        rollouts.iter().filter_map(|rollout| rollout.value.value.clone()).collect()
    }
}

fn store<T: Cached>(server: &Server, what: &str, stop: &CancellationToken) -> Store<T> {
    let labels = Some(annotation::GROUP_RESTART.to_owned());
    let selection = Selection { what: format!("the {what}"), labels, ..Selection::default() };
    Store::watch(server.clone(), selection, stop.clone())
}

/// A pod, of which only the metadata and the phase are read.
#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    status: PodPhase,
}

#[derive(Default, Deserialize)]
struct PodPhase {
    #[serde(default)]
    phase: String,
}

impl Read for GroupPod {
    type Kind = Pod;
    type Source = Named;

    fn read(source: Named) -> (ObjectMeta, Option<Self>, usize) {
        let meta = source.metadata;
        let text = |key| meta.annotations.as_ref().and_then(|all| all.get(key)).map_or("", String::as_str);
        let (failure, status) = (text(annotation::GROUP_FAILURE), text(annotation::STATUS));
        let policy = text(annotation::GROUP_RESTART_POLICY).to_owned();
        let texts = failure.len() + policy.len();
        let status: Option<Status> = serde_json::from_str(status).ok();
        let failure: Option<GroupFailure> = serde_json::from_str(failure).ok();
        let failure = failure.filter(|failure| failure.is_open(status.as_ref()));
        let restarted = failure.as_ref().zip(status).filter(|(failure, status)| failure.follows(status));
        let restarted_by = restarted.map(|(_, status)| status.id);
        let bytes = texts + restarted_by.as_ref().map_or(0, String::len);
        let pod = Self {
            name: meta.name.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            failure,
            policy,
            restarted_by,
        };
        let runs = !matches!(source.status.phase.as_str(), "Succeeded" | "Failed");
        (meta, runs.then_some(pod), bytes)
    }
}

impl Read for Earlier {
    type Kind = InPlaceRollout;
    type Source = Value;

    fn read(mut source: Value) -> (ObjectMeta, Option<Self>, usize) {
        let meta = meta_of(&mut source);
        let name = meta.name.clone().unwrap_or_default();
        let rollout = readable::<InPlaceRollout>(&meta, source);
        // A user's rollout may have the label too.
        let is_own = |rollout: &InPlaceRollout| {
            rollout.spec.strategy == Strategy::Together && name.contains(NAME_PART)
        };
        let value = rollout.filter(is_own).map(|rollout| {
            let status = rollout.status.unwrap_or_default();
            let created = meta.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0);
            let (prepared, started) =
                status.group.map_or((None, None), |group| (group.prepare_at, group.start_at));
            Self {
                name: name.clone(),
                uid: meta.uid.clone().unwrap_or_default(),
                created,
                prepared,
                started,
                ended: status.phase.is_terminal().then(|| status.finished_at.unwrap_or(created)),
            }
        });
        (meta, value, 0)
    }
}
