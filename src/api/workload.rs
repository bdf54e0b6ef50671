//! The types that `GameDeployment` and `GameStatefulSet` share: hooks, canary steps, the update strategy and parts of the
//! status. Fields and their names are those of bk-bcs (`tkex.tencent.com/v1alpha1`).
//!
//! Types only: `workload` decides what follows from them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::hook_template::Argument;
use crate::api::request::Order;
/// A hook that a pod must pass, and the request to run it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HookStrategy {
    /// The hook. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<WorkloadHook>,
    /// Set to true to run again the hooks that did not succeed. The controller resets it to false.
    #[serde(default)]
    pub retry: bool,
}

/// A hook by the name of its template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadHook {
    /// Name of a `HookTemplate` in the same namespace.
    #[schemars(length(min = 1))]
    pub template_name: String,
    /// Values for the template's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Argument>,
}

/// What happens when too many pods failed or the progress deadline is exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdateFailurePolicy {
    /// The pods stay as they are. After too many failures no further pods are updated; the deadline is only reported.
    #[default]
    Pause,
    /// The pods go back, within the same budget and with the same hooks. Those of a workload go back to
    /// `status.stableRevision`, in place, or by recreation under `RollingUpdate`; another template or the annotation
    /// `inplace.dev/retry` ends the abort. Those of an `InPlaceRollout` go back to the images that they named before.
    Abort,
}

/// How a pod is updated in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceUpdateStrategy {
    /// Seconds that a pod is out of traffic before its first container is stopped.
    #[serde(default)]
    #[schemars(range(min = 0, max = 43_200))]
    pub grace_period_seconds: i32,
    /// The order of the containers inside one pod.
    #[serde(default)]
    pub policy: ContainerOrder,
    /// Whether the new container is started before or after the old one is stopped. For `InplaceUpdate` and
    /// `HotPatchUpdate`.
    #[serde(default)]
    pub order: Order,
    /// True to pull the new images on the nodes of pods that wait for their update, so that the update of a pod does not
    /// wait for a pull.
    #[serde(default = "yes")]
    pub prefetch: bool,
}

impl Default for InPlaceUpdateStrategy {
    fn default() -> Self {
        Self {
            grace_period_seconds: 0,
            policy: ContainerOrder::default(),
            order: Order::default(),
            prefetch: yes(),
        }
    }
}

/// The order of the containers inside one pod. All of them follow the order of the template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ContainerOrder {
    /// The same as `OrderedUpdated`: the agent updates one container after the other.
    #[default]
    DisOrdered,
    /// A container is updated when the previous one is Ready.
    OrderedReady,
    /// A container is updated when the previous one runs its new image.
    OrderedUpdated,
}

/// A rollout in steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Canary {
    /// The steps, in their order.
    pub steps: Vec<CanaryStep>,
}
/// One step, normally with one field. Several fields are processed in this order: partition, hook, pause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CanaryStep {
    /// How many pods stay at the old revision, until a later step changes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<IntOrString>,
    /// A hook for the rollout as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<WorkloadHook>,
    /// A pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<CanaryPause>,
}

/// A pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CanaryPause {
    /// The duration in seconds; absent: until a user resumes the step, with `inplace rollout resume` or by setting
    /// `paused` to true and then to false while the step pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub duration: Option<i32>,
}
/// One condition of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, for example `Progressing` or `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True` or `False`.
    pub status: String,
    /// When `status` changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
    /// Only of `Progressing`: when the update progressed last, or when the reason changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update_time: Option<Timestamp>,
    /// Machine-readable reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable message.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
/// A reason why a canary rollout waits, with its start time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PauseCondition {
    /// Why the update waits.
    pub reason: PauseReason,
    /// When the wait began.
    pub start_time: Timestamp,
    /// True once `updateStrategy.paused: true` was observed during this wait: `paused: false` then ends it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub user_paused: bool,
}

/// Why a canary rollout waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PauseReason {
    /// A step of the canary rollout pauses.
    PausedByCanaryPauseStep,
    /// The hook of a step did not succeed.
    PausedByStepBasedHook,
}

/// A pod whose hook has not succeeded yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookCondition {
    /// The name of the pod.
    pub pod_name: String,
    /// When the hook was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Timestamp>,
    /// The phase of the `HookRun`.
    pub phase: String,
}
/// The state of a canary rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStatus {
    /// The revision of the last completed rollout.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// When the wait of the step began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_start_time: Option<Timestamp>,
    /// The `HookRun` of the step.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub current_step_hook_run: String,
}

pub(crate) fn quarter() -> IntOrString {
    IntOrString::String("25%".to_owned())
}

pub(crate) fn nothing() -> IntOrString {
    IntOrString::Int(0)
}

pub(crate) fn everything() -> IntOrString {
    IntOrString::String("100%".to_owned())
}

pub(crate) fn yes() -> bool {
    true
}

pub(crate) fn one() -> i32 {
    1
}

pub(crate) fn ten() -> i32 {
    10
}
