//! A cache of all objects that workloads depend on: the workloads themselves, their pods, revisions, claims and
//! hooks, and the nodes. One watch per kind updates it, for all namespaces.
//!
//! The objects of one workload are found without reading those of others. Must not decide: it reports the state and
//! makes each requested call once (`calls`).

mod calls;
mod contents;
pub(super) mod kinds;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::Store;
use crate::cluster::trim::{self, Trimmed};
use crate::controller::nodes::NodeCache;
use crate::controller::reconciler::Changes;
use crate::podtask::write::VersionedRef;
use crate::workload::action::NewHookRun;
use crate::workload::adoption::{self, Candidate, PodOwnership, ownership};
use crate::workload::claims::Claims;
use crate::workload::hooks::Run;
use crate::workload::order::Nodes;
use crate::workload::revision::Record;
use crate::workload::spec::WorkloadSpec;

pub(crate) use calls::Deletion;
pub(crate) use contents::Contents;
pub(crate) use kinds::{CachedPod, CachedRevision, Template, Workload};

/// The page size for kinds whose objects any user can create, each as large as the API server allows.
const PAGE: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    /// `GameDeployment`.
    Deployment,
    /// `GameStatefulSet`.
    StatefulSet,
}

impl Kind {
    /// The name of the kind in the API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Deployment => "GameDeployment",
            Self::StatefulSet => "GameStatefulSet",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

pub(crate) type PodEntry = Arc<Trimmed<CachedPod>>;

/// All cached objects. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Workloads {
    deployments: Store<Trimmed<kinds::Deployment>>,
    sets: Store<Trimmed<kinds::StatefulSet>>,
    pub(in crate::controller::workloads) pods: Store<Trimmed<CachedPod>>,
    revisions: Store<Trimmed<kinds::CachedRevision>>,
    pub(in crate::controller::workloads) claims: Store<Trimmed<kinds::CachedClaim>>,
    nodes: NodeCache,
    runs: Store<Trimmed<kinds::CachedRun>>,
    templates: Store<Trimmed<Template>>,
}

/// An object that was created and must be in the cache before the next reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// A pod of this name; if a uid is given, with this uid.
    Pod(String, Option<String>),
    /// A revision of this name.
    Revision(String),
    /// A HookRun of this name.
    Run(String),
    /// A volume claim of this name.
    Claim(String),
}

/// Who controls a HookRun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOwner {
    /// The workload.
    Workload,
    /// Nobody, and it was made for a workload.
    Nobody,
    /// Another owner, or it was not made for a workload.
    Other,
}

impl Workloads {
    /// Watches until `stop`. The cache is empty when this returns; see [`Changes::is_current`].
    pub(in crate::controller) fn watch(server: &Server, nodes: NodeCache, stop: &CancellationToken) -> Self {
        let all = |what: &str| Selection { what: what.to_owned(), ..Selection::default() };
        let of_workloads = format!("{},!{}", annotation::HOOK_TYPE, annotation::OPERATION);
        let paged = |what: &str| Selection { page: PAGE, ..all(what) };
        let runs = Selection { labels: Some(of_workloads), ..paged("HookRuns of workloads") };
        let (server, stop) = (|| server.clone(), || stop.clone());
        Self {
            deployments: Store::watch(server(), all("GameDeployments"), stop()),
            sets: Store::watch(server(), all("GameStatefulSets"), stop()),
            pods: Store::watch(server(), all("pods"), stop()),
            revisions: Store::watch(server(), paged("ControllerRevisions"), stop()),
            claims: Store::watch(server(), all("volume claims"), stop()),
            nodes,
            runs: Store::watch(server(), runs, stop()),
            templates: Store::watch(server(), paged("HookTemplates"), stop()),
        }
    }

