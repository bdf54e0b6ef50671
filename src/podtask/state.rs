//! The state of a task: what a controller does with one pod, derived from what it recorded on the pod, the request on
//! the pod and the agent's answer. The one state machine of workloads and rollouts. Reads and writes nothing.
//!
//! ```text
//!            ┌────────────── Dropped ◀────────────┐ withdrawn before the pod was touched
//!  (none) ─▶ Chosen ──hook passed──▶ Ordered ──▶ Done        the agent reports Succeeded
//!               │  │                   ▲ │ └─────▶ Failed      the agent reports Failed, RolledBack or Refused, or
//!               │  │                   │ │                     does not report an end in time
//!               │  │                   │ │ └─────▶ Unanswered  no agent accepted the request, or another client took
//!               │  │                   │ │                     the request away
//!               │  │                   │ └▶ Recalled ─▶ Dropped, or Done or Failed when it was too late
//!               │  └──────▶ Resizing ──┴─▶ Done        if nothing but cpu and memory changes
//!               │                │ └─────▶ Failed      the API server or the kubelet refuses them
//!               │                └───────▶ Dropped     the pod is not to have them any more
//!               └▶ the pod is deleted
//! ```
//!
//! An agent may answer late: after the request was withdrawn, or after the controller stopped waiting. Its answer
//! counts at any stage except Done, so that a pod on which an agent works is never taken for an idle one.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::status::{Phase, Status, Step};
use crate::podtask::time::later;

/// How long an agent may take to give a first answer to a request.
pub const ANSWER_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);

/// The reason when no agent answered.
pub const NO_AGENT: &str = "NoAgent";

/// The stage of a task, as recorded on the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stage {
    /// The pod is chosen; its hook may be running. The pod is not touched.
    Chosen,
    /// The kubelet is asked to resize the pod. The request, if containers change otherwise as well, follows.
    Resizing,
    /// The request is written.
    Ordered,
    /// The request is withdrawn; the agent has not reported the outcome.
    Recalled,
    /// The agent reported success.
    Done,
    /// The pod did not reach the target; it is not retried automatically.
    Failed,
    /// No agent accepted the request. A workload tries the pod again later.
    Unanswered,
    /// The task was withdrawn with nothing touched.
    Dropped,
    /// The pod did not reach the target, and the user asked for a retry.
    Again,
}

impl Stage {
    /// True while an agent may have the request, or a kubelet may resize the pod.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Resizing | Self::Ordered | Self::Recalled)
    }

    /// True when a task at this stage needs its request no more: it is withdrawn, so that no agent accepts it later. No agent
    /// accepts an `answered` request again: its status is terminal.
    pub fn withdraws(self, answered: bool) -> bool {
        match self {
            Self::Ordered | Self::Done => false,
            Self::Failed => !answered,
            Self::Chosen
            | Self::Resizing
            | Self::Recalled
            | Self::Unanswered
            | Self::Dropped
            | Self::Again => true,
        }
    }
}

/// The state of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Nothing is in progress, and the record is complete.
    Over,
    /// The task waits for its hook, its budget or the deletion. Nothing is touched.
    Waiting,
    /// The agent has the request, or the kubelet resizes the pod.
    Busy {
        /// True from the first effect on a container: one may have been stopped.
        touched: bool,
    },
    /// The task has ended, and the record does not say so yet.
    Ended(End),
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// `Done`, `Failed`, `Unanswered` or `Dropped`.
    pub stage: Stage,
    /// One word for programs; empty after a success.
    pub reason: String,
    /// One line for people; empty after a success.
    pub note: String,
}

impl End {
    /// A success.
    pub fn done() -> Self {
        Self::new(Stage::Done, "", "")
    }

    pub(crate) fn new(stage: Stage, reason: &str, note: impl Into<String>) -> Self {
        Self { stage, reason: reason.to_owned(), note: note.into() }
    }

    /// The end after a terminal answer to a request that was at `stage`.
    fn after(answer: &Status, stage: Stage) -> Self {
        // The phase does not say what failed; the agent's reason does.
        let words = [answer.reason.as_str(), answer.message.as_str()];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let note = words.join(": ");
        match (answer.phase, stage) {
            (Phase::Succeeded, _) => Self::done(),
            // The agent touched nothing.
            (Phase::Cancelled, Stage::Recalled) => Self::new(Stage::Dropped, "Withdrawn", note),
            (Phase::Cancelled, _) => Self::new(Stage::Unanswered, &answer.phase.to_string(), note),
            (phase, _) => Self::new(Stage::Failed, &phase.to_string(), note),
        }
    }

    /// Reason and note in one line for people.
    pub fn line(&self) -> String {
        if self.reason.is_empty() { self.note.clone() } else { format!("{}: {}", self.reason, self.note) }
    }
}

/// What is recorded of a request that a controller has written on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// The id of the request.
    pub id: &'a str,
    /// The stage of the task.
    pub stage: Stage,
    /// When the request was written.
    pub at: Timestamp,
    /// Seconds that the request may take.
    pub seconds: u32,
}

