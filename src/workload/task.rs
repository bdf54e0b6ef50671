//! The task of a pod: what the controller does with one pod, or did last. It is stored as an annotation of the pod,
//! so that another replica of the controller continues where the last one stopped, and a choice can be taken back.
//! Nothing is read or written here.
//!
//! ```text
//!            ┌────────────── Dropped ◀────────────┐ taken back before the pod was touched
//!  (none) ─▶ Chosen ──hook passed──▶ Ordered ──▶ Done        the agent reports Succeeded
//!               │                      │ └─────▶ Failed      the agent reports Failed, RolledBack or Refused
//!               └▶ the pod is deleted  │ └─────▶ Unanswered  no agent accepted the request
//!                                      └▶ Recalled ─▶ Dropped, or Done when it was too late
//! ```

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::status::{Phase, Status, Step};

/// How long an agent may take to give a first answer to a request.
pub const SILENCE: SignedDuration = SignedDuration::from_secs(120);
/// How long after its request was written a pod is tried again, if no agent accepted the request or another client
/// removed it.
pub const AGAIN: SignedDuration = SignedDuration::from_secs(300);

/// What the controller does with one pod, or did last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTask {
    /// The purpose.
    pub purpose: Purpose,
    /// The revision that the pod is to get; empty when the pod is to be deleted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Counts the tasks of this pod. The key of a hook's approval and the id of a request contain it: neither is ever
    /// valid for another task.
    pub number: u32,
    /// When the task was created; once the request is written, when that was.
    pub at: Timestamp,
    /// The stage reached.
    pub stage: Stage,
    /// Seconds that the request may take; 0 before there is a request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seconds: u32,
    /// One line for people: how the task ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
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

/// The stage of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// The pod is chosen; its hook may be running. The pod is not touched.
    Chosen,
    /// The request is written.
    Ordered,
    /// The request is withdrawn; the agent has not reported the outcome.
    Recalled,
    /// The pod is at the target.
    Done,
    /// The pod did not reach the target; it is not retried automatically.
    Failed,
    /// The request was withdrawn because no agent accepted it. It is retried later.
    Unanswered,
    /// The task was taken back with nothing touched.
    Dropped,
    /// The pod did not reach the target, and the user asked for a retry.
    Again,
}

/// The state of a task, derived from its stage, the pod's request and the agent's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Nothing is in progress.
    Over,
    /// The task waits for its hook, its budget or the deletion. Nothing is touched.
    Asking,
    /// The agent has the request.
    Busy {
        /// True from the first effect on a container: one may have been stopped.
        touched: bool,
    },
    /// The task has ended, and its annotation does not record it yet.
    Ended(Stage, String),
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
            Stage::Chosen => return TaskState::Asking,
            Stage::Done => return TaskState::Over,
            _ if self.deletes() => return TaskState::Over,
            _ => {}
        }
        let id = self.id();
        let with_agent = matches!(self.stage, Stage::Ordered | Stage::Recalled);
        match answer.filter(|answer| answer.id == id) {
            Some(answer) if answer.phase.is_terminal() => self.end(answer),
            Some(answer) if now < self.lost_at() => TaskState::Busy { touched: touched(answer) },
            Some(_) if with_agent => TaskState::Ended(Stage::Failed, LOST.to_owned()),
            Some(_) => TaskState::Over,
            None if self.stage == Stage::Recalled => {
                TaskState::Ended(Stage::Dropped, "taken back before an agent took it up".to_owned())
            }
            None if self.stage != Stage::Ordered => TaskState::Over,
            None if request != Some(id.as_str()) => {
                TaskState::Ended(Stage::Unanswered, "somebody took the request away".to_owned())
            }
            None if later(self.at, SILENCE) <= now => TaskState::Ended(Stage::Unanswered, NOBODY.to_owned()),
            None => TaskState::Busy { touched: false },
        }
    }

    /// Until when an agent that accepted the request must have reported the outcome.
    pub fn lost_at(&self) -> Timestamp {
        later(later(self.at, SignedDuration::from_secs(i64::from(self.seconds))), SILENCE)
    }

    fn end(&self, answer: &Status) -> TaskState {
        let said = || format!("{}: {}", answer.phase, answer.message);
        match (answer.phase, self.stage) {
            (Phase::Succeeded, _) => TaskState::Ended(Stage::Done, String::new()),
            // Untouched: the agent reports so.
            (Phase::Cancelled, Stage::Recalled) => TaskState::Ended(Stage::Dropped, said()),
            (Phase::Cancelled, Stage::Ordered) => TaskState::Ended(Stage::Unanswered, said()),
            (Phase::Cancelled, _) | (_, Stage::Failed | Stage::Again) => TaskState::Over,
            _ => TaskState::Ended(Stage::Failed, said()),
        }
    }
}

