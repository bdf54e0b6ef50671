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
use crate::controller::bounds::{
    self, MAX_BYTES_OF_NAMESPACE, MAX_IMAGE, MAX_TEXT, OVERHEAD, are_few, memory_of_spec,
};
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
/// The limit for the cached workloads of one kind in a namespace, in bytes: one that is not cached is not updated.
const MAX_BYTES_OF_WORKLOADS: usize = 2 * MAX_BYTES_OF_NAMESPACE;
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

/// A workload of one kind, `None` if it is unreadable, and the memory of its spec in bytes.
#[derive(Clone, Debug)]
pub(super) struct CachedWorkload<K>(pub Option<Arc<Workload>>, usize, PhantomData<K>);

/// A pod. If another kind of object controls it, only its name is cached; without a controller only what adoption
/// needs.
///
/// The number of pods has no limit: a pod of a workload that was not cached would be created again. So each is
/// bounded.
#[derive(Clone, Debug)]
pub(crate) struct CachedPod {
    /// The fields that decisions use. Boxed, because most pods of a cluster have none.
    pub(crate) pod: Option<Box<pod::Pod>>,
    /// True if it has more labels than are cached.
    pub(crate) is_cut: bool,
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

/// A `HookTemplate`, `None` if it is unreadable, and the memory of its spec in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Template(pub Option<HookTemplateSpec>, usize);

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

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        let bytes = memory_of_spec(&source);
        let workload = readable::<K>(&meta, source).and_then(|object| {
            let (spec, report, status) = object.read();
            // Its pods would have the image too, each a copy of it.
            if spec.template.images().any(|(_, image)| image.len() > MAX_IMAGE) {
                let (kind, of, name) = (K::kind(&()), &spec.namespace, &spec.name);
                tracing::warn!(
                    "{kind} {of}/{name} has an image of more than {MAX_IMAGE} bytes and is ignored"
                );
                return None;
            }
            let other_writer = meta.managed_fields.as_ref().and_then(|all| OtherWriter::read(all, MANAGER));
            Some(Arc::new(Workload { spec, report, status, version: version(&meta), other_writer }))
        });
        let step = workload.as_ref().and_then(|workload| workload.spec.update.resume_step.as_ref());
        let bytes = if workload.is_some() { bytes + step.map_or(0, String::len) } else { 0 };
        (meta, Self(workload, bytes, PhantomData))
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

    /// Without the status, which the controller itself writes.
    fn bytes(&self) -> usize {
        self.1
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_BYTES_OF_WORKLOADS)
    }
}

impl Trim for CachedPod {
    type Kind = Pod;
    type Source = Pod;

    fn trim(mut source: Pod) -> (ObjectMeta, Self) {
        let owner = controller(&source.metadata);
        let (is_orphan, needed) = (owner.is_none(), owner.is_none_or(is_workload));
        if !needed {
            return (source.metadata, Self { pod: None, is_cut: false });
        }
        if is_orphan {
            // Only whether a workload adopts it is decided; it is read again then.
            (source.spec, source.status, source.metadata.annotations) = (None, None, None);
        }
        bounds::bound(&mut source);
        let mut pod = Box::new(pod::Pod::read(&source));
        let is_cut = bounds::cut(&mut pod.labels);
        // Labels that are not cached may be those that a selector excludes: no workload adopts the pod.
        let pod = Some(pod).filter(|_| !(is_orphan && is_cut));
        (source.metadata, Self { pod, is_cut })
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
        self.is_cut == before.is_cut
            && self.pod.as_deref().map(unversioned) == before.pod.as_deref().map(unversioned)
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

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
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

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let spec: Option<HookTemplateSpec> =
            source.get("spec").and_then(|spec| Deserialize::deserialize(spec).ok());
        let bytes = if spec.is_some() { memory_of_spec(&source) } else { 0 };
        (meta_of(&mut source), Self(spec, bytes))
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![within(namespace(meta))]
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0 == before.0
    }

    fn bytes(&self) -> usize {
        self.1
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_BYTES_OF_NAMESPACE)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::pod_template::PodTemplate;
    use crate::cluster::trim::Trimmed;
    use crate::controller::bounds::{MAX_LABEL_BYTES, MAX_LABELS};

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
    fn workload(name: &str, image: &str, annotations: &Value) -> Trimmed<Deployment> {
        let template = json!({"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": image}]}});
        let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template});
        let metadata = json!({"name": name, "namespace": "shop", "uid": "1", "generation": 1,
            "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
    }

    #[test]
    fn the_memory_of_a_workload_counts_and_one_with_an_image_that_nobody_can_run_is_unreadable() {
        let small = workload("web", "app:1", &json!({}));
        assert!(small.value.0.is_some() && small.value.bytes() > 1000);
        assert_eq!(small.value.bytes(), workload("web", "app:2", &json!({})).value.bytes());
        let step = json!({crate::api::workload_key::RESUME_STEP: "x".repeat(1000)});
        assert_eq!(workload("web", "app:1", &step).value.bytes(), small.value.bytes() + 1000);
        let huge = workload("web", &"x".repeat(MAX_IMAGE + 1), &json!({}));
        assert!(huge.value.0.is_none() && huge.value.bytes() == 0);
    }

    #[test]
    fn little_is_cached_of_a_pod_however_large_it_is() {
        let long = "x".repeat(200 << 10);
        let pod = |labels: usize, owners: Value| {
            let labels: BTreeMap<_, _> = (0..labels).map(|at| (format!("label-{at}"), "x")).collect();
            let metadata = json!({"name": "web-0", "namespace": "shop", "uid": "u", "labels": labels,
                "ownerReferences": owners, "annotations": {"inplace.dev/status": long}});
            let spec = json!({"nodeName": "n", "containers": [{"name": "app", "image": long}]});
            let pod: Trimmed<CachedPod> =
                serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
            assert!(format!("{pod:?}").len() < 16 << 10);
            pod.value
        };
        let own = owned_by("tkex.tencent.com", "GameDeployment");
        let of_workload = pod(50_000, own.clone());
        assert!(of_workload.is_cut && of_workload.pod.is_some_and(|pod| pod.labels.len() == MAX_LABELS));
        assert!(!pod(2, own).is_cut);
        let orphan = pod(2, json!([])).pod.unwrap();
        assert_eq!((orphan.labels.len(), orphan.node), (2, None));
        assert!(pod(50_000, json!([])).pod.is_none(), "nobody adopts it");
        assert!(pod(2, owned_by("apps", "ReplicaSet")).pod.is_none());
    }
}
