//! Who is updated next: how many may be on their way at once, and who goes first.
//!
//! Two bounds hold at any time. At most `maxUnavailable` pods (and one for each that there is more than wanted) have a turn.
//! And a pod that serves gets one only while, without it, `replicas - maxUnavailable` pods still serve; one that does not
//! serve loses nothing, so that broken pods never hold their own repair back.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::api::game_deployment::UpdateType;
use crate::workload::canary::Held;
use crate::workload::input::ReconcileInput;
use crate::workload::order;
use crate::workload::pods::{PodPhase, View};
use crate::workload::survey::{Route, Survey, mends};
use crate::workload::task::{AGAIN, PodTask, Purpose, Stage, TaskState, later};

/// A turn that a pod is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// What for.
    pub purpose: Purpose,
    /// The revision it is to get; empty when it is to be deleted.
    pub target: &'a str,
}

impl<'a> Wanted<'a> {
    fn new(purpose: Purpose, target: &'a str) -> Self {
        let deletes = matches!(purpose, Purpose::ScaleIn | Purpose::Recreate);
        Self { purpose, target: if deletes { "" } else { target } }
    }

    /// To leave.
    pub fn leave() -> Self {
        Self::new(Purpose::ScaleIn, "")
    }

    /// True when `task` is this one.
    pub fn is(&self, task: &PodTask) -> bool {
        task.purpose == self.purpose && task.target == self.target
    }
}

/// Who has a turn, and who only gets other labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picks<'a> {
    /// Those with a turn.
    pub tasks: BTreeMap<&'a str, Wanted<'a>>,
    /// Those that only get labels and annotations.
    pub relabel: BTreeSet<&'a str>,
}

/// Decides. Pods that `leave` are out of it.
pub fn pick<'a>(input: &ReconcileInput<'a>, survey: &Survey<'a>, leave: &BTreeSet<&str>) -> Picks<'a> {
    if !survey.moving() {
        return Picks::default();
    }
    let pool: Vec<_> = input.views.iter().filter(|view| !leave.contains(view.pod.name.as_str())).collect();
    let mut allocation = Allocation::new(input, survey, &pool);
    // Those that were chosen and may stay so.
    for view in pool.iter().filter(|view| view.task_state == TaskState::Asking) {
        if let (Some(task), Some(wanted)) = (view.live(), allocation.wanted(view))
            && wanted.is(task)
        {
            allocation.keep(view, wanted);
        }
    }
    // And the next ones.
    let mut next: Vec<_> = pool
        .into_iter()
        .filter(|view| view.task_state == TaskState::Over && may_begin(input, view))
        .collect();
    next.sort_by(|one, other| compare(input, one, other));
    for view in next {
        match allocation.wanted(view) {
            Some(wanted) if allocation.spare.allows(view) => allocation.keep(view, wanted),
            Some(_) => {}
            None => allocation.relabel(view),
        }
    }
    allocation.picks
}

/// What is still to be given away.
struct Allocation<'s, 'a> {
    input: &'s ReconcileInput<'a>,
    survey: &'s Survey<'a>,
    picks: Picks<'a>,
    /// True when the partition keeps all that are old now.
    all_held: bool,
    /// How many more may get to the newest revision.
    allowance: usize,
    /// How many turns there are.
    under_way: usize,
    /// How many there may be.
    limit: usize,
    /// How many pods that serve may be taken.
    spare: Spare,
}