/// The message when no agent answers.
const NOBODY: &str = "no agent answered: see that the DaemonSet runs on the pod's node";
/// The message when an agent began and stopped reporting.
const LOST: &str =
    "its agent began and has not said how it ended: see that the DaemonSet runs on the pod's node";

/// True when containers may have been stopped, or will be even if the request is withdrawn now.
fn touched(answer: &Status) -> bool {
    answer.phase == Phase::Running && answer.step.is_some_and(|step| step >= Step::Swap)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// `time` plus `span`, at most [`Timestamp::MAX`].
pub(crate) fn later(time: Timestamp, span: SignedDuration) -> Timestamp {
    time.checked_add(span).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(stage: Stage) -> PodTask {
        let at = Timestamp::from_second(1000).unwrap();
        PodTask {
            purpose: Purpose::InPlace,
            target: "web-5d7".into(),
            number: 3,
            at,
            stage,
            seconds: 600,
            note: String::new(),
        }
    }

    fn answer(phase: Phase, step: Option<Step>) -> Status {
        Status {
            id: "5d7-3".into(),
            phase,
            step,
            reason: String::new(),
            message: "m".into(),
            started_at: None,
            finished_at: None,
            containers: Vec::new(),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn it_survives_being_written_on_a_pod() {
        let text = serde_json::to_string(&task(Stage::Ordered)).unwrap();
        assert_eq!(serde_json::from_str::<PodTask>(&text).unwrap(), task(Stage::Ordered));
        assert!(text.len() < 200, "{text}");
    }

    #[test]
    fn an_answer_to_another_request_is_no_answer() {
        let other = Status { id: "5d7-2".into(), ..answer(Phase::Failed, None) };
        let task_state = task(Stage::Ordered).task_state(Some("5d7-3"), Some(&other), at(1001));
        assert_eq!(task_state, TaskState::Busy { touched: false });
    }

    #[test]
    fn a_request_that_nobody_takes_up_ends() {
        let task_state = |now| task(Stage::Ordered).task_state(Some("5d7-3"), None, at(now));
        assert_eq!(task_state(1119), TaskState::Busy { touched: false });
        assert!(matches!(task_state(1120), TaskState::Ended(Stage::Unanswered, _)));
    }

    #[test]
    fn what_came_too_late_to_be_taken_back_is_done_all_the_same() {
        for stage in [Stage::Recalled, Stage::Unanswered, Stage::Dropped, Stage::Ordered] {
            let task_state = task(stage).task_state(None, Some(&answer(Phase::Succeeded, None)), at(1500));
            assert_eq!(task_state, TaskState::Ended(Stage::Done, String::new()), "{stage:?}");
            let task_state =
                task(stage).task_state(None, Some(&answer(Phase::Running, Some(Step::Swap))), at(1500));
            assert_eq!(task_state, TaskState::Busy { touched: true }, "{stage:?}");
        }
    }

    #[test]
    fn an_agent_that_began_and_is_gone_is_not_waited_for_beyond_its_deadline() {
        let swap = answer(Phase::Running, Some(Step::Swap));
        let task_state = |stage, now| task(stage).task_state(Some("5d7-3"), Some(&swap), at(now));
        assert_eq!(task_state(Stage::Ordered, 1719), TaskState::Busy { touched: true });
        assert!(matches!(task_state(Stage::Ordered, 1720), TaskState::Ended(Stage::Failed, _)));
        assert_eq!(task_state(Stage::Failed, 1720), TaskState::Over);
        let done = answer(Phase::Succeeded, None);
        let late = task(Stage::Failed).task_state(None, Some(&done), at(9000));
        assert_eq!(late, TaskState::Ended(Stage::Done, String::new()), "and is believed when it is back");
    }

    #[test]
    fn a_request_that_was_taken_away_is_tried_again_later_and_not_at_once() {
        let task_state = task(Stage::Ordered).task_state(Some("mine"), None, at(1001));
        assert!(matches!(task_state, TaskState::Ended(Stage::Unanswered, _)));
        let cancelled = answer(Phase::Cancelled, None);
        let task_state = task(Stage::Ordered).task_state(None, Some(&cancelled), at(1001));
        assert!(matches!(task_state, TaskState::Ended(Stage::Unanswered, _)));
        assert_eq!(task(Stage::Unanswered).task_state(None, Some(&cancelled), at(1001)), TaskState::Over);
    }
}
