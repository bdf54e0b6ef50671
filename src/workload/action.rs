//! The writes on the API server that a decision asks for, in order, and the events that report them.
//!
//! Each write may fail or be repeated without harm: names are deterministic, and a write on a pod is conditional on
//! the resource version that was read. Nothing is written here.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::request::HookArg;
use crate::api::workload_key;
use crate::podtask::task::PodTask;
use crate::podtask::write::{Event, PodPatch, VersionedRef};
use crate::workload::claims::OwnerChange;
use crate::workload::hooks::{HookType, Run};
use crate::workload::revision::{Revision, Write};

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create a `ControllerRevision`, or update its number.
    WriteRevision(Revision, Write),
    /// Delete the `ControllerRevision` of this name.
    DeleteRevision(String),
    /// Create a `PersistentVolumeClaim`.
    CreateClaim {
        /// Name of the claim.
        name: String,
        /// The whole object.
        body: Value,
    },
    /// Change the owners of a `PersistentVolumeClaim`, and with them when it is deleted.
    OwnClaim {
        /// The claim, with the version that the patch is conditional on.
        claim: VersionedRef,
        /// The owners to add and to remove.
        change: OwnerChange,
    },
    /// Raise the storage request of a `PersistentVolumeClaim`.
    GrowClaim {
        /// The claim, with the version that the patch is conditional on.
        claim: VersionedRef,
        /// The new storage request.
        storage: String,
    },
    /// Create a pod. If it exists already: no error when the workload owns it; otherwise its name goes into
    /// `CachedObjects::taken`.
    CreatePod {
        /// Name of the pod.
        name: String,
        /// The whole object.
        body: Value,
    },
    /// Delete a pod.
    DeletePod {
        /// The pod, with the version that the deletion is conditional on.
        pod: VersionedRef,
        /// The purpose; it selects the event.
        why: Why,
    },
    /// Change labels and annotations of a pod.
    PatchPod {
        /// The pod, with the version that the patch is conditional on.
        pod: VersionedRef,
        /// The labels and annotations to set or remove.
        patch: PodPatch,
        /// The purpose; it selects the event.
        why: Why,
        /// What to do at `PodDisruptionBudget`s before the patch.
        claims: BudgetClaims,
    },
    /// Change cpu and memory of a running pod through its subresource `resize`. If the API server refuses that, the pod gets
    /// the patch of [`resize::refused`](crate::workload::resize::refused) instead.
    Resize {
        /// The pod, with the version that the write is conditional on.
        pod: VersionedRef,
        /// The fields of the pod's spec that change, as a strategic merge patch.
        spec: Value,
        /// The task of the pod.
        task: PodTask,
    },
    /// Write the entry of a pod at a `PodDisruptionBudget` again, before it lapses.
    RenewClaim {
        /// Name of the budget.
        budget: String,
        /// Name of the pod.
        pod: String,
    },
    /// Write the condition of the readiness gate that a bk-bcs operator has closed.
    SetGate {
        /// The pod, with the version that the write is conditional on.
        pod: VersionedRef,
        /// True: the pod takes traffic again. False: it stays out of traffic until a request has succeeded.
        open: bool,
    },
    /// Create a `HookRun`.
    CreateRun(NewHookRun),
    /// Delete the `HookRun` of this name.
    DeleteRun(String),
    /// Remove the annotation `inplace.dev/resume-step`: it was used, or names no step that waits.
    ClearResume,
    /// The user's request to retry was handled: set the `retry` of all three hooks to false where it is true, and
    /// remove the annotation `inplace.dev/retry`.
    ClearRetry,
    /// Record an event that belongs to no write.
    Report(Event),
}

/// What a write on a pod does at `PodDisruptionBudget`s, by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BudgetClaims {
    /// Nothing.
    #[default]
    None,
    /// Claim a disruption of the pod; without all claims the pod is not patched.
    Claim(Vec<String>),
    /// Remove the pod's entries.
    Release(Vec<String>),
}

/// The purpose of a write on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// The pod is chosen: its task begins.
    Chosen,
    /// The pod is about to be resized.
    Resize,
    /// The agent is asked to update the pod.
    InPlace,
    /// The agent is asked to update the pod at once.
    HotPatch,
    /// Only labels or annotations change.
    Metadata,
    /// The pod is at its new revision.
    Updated,
    /// The images that the agent is to pull in advance change.
    Prefetch,
    /// The update failed.
    NotUpdated,
    /// The request is withdrawn.
    Recalled,
    /// The task is cancelled with nothing touched, or a failed task is released for another attempt.
    Dropped,
    /// A surge pod becomes a regular pod: it replaces a pod that is gone.
    SurgePromoted,
    /// The pod is surplus.
    ScaleIn,
    /// The pod is replaced by a new one at the new revision.
    Recreate,
    /// The pod has ended by itself and blocks the name of its successor.
    EndedPod,
    /// The node of the pod is lost; delete the pod without waiting.
    LostNode,
}

