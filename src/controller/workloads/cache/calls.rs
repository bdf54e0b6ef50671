//! The API calls for workloads. Each call is made once. Every write applies only to the object that was seen, and
//! to the version that was seen if a decision depends on it. Must not decide.

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, Patch, PostParams, Preconditions};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::api::annotation;
use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::pod_template::PodTemplate;
use crate::cluster::error::Error;
use crate::cluster::event::{self, ObjectEvent};
use crate::cluster::patch::{as_us, status_patch};
use crate::cluster::server::{MANAGER, Server};
use crate::cluster::trim::Trim;
use crate::controller::workloads::cache::kinds::{
    CachedClaim, CachedPod, CachedRevision, Deployment, StatefulSet,
};
use crate::controller::workloads::cache::{Key, Kind, Trimmed, Workloads};
use crate::failure::Class;
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::process::clock;
use crate::workload::claims::OwnerChange;
use crate::workload::revision;

/// How a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// With its own grace period.
    Graceful,
    /// At once, because there is no kubelet that could end it.
    Forced,
}

impl Server {
    pub(crate) async fn create_pod(
        &self,
        namespace: &str,
        name: &str,
        body: &Value,
    ) -> Result<Trimmed<CachedPod>, Error> {
        let doing = format!("creating pod {namespace}/{name}");
        self.ask(&doing, of::<Pod>(namespace).create(&by_us(), bytes(body))).await
    }

    pub(crate) async fn create_claim(&self, namespace: &str, name: &str, body: &Value) -> Result<(), Error> {
        let doing = format!("creating claim {namespace}/{name}");
        let request = of::<PersistentVolumeClaim>(namespace).create(&by_us(), bytes(body));
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }

    /// Changes the owners of a claim, provided that it is unchanged since it was read.
    pub(crate) async fn own_claim(
        &self,
        namespace: &str,
        claim: &VersionedRef,
        change: &OwnerChange,
    ) -> Result<Trimmed<CachedClaim>, Error> {
        let doing = format!("changing the owners of claim {namespace}/{}", claim.name);
        // Owner references are merged by their uid.
        let removed = change.remove.iter().map(|uid| json!({"$patch": "delete", "uid": uid}));
        let references: Vec<_> = change.add.iter().cloned().chain(removed).collect();
        let body = json!({"metadata": {
            "uid": claim.uid, "resourceVersion": claim.version, "ownerReferences": references,
        }});
        let request = of::<PersistentVolumeClaim>(namespace);
        self.ask(&doing, request.patch(&claim.name, &as_us(), &Patch::Strategic(body))).await
    }

    /// Changes the storage request of a claim, provided that it is unchanged since it was read.
    pub(crate) async fn grow_claim(
        &self,
        namespace: &str,
        claim: &VersionedRef,
        storage: &str,
    ) -> Result<Trimmed<CachedClaim>, Error> {
        let doing = format!("requesting {storage} for claim {namespace}/{}", claim.name);
        let body = json!({"metadata": {"uid": claim.uid, "resourceVersion": claim.version},
            "spec": {"resources": {"requests": {"storage": storage}}}});
        let request = of::<PersistentVolumeClaim>(namespace);
        self.ask(&doing, request.patch(&claim.name, &as_us(), &Patch::Merge(body))).await
    }

