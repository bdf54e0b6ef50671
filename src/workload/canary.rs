//! An update in steps: which partition applies now, whether a step waits, and whether it is over.
//!
//! A wait of a step is in the status. `paused` is the user's field: it is read here and never written, and a manifest
//! that is applied again changes nothing about a step. A wait ends by
//!
//! | | |
//! |---|---|
//! | its duration | if it has one |
//! | the annotation `inplace.dev/resume-step` | only if it names the revision and the step that waits; it is then removed |
//! | `paused` set to true and afterwards to false | only if `paused: true` was observed during this wait: the status records it |
//!
//! While the user's `paused` is true, no wait begins.

use jiff::{SignedDuration, Timestamp};

use crate::api::workload::{Canary, CanaryStep, PauseCondition, PauseReason};
use crate::podtask::amount::Amount;
use crate::podtask::time::later;
use crate::podtask::time::whole_seconds;
use crate::podtask::write::Event;
use crate::workload::action::Action;
use crate::workload::failed_hook;
use crate::workload::hooks::{self, HookTemplates, HookType, Run};
use crate::workload::name;
use crate::workload::report::Steps;

/// What the partition holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// All pods.
    All,
    /// This many pods, or those with a lower ordinal.
    Part(Amount),
}

/// The input for the decision about the steps.
pub struct CanaryInput<'a> {
    /// The canary steps.
    pub canary: &'a Canary,
    /// The revision of the template.
    pub update: &'a str,
    /// True when no pod is at another revision.
    pub all_updated: bool,
    /// True when the workload has had a stable revision.
    pub has_served: bool,
    /// True when every pod that this partition allows to be at that revision is at it and available.
    pub reached: &'a dyn Fn(Held) -> bool,
    /// True when all pods are at that revision and available, and there is one.
    pub is_rolled_out: &'a dyn Fn() -> bool,
    /// `spec.updateStrategy.paused` at present.
    pub paused: bool,
    /// The step that the user resumes, as [`approval`] writes it.
    pub resume: Option<&'a str>,
    /// The workload's `HookRun`s.
    pub runs: &'a [Run],
    /// The `HookTemplate`s of the workload's namespace.
    pub templates: &'a dyn HookTemplates,
    /// The time of the reconcile.
    pub now: Timestamp,
}

/// The decision about the steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What the partition holds back now.
    pub held: Held,
    /// The state of the steps now.
    pub steps: Steps,
    /// The writes.
    pub actions: Vec<Action>,
    /// When to reconcile again.
    pub requeue_at: Option<Timestamp>,
    /// Why the steps cannot continue.
    pub problem: Option<String>,
    /// What is said about the failed hook that the step waits for.
    pub failed_hook: Option<String>,
    /// True when no pod is updated because a step waits. Not before the partition of the step is reached: pods that a
    /// change of `replicas` adds to it are updated.
    pub waits: bool,
}

/// The value of the annotation `inplace.dev/resume-step` that ends the wait of the step `index`.
pub fn approval(revision: &str, index: usize) -> String {
    format!("{revision}/{index}")
}

/// The writes where no steps apply: `HookRun`s of earlier steps and an approval are removed.
pub fn clear(runs: &[Run], resume: Option<&str>) -> Vec<Action> {
    let runs = runs.iter().filter(|run| run.kind == HookType::Canary && !run.deleting);
    let runs = runs.map(|run| Action::DeleteRun(run.name.clone()));
    runs.chain(resume.map(|_| Action::ClearResume)).collect()
}

/// Whether a part of a step is over.
enum Part {
    Over,
    Waits,
}

