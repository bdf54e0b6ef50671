//! The hooks that failed: which pod or canary step waits for one, and what a person can do. Runs and retries nothing.

use crate::podtask::task::Purpose;
use crate::workload::hooks::{HookType, Run};
use crate::workload::view::PodView;

/// The reason that an agent reports when the hook after an update failed.
const POST_HOOK_FAILED: &str = "PostHookFailed";

/// The hook of a pod that did not succeed. The pod waits for it and is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedHook {
    /// What the pod waits for.
    pub purpose: Purpose,
    /// Name of the pod.
    pub pod: String,
    /// Which run ended how, and what to do.
    pub message: String,
}

impl FailedHook {
    /// The failed `run` of a pod whose task has this `purpose`.
    pub fn of(view: &PodView<'_>, purpose: Purpose, run: &Run) -> Self {
        let field = match run.kind {
            HookType::PreInplace => "preInplaceUpdateStrategy",
            HookType::PreDelete | HookType::Canary => "preDeleteUpdateStrategy",
        };
        let message = format!(
            "pod {}: its HookRun {} ended as {:?}, and the pod is unchanged; read the HookRun, fix its cause, then \
             set spec.{field}.retry to true",
            view.pod.name, run.name, run.phase
        );
        Self { purpose, pod: view.pod.name.clone(), message }
    }
}

/// One sentence about the failed hooks of pods that are scaled in (`scales`), or about those of pods that are updated.
pub fn message(failed: &[FailedHook], scales: bool) -> Option<String> {
    let those: Vec<_> = failed.iter().filter(|one| (one.purpose == Purpose::ScaleIn) == scales).collect();
    let first = those.first()?;
    Some(format!("{} pods wait for a hook that did not succeed: {}", those.len(), first.message))
}

/// One sentence about the failed hook of the canary step `index`.
pub fn of_step(index: usize, run: &str) -> String {
    format!(
        "canary step {index}: its HookRun {run} did not succeed, and no further pod is updated; read the HookRun, \
         then continue in spite of it with `inplace rollout resume`, or change the template"
    )
}

/// True when the last update of this pod failed because of the hook after it.
pub fn failed_afterwards(view: &PodView<'_>) -> bool {
    let (Some(task), Some(answer)) = (&view.pod.task, &view.pod.answer) else { return false };
    answer.id == task.id() && answer.reason == POST_HOOK_FAILED
}