    /// The cached workload; `None` if it is gone or unreadable.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Workload>> {
        let at = trim::key(&key.namespace, &key.name);
        match key.kind {
            Kind::Deployment => self.deployments.get(&at)?.value.0.clone(),
            Kind::StatefulSet => self.sets.get(&at)?.value.0.clone(),
        }
    }

    /// All workloads of a kind that can be read.
    pub(crate) fn all(&self, kind: Kind) -> Vec<Arc<Workload>> {
        match kind {
            Kind::Deployment => {
                self.deployments.list().iter().filter_map(|cached| cached.value.0.clone()).collect()
            }
            Kind::StatefulSet => {
                self.sets.list().iter().filter_map(|cached| cached.value.0.clone()).collect()
            }
        }
    }

    /// The pods that the workload controls or could adopt, each with the decision about its ownership.
    pub(crate) fn pods(&self, spec: &WorkloadSpec) -> Vec<(PodOwnership, PodEntry)> {
        let own = self.pods.group(&spec.uid);
        let orphans = self.pods.group(&kinds::orphans(&spec.namespace));
        own.into_iter().chain(orphans).map(|pod| (ownership_of(spec, &pod), pod)).collect()
    }

    /// The names of pods that have the prefix of the workload's pods but are not controlled by it.
    pub(crate) fn taken(&self, spec: &WorkloadSpec) -> BTreeSet<String> {
        let alike = self.pods.beginning(&trim::key(&spec.namespace, &format!("{}-", spec.name)));
        let others = alike.into_iter().filter(|pod| owner(pod) != Some(&spec.uid));
        others.filter_map(|pod| pod.meta.name.clone()).collect()
    }

    /// The revisions of the workload, each with its uid.
    pub(crate) fn revisions(&self, spec: &WorkloadSpec) -> Vec<(String, Record)> {
        let own = self.revisions.group(&spec.uid);
        let record = |cached: &Arc<Trimmed<CachedRevision>>| {
            Some((cached.meta.uid.clone().unwrap_or_default(), cached.value.record.clone()?))
        };
        own.iter().filter_map(record).collect()
    }

    /// Revisions without a controller that were created for a workload like this one: their names, uids and
    /// versions.
    pub(crate) fn orphaned_revisions(&self, spec: &WorkloadSpec) -> Vec<VersionedRef> {
        self.orphans_like(spec, |orphan| orphan.fits)
    }

    /// Revisions without a controller whose names and labels are like those of this workload, but whose content
    /// does not match their name.
    pub(crate) fn unadopted_revisions(&self, spec: &WorkloadSpec) -> Vec<VersionedRef> {
        self.orphans_like(spec, |orphan| !orphan.fits)
    }

    fn orphans_like(&self, spec: &WorkloadSpec, is: impl Fn(&kinds::Orphan) -> bool) -> Vec<VersionedRef> {
        let orphans = self.revisions.group(&kinds::orphans(&spec.namespace));
        let fits = |cached: &&Arc<Trimmed<CachedRevision>>| {
            let name = cached.meta.name.as_deref().unwrap_or_default();
            let orphan = cached.value.orphan.as_ref().filter(|orphan| is(orphan));
            cached.meta.deletion_timestamp.is_none()
                && orphan.is_some_and(|orphan| adoption::adopts_revision(spec, name, &orphan.labels))
        };
        let reference = |cached: &Arc<Trimmed<CachedRevision>>| VersionedRef {
            name: cached.meta.name.clone().unwrap_or_default(),
            uid: cached.meta.uid.clone().unwrap_or_default(),
            version: cached.meta.resource_version.clone().unwrap_or_default(),
        };
        orphans.iter().filter(fits).map(reference).collect()
    }

    /// True if the revision of this name has no controller, or will have none: it can be adopted, or the workload
    /// that controls it no longer exists and garbage collection has not processed the revision yet.
    pub(crate) fn is_left_behind(&self, spec: &WorkloadSpec, name: &str) -> bool {
        let Some(cached) = self.revisions.get(&trim::key(&spec.namespace, name)) else { return false };
        match trim::controller(&cached.meta) {
            None => self.orphaned_revisions(spec).iter().any(|orphan| orphan.name == name),
            Some(owner) => kinds::is_workload(owner) && self.of_uid(&owner.uid).is_empty(),
        }
    }

    /// Stores a revision that a write returned, before the watch delivers it.
    pub(crate) fn upsert_revision(&self, revision: Trimmed<CachedRevision>) {
        self.revisions.upsert(revision);
    }

    /// The HookRuns of the workload.
    pub(crate) fn runs(&self, spec: &WorkloadSpec) -> Vec<Run> {
        self.runs.group(&spec.uid).iter().filter_map(|cached| cached.value.0.clone()).collect()
    }

    /// Who controls the HookRun of the name that `new` would have.
    pub(crate) fn run_owner(&self, spec: &WorkloadSpec, new: &NewHookRun) -> RunOwner {
        let Some(cached) = self.runs.get(&trim::key(&spec.namespace, &new.name)) else {
            return RunOwner::Other;
        };
        match trim::controller(&cached.meta) {
            Some(owner) if owner.uid == spec.uid => RunOwner::Workload,
            None if cached.value.0.as_ref().is_some_and(|run| new.has_purpose_of(run)) => RunOwner::Nobody,
            _ => RunOwner::Other,
        }
    }

    /// The uid of the HookRun of this name.
    pub(crate) fn run_uid(&self, namespace: &str, name: &str) -> Option<String> {
        self.runs.get(&trim::key(namespace, name))?.meta.uid.clone()
    }

    /// The uid and the version of the revision of this name.
    pub(crate) fn revision_at(&self, namespace: &str, name: &str) -> Option<(String, String)> {
        let meta = &self.revisions.get(&trim::key(namespace, name))?.meta;
        meta.uid.clone().zip(meta.resource_version.clone())
    }

    /// The cached `HookTemplate` of this name.
    pub(crate) fn template(&self, namespace: &str, name: &str) -> Option<Arc<Trimmed<Template>>> {
        self.templates.get(&trim::key(namespace, name))
    }

    /// The cached nodes of these names.
    pub(crate) fn nodes<'a>(&self, names: impl Iterator<Item = &'a str>) -> Nodes {
        self.nodes.of(names)
    }

    /// The volume claims whose names fit the workload's claim templates.
    pub(crate) fn claims(&self, spec: &WorkloadSpec) -> Claims {
        let claims = spec.stateful().map_or(&[][..], |set| &set.claims);
        let alike = claims.iter().flat_map(|claim| {
            let beginning = format!("{}-{}-", claim.name(), spec.name);
            self.claims.beginning(&trim::key(&spec.namespace, &beginning))
        });
        alike.filter_map(|claim| Some((claim.meta.name.clone()?, claim.value.0.clone()))).collect()
    }

    /// Stores a pod that a deletion returned. It counts as being deleted from now on, whatever the answer says.
    pub(crate) fn upsert_deleted(&self, mut pod: Trimmed<CachedPod>, now: Timestamp) {
        pod.meta.deletion_timestamp.get_or_insert(Time(now));
        if let Some(cached) = &mut pod.value.pod {
            cached.deletion.get_or_insert(now);
        }
        self.pods.upsert(pod);
    }

    /// Waits until the object is in the cache, at most for `limit`. Returns false after the limit.
    pub(crate) async fn wait_for(&self, namespace: &str, made: &Made, limit: Duration) -> bool {
        let mut all = self.clone();
        let held = async {
            while !all.contains(namespace, made) {
                match made {
                    Made::Pod(..) => all.pods.changed().await,
                    Made::Revision(_) => all.revisions.changed().await,
                    Made::Run(_) => all.runs.changed().await,
                    Made::Claim(_) => all.claims.changed().await,
                }
            }
        };
        timeout(limit, held).await.is_ok()
    }

    fn contains(&self, namespace: &str, made: &Made) -> bool {
        match made {
            Made::Pod(name, uid) => {
                let seen = self.pods.get(&trim::key(namespace, name));
                seen.is_some_and(|pod| uid.is_none() || pod.meta.uid == *uid)
            }
            Made::Revision(name) => self.revisions.get(&trim::key(namespace, name)).is_some(),
            Made::Run(name) => self.runs.get(&trim::key(namespace, name)).is_some(),
            Made::Claim(name) => self.claims.get(&trim::key(namespace, name)).is_some(),
        }
    }

    fn of_uid(&self, uid: &str) -> Vec<Arc<Workload>> {
        let deployments = self.deployments.group(uid).into_iter().filter_map(|cached| cached.value.0.clone());
        let sets = self.sets.group(uid).into_iter().filter_map(|cached| cached.value.0.clone());
        deployments.chain(sets).filter(|workload| workload.spec.uid == uid).collect()
    }

    fn within(&self, namespace: &str) -> Vec<Arc<Workload>> {
        let group = trim::within(namespace);
        let deployments =
            self.deployments.group(&group).into_iter().filter_map(|cached| cached.value.0.clone());
        let sets = self.sets.group(&group).into_iter().filter_map(|cached| cached.value.0.clone());
        deployments.chain(sets).collect()
    }
}

