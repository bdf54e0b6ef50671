//! The state of each pod for a rollout, derived from the pod and the ready agents. Decides nothing about the rollout.

use jiff::{SignedDuration, Timestamp};

use crate::podtask::state::{End, NO_AGENT, Stage, TaskState};
use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;
use crate::rollout::reach::{Reach, ReadyAgents};
use crate::rollout::record::task_state;

/// A pod and what follows from it at this time.
#[derive(Clone, Debug)]
pub(super) struct PodView<'a> {
    pub(super) pod: &'a Pod,
    pub(super) state: State,
    /// Running and Ready.
    pub(super) ready: bool,
    /// Ready for at least `minReadySeconds`.
    pub(super) available: bool,
    /// Whether an agent can accept a request for the pod.
    pub(super) reach: Reach,
    /// The stage that the rollout has recorded on the pod.
    recorded: Option<Stage>,
}

/// The state of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The pod has no request yet.
    Waiting,
    /// The pod has no request of this rollout, and another client or rollout works on it.
    Taken,
    /// The agent has the request.
    Busy { touched: bool },
    /// The task has ended, and the record on the pod does not say so yet.
    Ended(End),
    /// The pod is done, or there was nothing to do.
    Done,
    /// The pod failed.
    Failed,
    /// The request was withdrawn.
    Dropped,
}

impl<'a> PodView<'a> {
    /// Derives the view of a pod; `started` is the time of the rollout's first reconcile.
    pub(super) fn of(
        pod: &'a Pod,
        rollout: &Rollout,
        agents: Option<&ReadyAgents>,
        started: Timestamp,
        now: Timestamp,
    ) -> Self {
        let reach = Reach::of(pod, agents);
        let base = &pod.base;
        let min_ready = SignedDuration::from_secs(rollout.spec.pod.min_ready_seconds.into());
        let (ready, available) = (base.is_ready(), base.is_available(min_ready, now));
        let record = pod.record.as_ref().filter(|record| record.rollout == rollout.uid);
        let recorded = record.map(|record| record.stage);
        let state = match task_state(&rollout.uid, record, base.request.as_deref(), base.answer.as_ref(), now)
        {
            Some(TaskState::Busy { touched }) => State::Busy { touched },
            Some(TaskState::Ended(end)) if end.reason == NO_AGENT && reach.excuses_silence(now) => {
                State::Busy { touched: false }
            }
            Some(TaskState::Ended(end)) => State::Ended(end),
            Some(TaskState::Over | TaskState::Waiting) => match recorded {
                Some(Stage::Done) => State::Done,
                Some(Stage::Dropped) => State::Dropped,
                _ => State::Failed,
            },
            None if is_up_to_date(pod, rollout, started) => State::Done,
            None if is_taken(pod, rollout, now) => State::Taken,
            None => State::Waiting,
        };
        Self { pod, state, ready, available, reach, recorded }
    }

    /// True when the pod has failed. It stays so while an agent that was late to answer works on it after all.
    pub(super) fn has_failed(&self) -> bool {
        self.outcome() == Some(Stage::Failed) || self.is_busy() && self.recorded == Some(Stage::Failed)
    }

    /// How the pod ended, whether it is recorded or not.
    pub(super) fn outcome(&self) -> Option<Stage> {
        match &self.state {
            State::Ended(end) => Some(end.stage),
            State::Done => Some(Stage::Done),
            State::Failed => Some(Stage::Failed),
            State::Dropped => Some(Stage::Dropped),
            State::Waiting | State::Taken | State::Busy { .. } => None,
        }
    }

    /// True when the pod is not done and no agent can accept its request.
    pub(super) fn is_unreachable(&self) -> bool {
        !self.reach.is_reachable() && matches!(self.state, State::Waiting | State::Busy { touched: false })
    }

    pub(super) fn is_busy(&self) -> bool {
        matches!(self.state, State::Busy { .. })
    }
}

/// True when there is nothing to do: the pod runs the desired images and, if a container is only to be restarted, was
/// created after the rollout had started.
fn is_up_to_date(pod: &Pod, rollout: &Rollout, started: Timestamp) -> bool {
    let fresh = rollout.only_swaps() || pod.base.created >= started;
    fresh && rollout.images().all(|(name, image)| pod.images.get(name).is_some_and(|runs| runs == image))
}

/// True while an agent carries out another client's request or is about to, or the pod is about to be evicted.
fn is_taken(pod: &Pod, rollout: &Rollout, now: Timestamp) -> bool {
    let base = &pod.base;
    let runs = base.answer.as_ref().is_some_and(|answer| !answer.phase.is_terminal());
    let rollout = pod.worked_on.as_ref().is_some_and(|uid| *uid != rollout.uid);
    base.is_taken(None) || runs || rollout || pod.evicted || base.task_state(now) != TaskState::Over
}
