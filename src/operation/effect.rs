//! The closed list of what an operation may do to the world, and what doing it can teach.
//!
//! Every effect that changes something names the ids it works on, so that the journal holds them before the runtime
//! hears of them.

use serde::{Deserialize, Serialize};

use crate::api::annotation;

/// One thing to do. The shell does it once per decision and reports a [`Learned`] or a [`EffectError`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// Get `image` onto the node, after checking that the disk has room. Doing it twice is harmless.
    Pull {
        /// The container that wants it.
        container: String,
        /// The reference to pull.
        image: String,
        /// The image that runs now: its size is the measure for the room that is needed.
        like: String,
        /// Ask the registry also when the node has an image of that name: the name may stand for another one now.
        #[serde(default)]
        anew: bool,
        /// What it was found to be before: while that is on the node, no registry is asked.
        #[serde(default)]
        again: Option<ImageChoice>,
    },
    /// Create a container that holds the name of `attempt`, and start it where it can run as a holder: a process that does nothing.
    /// Where it can not, it is made from the configuration and image of the replacement to come and never started. The rehearsal
    /// before that proves that the replacement can be created.
    Fence {
        /// The container it guards.
        container: String,
        /// The container whose configuration is cloned.
        source: String,
        /// The attempt whose name is held.
        attempt: u32,
        /// The image of the replacement; `None` for the one of the source.
        image: Option<ImageChoice>,
        /// Whether it is to be found out as well that the replacement can be created: nothing is stopped yet.
        #[serde(default)]
        rehearse: bool,
        /// Whether only a process may hold the name, because the kubelet makes the replacement itself: of the containers
        /// of one name that do not run, a kubelet's collection keeps the newest, which would be a clone made before.
        #[serde(default)]
        by_process: bool,
    },
    /// Run the preStop handler of container `id` for at most `budget_seconds`. Its failure stops nothing, as with
    /// the kubelet.
    PreStop {
        /// The container's name.
        container: String,
        /// Its id.
        id: String,
        /// How long it may take.
        budget_seconds: u64,
    },
    /// Stop container `id`: its stop signal, `timeout_seconds` to obey, SIGKILL. Repeating it sends no second signal.
    Stop {
        /// The container's name.
        container: String,
        /// Its id.
        id: String,
        /// Seconds between the signal and SIGKILL.
        timeout_seconds: u64,
    },
    /// Create the replacement under the name of `attempt`.
    Create {
        /// The container's name.
        container: String,
        /// The container whose configuration is cloned.
        source: String,
        /// The attempt in the new name.
        attempt: u32,
        /// Its image; `None` for the one of the source.
        image: Option<ImageChoice>,
    },
    /// Start the created container `id`.
    Start {
        /// The container's name.
        container: String,
        /// Its id.
        id: String,
    },
    /// Change the image in the pod's spec, provided it is `from`. Doing it twice is harmless.
    Respec {
        /// The container's name.
        container: String,
        /// What the spec says before.
        from: String,
        /// What it says then.
        to: String,
    },
    /// Open or close the pod's readiness gate. Doing it twice is harmless.
    Gate {
        /// Who is to see what.
        gate: GateAction,
    },
    /// Remove container `id`: a fence, or one that does not run or of which nothing can be told.
    Remove {
        /// The container's name.
        container: String,
        /// Its id.
        id: String,
        /// What it is.
        what: Leftover,
    },
}

/// What the readiness gate is turned to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GateAction {
    /// No traffic, while an operation is under way.
    Drain,
    /// Traffic again.
    Open,
    /// No traffic, until somebody has looked at it.
    Failed,
}

impl GateAction {
    /// Whether the pod may take traffic then, and reason and message of the condition.
    pub fn condition(self) -> (bool, &'static str, &'static str) {
        match self {
            Self::Drain => (false, annotation::GATE_DRAIN, "an operation in place is under way"),
            Self::Open => (true, annotation::GATE_READY, ""),
            Self::Failed => (false, annotation::GATE_FAILED, "see the annotation inplace.dev/status"),
        }
    }
}

/// What may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leftover {
    /// A fence of ours.
    Fence,
    /// A replacement of ours that was created and never ran.
    NeverStarted,
    /// An exited life, older than the one before the present one, of a pod that no kubelet cleans.
    Old,
}

impl std::fmt::Display for Leftover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Fence => "a fence",
            Self::NeverStarted => "a replacement that never ran",
            Self::Old => "an old container",
        })
    }
}

/// An image by its two names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageChoice {
    /// As the pod names it.
    pub reference: String,
    /// The runtime's id of it.
    pub id: String,
    /// The kubelet's hash of the spec that names it, where the clone must carry another one than its source.
    #[serde(default)]
    pub spec_hash: Option<String>,
}

/// The verb of an effect: for journals, metrics, logs and back-off.
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
    /// See [`Effect::Respec`].
    Respec,
    /// See [`Effect::Gate`].
    Gate,
    /// See [`Effect::Remove`].
    Remove,
}

impl Effect {
    /// Its verb.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Pull { .. } => Verb::Pull,
            Self::Fence { .. } => Verb::Fence,
            Self::PreStop { .. } => Verb::PreStop,
            Self::Stop { .. } => Verb::Stop,
            Self::Create { .. } => Verb::Create,
            Self::Start { .. } => Verb::Start,
            Self::Respec { .. } => Verb::Respec,
            Self::Gate { .. } => Verb::Gate,
            Self::Remove { .. } => Verb::Remove,
        }
    }

    /// The container it is about; empty for what is about the pod.
    pub fn container(&self) -> &str {
        match self {
            Self::Pull { container, .. }
            | Self::Fence { container, .. }
            | Self::PreStop { container, .. }
            | Self::Stop { container, .. }
            | Self::Create { container, .. }
            | Self::Start { container, .. }
            | Self::Respec { container, .. }
            | Self::Remove { container, .. } => container,
            Self::Gate { .. } => "",
        }
    }
}

/// What an effect taught beyond what the next snapshot shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Learned {
    /// Nothing: the next snapshot tells.
    Nothing,
    /// The image is on the node under this id.
    Image(ImageChoice),
    /// Something for the report, such as a preStop handler that failed.
    Remark(String),
}

/// How an effect failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectError {
    /// What it means for going on.
    pub class: Class,
    /// For people: what happened and what to do.
    pub message: String,
}

/// What a failure means for going on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// The runtime could not be reached or did not answer in time: whether it happened is unknown, look again.
    Away,
    /// Nobody was there to be asked: it has not happened, and may be asked for again.
    Unreached,
    /// The name is taken: whoever owns it shows up in a snapshot.
    NameTaken,
    /// The thing is not there (any more).
    Gone,
    /// Only with credentials that are not at hand.
    Credentials,
    /// The runtime said no; it may say yes later.
    Refused,
    /// Not allowed. An API server that has just begun says so for a moment, until it has read who may do what.
    Denied,
    /// No, and no repetition will change it.
    Final,
}

impl Class {
    /// Whether nobody has said no: another try may go well.
    pub fn is_away(self) -> bool {
        matches!(self, Self::Away | Self::Unreached)
    }
}
