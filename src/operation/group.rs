//! Decides when an operation that is part of a group restart waits for the other pods: before the first stop until all
//! pods are prepared, and with a barrier before the first start until all containers have stopped.
//!
//! | the group restart | nothing is touched | a container is touched |
//! |---|---|---|
//! | Prepare, or its phase is unknown | prepare, then wait | wait at the barrier, at most `barrierTimeoutSeconds` |
//! | Stop | stop | wait at the barrier, at most `barrierTimeoutSeconds` |
//! | Start | stop | start |
//! | has ended, or its rollout was deleted | end | start |
//!
//! So no pod stays stopped, whatever becomes of the controller and the API server.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::group::{GroupPhase, GroupProgress, GroupTask};
use crate::operation::decision::{Next, Waiting};
use crate::operation::note::Note;
use crate::operation::outcome::{Outcome, Withdrawal};
use crate::operation::snapshot::{GroupSignal, Snapshot};
use crate::operation::state::{BACK_SPARE_SECONDS, Operation, later};

/// The part of an operation in a group restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembership {
    /// What the group restart asks for.
    pub task: GroupTask,
    /// When all containers were prepared.
    #[serde(default)]
    pub prepared_at: Option<Timestamp>,
    /// When the last container had stopped, while it waited for the other pods.
    #[serde(default)]
    pub stopped_at: Option<Timestamp>,
}

impl GroupMembership {
    /// Nothing is prepared yet.
    pub fn new(task: GroupTask) -> Self {
        Self { task, prepared_at: None, stopped_at: None }
    }

    /// How far the pod is, for the status.
    pub(super) fn progress(&self) -> GroupProgress {
        GroupProgress {
            epoch: self.task.epoch,
            prepared_at: self.prepared_at,
            stopped_at: self.stopped_at,
            ended_request: self.task.ended_request.clone(),
        }
    }

    /// Shifts the recorded times by the amount by which the clock was set.
    pub(super) fn shift(&mut self, by: SignedDuration) {
        for at in [&mut self.prepared_at, &mut self.stopped_at].into_iter().flatten() {
            *at = later(*at, by);
        }
    }
}

/// True when a container of the operation may be stopped.
pub(super) fn may_stop(operation: &Operation, snapshot: &Snapshot) -> bool {
    let asked = || matches!(snapshot.group, GroupSignal::Phase(GroupPhase::Stop | GroupPhase::Start));
    operation.group.is_none() || operation.touched() || asked()
}

/// True when a new container of the operation may be started.
pub(super) fn may_start(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> bool {
    let Some(group) = operation.group.as_ref().filter(|group| group.task.barrier) else { return true };
    let open = matches!(snapshot.group, GroupSignal::Phase(GroupPhase::Start) | GroupSignal::Over);
    open || group.stopped_at.is_some_and(|at| barrier_ends(operation, group, at) <= now)
}

/// The next step of an operation whose containers all wait for the other pods.
pub(super) fn wait(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Next {
    let Some(group) = &operation.group else {
        return Next::Wait(Waiting { until: operation.forward_until(), on: String::new() });
    };
    if operation.touched() {
        let Some(at) = group.stopped_at else { return Next::Note(Note::AtBarrier(now)) };
        let on = "stopped: waiting until the other pods of the group have stopped".to_owned();
        return Next::Wait(Waiting { until: barrier_ends(operation, group, at), on });
    }
    if snapshot.group == GroupSignal::Over {
        return Next::Note(Note::End(Outcome::Cancelled(Withdrawal::Deleted)));
    }
    if group.prepared_at.is_none() {
        return Next::Note(Note::Prepared(now));
    }
    let on = "prepared: waiting until the other pods of the group are prepared".to_owned();
    Next::Wait(Waiting { until: operation.touch_until(), on })
}

/// When a pod that has stopped at `at` is started without the others. Early enough for the start to be part of the
/// operation.
fn barrier_ends(operation: &Operation, group: &GroupMembership, at: Timestamp) -> Timestamp {
    let timeout = SignedDuration::from_secs(group.task.barrier_timeout_seconds.into());
    let spare = SignedDuration::from_secs(BACK_SPARE_SECONDS.cast_signed());
    later(at, timeout).min(later(operation.forward_until(), -spare))
}

#[cfg(test)]
mod tests;
