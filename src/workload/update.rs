//! Decides which pods are updated next: how many at once, and in which order.
//!
//! Two limits hold at any time. At most `maxUnavailable` pods, plus one for each pod beyond `replicas`, have an
//! update task. An available pod gets one only if `replicas - maxUnavailable` pods are available without it. A pod
//! that is not available is exempt, so that broken pods never block their own repair. Where pods are deleted, a third
//! limit holds: see `replacement`.
//!
//! An update in place of a Ready pod also needs what the `PodDisruptionBudget`s of the pod allow, as an eviction does.
//! Deletions do not: Kubernetes' own controllers ignore budgets as well when they delete pods.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;

use crate::api::game_deployment::UpdateType;
use crate::podtask::budget::Budget;
use crate::podtask::disruption::DisruptionAllowance;
use crate::podtask::foreign::ForeignStep;
use crate::podtask::node_load::NodeLoad;
use crate::podtask::pod::PodPhase;
use crate::podtask::priority::{Group, group};
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::{PodTask, Purpose, RETRY_AFTER};
use crate::podtask::time::later;
use crate::workload::canary::Held;
use crate::workload::input::ReconcileInput;
use crate::workload::order;
use crate::workload::replacement::Replacement;
use crate::workload::scale::Scaling;
use crate::workload::survey::{Route, Survey, is_early, needs_repair};
use crate::workload::view::PodView;

/// How long a pod is not Ready before it takes the place of one that waits. A pod that is not Ready for a moment costs no other
/// one the hook that it has passed or waits for.
pub const BROKEN_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// A task that a pod is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The purpose.
    pub purpose: Purpose,
    /// The target revision; empty when the pod is to be deleted.
    pub target: &'a str,
}

impl<'a> Wanted<'a> {
    fn new(purpose: Purpose, target: &'a str) -> Self {
        let deletes = matches!(purpose, Purpose::ScaleIn | Purpose::Recreate);
        Self { purpose, target: if deletes { "" } else { target } }
    }

    /// The task of a pod that is removed.
    pub fn leave() -> Self {
        Self::new(Purpose::ScaleIn, "")
    }

    /// True when the pod is updated in place.
    fn is_in_place(&self) -> bool {
        matches!(self.purpose, Purpose::InPlace | Purpose::HotPatch)
    }

    /// True when `task` has the same purpose and target.
    pub fn is(&self, task: &PodTask) -> bool {
        task.purpose == self.purpose && task.target == self.target
    }
}

/// Which pods get a task, and which ones only get other labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picks<'a> {
    /// Tasks by the name of the pod.
    pub tasks: BTreeMap<&'a str, Wanted<'a>>,
    /// Names of those of these pods that keep their task and are not deleted yet: too many others are being replaced.
    pub waits: BTreeSet<&'a str>,
    /// Names of pods that only get labels and annotations.
    pub relabel: BTreeSet<&'a str>,
    /// Names of the `PodDisruptionBudget`s that keep pods from being picked.
    pub budgets: BTreeSet<String>,
    /// The tasks that pods whose cpu and memory are being resized should have now, by the name of the pod. Without one, no new
    /// container follows the resize.
    pub resizing: BTreeMap<&'a str, Wanted<'a>>,
}