/// A `HookRun` to create.
#[derive(Clone, Debug, PartialEq)]
pub struct NewHookRun {
    /// Name of the run.
    pub name: String,
    /// The action that the run gates.
    pub kind: HookType,
    /// Name of the `HookTemplate`.
    pub template: String,
    /// Arguments of the workload's hook, followed by those derived from the pod; a later one overrides an earlier
    /// one.
    pub args: Vec<HookArg>,
    /// Labels of the run.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the run.
    pub annotations: BTreeMap<String, String>,
    /// The node whose agent runs it. None: the controller runs it.
    pub node: Option<String>,
}

impl NewHookRun {
    /// True if `run` was made for the same pod and action, or for a canary step.
    pub fn has_purpose_of(&self, run: &Run) -> bool {
        let pod_uid = self.annotations.get(workload_key::HOOK_POD).map_or("", String::as_str);
        run.kind == self.kind && run.pod_uid == pod_uid
    }
}

impl Action {
    /// True for a write that a retry consists of: a failed task is forgotten, or the run of a hook.
    pub fn retries(&self) -> bool {
        matches!(self, Self::PatchPod { why: Why::Dropped, .. } | Self::DeleteRun(_))
    }

    /// The event once the action was applied, or failed with `error`. None for actions that have no event.
    pub fn event(&self, error: Option<&str>) -> Option<Event> {
        let (done, failed, what) = match self {
            Self::CreatePod { name, .. } => {
                ("SuccessfulCreate", "FailedCreate", format!("create pod {name}"))
            }
            Self::CreateClaim { name, .. } => {
                ("SuccessfulCreate", "FailedCreate", format!("create claim {name}"))
            }
            Self::GrowClaim { claim, storage } => (
                "SuccessfulExpandClaim",
                "FailedExpandClaim",
                format!("request {storage} of storage for claim {}", claim.name),
            ),
            Self::OwnClaim { claim, .. } => {
                return error.map(|error| {
                    let message = format!("could not change the owners of claim {}: {error}", claim.name);
                    Event::warning("FailedUpdateClaim", message)
                });
            }
            Self::DeletePod { pod, why } => {
                let what = format!("delete pod {}", pod.name);
                match why {
                    Why::Recreate => ("SuccessfulUpdatePodReCreate", "FailedUpdatePodReCreate", what),
                    Why::EndedPod => ("RecreatingFailedPod", "FailedDeletePod", what),
                    _ => ("SuccessfulDelete", "FailedDelete", what),
                }
            }
            Self::PatchPod { pod, why, patch, .. } => {
                let (done, failed, how) = match why {
                    Why::Updated => ("SuccessfulUpdatePodInPlace", "FailedUpdatePodInPlace", "in place"),
                    Why::Metadata => {
                        ("SuccessfulUpdatePodInPlace", "FailedUpdatePodInPlace", "without a restart")
                    }
                    Why::HotPatch => ("SuccessfulUpdatePodHotPatch", "FailedUpdatePodHotPatch", "at once"),
                    Why::NotUpdated => return Some(not_updated(pod, patch)),
                    _ => {
                        return error.map(|error| {
                            Event::warning(
                                "FailedUpdate",
                                format!("could not patch pod {}: {error}", pod.name),
                            )
                        });
                    }
                };
                (done, failed, format!("update pod {} {how}", pod.name))
            }
            Self::Resize { pod, .. } => {
                return error.map(|error| {
                    Event::warning("FailedUpdate", format!("could not resize pod {}: {error}", pod.name))
                });
            }
            Self::SetGate { pod, open } => {
                let how = if *open { "open" } else { "take over" };
                let what = format!(
                    "{how} the readiness gate of pod {}, which an update in place by a bk-bcs operator left closed",
                    pod.name
                );
                ("ForeignUpdateTakenOver", "ForeignUpdateNotTakenOver", what)
            }
            Self::CreateRun(run) => match error {
                Some(error) => {
                    ("", "FailedCreateHookRun", format!("could not create HookRun {}: {error}", run.name))
                }
                None => return None,
            },
            Self::Report(event) => return Some(event.clone()),
            Self::WriteRevision(..)
            | Self::DeleteRevision(_)
            | Self::RenewClaim { .. }
            | Self::DeleteRun(_)
            | Self::ClearResume
            | Self::ClearRetry => return None,
        };
        Some(match error {
            None => Event { reason: done, message: format!("successfully {what}"), warning: false },
            Some(error) => Event::warning(failed, format!("could not {what}: {error}")),
        })
    }

    /// True when the write serves the number of pods: its failure counts as a failure of scaling.
    pub fn scales(&self) -> bool {
        match self {
            Self::CreatePod { .. } | Self::CreateClaim { .. } | Self::OwnClaim { .. } => true,
            Self::DeletePod { why, .. } => *why != Why::Recreate,
            _ => false,
        }
    }
}

/// The event about a pod whose update in place failed.
fn not_updated(pod: &VersionedRef, patch: &PodPatch) -> Event {
    let task = patch.annotations.get(workload_key::TASK).and_then(Option::as_deref);
    let task = task.and_then(|text| serde_json::from_str::<PodTask>(text).ok());
    let why = task.map(|task| task.note).unwrap_or_default();
    let message = format!(
        "pod {} was not updated in place: {why}; it is retried when the template changes, or when retry is set",
        pod.name
    );
    Event::warning("FailedUpdatePodInPlace", message)
}
