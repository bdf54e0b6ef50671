//! The state of a workload as `kubectl wait`, Flux and Helm read it: whether it is as its spec says, gets there, or
//! waits for a person. Derived from the other conditions; decides nothing about pods.
//!
//! | situation | state |
//! |---|---|
//! | the update cannot continue (failed pods, a failed hook, a change that cannot be made in place), no task in progress | Stalled |
//! | the same, and a task is in progress | Reconciling |
//! | the progress deadline is exceeded | Stalled, whatever is in progress |
//! | the update is aborted, and pods go back | Reconciling |
//! | all pods are back, or cannot go back | Stalled |
//! | the hook of a scale-in failed, and nothing else is to be done | Stalled |
//! | a `HookTemplate` is missing | Reconciling: it may be applied later |
//! | paused by a person or by a canary step, with pods left to update | Reconciling |
//! | pods are updated, canary steps are left, pods are created or removed | Reconciling |
//! | complete, up to the partition, or `OnDelete`; pods are not available | Unavailable |
//! | the same, and all pods are available | Ready |

use crate::api::kstatus::ObjectState;
use crate::podtask::state::TaskState;
use crate::workload::abort::ABORTING;
use crate::workload::deadline::EXCEEDED;
use crate::workload::input::ReconcileInput;
use crate::workload::report::Counts;
use crate::workload::status::UpdateFailure;

/// What the other conditions report.
#[derive(Clone, Copy, Debug)]
pub struct Findings<'a> {
    /// Reason and message of `Progressing`.
    pub progress: (&'static str, &'a str),
    /// Why the update does not complete.
    pub update_failure: Option<&'a UpdateFailure>,
    /// The failed hook of a scale-in.
    pub scale_in_hook: Option<&'a str>,
    /// True when pods are created or removed now.
    pub scales: bool,
    /// True when canary steps are left.
    pub steps_left: bool,
    /// Numbers of pods.
    pub counts: Counts,
}

/// The state, its reason and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub state: ObjectState,
    /// The reason of all three conditions.
    pub reason: &'static str,
    /// The message of the condition that is True, and of `Ready`.
    pub message: String,
}

/// Derives the state of a workload.
pub fn of(input: &ReconcileInput<'_>, findings: &Findings<'_>) -> Health {
    let (progress, far) = findings.progress;
    let health = |state, reason, message: &str| Health { state, reason, message: message.to_owned() };
    let busy = input.views.iter().any(|view| matches!(view.task_state, TaskState::Busy { .. }));
    let is_over = matches!(progress, "Complete" | "PartitionReached" | "OnDelete");
    if let Some(failure) = findings.update_failure.filter(|failure| failure.stops && !is_over) {
        let waits = match failure.reason {
            "HookTemplate" | ABORTING => true,
            EXCEEDED => false,
            _ => busy,
        };
        let state = if waits { ObjectState::Reconciling } else { ObjectState::Stalled };
        return health(state, failure.reason, &failure.message);
    }
    if !is_over || findings.steps_left {
        return health(ObjectState::Reconciling, progress, far);
    }
    if let Some(message) = findings.scale_in_hook.filter(|_| !busy) {
        return health(ObjectState::Stalled, "HookFailed", message);
    }
    let Counts { total, available, .. } = findings.counts;
    let replicas = input.spec.replicas;
    if findings.scales || total != replicas {
        let message = format!("{total} pods exist, {replicas} are desired");
        return health(ObjectState::Reconciling, "Scaling", &message);
    }
    let many = format!("{far}, {available} of {replicas} are available");
    if available < replicas {
        return health(ObjectState::Unavailable, "MinimumPodsUnavailable", &many);
    }
    health(ObjectState::Ready, progress, &many)
}
