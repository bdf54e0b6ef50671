//! The writes of a task whose pod is being resized, given what `workload::resize` decides about the pod.

use jiff::SignedDuration;
use serde_json::{Map, Value};

use crate::api::pod_template::PodTemplate;
use crate::api::request::READY_TIMEOUT_SECONDS;
use crate::podtask::resources::Resize;
use crate::podtask::state::{End, Stage};
use crate::podtask::task::{PodTask, Purpose};
use crate::podtask::time::{later, whole_seconds};
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::workload::act::Planner;
use crate::workload::action::{Action, Why};
use crate::workload::resize::{self, Answer, NotResizable};
use crate::workload::survey::is_early;
use crate::workload::update::Wanted;
use crate::workload::view::PodView;

impl<'a> Planner<'_, 'a> {
    /// Begins the resize of a pod that needs one for its task; false if it needs none. The task is recorded before anything is
    /// written.
    pub(super) fn begins_resize(&mut self, view: &PodView<'_>, task: &PodTask) -> bool {
        let input = self.input;
        let due = input.template(&task.target).is_some_and(|to| resize::is_due(view, to, &input.revisions));
        if due {
            let at = whole_seconds(input.now);
            let resizing = PodTask { at, ..task.at_stage(Stage::Resizing, "") };
            self.patch(view, &resizing, PodPatch::default(), Why::Resize);
        }
        due
    }

    /// The next step of a task whose pod is being resized: the resize itself, its end, or the request to the agent. Hours may
    /// have passed since the task began, so whether the pod may still be updated is decided again.
    pub(super) fn resize(&mut self, view: &PodView<'a>, task: &PodTask, wanted: Option<Wanted<'_>>) {
        let input = self.input;
        self.keep_run(view.pod, task);
        let leaves = wanted.is_some_and(|wanted| wanted.purpose == Purpose::ScaleIn);
        let is_right = task.target == input.update_name() || task.target == view.pod.label;
        let goes_on = is_right && !leaves && input.spec.is_in_place();
        let Some(target) = input.template(&task.target).filter(|_| goes_on) else {
            return self.give_up(view, task);
        };
        if !task.note.is_empty() {
            return self.end(view, task, &End::new(Stage::Failed, "", task.note.clone()));
        }
        let elsewhere = wanted.is_some_and(|wanted| wanted.target != task.target);
        let goes_on = wanted.is_some() && !elsewhere;
        let missing = resize::missing(view, target, &input.revisions);
        // Containers are to be replaced, and the resize does not hold that up.
        let replaces = view.pod.resize == Resize::Taken && !self.targets(view, task).is_empty();
        if (missing.is_some() || replaces) && view.is_taken() {
            // Another client's request is carried out first.
            return;
        }
        if let Some(spec) = missing {
            if !input.resizes {
                let why = NotResizable::NoResize.to_string();
                return self.end(view, task, &End::new(Stage::Failed, "", why));
            }
            if !goes_on {
                return self.give_up(view, task);
            }
            let pod = VersionedRef::of(view.pod);
            return self.acts.actions.push(Action::Resize { pod, spec, task: task.clone() });
        }
        match resize::answer(view.pod, task, input.now) {
            Answer::Taken if replaces && !goes_on => self.give_up(view, task),
            Answer::Taken if is_early(input, view, target) => self.await_ready(view, task, target),
            // A pod that was not Ready when it was resized was not claimed at its `PodDisruptionBudget`s.
            Answer::Taken if replaces && task.claims.is_empty() => {
                if let Some(claimed) = self.claimed(view, task) {
                    self.execute(view, &claimed);
                }
            }
            Answer::Taken => self.execute(view, task),
            Answer::Waits(_) if elsewhere => self.give_up(view, task),
            Answer::Waits(until) => until.into_iter().for_each(|until| self.at(until)),
            Answer::Never(why) => self.end(view, task, &End::new(Stage::Failed, "", why)),
        }
    }

    /// Waits for a container that is not Ready since the resize, and starts first. Such a container may serve, but one that the
    /// resize has broken is never Ready again: then the task fails, and the pod is repaired by a later one.
    fn await_ready(&mut self, view: &PodView<'_>, task: &PodTask, target: &PodTemplate) {
        let since = view.pod.unready_since.map_or(task.at, |since| since.max(task.at));
        let seconds = i64::from(READY_TIMEOUT_SECONDS).saturating_add(startup_seconds(target));
        let end = later(since, SignedDuration::from_secs(seconds));
        if end > self.input.now {
            return self.at(end);
        }
        let names: Vec<_> = view.pod.unready.iter().map(|(name, _)| name.as_str()).collect();
        let why = format!(
            "cpu and memory are resized, and {} is not Ready for {seconds} s after that: see the logs of the container",
            names.join(", ")
        );
        self.end(view, task, &End::new(Stage::Failed, "", why));
    }
}

/// The seconds that the slowest container of a template may take to start, by its startup probe: a resize may restart it.
fn startup_seconds(template: &PodTemplate) -> i64 {
    let probes = template.lasting().filter_map(|(_, container)| container.get("startupProbe")?.as_object());
    let seconds = |probe: &Map<String, Value>| {
        let field = |name: &str, default| probe.get(name).and_then(Value::as_i64).unwrap_or(default).max(0);
        let tries = field("failureThreshold", 3).saturating_mul(field("periodSeconds", 10));
        field("initialDelaySeconds", 0).saturating_add(tries)
    };
    probes.map(seconds).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_startup_probe_gives_a_container_its_time() {
        let seconds = |probe: Value| {
            let app = json!({"name": "app", "startupProbe": probe});
            startup_seconds(&PodTemplate(json!({"spec": {"containers": [{"name": "side"}, app]}})))
        };
        assert_eq!(
            seconds(json!({"failureThreshold": 20, "periodSeconds": 30, "initialDelaySeconds": 5})),
            605
        );
        assert_eq!((seconds(json!({})), seconds(Value::Null)), (30, 0));
    }
}
