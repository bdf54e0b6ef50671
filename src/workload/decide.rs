//! The decision about a workload: which writes follow now, what the status reports, when to reconcile again. Writes
//! nothing.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::podtask::selector;
use crate::podtask::task::Purpose;
use crate::podtask::time::later;
use crate::workload::act::{self, Acts};
use crate::workload::action::Action;
use crate::workload::canary::{self, CanaryInput, Held, Step};
use crate::workload::claims::READ_CLASS_AGAIN;
use crate::workload::hooks::HookType;
use crate::workload::input::{CachedObjects, ReconcileInput};
use crate::workload::report::{AVAILABLE, Counts, PROGRESSING, Report, SCALE_FAILED, Steps, UPDATE_FAILED};
use crate::workload::revision::{self, Found};
use crate::workload::scale::{self, Scaling};
use crate::workload::spec::{Kind, WorkloadSpec};
use crate::workload::stateful::{self, Ordinals, threshold};
use crate::workload::status;
use crate::workload::survey::Survey;
use crate::workload::update;
use crate::workload::view::PodView;

/// The result of one reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The writes, in order. A failed one stops neither the others nor the status; only the last two, `SetPaused` and
    /// `ClearRetry`, are omitted then.
    pub actions: Vec<Action>,
    /// The status once all writes succeeded; otherwise see [`Report::after_failure`]. None: the status is not
    /// written.
    pub report: Option<Report>,
    /// When to reconcile if no event arrives before.
    pub requeue_at: Option<Timestamp>,
}

/// Decides about `spec`, given the last report and what the cache holds.
pub fn decide(spec: &WorkloadSpec, before: &Report, objects: &CachedObjects<'_>) -> Decision {
    if spec.deleting {
        // The garbage collector does the rest.
        return Decision::default();
    }
    let found = revision::find(&spec.name, &spec.template, &objects.history, before.collisions);
    let carried: BTreeSet<&str> =
        objects.pods.iter().filter(|pod| pod.is_active()).map(|pod| pod.label.as_str()).collect();
    let current = revision::current(objects.revisions, &carried, &before.current_revision, &found.revision);
    let input = ReconcileInput::new(spec, objects, &found.revision, current);

    let step = steps(&input, objects, before);
    let survey = Survey::of(&input, step.held, spec.update.paused);
    let scaling = match &spec.kind {
        Kind::Deployment(own) => scale::decide(&input, own, &survey),
        Kind::StatefulSet(set) => stateful::decide(&input, set, &survey),
    };
    let picks = update::pick(&input, &survey, &scaling.leave);
    let acts = act::act(&input, &scaling, &picks);

    let report = report(&input, before, &found, &step, &survey, &scaling, &acts);
    let read_class = acts.claim_problem.is_some().then(|| later(input.now, READ_CLASS_AGAIN));
    let requeue_at = act::requeue_at(&input).into_iter().chain(step.requeue_at).chain(read_class).min();
    Decision { actions: actions(&input, objects, &found, acts, step), report: Some(report), requeue_at }
}

/// The state of the canary steps; without steps, the partition of the spec applies.
fn steps(input: &ReconcileInput<'_>, objects: &CachedObjects<'_>, before: &Report) -> Step {
    let spec = input.spec;
    let reached = |held: Held| reached(input, held);
    let Some(canary) = spec.update.canary.as_ref().filter(|canary| !canary.steps.is_empty()) else {
        let own_pause = !before.steps.pauses.is_empty() && spec.update.paused;
        let stale = objects.runs.iter().filter(|run| run.kind == HookType::Canary);
        let stale = stale.map(|run| Action::DeleteRun(run.name.clone()));
        return Step {
            held: Held::Part(spec.update.partition),
            steps: Steps::default(),
            actions: stale.chain(own_pause.then_some(Action::SetPaused(false))).collect(),
            requeue_at: None,
            problem: None,
        };
    };
    let canary_input = CanaryInput {
        canary,
        update: input.update_name(),
        all_updated: input.views.iter().all(|view| view.is_at(input.update_name())),
        reached: &reached,
        paused: spec.update.paused,
        runs: objects.runs,
        templates: objects.templates,
        now: objects.now,
    };
    canary::decide(&canary_input, &before.steps)
}

