//! A pod as the API server shows it, cut down to what is needed while it is being read.
//!
//! Everything else of a pod, its environment above all, never becomes a value of this program.

mod raw;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use crate::api::annotation;
use crate::api::status::Status;
use crate::operation::snapshot::{Declared, DeclaredContainer, Gate, Origin, PodRef};

/// On the API server's copy of a pod that a kubelet has from a file: the uid that the pod has on its node
/// (`mirror_client.go` in pkg/kubelet/pod writes the hash, `common.go` in pkg/kubelet/config makes it the pod's uid).
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// One pod.
#[derive(Clone, Debug, serde::Deserialize, Resource)]
#[serde(from = "raw::Pod")]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
pub struct Pod {
    /// Name, namespace, uid, version, deletion, and the annotations of this project and of the kubelet.
    metadata: ObjectMeta,
    node: String,
    finished: bool,
    /// False when it has no annotation at all, kept or not.
    annotated: bool,
    pull_secrets: Vec<String>,
    /// Its own and its node's.
    addresses: (String, String),
    /// When its kubelet ends it, where its spec says so.
    ends_at: Option<Timestamp>,
    /// Where the containers of `declared` are in the spec, in the same order.
    places: Vec<Place>,
    declared: Declared,
}

/// Where a container is in a pod's spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Among the init containers.
    pub(super) init: bool,
    /// Its index there.
    pub(super) index: usize,
}

impl Place {
    /// As a JSON pointer.
    pub(super) fn pointer(self) -> String {
        format!("/spec/{}/{}", if self.init { "initContainers" } else { "containers" }, self.index)
    }
}

impl Pod {
    /// About what is kept of it.
    pub(super) fn bytes(&self) -> usize {
        let annotations = self.metadata.annotations.iter().flatten();
        let annotations: usize = annotations.map(|(key, value)| key.len() + value.len()).sum();
        let of_container = |container: &DeclaredContainer| {
            let devices: usize = container.devices.iter().map(String::len).sum();
            size_of::<DeclaredContainer>() + container.image.len() + container.image_id.len() + devices
        };
        let containers: usize = self.declared.containers.iter().map(of_container).sum();
        let secrets: usize = self.pull_secrets.iter().map(String::len).sum();
        size_of::<Self>() + annotations + containers + secrets
    }

    /// Which pod, with the uid that its node has: a static pod has another one at the API server. For a mirror pod the
    /// annotation says it, which users can write: it is believed only where the sandbox agrees (`cri::identity`).
    pub fn reference(&self) -> PodRef {
        PodRef {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.mirrored().unwrap_or(self.api_uid()).to_owned(),
        }
    }

    /// The uid that the API server knows.
    pub fn api_uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// True when it says that it is the copy of a static pod, whose spec is in a file on its node.
    pub fn is_mirror(&self) -> bool {
        self.mirrored().is_some()
    }

    /// Where it says that it comes from.
    pub fn origin(&self) -> Origin {
        if self.is_mirror() { Origin::Mirror } else { Origin::Api }
    }

    /// The node it is bound to; empty before that.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The wish, as written.
    pub fn request(&self) -> Option<&str> {
        self.annotation(annotation::REQUEST)
    }

    /// The last answer. One that cannot be read is none: the agent writes it anew.
    pub fn status(&self) -> Option<Status> {
        serde_json::from_str(self.annotation(annotation::STATUS)?).ok()
    }

    /// True once it has succeeded or failed: nothing of it will run again.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// True once its deletion was asked for.
    pub fn is_deleting(&self) -> bool {
        self.declared.deleting
    }

    /// Its readiness gate.
    pub fn gate(&self) -> &Gate {
        &self.declared.gate
    }

    /// What is wished of it, and what its kubelet last told; `current` as the caller knows.
    pub fn declared(&self, current: bool) -> Declared {
        Declared { current, ..self.declared.clone() }
    }

    /// The same at a time. A kubelet tells that a pod is past its deadline when it has ended all of its containers (1.22 or
    /// newer).
    pub fn declared_at(&self, current: bool, now: Timestamp) -> Declared {
        let mut declared = self.declared(current);
        if declared.ending.is_none() && self.ends_at.is_some_and(|end| end <= now) {
            declared.ending = Some("past its activeDeadlineSeconds".to_owned());
        }
        declared
    }

    /// Its own address and its node's; empty while it has none.
    pub fn addresses(&self) -> (&str, &str) {
        (&self.addresses.0, &self.addresses.1)
    }

    /// The names of the secrets that it names to pull images with.
    pub fn pull_secrets(&self) -> &[String] {
        &self.pull_secrets
    }

    /// One annotation, of those that are kept: `inplace.dev/` and `kubernetes.io/config.`.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether it has any annotation, kept or not.
    pub(super) fn is_annotated(&self) -> bool {
        self.annotated
    }

    /// Where the container `name` is in the spec, and its image there.
    pub(super) fn place(&self, name: &str) -> Option<(Place, &str)> {
        let at = self.declared.containers.iter().position(|container| container.name == name)?;
        Some((*self.places.get(at)?, &self.declared.containers.get(at)?.image))
    }

    fn mirrored(&self) -> Option<&str> {
        self.annotation(MIRROR).filter(|uid| !uid.is_empty())
    }
}
