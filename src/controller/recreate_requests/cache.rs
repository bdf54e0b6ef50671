//! A cache of the `ContainerRecreateRequest`s and of the pods that have the record of one, and the API calls for them.
//!
//! Must not decide: it reports the state and makes each requested call once.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ObjectReference, Pod as CorePod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource as _;
use kube::core::Request;
use kube::core::params::{DeleteParams, GetParams, Preconditions};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::container_recreate_request::{ContainerRecreateRequest, ContainerRecreateRequestStatus};
use crate::cluster::error::{Class, Error};
use crate::cluster::patch::{as_us, status_patch};
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::Store;
use crate::cluster::trim::{self, Trim, Trimmed, meta_of, readable};
use crate::controller::bounds::{self, MAX_BYTES_OF_NAMESPACE, memory_of_spec};
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::recreate_request::{Pod, RecreateRequest};

/// Namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ContainerRecreateRequest {}/{}", self.namespace, self.name)
    }
}

/// An object; `None` if it is unreadable.
#[derive(Clone, Debug)]
struct CachedObject {
    object: Option<Arc<RecreateRequest>>,
    /// The memory of its spec.
    bytes: usize,
}

/// A pod with the label [`annotation::RECREATE_REQUEST_UID`].
#[derive(Clone, Debug)]
struct CachedPod(Arc<Pod>);

/// All objects, and the pods that they work on. Clones share the cache.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    objects: Store<Trimmed<CachedObject>>,
    pods: Store<Trimmed<CachedPod>>,
}

/// Reads the object of a watch event as the caches do.
#[cfg(any(fuzzing, feature = "faults"))]
pub(in crate::controller) fn watched(event: &[u8]) {
    trim::watched::<CachedObject>(event);
    trim::watched::<CachedPod>(event);
}

impl Trim for CachedObject {
    type Kind = ContainerRecreateRequest;
    type Source = Value;

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let (meta, bytes) = (meta_of(&mut source), memory_of_spec(&source));
        let object = readable::<ContainerRecreateRequest>(&meta, source);
        let bytes = if object.is_some() { bytes } else { 0 };
        (meta, Self { object: object.map(|object| Arc::new(RecreateRequest::read(object))), bytes })
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![trim::key(trim::namespace(meta), meta.name.as_deref().unwrap_or_default())]
    }

    /// The status is not compared, because the controller itself writes it.
    fn is_unchanged_since(&self, before: &Self) -> bool {
        let unwritten = |cached: &Self| {
            let object = cached.object.as_deref()?.clone();
            Some(RecreateRequest {
                version: String::new(),
                before: ContainerRecreateRequestStatus::default(),
                ..object
            })
        };
        unwritten(self).is_some_and(|object| Some(object) == unwritten(before))
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn most_bytes() -> Option<usize> {
        Some(MAX_BYTES_OF_NAMESPACE)
    }
}

impl Trim for CachedPod {
    type Kind = CorePod;
    type Source = CorePod;

    fn trim(mut source: CorePod) -> (ObjectMeta, Self) {
        bounds::bound(&mut source);
        let mut pod = Pod::read(&source);
        bounds::cut(&mut pod.base.labels);
        (source.metadata, Self(Arc::new(pod)))
    }

    /// The object in the record.
    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        let record = self.0.record.iter();
        record.map(|record| trim::key(trim::namespace(meta), &record.name)).collect()
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        let changing =
            |pod: &Self| (pod.0.record.clone(), pod.0.base.request.clone(), pod.0.base.answer.clone());
        changing(self) == changing(before)
    }
}

impl Cache {
    /// Watches until `stop`. The cache is empty when this returns; see [`Self::is_current`].
    pub(super) fn watch(server: &Server, stop: &CancellationToken) -> Self {
        let objects = Selection { what: "ContainerRecreateRequests".to_owned(), ..Selection::default() };
        let pods = Selection {
            what: "the pods of ContainerRecreateRequests".to_owned(),
            labels: Some(annotation::RECREATE_REQUEST_UID.to_owned()),
            ..Selection::default()
        };
        Self {
            objects: Store::watch(server.clone(), objects, stop.clone()),
            pods: Store::watch(server.clone(), pods, stop.clone()),
        }
    }

    /// True if objects and pods have been listed and are as new as the API server can deliver them.
    pub(super) fn is_current(&self) -> bool {
        let objects = self.objects.has_synced() && (self.objects.is_current() || self.objects.is_empty());
        objects && self.pods.has_synced() && self.pods.is_current()
    }

