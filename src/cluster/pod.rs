//! A pod from the API server, reduced to the needed fields while it is parsed, for the agent.
//!
//! All other fields, in particular the environment, are skipped by the parser and never held by this type. That is
//! not so in the controller: it decodes each pod of its watches as a whole, the environment included, reads
//! `podtask::pod` or `rollout::pod` from it, and drops it (`trim`). Only what these two hold is cached, and they
//! hold no environment.

mod gates;
mod membership;
mod raw;
#[cfg(test)]
mod tests;
mod user;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use crate::api::annotation;
use crate::api::group::Member;
use crate::api::group_failure::GroupFailure;
use crate::api::pod_ref::PodRef;
use crate::api::status::Status;
use crate::cluster::pod::gates::OtherGate;
use crate::cluster::pod::membership::Membership;
use crate::operation::snapshot::{Declared, DeclaredContainer, Origin};

pub use gates::{BadGate, FurtherGates, further_gate};

/// The annotation that marks the API server's copy of a static pod. Its value is the uid that the pod has on its
/// node (`mirror_client.go` in pkg/kubelet/pod writes the hash, `common.go` in pkg/kubelet/config makes it the
/// pod's uid).
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

/// The memory of a text beside its characters: the place in its map or list, and a block of the heap for each of key and
/// value. Of many short texts it is most of the memory.
pub(super) const ENTRY: usize = 128;

/// A pod of the node.
#[derive(Clone, Debug, serde::Deserialize, Resource)]
#[serde(from = "raw::Pod")]
#[resource(inherit = k8s_openapi::api::core::v1::Pod)]
pub struct Pod {
    /// Name, namespace, uid, version, deletion, and the annotations of this project and of the kubelet.
    metadata: ObjectMeta,
    node: String,
    finished: bool,
    /// False if the pod has no annotation at all, cached or not.
    annotated: bool,
    membership: Membership,
    pull_secrets: Vec<String>,
    /// The IP of the pod and the IP of its node.
    addresses: (String, String),
    /// When the kubelet ends the pod, if its spec has a deadline.
    ends_at: Option<Timestamp>,
    /// Where the containers of `declared` are in the spec, in the same order.
    places: Vec<Place>,
    /// The readiness gates that are not of this project.
    other_gates: Vec<OtherGate>,
    declared: Declared,
}

/// The position of a container in a pod's spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// True if it is in `initContainers`.
    pub(super) init: bool,
    pub(super) index: usize,
}

impl Place {
    /// The list of the spec that has the container.
    pub(super) fn list(self) -> &'static str {
        if self.init { "initContainers" } else { "containers" }
    }
}

impl Pod {
    /// The approximate memory use of this value, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let annotations = self.metadata.annotations.iter().flatten();
        let annotations: usize = annotations.map(|(key, value)| ENTRY + key.len() + value.len()).sum();
        let texts = |texts: &[String]| texts.iter().map(|text| ENTRY + text.len()).sum::<usize>();
        let of_container = |container: &DeclaredContainer| {
            let devices: usize = texts(&container.devices);
            let probe: usize = container.readiness.iter().map(|probe| texts(&probe.command)).sum();
            size_of::<DeclaredContainer>()
                + ENTRY
                + container.image.len()
                + container.image_id.len()
                + devices
                + probe
        };
        let containers: usize = self.declared.containers.iter().map(of_container).sum();
        let secrets = texts(&self.pull_secrets);
        let gates: usize = self.other_gates.iter().map(OtherGate::bytes).sum();
        size_of::<Self>() + annotations + containers + secrets + gates + self.membership.bytes()
    }

    /// The reference to the pod, with the uid that the pod has on its node; a static pod has another uid at the API
    /// server. For a mirror pod the uid comes from an annotation that users can write, so it is trusted only if the
    /// sandbox agrees (`cri::identity`).
    pub fn reference(&self) -> PodRef {
        PodRef {
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: self.metadata.name.clone().unwrap_or_default(),
            uid: self.mirrored().unwrap_or(self.api_uid()).to_owned(),
        }
    }

    /// The uid at the API server.
    pub fn api_uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// True if the pod claims to be the copy of a static pod, whose spec is in a file on its node.
    pub fn is_mirror(&self) -> bool {
        self.mirrored().is_some()
    }

    /// The origin that the pod claims.
    pub fn origin(&self) -> Origin {
        if self.is_mirror() { Origin::Mirror } else { Origin::Api }
    }

    /// The node that the pod is bound to; empty if it is not bound.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The text of the request annotation.
    pub fn request(&self) -> Option<&str> {
        self.annotation(annotation::REQUEST)
    }

    /// The last status. An unreadable status counts as none, because the agent overwrites it.
    pub fn status(&self) -> Option<Status> {
        serde_json::from_str(self.annotation(annotation::STATUS)?).ok()
    }

    /// The last failure of a container, if the pod is in a group that is restarted after a failure.
    pub fn failure(&self) -> Option<GroupFailure> {
        serde_json::from_str(self.annotation(annotation::GROUP_FAILURE)?).ok()
    }

    /// True once the pod has succeeded or failed: nothing in it runs again.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// True once the pod is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.declared.deleting
    }

    /// The spec of the pod and the last report of its kubelet. The caller passes whether the cache is `current`. The
    /// gate is that of this project. The deletion of a mirror pod ends no container: its kubelet creates it again.
    pub fn declared(&self, current: bool) -> Declared {
        let deleting = self.declared.deleting && !self.is_mirror();
        Declared { current, deleting, ..self.declared.clone() }
    }

    /// The same at the time `now`. The kubelet reports that a pod is past its deadline only after it has ended all
    /// containers (1.22 or newer), so the deadline is also checked here.
    pub fn declared_at(&self, current: bool, now: Timestamp) -> Declared {
        let mut declared = self.declared(current);
        if declared.ending.is_none() && self.is_past_deadline(now) {
            declared.ending = Some("past its activeDeadlineSeconds".to_owned());
        }
        declared
    }

    /// True once the kubelet terminates the pod or is about to, for whatever reason.
    pub fn leaves_at(&self, now: Timestamp) -> bool {
        self.declared.leaves() || self.is_past_deadline(now)
    }

    fn is_past_deadline(&self, now: Timestamp) -> bool {
        self.ends_at.is_some_and(|end| end <= now)
    }

    /// The containers of the spec that can be replaced.
    pub fn containers(&self) -> &[DeclaredContainer] {
        &self.declared.containers
    }

    /// The IPs of the pod and of its node; empty if there is none yet.
    pub fn addresses(&self) -> (&str, &str) {
        (&self.addresses.0, &self.addresses.1)
    }

    /// What decides whether the pod belongs to a group restart.
    pub fn member(&self) -> Member<'_> {
        self.membership.of(self.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// The names of the pod's image pull secrets.
    pub fn pull_secrets(&self) -> &[String] {
        &self.pull_secrets
    }

    /// One annotation. Only those with the prefixes `inplace.dev/` and `kubernetes.io/config.` are cached.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether the pod has any annotation, cached or not.
    pub(super) fn is_annotated(&self) -> bool {
        self.annotated
    }

    /// The position of the container `name` in the spec, and its image there.
    pub(super) fn place(&self, name: &str) -> Option<(Place, &str)> {
        let at = self.declared.containers.iter().position(|container| container.name == name)?;
        Some((*self.places.get(at)?, &self.declared.containers.get(at)?.image))
    }

    fn mirrored(&self) -> Option<&str> {
        self.annotation(MIRROR).filter(|uid| !uid.is_empty())
    }
}
