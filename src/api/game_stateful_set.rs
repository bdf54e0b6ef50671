//! `GameStatefulSet`: pods with an ordinal, a stable name and their own volumes, updated in place or by recreation. Fields,
//! defaults and printer columns are those of bk-bcs (`tkex.tencent.com/v1alpha1`).
//!
//! Types only: `workload` decides what follows from them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::game_deployment::UpdateType;
use crate::api::pod_template::{ClaimTemplate, PodTemplate};
use crate::api::priority::PriorityKey;
use crate::api::serde_default::is_default;
use crate::api::workload::{
    Canary, CanaryStatus, Condition, HookCondition, HookStrategy, InPlaceUpdateStrategy, PauseCondition,
    UpdateFailurePolicy, everything, nothing, one, quarter, ten,
};
/// The desired state of a set of pods with ordinals.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "GameStatefulSet",
    namespaced,
    status = "GameStatefulSetStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"Replicas","type":"integer","jsonPath":".spec.replicas","description":"Desired number of pods"}"#,
    printcolumn = r#"{"name":"ReadyReplicas","type":"integer","jsonPath":".status.readyReplicas","description":"Pods that are Ready"}"#,
    printcolumn = r#"{"name":"CurrentReplicas","type":"integer","jsonPath":".status.currentReplicas","description":"Pods at the current revision"}"#,
    printcolumn = r#"{"name":"UpdatedReplicas","type":"integer","jsonPath":".status.updatedReplicas","description":"Pods at the newest revision"}"#,
    printcolumn = r#"{"name":"UpdatedReady_Replicas","type":"integer","jsonPath":".status.updatedReadyReplicas","description":"Pods at the newest revision that are Ready"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GameStatefulSetSpec {
    /// Desired number of pods.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Selects the pods of the workload. It must match the labels of the template.
    pub selector: LabelSelector,
    /// The template of the pods.
    pub template: PodTemplate,
    /// The Service that gives the pods their host names; it need not exist.
    pub service_name: String,
    /// Volume claims that are created for each pod. Of an existing set only the storage requests can be changed, to larger
    /// ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<ClaimTemplate>,
    /// Whether the claims of `volumeClaimTemplates` are deleted with the set, or with a pod that a scale-in removes. As in
    /// a `StatefulSet`. Absent: they are never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<ClaimRetention>,
    /// Whether pods are created, deleted and updated one after the other.
    #[serde(default)]
    pub pod_management_policy: PodManagementPolicy,
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
    /// How many pods are created at the same time.
    #[serde(default)]
    pub scale_strategy: StatefulScaleStrategy,
    /// Ordinals that are skipped: 3 replicas and `[1]` give the pods 0, 2 and 3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserve_orders: Vec<i32>,
    /// True if the pods do not get the readiness gate `InPlaceUpdateReady`: they are then not taken out of traffic
    /// before an update.
    #[serde(default)]
    pub disable_readiness_gate: bool,
    /// How pods are updated from one revision to another.
    #[serde(default)]
    pub update_strategy: StatefulUpdateStrategy,
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
/// Whether pods are created, deleted and updated one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PodManagementPolicy {
    /// One after the other; each waits for the previous one.
    #[default]
    OrderedReady,
    /// At the same time; updates as well, within `maxUnavailable`.
    Parallel,
}
/// When the claims of `volumeClaimTemplates` are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClaimRetention {
    /// What happens to the claims when the set is deleted.
    #[serde(default)]
    pub when_deleted: ClaimPolicy,
    /// What happens to the claim of a pod that is removed because `replicas` is lower, or its ordinal is reserved.
    #[serde(default)]
    pub when_scaled: ClaimPolicy,
}

/// What happens to claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClaimPolicy {
    /// They stay.
    #[default]
    Retain,
    /// The garbage collector of Kubernetes deletes them.
    Delete,
}
/// How many pods are created at the same time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatefulScaleStrategy {
    /// How many new pods may be starting at the same time under `Parallel`, replacements included; a number or a
    /// percentage of `replicas`, at least one.
    #[serde(default = "everything")]
    #[schemars(extend("nullable" = false))]
    pub create_batch: IntOrString,
}
/// How pods are updated from one revision to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StatefulUpdateStrategy {
    /// How a pod is updated.
    #[serde(default, rename = "type")]
    pub kind: UpdateType,
    /// How many pods are updated, and which; for in-place updates as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
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
    /// Absent: one group. Needs the policy `Parallel`: `OrderedReady` updates by ordinal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub priority: Vec<PriorityKey>,
    /// A rollout in steps. Its partitions replace `partition`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}
/// How many pods are updated, and which.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// Pods with this ordinal or a higher one are updated; a number or a percentage of `replicas`, rounded up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub partition: IntOrString,
    /// How many of `replicas` may be unavailable during an update under `Parallel`; a number or a percentage, rounded
    /// up, or rounded down if `maxSurge` is above 0. 0 is refused without `maxSurge`, and with `HotPatchUpdate`: no
    /// pod could be updated.
    #[serde(default = "quarter")]
    #[schemars(extend("nullable" = false))]
    pub max_unavailable: IntOrString,
    /// How many pods with further ordinals an update may create under `Parallel`; a number or a percentage, rounded
    /// up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub max_surge: IntOrString,
}
/// The observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GameStatefulSetStatus {
    /// The generation of the spec that this status is based on.
    pub observed_generation: i64,
    /// Number of existing pods.
    pub replicas: i32,
    /// Number of pods that are Ready.
    pub ready_replicas: i32,
    /// Number of pods at `currentRevision`.
    pub current_replicas: i32,
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

impl Default for StatefulScaleStrategy {
    fn default() -> Self {
        Self { create_batch: everything() }
    }
}

impl Default for RollingUpdate {
    fn default() -> Self {
        Self { partition: nothing(), max_unavailable: quarter(), max_surge: nothing() }
    }
}
