//! `InPlaceRollout`: one restart or swap of containers in all pods of a target, whatever their owner.
//!
//! Types only: `rollout` decides what follows from them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::group::{GroupStatus, Strategy, TogetherTerms};
use crate::api::priority::PriorityKey;
use crate::api::request::{
    DEADLINE_SECONDS, Drain, OnFailure, Order, PreHookPhase, READY_TIMEOUT_SECONDS, RequestedEngine,
};
use crate::api::serde_default::is_default;
use crate::api::workload::{Condition, UpdateFailurePolicy, WorkloadHook, nothing, quarter, yes};

/// The reason when all pods are processed, or all that the partition allows, and some have failed.
pub const SOME_FAILED: &str = "SomePodsFailed";
/// The reason when all that is left are pods that no agent reaches.
pub const UNREACHABLE: &str = "PodsUnreachable";

/// A restart or swap that is done once in every pod of a target. Only `maxUnavailable`, `partition`, `paused`,
/// `failureThreshold`, `onFailure`, `deadlineSeconds`, `progressDeadlineSeconds` and `ttlSecondsAfterFinished` can be
/// changed later; for any other change create a new rollout.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inplace.dev",
    version = "v1alpha1",
    kind = "InPlaceRollout",
    shortname = "ipr",
    namespaced,
    status = "InPlaceRolloutStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name":"TARGET","type":"string","jsonPath":".status.target","description":"Target of the rollout"}"#,
    printcolumn = r#"{"name":"PHASE","type":"string","jsonPath":".status.phase","description":"Phase of the rollout"}"#,
    printcolumn = r#"{"name":"PODS","type":"integer","jsonPath":".status.pods","description":"Pods of the target"}"#,
    printcolumn = r#"{"name":"DONE","type":"integer","jsonPath":".status.done","description":"Pods that are done"}"#,
    printcolumn = r#"{"name":"BUSY","type":"integer","jsonPath":".status.busy","description":"Pods in progress"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failed","description":"Pods that failed"}"#,
    printcolumn = r#"{"name":"RETURNED","type":"integer","priority":1,"jsonPath":".status.abort.returned","description":"Pods that an abort has taken back"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"MESSAGE","type":"string","priority":1,"jsonPath":".status.message","description":"Human-readable message"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceRolloutSpec {
    /// The target whose pods are restarted or swapped.
    pub target: RolloutTarget,
    /// The containers of each pod, in this order: with an image the container is swapped, without one it is
    /// restarted.
    #[schemars(length(min = 1, max = 64))]
    pub containers: Vec<RolloutContainer>,
    /// `Rolling`: one pod after the other, within `maxUnavailable`. `Together`: all pods at once; `maxUnavailable`,
    /// `partition`, `priority` and `failureThreshold` have no effect then.
    #[serde(default, skip_serializing_if = "is_default")]
    pub strategy: Strategy,
    /// The parameters of the strategy `Together`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<TogetherTerms>,
    /// How many of the target's pods may be unavailable at the same time; a number or a percentage, rounded up. Pods
    /// that are unavailable for other reasons count. 0 is refused, because no pod that is available could be
    /// restarted.
    #[serde(default = "quarter")]
    #[schemars(extend("nullable" = false))]
    pub max_unavailable: IntOrString,
    /// How many pods are not changed; a number or a percentage, rounded up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub partition: IntOrString,
    /// Which pods are processed first. Pods with the same values of these labels form a group; the groups are processed
    /// in the order of the first value, then of the next one, and a group is completed before the next one begins.
    /// Absent: one group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub priority: Vec<PriorityKey>,
    /// True to start no further pods.
    #[serde(default)]
    pub paused: bool,
    /// Start no further pods after this many failures. A number or a percentage, rounded up, and at least one.
    #[serde(default = "first")]
    #[schemars(extend("nullable" = false))]
    pub failure_threshold: IntOrString,
    /// What happens when `failureThreshold` is reached or `progressDeadlineSeconds` is over. `Pause`: the rollout ends
    /// and the pods stay as they are. `Abort`: pods that name the new images go back in place to the images that they
    /// named before, within the same budget and with the same hooks. Only for swaps: a restart leaves nothing to take
    /// back.
    #[serde(default)]
    pub on_failure: UpdateFailurePolicy,
    /// True to allow a swap to an image that differs from the template of the pod's owner: the next pod that the
    /// owner creates has the template's image again.
    #[serde(default)]
    pub allow_template_drift: bool,
    /// True to pull the images of a swap on the nodes of pods that wait for their task.
    #[serde(default = "yes")]
    pub prefetch: bool,
    /// Seconds until the rollout must have ended, paused or not. The way back of an abort has this time again. Absent:
    /// no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub deadline_seconds: Option<i32>,
    /// Seconds without progress (no further pod is done or has failed) after which the rollout fails: no further pod is
    /// started. Time while it is paused does not count. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: Option<i32>,
    /// Seconds after the end of the rollout until it is deleted. Absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,
    /// The parameters of the request for each pod.
    #[serde(default)]
    pub pod: PodTerms,
}
/// The target: exactly one of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutTarget {
    /// A workload in the same namespace: its own pods, including those that it creates during the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,
    /// All pods in the same namespace with these labels, whatever their owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// A `Deployment`, `StatefulSet`, `DaemonSet` or `ReplicaSet` (`apps/v1`), `Job` (`batch/v1`), `GameDeployment` or
