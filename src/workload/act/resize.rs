//! The writes of a task whose pod is being resized, given what `workload::resize` decides about the pod.

use crate::podtask::state::{End, Stage};
use crate::podtask::task::{PodTask, Purpose};
use crate::podtask::time::whole_seconds;
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::workload::act::Planner;
use crate::workload::action::{Action, Why};
use crate::workload::resize::{self, Answer, NotResizable};
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

    /// The next step of a task whose pod is being resized: the resize itself, its end, or the request to the agent.
    pub(super) fn resize(&mut self, view: &PodView<'a>, task: &PodTask, wanted: Option<Wanted<'_>>) {
        let input = self.input;
        self.keys.insert((view.pod.uid.clone(), task.key()));
        let leaves = wanted.is_some_and(|wanted| wanted.purpose == Purpose::ScaleIn);
        let is_right = task.target == input.update_name() || task.target == view.pod.label;
        let goes_on = is_right && !leaves && input.spec.is_in_place();
        let Some(target) = input.template(&task.target).filter(|_| goes_on) else {
            return self.give_up(view, task);
        };
        if !task.note.is_empty() {
            return self.end(view, task, &End::new(Stage::Failed, "", task.note.clone()));
        }
        if let Some(spec) = resize::missing(view, target, &input.revisions) {
            if !input.resizes {
                let why = NotResizable::NoResize.to_string();
                return self.end(view, task, &End::new(Stage::Failed, "", why));
            }
            let pod = VersionedRef::of(view.pod);
            return self.acts.actions.push(Action::Resize { pod, spec, task: task.clone() });
        }
        match resize::answer(view.pod, task, input.now) {
            Answer::Taken => self.execute(view, task),
            Answer::Waits(until) => until.into_iter().for_each(|until| self.at(until)),
            Answer::Never(why) => self.end(view, task, &End::new(Stage::Failed, "", why)),
        }
    }
}
