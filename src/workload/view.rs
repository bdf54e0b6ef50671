//! The view of a pod by its workload: at which revision it is, whether it serves, what its task does. Decides nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::api::pod_template::PodTemplate;
use crate::api::status::{Phase, Status, Step};
use crate::podtask::foreign::ForeignStep;
use crate::podtask::pod::Pod;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::{PodTask, Purpose};
use crate::workload::environment;
use crate::workload::resize;

/// A pod and what follows from it at this time.
#[derive(Clone, Debug)]
pub struct PodView<'a> {
    /// The pod as it was read.
    pub pod: &'a Pod,
    /// The state of the pod's task.
    pub task_state: TaskState,
    /// The revision of the pod: its label, or the target of a task that has succeeded.
    pub revision: &'a str,
    /// True when a task left the pod between two revisions: the label does not say what runs.
    pub between_revisions: bool,
    /// True when the pod is Running and Ready.
    pub ready: bool,
    /// True when the pod has been Ready for `minReadySeconds`.
    pub available: bool,
}

/// Templates of the existing revisions by name.
pub type Templates<'a> = BTreeMap<&'a str, &'a PodTemplate>;

impl<'a> PodView<'a> {
    /// Derives the view of a pod.
    pub fn of(pod: &'a Pod, templates: &Templates<'_>, min_ready: SignedDuration, now: Timestamp) -> Self {
        let task_state = pod.task_state(now);
        let target = pod.task.as_ref().map(|task| task.target.as_str());
        let revision = match (&task_state, target) {
            (TaskState::Ended(end), Some(target)) if end.stage == Stage::Done => target,
            _ => &pod.label,
        };
        let (ready, available) = (pod.is_ready(), pod.is_available(min_ready, now));
        let between_revisions =
            revision == pod.label && (is_torn(pod, &task_state, templates) || is_half_written(pod));
        Self { pod, task_state, revision, between_revisions, ready, available }
    }

    /// True when the pod is at `revision` and nothing has to be repaired.
    pub fn is_at(&self, revision: &str) -> bool {
        self.revision == revision && !self.between_revisions
    }

    /// True when nothing but a resize lies between the pod and its own revision: the task of the resize has written no request,
    /// or no agent began it.
    pub fn is_only_resized(&self, templates: &Templates<'_>) -> bool {
        let is_untouched = self.pod.task.as_ref().is_some_and(|task| {
            let is_early = self.live().is_some() && matches!(task.stage, Stage::Chosen | Stage::Resizing);
            let is_unbegun = || matches!(self.end(), Some(Stage::Unanswered | Stage::Dropped));
            task.target != self.pod.label && !was_touched(self, task) && (is_early || is_unbegun())
        });
        let has_other_image = || self.pod.images.iter().any(|(name, _)| is_off(self.pod, name, templates));
        is_untouched
            && !left_closed(self.pod, templates)
            && !has_other_image()
            && !has_other_environment(self.pod, templates)
    }

    /// True when the pod was created before `revision` and updated to it in place.
    pub fn was_updated_to(&self, revision: &str) -> bool {
        let task = self.pod.task.as_ref();
        self.revision == revision && task.is_some_and(|task| task.target == revision && !task.deletes())
    }

    /// The pod's task while it is open.
    pub fn live(&self) -> Option<&'a PodTask> {
        matches!(self.task_state, TaskState::Waiting | TaskState::Busy { .. })
            .then_some(self.pod.task.as_ref())
            .flatten()
    }

    /// True while cpu and memory of the pod are being resized for its task.
    pub fn is_resizing(&self) -> bool {
        self.live().is_some_and(|task| task.stage == Stage::Resizing)
    }

    /// True when the pod's task has this `purpose` and nothing is touched yet.
    pub fn waits_for(&self, purpose: Purpose) -> bool {
        self.task_state == TaskState::Waiting
            && self.pod.task.as_ref().is_some_and(|task| task.purpose == purpose)
    }

    /// How the last task ended.
    fn end(&self) -> Option<Stage> {
        match &self.task_state {
            TaskState::Ended(end) => Some(end.stage),
            TaskState::Over => self.pod.task.as_ref().map(|task| task.stage),
            TaskState::Waiting | TaskState::Busy { .. } => None,
        }
    }

    /// How the last task towards `revision` ended, if it did not get there.
    pub fn last_failure(&self, revision: &str) -> Option<Stage> {
        self.pod.task.as_ref().filter(|task| task.target == revision)?;
        self.end().filter(|stage| matches!(stage, Stage::Failed | Stage::Unanswered))
    }

    /// True if no agent answered the request of the last task towards `revision`, or back to the pod's own: it is retried.
    pub fn is_unanswered(&self, revision: &str) -> bool {
        [revision, &self.pod.label].iter().any(|to| self.last_failure(to) == Some(Stage::Unanswered))
    }

    /// What follows from an update in place that a bk-bcs operator began and has not completed.
    pub fn foreign_step(&self, now: Timestamp) -> Option<ForeignStep> {
        self.pod.foreign.as_ref().map(|update| update.step(now))
    }

    /// True while an agent carries out a request of another client.
    pub fn is_taken(&self) -> bool {
        let own = self.pod.task.as_ref().filter(|task| !task.deletes()).map(PodTask::id);
        self.pod.is_taken(own.as_deref())
    }
}

