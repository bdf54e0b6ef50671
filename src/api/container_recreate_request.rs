//! `ContainerRecreateRequest` (`apps.kruise.io/v1alpha1`): the interface of OpenKruise to restart containers of one pod. Only
//! its field names are of OpenKruise; this project does not ship its definition.
//!
//! Types only: `recreate_request` decides what follows from them. Unlike the kinds of this project, unknown fields and values
//! are kept as they are, so that a decision can name them.

use jiff::Timestamp;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Prefix of the labels that OpenKruise's webhook gives each object that it admits. Its daemon works on no other objects.
pub const SERVED_BY_KRUISE: &str = "crr.apps.kruise.io/";

/// One restart of containers of one pod.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "apps.kruise.io",
    version = "v1alpha1",
    kind = "ContainerRecreateRequest",
    plural = "containerrecreaterequests",
    namespaced,
    status = "ContainerRecreateRequestStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRecreateRequestSpec {
    /// Name of the pod, in the namespace of the object.
    pub pod_name: String,
    /// The containers to restart, in this order.
    pub containers: Vec<RecreateContainer>,
    /// How they are restarted.
    pub strategy: Option<RecreateStrategy>,
    /// Seconds from the creation of the object until it must be `Completed`.
    pub active_deadline_seconds: Option<i64>,
    /// Seconds after the end until the object is deleted; absent: never.
    #[serde(rename = "ttlSecondsAfterFinished")]
    pub ttl_seconds_after_finished: Option<i64>,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A container of the pod. OpenKruise fills all fields but the name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecreateContainer {
    /// Name in the pod spec.
    pub name: String,
    /// `preStop`, `ports`, `statusContext`, and fields that this program does not know.
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// How containers are restarted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RecreateStrategy {
    /// `Fail` (default) or `Ignore`: whether the restarts go on after one has failed.
    pub failure_policy: String,
    /// True if each container is restarted only once the previous one is Ready.
    pub ordered_recreate: bool,
    /// True: restart a container also if it was restarted since the object was created.
    pub force_recreate: bool,
    /// Seconds that a container has to stop; absent: as the pod says.
    pub termination_grace_period_seconds: Option<i64>,
    /// Seconds that the pod is out of traffic before a container is stopped; absent: it is not taken out of traffic.
    pub unready_grace_period_seconds: Option<i64>,
    /// Seconds that a new container must stay up.
    pub min_started_seconds: i64,
    /// Fields that this program does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// The state of a `ContainerRecreateRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRecreateRequestStatus {
    /// `Pending`, `Recreating` or `Completed`; empty before the first decision. `Completed` also after a failure.
    #[serde(deserialize_with = "known")]
    pub phase: Option<RecreatePhase>,
    /// When it was `Completed`; in whole seconds, as Kubernetes writes times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Timestamp>,
    /// One line for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The state of each container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub container_recreate_states: Vec<ContainerRecreateState>,
}

/// The state of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerRecreateState {
    /// Name in the pod spec.
    pub name: String,
    /// `Pending`, `Recreating`, `Succeeded` or `Failed`.
    #[serde(deserialize_with = "known")]
    pub phase: Option<RecreatePhase>,
    /// One line for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// True once the previous instance has ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_killed: bool,
}

/// The phase of an object or of one of its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecreatePhase {
    /// Nothing was requested of the pod yet.
    Pending,
    /// The pod has the request.
    Recreating,
    /// Only of a container: the new instance was accepted.
    Succeeded,
    /// Only of a container: it was not restarted, or the new instance was not accepted.
    Failed,
    /// Only of the object: nothing more is done.
    Completed,
}

/// A phase that is unknown or empty counts as absent.
fn known<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<RecreatePhase>, D::Error> {
    Ok(RecreatePhase::deserialize(Value::deserialize(input)?).ok())
}
