//! What a decision asks for: writes on the API server, in this order, and what they are called when they are told.
//!
//! Each may fail or be done twice without harm: names are fixed, and writes on pods hold only for the version that was read.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::request::HookArg;
use crate::workload::hooks::HookType;
use crate::workload::pods::Pod;
use crate::workload::revision::{Revision, Write};

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make a `ControllerRevision`, or give it its number.
    WriteRevision(Revision, Write),
    /// Delete a `ControllerRevision` by its name.
    DeleteRevision(String),
    /// Make a volume claim.
    CreateClaim {
        /// Its name.
        name: String,
        /// The whole object.
        body: Value,
    },
    /// Make a pod. That it is there already is fine if it is the workload's own; else its name goes into `Seen::taken`.
    CreatePod {
        /// Its name.
        name: String,
        /// The whole object.
        body: Value,
    },
    /// Delete a pod.
    DeletePod {
        /// Which.
        pod: PodRef,
        /// What for.
        why: Why,
    },
    /// Change labels and annotations of a pod.
    PatchPod {
        /// Which.
        pod: PodRef,
        /// What.
        patch: PodPatch,
        /// What for.
        why: Why,
    },
    /// Make a `HookRun`.
    CreateRun(NewHookRun),
    /// Delete a `HookRun` by its name.
    DeleteRun(String),
    /// Set `spec.updateStrategy.paused`.
    SetPaused(bool),
    /// The user's wish to try again was taken up: set the `retry` of all three hooks to false where it is true, and take the
    /// annotation `inplace.dev/retry` off.
    ClearRetry,
    /// Tell something that is no write.
    Tell(Event),
}

/// A pod, or another object that is written once, and the version of it that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRef {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its resource version.
    pub version: String,
}

/// Labels and annotations to set, or to take off where there is no value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodPatch {
    /// Labels.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations.
    pub annotations: BTreeMap<String, Option<String>>,
}

/// What a write on a pod is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It is chosen: its turn begins.
    Chosen,
    /// The agent is to update it.
    InPlace,
    /// The agent is to update it at once.
    HotPatch,
    /// Only labels or annotations change.
    Metadata,
    /// It is at its new revision.
    Updated,
    /// It did not get there.
    NotUpdated,
    /// Its request is taken back.
    Recalled,
    /// Its turn is taken back.
    Dropped,
    /// It stood in during an update and takes the place of a pod that is gone.
    Kept,
    /// It is one too many.
    ScaleIn,
    /// Another one is made at the new revision.
    Recreate,
    /// It has ended by itself and stands in the way of its successor.
    EndedPod,
    /// Its node is lost; delete it without waiting.
    LostNode,
}

/// A `HookRun` that is to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewHookRun {
    /// Its name.
    pub name: String,
    /// What it stands before.
    pub kind: HookType,
    /// The `HookTemplate`.
    pub template: String,
    /// What the workload's hook says, then what is known of the pod; later ones win.
    pub args: Vec<HookArg>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// The node whose agent is to run it. None: the controller.
    pub node: Option<String>,
}

/// One line of history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// One word for programs.
    pub reason: &'static str,
    /// One line for people.
    pub message: String,
    /// True when somebody should look.
    pub warning: bool,
}

impl PodRef {
    /// Of a pod that was looked at.
    pub fn of(pod: &Pod) -> Self {
        Self { name: pod.name.clone(), uid: pod.uid.clone(), version: pod.version.clone() }
    }
}

impl Action {
    /// What is told of it once it was done, or was not with `error`. Empty for what nobody wants to read of.
    pub fn event(&self, error: Option<&str>) -> Option<Event> {
        let (done, failed, what) = match self {
            Self::CreatePod { name, .. } => {
                ("SuccessfulCreate", "FailedCreate", format!("create pod {name}"))
            }
            Self::CreateClaim { name, .. } => {
                ("SuccessfulCreate", "FailedCreate", format!("create claim {name}"))
            }
            Self::DeletePod { pod, why } => {
                let what = format!("delete pod {}", pod.name);
                match why {
                    Why::Recreate => ("SuccessfulUpdatePodReCreate", "FailedUpdatePodReCreate", what),
                    Why::EndedPod => ("RecreatingFailedPod", "FailedDeletePod", what),
                    _ => ("SuccessfulDelete", "FailedDelete", what),
                }
            }
            Self::PatchPod { pod, why, .. } => {
                let (done, failed, how) = match why {
                    Why::Updated => ("SuccessfulUpdatePodInPlace", "FailedUpdatePodInPlace", "in-place"),
                    Why::Metadata => {
                        ("SuccessfulUpdatePodInPlace", "FailedUpdatePodInPlace", "without a restart")
                    }
                    Why::HotPatch => ("SuccessfulUpdatePodHotPatch", "FailedUpdatePodHotPatch", "at once"),
                    Why::NotUpdated => return Some(Event::not_updated(pod)),
                    _ => {
                        return error
                            .map(|error| Event::warning("FailedUpdate", format!("{}: {error}", pod.name)));
                    }
                };
                (done, failed, format!("update pod {} {how}", pod.name))
            }
            Self::CreateRun(run) => match error {
                Some(error) => ("", "FailedCreateHookRun", format!("create hook {}: {error}", run.name)),
                None => return None,
            },
            Self::Tell(event) => return Some(event.clone()),
            Self::WriteRevision(..)
            | Self::DeleteRevision(_)
            | Self::DeleteRun(_)
            | Self::SetPaused(_)
            | Self::ClearRetry => return None,
        };
        Some(match error {
            None => Event { reason: done, message: format!("successfully {what}"), warning: false },
            Some(error) => Event::warning(failed, format!("could not {what}: {error}")),
        })
    }

    /// True when it makes or deletes pods for the number of them: its failure is one of scaling.
    pub fn scales(&self) -> bool {
        match self {
            Self::CreatePod { .. } | Self::CreateClaim { .. } => true,
            Self::DeletePod { why, .. } => *why != Why::Recreate,
            _ => false,
        }
    }
}

impl Event {
    pub(crate) fn warning(reason: &'static str, message: String) -> Self {
        Self { reason, message, warning: true }
    }

    fn not_updated(pod: &PodRef) -> Self {
        let message = format!(
            "pod {} was not updated in place: its annotation inplace.dev/status says why; it is tried again with \
             the next template, or when retry is set",
            pod.name
        );
        Self::warning("FailedUpdatePodInPlace", message)
    }
}
