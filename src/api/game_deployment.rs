//! `GameDeployment`: interchangeable pods, updated in place or by recreation. Fields, defaults and printer columns are those
//! of bk-bcs (`tkex.tencent.com/v1alpha1`).
//!
//! Types only: `workload` decides what follows from them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::pod_template::PodTemplate;
use crate::api::priority::PriorityKey;
use crate::api::serde_default::is_default;
use crate::api::workload::{
    Canary, CanaryStatus, Condition, HookCondition, HookStrategy, InPlaceUpdateStrategy, PauseCondition,
    UpdateFailurePolicy, everything, nothing, one, quarter, ten,
};
/// The desired state of a set of interchangeable pods.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "GameDeployment",
    namespaced,
    status = "GameDeploymentStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".spec.replicas","description":"Desired number of pods"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedReplicas","description":"Pods at the newest revision"}"#,
    printcolumn = r#"{"name":"UPDATED_READY","type":"integer","jsonPath":".status.updatedReadyReplicas","description":"Pods at the newest revision that are Ready"}"#,
    printcolumn = r#"{"name":"READY","type":"integer","jsonPath":".status.readyReplicas","description":"Pods that are Ready"}"#,
    printcolumn = r#"{"name":"TOTAL","type":"integer","jsonPath":".status.replicas","description":"Number of existing pods"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GameDeploymentSpec {
    /// Desired number of pods.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Selects the pods of the workload. It must match the labels of the template.
    pub selector: LabelSelector,
    /// The template of the pods.
    pub template: PodTemplate,
    /// Accepted for manifests that are copied from a `GameStatefulSet`; not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Seconds that a pod must be Ready before it counts as available.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: i32,
    /// Seconds without progress of an update after which `Progressing` is False with the reason
    /// `ProgressDeadlineExceeded`. Progress: a pod was created, its task changed stage, or it is available at the
    /// newest revision. A pause does not count as time. Absent: no deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: Option<i32>,
    /// Number of old revisions that are kept for a rollback.
    #[serde(default = "ten")]
    #[schemars(range(min = 0))]
    pub revision_history_limit: i32,
    /// Which pods are deleted first, and how many are created at the same time.
    #[serde(default)]
    pub scale_strategy: ScaleStrategy,
    /// True if the pods do not get the readiness gate `InPlaceUpdateReady`: they are then not taken out of traffic
    /// before an update.
    #[serde(default)]
    pub disable_readiness_gate: bool,
    /// How pods are updated from one revision to another.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// The hook before the workload deletes a pod; also before an in-place update if `preInplaceUpdateStrategy` is
    /// not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_delete_update_strategy: Option<HookStrategy>,
    /// The hook before a pod is updated in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_inplace_update_strategy: Option<HookStrategy>,
    /// The hook after a pod was updated in place, before it takes traffic again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_inplace_update_strategy: Option<HookStrategy>,
}
/// Which pods are deleted first, and how many are created at the same time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleStrategy {
    /// Names of pods that are deleted before all others. They are replaced if `replicas` still requires them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_to_delete: Vec<String>,
    /// How many new pods may be starting at the same time, replacements included; a number or a percentage of
    /// `replicas`, at least one.
    #[serde(default = "everything")]
    #[schemars(extend("nullable" = false))]
    pub create_batch: IntOrString,
}
/// How pods are updated from one revision to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// How a pod is updated.
    #[serde(default, rename = "type")]
    pub kind: UpdateType,
    /// How many pods stay at the old revision; a number or a percentage of `replicas`, rounded up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub partition: IntOrString,
    /// How many of `replicas` may be unavailable during an update; a number or a percentage, rounded up, or rounded
    /// down if `maxSurge` is above 0. 0 is refused without `maxSurge`, and with `HotPatchUpdate`: no pod could be
    /// updated.
    #[serde(default = "quarter")]
    #[schemars(extend("nullable" = false))]
    pub max_unavailable: IntOrString,
    /// How many pods above `replicas` an update may create; a number or a percentage, rounded up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub max_surge: IntOrString,
    /// True if no further updates are started. Scaling continues. Only users set it; a canary step that waits is in
    /// `status.pauseConditions`.
    #[serde(default)]
    pub paused: bool,
    /// What happens when too many pods failed or the progress deadline is exceeded.
    #[serde(default)]
    pub on_failure: UpdateFailurePolicy,
    /// How a pod is updated in place.
    #[serde(default)]
    pub in_place_update_strategy: InPlaceUpdateStrategy,
    /// Which pods are updated first. Pods with the same values of these labels form a group; the groups are processed
    /// in the order of the first value, then of the next one, and a group is completed before the next one begins.
    /// Absent: one group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub priority: Vec<PriorityKey>,
    /// A rollout in steps. Its partitions replace `partition`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

/// The ways to update a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UpdateType {
    /// Delete the pod and create a new one.
    #[default]
    RollingUpdate,
    /// Change images, metadata, cpu and memory of the running pod.
    InplaceUpdate,
    /// As `InplaceUpdate`, but without hooks and without a drain.
    HotPatchUpdate,
    /// Wait until the pod is deleted by another client.
    OnDelete,
}
/// The observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GameDeploymentStatus {
    /// The generation of the spec that this status is based on.
    pub observed_generation: i64,
    /// Number of existing pods.
    pub replicas: i32,
    /// Number of pods that are Ready.
    pub ready_replicas: i32,
    /// Number of pods that have been Ready for `minReadySeconds`.
    pub available_replicas: i32,
    /// Number of pods at `updateRevision`.
    pub updated_replicas: i32,
    /// Number of pods at `updateRevision` that are Ready.
    pub updated_ready_replicas: i32,
    /// The revision of the pods that the partition excludes from the update.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// The revision of the template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// The last revision that all pods reached.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stable_revision: String,
    /// The revision whose update is aborted: while it is `updateRevision`, no pod is updated to it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub aborted_revision: String,
    /// Number of hash collisions of revision names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// The selector as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// The conditions of the workload.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Why a canary rollout waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pause_conditions: Vec<PauseCondition>,
    /// The step of the canary rollout, from 0; the number of steps when it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_step_index: Option<i32>,
    /// Hash of the steps, to detect changes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_step_hash: String,
    /// The state of the canary rollout.
    #[serde(skip_serializing_if = "is_default")]
    pub canary: CanaryStatus,
    /// Pods whose pre-delete hook has not succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre_delete_hook_condition: Vec<HookCondition>,
    /// Pods whose pre-inplace hook has not succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pre_inplace_hook_condition: Vec<HookCondition>,
    /// Pods whose post-inplace hook has not succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_inplace_hook_condition: Vec<HookCondition>,
}

impl Default for ScaleStrategy {
    fn default() -> Self {
        Self { pods_to_delete: Vec::new(), create_batch: everything() }
    }
}

impl Default for UpdateStrategy {
    fn default() -> Self {
        Self {
            kind: UpdateType::default(),
            partition: nothing(),
            max_unavailable: quarter(),
            max_surge: nothing(),
            paused: false,
            on_failure: UpdateFailurePolicy::default(),
            in_place_update_strategy: InPlaceUpdateStrategy::default(),
            priority: Vec::new(),
            canary: None,
        }
    }
}

#[cfg(test)]
mod tests;
