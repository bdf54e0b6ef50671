//! What a rollout does with one pod, or did last. The record is the annotation `inplace.dev/rollout` of the pod, written
//! together with the request. Reads and writes nothing.
//!
//! A user who may patch the pod can change the record. All that follows from its images is a request for this pod and
//! for containers that the rollout names, which the same user could write as well.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::in_place_rollout::{back_id, request_id};
use crate::api::status::Status;
use crate::podtask::state::{End, Sent, Stage, TaskState};

/// What a rollout does with one pod, or did last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    /// The uid of the rollout, which is the id of its first request.
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
    /// The images that the containers of a swap named before it, by container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub images: BTreeMap<String, String>,
    /// True for the request that takes the pod back to these images.
    #[serde(default, skip_serializing_if = "is_false")]
    pub back: bool,
    /// How rollouts ended whose record on the pod was replaced by another one, the last one at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<EarlierTask>,
}

/// The end of a task whose record was replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierTask {
    /// The uid of the rollout.
    pub rollout: String,
    /// The stage at which it ended.
    pub stage: Stage,
}

/// The maximum number of earlier tasks on record: rollouts whose targets overlap are few.
const MAX_EARLIER: usize = 8;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A task of a rollout on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutTask {
    /// True when it takes the pod back.
    pub back: bool,
    /// How far it is.
    pub state: TaskState,
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

    /// The same record in place of `before`, whose end it keeps.
    #[must_use]
    pub fn replacing(self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self };
        let end = EarlierTask { rollout: before.rollout.clone(), stage: before.stage };
        let ends = before.earlier.iter().cloned().chain([end]);
        let mut earlier: Vec<_> = ends.filter(|one| one.rollout != self.rollout).collect();
        earlier.drain(..earlier.len().saturating_sub(MAX_EARLIER));
        Self { earlier, ..self }
    }

    /// The stage that the rollout `uid` has reached or at which it ended.
    pub fn stage_of(&self, uid: &str) -> Option<Stage> {
        let earlier = || self.earlier.iter().find(|one| one.rollout == uid).map(|one| one.stage);
        if self.rollout == uid { Some(self.stage) } else { earlier() }
    }

    /// The id of the request.
    pub fn id(&self) -> String {
        request_id(&self.rollout, self.back)
    }

    /// Until when an agent must have given a first answer, given its last `answer` on the pod.
    pub fn silent_at(&self, answer: Option<&Status>) -> Timestamp {
        self.sent("").silent_after(answer)
    }

    /// Until when an agent that accepted the request must have reported the outcome.
    pub fn lost_at(&self) -> Timestamp {
        self.sent("").lost_at()
    }

    fn sent<'a>(&self, id: &'a str) -> Sent<'a> {
        Sent { id, stage: self.stage, at: self.at, seconds: self.seconds }
    }

    /// The state of the task, given the id of the request on the pod and the agent's answer.
    pub fn state(&self, request: Option<&str>, answer: Option<&Status>, now: Timestamp) -> TaskState {
        final_state(self.sent(&self.id()), request, answer, now)
    }
}

/// The task of the rollout `uid` on a pod, from its `record`, the id of the request on the pod and the agent's
/// answer. `None`: the rollout has never requested anything of this pod.
pub fn task_state(
    uid: &str,
    record: Option<&PodRecord>,
    request: Option<&str>,
    answer: Option<&Status>,
    now: Timestamp,
) -> Option<RolloutTask> {
    if let Some(record) = record.filter(|record| record.rollout == uid) {
        return Some(RolloutTask { back: record.back, state: record.state(request, answer, now) });
    }
    // The task of another rollout is in its place, or was: what this one had to do here is over.
    if let Some(other) = record {
        return other.stage_of(uid).map(|_| RolloutTask { back: false, state: TaskState::Over });
    }
    // Another client removed the record, but not the request or the answer. It is not known since when.
    [(back_id(uid), true), (uid.to_owned(), false)].into_iter().find_map(|(id, back)| {
        let begun = request == Some(&id) || answer.is_some_and(|answer| answer.id == id);
        let sent = Sent { id: &id, stage: Stage::Ordered, at: Timestamp::MAX, seconds: 0 };
        begun.then(|| RolloutTask { back, state: final_state(sent, request, answer, now) })
    })
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
