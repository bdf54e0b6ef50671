//! What a rollout does with one pod, or did last. The record is the annotation `inplace.dev/rollout` of the pod, written
//! together with the request. Reads and writes nothing.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::status::Status;
use crate::podtask::state::{End, Sent, Stage, TaskState};

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

    /// The request of the record.
    pub fn sent(&self) -> Sent<'_> {
        Sent { id: &self.rollout, stage: self.stage, at: self.at, seconds: self.seconds }
    }

    /// The state of the task, given the id of the request on the pod and the agent's answer.
    pub fn state(&self, request: Option<&str>, answer: Option<&Status>, now: Timestamp) -> TaskState {
        final_state(self.sent(), request, answer, now)
    }
}

/// The state of the rollout `uid` on a pod, from its `record`, the id of the request on the pod and the agent's
/// answer. `None`: the rollout has never requested anything of this pod.
pub fn task_state(
    uid: &str,
    record: Option<&PodRecord>,
    request: Option<&str>,
    answer: Option<&Status>,
    now: Timestamp,
) -> Option<TaskState> {
    if let Some(record) = record.filter(|record| record.rollout == uid) {
        return Some(record.state(request, answer, now));
    }
    // Another client removed the record, but not the request or the answer. It is not known since when.
    let begun = request == Some(uid) || answer.is_some_and(|answer| answer.id == uid);
    let sent = Sent { id: uid, stage: Stage::Ordered, at: Timestamp::MAX, seconds: 0 };
    begun.then(|| final_state(sent, request, answer, now))
}

/// The state of a request that is never repeated: no answer is a failure.
fn final_state(sent: Sent<'_>, request: Option<&str>, answer: Option<&Status>, now: Timestamp) -> TaskState {
    match sent.state(request, answer, now) {
        TaskState::Ended(end) if end.stage == Stage::Unanswered => {
            TaskState::Ended(End { stage: Stage::Failed, ..end })
        }
        state => state,
    }
}
