//! The decision about a workload: which writes follow now, what the status reports, when to reconcile again. Writes
//! nothing.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::api::kstatus;
use crate::api::selector;
use crate::api::workload::CanaryStatus;
use crate::podtask::amount::Amount;
use crate::podtask::task::Purpose;
use crate::podtask::time::later;
use crate::podtask::write::Event;
use crate::workload::abort::{self, ABORTED, ABORTING};
use crate::workload::act::{self, Acts};
use crate::workload::action::Action;
use crate::workload::canary::{self, CanaryInput, Held, Step};
use crate::workload::claims::READ_CLASS_AGAIN;
use crate::workload::deadline::{self, Deadline, EXCEEDED};
use crate::workload::failed_hook;
use crate::workload::health::{self, Findings};
use crate::workload::input::{CachedObjects, ReconcileInput};
use crate::workload::prefetch;
use crate::workload::report::{AVAILABLE, Counts, PROGRESSING, Report, SCALE_FAILED, Steps, UPDATE_FAILED};
use crate::workload::resize;
use crate::workload::revision::{self, Found, Revision};
use crate::workload::scale::{self, Scaling};
use crate::workload::spec::{Kind, WorkloadSpec};
use crate::workload::stateful::{self, Ordinals, is_replica_of, threshold};
use crate::workload::status::{self, UpdateFailure};
use crate::workload::survey::Survey;
use crate::workload::update;
use crate::workload::view::PodView;

/// The result of one reconcile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// The writes, in order. A failed one stops neither the others nor the status. Of the last two, `ClearResume` is omitted
    /// if the status keeps its steps, and `ClearRetry` if a write of the retry was not done.
    pub actions: Vec<Action>,
    /// The status; after a failed write see [`Report::after_failure`]. None: the status is not written.
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
    let recorded = status::recorded_stop(spec, before, &found.revision.name);
    let was_stopped = recorded.is_some();
    let failure = recorded.filter(|_| !spec.retries_update());
    let current = current(spec, before, objects, &found.revision, failure.is_some());
    let stable = abort::stable(before, objects.revisions, current);
    let aborts = abort::is_active(spec, before, &found.revision.name);
    // While an update is aborted, all pods are updated to the stable revision.
    let (update, old) = if aborts { (stable, stable) } else { (&found.revision, current) };
    let input = ReconcileInput::new(spec, objects, update, old, aborts);

    let step = if aborts { abort::step(spec, before, objects) } else { steps(&input, objects, before) };
    // New pods get the newest revision while a step waits, and not while the user pauses.
    let paused = spec.update.paused;
    let mut survey = Survey::of(&input, step.held, paused || step.waits, step.waits && !paused);
    // Without the stable revision there is nothing to go back to, and no pod may get the aborted one.
    let lost = aborts && update.name == found.revision.name;
    survey.recorded_stop =
        failure.filter(|stop| !input.is_everywhere() && !status::is_made_good(&input, stop));
    let stays_stopped = lost || survey.recorded_stop.is_some();
    survey.stopped |= stays_stopped;
    survey.creates_old |= stays_stopped;
    let scaling = match &spec.kind {
        Kind::Deployment(own) => scale::decide(&input, own, &survey),
        Kind::StatefulSet(set) => stateful::decide(&input, set, &survey),
    };
    let picks = update::pick(&input, &survey, &scaling);
    let mut acts = act::act(&input, &scaling, &picks);
    prefetch::add(&input, &survey, &scaling, &mut acts.actions);

    let decided = Decided {
        found: &found,
        current: &current.name,
        aborts,
        step: &step,
        survey: &survey,
        scaling: &scaling,
        acts: &acts,
    };
    let Reported { report, deadline, failure } = report(&input, before, &decided);
    // Where something else stops the update, such as a failed hook, its pods wait unchanged and the deadline decides
    // nothing.
    let late = failure.as_ref().is_some_and(|failure| failure.reason == EXCEEDED);
    // Without a stable revision, there is none that is known to serve.
    let may_abort = !aborts && !report.stable_revision.is_empty();
    if may_abort && abort::begins(spec, &found.revision.name, stable, failure.as_ref(), late) {
        let cause =
            failure.map_or_else(|| "the update does not progress".to_owned(), |failure| failure.message);
        let (report, event) = abort::begin(report, before, &stable.name, &cause, objects.now);
        let actions = vec![Action::Report(event)];
        return Decision { actions, report: Some(report), requeue_at: Some(objects.now) };
    }
    // The retry of an aborted or stopped update is confirmed only when the status does not say so any more.
    let is_abort_over = before.aborted_revision.is_empty() || !spec.update.retry;
    let is_stop_over = !was_stopped || !spec.retries_update();
    let unconfirmed = !(is_abort_over && is_stop_over);
    let again = unconfirmed.then_some(objects.now);
    let read_class = acts.claim_problem.is_some().then(|| later(input.now, READ_CLASS_AGAIN));
    let times = [
        act::requeue_at(&input),
        acts.requeue_at,
        step.requeue_at,
        deadline.requeue_at,
        again,
        read_class,
        survey.ask_again,
    ];
    let events = events(before, &report);
    let mut actions = actions(&input, objects, before, &found, acts, step, events);
    actions.extend((asks_retry(spec) && !unconfirmed).then_some(Action::ClearRetry));
    Decision { actions, report: Some(report), requeue_at: times.into_iter().flatten().min() }
}

