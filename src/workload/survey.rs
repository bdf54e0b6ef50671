//! What an update has before it: the way of each pod to the newest revision, how many are held back, what failed.

use std::collections::BTreeMap;

use crate::api::game_deployment::UpdateType;
use crate::workload::canary::Held;
use crate::workload::diff::Change;
use crate::workload::input::ReconcileInput;
use crate::workload::pods::{PodPhase, View, left_closed};
use crate::workload::request;
use crate::workload::stateful::threshold;
use crate::workload::task::{Purpose, Stage};

/// The way of one pod to the newest revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// It is there.
    There,
    /// Nothing is done until somebody deletes it.
    OnDelete,
    /// Only labels and annotations change.
    Relabel,
    /// A turn.
    PodTask(Purpose),
    /// There is none; the sentence says why.
    Blocked(String),
}

/// What an update has before it.
#[derive(Clone, Debug)]
pub struct Survey<'a> {
    /// The way of each pod that counts.
    pub routes: BTreeMap<&'a str, Route>,
    /// What holds pods back.
    pub partition: Held,
    /// How many pods are held back where pods are alike.
    pub held: usize,
    /// How many pods are not at the newest revision.
    pub old: usize,
    /// How many of them are to be moved by a turn.
    pub remaining: usize,
    /// How many pods need another one to stand in for them: those that are to be moved, those that are tried again later,
    /// those that failed and do not serve, and those that are held back between two revisions.
    pub without_stand_in: usize,
    /// How many turns towards the newest revision have failed.
    pub failed: usize,
    /// True when so many failed that no more begin.
    pub stopped: bool,
    /// True when the user, or a step, wants no more to begin.
    pub paused: bool,
    /// The way that the user wants.
    pub way: UpdateType,
    /// Why a pod cannot be updated, if one cannot.
    pub blocked: Option<String>,
}

impl<'a> Survey<'a> {
    /// Looks at all pods that count.
    pub fn of(input: &ReconcileInput<'a>, partition: Held, paused: bool) -> Self {
        let mut changes = BTreeMap::new();
        let routes: BTreeMap<_, _> = input
            .views
            .iter()
            .map(|view| (view.pod.name.as_str(), route(input, view, &mut changes)))
            .collect();
        let replicas = input.spec.replicas;
        let held = match partition {
            Held::All => replicas,
            Held::Part(amount) => amount.held_back(replicas),
        };
        let update = input.update_name();
        let old = input.views.iter().filter(|view| !view.is_at(update)).count();
        let failed =
            input.views.iter().filter(|view| view.last_failure(update) == Some(Stage::Failed)).count();
        let stopped = failed >= input.spec.threshold();
        let mut survey = Self {
            routes,
            partition,
            held,
            old,
            remaining: 0,
            without_stand_in: 0,
            failed,
            stopped,
            paused,
            way: input.spec.update.way,
            blocked: None,
        };
        survey.remaining = survey.to_move(input, |view| view.last_failure(update).is_none());
        // Nobody stands in for a pod that only stands in itself.
        let stands_in = |view: &View<'_>| view.pod.surge && input.spec.is_in_place();
        let gave_up = |view: &View<'_>| view.last_failure(update) == Some(Stage::Failed) && view.available;
        survey.without_stand_in = survey.to_move(input, |view| !stands_in(view) && !gave_up(view));
        let goes_back =
            |view: &&View<'_>| !stands_in(view) && !survey.is_eligible(input, view) && mends(input, view);
        survey.without_stand_in += input.views.iter().filter(goes_back).count();
        survey.blocked = input.views.iter().find_map(|view| match survey.route(view) {
            Route::Blocked(why) if survey.is_eligible(input, view) => {
                Some(format!("pod {}: {why}", view.pod.name))
            }
            _ => None,
        });
        survey
    }

    /// True when turns may begin.
    pub fn moving(&self) -> bool {
        !self.paused && !self.stopped && self.way != UpdateType::OnDelete
    }

    /// The way of a pod.
    pub fn route(&self, view: &View<'_>) -> &Route {
        self.routes.get(view.pod.name.as_str()).unwrap_or(&Route::There)
    }

    /// True when the partition lets this pod go, as far as it names pods.
    pub(super) fn is_eligible(&self, input: &ReconcileInput<'_>, view: &View<'_>) -> bool {
        if input.spec.stateful().is_none() {
            return self.old > self.held;
        }
        let ordinal = view.pod.ordinal(&input.spec.name);
        threshold(input.spec, self.partition)
            .is_some_and(|first| ordinal.is_some_and(|ordinal| ordinal >= first))
    }

    fn to_move(&self, input: &ReconcileInput<'_>, counts: impl Fn(&View<'_>) -> bool) -> usize {
        if matches!(self.way, UpdateType::HotPatchUpdate | UpdateType::OnDelete) {
            return 0;
        }
        let goes = |view: &&View<'_>| {
            matches!(self.route(view), Route::PodTask(_)) && self.is_eligible(input, view) && counts(view)
        };
        let going = input.views.iter().filter(goes).count();
        if input.spec.stateful().is_some() { going } else { going.min(self.old.saturating_sub(self.held)) }
    }
}

/// True when a pod stopped between two revisions and can go back to its own.
pub(super) fn mends(input: &ReconcileInput<'_>, view: &View<'_>) -> bool {
    let own = view.pod.label.as_str();
    view.torn && input.spec.is_in_place() && input.template(own).is_some() && view.last_failure(own).is_none()
}

/// The way of `view`; what lies between two revisions is found once for all pods.
fn route<'a>(
    input: &ReconcileInput<'a>,
    view: &View<'a>,
    changes: &mut BTreeMap<&'a str, Option<Change>>,
) -> Route {
    if view.is_at(input.update_name()) {
        // The turn of one that has just succeeded is still to be closed, nothing else.
        return Route::There;
    }
    match input.spec.update.way {
        UpdateType::OnDelete => return Route::OnDelete,
        UpdateType::RollingUpdate => return Route::PodTask(Purpose::Recreate),
        UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate => {}
    }
    let change = changes
        .entry(view.revision)
        .or_insert_with(|| Some(Change::between(input.template(view.revision)?, &input.update.template)));
    let refusal = match change {
        Some(change) => change.refusal(),
        None => Some(format!(
            "its revision `{}` is not known any more, so that nobody knows what changes",
            view.revision
        )),
    };
    if let Some(why) = refusal {
        return if input.spec.update.fallback {
            Route::PodTask(Purpose::Recreate)
        } else {
            Route::Blocked(why)
        };
    }
    let nothing = request::targets(view, &input.update.template, &input.revisions).is_empty();
    if nothing && !left_closed(view.pod, &input.revisions) {
        return Route::Relabel;
    }
    if view.pod.phase != PodPhase::Running {
        // Nothing in it is warm, and an agent has nothing to work on.
        return Route::PodTask(Purpose::Recreate);
    }
    let hot = input.spec.update.way == UpdateType::HotPatchUpdate;
    Route::PodTask(if hot { Purpose::HotPatch } else { Purpose::InPlace })
}
