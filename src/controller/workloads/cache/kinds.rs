//! The cached parts of the kinds of objects that workloads depend on. An unreadable object must not hide the
//! others.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::hook_run::{HookRun, HookRunSpec, HookRunStatus};
use crate::api::hook_template::{HookTemplate, HookTemplateSpec};
use crate::cluster::server::MANAGER;
use crate::cluster::trim::{Trim, controller, meta_of, namespace, readable, within};
use crate::controller::nodes;
use crate::podtask::pod;
use crate::podtask::resources;
use crate::workload::claims;
use crate::workload::hooks::Run;
use crate::workload::other_controller::OtherWriter;
use crate::workload::report::Report;
use crate::workload::revision::{self, Record};
use crate::workload::spec::WorkloadSpec;

/// The most owners of a claim that are cached. One with more of them, or with longer texts, belongs to no set.
const MAX_OWNERS: usize = 16;
/// The longest cached text of a claim.
const MAX_TEXT: usize = 253;
/// The most labels of a revision that can be adopted, and of a claim; they are those of the workload's pods.
const MAX_LABELS: usize = 64;
/// The most bytes of those labels.
const MAX_LABEL_BYTES: usize = 4 << 10;
/// The memory that a text and its slot in a map or a list take, beside its bytes.
const OVERHEAD: usize = 128;
/// The limit for the cached `ControllerRevisions` of one namespace, in bytes: enough for more than ten thousand of
/// them. Revisions beyond the limit are treated as absent, for that namespace only.
const MAX_REVISION_BYTES: usize = 8 << 20;

/// A cached workload.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) spec: WorkloadSpec,
    /// The last status, as far as decisions use it.
    pub(crate) report: Report,
    /// The complete last status, as it is in the object.
    pub(crate) status: Value,
    /// The resource version that was read.
    pub(crate) version: String,
    /// The last write of the status by another client.
    pub(crate) other_writer: Option<OtherWriter>,
}

pub(super) type Deployment = CachedWorkload<GameDeployment>;

pub(super) type StatefulSet = CachedWorkload<GameStatefulSet>;

/// A workload of one kind; `None` if it is unreadable.
#[derive(Clone, Debug)]
pub(super) struct CachedWorkload<K>(pub Option<Arc<Workload>>, PhantomData<K>);

/// A pod. If another kind of object controls it, only its name is cached.
#[derive(Clone, Debug)]
pub(crate) struct CachedPod {
    /// The fields that decisions use. Boxed, because most pods of a cluster have none.
    pub(crate) pod: Option<Box<pod::Pod>>,
}

/// A `ControllerRevision`. Users of any namespace can create them, each as large as the API server allows and with
/// any workload as its controller, so the content of a revision is never cached.
#[derive(Clone, Debug)]
pub(crate) struct CachedRevision {
    /// The cached part of a revision that a workload controls.
    pub(super) record: Option<Record>,
    /// The cached part of a revision without a controller.
    pub(super) orphan: Option<Orphan>,
}

/// A revision without a controller.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Orphan {
    pub(super) labels: BTreeMap<String, String>,
    /// False if the content does not match the name: the revision was not created by a workload of this project.
    pub(super) fits: bool,
}

/// The cached part of a volume claim.
#[derive(Clone, Debug)]
pub(crate) struct CachedClaim(pub(crate) claims::Claim);

/// A `HookRun` of a workload.
#[derive(Clone, Debug)]
pub(super) struct CachedRun(pub Option<Run>);

/// A `HookTemplate`; `None` if it is unreadable.
#[derive(Clone, Debug)]
pub(crate) struct Template(pub Option<HookTemplateSpec>);

/// The group of objects without a controller.
pub(super) fn orphans(namespace: &str) -> String {
    format!("orphans/{namespace}")
}

/// The group of the claims of one claim template of one set: all names that differ only in the ordinal at the end.
pub(super) fn of_claims(namespace: &str, beginning: &str) -> String {
    format!("claims/{namespace}/{beginning}")
}

