//! The `HookRun`s of the pods' tasks: which one is created, or why it cannot be, what is reported about those that exist, and
//! which are deleted. Whether a task may continue is decided in `hooks`.

use crate::api::workload::HookCondition;
use crate::podtask::pod::Pod;
use crate::podtask::task::{PodTask, Purpose};
use crate::podtask::time::whole_seconds;
use crate::workload::act::Planner;
use crate::workload::action::{Action, NewHookRun};
use crate::workload::failed_hook::FailedHook;
use crate::workload::hooks::{self, HookType};
use crate::workload::view::PodView;

impl Planner<'_, '_> {
    /// Keeps the run of the hook that `task` has now.
    pub(super) fn keep_run(&mut self, pod: &Pod, task: &PodTask) {
        let kind = hooks::of(self.input.spec, task.purpose).map(|(kind, _)| kind);
        self.keys.insert((pod.uid.clone(), task.key()), kind);
    }

    /// The run that `task` needs.
    pub(super) fn run_to_create(&self, view: &PodView<'_>, task: &PodTask) -> Option<NewHookRun> {
        let modified: Vec<_> = self.targets(view, task).into_iter().map(|target| target.name).collect();
        hooks::run(self.input.spec, view.pod, task, &modified)
    }

    /// Why a hook of `task` cannot be run: the one of `run`, or the one in the request that follows. Only the agent would find
    /// out about the latter otherwise, when the hook before the update has taken effect.
    pub(super) fn hook_problem(
        &self,
        view: &PodView<'_>,
        task: &PodTask,
        run: Option<&NewHookRun>,
    ) -> Option<String> {
        let (spec, templates) = (self.input.spec, self.input.templates);
        let user = format!("pod {}", view.pod.name);
        let of_run =
            run.and_then(|run| templates.for_run(&run.template, &run.args).problem(&run.template, &user));
        let after = spec.hooks.post_inplace.as_ref().filter(|_| task.purpose == Purpose::InPlace);
        of_run.or_else(|| {
            let after = after.filter(|_| !self.targets(view, task).is_empty())?;
            let state = templates.for_agent(&after.template_name, &hooks::given(after), view.pod);
            state.problem(&after.template_name, &user)
        })
    }

    pub(super) fn create_run(&mut self, view: &PodView<'_>, run: NewHookRun) {
        let begun = Some(whole_seconds(self.input.now));
        let phase = "Pending".to_owned();
        self.report(run.kind, HookCondition { pod_name: view.pod.name.clone(), start_time: begun, phase });
        self.acts.actions.push(Action::CreateRun(run));
    }

    pub(super) fn report_waiting(&mut self, view: &PodView<'_>, task: &PodTask) {
        let run = self.input.run_of(view, task);
        if let Some(run) = run.filter(|run| run.stays_failed()) {
            self.acts.failed_hooks.push(FailedHook::of(view, task.purpose, run));
        }
        if let Some((run, reported)) = run.and_then(|run| Some((run, hooks::condition(view.pod, run)?))) {
            self.report(run.kind, reported);
        }
    }

    fn report(&mut self, kind: HookType, reported: HookCondition) {
        match kind {
            HookType::PreDelete => self.acts.pre_delete.push(reported),
            HookType::PreInplace => self.acts.pre_inplace.push(reported),
            HookType::Canary => {}
        }
    }

    /// Deletes the runs of tasks that are over or have a hook of another kind now, and failed runs where the user asked for a
    /// retry, so that they are created again.
    pub(super) fn delete_runs(&mut self) {
        let (hooks, retry) = (&self.input.spec.hooks, self.input.spec.update.retry);
        for run in self.input.runs.values().flatten().filter(|run| !run.deleting) {
            let again = match run.kind {
                HookType::PreDelete => retry || hooks.retry_pre_delete,
                HookType::PreInplace => retry || hooks.retry_pre_inplace,
                HookType::Canary => continue,
            };
            let kept = self.keys.get(&(run.pod_uid.clone(), run.key.clone()));
            let over = kept.is_none_or(|kind| kind.is_some_and(|kind| kind != run.kind));
            if over || (again && run.has_failed()) {
                self.acts.actions.push(Action::DeleteRun(run.name.clone()));
            }
        }
    }
}
