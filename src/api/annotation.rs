//! Every label and annotation key this project reads or writes, ours and the kubelet's.
//!
//! Keys only: their values are parsed where they are used.

/// Annotation on a Pod: the request, written by people and programs.
pub const REQUEST: &str = "inplace.dev/request";
/// The answer, written by the agent only.
pub const STATUS: &str = "inplace.dev/status";
/// The readiness gate and its condition, by the ecosystem's name.
pub const GATE: &str = "InPlaceUpdateReady";
/// Reasons of that condition: an operation is under way, the pod may take traffic, it was left closed after a failure.
pub const GATE_DRAIN: &str = "InPlaceDrain";
/// See [`GATE_DRAIN`].
pub const GATE_READY: &str = "InPlaceReady";
/// See [`GATE_DRAIN`].
pub const GATE_FAILED: &str = "InPlaceFailed";

/// Annotation on a Pod, written by the controller: what an `InPlaceRollout` is doing with it, or did last.
pub const ROLLOUT: &str = "inplace.dev/rollout";
/// Label on a Pod while an `InPlaceRollout` works on it: the uid of the rollout.
pub const ROLLOUT_UID: &str = "inplace.dev/rollout-uid";
/// Annotation on a workload: `configmap/NAME[=CONTAINER+CONTAINER],secret/NAME`, whose changes restart its containers.
pub const RESTART_ON_CHANGE: &str = "inplace.dev/restart-on-change";
/// Annotation on such a workload, written by the controller: hashes of what was handled last, by object.
pub const RESTART_ON_CHANGE_SEEN: &str = "inplace.dev/restart-on-change-seen";
/// Annotation on such a workload: how many pods may be unavailable through the restarts; a number or a share.
pub const RESTART_ON_CHANGE_MAX_UNAVAILABLE: &str = "inplace.dev/restart-on-change-max-unavailable";
/// Annotation on a Pod, written by the controller: the change of configuration that makes its kubelet update the pod.
pub const CONFIGURATION: &str = "inplace.dev/configuration";

/// Label on a Pod, `true`: it is not deleted or evicted before its pre-delete hook has succeeded. On a Namespace: its
/// evictions are refused while no controller answers. On a HookRun, [`FINISH`].
pub const DELETE_GUARD: &str = "inplace.dev/delete-guard";
/// Value of [`DELETE_GUARD`] on a HookRun: whoever wanted its pod deleted does not ask again, so the controller does once it
/// has succeeded.
pub const FINISH: &str = "finish";
/// Annotation on a guarded Pod: the name of the `HookTemplate` to pass.
pub const PRE_DELETE_HOOK: &str = "inplace.dev/pre-delete-hook";
/// Annotation on a guarded Pod, written by a person: another value than before has a hook that failed run again.
pub const DELETE_GUARD_RETRY: &str = "inplace.dev/delete-guard-retry";
/// Annotation on a guarded Pod or its Namespace, written by a person: it may go without its hook, and why.
pub const DELETE_GUARD_OVERRIDE: &str = "inplace.dev/delete-guard-override";
/// Condition of a guarded Pod, written by the controller into its status: since when its deletion is refused. Whoever makes
/// or changes pods does not write their status.
pub const DELETE_GUARD_HELD: &str = "inplace.dev/DeleteGuardHeld";
/// Label on a Namespace, `true`: new pods get the readiness gate by a webhook.
pub const READINESS_GATE: &str = "inplace.dev/readiness-gate";

/// Label on a HookRun: the node whose agent runs it.
pub const NODE: &str = "inplace.dev/node";
/// Label on a HookRun, by the name that users of bk-bcs know: what it gates.
pub const HOOK_TYPE: &str = "hookrun-type";
/// Values of [`HOOK_TYPE`].
pub const PRE_INPLACE: &str = "pre-inplace-step";
/// See [`PRE_INPLACE`].
pub const POST_INPLACE: &str = "post-inplace-step";
/// See [`PRE_INPLACE`].
pub const PRE_DELETE: &str = "pre-delete-step";
/// See [`PRE_INPLACE`].
pub const CANARY: &str = "canary-step";
/// Annotation on a HookRun, written by a person: `true` approves it by hand, once and this run only.
pub const APPROVE: &str = "inplace.dev/approve";
/// Annotation on a HookRun: who runs it, `node/NAME` or `controller`. Whoever is not named there keeps away from it.
pub const RUNNER: &str = "inplace.dev/runner";

/// Label on a container that this project created: the id of the request that made it. Tells our half-made
/// containers from those of a kubelet. As a label on a HookRun: it belongs to an operation that an agent carries out, and
/// that operation alone drives it.
pub const OPERATION: &str = "inplace.dev/operation";
/// Label on sandboxes made by `inplace node run`: no kubelet supervises or cleans up behind these.
pub const NODE_RUN: &str = "inplace.dev/node-run";
/// Annotation beside [`NODE_RUN`]: the state directory that holds the pod's volumes and logs.
pub const STATE_DIR: &str = "inplace.dev/state-dir";

/// The kubelet's labels on sandboxes and containers (pkg/kubelet/types/labels.go).
pub const POD_NAME: &str = "io.kubernetes.pod.name";
/// See [`POD_NAME`].
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// See [`POD_NAME`].
pub const POD_UID: &str = "io.kubernetes.pod.uid";
/// The name in the pod spec. A fence carries [`FENCE_NAME`] here, so that no kubelet takes it for the container.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// What a fence has in place of its container's name.
pub const FENCE_NAME: &str = "inplace-fence";
/// Label on a fence that runs and does nothing. One without it is a clone of its container that is never started.
pub const HOLDER: &str = "inplace.dev/holder";

/// The kubelet's annotations on containers (pkg/kubelet/kuberuntime/labels.go): decimal restart count.
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
/// The kubelet's hash of the container's spec, lower-case hex: another one than the spec's has it replaced.
pub const SPEC_HASH: &str = "io.kubernetes.container.hash";
/// The preStop handler as JSON, only there when the pod has one.
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// The container's ports as JSON, only there when it has any.
pub const PORTS: &str = "io.kubernetes.container.ports";
/// Decimal seconds; absent means the Kubernetes default of 30.
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
/// Path of the termination message inside the container, may be empty.
pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";

/// On a sandbox made by a kubelet: `api`, `file` or `http`.
pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
