//! What is written to a pod: its image, its readiness gate, the answer, events.
//!
//! Every write is tied to the pod's uid: another pod of the same name is never touched. A write that does not fit what
//! the pod has become is made out anew, once, from a fresh look; beyond that nothing is repeated here.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::annotation;
use crate::api::status::Status;
use crate::cluster::credentials::{self, Credential};
use crate::cluster::error::Error;
use crate::cluster::event::{self, ObjectEvent};
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::cluster::server::Change;
use crate::operation::effect::Class;
use crate::operation::snapshot::PodRef;
use crate::process::clock;

/// What a look at the pod says about a write.
enum Fit {
    /// This is how.
    Write(Change),
    /// There is nothing to do.
    Done,
    /// It must not be done.
    Never(Class, String),
}

impl NodePods {
    /// Changes the image of `container` in the pod's spec from `from` to `to`, and nothing if it is `to` already. The
    /// same write leaves `status` in the pod's annotation: from then on nothing else there names the image from before, and
    /// the admission policy lets an agent go back only to what it wrote down while the pod had it.
    ///
    /// # Errors
    /// `Refused` when it is a third one, `Gone` when the pod or the container is not there, `Final` for a static pod.
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
        self.write(&doing, pod, |seen| {
            if seen.is_mirror() {
                let message = "it is a static pod: its image stands in its manifest on the node".to_owned();
                return Fit::Never(Class::Final, message);
            }
            let Some((place, image)) = seen.place(container) else {
                return Fit::Never(Class::Gone, "the pod has no such container".to_owned());
            };
            if image == to {
                return Fit::Done;
            }
            if image != from {
                let message = format!("somebody else changed the image of {container} to {image}");
                return Fit::Never(Class::Refused, message);
            }
            let at = place.pointer();
            let mut operations = noted(seen, &text);
            operations.extend([
                json!({ "op": "test", "path": format!("{at}/name"), "value": container }),
                json!({ "op": "test", "path": format!("{at}/image"), "value": from }),
                json!({ "op": "replace", "path": format!("{at}/image"), "value": to }),
            ]);
            Fit::Write(Change::Json(operations.into()))
        })
        .await
    }

    /// Opens or closes the readiness gate: only its own condition, whatever else the kubelet writes meanwhile.
    ///
    /// # Errors
    /// `Gone` when the pod is not there, or is another one by now.
    pub async fn set_gate(&self, pod: &PodRef, open: bool, reason: &str, message: &str) -> Result<(), Error> {
        let doing = format!("{} the readiness gate of pod {pod}", if open { "opening" } else { "closing" });
        let uid = self.api_uid(pod);
        let condition = json!({
            "type": annotation::GATE,
            "status": if open { "True" } else { "False" },
            "reason": reason,
            "message": message,
            "lastTransitionTime": seconds(clock::now()),
        });
        let body = json!({ "metadata": { "uid": uid }, "status": { "conditions": [condition] } });
        match self.server.change(&doing, &pod.namespace, &pod.name, &Change::Status(body)).await {
            Ok(pod) => {
                self.learn(pod);
                Ok(())
            }
            Err(error) if error.is_test_failed() => {
                self.look(&doing, pod).await?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the answer into the pod's annotation.
    ///
    /// # Errors
    /// `Gone` when the pod is not there, or is another one by now.
    pub async fn write_status(&self, pod: &PodRef, status: &Status) -> Result<(), Error> {
        let doing = format!("writing the status of pod {pod}");
        let text = text(&doing, status)?;
        self.write(&doing, pod, |seen| Fit::Write(Change::Json(noted(seen, &text).into()))).await
    }

    /// Tells something about a pod. Told again, it is there already, which is as good.
    pub async fn event(&self, pod: &PodRef, reported: &ObjectEvent) -> Result<(), Error> {
        let doing = format!("writing the event {} of pod {pod}", reported.reason);
        let event = event::event(event::pod(pod), self.node(), reported);
        match self.server.report(&doing, &pod.namespace, &event).await {
            Err(error) if error.class() == Class::Refused => Ok(()),
            reported => reported,
        }
    }

    /// What the pod's own secrets offer for pulling images, in the order in which to try them. Needs the right to read
    /// secrets. A secret that is not there is passed over, as the kubelet does.
    pub async fn pull_credentials(&self, pod: &PodRef) -> Result<Vec<Credential>, Error> {
        let seen = match self.get(pod) {
            Some(seen) => seen,
            None => std::sync::Arc::new(self.look(&format!("reading the secrets of pod {pod}"), pod).await?),
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

    /// Reads the pod, so that what is known of it is as new as this call.
    ///
    /// # Errors
    /// `Gone` when the pod is not there, or is another one by now.
    pub async fn reread(&self, pod: &PodRef) -> Result<(), Error> {
        let seen = self.look(&format!("reading pod {pod}"), pod).await?;
        self.learn(seen);
        Ok(())
    }

    /// Writes what `fit` makes of the pod as it is known, and if that does not fit (any more), of a fresh look.
    async fn write(&self, doing: &str, pod: &PodRef, fit: impl Fn(&Pod) -> Fit) -> Result<(), Error> {
        let server = &self.server;
        // What is known may be old: only what it says to write counts, for that carries its tests along.
        if let Some(Fit::Write(change)) = self.get(pod).map(|seen| fit(&seen)) {
            match server.change(doing, &pod.namespace, &pod.name, &change).await {
                Ok(pod) => {
                    self.learn(pod);
                    return Ok(());
                }
                Err(error) if error.is_test_failed() => {}
                Err(error) => return Err(error),
            }
        }
        let seen = self.look(doing, pod).await?;
        match fit(&seen) {
            Fit::Done => {
                self.learn(seen);
                Ok(())
            }
            Fit::Never(class, message) => Err(Error::own(doing, class, message)),
            Fit::Write(change) => {
                let pod = server.change(doing, &pod.namespace, &pod.name, &change).await?;
                self.learn(pod);
                Ok(())
            }
        }
    }

    /// The pod as it is now, if it is still the same one.
    async fn look(&self, doing: &str, pod: &PodRef) -> Result<Pod, Error> {
        let seen = self.server.pod(&pod.namespace, &pod.name).await?;
        if seen.reference() == *pod {
            return Ok(seen);
        }
        let message = "it is gone; another pod has its name now".to_owned();
        Err(Error::own(doing, Class::Gone, message))
    }

    /// The API server's uid of a pod: another one than the runtime's for a static pod, whose copy is in the view.
    pub(super) fn api_uid(&self, pod: &PodRef) -> String {
        self.get(pod).map_or_else(|| pod.uid.clone(), |seen| seen.api_uid().to_owned())
    }
}

fn text(doing: &str, status: &Status) -> Result<String, Error> {
    serde_json::to_string(status)
        .map_err(|error| Error::own(doing, Class::Final, format!("it has no JSON form: {error}")))
}

/// The operations of a JSON patch that put `text` into the annotation of the pod that was `seen`, and of no other.
fn noted(seen: &Pod, text: &str) -> Vec<Value> {
    let mut operations = vec![json!({ "op": "test", "path": "/metadata/uid", "value": seen.api_uid() })];
    if seen.is_annotated() {
        let path = format!("/metadata/annotations/{}", annotation::STATUS.replace('/', "~1"));
        operations.push(json!({ "op": "add", "path": path, "value": text }));
    } else {
        // Adding the object would wipe annotations that came meanwhile: only to the very version that was seen.
        let version = kube::ResourceExt::resource_version(seen);
        let annotations = json!({ annotation::STATUS: text });
        operations.push(json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }));
        operations.push(json!({ "op": "add", "path": "/metadata/annotations", "value": annotations }));
    }
    operations
}

/// Times in the API are whole seconds.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