impl Sent<'_> {
    /// Until when an agent that accepted the request must have reported the outcome.
    pub fn lost_at(self) -> Timestamp {
        later(later(self.at, SignedDuration::from_secs(self.seconds.into())), ANSWER_TIMEOUT)
    }

    /// The state of the task, given the id of the `request` on the pod and the agent's last `answer` on it.
    pub fn state(self, request: Option<&str>, answer: Option<&Status>, now: Timestamp) -> TaskState {
        match self.stage {
            Stage::Chosen => return TaskState::Waiting,
            Stage::Resizing => return TaskState::Busy { touched: true },
            Stage::Done => return TaskState::Over,
            _ => {}
        }
        match answer.filter(|answer| answer.id == self.id) {
            Some(answer) if answer.phase.is_terminal() => self.answered(answer),
            Some(answer) if now < self.lost_at() => TaskState::Busy { touched: touched(answer) },
            Some(_) if self.stage.is_live() => TaskState::Ended(End::new(Stage::Failed, "AgentLost", LOST)),
            Some(_) => TaskState::Over,
            None => self.unanswered(request, answer, now),
        }
    }

    /// The end of a request whose status was replaced by that of a group restart, if `other` says so.
    fn replaced(self, other: Option<&Status>) -> Option<TaskState> {
        let other = other?;
        let phase = other.ended_phase(self.id)?;
        let (reason, message) = (String::new(), BEFORE_GROUP.to_owned());
        Some(self.answered(&Status { phase, reason, message, ..other.clone() }))
    }

    /// Until when an agent must have given a first answer, given its status for `other` request: the request waits while a
    /// group restart is in progress on the pod.
    pub fn silent_after(self, other: Option<&Status>) -> Timestamp {
        let group = other.filter(|status| status.group.is_some());
        if group.is_some_and(|status| !status.phase.is_terminal()) {
            return self.lost_at();
        }
        let since = group.and_then(|status| status.finished_at).map_or(self.at, |end| end.max(self.at));
        // The clock of a node may be wrong.
        later(since, ANSWER_TIMEOUT).min(self.lost_at())
    }

    fn answered(self, answer: &Status) -> TaskState {
        let over = match self.stage {
            Stage::Ordered | Stage::Recalled => false,
            // The end is on record already, unless the agent succeeded after all.
            Stage::Failed | Stage::Again => answer.phase != Phase::Succeeded,
            _ => answer.phase == Phase::Cancelled,
        };
        if over { TaskState::Over } else { TaskState::Ended(End::after(answer, self.stage)) }
    }

    fn unanswered(self, request: Option<&str>, other: Option<&Status>, now: Timestamp) -> TaskState {
        if let Some(state) = self.replaced(other) {
            return state;
        }
        let ended = |stage, reason, note| TaskState::Ended(End::new(stage, reason, note));
        match (self.stage, request) {
            (Stage::Recalled, _) => ended(Stage::Dropped, "Withdrawn", WITHDRAWN),
            (Stage::Ordered, None) => ended(Stage::Unanswered, "RequestRemoved", REMOVED),
            (Stage::Ordered, Some(id)) if id != self.id => {
                ended(Stage::Unanswered, "RequestReplaced", REPLACED)
            }
            (Stage::Ordered, _) if self.silent_after(other) <= now => {
                ended(Stage::Unanswered, NO_AGENT, NOBODY)
            }
            (Stage::Ordered, _) => TaskState::Busy { touched: false },
            _ => TaskState::Over,
        }
    }
}

const WITHDRAWN: &str = "the request was withdrawn before an agent accepted it";
const REMOVED: &str = "another client removed the annotation inplace.dev/request";
const REPLACED: &str =
    "another client replaced the annotation inplace.dev/request; the outcome of this request is unknown";
const NOBODY: &str = "no agent answered: check that the DaemonSet runs on the pod's node";
const BEFORE_GROUP: &str =
    "the status was replaced by that of a group restart, which has no details of this request";
const LOST: &str = "the agent began and reported no outcome: check that the DaemonSet runs on the pod's node";