/// Decides about the steps; at most one step ends per call.
pub fn decide(input: &CanaryInput<'_>, before: &Steps) -> Step {
    let steps = &input.canary.steps;
    let hash = name::safe_hash(&format!("{}{}", input.update, serde_json::json!(steps)));
    let rolled_out = &before.canary.revision;
    let reset = before.hash != hash;
    // The first rollout had no steps, and did not complete: steps would keep its repair from its pods.
    let repairs = before.index == Some(steps.len()) && !input.has_served;
    let is_first = rolled_out.is_empty() && (repairs || input.all_updated && reset);
    let index = match before.index {
        // The template is the one that was rolled out last, or the workload never served with another.
        _ if is_first || rolled_out == input.update => steps.len(),
        Some(index) if !reset => index.min(steps.len()),
        _ => 0,
    };
    let mut observed = before.pauses.clone();
    for pause in &mut observed {
        pause.user_paused |= input.paused;
    }
    let mut now = Now {
        input,
        index,
        observed: observed.clone(),
        next: Step {
            held: held(steps, index),
            steps: Steps { index: Some(index), hash, pauses: observed, canary: before.canary.clone() },
            actions: Vec::new(),
            requeue_at: None,
            problem: None,
            failed_hook: None,
            waits: false,
        },
    };
    let matches = !reset && now.is_approved();
    if reset {
        now.reset();
    } else if let Some(step) = steps.get(index) {
        now.pass(step);
    }
    if index >= steps.len() && (input.is_rolled_out)() {
        input.update.clone_into(&mut now.next.steps.canary.revision);
    }
    // An approval is removed when it names nothing that waits. The one that ends a wait stays until the status no longer
    // has the wait, because the status may not be written; unless the same step waits again, for which it does not count.
    let waits_again = !now.next.steps.pauses.is_empty() && now.next.steps.pauses != now.observed;
    if input.resume.is_some() && (!matches || waits_again) {
        now.next.actions.push(Action::ClearResume);
    }
    now.next.steps.canary.pause_start_time = now.next.steps.pauses.first().map(|pause| pause.start_time);
    let waits = !before.pauses.is_empty() || !now.next.steps.pauses.is_empty();
    now.next.waits = waits && (input.reached)(now.next.held);
    now.delete_runs();
    now.next
}

/// The partition of the latest step that has one; before the first, all pods are held back, after the last, none.
fn held(steps: &[CanaryStep], index: usize) -> Held {
    if index >= steps.len() {
        return Held::Part(Amount::Count(0));
    }
    let latest = steps[..=index].iter().rev().find_map(|step| step.partition.as_ref());
    latest.and_then(|partition| Amount::read(partition).ok()).map_or(Held::All, Held::Part)
}

struct Now<'a> {
    input: &'a CanaryInput<'a>,
    index: usize,
    /// The waits of the last status, with what the user's `paused` is now.
    observed: Vec<PauseCondition>,
    next: Step,
}