    /// Returns when anything has changed since the last call on this clone.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = self.objects.changed() => {}
            () = self.pods.changed() => {}
        }
    }

    /// The objects that have changed since the last call, or whose pod has, each with its generation. Only one caller may
    /// use it.
    pub(super) fn updates(&self) -> Vec<(Key, i64)> {
        let touched: BTreeSet<_> = self.objects.touched().into_iter().chain(self.pods.touched()).collect();
        let keys = touched.iter().filter_map(|key| key.split_once('/'));
        let keys =
            keys.map(|(namespace, name)| Key { namespace: namespace.to_owned(), name: name.to_owned() });
        keys.map(|key| (self.generation(&key), key)).map(|(generation, key)| (key, generation)).collect()
    }

    fn generation(&self, key: &Key) -> i64 {
        self.get(key).map_or(0, |object| object.generation)
    }

    /// The cached object; `None` if it is gone or unreadable.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<RecreateRequest>> {
        self.objects.get(&trim::key(&key.namespace, &key.name))?.value.object.clone()
    }

    /// True if the object exists, and cannot be read.
    pub(super) fn is_unreadable(&self, key: &Key) -> bool {
        let cached = self.objects.get(&trim::key(&key.namespace, &key.name));
        cached.is_some_and(|cached| cached.value.object.is_none())
    }

    /// The pods with the record of an object of this name.
    pub(super) fn pods(&self, key: &Key) -> Vec<Arc<Pod>> {
        let pods = self.pods.group(&trim::key(&key.namespace, &key.name));
        pods.iter().map(|pod| Arc::clone(&pod.value.0)).collect()
    }

    /// Stores an object that a write returned.
    fn upsert(&self, object: Trimmed<CachedObject>) {
        self.objects.upsert(object);
    }
}

/// The reference to an object in events.
pub(super) fn reference(object: &RecreateRequest) -> ObjectReference {
    ObjectReference {
        api_version: Some(ContainerRecreateRequest::api_version(&()).into_owned()),
        kind: Some(ContainerRecreateRequest::kind(&()).into_owned()),
        namespace: Some(object.namespace.clone()),
        name: Some(object.name.clone()),
        uid: Some(object.uid.clone()),
        ..ObjectReference::default()
    }
}

fn objects(namespace: &str) -> Request {
    Request::new(ContainerRecreateRequest::url_path(&(), Some(namespace)))
}

impl Server {
    /// Reads the pod of an object. `None` if there is none of this name.
    pub(super) async fn pod_of(&self, object: &RecreateRequest) -> Result<Option<Pod>, Error> {
        let (namespace, name) = (&object.namespace, &object.spec.pod_name);
        // The name is the user's: what is no name of a pod must not become a part of a path.
        if !crate::api::request::is_dns_subdomain(name) {
            return Ok(None);
        }
        let request = Request::new(CorePod::url_path(&(), Some(namespace))).get(name, &GetParams::default());
        match self.ask::<CorePod>(&format!("reading pod {namespace}/{name}"), request).await {
            Ok(pod) => Ok(Some(Pod::read(&pod))),
            Err(error) if error.class() == Class::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// True if the object of this name and uid works on the pod. The API server is asked, because an object that
    /// exists may be missing in the cache.
    pub(super) async fn works_on(&self, key: &Key, uid: &str, pod: &str) -> Result<bool, Error> {
        // The name in a record is the user's.
        if !crate::api::request::is_dns_subdomain(&key.name) {
            return Ok(false);
        }
        let selection = Selection {
            what: key.to_string(),
            namespace: Some(key.namespace.clone()),
            fields: Some(format!("metadata.name={}", key.name)),
            ..Selection::default()
        };
        let works = |object: &RecreateRequest| !object.deleting && object.works_on(uid, pod);
        match self.list::<Trimmed<CachedObject>>(&selection).await {
            // What cannot be read is left alone.
            Ok(listed) => Ok(listed.items.iter().any(|seen| {
                seen.meta.uid.as_deref() == Some(uid) && seen.value.object.as_deref().is_none_or(works)
            })),
            Err(error) if error.class() == Class::Gone => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes labels and annotations of a pod, provided that it is unchanged since it was read.
    pub(super) async fn patch_pod_of(
        &self,
        namespace: &str,
        cache: &Cache,
        pod: &Pod,
        patch: &PodPatch,
    ) -> Result<(), Error> {
        cache.pods.upsert(self.patch_pod(namespace, &VersionedRef::of(&pod.base), patch).await?);
        Ok(())
    }

    /// Writes the status of an object, provided that it is unchanged since it was read.
    pub(super) async fn recreate_status(
        &self,
        cache: &Cache,
        object: &RecreateRequest,
        status: &ContainerRecreateRequestStatus,
    ) -> Result<(), Error> {
        let doing =
            format!("writing the status of ContainerRecreateRequest {}/{}", object.namespace, object.name);
        let patch = status_patch((&object.uid, &object.version), json!(status));
        let request = objects(&object.namespace).patch_subresource("status", &object.name, &as_us(), &patch);
        cache.upsert(self.ask(&doing, request).await?);
        Ok(())
    }

    /// Deletes an object. It is not an error if it is gone.
    pub(super) async fn delete_recreate_request(&self, object: &RecreateRequest) -> Result<(), Error> {
        let doing = format!("deleting ContainerRecreateRequest {}/{}", object.namespace, object.name);
        let preconditions = Preconditions { uid: Some(object.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let request = objects(&object.namespace).delete(&object.name, &params);
        match self.ask::<IgnoredAny>(&doing, request).await {
            Err(error) if error.class() == Class::Gone => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}