/// Picks pods among those that stay.
pub fn pick<'a>(input: &ReconcileInput<'a>, survey: &Survey<'a>, scaling: &Scaling<'_>) -> Picks<'a> {
    if !survey.moving() {
        return Picks::default();
    }
    let pool: Vec<_> = input.views.iter().filter(|view| !scaling.goes(&view.pod.name)).collect();
    let mut allocation = Allocation::new(input, survey, scaling, &pool);
    // First the pods that were chosen before and may keep their tasks.
    let (mut blocked, mut taken) = (Vec::new(), Vec::new());
    for view in pool.iter().filter(|view| view.task_state == TaskState::Waiting) {
        if let (Some(task), Some(wanted)) = (view.live(), allocation.wanted(view))
            && wanted.is(task)
        {
            if wanted.is_in_place() && view.is_taken() {
                taken.push((*view, wanted));
            } else if allocation.allows(view, wanted) {
                allocation.keep(view, wanted);
            } else {
                blocked.push((*view, wanted));
            }
        }
    }
    // Then the next ones.
    let mut next: Vec<_> = pool
        .iter()
        .copied()
        .filter(|view| view.task_state == TaskState::Over && may_begin(input, view))
        .collect();
    next.sort_by(|one, other| order_of_update(input, one, other));
    let current = current_group(input, survey);
    let highest = highest_left(input, survey, &pool);
    let waits = |view: &PodView<'_>| {
        let is_of_later_group = current.as_ref().is_some_and(|current| group_of(input, view) != *current);
        let is_below = view.available && view.pod.ordinal(&input.spec.name) < highest;
        let has_task = || matches!(survey.route(view), Route::PodTask(_));
        // A pod that goes back to its own revision belongs to no group, and waits for no other one.
        !allocation.is_held(view) && (is_of_later_group || is_below && has_task())
    };
    let next: Vec<_> = next.into_iter().filter(|view| !waits(view)).collect();
    // Tasks that wait until other pods are available. A broken pod comes before them: its update may be what they wait for.
    let (broken, rest): (Vec<_>, Vec<_>) =
        next.into_iter().partition(|view| !blocked.is_empty() && is_broken(input, view));
    for view in broken {
        allocation.next(view);
    }
    for (view, wanted) in blocked {
        allocation.keep(view, wanted);
    }
    for view in rest {
        allocation.next(view);
    }
    // Another client's operation may last: it takes no place from others.
    for (view, wanted) in taken {
        allocation.keep(view, wanted);
    }
    allocation.go_on_with_resized(&pool);
    allocation.picks
}

/// True if the pod does not serve and will hardly do so by itself.
fn is_broken(input: &ReconcileInput<'_>, view: &PodView<'_>) -> bool {
    let is_unready = || view.pod.unready_since.is_some_and(|since| later(since, BROKEN_AFTER) <= input.now);
    !view.available && (view.between_revisions || view.pod.foreign.is_some() || is_unready())
}

/// The group of a pod by the keys of `priority`.
fn group_of(input: &ReconcileInput<'_>, view: &PodView<'_>) -> Group {
    let node = view.pod.node.as_ref().and_then(|node| input.nodes.get(node));
    group(&input.spec.update.priority, view.pod, node.map(|node| node.labels.as_ref()))
}

/// The first group with a pod that is still to be updated; `None` without keys. A pod whose task failed or that no
/// agent accepted holds up no other group.
fn current_group(input: &ReconcileInput<'_>, survey: &Survey<'_>) -> Option<Group> {
    if input.spec.update.priority.is_empty() || input.spec.stateful().is_some_and(|set| set.ordered) {
        return None;
    }
    let update = input.update_name();
    let pending = |view: &&PodView<'_>| {
        let waits = matches!(survey.route(view), Route::PodTask(_)) && survey.is_eligible(input, view);
        // The spec of a pod names the new image some time before its task has ended.
        (waits || is_busy_with(view, update)) && input.failure(view).is_none()
    };
    input.views.iter().filter(pending).map(|view| group_of(input, view)).min()
}

/// The highest ordinal of an ordered set that is still to be updated; available pods below it wait. A pod that failed is
/// left out: where the threshold lets the update continue, it does so below.
fn highest_left(input: &ReconcileInput<'_>, survey: &Survey<'_>, pool: &[&PodView<'_>]) -> Option<u32> {
    input.spec.stateful().filter(|set| set.ordered)?;
    let is_left = |view: &PodView<'_>| {
        matches!(survey.route(view), Route::PodTask(_))
            && survey.is_eligible(input, view)
            && input.failure(view) != Some(Stage::Failed)
    };
    let left = pool.iter().filter(|view| is_left(view));
    left.filter_map(|view| view.pod.ordinal(&input.spec.name)).max()
}