impl Now<'_> {
    /// The steps or the template have changed: start from the first step. A wait of the previous steps is over.
    fn reset(&mut self) {
        self.next.requeue_at = (!self.next.steps.pauses.is_empty()).then_some(self.input.now);
        self.next.steps.pauses.clear();
        self.next.steps.canary.current_step_hook_run.clear();
    }

    fn pass(&mut self, step: &CanaryStep) {
        if step.partition.is_some() && !(self.input.reached)(self.next.held) {
            return;
        }
        if let Some(hook) = &step.hook
            && matches!(self.hook(hook), Part::Waits)
        {
            return;
        }
        // A person who continued after a failed hook also ends a pause without a duration.
        let continued = self.is_paused_by(PauseReason::PausedByStepBasedHook) && self.is_resumed();
        let pause = step.pause.as_ref().filter(|pause| !continued || pause.duration.is_some());
        if let Some(pause) = pause {
            let span = pause.duration.map(|seconds| SignedDuration::from_secs(i64::from(seconds.max(0))));
            if continued {
                return self.begin_pause(PauseReason::PausedByCanaryPauseStep, span);
            }
            if matches!(self.pause(PauseReason::PausedByCanaryPauseStep, span), Part::Waits) {
                return;
            }
        }
        self.next.steps.index = Some(self.index + 1);
        self.next.steps.pauses.clear();
        self.next.steps.canary.current_step_hook_run.clear();
        self.next.requeue_at = Some(self.input.now);
        let message = format!("set step index to {}", self.index + 1);
        self.next.actions.push(Action::Report(Event { reason: "SetStepIndex", message, warning: false }));
    }

    fn hook(&mut self, hook: &crate::api::workload::WorkloadHook) -> Part {
        if self.is_paused_by(PauseReason::PausedByCanaryPauseStep) {
            // The pause of a step begins when its hook is over.
            return Part::Over;
        }
        let key = self.key();
        let spec = hooks::canary_run(hook, self.input.update, self.index, &key);
        self.next.steps.canary.current_step_hook_run.clone_from(&spec.name);
        let run = self.input.runs.iter().find(|run| run.kind == HookType::Canary && run.key == key);
        match run {
            Some(run) if run.has_passed() => {
                // Also a failed one that a person has approved: it ends the wait for the hook, and no other one.
                self.next.steps.pauses.retain(|pause| pause.reason != PauseReason::PausedByStepBasedHook);
                Part::Over
            }
            Some(run) if run.has_failed() => self.pause_after(&spec.name),
            Some(_) => Part::Waits,
            // The user who continued in spite of a failure may have deleted the run.
            None if self.is_paused_by(PauseReason::PausedByStepBasedHook) => self.pause_after(&spec.name),
            None => {
                let state = self.input.templates.for_run(&spec.template, &spec.args);
                self.next.problem = state.problem(&spec.template, &format!("step {}", self.index));
                if self.next.problem.is_none() {
                    self.next.actions.push(Action::CreateRun(spec));
                }
                Part::Waits
            }
        }
    }

    /// Begins a wait; one after a failed hook of the step is over then.
    fn begin_pause(&mut self, reason: PauseReason, span: Option<SignedDuration>) {
        let start_time = whole_seconds(self.input.now);
        self.next.steps.pauses = vec![PauseCondition { reason, start_time, user_paused: false }];
        self.next.requeue_at = span.map(|span| later(start_time, span));
    }

    /// True when the user's annotation names this step, and the step waits.
    fn is_approved(&self) -> bool {
        !self.observed.is_empty()
            && self.input.resume == Some(approval(self.input.update, self.index).as_str())
    }

    /// True when the user has ended the wait of the last status.
    fn is_resumed(&self) -> bool {
        let unpaused = !self.input.paused && self.observed.iter().any(|pause| pause.user_paused);
        unpaused || self.is_approved()
    }

    fn is_paused_by(&self, reason: PauseReason) -> bool {
        self.next.steps.pauses.iter().any(|pause| pause.reason == reason)
    }

    /// Pauses because the hook `run` of the step did not succeed.
    fn pause_after(&mut self, run: &str) -> Part {
        let part = self.pause(PauseReason::PausedByStepBasedHook, None);
        if matches!(part, Part::Waits) {
            self.next.failed_hook = Some(failed_hook::of_step(self.index, run));
        }
        part
    }

    /// Begins the wait, or ends it. The status records both: a controller that restarts in between reaches the same
    /// state.
    fn pause(&mut self, reason: PauseReason, span: Option<SignedDuration>) -> Part {
        let begun = self.next.steps.pauses.iter().find(|pause| pause.reason == reason);
        match begun.map(|pause| pause.start_time) {
            // The user's own pause is not that of the step, and its end does not resume the step.
            None if self.input.paused => {}
            None => self.begin_pause(reason, span),
            Some(_) if self.is_resumed() => return Part::Over,
            Some(begun) => {
                let end = span.map(|span| later(begun, span));
                if end.is_some_and(|end| end <= self.input.now) {
                    return Part::Over;
                }
                self.next.requeue_at = end;
            }
        }
        Part::Waits
    }

    fn key(&self) -> String {
        format!("{}/{}", self.next.steps.hash, self.index)
    }

    /// Deletes runs of other steps. That of a step that ends now stays until the status has the next one, which may not be
    /// written: without the run, the hook would begin again.
    fn delete_runs(&mut self) {
        let key = self.key();
        let over = |run: &&Run| run.kind == HookType::Canary && run.key != key && !run.deleting;
        let over: Vec<_> =
            self.input.runs.iter().filter(over).map(|run| Action::DeleteRun(run.name.clone())).collect();
        self.next.actions.extend(over);
    }
}

#[cfg(test)]
mod tests;
