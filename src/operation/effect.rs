//! The closed list of effects that an operation may request, and the results that they can return.
//!
//! Every effect that changes something names the IDs that it works on, so that the journal holds them before the
//! runtime gets the call. This file executes nothing.

use serde::{Deserialize, Serialize};

use crate::api::annotation;
use crate::failure::Class;
use crate::operation::snapshot::Container;

/// One effect. The caller executes it once per decision and returns [`EffectOutput`] or an [`EffectError`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Pull `image` to the node after a check of the free disk space. Idempotent.
    Pull {
        /// The container that needs the image.
        container: String,
        /// The reference to pull.
        image: String,
        /// The image that runs now. Its size is the estimate for the disk space needed.
        like: String,
        /// Query the registry even when the node has an image under that reference: the tag may have moved.
        #[serde(default)]
        anew: bool,
        /// The image that the reference resolved to earlier. While that image is on the node, no registry is queried.
        #[serde(default)]
        again: Option<ImageChoice>,
    },
    /// Create a container that reserves the name of `attempt`. Where possible it is a holder: it is started, and its
    /// process does nothing. Otherwise it is created from the configuration and image of the coming replacement and
    /// never started. A test creation before that shows that the replacement can be created.
    Fence {
        /// The container whose name is reserved.
        container: String,
        /// The container whose configuration is cloned.
        source: String,
        /// The attempt number whose name is reserved.
        attempt: u32,
        /// The image of the replacement; `None` for the image of the source.
        image: Option<ImageChoice>,
        /// True when it must also be verified that the replacement can be created: nothing is stopped yet.
        #[serde(default, rename = "rehearse")]
        test_create: bool,
        /// True when only a running holder may reserve the name, because the kubelet creates the replacement itself.
        /// The kubelet's garbage collection keeps the newest of the containers of one name that do not run, and that
        /// would be the clone.
        #[serde(default)]
        by_process: bool,
    },
    /// Run the preStop handler of container `id` for at most `budget_seconds`. Its failure does not stop the
    /// operation, as with the kubelet.
    PreStop {
        /// The container's name.
        container: String,
        /// The container's ID.
        id: String,
        /// The maximum time that the handler may take.
        budget_seconds: u64,
    },
    /// Stop container `id`: send its stop signal, wait `timeout_seconds`, send SIGKILL. Repeating
    /// it sends no second stop signal.
    Stop {
        /// The container's name.
        container: String,
        /// The container's ID.
        id: String,
        /// Seconds between the stop signal and SIGKILL.
        timeout_seconds: u64,
    },
    /// Create the replacement under the name of `attempt`.
    Create {
        /// The container's name.
        container: String,
        /// The container whose configuration is cloned.
        source: String,
        /// The attempt number in the new container's name.
        attempt: u32,
        /// The new image; `None` for the image of the source.
        image: Option<ImageChoice>,
        /// The container that has run since the source and whose limits apply now; `None` for those of the source. A
        /// kubelet resizes the newest container, and records by its name that it did.
        #[serde(default)]
        limits: Option<String>,
    },
    /// Start the created container `id`.
    Start {
        /// The container's name.
        container: String,
        /// The container's ID.
        id: String,
    },
    /// Create and start a standby: a clone with the coming image, under a name that the pod's spec does not have.
    Standby {
        /// The container that the standby stands in for.
        container: String,
        /// The container whose configuration is cloned.
        source: String,
        /// The attempt number of the replacement, which distinguishes standbys of consecutive operations.
        attempt: u32,
        /// The new image; `None` for the image of the source.
        image: Option<ImageChoice>,
    },
    /// Stop the standby `id`: run its preStop handler, then stop it, both within its grace period.
    StopStandby {
        /// The container that the standby stands in for.
        container: String,
        /// The standby's ID.
        id: String,
        /// The grace period in seconds.
        grace_seconds: u64,
        /// True when the preStop handler must run first.
        pre_stop: bool,
        /// True when this operation created it; false for one that an earlier operation has left.
        is_own: bool,
    },
    /// Change the image in the pod's spec, provided that it is `from`. Idempotent.
    Respec {
        /// The container's name.
        container: String,
        /// The image in the spec before the change.
        from: String,
        /// The image in the spec after the change.
        to: String,
    },
    /// Open or close the pod's readiness gate. Idempotent.
    Gate {
        /// The state that the gate is set to.
        gate: GateAction,
    },
    /// Remove container `id`: a fence, or a container that does not run or whose state is unknown.
    Remove {
        /// The container's name.
        container: String,
        /// The container's ID.
        id: String,
        /// The kind of container that is removed.
        what: Leftover,
    },
}