/// The uid of the pod's controller.
fn owner(pod: &PodEntry) -> Option<&str> {
    trim::controller(&pod.meta).map(|owner| owner.uid.as_str())
}

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

fn ownership_of(spec: &WorkloadSpec, pod: &PodEntry) -> PodOwnership {
    // Labels that are not cached may be those that the selector requires. A pod that is released is created again.
    if pod.value.is_cut && owner(pod) == Some(spec.uid.as_str()) {
        return PodOwnership::Own;
    }
    let candidate = Candidate {
        name: pod.meta.name.as_deref().unwrap_or_default(),
        labels: pod.value.pod.as_ref().map_or(&NO_LABELS, |pod| &pod.labels),
        controller: owner(pod),
        deleting: pod.meta.deletion_timestamp.is_some(),
    };
    ownership(spec, candidate)
}

/// The key of a workload, and its generation.
fn key_of(workload: &Arc<Workload>) -> (Key, i64) {
    let spec = &workload.spec;
    let kind = if spec.stateful().is_some() { Kind::StatefulSet } else { Kind::Deployment };
    (Key { kind, namespace: spec.namespace.clone(), name: spec.name.clone() }, spec.generation)
}

impl Changes<Key> for Workloads {
    /// True if all kinds have been listed, and workloads, pods and revisions are as new as the API server can
    /// deliver them.
    fn is_current(&self) -> bool {
        // A kind that is not installed is not watched, and has no objects.
        let deployments = self.deployments.is_current() || self.deployments.is_empty();
        let sets = self.sets.is_current() || self.sets.is_empty();
        let listed = [
            self.deployments.has_synced(),
            self.sets.has_synced(),
            self.claims.has_synced(),
            self.nodes.has_synced(),
            self.runs.has_synced(),
            self.templates.has_synced(),
        ];
        let current = [deployments, sets, self.pods.is_current(), self.revisions.is_current()];
        listed.into_iter().chain(current).all(|well| well)
    }

