//! The readiness gate of a pod whose update the controller took over from a bk-bcs operator: when it is opened or closed.
//! It opens no gate that is closed because an operation failed after it touched the pod.

use super::Planner;
use crate::api::status::Status;
use crate::podtask::foreign::ForeignStep;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::PodTask;
use crate::podtask::write::VersionedRef;
use crate::workload::action::Action;
use crate::workload::view::{PodView, has_failed_midway, is_own};

impl Planner<'_, '_> {
    /// Opens the gate that a bk-bcs operator left closed, when the pod's containers run their new images; or the gate that
    /// the controller closed for a task that is over, when the pod has the images of one revision: nothing was touched.
    pub(super) fn open_foreign_gate(&mut self, view: &PodView<'_>) {
        let idle = !matches!(view.task_state, TaskState::Busy { .. }) && !view.is_taken();
        let is_complete = view.foreign_step(self.input.now) == Some(ForeignStep::Open);
        let (task, answer) = (view.pod.task.as_ref(), view.pod.answer.as_ref());
        let is_over = |task: &PodTask, answer: &Status| {
            answer.phase.is_terminal() && is_own(answer, task, &self.input.revisions)
        };
        // After the request of another client, the gate may be closed for another reason.
        let is_ours = answer.is_none_or(|answer| task.is_some_and(|task| is_over(task, answer)));
        let is_given_up = view.task_state == TaskState::Over
            && view.last_failure(self.input.update_name()) != Some(Stage::Unanswered)
            && self.has_images_of_one_revision(view)
            && is_ours
            && has_closed_gate(view, task);
        if idle && is_complete {
            self.set_gate(view, true);
        } else if idle && is_given_up {
            self.open_own_gate(view);
        }
    }

    /// Opens the gate that the controller closed, unless a container does not run its new image yet, which a bk-bcs
    /// operator has written.
    pub(super) fn open_own_gate(&mut self, view: &PodView<'_>) {
        if view.pod.foreign.as_ref().is_none_or(|update| update.restarting.is_empty()) {
            self.set_gate(view, true);
        }
    }

    pub(super) fn set_gate(&mut self, view: &PodView<'_>, open: bool) {
        self.acts.actions.push(Action::SetGate { pod: VersionedRef::of(view.pod), open });
    }

    /// True if the pod has each image of one of the revisions.
    fn has_images_of_one_revision(&self, view: &PodView<'_>) -> bool {
        let is_right = |(name, image)| view.pod.image(name) == Some(image);
        let mut revisions = self.input.revisions.values();
        revisions.any(|revision| revision.images().next().is_some() && revision.images().all(is_right))
    }
}

/// True if the readiness gate is closed because the controller closed it: it took over the update of a bk-bcs operator. A
/// gate that is closed because an operation failed after it touched the pod is another matter.
pub(super) fn has_closed_gate(view: &PodView<'_>, task: Option<&PodTask>) -> bool {
    let has_failed = view.pod.answer.as_ref().is_some_and(has_failed_midway);
    view.pod.gate_left_closed && task.is_some_and(|task| task.gate_closed) && !has_failed
}

/// True if the gate is closed while no operation runs, or may be so when that of an agent has ended, which leaves the gate as it
/// found it if its request is withdrawn.
pub(super) fn may_be_left_closed(view: &PodView<'_>) -> bool {
    view.pod.gate_left_closed || is_in_use(view)
}

/// True while an agent works on the pod: the gate shows its operation.
pub(super) fn is_in_use(view: &PodView<'_>) -> bool {
    view.pod.answer.as_ref().is_some_and(|answer| !answer.phase.is_terminal())
}
