//! Keys of labels, annotations and conditions: those of requests, rollouts, the delete guard and hooks, and those of the
//! kubelet. The keys of workloads are in `workload_key`.
//!
//! Keys only: their values are parsed where they are used.

/// Annotation on a Pod: the request, written by people and programs.
pub const REQUEST: &str = "inplace.dev/request";
/// Annotation on a Pod, written only by the agent: the status of the last request.
pub const STATUS: &str = "inplace.dev/status";
/// Annotation on a Pod, written by people and programs: images that a later request needs, separated by commas. The agent
/// pulls them when it has nothing else to pull.
pub const PREFETCH: &str = "inplace.dev/prefetch";
/// Condition type of a Pod: the readiness gate, and the condition that the agent sets.
pub const GATE: &str = "InPlaceUpdateReady";
/// Reason of the condition [`GATE`], False: an operation is in progress, and the pod is out of traffic.
pub const GATE_DRAIN: &str = "InPlaceDrain";
/// Reason of the condition [`GATE`], True: no operation is in progress, and the pod can get traffic.
pub const GATE_READY: &str = "InPlaceReady";
/// Reason of the condition [`GATE`], False: an operation failed, and the pod stays out of traffic.
pub const GATE_FAILED: &str = "InPlaceFailed";

/// Annotation on a Pod, written by the controller: the task of an `InPlaceRollout` on the pod, in progress or ended.
pub const ROLLOUT: &str = "inplace.dev/rollout";
/// Annotation on a Pod, written by the controller: the same as [`PREFETCH`], for the request of an `InPlaceRollout`. The
/// last entry is `rollout=` and the uid of the rollout.
pub const ROLLOUT_PREFETCH: &str = "inplace.dev/rollout-prefetch";
/// Label on a Pod while the task of an `InPlaceRollout` on it is in progress: the uid of the rollout.
pub const ROLLOUT_UID: &str = "inplace.dev/rollout-uid";
/// Annotation on a Pod, written by the controller while it carries out a `ContainerRecreateRequest`: which one, and since when.
pub const RECREATE_REQUEST: &str = "inplace.dev/recreate-request";
/// Label on a Pod with the annotation [`RECREATE_REQUEST`]: the uid of the `ContainerRecreateRequest`.
pub const RECREATE_REQUEST_UID: &str = "inplace.dev/recreate-request-uid";
/// Label on an `InPlaceRollout` with the strategy `Together`, written by the controller; its value is `true`. Agents watch
/// only rollouts with this label.
pub const TOGETHER: &str = "inplace.dev/together";
/// Annotation on a Pod, written by its agent: the number of the last group restart that prepared the pod.
pub const GROUP_EPOCH: &str = "inplace.dev/group-epoch";
/// Label on a Pod, written by a user: the name of the group whose pods are all restarted when a container of one of them
/// fails. Label on an `InPlaceRollout` that the controller has created for that.
pub const GROUP_RESTART: &str = "inplace.dev/group-restart";
/// Annotation on a Pod with the label [`GROUP_RESTART`], written by a user: which failures restart the group, and how.
pub const GROUP_RESTART_POLICY: &str = "inplace.dev/group-restart-policy";
/// Annotation on a Pod with the label [`GROUP_RESTART`], written by its agent: the last container that has failed, as JSON.
pub const GROUP_FAILURE: &str = "inplace.dev/group-failure";
/// Annotation on a workload: `configmap/NAME[=CONTAINER+CONTAINER],secret/NAME`, the objects whose changes restart containers.
pub const RESTART_ON_CHANGE: &str = "inplace.dev/restart-on-change";
/// Annotation on a workload with [`RESTART_ON_CHANGE`], written by the controller: the hash of the content that was handled
/// last, by object.
pub const RESTART_ON_CHANGE_SEEN: &str = "inplace.dev/restart-on-change-seen";
/// Annotation on a workload with [`RESTART_ON_CHANGE`]: how many pods may be unavailable during the restarts, a number or a
/// percentage.
pub const RESTART_ON_CHANGE_MAX_UNAVAILABLE: &str = "inplace.dev/restart-on-change-max-unavailable";
/// Annotation on a workload with [`RESTART_ON_CHANGE`]: `StartFirst` or `StopFirst`, whether the new container is started
/// before or after the old one is stopped.
pub const RESTART_ON_CHANGE_ORDER: &str = "inplace.dev/restart-on-change-order";
/// Annotation on a Pod, written by the controller: identifies a change of configuration. Writing it triggers the kubelet to
/// refresh the mounted volumes.
pub const CONFIGURATION: &str = "inplace.dev/configuration";