/// The group of the objects that a workload controls: the workload's uid.
fn owned(meta: &ObjectMeta) -> Vec<String> {
    controller(meta).filter(|owner| is_workload(owner)).map(|owner| owner.uid.clone()).into_iter().collect()
}

pub(super) fn is_workload(owner: &OwnerReference) -> bool {
    owner.api_version.starts_with("tkex.tencent.com/")
        && matches!(owner.kind.as_str(), "GameDeployment" | "GameStatefulSet")
}

/// True unless the labels are too many or too long to be cached.
fn are_few(labels: &BTreeMap<String, String>) -> bool {
    let bytes: usize = labels.iter().map(|(key, value)| key.len() + value.len()).sum();
    labels.len() <= MAX_LABELS && bytes <= MAX_LABEL_BYTES
}

fn version(meta: &ObjectMeta) -> String {
    meta.resource_version.clone().unwrap_or_default()
}

pub(super) trait WorkloadKind: Resource<DynamicType = ()> + DeserializeOwned {
    /// The spec, the last status as decisions use it, and the complete last status.
    fn read(self) -> (WorkloadSpec, Report, Value);
}

impl WorkloadKind for GameDeployment {
    fn read(self) -> (WorkloadSpec, Report, Value) {
        let report = Report::of_deployment(&self.status.clone().unwrap_or_default());
        (WorkloadSpec::of_deployment(&self), report, serde_json::to_value(self.status).unwrap_or_default())
    }
}

impl WorkloadKind for GameStatefulSet {
    fn read(self) -> (WorkloadSpec, Report, Value) {
        let report = Report::of_stateful_set(&self.status.clone().unwrap_or_default());
        (WorkloadSpec::of_stateful_set(&self), report, serde_json::to_value(self.status).unwrap_or_default())
    }
}

impl<K: WorkloadKind + Clone + std::fmt::Debug + Send + Sync + 'static> Trim for CachedWorkload<K> {
    type Kind = K;
    type Source = Value;

    fn trim(source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&source);
        let workload = readable::<K>(&meta, source).map(|object| {
            let (spec, report, status) = object.read();
            let other_writer = meta.managed_fields.as_ref().and_then(|all| OtherWriter::read(all, MANAGER));
            Arc::new(Workload { spec, report, status, version: version(&meta), other_writer })
        });
        (meta, Self(workload, PhantomData))
    }

    /// One group for the workload itself, and one for all workloads of its namespace.
    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![meta.uid.clone().unwrap_or_default(), within(namespace(meta))]
    }

    /// The status is not compared, because the controller itself writes it.
    fn is_unchanged_since(&self, before: &Self) -> bool {
        match (&self.0, &before.0) {
            (Some(now), Some(before)) => now.spec == before.spec,
            _ => false,
        }
    }
}

impl Trim for CachedPod {
    type Kind = Pod;
    type Source = Pod;

    fn trim(source: Pod) -> (ObjectMeta, Self) {
        let needed = controller(&source.metadata).is_none_or(is_workload);
        let pod = needed.then(|| Box::new(pod::Pod::read(&source)));
        (source.metadata, Self { pod })
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        let Some(pod) = &self.pod else { return Vec::new() };
        let mut groups = owned(meta);
        if groups.is_empty() {
            return vec![orphans(namespace(meta))];
        }
        groups.extend(pod.node.as_deref().map(nodes::group));
        groups
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        let unversioned = |pod: &pod::Pod| pod::Pod { version: String::new(), ..pod.clone() };
        self.pod.as_deref().map(unversioned) == before.pod.as_deref().map(unversioned)
    }
}

impl Trim for CachedRevision {
    type Kind = ControllerRevision;
    type Source = ControllerRevision;