/// True when a task of the controller changed the pod and did not complete: it failed with the readiness gate closed,
/// or a container has the image or the resources of another revision than the pod's own. What another client set is left
/// alone.
fn is_torn(pod: &Pod, task_state: &TaskState, templates: &Templates<'_>) -> bool {
    let Some(task) = &pod.task else { return false };
    let off =
        || pod.images.iter().any(|(name, _)| is_off(pod, name, templates)) || resize::is_torn(pod, templates);
    let stage = match task_state {
        TaskState::Over | TaskState::Waiting => task.stage,
        TaskState::Ended(end) => end.stage,
        // A task towards the pod's own revision repairs it. The agent's answer to the failed request is gone by then,
        // so the pod counts as between_revisions until the task ends.
        TaskState::Busy { .. } => return task.target == pod.label || off(),
    };
    stage != Stage::Done && (left_closed(pod, templates) || off() || has_other_environment(pod, templates))
}

/// True when a task that did not complete may have restarted containers with the labels and annotations of its target.
fn has_other_environment(pod: &Pod, templates: &Templates<'_>) -> bool {
    let Some(own) = templates.get(pod.label.as_str()) else { return false };
    left_environments(pod, templates).any(|left| !environment::restarted(left, own).is_empty())
}

/// The templates whose labels and annotations containers of the pod may have in their environment, because tasks of the
/// controller failed after they had touched the pod.
pub(super) fn left_environments<'a>(
    pod: &Pod,
    templates: &Templates<'a>,
) -> impl Iterator<Item = &'a PodTemplate> {
    let left = pod.task.as_ref().filter(|task| task.stage != Stage::Done);
    let names = left.into_iter().flat_map(|task| &task.environments);
    names.filter_map(|name| templates.get(name.as_str()).copied())
}

/// True when the agent's answer to `task` says that it touched the pod.
pub(super) fn was_touched(view: &PodView<'_>, task: &PodTask) -> bool {
    let answer = view.pod.answer.as_ref().filter(|answer| answer.id == task.id());
    answer.is_some_and(|answer| answer.step.is_some_and(|step| step >= Step::Swap))
}

/// True when a bk-bcs operator moved the revision label and did not write the images.
fn is_half_written(pod: &Pod) -> bool {
    pod.foreign.as_ref().is_some_and(|update| !update.unwritten.is_empty())
}

/// True when the last request of the controller failed midway and left the readiness gate closed. Before the swap
/// nothing is touched, and the gate is open again.
pub(super) fn left_closed(pod: &Pod, templates: &Templates<'_>) -> bool {
    let (Some(task), Some(answer)) = (&pod.task, &pod.answer) else { return false };
    // A later request that touched nothing leaves the gate as it found it, and its answer replaces that of the failure.
    let was_closed = pod.gate_left_closed
        && !task.gate_closed
        && matches!(answer.phase, Phase::Cancelled | Phase::Refused);
    let is_closed = has_failed_midway(answer) || was_closed;
    is_own(answer, task, templates) && is_closed && task.stage != Stage::Done
}

/// True if the agent touched the pod for the request and did not complete it.
pub(super) fn has_failed_midway(answer: &Status) -> bool {
    answer.phase == Phase::Failed && answer.step.is_some_and(|step| step >= Step::Swap)
}

/// True if the agent answered a request of the controller: that of the task or of an earlier one.
pub(super) fn is_own(answer: &Status, task: &PodTask, templates: &Templates<'_>) -> bool {
    let Some((hash, number)) = answer.id.rsplit_once('-') else { return false };
    number.parse().is_ok_and(|number: u32| number <= task.number)
        && templates.keys().any(|revision| revision.rsplit('-').next() == Some(hash))
}

/// True when the container `name` has the image of another revision than the pod's own.
pub(super) fn is_off(pod: &Pod, name: &str, templates: &Templates<'_>) -> bool {
    let own = templates.get(pod.label.as_str()).and_then(|own| own.image(name));
    let runs = pod.image(name);
    own.is_some()
        && own != runs
        && templates.values().any(|other| runs.is_some() && other.image(name) == runs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Pod {
        Pod::read(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn what_failed_before_the_swap_left_nothing_closed() {
        let failed_in = |step: &str| {
            let task = json!({"purpose": "InPlace", "target": "web-2", "number": 1, "at": "2026-01-01T00:00:00Z", "stage": "Failed"});
            let status = json!({"id": "2-1", "phase": "Failed", "step": step, "reason": "", "message": "", "startedAt": null,
                "finishedAt": null, "containers": []});
            let reported =
                json!({"inplace.dev/task": task.to_string(), "inplace.dev/status": status.to_string()});
            read(json!({"metadata": {"annotations": reported}}))
        };
        let template = PodTemplate(json!({}));
        let templates = Templates::from([("web-2", &template)]);
        for (step, closed) in
            [("Pull", false), ("PreHook", false), ("Drain", false), ("Swap", true), ("PostHook", true)]
        {
            assert_eq!(left_closed(&failed_in(step), &templates), closed, "{step}");
        }
    }
}