/// The revision that pods are held back at. `stopped`: too many pods failed.
fn current<'a>(
    spec: &WorkloadSpec,
    before: &Report,
    objects: &'a CachedObjects<'_>,
    update: &'a Revision,
    stopped: bool,
) -> &'a Revision {
    let active = || objects.pods.iter().filter(|pod| pod.is_active());
    let has_steps = spec.update.canary.as_ref().is_some_and(|canary| !canary.steps.is_empty());
    let holds = stopped
        || spec.update.paused
        || spec.update.partition.held_back(spec.replicas) > 0
        || has_steps && before.steps.canary.revision != update.name;
    let is_replica = is_replica_of(spec);
    let updated = active().filter(|pod| pod.label == update.name && is_replica(pod)).count();
    let carried = active().map(|pod| pod.label.as_str()).collect();
    let may_lack_held = holds && updated < spec.replicas;
    revision::current(objects.revisions, &carried, may_lack_held, &before.current_revision, update)
}

/// True when a person asks to retry what failed.
fn asks_retry(spec: &WorkloadSpec) -> bool {
    spec.hooks.retry_pre_delete || spec.retries_update()
}

/// The state of the canary steps; without steps, the partition of the spec applies.
fn steps(input: &ReconcileInput<'_>, objects: &CachedObjects<'_>, before: &Report) -> Step {
    let spec = input.spec;
    let reached = |held: Held| reached(input, held);
    let is_rolled_out = || is_rolled_out(input);
    let Some(canary) = spec.update.canary.as_ref().filter(|canary| !canary.steps.is_empty()) else {
        return Step {
            held: Held::Part(spec.update.partition),
            steps: Steps { canary: without_steps(input, before), ..Steps::default() },
            actions: canary::clear(objects.runs, spec.update.resume_step.as_deref()),
            requeue_at: (!before.steps.pauses.is_empty()).then_some(objects.now),
            problem: None,
            failed_hook: None,
            waits: !before.steps.pauses.is_empty(),
        };
    };
    let canary_input = CanaryInput {
        canary,
        update: input.update_name(),
        all_updated: input.all_updated(),
        has_served: has_served(input, before),
        reached: &reached,
        is_rolled_out: &is_rolled_out,
        paused: spec.update.paused,
        resume: spec.update.resume_step.as_deref(),
        runs: objects.runs,
        templates: objects.templates,
        now: objects.now,
    };
    canary::decide(&canary_input, &before.steps)
}

/// True when the workload has served before this update: it has had a stable revision, or as many pods serve as an update
/// leaves available.
fn has_served(input: &ReconcileInput<'_>, before: &Report) -> bool {
    let serve = input.views.iter().filter(|view| view.available && !view.is_at(input.update_name())).count();
    let enough = input.spec.replicas.saturating_sub(input.spec.bounds().unavailable).max(1);
    !before.stable_revision.is_empty() || serve >= enough
}

/// The revision that was rolled out last, of a workload whose steps were removed: without it, the way back to that
/// revision would have steps once there are steps again.
fn without_steps(input: &ReconcileInput<'_>, before: &Report) -> CanaryStatus {
    let mut revision = before.steps.canary.revision.clone();
    if !revision.is_empty() && is_rolled_out(input) {
        input.update_name().clone_into(&mut revision);
    }
    CanaryStatus { revision, ..CanaryStatus::default() }
}

