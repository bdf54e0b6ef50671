//! The one decision about a workload: what is to be written now, what is told, when to look again.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::workload::act::{self, Acts};
use crate::workload::action::Action;
use crate::workload::canary::{self, Held, Look, Step};
use crate::workload::hooks::HookType;
use crate::workload::pods::View;
use crate::workload::report::{AVAILABLE, Counts, PROGRESSING, Report, SCALE_FAILED, Steps, UPDATE_FAILED};
use crate::workload::revision::{self, Found};
use crate::workload::scale::{self, Scaling};
use crate::workload::scene::{Scene, Seen};
use crate::workload::stateful::{self, Ordinals, threshold};
use crate::workload::survey::Survey;
use crate::workload::turn::Purpose;
use crate::workload::update;
use crate::workload::wish::{Kind, Wish};
use crate::workload::{selector, status};

/// What follows from one look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// What is to be written, in this order. One that fails stops neither the others nor the status; only the last two,
    /// `SetPaused` and `ClearRetry`, are left out then.
    pub actions: Vec<Action>,
    /// What is to be told when all of it was written; see [`Report::after_failure`]. None: nothing.
    pub report: Option<Report>,
    /// When to look again if nothing happens before.
    pub look_again: Option<Timestamp>,
}

/// Decides about `wish`, given what was told last and what is seen.
pub fn decide(wish: &Wish, before: &Report, seen: &Seen<'_>) -> Decision {
    if wish.deleting {
        // The garbage collector does the rest.
        return Decision::default();
    }
    let found = revision::find(&wish.name, &wish.template, &seen.history, before.collisions);
    let carried: BTreeSet<&str> =
        seen.pods.iter().filter(|pod| pod.is_active()).map(|pod| pod.label.as_str()).collect();
    let current = revision::current(seen.revisions, &carried, &before.current_revision, &found.revision);
    let scene = Scene::new(wish, seen, &found.revision, current);

    let step = steps(&scene, seen, before);
    let survey = Survey::of(&scene, step.held, wish.update.paused);
    let scaling = match &wish.kind {
        Kind::Deployment(own) => scale::decide(&scene, own, &survey),
        Kind::StatefulSet(set) => stateful::decide(&scene, set, &survey),
    };
    let picks = update::pick(&scene, &survey, &scaling.leave);
    let acts = act::act(&scene, &scaling, &picks);

    let report = report(&scene, before, &found, &step, &survey, &scaling, &acts);
    let look_again = act::look_again(&scene).into_iter().chain(step.look_again).min();
    Decision { actions: actions(&scene, seen, &found, acts, step), report: Some(report), look_again }
}

/// Where the steps stand; without any, the partition of the spec holds.
fn steps(scene: &Scene<'_>, seen: &Seen<'_>, before: &Report) -> Step {
    let wish = scene.wish;
    let reached = |held: Held| reached(scene, held);
    let Some(canary) = wish.update.canary.as_ref().filter(|canary| !canary.steps.is_empty()) else {
        let own_pause = !before.steps.pauses.is_empty() && wish.update.paused;
        let stale = seen.runs.iter().filter(|run| run.kind == HookType::Canary);
        let stale = stale.map(|run| Action::DeleteRun(run.name.clone()));
        return Step {
            held: Held::Part(wish.update.partition),
            steps: Steps::default(),
            actions: stale.chain(own_pause.then_some(Action::SetPaused(false))).collect(),
            look_again: None,
            problem: None,
        };
    };
    let look = Look {
        canary,
        update: scene.update_name(),
        all_updated: scene.views.iter().all(|view| view.is_at(scene.update_name())),
        reached: &reached,
        paused: wish.update.paused,
        runs: seen.runs,
        templates: seen.templates,
        now: seen.now,
    };
    canary::look(&look, &before.steps)
}

