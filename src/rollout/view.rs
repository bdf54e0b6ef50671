//! The state of each pod for a rollout, derived from the pod and the ready agents. Decides nothing about the rollout.

use jiff::{SignedDuration, Timestamp};

use crate::api::in_place_rollout::is_request_of;
use crate::podtask::state::{End, NO_AGENT, Stage, TaskState};
use crate::rollout::back;
use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;
use crate::rollout::reach::{Reach, ReadyAgents};
use crate::rollout::record::{RolloutTask, task_state};

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
    /// True while another client or rollout works on the pod and this rollout has no task in progress on it.
    pub(super) taken: bool,
    way: Way,
    /// The stage that the rollout has recorded on the pod.
    recorded: Option<Stage>,
}

/// The way of the task on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To what the rollout wants, or there is no task.
    Forward,
    /// To the images from before.
    Back,
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
    /// The rollout is aborted, and no task begins on the pod.
    Left(Left),
}

/// Why no task begins on a pod of an aborted rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The rollout did not change its images, or they are those from before again.
    Unchanged,
    /// Another client gave a container a third image.
    Changed,
    /// No valid image from before is on record.
    Unrecorded,
}

impl<'a> PodView<'a> {
    /// Derives the view of a pod, for the way back if the rollout is aborted; `started` is the time of the rollout's first reconcile.
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
        let record = pod.record.as_ref();
        let recorded = record.and_then(|record| record.stage_of(&rollout.uid));
        let task = task_state(&rollout.uid, record, base.request.as_deref(), base.answer.as_ref(), now);
        let (aborts, back) = (rollout.aborts(), task.as_ref().is_some_and(|task| task.back));
        let taken = is_taken(pod, rollout, now);
        let state = match task.map(|RolloutTask { state, .. }| state) {
            Some(TaskState::Busy { touched }) => State::Busy { touched },
            Some(TaskState::Ended(end)) if end.reason == NO_AGENT && reach.may_still_answer(now) => {
                State::Busy { touched: false }
            }
            Some(TaskState::Ended(end)) => State::Ended(end),
            Some(TaskState::Over | TaskState::Waiting) | None if aborts && !back => {
                match back::containers(rollout, pod) {
                    Err(why) => State::Left(why),
                    Ok(_) if taken => State::Taken,
                    Ok(_) => State::Waiting,
                }
            }
            Some(TaskState::Over | TaskState::Waiting) => match recorded {
                // The status no longer says that the rollout was aborted.
                _ if back && !aborts => State::Dropped,
                Some(Stage::Done) => State::Done,
                Some(Stage::Dropped) => State::Dropped,
                _ => State::Failed,
            },
            None if is_up_to_date(pod, rollout, started) => State::Done,
            None if taken => State::Taken,
            None => State::Waiting,
        };
        let taken = taken && !matches!(state, State::Busy { .. });
        let way = if back { Way::Back } else { Way::Forward };
        Self { pod, state, ready, available, reach, taken, way, recorded }
    }

    /// True when the task on the pod takes it back.
    pub(super) fn is_back(&self) -> bool {
        self.way == Way::Back
    }

    /// True when the pod has failed to become what the rollout wants. It stays so while an agent that was late to answer
    /// works on it after all, and until it begins to go back.
    pub(super) fn has_failed(&self) -> bool {
        !self.is_back() && self.is_failure()
    }

    /// True when the pod has failed to go back.
    pub(super) fn has_not_returned(&self) -> bool {
        self.is_back() && self.is_failure()
    }

    fn is_failure(&self) -> bool {
        let outcome = self.outcome();
        outcome == Some(Stage::Failed) || outcome.is_none() && self.recorded == Some(Stage::Failed)
    }

    /// True when the pod is as the rollout wants it.
    pub(super) fn is_done(&self, rollout: &Rollout) -> bool {
        match &self.state {
            _ if self.is_back() => false,
            State::Waiting | State::Taken | State::Left(_) if rollout.aborts() => {
                runs_images(self.pod, rollout) && self.recorded != Some(Stage::Failed)
            }
            _ => self.outcome() == Some(Stage::Done),
        }
    }

    /// True when the pod goes back or is back.
    pub(super) fn returns(&self) -> bool {
        self.is_back() || matches!(self.state, State::Waiting | State::Taken)
    }

    /// How the pod ended, whether it is recorded or not.
    pub(super) fn outcome(&self) -> Option<Stage> {
        match &self.state {
            State::Ended(end) => Some(end.stage),
            State::Done => Some(Stage::Done),
            State::Failed => Some(Stage::Failed),
            State::Dropped => Some(Stage::Dropped),
            State::Waiting | State::Taken | State::Busy { .. } | State::Left(_) => None,
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
    fresh && runs_images(pod, rollout)
}

/// True when the pod names the images of the rollout.
fn runs_images(pod: &Pod, rollout: &Rollout) -> bool {
    rollout.images().all(|(name, image)| pod.images.get(name).is_some_and(|runs| runs == image))
}

/// True while an agent carries out another client's request or is about to, or the pod is about to be evicted.
fn is_taken(pod: &Pod, rollout: &Rollout, now: Timestamp) -> bool {
    let base = &pod.base;
    // An agent that is gone has not reported the end of an operation of this rollout.
    let is_own = |id: &str| is_request_of(&rollout.uid, id);
    let own = base.request.as_deref().filter(|id| is_own(id));
    let runs = base.answer.as_ref().is_some_and(|answer| !is_own(&answer.id) && !answer.phase.is_terminal());
    let rollout = pod.worked_on.as_ref().is_some_and(|uid| *uid != rollout.uid);
    base.is_taken(own) || runs || rollout || pod.evicted || base.task_state(now) != TaskState::Over
}