/// True when all pods are updated and available, and there is one.
fn is_rolled_out(input: &ReconcileInput<'_>) -> bool {
    input.all_updated() && reached(input, Held::Part(Amount::Count(0))) && any_serves(input)
}

/// True when a pod at the newest revision is available. Without pods an update is complete, and nothing shows that its
/// revision serves.
fn any_serves(input: &ReconcileInput<'_>) -> bool {
    input.staying().any(|view| view.available && view.is_at(input.update_name()))
}

/// True when no further pod has to be updated under this partition, and the updated ones are available.
fn reached(input: &ReconcileInput<'_>, held: Held) -> bool {
    let (spec, update) = (input.spec, input.update_name());
    let done = |view: &&PodView<'_>| view.is_at(update) && view.available;
    match (&spec.kind, held) {
        (_, Held::All) => true,
        (Kind::Deployment(_), Held::Part(amount)) => {
            let held = amount.held_back(spec.replicas);
            let old = input.staying().filter(|view| !view.is_at(update)).count();
            old <= held && input.staying().filter(done).count() >= spec.replicas.saturating_sub(held)
        }
        (Kind::StatefulSet(set), Held::Part(_)) => {
            let first = threshold(spec, held).unwrap_or(u32::MAX);
            let ordinals = Ordinals::of(spec, set, 0);
            let there = input.views.iter().filter(done).filter_map(|view| view.pod.ordinal(&spec.name));
            let there = there.filter(|ordinal| *ordinal >= first && ordinals.is_own(*ordinal));
            there.collect::<BTreeSet<_>>().len() == ordinals.own_from(first)
        }
    }
}

fn actions(
    input: &ReconcileInput<'_>,
    objects: &CachedObjects<'_>,
    before: &Report,
    found: &Found,
    acts: Acts,
    step: Step,
    events: Vec<Event>,
) -> Vec<Action> {
    let spec = input.spec;
    let mut actions: Vec<_> =
        found.write.map(|write| Action::WriteRevision(found.revision.clone(), write)).into_iter().collect();
    actions.extend(acts.actions);
    let mut needed =
        revision::needed(objects.pods.iter().copied(), [input.current_name(), &before.stable_revision]);
    needed.extend([input.update_name(), found.revision.name.as_str()]);
    let surplus = revision::surplus(&objects.history, &needed, spec.history);
    actions.extend(surplus.into_iter().map(|name| Action::DeleteRevision(name.to_owned())));
    actions.extend(events.into_iter().map(Action::Report));
    let (last, others): (Vec<_>, Vec<_>) =
        step.actions.into_iter().partition(|action| matches!(action, Action::ClearResume));
    actions.extend(others);
    actions.extend(last);
    actions
}

/// What was decided, for the report.
struct Decided<'p, 'a> {
    found: &'p Found,
    /// The revision that a partition holds pods back at.
    current: &'p str,
    /// True while the update is aborted.
    aborts: bool,
    step: &'p Step,
    survey: &'p Survey<'a>,
    scaling: &'p Scaling<'a>,
    acts: &'p Acts,
}

/// The report, and what it is based on.
struct Reported {
    report: Report,
    deadline: Deadline,
    failure: Option<UpdateFailure>,
}

