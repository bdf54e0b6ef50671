//! What a rollout does with one pod, or did last. The record is an annotation of the pod, written together with the
//! request.
//!
//! ```text
//!  (none) ─▶ Ordered ─▶ Done      the agent reports Succeeded
//!               │ └───▶ Failed    it reports another end, does not answer, or the request is gone
//!               └─▶ Recalled ─▶ Dropped, or Done or Failed when it was too late
//! ```

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::status::{Phase, Status, Step};
use crate::workload::task::{SILENCE, later};

/// What a rollout does with one pod, or did last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// The uid of the rollout, which is the id of its request.
    pub rollout: String,
    /// Name of the rollout.
    pub name: String,
    /// The stage reached.
    pub stage: Stage,
    /// When the request was written.
    pub at: Timestamp,
    /// Seconds that the request may take.
    pub seconds: u32,
    /// The names of the `PodDisruptionBudget`s that the pod was claimed at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// Why the pod failed: one word for programs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How the task ended: one line for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The stage of a rollout's task on one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// The request is written.
    Ordered,
    /// The request is withdrawn; the agent has not reported the outcome.
    Recalled,
    /// The agent reported success.
    Done,
    /// The pod failed and is not retried.
    Failed,
    /// The request was withdrawn with nothing touched.
    Dropped,
}

/// The state of the task, derived from the record, the request and the agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// The rollout has never requested anything of this pod.
    New,
    /// The agent has the request.
    Busy {
        /// True from the first effect on a container: one may have been stopped.
        touched: bool,
    },
    /// The task has ended, and the record does not say so yet.
    Ended(End),
    /// The task has ended.
    Over(Stage),
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// `Done`, `Failed` or `Dropped`.
    pub stage: Stage,
    /// One word for programs.
    pub reason: String,
    /// One line for people.
    pub note: String,
}

impl End {
    fn new(stage: Stage, reason: &str, note: impl Into<String>) -> Self {
        Self { stage, reason: reason.to_owned(), note: note.into() }
    }
}

impl PodRecord {
    /// The same record at another stage.
    #[must_use]
    pub fn at_stage(&self, stage: Stage) -> Self {
        Self { stage, ..self.clone() }
    }

    /// The same record at its end.
    #[must_use]
    pub fn ended(&self, end: &End) -> Self {
        Self { stage: end.stage, reason: end.reason.clone(), note: end.note.clone(), ..self.clone() }
    }

    /// True while the agent may have the request.
    pub fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Ordered | Stage::Recalled)
    }

    /// Until when an agent that accepted the request must have reported the outcome.
    pub fn lost_at(&self) -> Timestamp {
        later(later(self.at, SignedDuration::from_secs(self.seconds.into())), SILENCE)
    }

    /// Until when an agent must have given a first answer.
    pub fn silent_at(&self) -> Timestamp {
        later(self.at, SILENCE)
    }
}

/// The state of the rollout `uid` on a pod, from its `record`, the id of the request on the pod and the agent's
/// answer.
pub fn task_state(
    uid: &str,
    record: Option<&PodRecord>,
    request: Option<&str>,
    answer: Option<&Status>,
    now: Timestamp,
) -> TaskState {
    let record = record.filter(|record| record.rollout == uid);
    let stage = record.map(|record| record.stage);
    if let Some(stage @ (Stage::Done | Stage::Dropped)) = stage {
        return TaskState::Over(stage);
    }
    let answer = answer.filter(|answer| answer.id == uid);
    match (answer, stage) {
        (Some(answer), Some(Stage::Failed)) if answer.phase == Phase::Succeeded => {
            // The agent was unreachable until its deadline and reports success now.
            TaskState::Ended(End::new(Stage::Done, "", ""))
        }
        (_, Some(Stage::Failed)) => TaskState::Over(Stage::Failed),
        (Some(answer), _) if answer.phase.is_terminal() => TaskState::Ended(end(answer, stage)),
        (Some(_), _) if record.is_some_and(|record| record.lost_at() <= now) => {
            TaskState::Ended(End::new(Stage::Failed, "AgentLost", LOST))
        }
        (Some(answer), _) => TaskState::Busy { touched: touched(answer) },
        (None, Some(Stage::Recalled)) => {
            TaskState::Ended(End::new(Stage::Dropped, "Withdrawn", "taken back before an agent took it up"))
        }
        (None, Some(_)) if request.is_none() => TaskState::Ended(End::new(
            Stage::Failed,
            "RequestRemoved",
            "somebody took the annotation inplace.dev/request away",
        )),
        (None, Some(_)) if request != Some(uid) => TaskState::Ended(End::new(
            Stage::Failed,
            "RequestReplaced",
            "somebody wrote another request in its place: what became of this one is not known",
        )),
        (None, Some(_)) if record.is_some_and(|record| record.silent_at() <= now) => {
            TaskState::Ended(End::new(Stage::Failed, NO_AGENT, NOBODY))
        }
        (None, Some(_)) => TaskState::Busy { touched: false },
        // The record was removed by another client, but the request was not.
        (None, None) if request == Some(uid) => TaskState::Busy { touched: false },
        (None, None) => TaskState::New,
    }
}

/// The reason when no agent answered.
pub(super) const NO_AGENT: &str = "NoAgent";
const NOBODY: &str = "no agent answered: see that the DaemonSet runs on the pod's node";
const LOST: &str =
    "its agent began and has not said how it ended: see that the DaemonSet runs on the pod's node";

/// True when containers may have been stopped, or will be even if the request is withdrawn now.
fn touched(answer: &Status) -> bool {
    answer.phase == Phase::Running && answer.step.is_some_and(|step| step >= Step::Swap)
}

fn end(answer: &Status, stage: Option<Stage>) -> End {
    let phase = answer.phase.to_string();
    let note = if answer.message.is_empty() { answer.reason.clone() } else { answer.message.clone() };
    match answer.phase {
        Phase::Succeeded => End::new(Stage::Done, "", ""),
        Phase::Cancelled if stage == Some(Stage::Recalled) => End::new(Stage::Dropped, "Withdrawn", note),
        _ => End::new(Stage::Failed, &phase, note),
    }
}
