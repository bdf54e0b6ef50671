//! `InPlaceRollout`: one restart or swap of containers in all pods of a workload, whoever controls them.
//!
//! Shapes only: what they mean is decided in `rollout`.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::request::{DEADLINE_SECONDS, Drain, OnFailure, READY_TIMEOUT_SECONDS, RequestedEngine};
use crate::api::serde_default::is_default;
use crate::api::workload::{Condition, WorkloadHook, nothing, quarter};

/// What is done once to every pod of a target. Only `maxUnavailable`, `partition`, `paused`, `failureThreshold`,
/// `deadlineSeconds` and `ttlSecondsAfterFinished` can be changed afterwards: for anything else make another one.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inplace.dev",
    version = "v1alpha1",
    kind = "InPlaceRollout",
    shortname = "ipr",
    namespaced,
    status = "InPlaceRolloutStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"TARGET","type":"string","jsonPath":".status.target","description":"Whose pods"}"#,
    printcolumn = r#"{"name":"PHASE","type":"string","jsonPath":".status.phase","description":"Where it stands"}"#,
    printcolumn = r#"{"name":"PODS","type":"integer","jsonPath":".status.pods","description":"Pods of the target"}"#,
    printcolumn = r#"{"name":"DONE","type":"integer","jsonPath":".status.done","description":"Pods that are through"}"#,
    printcolumn = r#"{"name":"BUSY","type":"integer","jsonPath":".status.busy","description":"Pods that are being worked on"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failed","description":"Pods that did not come through"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"MESSAGE","type":"string","priority":1,"jsonPath":".status.message","description":"One line for people"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceRolloutSpec {
    /// Whose pods.
    pub target: RolloutTarget,
    /// What is done in each pod, in this order: with an image it is a swap, without one a restart.
    #[schemars(length(min = 1, max = 64))]
    pub containers: Vec<RolloutContainer>,
    /// How many of the target's pods may be unavailable through this at once; a number or a share, rounded up, and at
    /// least one. Pods that are unavailable anyway count.
    #[serde(default = "quarter")]
    #[schemars(extend("nullable" = false))]
    pub max_unavailable: IntOrString,
    /// How many pods are left as they are; a number or a share, rounded up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub partition: IntOrString,
    /// Begin with no more pods.
    #[serde(default)]
    pub paused: bool,
    /// How many pods may fail: when so many have, no other one is begun with. A number or a share, rounded up, and at
    /// least one.
    #[serde(default = "first")]
    #[schemars(extend("nullable" = false))]
    pub failure_threshold: IntOrString,
    /// True allows a swap to an image that the template of a pod's owner does not name: the next pod that the owner makes
    /// has the template's image again.
    #[serde(default)]
    pub allow_template_drift: bool,
    /// Seconds until it has ended, paused or not. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub deadline_seconds: Option<i32>,
    /// Seconds after which it is deleted when it has ended. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// How it is done in each pod.
    #[serde(default)]
    pub pod: PodTerms,
}

/// Whose pods: exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutTarget {
    /// A workload in the same namespace: its own pods, now and while this goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,
    /// All pods in the same namespace with these labels, whoever controls them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// A `Deployment`, `StatefulSet`, `DaemonSet` or `ReplicaSet` (`apps/v1`), `Job` (`batch/v1`), `GameDeployment` or
/// `GameStatefulSet` (`tkex.tencent.com/v1alpha1`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRef {
    /// Group and version. Absent: that of the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// As in its manifest.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// As in its manifest.
    #[schemars(length(min = 1))]
    pub name: String,
}

/// One container: with an image it is a swap, without one a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutContainer {
    /// Name in the pod spec.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The image to run from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// How it is done in each pod: what a request says of one pod, with the same names, bounds and defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTerms {
    /// Each container is touched only once the one before is Ready.
    pub each_ready: bool,
    /// Seconds that a pod is out of traffic before its first container is stopped.
    #[schemars(range(min = 0, max = 43_200))]
    pub grace_period_seconds: i32,
    /// When a pod counts as drained.
    pub drain: Drain,
    /// The gate while the pod is still serving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_hook: Option<WorkloadHook>,
    /// The gate before the pod takes traffic again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_hook: Option<WorkloadHook>,
    /// Seconds that the new containers must stay up, and the pod Ready, before it counts as available.
    #[schemars(range(min = 0))]
    pub min_ready_seconds: i32,
    /// Seconds that the new containers may take to become Ready.
    #[schemars(range(min = 1))]
    pub ready_timeout_seconds: i32,
    /// Seconds until one pod has ended, one way or the other.
    #[schemars(range(min = 1, max = 86_400))]
    pub deadline_seconds: i32,
    /// What follows when a swap does not come up.
    pub on_failure: OnFailure,
    /// The way to do it.
    pub engine: RequestedEngine,
    /// Free text for the people who read the history.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Default for PodTerms {
    fn default() -> Self {
        Self {
            each_ready: false,
            grace_period_seconds: 0,
            drain: Drain::default(),
            pre_hook: None,
            post_hook: None,
            min_ready_seconds: 0,
            ready_timeout_seconds: READY_TIMEOUT_SECONDS.cast_signed(),
            deadline_seconds: DEADLINE_SECONDS.cast_signed(),
            on_failure: OnFailure::default(),
            engine: RequestedEngine::default(),
            reason: String::new(),
        }
    }
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlaceRolloutStatus {
    /// The generation of the spec that this tells of.
    pub observed_generation: i64,
    /// Where it stands.
    pub phase: RolloutPhase,
    /// One word for programs: why.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// One line for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Whose pods, as people write it: `Deployment/web`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// When the first look was taken. Pods that are younger are not restarted: they are fresh.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Pods of the target.
    pub pods: i32,
    /// Those that the partition does not leave out.
    pub wanted: i32,
    /// Those that are through.
    pub done: i32,
    /// Those that are being worked on.
    pub busy: i32,
    /// Those that did not come through, gone ones too.
    pub failed: i32,
    /// Pods of the target that are not available now.
    pub unavailable: i32,
    /// The pods that did not come through and why; the first hundred.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<PodFailure>,
    /// `Progressing`, `Complete` and `Failed`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Milliseconds that a container was down, over the containers of the pods that are through and still there.
    #[serde(skip_serializing_if = "is_default")]
    pub downtime_ms: Downtime,
}

/// How long containers were down, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Downtime {
    /// Half of them were down for no longer.
    pub median: i64,
    /// None of them was down for longer.
    pub most: i64,
}

/// Where a rollout stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// Not looked at yet, or its target is not there yet.
    #[default]
    Pending,
    /// Pods are being updated, or wait for the budget.
    Running,
    /// Nothing more is begun until the spec is changed: paused, or as far as the partition lets it.
    Paused,
    /// All pods are through.
    Succeeded,
    /// Some are not: the failures, the reason and the message say why.
    Failed,
    /// A newer one has the same target.
    Superseded,
}

impl RolloutPhase {
    /// True when it never goes on.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Superseded)
    }
}

/// A pod that did not come through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodFailure {
    /// Its name.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// One word for programs: the phase or reason of its request.
    pub reason: String,
    /// One line for people.
    pub message: String,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

fn first() -> IntOrString {
    IntOrString::Int(1)
}
