//! The labels and annotations of workloads, their pods and their HookRuns: those of bk-bcs, and those of this project.
//!
//! Keys only: their values are parsed where they are used.

use std::collections::BTreeMap;

/// Label on pods: the name of the revision that the pod was created from or updated to.
pub const REVISION: &str = "controller-revision-hash";
/// Label on pods of a `GameDeployment`: the last part of the pod's name, or its ordinal.
pub const INSTANCE: &str = "tkex.bkbcs.tencent.com/gamedeployment-instance-id";
/// Label on pods of a `GameDeployment`, `true`: the pod was created beyond `replicas` for an update (`maxSurge`). It is
/// deleted when the update is over, or it replaces a pod that is gone and loses the label.
pub const SURGE: &str = "inplace.dev/surge";
/// Annotation on pods, written by the controller: images that the pod's update needs, separated by commas. The agent pulls
/// them when it has nothing else to pull.
pub const PREFETCH: &str = "inplace.dev/update-prefetch";
/// Label on pods of a `GameStatefulSet`: the name of the pod.
pub const SET_POD_NAME: &str = "gamestatefulset.kubernetes.io/pod-name";
/// Label on pods of a `GameStatefulSet`: the ordinal of the pod.
pub const SET_ORDINAL: &str = "gamestatefulset.kubernetes.io/pod-ordinal";

/// Annotation on pods, written by a bk-bcs operator: the state of its last in-place update.
pub const UPDATE_STATE: &str = "inplace-update-state";
/// Annotation on pods, written by a bk-bcs operator: the images that it writes after the grace period. The controller
/// removes it when it finishes that update.
pub const UPDATE_GRACE: &str = "inplace-update-grace";
/// Reason of the readiness gate's condition that a bk-bcs operator has closed.
pub const UPDATE_GATE: &str = "StartInPlaceUpdate";

/// Annotation on pods, `true`: autoscalers ignore the pod. Set while its pre-delete hook runs.
pub const LEAVING: &str = "io.tencent.bcs.dev/game-pod-deleting";
/// Annotation on pods: the deletion cost, a number.
pub const POD_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Annotation on nodes: the deletion cost of the pods on the node, a number.
pub const NODE_COST: &str = "io.tencent.bcs.dev/node-deletion-cost";
/// Annotation on a workload: the order in which pods are deleted by cost, `ascend` (lowest first, the default) or `descend`.
pub const COST_ORDER: &str = "io.tencent.bcs.dev/pod-deletion-cost-sort-method";
/// Annotation on a `GameDeployment`, `true`: each pod gets its own number from [`INDEX_RANGE`].
pub const INDEX_ON: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-on";
/// Annotation on a `GameDeployment`: the range of the numbers, `{"podStartIndex":100,"podEndIndex":110}`. The end is not one
/// of them, and without `podStartIndex` they begin with 0.
pub const INDEX_RANGE: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-range";
/// Annotation on pods: the number of the pod, see [`INDEX_ON`].
pub const INDEX: &str = "tkex.bkbcs.tencent.com/gamedeployment-index-id";
/// Annotation on the template of a `GameStatefulSet`, `true`: pods on a lost node are deleted with grace period 0.
pub const NODE_LOST: &str = "pod.gamestatefulset.bkbcs.tencent.com/node-lost-force-delete";

/// Label on HookRuns of a workload: the revision of the pod or of the canary step.
pub const HOOK_REVISION: &str = "workload-revision";
/// Label on HookRuns of a workload: the last part of the pod's name.
pub const HOOK_INSTANCE: &str = "instance-id";
/// Label on HookRuns of a workload: the index of the canary step.
pub const HOOK_STEP: &str = "canary-step-index";

/// Annotation on pods, written by the controller: the task of the workload on the pod, in progress or ended. Annotation on
/// HookRuns: the task that waits for the hook.
pub const TASK: &str = "inplace.dev/task";
/// The earlier name of [`TASK`]. This release writes both, so that a change to an earlier build and back is possible;
/// the next release uses [`TASK`] alone.
pub const OLD_TASK: &str = "inplace.dev/turn";
/// Annotation on HookRuns of a workload: the uid of the pod.
pub const HOOK_POD: &str = "inplace.dev/pod-uid";
/// Annotation on a workload, `Recreate`: a change that cannot be made in place recreates the pods.
pub const FALLBACK: &str = "inplace.dev/in-place-fallback";
/// Annotation on a workload: how many failed pods stop an update, a number or a percentage; absent: `maxUnavailable`.
pub const FAILURE_THRESHOLD: &str = "inplace.dev/failure-threshold";
/// Annotation on a workload, with any value: failed updates are retried. The controller removes it when it has started the
/// retry.
pub const RETRY: &str = "inplace.dev/retry";
/// Annotation on a workload, `REVISION/STEP` as in `status.updateRevision` and `status.currentStepIndex`: ends the wait of
/// this canary step. The controller removes it when it has ended the wait, or if this step does not wait.
pub const RESUME_STEP: &str = "inplace.dev/resume-step";

/// The value of the task in `annotations`. If the values of the two names differ, that of [`OLD_TASK`] is newer: an earlier
/// build, which writes only that name, wrote last.
pub fn task(annotations: &BTreeMap<String, String>) -> Option<&String> {
    annotations.get(OLD_TASK).or_else(|| annotations.get(TASK))
}

/// The annotations that store the task `value`, under both names.
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
