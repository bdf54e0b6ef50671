//! `GameDeployment`: pods that are alike, updated in place or by recreation. Fields, defaults and printer columns are those
//! that users of bk-bcs know (`tkex.tencent.com/v1alpha1`).
//!
//! Shapes only: what follows from them is decided in `workload`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::pod_template::PodTemplate;
use crate::api::serde_default::is_default;
use crate::api::workload::{
    Canary, CanaryStatus, Condition, HookCondition, HookStrategy, InPlaceUpdateStrategy, PauseCondition,
    everything, nothing, one, quarter, ten,
};

/// What is wanted of a set of pods that are alike.
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
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".spec.replicas","description":"Pods that are wanted"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedReplicas","description":"Pods at the newest revision"}"#,
    printcolumn = r#"{"name":"UPDATED_READY","type":"integer","jsonPath":".status.updatedReadyReplicas","description":"Pods at the newest revision that are Ready"}"#,
    printcolumn = r#"{"name":"READY","type":"integer","jsonPath":".status.readyReplicas","description":"Pods that are Ready"}"#,
    printcolumn = r#"{"name":"TOTAL","type":"integer","jsonPath":".status.replicas","description":"Pods that are there"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct GameDeploymentSpec {
    /// How many pods are wanted.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub replicas: i32,
    /// Which pods are its own. It must match the labels of the template.
    pub selector: LabelSelector,
    /// What the pods look like.
    pub template: PodTemplate,
    /// Accepted and not used: manifests of a `GameStatefulSet` are often copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_name: Option<String>,
    /// Seconds that a pod must be Ready before a rollout counts on it.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub min_ready_seconds: i32,
    /// How many old revisions are kept to go back to.
    #[serde(default = "ten")]
    #[schemars(range(min = 0))]
    pub revision_history_limit: i32,
    /// Which pods go first, and how many come at once.
    #[serde(default)]
    pub scale_strategy: ScaleStrategy,
    /// Without the readiness gate `InPlaceUpdateReady` in its pods: nothing takes them out of traffic before an update.
    #[serde(default)]
    pub disable_readiness_gate: bool,
    /// How pods get from one revision to another.
    #[serde(default)]
    pub update_strategy: UpdateStrategy,
    /// The gate before a pod is deleted by the workload; also before an update in place without a gate of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_delete_update_strategy: Option<HookStrategy>,
    /// The gate before a pod is updated in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_inplace_update_strategy: Option<HookStrategy>,
    /// The gate after a pod was updated in place, before it takes traffic again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_inplace_update_strategy: Option<HookStrategy>,
}

/// Which pods go first, and how many come at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleStrategy {
    /// Names of pods that are deleted before all others, and replaced if they are still wanted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods_to_delete: Vec<String>,
    /// How many new pods may be on their way at once; a number or a share of `replicas`.
    #[serde(default = "everything")]
    #[schemars(extend("nullable" = false))]
    pub create_batch: IntOrString,
}

/// How pods get from one revision to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// The way.
    #[serde(default, rename = "type")]
    pub kind: UpdateType,
    /// How many pods stay at the old revision; a number or a share of `replicas`, rounded up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub partition: IntOrString,
    /// How many of `replicas` may be unavailable through an update; a number or a share, rounded up, or down when
    /// `maxSurge` is above 0.
    #[serde(default = "quarter")]
    #[schemars(extend("nullable" = false))]
    pub max_unavailable: IntOrString,
    /// How many pods above `replicas` an update may make; a number or a share, rounded up.
    #[serde(default = "nothing")]
    #[schemars(extend("nullable" = false))]
    pub max_surge: IntOrString,
    /// Begin no more updates. Scaling goes on.
    #[serde(default)]
    pub paused: bool,
    /// How a pod is updated in place.
    #[serde(default)]
    pub in_place_update_strategy: InPlaceUpdateStrategy,
    /// A rollout in steps; its partitions stand in for the one above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

/// The ways to update a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UpdateType {
    /// Delete the pod and make another one.
    #[default]
    RollingUpdate,
    /// Change images and metadata of the running pod.
    InplaceUpdate,
    /// As `InplaceUpdate`, at once: no hooks, no drain.
    HotPatchUpdate,
    /// Wait until somebody deletes the pod.
    OnDelete,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GameDeploymentStatus {
    /// The generation of the spec that this tells of.
    pub observed_generation: i64,
    /// Pods that are there.
    pub replicas: i32,
    /// Those that are Ready.
    pub ready_replicas: i32,
    /// Those that are Ready for `minReadySeconds`.
    pub available_replicas: i32,
    /// Those at `updateRevision`.
    pub updated_replicas: i32,
    /// Those at `updateRevision` that are Ready.
    pub updated_ready_replicas: i32,
    /// The revision of the pods that the partition holds back.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// The revision of the template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub update_revision: String,
    /// How often the name of a revision was taken by another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// The selector as text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// What is true of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Why a canary rollout waits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pause_conditions: Vec<PauseCondition>,
    /// The step of the canary rollout, from 0; the number of steps when it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_step_index: Option<i32>,
    /// Tells whether the steps were changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_step_hash: String,
    /// Where the canary rollout stands.
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
            in_place_update_strategy: InPlaceUpdateStrategy::default(),
            canary: None,
        }
    }
}

#[cfg(test)]
mod tests;