/// Label on a Pod, `true`: the pod is not deleted or evicted before its pre-delete hook has succeeded. Label on a
/// Namespace, `true`: evictions in it are refused while no controller answers. Label on a HookRun, [`FINISH`].
pub const DELETE_GUARD: &str = "inplace.dev/delete-guard";
/// Value of [`DELETE_GUARD`] on a HookRun: the client that requested the deletion does not retry, so the controller deletes
/// the pod once the hook has succeeded.
pub const FINISH: &str = "finish";
/// Annotation on a guarded Pod: the name of the `HookTemplate` of its pre-delete hook.
pub const PRE_DELETE_HOOK: &str = "inplace.dev/pre-delete-hook";
/// Annotation on a guarded Pod, written by a user: each new value runs a failed pre-delete hook once more.
pub const DELETE_GUARD_RETRY: &str = "inplace.dev/delete-guard-retry";
/// Annotation on a guarded Pod or its Namespace, written by a user: allows the deletion without the hook. The value is the
/// reason.
pub const DELETE_GUARD_OVERRIDE: &str = "inplace.dev/delete-guard-override";
/// Condition type of a guarded Pod, written by the controller: since when its deletion is refused. It is in the status
/// because users who may create or change pods usually may not write their status.
pub const DELETE_GUARD_HELD: &str = "inplace.dev/DeleteGuardHeld";
/// Label on a Namespace, `true`: a webhook adds the readiness gate to new pods.
pub const READINESS_GATE: &str = "inplace.dev/readiness-gate";

/// Label on a HookRun: the node whose agent runs it.
pub const NODE: &str = "inplace.dev/node";
/// Label on a HookRun: the action that waits for it. The name is that of bk-bcs.
pub const HOOK_TYPE: &str = "hookrun-type";
/// Value of [`HOOK_TYPE`]: an update in place, before it.
pub const PRE_INPLACE: &str = "pre-inplace-step";
/// Value of [`HOOK_TYPE`]: an update in place, after it.
pub const POST_INPLACE: &str = "post-inplace-step";
/// Value of [`HOOK_TYPE`]: the deletion of a pod.
pub const PRE_DELETE: &str = "pre-delete-step";
/// Value of [`HOOK_TYPE`]: a step of a canary update.
pub const CANARY: &str = "canary-step";
/// Annotation on a HookRun, written by a user: `true` approves this run, whatever it measures.
pub const APPROVE: &str = "inplace.dev/approve";
/// Annotation on a HookRun: the process that runs it, `node/NAME` or `controller`. No other process runs it.
pub const RUNNER: &str = "inplace.dev/runner";

/// Label on a container that this project created: the id of the request. It distinguishes incomplete containers of this
/// project from those of a kubelet. Label on a HookRun: it reports a hook of this request, which its agent runs; no other
/// process runs it.
pub const OPERATION: &str = "inplace.dev/operation";
/// Label on a sandbox that `inplace node run` created: no kubelet supervises it or cleans it up.
pub const NODE_RUN: &str = "inplace.dev/node-run";
/// Annotation on a sandbox with [`NODE_RUN`]: the state directory that contains the volumes and logs of the pod.
pub const STATE_DIR: &str = "inplace.dev/state-dir";

/// Label of the kubelet on sandboxes and containers: the name of the pod (pkg/kubelet/types/labels.go).
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// Label of the kubelet on sandboxes and containers: the namespace of the pod.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// Label of the kubelet on sandboxes and containers: the uid of the pod.
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// Label of the kubelet on containers: the name in the pod's spec. A fence has [`FENCE_NAME`] instead, so that no kubelet
/// mistakes it for the container.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Value of [`CONTAINER_NAME`] on a fence.
pub const FENCE_NAME: &str = "inplace-fence";
/// Value of [`CONTAINER_NAME`] on a standby, and the beginning of its name in the runtime. A kubelet that finds this name in
/// no pod's spec leaves the container alone while the pod runs.
pub const STANDBY_NAME: &str = "inplace-standby";
/// Label on a standby: the name of the container that it stands in for.
pub const STANDBY: &str = "inplace.dev/standby";
/// Label on a fence that runs an idle process. A fence without it is a clone of its container that is never started.
pub const HOLDER: &str = "inplace.dev/holder";

/// Annotation of the kubelet on containers: the restart count, decimal (pkg/kubelet/kuberuntime/labels.go).
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// Annotation of the kubelet on containers: the hash of the container's spec, hexadecimal. The kubelet replaces a container
/// whose hash differs from that of the spec.
pub const SPEC_HASH: &str = "io.kubernetes.container.hash";
/// Annotation of the kubelet on containers: the preStop handler as JSON; absent if there is none.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotation of the kubelet on containers: the ports as JSON; absent if there are none.
pub const PORTS: &str = "io.kubernetes.container.ports";
/// Annotation of the kubelet on containers: the termination grace period in seconds, decimal; absent: 30, the default of
/// Kubernetes.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Annotation of the kubelet on containers: the path of the termination message in the container; may be empty.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";

/// Annotation of the kubelet on sandboxes: the source of the pod, `api`, `file` or `http`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