    /// Returns when anything has changed since the last call on this clone. Several changes may be combined into
    /// one.
    async fn changed(&mut self) {
        tokio::select! {
            () = self.deployments.changed() => {}
            () = self.sets.changed() => {}
            () = self.pods.changed() => {}
            () = self.revisions.changed() => {}
            () = self.claims.changed() => {}
            () = self.nodes.changed() => {}
            () = self.runs.changed() => {}
            () = self.templates.changed() => {}
        }
    }

    /// The workloads that are affected by any change since the last call, each with its generation. Only one caller
    /// may use it.
    fn take(&mut self) -> Vec<(Key, i64)> {
        let mut updates = BTreeMap::new();
        let mut owners = self.deployments.touched();
        owners.append(&mut self.sets.touched());
        let mut of_revisions = self.revisions.touched();
        for namespace in of_revisions.iter().filter_map(|group| group.strip_prefix("orphans/")) {
            let adopts = |workload: &&Arc<Workload>| !self.orphaned_revisions(&workload.spec).is_empty();
            updates.extend(self.within(namespace).iter().filter(adopts).map(key_of));
        }
        owners.append(&mut of_revisions);
        owners.append(&mut self.runs.touched());
        let mut of_pods = self.pods.touched();
        for group in &of_pods {
            if let Some(namespace) = group.strip_prefix("orphans/") {
                let orphans = self.pods.group(group);
                for workload in self.within(namespace) {
                    let wanted = |pod: &PodEntry| ownership_of(&workload.spec, pod) == PodOwnership::Adopt;
                    updates.extend(orphans.iter().any(wanted).then(|| key_of(&workload)));
                }
            }
        }
        owners.append(&mut of_pods);
        for group in self.nodes.touched() {
            let pods = self.pods.group(&group);
            owners.extend(pods.iter().filter_map(|pod| owner(pod)).map(str::to_owned));
        }
        let of_claims = self.claims.touched();
        let namespaces: BTreeSet<_> = of_claims.iter().filter_map(|group| group.split('/').nth(1)).collect();
        for namespace in namespaces {
            let uses = |workload: &&Arc<Workload>| {
                let spec = &workload.spec;
                let claims = spec.stateful().into_iter().flat_map(|set| &set.claims);
                let mut groups = claims
                    .map(|claim| kinds::of_claims(namespace, &format!("{}-{}", claim.name(), spec.name)));
                groups.any(|group| of_claims.contains(&group))
            };
            updates.extend(self.within(namespace).iter().filter(uses).map(key_of));
        }
        for group in self.templates.touched() {
            let namespace = group.strip_prefix("in/").unwrap_or_default();
            updates.extend(self.within(namespace).iter().map(key_of));
        }
        updates.extend(owners.iter().flat_map(|uid| self.of_uid(uid)).map(|workload| key_of(&workload)));
        updates.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_pod_of_which_not_all_labels_are_cached_stays_with_its_workload_and_is_not_adopted() {
        let meta = json!({"name": "web", "namespace": "shop", "uid": "uid-web"});
        let spec = json!({"selector": {"matchLabels": {"z": "web"}},
            "template": {"metadata": {"labels": {"z": "web"}}, "spec": {"containers": []}}});
        let workload: Trimmed<kinds::Deployment> =
            serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap();
        let workload = workload.value.0.unwrap();
        let spec = &workload.spec;
        let of = |count: usize, z: &str, owners: Value| {
            let mut labels: BTreeMap<_, _> = (0..count).map(|at| (format!("a-{at}"), "x")).collect();
            labels.insert("z".to_owned(), z);
            let meta =
                json!({"name": "web-1", "namespace": "shop", "labels": labels, "ownerReferences": owners});
            let pod: Trimmed<CachedPod> = serde_json::from_value(json!({"metadata": meta})).unwrap();
            ownership_of(spec, &Arc::new(pod))
        };
        let own = json!([{"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": "web",
            "uid": "uid-web", "controller": true}]);
        assert_eq!(of(1, "web", own.clone()), PodOwnership::Own);
        assert_eq!(of(1, "other", own.clone()), PodOwnership::Release);
        assert_eq!(of(1000, "web", own), PodOwnership::Own, "the label of the selector is not cached");
        assert_eq!(of(1, "web", json!([])), PodOwnership::Adopt);
        assert_eq!(of(1000, "web", json!([])), PodOwnership::Leave);
    }
}
