//! A turn: what the controller is doing with one pod, or did last. It is written on the pod, so that whoever controls next
//! goes on where the last one stopped, and what was chosen can be taken back.
//!
//! ```text
//!            ┌────────────── Dropped ◀────────────┐ taken back before the pod was touched
//!  (none) ─▶ Chosen ──hook passed──▶ Ordered ──▶ Done        the agent says Succeeded
//!               │                      │ └─────▶ Failed      the agent says Failed, RolledBack or Refused
//!               └▶ the pod is deleted  │ └─────▶ Unanswered  nobody took it up
//!                                      └▶ Recalled ─▶ Dropped, or Done when it was too late
//! ```

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::status::{Phase, Status, Step};

/// How long an agent may take to answer a request at all.
pub const SILENCE: SignedDuration = SignedDuration::from_secs(120);
/// How soon a pod is tried again whose request nobody took up, or somebody took away.
pub const AGAIN: SignedDuration = SignedDuration::from_secs(300);

/// What the controller is doing with one pod, or did last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodTask {
    /// What for.
    pub purpose: Purpose,
    /// The revision that the pod is to get; empty when it is to be deleted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// Counts the turns of this pod. A hook's approval and a request's id hold it: neither is ever used for another turn.
    pub number: u32,
    /// When it was given.
    pub at: Timestamp,
    /// How far it is.
    pub stage: Stage,
    /// Seconds that its request may take; 0 before there is one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub seconds: u32,
    /// One line for people: how it ended.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// What a turn is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Purpose {
    /// Delete it: it is one too many, or named by the user.
    ScaleIn,
    /// Delete it so that another one is made at the new revision.
    Recreate,
    /// Update it in place.
    InPlace,
    /// Update it in place at once.
    HotPatch,
}

/// How far a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// Chosen; its hook may be running. The pod is not touched.
    Chosen,
    /// The request is written.
    Ordered,
    /// The request was taken back; the agent has not said what became of it.
    Recalled,
    /// The pod is at the target.
    Done,
    /// It did not get there, and is not tried again by itself.
    Failed,
    /// The request was taken back because nobody took it up. Tried again later.
    Unanswered,
    /// Taken back with nothing touched.
    Dropped,
    /// It did not get there, and somebody wants it to be tried again.
    Again,
}

/// Where a turn stands when the pod is looked at too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Nothing is going on.
    Over,
    /// Waiting for its hook, its budget or its deletion. Nothing is touched.
    Asking,
    /// With the agent. `touched` once a container may have been stopped.
    Busy {
        /// True from the first effect on a container on.
        touched: bool,
    },
    /// It has ended and the turn does not say so yet.
    Ended(Stage, String),
}

impl PodTask {
    /// The id of its request: the hash of the target's name and the number.
    pub fn id(&self) -> String {
        let hash = self.target.rsplit('-').next().unwrap_or_default();
        format!("{hash}-{}", self.number)
    }

    /// What an approval must name to belong to this turn.
    pub fn key(&self) -> String {
        format!("{:?}/{}/{}", self.purpose, self.target, self.number)
    }

    /// The same turn, further on.
    #[must_use]
    pub fn at_stage(&self, stage: Stage, note: impl Into<String>) -> Self {
        Self { stage, note: note.into(), ..self.clone() }
    }

    /// True when it deletes the pod.
    pub fn deletes(&self) -> bool {
        matches!(self.purpose, Purpose::ScaleIn | Purpose::Recreate)
    }

    /// Where it stands, by the id of the request on the pod and the agent's answer.
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

    /// When an agent that took its request up must have said how it ended.
    pub fn lost_at(&self) -> Timestamp {
        later(later(self.at, SignedDuration::from_secs(i64::from(self.seconds))), SILENCE)
    }

    fn end(&self, answer: &Status) -> TaskState {
        let said = || format!("{}: {}", answer.phase, answer.message);
        match (answer.phase, self.stage) {
            (Phase::Succeeded, _) => TaskState::Ended(Stage::Done, String::new()),
            // Untouched, and known to be.
            (Phase::Cancelled, Stage::Recalled) => TaskState::Ended(Stage::Dropped, said()),
            (Phase::Cancelled, Stage::Ordered) => TaskState::Ended(Stage::Unanswered, said()),
            (Phase::Cancelled, _) | (_, Stage::Failed | Stage::Again) => TaskState::Over,
            _ => TaskState::Ended(Stage::Failed, said()),
        }
    }
}

/// What is said when no agent answers.
const NOBODY: &str = "no agent answered: see that the DaemonSet runs on the pod's node";
/// What is said when one began and is not heard of any more.
const LOST: &str =
    "its agent began and has not said how it ended: see that the DaemonSet runs on the pod's node";

/// True when containers may have been stopped, or will be whatever is taken back now.
fn touched(answer: &Status) -> bool {
    answer.phase == Phase::Running && answer.step.is_some_and(|step| step >= Step::Swap)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// `time` plus `span`, at the end of time at most.
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
