//! Where each pod stands for a rollout.

use jiff::{SignedDuration, Timestamp};

use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;
use crate::rollout::reach::{Reach, ReadyAgents};
use crate::rollout::record::{End, NO_AGENT, Stage, TaskState, task_state};
use crate::workload::pods::PodPhase;
use crate::workload::task::{self, later};

/// A pod and what follows from it now.
#[derive(Clone, Debug)]
pub(super) struct View<'a> {
    pub(super) pod: &'a Pod,
    pub(super) state: State,
    /// Running and Ready.
    pub(super) ready: bool,
    /// For as long as is wanted.
    pub(super) available: bool,
    /// Who can take up what is asked of it.
    pub(super) reach: Reach,
}

/// Where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has yet to be begun.
    Waiting,
    /// It has, and somebody else works on it.
    Taken,
    /// With the agent.
    Busy { touched: bool },
    /// It has ended and the pod does not say so yet.
    Ended(End),
    /// Through, or there was nothing to do.
    Done,
    /// It did not come through.
    Failed,
    /// It was taken back.
    Dropped,
}

impl<'a> View<'a> {
    /// Looks at a pod; `started` is when the rollout took its first look.
    pub(super) fn of(
        pod: &'a Pod,
        rollout: &Rollout,
        agents: Option<&ReadyAgents>,
        started: Timestamp,
        now: Timestamp,
    ) -> Self {
        let reach = Reach::of(pod, agents);
        let base = &pod.base;
        let ready = base.phase == PodPhase::Running && base.ready_since.is_some();
        let min_ready = SignedDuration::from_secs(rollout.spec.pod.min_ready_seconds.into());
        let available = ready && base.ready_since.is_some_and(|since| later(since, min_ready) <= now);
        let state = match task_state(
            &rollout.uid,
            pod.record.as_ref(),
            base.request.as_deref(),
            base.answer.as_ref(),
            now,
        ) {
            TaskState::Busy { touched } => State::Busy { touched },
            TaskState::Ended(end) if end.reason == NO_AGENT && reach.excuses_silence(now) => {
                State::Busy { touched: false }
            }
            TaskState::Ended(end) => State::Ended(end),
            TaskState::Over(Stage::Done) => State::Done,
            TaskState::Over(Stage::Dropped) => State::Dropped,
            TaskState::Over(_) => State::Failed,
            TaskState::New if is_right(pod, rollout, started) => State::Done,
            TaskState::New if is_taken(pod, rollout, now) => State::Taken,
            TaskState::New => State::Waiting,
        };
        Self { pod, state, ready, available, reach }
    }

    /// How it came out, whether it is written down or not.
    pub(super) fn outcome(&self) -> Option<Stage> {
        match &self.state {
            State::Ended(end) => Some(end.stage),
            State::Done => Some(Stage::Done),
            State::Failed => Some(Stage::Failed),
            State::Dropped => Some(Stage::Dropped),
            State::Waiting | State::Taken | State::Busy { .. } => None,
        }
    }

    /// True when it has yet to come through and nobody reaches it.
    pub(super) fn is_unreachable(&self) -> bool {
        !self.reach.is_given() && matches!(self.state, State::Waiting | State::Busy { touched: false })
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self.state, State::Busy { .. })
    }
}

/// True when there is nothing to do: its images are the wanted ones, and what is only restarted is younger than the rollout.
fn is_right(pod: &Pod, rollout: &Rollout, started: Timestamp) -> bool {
    let fresh = rollout.only_swaps() || pod.base.created >= started;
    fresh && rollout.images().all(|(name, image)| pod.images.get(name).is_some_and(|runs| runs == image))
}

/// True while an agent carries out what somebody else asked for, or is about to, or the pod is about to leave.
fn is_taken(pod: &Pod, rollout: &Rollout, now: Timestamp) -> bool {
    let base = &pod.base;
    let answered =
        |id: &str| base.answer.as_ref().is_some_and(|answer| answer.id == id && answer.phase.is_terminal());
    let asked = base.request.as_deref().is_some_and(|id| !answered(id));
    let runs = base.answer.as_ref().is_some_and(|answer| !answer.phase.is_terminal());
    let rollout = pod.worked_on.as_ref().is_some_and(|uid| *uid != rollout.uid);
    asked || runs || rollout || pod.evicted || base.task_state(now) != task::TaskState::Over
}