/// True when containers may have been stopped, or will be even if the request is withdrawn now.
fn touched(answer: &Status) -> bool {
    answer.phase == Phase::Running && answer.step.is_some_and(|step| step >= Step::Swap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::group::GroupProgress;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn sent(stage: Stage) -> Sent<'static> {
        Sent { id: "5d7-3", stage, at: at(1000), seconds: 600 }
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
            group: None,
            containers: Vec::new(),
        }
    }

    /// Stage and reason of the end; the test fails if the task has not ended.
    fn end(state: TaskState) -> (Stage, String) {
        let TaskState::Ended(end) = state else { panic!("{state:?}") };
        (end.stage, end.reason)
    }

    #[test]
    fn an_answer_to_another_request_is_no_answer() {
        let other = Status { id: "5d7-2".into(), ..answer(Phase::Failed, None) };
        let state = sent(Stage::Ordered).state(Some("5d7-3"), Some(&other), at(1001));
        assert_eq!(state, TaskState::Busy { touched: false });
    }

    #[test]
    fn a_request_waits_for_a_group_restart_and_its_end_is_known_although_that_replaced_the_status() {
        let group = |phase, finished: Option<i64>, ended: (&str, Option<Phase>)| {
            let (ended_request, ended_phase) = (ended.0.to_owned(), ended.1);
            let group =
                GroupProgress { epoch: 1, prepared_at: None, stopped_at: None, ended_request, ended_phase };
            let finished_at = finished.map(at);
            Status { id: "g".into(), finished_at, group: Some(group), ..answer(phase, None) }
        };
        let state = |other: &Status, now| sent(Stage::Ordered).state(Some("5d7-3"), Some(other), at(now));
        let waits = group(Phase::Running, None, ("", None));
        assert_eq!(state(&waits, 1300), TaskState::Busy { touched: false });
        assert_eq!(end(state(&waits, 1720)), (Stage::Unanswered, NO_AGENT.into()));
        let over = group(Phase::Succeeded, Some(1300), ("", None));
        assert_eq!(state(&over, 1419), TaskState::Busy { touched: false });
        assert_eq!(end(state(&over, 1420)), (Stage::Unanswered, NO_AGENT.into()));
        let ahead = group(Phase::Succeeded, Some(9000), ("", None));
        assert_eq!(end(state(&ahead, 1720)).1, NO_AGENT);
        // An end long before the request delays nothing.
        assert_eq!(end(state(&group(Phase::Succeeded, Some(10), ("", None)), 1120)).1, NO_AGENT);
        let done = group(Phase::Running, None, ("5d7-3", Some(Phase::Succeeded)));
        assert_eq!(end(state(&done, 1001)).0, Stage::Done);
        let failed = group(Phase::Succeeded, Some(1300), ("5d7-3", Some(Phase::RolledBack)));
        assert_eq!(end(state(&failed, 1301)), (Stage::Failed, "RolledBack".into()));
    }

    #[test]
    fn a_request_without_an_answer_ends_after_two_minutes() {
        let state = |now| sent(Stage::Ordered).state(Some("5d7-3"), None, at(now));
        assert_eq!(state(1119), TaskState::Busy { touched: false });
        assert_eq!(end(state(1120)), (Stage::Unanswered, NO_AGENT.into()));
    }

    #[test]
    fn a_late_answer_counts_at_any_stage() {
        for stage in [Stage::Recalled, Stage::Unanswered, Stage::Dropped, Stage::Ordered, Stage::Failed] {
            let state = |answer| sent(stage).state(None, Some(&answer), at(1500));
            assert_eq!(state(answer(Phase::Succeeded, None)), TaskState::Ended(End::done()), "{stage:?}");
            let busy = state(answer(Phase::Running, Some(Step::Swap)));
            assert_eq!(busy, TaskState::Busy { touched: true }, "{stage:?}");
            let failed = state(answer(Phase::Failed, Some(Step::Swap)));
            if stage == Stage::Failed {
                assert_eq!(failed, TaskState::Over);
            } else {
                assert_eq!(end(failed).0, Stage::Failed, "{stage:?}");
            }
        }
        let done = sent(Stage::Done).state(None, Some(&answer(Phase::Running, Some(Step::Swap))), at(1500));
        assert_eq!(done, TaskState::Over);
    }

    #[test]
    fn an_agent_that_began_and_is_gone_is_not_waited_for_beyond_its_deadline() {
        let swap = answer(Phase::Running, Some(Step::Swap));
        let state = |stage, now| sent(stage).state(Some("5d7-3"), Some(&swap), at(now));
        assert_eq!(state(Stage::Ordered, 1719), TaskState::Busy { touched: true });
        assert_eq!(end(state(Stage::Ordered, 1720)), (Stage::Failed, "AgentLost".into()));
        assert_eq!(state(Stage::Failed, 1720), TaskState::Over);
        let late = sent(Stage::Failed).state(None, Some(&answer(Phase::Succeeded, None)), at(9000));
        assert_eq!(late, TaskState::Ended(End::done()), "the agent reports again and is believed");
    }

    #[test]
    fn a_request_that_another_client_took_away_is_unanswered() {
        let state = |request| sent(Stage::Ordered).state(request, None, at(1001));
        assert_eq!(end(state(Some("mine"))), (Stage::Unanswered, "RequestReplaced".into()));
        assert_eq!(end(state(None)), (Stage::Unanswered, "RequestRemoved".into()));
        let cancelled = answer(Phase::Cancelled, None);
        let state = |stage| sent(stage).state(None, Some(&cancelled), at(1001));
        assert_eq!(end(state(Stage::Ordered)), (Stage::Unanswered, "Cancelled".into()));
        assert_eq!(end(state(Stage::Recalled)), (Stage::Dropped, "Withdrawn".into()));
        assert_eq!(state(Stage::Unanswered), TaskState::Over);
    }

    #[test]
    fn a_request_stays_on_the_pod_only_while_it_is_in_progress_or_answered() {
        for answered in [false, true] {
            assert!(!Stage::Ordered.withdraws(answered) && !Stage::Done.withdraws(answered));
            assert!(Stage::Dropped.withdraws(answered) && Stage::Unanswered.withdraws(answered));
            assert_eq!(Stage::Failed.withdraws(answered), !answered);
        }
    }
}
