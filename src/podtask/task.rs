//! The task of a pod in a workload: what the workload's controller does with the pod, or did last. It is stored as the
//! annotation `inplace.dev/task`, so that another replica of the controller continues where the last one stopped, and
//! a choice can be taken back. Reads and writes nothing.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::status::Status;
use crate::podtask::state::{Sent, Stage, TaskState};

/// How long after its request was written a pod is tried again, if no agent accepted the request or another client
/// removed it.
pub const RETRY_AFTER: SignedDuration = SignedDuration::from_secs(300);

/// What the controller does with one pod, or did last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTask {
    /// The purpose.
    pub purpose: Purpose,
    /// The revision that the pod is to get; empty when the pod is to be deleted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Rises with each task of this pod. The key of a hook's approval and the id of a request contain it: neither is
    /// ever valid for another task.
    pub number: u32,
    /// When the task was created; once a resize or the request is written, when that was.
    pub at: Timestamp,
    /// The stage reached.
    pub stage: Stage,
    /// Seconds that the request may take; 0 before there is a request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seconds: u32,
    /// Set once the pod has the labels and annotations of the target that containers have in their environment. They are
    /// written before the request, so that the kubelet has them when it starts the containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labelled: Option<Labelled>,
    /// The revisions whose labels and annotations containers may still have in their environment: those of tasks that did
    /// not complete, while a container was started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environments: Vec<String>,
    /// True if the controller closes the readiness gate for the request of this task, or closed it for an earlier one, and none
    /// has succeeded: a bk-bcs operator had closed it before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gate_closed: bool,
    /// The names of the `PodDisruptionBudget`s that the pod is claimed at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// One line for people: how the task ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// The moment at which a pod got labels and annotations of the target of its task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Labelled {
    /// When they were written.
    pub at: Timestamp,
    /// The number of container restarts of the pod at that time.
    pub restarts: i32,
}

/// The purpose of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Purpose {
    /// Delete the pod: it is surplus, or the user names it.
    ScaleIn,
    /// Delete the pod, so that another one is created at the new revision.
    Recreate,
    /// Update the pod in place.
    InPlace,
    /// Update the pod in place at once.
    HotPatch,
}

impl PodTask {
    /// The id of its request: the hash in the target's name and the task's number.
    pub fn id(&self) -> String {
        let hash = self.target.rsplit('-').next().unwrap_or_default();
        format!("{hash}-{}", self.number)
    }

    /// What an approval must name to belong to this task.
    pub fn key(&self) -> String {
        format!("{:?}/{}/{}", self.purpose, self.target, self.number)
    }

    /// The same task at another stage.
    #[must_use]
    pub fn at_stage(&self, stage: Stage, note: impl Into<String>) -> Self {
        Self { stage, note: note.into(), ..self.clone() }
    }

    /// True when the task deletes the pod.
    pub fn deletes(&self) -> bool {
        matches!(self.purpose, Purpose::ScaleIn | Purpose::Recreate)
    }

    /// The state, given the id of the request on the pod and the agent's answer.
    pub fn task_state(&self, request: Option<&str>, answer: Option<&Status>, now: Timestamp) -> TaskState {
        match self.stage {
            // It has no request: it waits until the pod may be deleted.
            Stage::Chosen => TaskState::Waiting,
            _ if self.deletes() => TaskState::Over,
            _ => self.sent(&self.id()).state(request, answer, now),
        }
    }

    /// Until when an agent that accepted the request must have reported the outcome.
    pub fn lost_at(&self) -> Timestamp {
        self.sent("").lost_at()
    }

    /// Until when an agent must have given a first answer, given its last `answer` on the pod.
    pub fn silent_at(&self, answer: Option<&Status>) -> Timestamp {
        self.sent("").silent_after(answer)
    }

    fn sent<'a>(&self, id: &'a str) -> Sent<'a> {
        Sent { id, stage: self.stage, at: self.at, seconds: self.seconds }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_being_written_on_a_pod() {
        let task = PodTask {
            purpose: Purpose::InPlace,
            target: "web-5d7".into(),
            number: 3,
            at: Timestamp::from_second(1000).unwrap(),
            stage: Stage::Ordered,
            seconds: 600,
            labelled: None,
            environments: Vec::new(),
            gate_closed: false,
            claims: Vec::new(),
            note: String::new(),
        };
        let text = serde_json::to_string(&task).unwrap();
        assert_eq!(serde_json::from_str::<PodTask>(&text).unwrap(), task);
        assert_eq!(task.id(), "5d7-3");
        assert!(text.len() < 200, "{text}");
    }
}