/// True when no pod more is to be updated while so much is held back, and those that were are available.
fn reached(scene: &Scene<'_>, held: Held) -> bool {
    let (wish, update) = (scene.wish, scene.update_name());
    let done = |view: &&View<'_>| view.is_at(update) && view.available;
    match (&wish.kind, held) {
        (_, Held::All) => true,
        (Kind::Deployment(_), Held::Part(amount)) => {
            let held = amount.held_back(wish.replicas);
            let old = scene.views.iter().filter(|view| !view.is_at(update)).count();
            old <= held && scene.views.iter().filter(done).count() >= wish.replicas.saturating_sub(held)
        }
        (Kind::StatefulSet(set), Held::Part(_)) => {
            let first = threshold(wish, held).unwrap_or(u32::MAX);
            let ordinals = Ordinals::of(wish, set, 0).own;
            let there: BTreeSet<u32> =
                scene.views.iter().filter(done).filter_map(|view| view.pod.ordinal(&wish.name)).collect();
            ordinals.range(first..).all(|ordinal| there.contains(ordinal))
        }
    }
}

fn actions(scene: &Scene<'_>, seen: &Seen<'_>, found: &Found, acts: Acts, step: Step) -> Vec<Action> {
    let wish = scene.wish;
    let mut actions: Vec<_> =
        found.write.map(|write| Action::WriteRevision(found.revision.clone(), write)).into_iter().collect();
    actions.extend(acts.actions);
    let mut needed = revision::needed(seen.pods.iter().copied(), scene.current_name());
    needed.insert(scene.update_name());
    let surplus = revision::surplus(&seen.history, &needed, wish.history);
    actions.extend(surplus.into_iter().map(|name| Action::DeleteRevision(name.to_owned())));
    let (last, others): (Vec<_>, Vec<_>) =
        step.actions.into_iter().partition(|action| matches!(action, Action::SetPaused(_)));
    actions.extend(others);
    actions.extend(last);
    let hooks = &wish.hooks;
    let retry =
        hooks.retry_pre_delete || hooks.retry_pre_inplace || hooks.retry_post_inplace || wish.update.retry;
    actions.extend(retry.then_some(Action::ClearRetry));
    actions
}

fn report(
    scene: &Scene<'_>,
    before: &Report,
    found: &Found,
    step: &Step,
    survey: &Survey<'_>,
    scaling: &Scaling<'_>,
    acts: &Acts,
) -> Report {
    let (wish, now) = (scene.wish, scene.now);
    let mut report = Report {
        generation: wish.generation,
        counts: Counts::of(&scene.views, scene.update_name(), scene.current_name()),
        current_revision: scene.current_name().to_owned(),
        update_revision: scene.update_name().to_owned(),
        collisions: found.collisions,
        selector: selector::text(&wish.selector),
        conditions: before.conditions.clone(),
        steps: step.steps.clone(),
        pre_delete: acts.pre_delete.clone(),
        pre_inplace: acts.pre_inplace.clone(),
        post_inplace: status::post_inplace(scene),
    };
    let problem = |deletes: bool| {
        let of_purpose = |(purpose, _): &&(Purpose, String)| (*purpose == Purpose::ScaleIn) == deletes;
        acts.problem.as_ref().filter(of_purpose).map(|(_, problem)| problem.clone())
    };
    let available = report.counts.available + wish.bounds().unavailable >= wish.replicas;
    let many = format!("{} of {} pods are available", report.counts.available, wish.replicas);
    report.say(AVAILABLE, available, if available { "Enough" } else { "TooFew" }, many, now);
    match scaling.problem.clone().or_else(|| problem(true)) {
        Some(problem) => report.say(SCALE_FAILED, true, "Blocked", problem, now),
        None => report.say(SCALE_FAILED, false, "AsWanted", "", now),
    }
    let trouble = status::trouble(scene, survey, problem(false).or_else(|| step.problem.clone()));
    match &trouble {
        Some((reason, message)) => report.say(UPDATE_FAILED, true, reason, message.clone(), now),
        None => report.say(UPDATE_FAILED, false, "AsWanted", "", now),
    }
    let (going, reason, message) =
        status::progress(scene, survey, step.held, trouble, &|held| reached(scene, held));
    report.say(PROGRESSING, going, reason, message, now);
    report
}

#[cfg(test)]
mod tests;