    fn trim(source: ControllerRevision) -> (ObjectMeta, Self) {
        let name = source.metadata.name.clone().unwrap_or_default();
        let template = || source.data.as_ref().and_then(|data| revision::template(&data.0));
        let (record, orphan) = match controller(&source.metadata) {
            Some(owner) if is_workload(owner) => {
                (template().map(|template| Record::of(&name, source.revision, &template)), None)
            }
            Some(_) => (None, None),
            None => {
                let labels = source.metadata.labels.clone().unwrap_or_default();
                let template = template().filter(|_| are_few(&labels));
                let fits = |template| Orphan { fits: revision::is_named_after(&name, &template), labels };
                (None, template.map(fits))
            }
        };
        (source.metadata, Self { record, orphan })
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        if self.orphan.is_some() {
            return vec![orphans(namespace(meta))];
        }
        owned(meta)
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.record == before.record && self.orphan == before.orphan
    }

    fn bytes(&self) -> usize {
        let images = |record: &Record| {
            let of = |(name, image): (&str, &str)| {
                let resources = resources::of_template(&record.images, name).len();
                name.len() + image.len() + (1 + resources) * OVERHEAD
            };
            record.images.images().map(of).sum()
        };
        let labels = |orphan: &Orphan| {
            orphan.labels.iter().map(|(key, value)| key.len() + value.len() + OVERHEAD).sum()
        };
        let of_record: usize = self.record.as_ref().map_or(0, images);
        of_record + self.orphan.as_ref().map_or(0, labels)
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_REVISION_BYTES)
    }
}

impl Trim for CachedClaim {
    type Kind = PersistentVolumeClaim;
    type Source = PersistentVolumeClaim;

    fn trim(source: PersistentVolumeClaim) -> (ObjectMeta, Self) {
        let PersistentVolumeClaim { metadata: meta, spec, status } = source;
        let short = |text: &String| text.len() <= MAX_TEXT;
        let owners = meta.owner_references.iter().flatten();
        let is_short = owners.clone().count() <= MAX_OWNERS
            && owners.clone().all(|owner| short(&owner.name) && short(&owner.uid));
        let owner = |owner: &OwnerReference| claims::ClaimOwner {
            is_pod: owner.api_version == "v1" && owner.kind == "Pod",
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        };
        // Without labels a claim belongs to no set.
        let labels = meta.labels.as_ref().filter(|labels| is_short && are_few(labels)).cloned();
        let spec = spec.unwrap_or_default();
        let requests = spec.resources.and_then(|resources| resources.requests);
        let storage = requests.and_then(|mut requests| requests.remove("storage"));
        let claim = claims::Claim {
            uid: meta.uid.clone().unwrap_or_default(),
            version: version(&meta),
            terminating: meta.deletion_timestamp.is_some(),
            labels: labels.unwrap_or_default(),
            controller: controller(&meta).map(|owner| owner.uid.clone()).filter(short),
            owners: owners.filter(|_| is_short).map(owner).collect(),
            bound: status.and_then(|status| status.phase).is_some_and(|phase| phase == "Bound"),
            storage: storage.map(|storage| storage.0).filter(short),
            class: spec.storage_class_name.filter(short),
        };
        (meta, Self(claim))
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        let name = meta.name.as_deref().unwrap_or_default();
        let beginning = name.rsplit_once('-').map(|(beginning, _)| beginning);
        beginning.map(|beginning| of_claims(namespace(meta), beginning)).into_iter().collect()
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        let unversioned = |claim: &Self| claims::Claim { version: String::new(), ..claim.0.clone() };
        unversioned(self) == unversioned(before)
    }
}

impl Trim for CachedRun {
    type Kind = HookRun;
    type Source = Value;

    fn trim(source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&source);
        let phase = source.pointer("/status/phase").and_then(|phase| Deserialize::deserialize(phase).ok());
        let spec = HookRunSpec { metrics: Vec::new(), args: Vec::new(), terminate: false, policy: None };
        let status = Some(HookRunStatus { phase, ..HookRunStatus::default() });
        let run = Run::read(&HookRun { metadata: meta.clone(), spec, status });
        (meta, Self(run))
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        owned(meta)
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0 == before.0
    }
}