/// True when no further pod has to be updated under this partition, and the updated ones are available.
fn reached(input: &ReconcileInput<'_>, held: Held) -> bool {
    let (spec, update) = (input.spec, input.update_name());
    let done = |view: &&PodView<'_>| view.is_at(update) && view.available;
    match (&spec.kind, held) {
        (_, Held::All) => true,
        (Kind::Deployment(_), Held::Part(amount)) => {
            let held = amount.held_back(spec.replicas);
            let old = input.views.iter().filter(|view| !view.is_at(update)).count();
            old <= held && input.views.iter().filter(done).count() >= spec.replicas.saturating_sub(held)
        }
        (Kind::StatefulSet(set), Held::Part(_)) => {
            let first = threshold(spec, held).unwrap_or(u32::MAX);
            let ordinals = Ordinals::of(spec, set, 0).own;
            let there: BTreeSet<u32> =
                input.views.iter().filter(done).filter_map(|view| view.pod.ordinal(&spec.name)).collect();
            ordinals.range(first..).all(|ordinal| there.contains(ordinal))
        }
    }
}

fn actions(
    input: &ReconcileInput<'_>,
    objects: &CachedObjects<'_>,
    found: &Found,
    acts: Acts,
    step: Step,
) -> Vec<Action> {
    let spec = input.spec;
    let mut actions: Vec<_> =
        found.write.map(|write| Action::WriteRevision(found.revision.clone(), write)).into_iter().collect();
    actions.extend(acts.actions);
    let mut needed = revision::needed(objects.pods.iter().copied(), input.current_name());
    needed.insert(input.update_name());
    let surplus = revision::surplus(&objects.history, &needed, spec.history);
    actions.extend(surplus.into_iter().map(|name| Action::DeleteRevision(name.to_owned())));
    let (last, others): (Vec<_>, Vec<_>) =
        step.actions.into_iter().partition(|action| matches!(action, Action::SetPaused(_)));
    actions.extend(others);
    actions.extend(last);
    let hooks = &spec.hooks;
    let retry =
        hooks.retry_pre_delete || hooks.retry_pre_inplace || hooks.retry_post_inplace || spec.update.retry;
    actions.extend(retry.then_some(Action::ClearRetry));
    actions
}

fn report(
    input: &ReconcileInput<'_>,
    before: &Report,
    found: &Found,
    step: &Step,
    survey: &Survey<'_>,
    scaling: &Scaling<'_>,
    acts: &Acts,
) -> Report {
    let (spec, now) = (input.spec, input.now);
    let mut report = Report {
        generation: spec.generation,
        counts: Counts::of(&input.views, input.update_name(), input.current_name()),
        current_revision: input.current_name().to_owned(),
        update_revision: input.update_name().to_owned(),
        collisions: found.collisions,
        selector: selector::text(&spec.selector),
        conditions: before.conditions.clone(),
        steps: step.steps.clone(),
        pre_delete: acts.pre_delete.clone(),
        pre_inplace: acts.pre_inplace.clone(),
        post_inplace: status::post_inplace(input),
    };
    let problem = |deletes: bool| {
        let of_purpose = |(purpose, _): &&(Purpose, String)| (*purpose == Purpose::ScaleIn) == deletes;
        acts.problem.as_ref().filter(of_purpose).map(|(_, problem)| problem.clone())
    };
    let available = report.counts.available + spec.bounds().unavailable >= spec.replicas;
    let many = format!("{} of {} pods are available", report.counts.available, spec.replicas);
    report.set_condition(
        AVAILABLE,
        available,
        if available { "MinimumPodsAvailable" } else { "MinimumPodsUnavailable" },
        many,
        now,
    );
    match scaling.problem.clone().or_else(|| problem(true)) {
        Some(problem) => report.set_condition(SCALE_FAILED, true, "Blocked", problem, now),
        None => report.set_condition(SCALE_FAILED, false, "NoFailure", "", now),
    }
    let update_failure =
        status::update_failure(input, survey, problem(false).or_else(|| step.problem.clone()));
    let unexpanded = acts.claim_problem.clone().map(|problem| ("ClaimNotExpanded", problem));
    match update_failure.as_ref().or(unexpanded.as_ref()) {
        Some((reason, message)) => report.set_condition(UPDATE_FAILED, true, reason, message.clone(), now),
        None => report.set_condition(UPDATE_FAILED, false, "NoFailure", "", now),
    }
    let (going, reason, message) =
        status::progress(input, survey, step.held, update_failure, &|held| reached(input, held));
    report.set_condition(PROGRESSING, going, reason, message, now);
    report
}

#[cfg(test)]
mod tests;
