//! Which pods are processed first: the keys of the order, in the specs of `InPlaceRollout`, `GameDeployment` and
//! `GameStatefulSet`. Types only.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One key of the order of pods: exactly one of the two labels. Pods with the same values form a group; a group is
/// completed before the next one begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PriorityKey {
    /// A label of the node of the pod, such as `topology.kubernetes.io/zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub node_label: Option<String>,
    /// A label of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub pod_label: Option<String>,
}