impl<'s, 'a> Allocation<'s, 'a> {
    fn new(input: &'s ReconcileInput<'a>, survey: &'s Survey<'a>, pool: &[&View<'a>]) -> Self {
        let update = input.update_name();
        let old = pool.iter().filter(|view| !view.is_at(update)).count();
        // Those that leave are with their agents, too, until these let them go.
        let busy = || input.views.iter().filter(|view| matches!(view.task_state, TaskState::Busy { .. }));
        let coming = busy().filter(|view| view.live().is_some_and(|task| task.target == update)).count();
        let allowance = match survey.partition {
            // Pods with ordinals are held back one by one, by their ordinals.
            _ if input.spec.stateful().is_some() => usize::MAX,
            Held::All => 0,
            Held::Part(_) => old.saturating_sub(survey.held + coming),
        };
        let more = pool.len().saturating_sub(input.spec.replicas);
        Self {
            input,
            survey,
            picks: Picks::default(),
            all_held: old <= survey.held,
            allowance,
            under_way: busy().count(),
            limit: (input.spec.bounds().unavailable + more).max(1),
            spare: Spare::of(input, pool),
        }
    }

    /// True when the partition keeps `view` from the newest revision.
    fn is_held(&self, view: &View<'_>) -> bool {
        let by_ordinal = self.input.spec.stateful().is_some();
        if by_ordinal { !self.survey.is_eligible(self.input, view) } else { self.all_held }
    }

    /// The turn that `view` may have: to the newest revision, or back to its own if it is held back between two.
    fn wanted(&self, view: &View<'a>) -> Option<Wanted<'a>> {
        match self.survey.route(view) {
            _ if self.is_held(view) => mending(self.input, view),
            Route::PodTask(purpose) => Some(Wanted::new(*purpose, self.input.update_name())),
            Route::There | Route::OnDelete | Route::Relabel | Route::Blocked(_) => None,
        }
    }

    /// Gives `view` its turn, if there is one left.
    fn keep(&mut self, view: &View<'a>, wanted: Wanted<'a>) {
        let held = self.is_held(view);
        if self.under_way < self.limit && (held || self.allowance > 0) {
            self.picks.tasks.insert(&view.pod.name, wanted);
            self.allowance = self.allowance.saturating_sub(usize::from(!held));
            self.under_way += 1;
            self.spare.commit(view);
        }
    }

    /// Labels cost nobody anything.
    fn relabel(&mut self, view: &View<'a>) {
        if self.allowance > 0 && !self.is_held(view) && *self.survey.route(view) == Route::Relabel {
            self.picks.relabel.insert(&view.pod.name);
            self.allowance -= 1;
        }
    }
}

/// The way back of a pod that stopped between two revisions and is held back: to its own.
fn mending<'a>(input: &ReconcileInput<'a>, view: &View<'a>) -> Option<Wanted<'a>> {
    let purpose = match (view.pod.phase, input.spec.update.way) {
        (PodPhase::Running, UpdateType::HotPatchUpdate) => Purpose::HotPatch,
        (PodPhase::Running, _) => Purpose::InPlace,
        _ => Purpose::Recreate,
    };
    mends(input, view).then(|| Wanted::new(purpose, &view.pod.label))
}

/// True unless its last turn says that it is not to be tried now, or somebody else works on it.
fn may_begin(input: &ReconcileInput<'_>, view: &View<'_>) -> bool {
    let again = || view.pod.task.as_ref().is_none_or(|task| later(task.at, AGAIN) <= input.now);
    match view.last_failure(input.update_name()) {
        Some(Stage::Failed) => false,
        Some(_) => again() && !view.is_taken(),
        None => !input.spec.is_in_place() || !view.is_taken(),
    }
}

/// Where pods are alike, what serves nobody goes first; with ordinals, that and then the highest. Who did not answer waits
/// for the others.
fn compare(input: &ReconcileInput<'_>, one: &View<'_>, other: &View<'_>) -> Ordering {
    let silent = |view: &View<'_>| view.last_failure(input.update_name()).is_some();
    let base = silent(one).cmp(&silent(other));
    if input.spec.stateful().is_none() {
        return base.then_with(|| order::update(one, other));
    }
    let ordinal = |view: &View<'_>| view.pod.ordinal(&input.spec.name);
    base.then_with(|| one.available.cmp(&other.available)).then_with(|| ordinal(other).cmp(&ordinal(one)))
}

/// How many pods that serve may still be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    left: usize,
}

impl Spare {
    /// Of the pods in `pool`, those with the agent counted as gone already.
    pub fn of(input: &ReconcileInput<'_>, pool: &[&View<'_>]) -> Self {
        let busy = |view: &View<'_>| matches!(view.task_state, TaskState::Busy { .. });
        let serving = pool.iter().filter(|view| view.available && !busy(view)).count();
        let floor = input.spec.replicas.saturating_sub(input.spec.bounds().unavailable);
        Self { left: serving.saturating_sub(floor) }
    }

    /// True when `view` may be taken.
    pub fn allows(self, view: &View<'_>) -> bool {
        !view.available || self.left > 0
    }

    /// Takes it.
    pub fn commit(&mut self, view: &View<'_>) {
        self.left = self.left.saturating_sub(usize::from(view.available));
    }
}