/// `GameStatefulSet` (`tkex.tencent.com/v1alpha1`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRef {
    /// Group and version. Absent: those of the kind.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    /// As in the manifest of the workload.
    #[schemars(length(min = 1))]
    pub kind: String,
    /// As in the manifest of the workload.
    #[schemars(length(min = 1))]
    pub name: String,
}
/// One container: with an image it is swapped, without one it is restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutContainer {
    /// Name in the pod spec.
    #[schemars(length(min = 1))]
    pub name: String,
    /// The new image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}
/// The parameters of the request for each pod, with the names, bounds and defaults of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTerms {
    /// True if each container is replaced only once the previous one is Ready.
    pub each_ready: bool,
    /// Seconds that a pod is out of traffic before its first container is stopped.
    #[schemars(range(min = 0, max = 43_200))]
    pub grace_period_seconds: i32,
    /// When a pod counts as drained.
    pub drain: Drain,
    /// The hook while the pod still takes traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_hook: Option<RolloutPreHook>,
    /// The hook before the pod takes traffic again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_hook: Option<WorkloadHook>,
    /// Seconds that the new containers must stay up and the pod must be Ready before the pod counts as available.
    #[schemars(range(min = 0))]
    pub min_ready_seconds: i32,
    /// Seconds that the new containers may take to become Ready.
    #[schemars(range(min = 1))]
    pub ready_timeout_seconds: i32,
    /// Seconds that each container has to stop, in place of the pod's own `terminationGracePeriodSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_399))]
    pub termination_grace_period_seconds: Option<i32>,
    /// Seconds until the request of one pod must have ended.
    #[schemars(range(min = 1, max = 86_400))]
    pub deadline_seconds: i32,
    /// What happens if the new image of a swap does not come up.
    pub on_failure: OnFailure,
    /// How the containers are replaced; `Auto` chooses for each container.
    pub engine: RequestedEngine,
    /// Whether the new container is started before or after the old one is stopped.
    #[serde(skip_serializing_if = "is_default")]
    pub order: Order,
    /// True if a container may be cloned although its environment has values of `ConfigMaps`, Secrets or labels: the new one has
    /// them as they were when the old one was created.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_stale_env: bool,
    /// Free text for the history.
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
            termination_grace_period_seconds: None,
            deadline_seconds: DEADLINE_SECONDS.cast_signed(),
            on_failure: OnFailure::default(),
            engine: RequestedEngine::default(),
            order: Order::default(),
            allow_stale_env: false,
            reason: String::new(),
        }
    }
}
/// The hook of a pod before a container is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutPreHook {
    /// The hook.
    #[serde(flatten)]
    pub hook: WorkloadHook,
    /// When the hook runs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phase: PreHookPhase,
}