fn report(input: &ReconcileInput<'_>, before: &Report, decided: &Decided<'_, '_>) -> Reported {
    let (spec, now) = (input.spec, input.now);
    let Decided { found, current, aborts, step, survey, scaling, acts } = *decided;
    let revision = found.revision.name.as_str();
    let mut report = Report {
        generation: spec.generation,
        counts: Counts::of(&input.views, revision, current),
        current_revision: current.to_owned(),
        update_revision: revision.to_owned(),
        stable_revision: before.stable_revision.clone(),
        aborted_revision: if aborts { revision.to_owned() } else { String::new() },
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
    let blocked = scaling.problem.clone().or_else(|| problem(true)).map(|problem| ("Blocked", problem));
    let failed_hook =
        || failed_hook::message(&acts.failed_hooks, true).map(|message| ("HookFailed", message));
    let scale_failure = blocked.or_else(failed_hook);
    match &scale_failure {
        Some((reason, problem)) => report.set_condition(SCALE_FAILED, true, reason, problem.clone(), now),
        None => report.set_condition(SCALE_FAILED, false, "NoFailure", "", now),
    }
    let no_hook = problem(false).or_else(|| step.problem.clone());
    let goes_on = || reached(input, step.held) || abort::awaits_deadline(spec, before, input.update_name());
    let mut update_failure = status::update_failure(input, survey, scaling, acts, step, no_hook, &goes_on);
    if aborts {
        let back = input.all_updated() && reached(input, step.held);
        update_failure = Some(abort::failure(before, input.update_name(), update_failure.as_ref(), back));
    }
    let unexpanded = acts.claim_problem.clone();
    let unexpanded = unexpanded.map(|problem| UpdateFailure::new("ClaimNotExpanded", problem, false));
    match update_failure.as_ref().or(unexpanded.as_ref()) {
        Some(UpdateFailure { reason, message, .. }) => {
            report.set_condition(UPDATE_FAILED, true, reason, message.clone(), now);
        }
        None => report.set_condition(UPDATE_FAILED, false, "NoFailure", "", now),
    }
    let progress =
        status::progress(input, survey, step.held, update_failure.as_ref(), &|held| reached(input, held));
    let progress = update::with_budgets(input, &acts.budgets, progress);
    let progress = update::with_not_ready(input, survey, progress);
    let (going, reason, message) = resize::with_waiting(input, progress);
    let (going, reason) = if aborts && reason == "Complete" { (false, ABORTED) } else { (going, reason) };
    let deadline = deadline::of(input, before, revision, reason, &acts.actions);
    let late = deadline.exceeded && (going || matches!(reason, "HookTemplate" | ABORTING));
    let (going, reason) = if late { (false, EXCEEDED) } else { (going, reason) };
    report.set_condition(PROGRESSING, going, reason, message.clone(), now);
    report.set_last_progress(Some(deadline.last_progress));
    if reason == "Complete" && any_serves(input) {
        revision.clone_into(&mut report.stable_revision);
    } else if report.stable_revision.is_empty() && current != revision && serves(input, current) {
        // The revision before the first update that this release observes.
        current.clone_into(&mut report.stable_revision);
    }
    let update_failure = if late { Some(late_failure(spec, &message)) } else { update_failure };
    let steps = spec.update.canary.as_ref().map_or(0, |canary| canary.steps.len());
    let hook_failed = scale_failure.as_ref().filter(|(reason, _)| *reason == "HookFailed");
    let findings = Findings {
        progress: (reason, &message),
        update_failure: update_failure.as_ref(),
        scale_in_hook: hook_failed.map(|(_, message)| message.as_str()),
        scales: !scaling.create_pods.is_empty() || !scaling.leave.is_empty(),
        steps_left: report.steps.index.is_some_and(|index| index < steps),
        counts: report.counts,
    };
    report.set_health(&health::of(input, &findings), now);
    Reported { report, deadline, failure: update_failure }
}

/// True when a pod at `revision` is available.
fn serves(input: &ReconcileInput<'_>, revision: &str) -> bool {
    input.views.iter().any(|view| view.available && view.is_at(revision))
}

/// What `Stalled` says when the progress deadline is exceeded.
fn late_failure(spec: &WorkloadSpec, far: &str) -> UpdateFailure {
    let seconds = spec.progress_deadline.map_or(0, |span| span.as_secs());
    let message = format!(
        "no progress for {seconds} s: {far}; read the conditions and the events of the pods that are not updated or \
         not available, then change the template or set retry"
    );
    UpdateFailure::new(EXCEEDED, message, true)
}

/// The events about changes of the status.
fn events(before: &Report, report: &Report) -> Vec<Event> {
    let reason = |report: &Report| report.progressing().map(|condition| condition.reason.clone());
    let late = reason(report).as_deref() == Some(EXCEEDED) && reason(before).as_deref() != Some(EXCEEDED);
    let stalled = report.conditions.iter().find(|condition| condition.kind == kstatus::STALLED);
    let message = stalled.map(|condition| condition.message.clone()).unwrap_or_default();
    let back = reason(report).as_deref() == Some(ABORTED) && reason(before).as_deref() != Some(ABORTED);
    let late = late.then(|| Event::warning(EXCEEDED, message.clone()));
    let back = back.then_some(Event { reason: ABORTED, message, warning: false });
    late.into_iter().chain(back).collect()
}

#[cfg(test)]
mod tests;
