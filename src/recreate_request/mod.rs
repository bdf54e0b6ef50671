//! Decisions about a `ContainerRecreateRequest`: the request for its pod, and its status. Pure: no async, no clock, no I/O.
//!
//! ```text
//!  ContainerRecreateRequest ──▶ terms ──▶ Request ──┐
//!                                                   ├──▶ decide ──▶ patch of the pod, status, deletion
//!  pod: record, request, agent's answer ────────────┘
//! ```
//!
//! The uid of the object is in the id of the request, so that nothing is restarted twice for it. The pod is written before
//! the status: its record says that the request exists, also if the status was not written.
//!
//! A request ends with the first container that fails. With `failurePolicy: Ignore` and several containers each one gets a
//! request of its own, when the one before has ended; the record has the outcomes.
//!
//! Must not carry out an object that OpenKruise serves.

mod decide;
mod states;
mod terms;
#[cfg(test)]
mod tests;
mod withdraw;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as core;
use serde::{Deserialize, Serialize};

use crate::api::annotation;
use crate::api::container_recreate_request::{
    ContainerRecreateRequest, ContainerRecreateRequestSpec, ContainerRecreateRequestStatus, SERVED_BY_KRUISE,
};
use crate::api::request::DEADLINE_SECONDS;
use crate::podtask::pod;
use crate::podtask::state::{Sent, Stage, TaskState};
use crate::podtask::time::later;

pub use decide::{Decision, decide};
pub use withdraw::withdraw;

/// How much longer than its request a record keeps other objects from the pod: its controller may be away.
const RECORD_SPARE: SignedDuration = SignedDuration::from_mins(2);

/// A `ContainerRecreateRequest` as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct RecreateRequest {
    /// Namespace of the object and of its pod.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
    /// The resource version that was read.
    pub version: String,
    /// The generation of its spec.
    pub generation: i64,
    /// Creation time.
    pub created: Timestamp,
    /// True when the object is being deleted.
    pub deleting: bool,
    /// A label that shows that OpenKruise serves the object.
    pub kruise_label: Option<String>,
    /// The spec.
    pub spec: ContainerRecreateRequestSpec,
    /// The status that was read.
    pub before: ContainerRecreateRequestStatus,
}

impl RecreateRequest {
    /// True if the object with this uid is this one, and it works on the pod of this name.
    pub fn works_on(&self, uid: &str, pod: &str) -> bool {
        self.uid == uid && self.spec.pod_name == pod && self.kruise_label.is_none()
    }

    /// Reads an object.
    pub fn read(object: ContainerRecreateRequest) -> Self {
        let ContainerRecreateRequest { metadata, spec, status } = object;
        let labels = metadata.labels.unwrap_or_default();
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            created: metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            deleting: metadata.deletion_timestamp.is_some(),
            kruise_label: labels.into_keys().find(|key| key.starts_with(SERVED_BY_KRUISE)),
            spec,
            before: status.unwrap_or_default(),
        }
    }
}

/// What is read from a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    /// What all controllers of this project read.
    pub base: pod::Pod,
    /// The object whose request the pod has.
    pub record: Option<PodRecord>,
}

impl Pod {
    /// Reads a pod. A value that is missing or malformed counts as absent.
    pub fn read(pod: &core::Pod) -> Self {
        let annotations = pod.metadata.annotations.as_ref();
        let record = annotations.and_then(|all| all.get(annotation::RECREATE_REQUEST));
        Self { base: pod::Pod::read(pod), record: record.and_then(|text| serde_json::from_str(text).ok()) }
    }
}

/// The annotation [`annotation::RECREATE_REQUEST`], written together with the request. A user who may patch the pod can
/// change it; the same user could write the request as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRecord {
    /// Name of the object.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
    /// When the request was written.
    pub at: Timestamp,
    /// Seconds that the request may take.
    pub seconds: u32,
    /// The index of the container that the request is for; `None`: it is for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<usize>,
    /// The outcomes of the containers up to this one, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ended: Vec<Outcome>,
    /// The names of all containers, if each one has a request of its own: the list of the object may change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
}

/// The outcome of the request for one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Why it failed; empty if it succeeded.
    pub failure: String,
    /// True if the container was stopped.
    pub is_killed: bool,
}

impl PodRecord {
    /// The record of a request for all containers.
    fn of(object: &RecreateRequest, at: Timestamp, seconds: u32) -> Self {
        Self {
            name: object.name.clone(),
            uid: object.uid.clone(),
            at,
            seconds,
            container: None,
            ended: Vec::new(),
            containers: Vec::new(),
        }
    }

    /// The id of the request.
    fn id(&self) -> String {
        request_id(&self.uid, self.container)
    }

    /// The container whose outcome is not known yet, or which is next, if each one has its own request.
    fn open_container(&self) -> Option<usize> {
        self.container.map(|_| self.ended.len())
    }

    /// True while the end of the request may still be recorded, or the next container waits for its request.
    fn is_live(&self, now: Timestamp) -> bool {
        now < later(self.waits_until(), RECORD_SPARE)
    }

    /// True if the outcome of the request is recorded, and that of the next container is not requested yet.
    fn is_recorded(&self) -> bool {
        self.container.is_some_and(|index| self.ended.len() > index)
    }

    /// Until when the request may take, or the next one may wait for other operations on the pod.
    fn waits_until(&self) -> Timestamp {
        let wait = if self.is_recorded() { DEADLINE_SECONDS } else { 0 };
        later(self.at, SignedDuration::from_secs(i64::from(self.seconds) + i64::from(wait)))
    }

    /// The state of the request, given what the pod has at `now`.
    fn state(&self, pod: &pod::Pod, now: Timestamp) -> TaskState {
        let id = self.id();
        let sent = Sent { id: &id, stage: Stage::Ordered, at: self.at, seconds: self.seconds };
        sent.state(pod.request.as_deref(), pod.answer.as_ref(), now)
    }
}

/// The id of the request for the object with this uid, or of that for the container at this index alone.
fn request_id(uid: &str, container: Option<usize>) -> String {
    let all = format!("recreate-{uid}");
    container.map_or_else(|| all.clone(), |index| format!("{all}-{index}"))
}

/// True if `id` is that of a request for the object with this uid.
fn is_request_of(uid: &str, id: &str) -> bool {
    let rest = id.strip_prefix(&request_id(uid, None));
    rest.is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('-').is_some_and(|index| index.parse::<usize>().is_ok())
    })
}
