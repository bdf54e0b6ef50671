//! The labels and annotations of workloads, their pods and their hooks: those that users of bk-bcs know, and ours.
//!
//! Keys only: their values are parsed where they are used.

use std::collections::BTreeMap;

/// Label on pods: the name of the revision they were made from or updated to.
pub const REVISION: &str = "controller-revision-hash";
/// Label on pods of a `GameDeployment` and on hooks: the last part of the pod's name, or its ordinal.
pub const INSTANCE: &str = "tkex.bkbcs.tencent.com/gamedeployment-instance-id";
/// Label on pods of a `GameDeployment`: `true` on one that stands in during an update (`maxSurge`). It leaves when the update is
/// over; one that stays in the place of another pod loses the label.
pub const SURGE: &str = "inplace.dev/surge";
/// Labels on pods of a `GameStatefulSet`.
pub const SET_POD_NAME: &str = "gamestatefulset.kubernetes.io/pod-name";
/// See [`SET_POD_NAME`].
pub const SET_ORDINAL: &str = "gamestatefulset.kubernetes.io/pod-ordinal";

/// Annotation on pods: autoscalers leave this one out. There while a hook asks about it.
pub const LEAVING: &str = "io.tencent.bcs.dev/game-pod-deleting";
/// Annotation on pods: how dear it is to delete, a number.
pub const POD_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Annotation on nodes: how dear it is to delete a pod there, a number.
pub const NODE_COST: &str = "io.tencent.bcs.dev/node-deletion-cost";
/// Annotation on a workload: `ascend` (cheap pods first) or `descend`.
pub const COST_ORDER: &str = "io.tencent.bcs.dev/pod-deletion-cost-sort-method";
/// Annotations on a `GameDeployment`: give each pod a number of its own from a range.
pub const INDEX_ON: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-on";
/// See [`INDEX_ON`].
pub const INDEX_RANGE: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-range";
/// Annotation on pods: its number.
pub const INDEX: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-id";
/// Annotation on the template: pods that cannot end because their node is lost are removed by force.
pub const NODE_LOST: &str = "pod.gamestatefulset.bkbcs.tencent.com/node-lost-force-delete";

/// Labels on hooks of a workload, beside their type: the revision of the pod or of the step.
pub const HOOK_REVISION: &str = "workload-revision";
/// See [`HOOK_REVISION`]: the last part of the pod's name.
pub const HOOK_INSTANCE: &str = "instance-id";
/// See [`HOOK_REVISION`]: the canary step.
pub const HOOK_STEP: &str = "canary-step-index";

/// Annotation on pods: the controller's task on the pod, the current or the last one. On hooks: the task that the hook approves.
pub const TASK: &str = "inplace.dev/task";
/// The earlier name of [`TASK`]. This release writes both, so that an earlier build can take over and back; the next
/// release uses [`TASK`] alone.
pub const OLD_TASK: &str = "inplace.dev/turn";
/// Annotation on hooks: the pod that this one is about.
pub const HOOK_POD: &str = "inplace.dev/pod-uid";
/// Annotation on a workload: `Recreate` lets a change that cannot be made in place replace the pods.
pub const FALLBACK: &str = "inplace.dev/in-place-fallback";
/// Annotation on a workload: how many failed pods stop a rollout, a number or a share; absent: `maxUnavailable`.
pub const FAILURE_THRESHOLD: &str = "inplace.dev/failure-threshold";
/// Annotation on a workload: try again what failed. Taken off when that was done.
pub const RETRY: &str = "inplace.dev/retry";

/// The task among `annotations`. Where the two names differ, an earlier build wrote last: it knows only [`OLD_TASK`].
pub fn task(annotations: &BTreeMap<String, String>) -> Option<&String> {
    annotations.get(OLD_TASK).or_else(|| annotations.get(TASK))
}

/// The annotations that hold the task `value`.
pub fn task_annotations(value: &str) -> [(String, String); 2] {
    [TASK, OLD_TASK].map(|key| (key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_read_under_both_names_and_what_an_earlier_build_wrote_wins() {
        let value = |keys: &[&str]| {
            let entries = keys.iter().map(|key| ((*key).to_owned(), (*key).to_owned()));
            task(&entries.collect::<BTreeMap<_, _>>()).cloned()
        };
        assert_eq!(value(&[]), None);
        assert_eq!(value(&[TASK]).as_deref(), Some(TASK));
        assert_eq!(value(&[OLD_TASK]).as_deref(), Some(OLD_TASK));
        assert_eq!(value(&[OLD_TASK, TASK]).as_deref(), Some(OLD_TASK));
    }
}