impl Trim for Template {
    type Kind = HookTemplate;
    type Source = Value;

    fn trim(source: Value) -> (ObjectMeta, Self) {
        let spec = source.get("spec").and_then(|spec| Deserialize::deserialize(spec).ok());
        (meta_of(&source), Self(spec))
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![within(namespace(meta))]
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0 == before.0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::pod_template::PodTemplate;
    use crate::cluster::trim::Trimmed;

    fn trimmed(mut revision: Value) -> Trimmed<CachedRevision> {
        revision["revision"] = json!(1);
        serde_json::from_value(revision).unwrap()
    }

    fn owned_by(group: &str, kind: &str) -> Value {
        json!([{"apiVersion": format!("{group}/v1"), "kind": kind, "name": "web", "uid": "1", "controller": true}])
    }

    #[test]
    fn of_a_revision_without_a_controller_only_the_labels_are_cached_and_whether_its_name_fits_its_content() {
        let template = PodTemplate(json!({"spec": {"containers": [{"name": "app", "image": "app:1"}]}}));
        let name = revision::find("web", &template, &[], 0).revision.name;
        let labels = json!({"app": "web"});
        let orphan = json!({"metadata": {"name": name, "labels": labels}, "data": revision::data(&template)});
        let fits = |revision: Value| {
            trimmed(revision).value.orphan.map(|orphan| (json!(orphan.labels), orphan.fits))
        };
        assert_eq!(fits(orphan.clone()), Some((labels.clone(), true)));
        assert_eq!(trimmed(orphan.clone()).value.record, None);

        let mut other_content = orphan.clone();
        other_content["data"]["spec"]["template"]["spec"]["containers"][0]["image"] = json!("app:2");
        assert_eq!(fits(other_content), Some((labels, false)));
        let mut many_labels = orphan.clone();
        many_labels["metadata"]["labels"] =
            (0..=MAX_LABELS).map(|at| (format!("label-{at}"), json!("x"))).collect();
        let mut long_labels = orphan.clone();
        long_labels["metadata"]["labels"] = json!({"app": "x".repeat(MAX_LABEL_BYTES)});
        let mut of_another_kind = orphan;
        of_another_kind["metadata"]["ownerReferences"] = owned_by("apps", "StatefulSet");
        for nothing in [many_labels, long_labels, of_another_kind] {
            let cached = trimmed(nothing.clone()).value;
            assert_eq!((cached.record, cached.orphan), (None, None), "{nothing:#}");
        }
    }

    #[test]
    fn nothing_large_of_a_revision_is_cached() {
        let long = "x".repeat(1 << 20);
        let template = json!({"metadata": {"annotations": {"a": long}},
            "spec": {"containers": [{"name": "app", "image": "app:1", "env": long}]}});
        let data = revision::data(&PodTemplate(template));
        let of = |owners: Value| {
            trimmed(
                json!({"metadata": {"name": "web-1", "labels": {"app": "web"}, "annotations": {"b": long},
                "ownerReferences": owners}, "data": data}),
            )
        };
        let mut long_owner = owned_by("tkex.tencent.com", "GameDeployment");
        for field in ["apiVersion", "kind", "name", "uid"] {
            long_owner[0][field] = json!(format!("tkex.tencent.com/{long}"));
        }
        for owners in [
            json!([]),
            owned_by("tkex.tencent.com", "GameDeployment"),
            owned_by("apps", "StatefulSet"),
            long_owner,
        ] {
            let cached = format!("{:?}", of(owners.clone()));
            assert!(cached.len() < 8 << 10, "{} bytes for {}", cached.len(), &owners.to_string()[..40]);
        }
    }
}
