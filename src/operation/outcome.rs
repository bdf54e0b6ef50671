//! The possible ends of an operation and its failures, each with a reason for programs and a message for people.
//!
//! This file only names and describes outcomes. It does not decide which one applies.

use serde::{Deserialize, Serialize};

use crate::api::status::Phase;
use crate::operation::hook::Moment;

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Everything that was requested was observed.
    Succeeded,
    /// It failed; `touched` says whether a running container was affected.
    Failed {
        /// The first failure.
        failure: Failure,
        /// The failure of the rollback, if there was one.
        then: Option<Failure>,
        /// False when every container of the pod is unchanged.
        touched: bool,
    },
    /// The previous image runs again.
    RolledBack(Failure),
    /// The request cannot be executed as written; nothing was touched.
    Refused(Failure),
    /// The request was withdrawn before anything was touched.
    Cancelled(Withdrawal),
}

/// Why an operation was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Withdrawal {
    /// The annotation was deleted.
    Deleted,
    /// A request with another ID replaced it.
    Replaced,
    /// The user interrupted the command.
    Interrupted,
    /// A group restart goes on without the pod, because the pod was not prepared in time.
    Unprepared,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// The image could not be pulled, is for another platform, has another digest, or runs as root where the spec refuses that.
    #[error("image {image} for {container} is not usable: {message}")]
    Pull {
        /// The container that needs the image.
        container: String,
        /// The image reference.
        image: String,
        /// The message of the runtime or of the check.
        message: String,
    },
    /// The pod names credentials for the image, but this program may not read them.
    #[error(
        "image {image} for {container} cannot be pulled with the node's own credentials: {message}. The pod names \
         imagePullSecrets, which this agent does not read: configure credentials for that registry in the runtime, \
         pull the image onto the node first, or run the agent with --allow-pull-secrets"
    )]
    PullSecrets {
        /// The container that needs the image.
        container: String,
        /// The image reference.
        image: String,
        /// The message of the runtime.
        message: String,
    },
    /// A hook failed or could not be evaluated.
    #[error("hook {template}{} did not pass: {why}", named(run.as_deref()))]
    Hook {
        /// The pre-hook or the post-hook.
        moment: Moment,
        /// The name of its template.
        template: String,
        /// The name of the HookRun with all details, where there is an API server.
        run: Option<String>,
        /// The metric and its result.
        why: String,
    },
    /// The pod's spec could not be changed.
    #[error("the image of {container} in the pod's spec could not be changed: {message}")]
    Respec {
        /// The container whose image was to be changed.
        container: String,
        /// The message of the API server.
        message: String,
    },
    /// The same after another request has replaced this one. There is no rollback: it would stop containers that
    /// the request that follows may stop once more.
    #[error(
        "the image of {container} in the pod's spec could not be changed: {message}. The request was replaced after \
         it had begun to change containers, and the admission policy lets the agent write only images that the \
         current request names: {container} keeps its image, nothing is rolled back, and the request that follows \
         decides"
    )]
    Superseded {
        /// The container whose image was to be changed.
        container: String,
        /// The message of the API server.
        message: String,
    },
    /// The pod could not be taken out of traffic.
    #[error("the readiness gate could not be closed: {message}")]
    Gate {
        /// The message of the API server.
        message: String,
    },
    /// The pod still receives traffic.
    #[error("the pod was not drained in time: {message}")]
    NotDrained {
        /// What sends it traffic, or why that is unknown.
        message: String,
    },
    /// The new container runs, but the kubelet does not report it as Ready.
    #[error("the new {container} did not become Ready within {seconds} s")]
    NotReady {
        /// The name of the container.
        container: String,
        /// The time it had to become Ready.
        seconds: u32,
    },
    /// The runtime refused the test creation: it would have refused the replacement as well.
    #[error("the runtime would not create a new {container}: {message}")]
    #[serde(rename = "Rehearsal")]
    TestCreation {
        /// The name of the container.
        container: String,
        /// The message of the runtime.
        message: String,
    },
    /// The standby did not come up beside the running container.
    #[error("the standby of {container} cannot serve: {message}")]
    NotStartedBeside {
        /// The name of the container.
        container: String,
        /// What happened, and what to change.
        message: String,
    },
    /// The pod's sandbox is gone, stopped, or another one.
    #[error("the pod's sandbox is {what}: the pod is being deleted or recreated")]
    Sandbox {
        /// `gone`, `not ready`, `replaced`, or `about to be stopped` with the reason.
        what: String,
    },
    /// Another program replaced, created or removed the container that was to be replaced, or its replacement.
    #[error("another client changed {container}: {what}")]
    Changed {
        /// The name of the container.
        container: String,
        /// What the snapshot shows instead.
        what: String,
    },
    /// Another program or user set another image during the operation; the later change has precedence.
    #[error(
        "another client set the image of {container} to {image} during the operation, and its kubelet runs \
         that image now"
    )]
    Overruled {
        /// The name of the container.
        container: String,
        /// The image in the pod's spec.
        image: String,
    },
    /// The container did not stop.
    #[error("{container} did not stop: {message}")]
    Stop {
        /// The name of the container.
        container: String,
        /// The message of the runtime.
        message: String,
    },
    /// The runtime refused to create the replacement.
    #[error("the new {container} could not be created: {message}")]
    Create {
        /// The name of the container.
        container: String,
        /// The message of the runtime.
        message: String,
    },
    /// The replacement did not start.
    #[error("the new {container} did not start: {message}")]
    Start {
        /// The name of the container.
        container: String,
        /// The message of the runtime.
        message: String,
    },
    /// The replacement exited before it had run for the required time.
    #[error("the new {container} exited with code {code} after {uptime_ms} ms")]
    Exited {
        /// The name of the container.
        container: String,
        /// Its exit code.
        code: i32,
        /// How long it ran, in milliseconds.
        #[serde(rename = "lived_ms")]
        uptime_ms: i64,
    },
    /// More than one instance of a container runs. Nothing more is done.
    #[error("{count} containers named {container} run at the same time; nothing more was done to them")]
    Duplicate {
        /// The name of the container.
        container: String,
        /// The number of running instances.
        count: usize,
    },
    /// The deadline passed.
    #[error("the deadline passed ({during})")]
    Deadline {
        /// What the operation was doing.
        during: String,
    },
    /// This program itself panicked each time it executed the operation.
    #[error(
        "inplace panicked {panics} times during this operation (see the agent's log), so it is not retried; the \
         containers were left in their current state"
    )]
    SetAside {
        /// How often it panicked.
        panics: usize,
    },
    /// The journal could not be written, so no further effect is allowed.
    #[error("{message}")]
    Journal {
        /// The message of the file system.
        message: String,
    },
}

