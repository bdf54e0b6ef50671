//! How an operation can end, each way with its word for programs and its sentence for people.

use serde::{Deserialize, Serialize};

use crate::api::status::Phase;
use crate::operation::hook::Moment;

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Everything asked for was observed.
    Succeeded,
    /// It failed; `touched` says whether a running container was affected.
    Failed {
        /// What went wrong first.
        failure: Failure,
        /// What went wrong on the way back, when there was one.
        then: Option<Failure>,
        /// False: every container of the pod is as it was.
        touched: bool,
    },
    /// The image from before runs again.
    RolledBack(Failure),
    /// It turned out that it cannot be done as written; nothing was touched.
    Refused(Failure),
    /// Withdrawn before anything was touched.
    Cancelled(Withdrawal),
}

/// Why an operation was withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Withdrawal {
    /// The annotation is gone.
    Deleted,
    /// Another id took its place.
    Replaced,
    /// The person at the terminal ended it.
    Interrupted,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Failure {
    /// The image did not arrive, is for another machine, or has another digest.
    #[error("image {image} for {container} is not usable: {message}")]
    Pull {
        /// The container that wanted it.
        container: String,
        /// The reference.
        image: String,
        /// What the runtime or the check said.
        message: String,
    },
    /// The pod has credentials for it, which are not this program's to read.
    #[error(
        "image {image} for {container} cannot be had with the node's own credentials: {message}. The pod names \
         imagePullSecrets, which this agent does not read: give the runtime credentials for that registry, pull the image \
         onto the node beforehand, or run the agent with --allow-pull-secrets"
    )]
    PullSecrets {
        /// The container that wanted it.
        container: String,
        /// The reference.
        image: String,
        /// What the runtime said.
        message: String,
    },
    /// A hook said no, or could not be asked.
    #[error("hook {template}{} did not pass: {why}", named(run.as_deref()))]
    Hook {
        /// Which of the two.
        moment: Moment,
        /// The name of its template.
        template: String,
        /// The name of the object that tells all of it, where there is an API server.
        run: Option<String>,
        /// The metric, and what it said.
        why: String,
    },
    /// The pod's spec could not be changed.
    #[error("the image of {container} in the pod's spec could not be changed: {message}")]
    Respec {
        /// The container.
        container: String,
        /// What the API server said.
        message: String,
    },
    /// The pod could not be taken out of traffic.
    #[error("the readiness gate could not be closed: {message}")]
    Gate {
        /// What the API server said.
        message: String,
    },
    /// Something still sends the pod traffic.
    #[error("the pod was not drained before there was no time left to go on: {message}")]
    NotDrained {
        /// What sends it traffic, or why that is not known.
        message: String,
    },
    /// It runs, and its kubelet does not call it Ready.
    #[error("the new {container} did not become Ready within {seconds} s")]
    NotReady {
        /// The container.
        container: String,
        /// How long it had.
        seconds: u32,
    },
    /// The rehearsal was refused: the replacement could not have been created either.
    #[error("the runtime would not create a new {container}: {message}")]
    Rehearsal {
        /// The container.
        container: String,
        /// What the runtime said.
        message: String,
    },
    /// The pod's sandbox is gone, stopped, or another one.
    #[error("the pod's sandbox is {what}: the pod is being deleted or made again")]
    Sandbox {
        /// `gone`, `not ready` or `another one`.
        what: String,
    },
    /// Somebody else replaced, created or removed what was to be replaced or had replaced it.
    #[error("somebody else changed {container}: {what}")]
    Changed {
        /// The container.
        container: String,
        /// What is seen now.
        what: String,
    },
    /// Somebody set another image while this one was under way; theirs is the later one.
    #[error("somebody else set the image of {container} to {image} meanwhile, which its kubelet runs now")]
    Overruled {
        /// The container.
        container: String,
        /// What the pod's spec says.
        image: String,
    },
    /// It did not stop.
    #[error("{container} did not stop: {message}")]
    Stop {
        /// The container.
        container: String,
        /// What the runtime said.
        message: String,
    },
    /// The runtime refused to create the replacement.
    #[error("the new {container} could not be created: {message}")]
    Create {
        /// The container.
        container: String,
        /// What the runtime said.
        message: String,
    },
    /// The replacement did not start.
    #[error("the new {container} did not start: {message}")]
    Start {
        /// The container.
        container: String,
        /// What the runtime said.
        message: String,
    },
    /// The replacement ended before it counted.
    #[error("the new {container} exited with code {code} after {lived_ms} ms")]
    Exited {
        /// The container.
        container: String,
        /// Its exit code.
        code: i32,
        /// How long it had run.
        lived_ms: i64,
    },
    /// Two of one name run; nothing more is done.
    #[error("{count} containers named {container} run at once; nothing more was done to them")]
    Duplicate {
        /// The container.
        container: String,
        /// How many.
        count: usize,
    },
    /// The time was up.
    #[error("the deadline passed while {during}")]
    Deadline {
        /// What was going on.
        during: String,
    },
    /// The program itself failed in it, each time it was taken up.
    #[error(
        "inplace itself failed {panics} times while it carried this out (see the agent's log), so it is not tried again; \
         the containers were left as they are"
    )]
    SetAside {
        /// How often the process ended.
        panics: usize,
    },
    /// The journal could not be written, so nothing more may be done.
    #[error("{message}")]
    Journal {
        /// What the file system said.
        message: String,
    },
}

impl Failure {
    /// One word for programs: status `reason`, metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Pull { .. } => "PullFailed",
            Self::PullSecrets { .. } => "PullSecretsNeeded",
            Self::Hook { moment: Moment::Before, .. } => "PreHookFailed",
            Self::Hook { moment: Moment::After, .. } => "PostHookFailed",
            Self::Respec { .. } => "RespecFailed",
            Self::Gate { .. } => "GateFailed",
            Self::NotDrained { .. } => "DrainNotConfirmed",
            Self::NotReady { .. } => "NotReady",
            Self::Rehearsal { .. } => "CannotCreate",
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
    /// One word for programs.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Deleted => "RequestDeleted",
            Self::Replaced => "RequestReplaced",
            Self::Interrupted => "Interrupted",
        }
    }
}

impl Outcome {
    /// The phase it is reported as.
    pub fn phase(&self) -> Phase {
        match self {
            Self::Succeeded => Phase::Succeeded,
            Self::Failed { .. } => Phase::Failed,
            Self::RolledBack(_) => Phase::RolledBack,
            Self::Refused(_) => Phase::Refused,
            Self::Cancelled(_) => Phase::Cancelled,
        }
    }

    /// One word for programs; empty for success.
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