    /// Whether volumes of a storage class can be expanded; `None` if the class does not exist.
    pub(crate) async fn expands(&self, class: &str) -> Result<Option<bool>, Error> {
        let doing = format!("reading StorageClass {class}");
        let request = Request::new(StorageClass::url_path(&(), None)).get(class, &GetParams::default());
        match self.ask::<Value>(&doing, request).await {
            Ok(class) => Ok(Some(class["allowVolumeExpansion"] == true)),
            Err(error) if error.class() == Class::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a pod; `None` if it is gone or another pod has its name.
    pub(crate) async fn read_pod<T: Trim>(
        &self,
        namespace: &str,
        pod: &VersionedRef,
    ) -> Result<Option<Trimmed<T>>, Error> {
        let doing = format!("reading pod {namespace}/{}", pod.name);
        let request = of::<Pod>(namespace).get(&pod.name, &GetParams::default());
        match self.ask::<Trimmed<T>>(&doing, request).await {
            Ok(seen) => Ok(Some(seen).filter(|seen| seen.meta.uid.as_ref() == Some(&pod.uid))),
            Err(error) if error.class() == Class::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes a pod, provided that it is unchanged since it was read. Returns the resulting pod if the API server
    /// returns it.
    pub(crate) async fn delete_pod(
        &self,
        namespace: &str,
        pod: &VersionedRef,
        how: Deletion,
    ) -> Result<Option<Trimmed<CachedPod>>, Error> {
        let doing = format!("deleting pod {namespace}/{}", pod.name);
        let preconditions =
            Preconditions { uid: Some(pod.uid.clone()), resource_version: Some(pod.version.clone()) };
        let grace_period_seconds = (how == Deletion::Forced).then_some(0);
        let params = DeleteParams {
            preconditions: Some(preconditions),
            grace_period_seconds,
            ..DeleteParams::default()
        };
        let answer: Value = self.ask(&doing, of::<Pod>(namespace).delete(&pod.name, &params)).await?;
        let is_pod = answer.get("kind").and_then(Value::as_str) == Some("Pod");
        Ok(Some(answer).filter(|_| is_pod).and_then(|answer| serde_json::from_value(answer).ok()))
    }

    /// Changes labels and annotations of a pod, provided that it is unchanged since it was read.
    pub(crate) async fn patch_pod<T: Trim>(
        &self,
        namespace: &str,
        pod: &VersionedRef,
        patch: &PodPatch,
    ) -> Result<Trimmed<T>, Error> {
        let doing = format!("changing pod {namespace}/{}", pod.name);
        let body = json!({"metadata": {
            "uid": pod.uid, "resourceVersion": pod.version,
            "labels": patch.labels, "annotations": patch.annotations,
        }});
        self.ask(&doing, of::<Pod>(namespace).patch(&pod.name, &as_us(), &Patch::Merge(body))).await
    }

    /// Writes the condition of a readiness gate that a bk-bcs operator has closed, provided that the pod is unchanged
    /// since it was read.
    pub(crate) async fn set_foreign_gate(
        &self,
        namespace: &str,
        pod: &VersionedRef,
        open: bool,
    ) -> Result<Trimmed<CachedPod>, Error> {
        let doing = format!("writing the condition of the readiness gate of pod {namespace}/{}", pod.name);
        let (status, reason, message) = if open {
            (
                "True",
                annotation::GATE_READY,
                "the update that a bk-bcs operator began is complete, or was taken back",
            )
        } else {
            (
                "False",
                annotation::GATE_FAILED,
                "the update that a bk-bcs operator began is not complete: a request follows",
            )
        };
        let condition = json!({"type": annotation::GATE, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()});
        let body = json!({"metadata": {"uid": pod.uid, "resourceVersion": pod.version},
            "status": {"conditions": [condition]}});
        let request =
            of::<Pod>(namespace).patch_subresource("status", &pod.name, &as_us(), &Patch::Strategic(body));
        self.ask(&doing, request).await
    }

    /// Changes cpu and memory in the spec of a running pod, provided that the pod is unchanged since it was read.
    pub(crate) async fn resize_pod(
        &self,
        namespace: &str,
        pod: &VersionedRef,
        spec: &Value,
    ) -> Result<Trimmed<CachedPod>, Error> {
        let doing = format!("resizing pod {namespace}/{}", pod.name);
        let body = json!({"metadata": {"uid": pod.uid, "resourceVersion": pod.version}, "spec": spec});
        let request =
            of::<Pod>(namespace).patch_subresource("resize", &pod.name, &as_us(), &Patch::Strategic(body));
        self.ask(&doing, request).await
    }

    /// Makes a workload the controller of a pod by an owner reference, or (`own` false) removes that reference.
    pub(crate) async fn own_pod(
        &self,
        namespace: &str,
        pod: &VersionedRef,
        owner: &OwnerReference,
        own: bool,
    ) -> Result<Trimmed<CachedPod>, Error> {
        let doing = format!("{} pod {namespace}/{}", if own { "adopting" } else { "releasing" }, pod.name);
        // Owner references are merged by their uid.
        let reference = if own { json!(owner) } else { json!({"$patch": "delete", "uid": owner.uid}) };
        let body = json!({"metadata": {
            "uid": pod.uid, "resourceVersion": pod.version, "ownerReferences": [reference],
        }});
        self.ask(&doing, of::<Pod>(namespace).patch(&pod.name, &as_us(), &Patch::Strategic(body))).await
    }

    /// Makes a workload the controller of a revision without a controller, provided that the revision is unchanged
    /// since it was read.
    pub(crate) async fn adopt_revision(
        &self,
        namespace: &str,
        revision: &VersionedRef,
        owner: &OwnerReference,
    ) -> Result<Trimmed<CachedRevision>, Error> {
        let doing = format!("adopting ControllerRevision {namespace}/{}", revision.name);
        let body = json!({"metadata": {
            "uid": revision.uid, "resourceVersion": revision.version, "ownerReferences": [owner],
        }});
        let request = of::<ControllerRevision>(namespace);
        self.ask(&doing, request.patch(&revision.name, &as_us(), &Patch::Strategic(body))).await
    }

    /// The template in the revision with this uid; `None` if the revision is gone or has no template.
    pub(crate) async fn revision_template(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<Option<PodTemplate>, Error> {
        let doing = format!("reading ControllerRevision {namespace}/{name}");
        let request = of::<ControllerRevision>(namespace).get(name, &GetParams::default());
        let found = match self.ask::<ControllerRevision>(&doing, request).await {
            Ok(found) => found,
            Err(error) if error.class() == Class::Gone => return Ok(None),
            Err(error) => return Err(error),
        };
        let data = found.data.filter(|_| found.metadata.uid.as_deref() == Some(uid));
        Ok(data.and_then(|data| revision::template(&data.0)))
    }

    pub(crate) async fn create_revision(&self, revision: &ControllerRevision) -> Result<(), Error> {
        let meta = &revision.metadata;
        let (namespace, name) =
            (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
        let doing = format!("creating ControllerRevision {namespace}/{name}");
        let body = serde_json::to_vec(revision).unwrap_or_default();
        self.ask::<IgnoredAny>(&doing, of::<ControllerRevision>(namespace).create(&by_us(), body))
            .await
            .map(drop)
    }

    /// Changes the number of a revision, provided that the revision is unchanged since it was read.
    pub(crate) async fn number_revision(
        &self,
        namespace: &str,
        name: &str,
        (uid, version): &(String, String),
        number: i64,
    ) -> Result<(), Error> {
        let doing = format!("changing ControllerRevision {namespace}/{name}");
        let body = json!({"metadata": {"uid": uid, "resourceVersion": version}, "revision": number});
        let request = of::<ControllerRevision>(namespace).patch(name, &as_us(), &Patch::Merge(body));
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }

    /// Deletes a revision. It is not an error if it is gone.
    pub(crate) async fn delete_revision(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let doing = format!("deleting ControllerRevision {namespace}/{name}");
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.ask::<IgnoredAny>(&doing, of::<ControllerRevision>(namespace).delete(name, &params)).await
        {
            Err(error) if error.class() == Class::Gone => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Reads the uid of a workload; `None` if it is gone or being deleted.
    pub(crate) async fn workload_uid(&self, key: &Key) -> Result<Option<String>, Error> {
        let doing = format!("reading {key}");
        let request = workloads(key).get(&key.name, &GetParams::default());
        match self.ask::<Value>(&doing, request).await {
            Ok(seen) => {
                let leaves = seen.pointer("/metadata/deletionTimestamp").is_some();
                let uid = seen.pointer("/metadata/uid").and_then(Value::as_str);
                Ok(uid.filter(|_| !leaves).map(str::to_owned))
            }
            Err(error) if error.class() == Class::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes a workload, provided that it is unchanged since it was read; stores the result in the cache `cache`.
    /// Returns its new version.
    pub(crate) async fn patch_workload(
        &self,
        cache: &Workloads,
        key: &Key,
        (uid, version): (&str, &str),
        mut body: Value,
    ) -> Result<String, Error> {
        let doing = format!("changing {key}");
        if let Some(fields) = body.as_object_mut() {
            let meta = fields.entry("metadata").or_insert_with(|| json!({}));
            meta["uid"] = json!(uid);
            meta["resourceVersion"] = json!(version);
        }
        let request = workloads(key).patch(&key.name, &as_us(), &Patch::Merge(body));
        self.ask_workload(&doing, cache, key, request).await
    }

    /// Writes the status of a workload, provided that it is unchanged since it was read; stores the result in the
    /// cache `cache`. Returns its new version.
    pub(crate) async fn workload_status(
        &self,
        cache: &Workloads,
        key: &Key,
        at: (&str, &str),
        status: Value,
    ) -> Result<String, Error> {
        let doing = format!("writing the status of {key}");
        let patch = status_patch(at, status);
        let request = workloads(key).patch_subresource("status", &key.name, &as_us(), &patch);
        self.ask_workload(&doing, cache, key, request).await
    }

    /// Writes an event about an object; `host` is the reporting instance. Returns the name of the event.
    pub(crate) async fn object_event(
        &self,
        about: ObjectReference,
        host: &str,
        reported: &ObjectEvent,
    ) -> Result<String, Error> {
        let (kind, name) =
            (about.kind.as_deref().unwrap_or_default(), about.name.as_deref().unwrap_or_default());
        let doing = format!("writing the event {} of {kind} {name}", reported.reason);
        let namespace = about.namespace.clone().unwrap_or_default();
        let event = event::event(about, host, reported);
        self.report(&doing, &namespace, &event).await?;
        Ok(event.metadata.name.unwrap_or_default())
    }

    /// Sets the count of an event, with the text and time of `reported` as its last occurrence.
    pub(crate) async fn count_event(
        &self,
        namespace: &str,
        name: &str,
        count: i32,
        reported: &ObjectEvent,
    ) -> Result<(), Error> {
        let doing = format!("counting the event {} {namespace}/{name}", reported.reason);
        let at = reported.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let body = json!({"count": count, "lastTimestamp": at, "message": reported.note});
        let request = of::<k8s_openapi::api::core::v1::Event>(namespace);
        let request = request.patch(name, &as_us(), &Patch::Merge(body));
        self.ask::<IgnoredAny>(&doing, request).await.map(drop)
    }

    async fn ask_workload(
        &self,
        doing: &str,
        cache: &Workloads,
        key: &Key,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<String, Error> {
        match key.kind {
            Kind::Deployment => {
                let seen: Trimmed<Deployment> = self.ask(doing, request).await?;
                let version = seen.meta.resource_version.clone();
                cache.deployments.upsert(seen);
                Ok(version.unwrap_or_default())
            }
            Kind::StatefulSet => {
                let seen: Trimmed<StatefulSet> = self.ask(doing, request).await?;
                let version = seen.meta.resource_version.clone();
                cache.sets.upsert(seen);
                Ok(version.unwrap_or_default())
            }
        }
    }
}

impl Key {
    /// The reference to the workload in events.
    pub(crate) fn reference(&self, uid: &str) -> ObjectReference {
        ObjectReference {
            api_version: Some(GameDeployment::api_version(&()).into_owned()),
            kind: Some(self.kind.name().to_owned()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        }
    }
}

fn of<T: Resource<DynamicType = ()>>(namespace: &str) -> Request {
    Request::new(T::url_path(&(), Some(namespace)))
}

fn workloads(key: &Key) -> Request {
    match key.kind {
        Kind::Deployment => of::<GameDeployment>(&key.namespace),
        Kind::StatefulSet => of::<GameStatefulSet>(&key.namespace),
    }
}

fn bytes(body: &Value) -> Vec<u8> {
    body.to_string().into_bytes()
}

fn by_us() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}