impl Failure {
    /// One word for programs: the status `reason` and the metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pull { .. } => "PullFailed",
            Self::PullSecrets { .. } => "PullSecretsNeeded",
            Self::Hook { moment: Moment::Before, .. } => "PreHookFailed",
            Self::Hook { moment: Moment::Handover, .. } | Self::NotStartedBeside { .. } => "NotStartedBeside",
            Self::Hook { moment: Moment::After, .. } => "PostHookFailed",
            Self::Respec { .. } | Self::Superseded { .. } => "RespecFailed",
            Self::Gate { .. } => "GateFailed",
            Self::NotDrained { .. } => "DrainNotConfirmed",
            Self::NotReady { .. } => "NotReady",
            Self::TestCreation { .. } => "CannotCreate",
            Self::Sandbox { .. } => "SandboxGone",
            Self::Changed { .. } => "ContainerChanged",
            Self::Overruled { .. } => "Overruled",
            Self::Stop { .. } => "StopFailed",
            Self::Create { .. } => "CreateFailed",
            Self::Start { .. } => "StartFailed",
            Self::Exited { .. } => "Exited",
            Self::Duplicate { .. } => "Duplicate",
            Self::Deadline { .. } => "DeadlineExceeded",
            Self::Journal { .. } => "JournalFailed",
            Self::SetAside { .. } => "SetAside",
        }
    }
}

fn named(run: Option<&str>) -> String {
    run.map(|run| format!(" (HookRun {run})")).unwrap_or_default()
}

impl Withdrawal {
    /// One word for programs: the status `reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Deleted => "RequestDeleted",
            Self::Replaced => "RequestReplaced",
            Self::Interrupted => "Interrupted",
            Self::Unprepared => "NotPrepared",
        }
    }
}

impl Outcome {
    /// The phase that the status reports.
    pub fn phase(&self) -> Phase {
        match self {
            Self::Succeeded => Phase::Succeeded,
            Self::Failed { .. } => Phase::Failed,
            Self::RolledBack(_) => Phase::RolledBack,
            Self::Refused(_) => Phase::Refused,
            Self::Cancelled(_) => Phase::Cancelled,
        }
    }

    /// One word for programs: the status `reason`; empty for success.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Succeeded => "",
            Self::Failed { failure, .. } | Self::RolledBack(failure) | Self::Refused(failure) => {
                failure.reason()
            }
            Self::Cancelled(withdrawal) => withdrawal.reason(),
        }
    }
}
