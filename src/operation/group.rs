//! Decides when an operation that is part of a group restart waits for the other pods: before the first stop until all
//! pods are prepared, and with a barrier before the first start until all containers have stopped.
//!
//! | the group restart | nothing is touched | a container is touched |
//! |---|---|---|
//! | Prepare, or its phase is unknown | prepare, then wait | wait at the barrier, at most `barrierTimeoutSeconds` |
//! | Stop | stop | wait at the barrier, at most `barrierTimeoutSeconds` |
//! | Start | stop | start |
//! | Stop or Start, and the pod was not prepared in time: it says so, or the controller does | end | start |
//! | has ended, or its rollout was deleted | end | start |
//!
//! A pod that waits at the barrier has fences for the names of its new containers too, so that its kubelet starts none of
//! them before. They are created when the barrier opens.
//!
//! So no pod stays stopped, whatever becomes of the controller and the API server. If a container of the pod cannot be
//! replaced, the others of the pod do not wait any longer.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::api::group::{GroupPhase, GroupProgress, GroupTask};
use crate::api::status::Engine;
use crate::operation::decision::{Next, Waiting};
use crate::operation::note::Note;
use crate::operation::outcome::{Outcome, Withdrawal};
use crate::operation::preflight::AdmittedTarget;
use crate::operation::snapshot::{GroupSignal, Snapshot};
use crate::operation::state::{BACK_SPARE_SECONDS, Operation, later};

/// How much longer than the grace periods of its containers a pod may take to stop, in seconds: the time of the calls.
const STOP_SPARE_SECONDS: u64 = 5;

/// The part of an operation in a group restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembership {
    /// What the group restart asks for.
    pub task: GroupTask,
    /// When all containers were prepared.
    #[serde(default)]
    pub prepared_at: Option<Timestamp>,
    /// When the operation first touched a container: a container of the pod may have ended long before.
    #[serde(default)]
    pub touched_at: Option<Timestamp>,
    /// When the last container had stopped, while it waited for the other pods.
    #[serde(default)]
    pub stopped_at: Option<Timestamp>,
    /// True once a container of the pod could not be replaced: its other containers are started without the other pods.
    #[serde(default)]
    pub has_failed: bool,
}

impl GroupMembership {
    /// Nothing is prepared yet.
    pub fn new(task: GroupTask) -> Self {
        Self { task, prepared_at: None, touched_at: None, stopped_at: None, has_failed: false }
    }

    /// How far the pod is, for the status.
    pub(super) fn progress(&self) -> GroupProgress {
        let (prepared_at, stopped_at) = (self.prepared_at, self.stopped_at);
        GroupProgress { prepared_at, stopped_at, ..GroupProgress::of(&self.task) }
    }

    /// Shifts the recorded times by the amount by which the clock was set.
    pub(super) fn shift(&mut self, by: SignedDuration) {
        let times = [&mut self.prepared_at, &mut self.touched_at, &mut self.stopped_at];
        for at in times.into_iter().flatten() {
            *at = later(*at, by);
        }
    }
}

/// Why one of these containers cannot be part of a group restart: its name, the reason and what to change.
pub(super) fn unfit(task: &GroupTask, targets: &[AdmittedTarget]) -> Option<(String, String)> {
    if !task.barrier {
        return None;
    }
    if let Some(target) = targets.iter().find(|target| target.choice.engine == Engine::Stop) {
        let why = format!(
            "its kubelet starts it at once ({}): set together.barrier: false, or pod.allowStaleEnv: true if its environment is \
             the only cause, or leave the container out",
            target.choice.why
        );
        return Some((target.container.name.clone(), why));
    }
    // The containers of a pod are stopped one after the other.
    let graces = targets.iter().map(|target| target.container.grace.as_secs()).sum::<u64>();
    let last =
        targets.last().filter(|_| graces + STOP_SPARE_SECONDS > task.barrier_timeout_seconds.into())?;
    let why = format!(
        "the containers may take {graces} s to stop, which is not shorter by {STOP_SPARE_SECONDS} s than \
         together.barrierTimeoutSeconds, {}: raise it",
        task.barrier_timeout_seconds
    );
    Some((last.container.name.clone(), why))
}

/// True when a container of the operation may be stopped.
pub(super) fn may_stop(operation: &Operation, snapshot: &Snapshot) -> bool {
    let asked = || matches!(snapshot.group, GroupSignal::Phase(GroupPhase::Stop | GroupPhase::Start));
    operation.group.is_none() || operation.touched() || asked()
}

/// True when a new container of the operation may be started.
pub(super) fn may_start(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> bool {
    let Some(group) = operation.group.as_ref().filter(|group| group.task.barrier) else { return true };
    let open = matches!(
        snapshot.group,
        GroupSignal::Phase(GroupPhase::Start) | GroupSignal::Over | GroupSignal::LeftOut
    );
    // While a container of the pod cannot be stopped, the time counts for those that have stopped.
    let first_stopped = operation.targets.iter().filter_map(|target| target.stopped_at).min();
    // One that had ended before waits for the others all the same.
    let counts_from = |at: Timestamp| group.touched_at.map_or(at, |touched| at.max(touched));
    let stopped = group.stopped_at.or(first_stopped.map(counts_from));
    open || group.has_failed || stopped.is_some_and(|at| barrier_ends(operation, group, at) <= now)
}

/// The end of an operation of which no container is touched, if the group restart has ended, or goes on without the pod.
pub(super) fn left(operation: &Operation, snapshot: &Snapshot) -> Option<Next> {
    let group = operation.group.as_ref()?;
    let withdrawal = match snapshot.group {
        GroupSignal::Over => Withdrawal::Deleted,
        GroupSignal::LeftOut => Withdrawal::Unprepared,
        GroupSignal::Phase(GroupPhase::Stop | GroupPhase::Start) if group.prepared_at.is_none() => {
            Withdrawal::Unprepared
        }
        _ => return None,
    };
    Some(Next::Note(Note::End(Outcome::Cancelled(withdrawal))))
}

/// The next step of an operation whose containers all wait for the other pods.
pub(super) fn wait(operation: &Operation, now: Timestamp) -> Next {
    let Some(group) = &operation.group else {
        return Next::Wait(Waiting { until: operation.forward_until(), on: String::new() });
    };
    if operation.touched() {
        let Some(at) = group.stopped_at else { return Next::Note(Note::AtBarrier(now)) };
        let on = "stopped: waiting until the other pods of the group have stopped".to_owned();
        return Next::Wait(Waiting { until: barrier_ends(operation, group, at), on });
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