/// The state that the readiness gate is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateAction {
    /// No traffic while an operation is running.
    Drain,
    /// Traffic is allowed again.
    Open,
    /// No traffic until a person has checked the pod.
    Failed,
}

impl GateAction {
    /// The status, reason and message of the gate's condition.
    pub fn condition(self) -> (bool, &'static str, &'static str) {
        match self {
            Self::Drain => (false, annotation::GATE_DRAIN, "an in-place operation is in progress"),
            Self::Open => (true, annotation::GATE_READY, ""),
            Self::Failed => (false, annotation::GATE_FAILED, "see the annotation inplace.dev/status"),
        }
    }
}

/// The kinds of containers that may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leftover {
    /// A fence that this program created.
    Fence,
    /// A replacement that this program created and that never ran.
    NeverStarted,
    /// A standby that does not run.
    Standby,
    /// An exited instance older than the one that was replaced last, in a pod without a kubelet that removes it.
    Old,
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Fence => "a fence",
            Self::NeverStarted => "a replacement that never ran",
            Self::Standby => "a standby",
            Self::Old => "an old container",
        })
    }
}

/// An image: its reference and its ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChoice {
    /// The reference as the pod writes it.
    pub reference: String,
    /// The runtime's ID of the image.
    pub id: String,
    /// The kubelet's hash of the spec that names this image, when the clone must carry another hash than its source.
    #[serde(default)]
    pub spec_hash: Option<String>,
}

/// The kind of an effect, for journals, metrics, logs and back-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verb {
    /// See [`Effect::Pull`].
    Pull,
    /// See [`Effect::Fence`].
    Fence,
    /// See [`Effect::PreStop`].
    PreStop,
    /// See [`Effect::Stop`].
    Stop,
    /// See [`Effect::Create`].
    Create,
    /// See [`Effect::Start`].
    Start,
    /// See [`Effect::Standby`].
    Standby,
    /// See [`Effect::StopStandby`].
    StopStandby,
    /// See [`Effect::Respec`].
    Respec,
    /// See [`Effect::Gate`].
    Gate,
    /// See [`Effect::Remove`].
    Remove,
}

impl Effect {
    /// The kind of this effect.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Pull { .. } => Verb::Pull,
            Self::Fence { .. } => Verb::Fence,
            Self::PreStop { .. } => Verb::PreStop,
            Self::Stop { .. } => Verb::Stop,
            Self::Create { .. } => Verb::Create,
            Self::Start { .. } => Verb::Start,
            Self::Standby { .. } => Verb::Standby,
            Self::StopStandby { .. } => Verb::StopStandby,
            Self::Respec { .. } => Verb::Respec,
            Self::Gate { .. } => Verb::Gate,
            Self::Remove { .. } => Verb::Remove,
        }
    }

    /// The container that the effect is for; empty for an effect on the pod.
    pub fn container(&self) -> &str {
        match self {
            Self::Pull { container, .. }
            | Self::Fence { container, .. }
            | Self::PreStop { container, .. }
            | Self::Stop { container, .. }
            | Self::Create { container, .. }
            | Self::Start { container, .. }
            | Self::Standby { container, .. }
            | Self::StopStandby { container, .. }
            | Self::Respec { container, .. }
            | Self::Remove { container, .. } => container,
            Self::Gate { .. } => "",
        }
    }
}

/// The result of an effect, as far as the next snapshot does not show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EffectOutput {
    /// No result: the next snapshot shows everything.
    Nothing,
    /// The image is on the node with this ID.
    Image(ImageChoice),
    /// A remark for the report, such as a failed preStop handler.
    Remark(String),
}

/// The failure of an effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectError {
    /// The class, which decides about a retry.
    pub class: Class,
    /// A message for people: what happened and what to do.
    pub message: String,
}

/// The effect that removes `container`.
pub(super) fn remove(container: &Container, what: Leftover) -> Effect {
    Effect::Remove { container: container.name.clone(), id: container.id.clone(), what }
}