/// True while an agent has the request for the task of `view` to `revision`.
fn is_busy_with(view: &PodView<'_>, revision: &str) -> bool {
    matches!(view.task_state, TaskState::Busy { .. })
        && view.live().is_some_and(|task| task.target == revision)
}

/// The remaining budget while pods are picked.
struct Allocation<'s, 'a> {
    input: &'s ReconcileInput<'a>,
    survey: &'s Survey<'a>,
    picks: Picks<'a>,
    /// How many of the pods that are old now the partition does not hold back, whether a task moves them already or not.
    released: usize,
    /// How many more pods may go to the newest revision.
    allowance: usize,
    /// How many more tasks may begin, and on how many available pods.
    budget: Budget,
    /// What the `PodDisruptionBudget`s allow.
    disruptions: DisruptionAllowance,
    /// How many more pods may be deleted.
    replacement: Replacement,
    /// The requests in progress by node.
    load: NodeLoad<'a>,
}

impl<'s, 'a> Allocation<'s, 'a> {
    fn new(
        input: &'s ReconcileInput<'a>,
        survey: &'s Survey<'a>,
        scaling: &Scaling<'_>,
        pool: &[&PodView<'a>],
    ) -> Self {
        let update = input.update_name();
        let old = pool.iter().filter(|view| !view.is_at(update)).count();
        let released = old.saturating_sub(survey.held);
        // Pods to be removed count as well while an agent has their requests.
        let is_busy = |view: &&PodView<'_>| matches!(view.task_state, TaskState::Busy { .. });
        let busy = input.views.iter().filter(is_busy).count();
        let coming = input.views.iter().filter(|view| is_busy_with(view, update)).count();
        let allowance = match survey.partition {
            // The partition holds back pods with ordinals individually.
            _ if input.spec.stateful().is_some() => usize::MAX,
            Held::All => 0,
            Held::Part(_) => released.saturating_sub(coming),
        };
        let more = pool.len().saturating_sub(input.spec.replicas);
        let limit = (input.spec.bounds().unavailable + more).max(1);
        Self {
            input,
            survey,
            picks: Picks::default(),
            released,
            allowance,
            budget: Budget { tasks: limit.saturating_sub(busy), ..spare(input, pool) },
            disruptions: input.disruptions(),
            replacement: Replacement::of(input, pool, scaling),
            load: input.node_load(),
        }
    }

    /// What the pods are to become that are being resized. They are part of what the partition releases; it may release fewer
    /// than when their tasks began.
    fn go_on_with_resized(&mut self, pool: &[&PodView<'a>]) {
        let update = self.input.update_name();
        let others = pool.iter().filter(|view| is_busy_with(view, update) && !view.is_resizing()).count();
        let by_ordinal = self.input.spec.stateful().is_some();
        let mut released = if by_ordinal { usize::MAX } else { self.released.saturating_sub(others) };
        for view in pool.iter().filter(|view| view.is_resizing()) {
            let Some(wanted) = self.wanted(view) else { continue };
            if wanted.target == update && !self.is_held(view) {
                if released == 0 {
                    continue;
                }
                released -= 1;
            }
            self.picks.resizing.insert(&view.pod.name, wanted);
        }
    }

    /// True when the partition keeps `view` from the newest revision.
    fn is_held(&self, view: &PodView<'_>) -> bool {
        let by_ordinal = self.input.spec.stateful().is_some();
        if by_ordinal { !self.survey.is_eligible(self.input, view) } else { self.released == 0 }
    }

    /// The task that `view` may have: to the newest revision, or back to its own if it is held back between two.
    fn wanted(&self, view: &PodView<'a>) -> Option<Wanted<'a>> {
        match self.survey.route(view) {
            _ if self.is_held(view) => repair(self.input, view),
            Route::PodTask(purpose) => Some(Wanted::new(*purpose, self.input.update_name())),
            Route::Done
            | Route::OnDelete
            | Route::Relabel
            | Route::Blocked(_)
            | Route::CannotStartFirst(_) => None,
        }
    }

    /// True when the task may begin, or go on, as far as other pods are concerned.
    fn allows(&self, view: &PodView<'_>, wanted: Wanted<'_>) -> bool {
        self.budget.allows(view.available) && self.may_touch(view, wanted)
    }

    /// True unless the task deletes the pod, and too many others are being replaced.
    fn may_touch(&self, view: &PodView<'_>, wanted: Wanted<'_>) -> bool {
        wanted.is_in_place() || self.replacement.allows(self.input, view)
    }

    /// Gives `view` a new task if the `PodDisruptionBudget`s and the budget allow it. A pod that is being evicted gets
    /// none.
    fn begin(&mut self, view: &PodView<'a>, wanted: Wanted<'a>) {
        if wanted.is_in_place() && !self.input.node_has_capacity(&self.load, view) {
            return;
        }
        let target = self.input.template(wanted.target).filter(|_| wanted.is_in_place());
        if target.is_some_and(|target| is_early(self.input, view, target)) {
            return;
        }
        if self.may_add(view) && wanted.is_in_place() && view.ready {
            if self.disruptions.is_disrupted(view.pod) {
                return;
            }
            if let Err(budget) = self.disruptions.claim(view.pod, true) {
                self.picks.budgets.insert(budget);
                return;
            }
        }
        self.allocate(view, wanted);
    }

    /// Begins a task of a pod without one, or gives it other labels.
    fn next(&mut self, view: &PodView<'a>) {
        match self.wanted(view) {
            Some(wanted) if self.allows(view, wanted) => self.begin(view, wanted),
            Some(_) => {}
            None => self.relabel(view),
        }
    }

    /// Leaves `view` its task if the limits allow it. Whether the `PodDisruptionBudget`s allow it now is decided when its hook
    /// has passed.
    fn keep(&mut self, view: &PodView<'a>, wanted: Wanted<'a>) {
        if wanted.is_in_place() && view.ready {
            let _ = self.disruptions.claim(view.pod, true);
        }
        self.allocate(view, wanted);
    }

    /// True when one more task may begin, within the partition.
    fn may_add(&self, view: &PodView<'_>) -> bool {
        self.budget.tasks > 0 && (self.is_held(view) || self.allowance > 0)
    }

    /// Gives `view` its task if the budget allows it.
    fn allocate(&mut self, view: &PodView<'a>, wanted: Wanted<'a>) {
        let held = self.is_held(view);
        if self.may_add(view) {
            if !self.may_touch(view, wanted) {
                self.picks.waits.insert(&view.pod.name);
            }
            self.picks.tasks.insert(&view.pod.name, wanted);
            self.load.add(view.pod.node.as_deref().filter(|_| wanted.is_in_place()));
            self.allowance = self.allowance.saturating_sub(usize::from(!held));
            self.budget.spend(view.available);
            self.replacement.spend();
        }
    }

    /// A change of labels counts against the partition only, because the pod stays available.
    fn relabel(&mut self, view: &PodView<'a>) {
        if self.allowance > 0 && !self.is_held(view) && *self.survey.route(view) == Route::Relabel {
            self.picks.relabel.insert(&view.pod.name);
            self.allowance -= 1;
        }
    }
}

/// The task that brings a pod that is held back between two revisions back to its own.
fn repair<'a>(input: &ReconcileInput<'a>, view: &PodView<'a>) -> Option<Wanted<'a>> {
    let purpose = match (view.pod.phase, input.spec.update.way) {
        (PodPhase::Running, UpdateType::HotPatchUpdate) => Purpose::HotPatch,
        (PodPhase::Running, _) => Purpose::InPlace,
        _ => Purpose::Recreate,
    };
    needs_repair(input, view).then(|| Wanted::new(purpose, &view.pod.label))
}

/// True unless its last task failed and must not be retried yet, or another client's request or update is in progress.
fn may_begin(input: &ReconcileInput<'_>, view: &PodView<'_>) -> bool {
    // The kubelet restarts containers for an update of a bk-bcs operator, or the gate of that update is about to be
    // opened.
    if matches!(view.foreign_step(input.now), Some(ForeignStep::Wait | ForeignStep::Open)) {
        return false;
    }
    // A pod that is replaced waits for no agent.
    if !input.spec.is_in_place() {
        return true;
    }
    let again = || view.pod.task.as_ref().is_none_or(|task| later(task.at, RETRY_AFTER) <= input.now);
    if input.failure(view) == Some(Stage::Failed) || view.is_unanswered(input.update_name()) && !again() {
        return false;
    }
    !view.is_taken()
}

/// Compares two pods. Pods without ordinals: pods that serve no traffic first; with ordinals: the same, then the
/// highest. A pod whose last request failed or went unanswered goes last, except in an ordered set.
pub(super) fn order_of_update(
    input: &ReconcileInput<'_>,
    one: &PodView<'_>,
    other: &PodView<'_>,
) -> Ordering {
    let ordered = input.spec.stateful().is_some_and(|set| set.ordered);
    let failed_before = |view: &PodView<'_>| !ordered && input.failure(view).is_some();
    let base = failed_before(one).cmp(&failed_before(other));
    if input.spec.stateful().is_none() {
        return base.then_with(|| order::update(one, other));
    }
    let ordinal = |view: &PodView<'_>| view.pod.ordinal(&input.spec.name);
    base.then_with(|| one.available.cmp(&other.available)).then_with(|| ordinal(other).cmp(&ordinal(one)))
}

/// The progress of an update, with the `PodDisruptionBudget`s that it waits for while no pod is in progress.
pub fn with_budgets(
    input: &ReconcileInput<'_>,
    budgets: &BTreeSet<String>,
    progress: (bool, &'static str, String),
) -> (bool, &'static str, String) {
    let (going, reason, message) = progress;
    let busy = input.views.iter().any(|view| matches!(view.task_state, TaskState::Busy { .. }));
    if budgets.is_empty() || reason != "Updating" {
        return (going, reason, message);
    }
    let names: Vec<_> = budgets.iter().map(String::as_str).collect();
    let message = format!("{message}, waiting for PodDisruptionBudget {}", names.join(", "));
    (going, if busy { reason } else { "PodDisruptionBudget" }, message)
}

/// The progress of an update, with the pods that get no request before their container is Ready.
pub fn with_not_ready(
    input: &ReconcileInput<'_>,
    survey: &Survey<'_>,
    progress: (bool, &'static str, String),
) -> (bool, &'static str, String) {
    let (going, reason, message) = progress;
    let is_updating = matches!(reason, "Updating" | "PodDisruptionBudget");
    let Some(first) = survey.not_ready.first().filter(|_| is_updating) else {
        return (going, reason, message);
    };
    let busy = input.views.iter().any(|view| matches!(view.task_state, TaskState::Busy { .. }));
    let message = format!(
        "{message}, waiting for {} pods to be Ready, for example {first}: with the order StartFirst a container that runs \
         and is not Ready is not replaced; to replace it, set spec.updateStrategy.inPlaceUpdateStrategy.order to StopFirst",
        survey.not_ready.len()
    );
    // A PodDisruptionBudget is named before: it often allows nothing because of the same pods.
    (going, if busy || reason != "Updating" { reason } else { "PodsNotReady" }, message)
}

/// How many available pods in `pool` may still become unavailable, whatever the number of tasks. A pod whose request
/// the agent has counts as unavailable.
pub fn spare(input: &ReconcileInput<'_>, pool: &[&PodView<'_>]) -> Budget {
    let busy = |view: &PodView<'_>| matches!(view.task_state, TaskState::Busy { .. });
    let serving = pool.iter().filter(|view| view.available && !busy(view)).count();
    let floor = input.spec.replicas.saturating_sub(input.spec.bounds().unavailable);
    Budget { tasks: usize::MAX, available: serving.saturating_sub(floor) }
}
