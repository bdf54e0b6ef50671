//! The writes to a pod: its image, its readiness gate, its status annotation, and events.
//!
//! Every write is tied to the pod's uid, so that another pod of the same name is never changed. If a write does not
//! fit the current state of the pod, the pod is read and the write is built again, once. Nothing else is retried
//! here.

use std::collections::BTreeMap;

use jiff::Timestamp;
use json_patch::PatchOperation;
use serde::Serialize;
use serde_json::json;

use crate::api::annotation;
use crate::api::group_failure::GroupFailure;
use crate::api::pod_ref::PodRef;
use crate::api::status::Status;
use crate::cluster::credentials::{self, Credential};
use crate::cluster::error::Error;
use crate::cluster::event::{self, ObjectEvent};
use crate::cluster::patch::{self, ANNOTATIONS, UID, VERSION};
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::cluster::server::Change;
use crate::failure::Class;
use crate::process::clock;

/// How a write fits the state of a pod.
enum Fit {
    /// Write this change.
    Write(Change),
    /// The pod is already in the wanted state.
    Done,
    /// The write must not be made.
    Never(Class, String),
}

impl NodePods {
    /// Changes the image of `container` in the pod's spec from `from` to `to`; writes nothing if it is `to`
    /// already. The same patch writes `status`, with the previous image, to the pod's annotation: the spec no longer names
    /// that image, and the admission policy allows an agent to roll back only to an image that the agent recorded in the
    /// annotation while the pod had it.
    ///
    /// # Errors
    /// `Refused` if the image is a third one, `Gone` if the pod or the container does not exist, `Final` for a
    /// static pod.
    pub async fn respec(
        &self,
        pod: &PodRef,
        container: &str,
        from: &str,
        to: &str,
        status: &Status,
    ) -> Result<(), Error> {
        let doing = format!("changing the image of container {container} of pod {pod}");
        let text = text(&doing, status)?;
        self.write(&doing, pod, |seen| respec(seen, container, (from, to), &text)).await
    }

    /// Asks the API server whether it accepts that change, and changes nothing: the admission of the cluster may refuse the
    /// image, and then nothing may run it.
    ///
    /// # Errors
    /// As those of [`Self::respec`].
    pub async fn may_respec(
        &self,
        pod: &PodRef,
        container: &str,
        (from, to): (&str, &str),
        status: &Status,
    ) -> Result<(), Error> {
        let doing =
            format!("asking whether the image of container {container} of pod {pod} may be changed to {to}");
        let text = text(&doing, status)?;
        let seen = self.fetch(&doing, pod).await?;
        match respec(&seen, container, (from, to), &text) {
            Fit::Write(change) => self.server.would_change(&doing, &pod.namespace, &pod.name, &change).await,
            Fit::Done => Ok(()),
            Fit::Never(class, message) => Err(Error::own(&doing, class, message)),
        }
    }