/// The observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InPlaceRolloutStatus {
    /// The generation of the spec that this status is based on.
    pub observed_generation: i64,
    /// How far the rollout is.
    pub phase: RolloutPhase,
    /// Machine-readable reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The target in short form: `Deployment/web`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// When the controller first observed the rollout. Pods that were created later are not restarted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When a pod was last done, back or failed, or the rollout or its abort started or was resumed. Absent while it is
    /// paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progressed_at: Option<Timestamp>,
    /// When the rollout ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Pods of the target.
    pub pods: i32,
    /// Pods that the partition does not exclude.
    pub wanted: i32,
    /// Pods that are done.
    pub done: i32,
    /// Pods in progress.
    pub busy: i32,
    /// Pods that failed, including deleted ones.
    pub failed: i32,
    /// Pods of the target that are not available now.
    pub unavailable: i32,
    /// The pods that failed, with the reason; at most one hundred.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<PodFailure>,
    /// The abort of the rollout: pods go back, or are back, at the images that they named before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abort: Option<RolloutAbort>,
    /// The group restart, for the strategy `Together`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupStatus>,
    /// `Progressing`, `Complete` and `Failed`, and `Ready`, `Reconciling` and `Stalled`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Downtime in milliseconds, over the containers of the pods that are done and still exist.
    #[serde(skip_serializing_if = "is_default")]
    pub downtime_ms: Downtime,
}
/// The abort of a rollout, see `spec.onFailure`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutAbort {
    /// Why the rollout is aborted: machine-readable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why the rollout is aborted: human-readable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the abort began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// Pods that go back or are back.
    pub pods: i32,
    /// Pods that are back at the images that they named before.
    pub returned: i32,
    /// Pods that did not come back.
    pub failed: i32,
    /// Pods that are left as they are: another client changed their image, or no image from before is on record.
    pub skipped: i32,
    /// The pods that did not come back, with the reason; at most one hundred.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<PodFailure>,
}
/// The id of the request that takes a pod back in the abort of the rollout `uid`. It differs from that of the swap: an agent
/// carries out each id once.
pub fn back_id(uid: &str) -> String {
    format!("{uid}{BACK}")
}

/// The id of the request of the rollout `uid` for a pod; `back`: of the one that takes the pod back.
pub fn request_id(uid: &str, back: bool) -> String {
    if back { back_id(uid) } else { uid.to_owned() }
}

/// True when `id` is that of a request of the rollout `uid`.
pub fn is_request_of(uid: &str, id: &str) -> bool {
    id.strip_prefix(uid).is_some_and(|rest| rest.is_empty() || rest == BACK)
}

/// What follows the uid in [`back_id`].
const BACK: &str = "-back";
/// The downtime of containers, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Downtime {
    /// The median of the downtimes, in milliseconds.
    pub median: i64,
    /// The longest downtime, in milliseconds.
    pub most: i64,
}
/// The phase of a rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RolloutPhase {
    /// Not observed yet, or its target does not exist yet, or an older rollout of the target is being aborted.
    #[default]
    Pending,
    /// Pods are being updated, or wait for the budget.
    Running,
    /// No further pod is started until the spec is changed: paused, or complete up to the partition.
    Paused,
    /// All pods are done.
    Succeeded,
    /// Some pods are not done: see the failures, the reason and the message.
    Failed,
    /// A newer one has the same target.
    Superseded,
    /// The rollout has failed, and its pods go back to the images that they named before.
    Aborting,
    /// The rollout has failed, and its pods are back.
    Aborted,
    /// The rollout has failed, and not all of its pods are back.
    AbortFailed,
}

impl RolloutPhase {
    /// True if the rollout has ended: no other phase follows.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Pending | Self::Running | Self::Paused | Self::Aborting => false,
            Self::Succeeded | Self::Failed | Self::Superseded | Self::Aborted | Self::AbortFailed => true,
        }
    }
}
/// A pod that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodFailure {
    /// The name of the pod.
    pub pod: String,
    /// The uid of the pod.
    pub uid: String,
    /// Machine-readable: the phase or reason of its request.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// When the failure was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

pub(crate) fn first() -> IntOrString {
    IntOrString::Int(1)
}