    /// Opens or closes the readiness gate. Only its own condition is written, so that concurrent writes of the
    /// kubelet are kept.
    ///
    /// # Errors
    /// `Gone` if the pod does not exist, or another pod has its name.
    pub async fn set_gate(&self, pod: &PodRef, open: bool, reason: &str, message: &str) -> Result<(), Error> {
        let doing = format!("{} the readiness gate of pod {pod}", if open { "opening" } else { "closing" });
        let (uid, seen) = (self.api_uid(pod), self.get(pod));
        let condition = json!({
            "type": seen.as_ref().map_or(annotation::GATE, |seen| self.gate(seen).0),
            "status": if open { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "lastTransitionTime": seconds(clock::now()),
        });
        let body = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        match self.server.change(&doing, &pod.namespace, &pod.name, &Change::Status(body)).await {
            Ok(pod) => {
                self.upsert(pod);
                Ok(())
            }
            Err(error) if error.is_test_failed() => {
                self.fetch(&doing, pod).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the status to the pod's annotation.
    ///
    /// # Errors
    /// `Gone` if the pod does not exist, or another pod has its name.
    pub async fn write_status(&self, pod: &PodRef, status: &Status) -> Result<(), Error> {
        let doing = format!("writing the status of pod {pod}");
        let text = text(&doing, status)?;
        let epoch = status.group.as_ref().map(|group| group.epoch.to_string());
        let mut annotations = vec![(annotation::STATUS, text.as_str())];
        annotations.extend(epoch.as_deref().map(|epoch| (annotation::GROUP_EPOCH, epoch)));
        self.write(&doing, pod, |seen| {
            let mut operations = annotated(seen, &annotations);
            // What was restarted since is no failure any more, whatever the next status says.
            let text = seen.annotation(annotation::GROUP_FAILURE).unwrap_or_default();
            if seen.failure().is_some_and(|failure| failure.is_over(status)) {
                // A newer failure stays.
                operations.push(patch::test(patch::annotation(annotation::GROUP_FAILURE), text));
                operations.push(patch::remove(patch::annotation(annotation::GROUP_FAILURE)));
            }
            Fit::Write(Change::Json(operations))
        })
        .await
    }

    /// Writes the last failure of the pod to its annotation.
    ///
    /// # Errors
    /// `Gone` if the pod does not exist, or another pod has its name.
    pub async fn write_failure(&self, pod: &PodRef, failure: &GroupFailure) -> Result<(), Error> {
        let doing = format!("writing the failure of pod {pod}");
        let text = text(&doing, failure)?;
        let annotations = [(annotation::GROUP_FAILURE, text.as_str())];
        self.write(&doing, pod, |seen| Fit::Write(Change::Json(annotated(seen, &annotations)))).await
    }

    /// Writes an event about a pod. An event that exists already is not an error.
    pub async fn event(&self, pod: &PodRef, reported: &ObjectEvent) -> Result<(), Error> {
        let doing = format!("writing the event {} of pod {pod}", reported.reason);
        let event = event::event(event::pod(pod), self.node(), reported);
        match self.server.report(&doing, &pod.namespace, &event).await {
            Err(error) if error.class() == Class::Refused => Ok(()),
            reported => reported,
        }
    }

    /// The credentials in the pod's image pull secrets, in the order in which to try them. Required RBAC: `get` on
    /// secrets. A missing secret is skipped, as the kubelet does.
    pub async fn pull_credentials(&self, pod: &PodRef) -> Result<Vec<Credential>, Error> {
        let seen = match self.get(pod) {
            Some(seen) => seen,
            None => std::sync::Arc::new(self.fetch(&format!("reading the secrets of pod {pod}"), pod).await?),
        };
        let mut found = Vec::new();
        for name in seen.pull_secrets() {
            match self.server.secret(&pod.namespace, name).await {
                Ok(secret) => found.extend(credentials::of(&secret)),
                Err(error) if error.class() == Class::Gone => {}
                Err(error) => return Err(error),
            }
        }
        Ok(credentials::ordered(found))
    }

    /// Reads the pod, so that the cached state is as new as this call.
    ///
    /// # Errors
    /// `Gone` if the pod does not exist, or another pod has its name.
    pub async fn reread(&self, pod: &PodRef) -> Result<(), Error> {
        let seen = self.fetch(&format!("reading pod {pod}"), pod).await?;
        self.upsert(seen);
        Ok(())
    }

    /// Makes the write that `fit` builds from the cached pod. If that does not fit (any more), builds it from the
    /// current pod.
    async fn write(&self, doing: &str, pod: &PodRef, fit: impl Fn(&Pod) -> Fit) -> Result<(), Error> {
        let server = &self.server;
        // The cached pod may be old. Only a change built from it is used, because the change carries its own tests.
        if let Some(Fit::Write(change)) = self.get(pod).map(|seen| fit(&seen)) {
            match server.change(doing, &pod.namespace, &pod.name, &change).await {
                Ok(pod) => {
                    self.upsert(pod);
                    return Ok(());
                }
                Err(error) if error.is_test_failed() => {}
                Err(error) => return Err(error),
            }
        }
        let seen = self.fetch(doing, pod).await?;
        match fit(&seen) {
            Fit::Done => {
                self.upsert(seen);
                Ok(())
            }
            Fit::Never(class, message) => Err(Error::own(doing, class, message)),
            Fit::Write(change) => {
                let pod = server.change(doing, &pod.namespace, &pod.name, &change).await?;
                self.upsert(pod);
                Ok(())
            }
        }
    }

    /// Reads the pod, and checks that it is still the same one.
    async fn fetch(&self, doing: &str, pod: &PodRef) -> Result<Pod, Error> {
        let seen = self.server.pod(&pod.namespace, &pod.name).await?;
        if seen.reference() == *pod {
            return Ok(seen);
        }
        let message = "the pod does not exist any more; another pod has its name".to_owned();
        Err(Error::own(doing, Class::Gone, message))
    }

    /// The uid of a pod at the API server. For a static pod, which the cache holds, it differs from the uid at the
    /// runtime.
    pub(super) fn api_uid(&self, pod: &PodRef) -> String {
        self.get(pod).map_or_else(|| pod.uid.clone(), |seen| seen.api_uid().to_owned())
    }
}

/// The change of the image of a container from the first to the second one, with the status in the annotation.
fn respec(seen: &Pod, container: &str, (from, to): (&str, &str), status: &str) -> Fit {
    if seen.is_mirror() {
        let message = "the pod is a static pod: change the image in its manifest on the node".to_owned();
        return Fit::Never(Class::Final, message);
    }
    let Some((place, image)) = seen.place(container) else {
        return Fit::Never(Class::Gone, "the pod has no such container".to_owned());
    };
    if image == to {
        return Fit::Done;
    }
    if image != from {
        let message = format!("another client changed the image of {container} to {image}");
        return Fit::Never(Class::Refused, message);
    }
    let (list, index) = (place.list(), place.index.to_string());
    let field = |field| ["spec", list, &index, field];
    let mut operations = annotated(seen, &[(annotation::STATUS, status)]);
    operations.extend([
        patch::test(field("name"), container),
        patch::test(field("image"), from),
        patch::replace(field("image"), to),
    ]);
    Fit::Write(Change::Json(operations))
}

fn text(doing: &str, value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::own(doing, Class::Final, format!("it has no JSON form: {error}")))
}

/// The JSON patch operations that write these annotations. They apply only to the pod that was `seen`.
fn annotated(seen: &Pod, annotations: &[(&str, &str)]) -> Vec<PatchOperation> {
    let mut operations = vec![patch::test(UID, seen.api_uid())];
    if seen.is_annotated() {
        operations.extend(annotations.iter().map(|(key, text)| patch::add(patch::annotation(key), *text)));
    } else {
        // Adding the whole map would remove annotations that were written in the meantime, so it is tied to the
        // version that was seen.
        operations.push(patch::test(VERSION, kube::ResourceExt::resource_version(seen)));
        let all: BTreeMap<_, _> = annotations.iter().copied().collect();
        operations.push(patch::add(ANNOTATIONS, json!(all)));
    }
    operations
}

/// Formats a time; times in the API are whole seconds.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
