//! What an update has before it: the way of each pod to the newest revision, how many are held back, what failed.

use std::collections::BTreeMap;

use crate::api::game_deployment::UpdateType;
use crate::workload::canary::Held;
use crate::workload::diff::Change;
use crate::workload::pods::{PodPhase, View, left_closed};
use crate::workload::request;
use crate::workload::scene::Scene;
use crate::workload::stateful::threshold;
use crate::workload::turn::{Purpose, Stage};

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
    Turn(Purpose),
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
    pub fn of(scene: &Scene<'a>, partition: Held, paused: bool) -> Self {
        let mut changes = BTreeMap::new();
        let routes: BTreeMap<_, _> = scene
            .views
            .iter()
            .map(|view| (view.pod.name.as_str(), route(scene, view, &mut changes)))
            .collect();
        let replicas = scene.wish.replicas;
        let held = match partition {
            Held::All => replicas,
            Held::Part(amount) => amount.held_back(replicas),
        };
        let update = scene.update_name();
        let old = scene.views.iter().filter(|view| !view.is_at(update)).count();
        let failed = scene.views.iter().filter(|view| view.setback(update) == Some(Stage::Failed)).count();
        let stopped = failed >= scene.wish.threshold();
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
            way: scene.wish.update.way,
            blocked: None,
        };
        survey.remaining = survey.to_move(scene, |view| view.setback(update).is_none());
        // Nobody stands in for a pod that only stands in itself.
        let stands_in = |view: &View<'_>| view.pod.surge && scene.wish.is_in_place();
        let gave_up = |view: &View<'_>| view.setback(update) == Some(Stage::Failed) && view.available;
        survey.without_stand_in = survey.to_move(scene, |view| !stands_in(view) && !gave_up(view));
        let goes_back =
            |view: &&View<'_>| !stands_in(view) && !survey.is_eligible(scene, view) && mends(scene, view);
        survey.without_stand_in += scene.views.iter().filter(goes_back).count();
        survey.blocked = scene.views.iter().find_map(|view| match survey.route(view) {
            Route::Blocked(why) if survey.is_eligible(scene, view) => {
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
    pub(super) fn is_eligible(&self, scene: &Scene<'_>, view: &View<'_>) -> bool {
        if scene.wish.stateful().is_none() {
            return self.old > self.held;
        }
        let ordinal = view.pod.ordinal(&scene.wish.name);
        threshold(scene.wish, self.partition)
            .is_some_and(|first| ordinal.is_some_and(|ordinal| ordinal >= first))
    }

    fn to_move(&self, scene: &Scene<'_>, counts: impl Fn(&View<'_>) -> bool) -> usize {
        if matches!(self.way, UpdateType::HotPatchUpdate | UpdateType::OnDelete) {
            return 0;
        }
        let goes = |view: &&View<'_>| {
            matches!(self.route(view), Route::Turn(_)) && self.is_eligible(scene, view) && counts(view)
        };
        let going = scene.views.iter().filter(goes).count();
        if scene.wish.stateful().is_some() { going } else { going.min(self.old.saturating_sub(self.held)) }
    }
}

/// True when a pod stopped between two revisions and can go back to its own.
pub(super) fn mends(scene: &Scene<'_>, view: &View<'_>) -> bool {
    let own = view.pod.label.as_str();
    view.torn && scene.wish.is_in_place() && scene.template(own).is_some() && view.setback(own).is_none()
}

/// The way of `view`; what lies between two revisions is found once for all pods.
fn route<'a>(scene: &Scene<'a>, view: &View<'a>, changes: &mut BTreeMap<&'a str, Option<Change>>) -> Route {
    if view.is_at(scene.update_name()) {
        // The turn of one that has just succeeded is still to be closed, nothing else.
        return Route::There;
    }
    match scene.wish.update.way {
        UpdateType::OnDelete => return Route::OnDelete,
        UpdateType::RollingUpdate => return Route::Turn(Purpose::Recreate),
        UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate => {}
    }
    let change = changes
        .entry(view.revision)
        .or_insert_with(|| Some(Change::between(scene.template(view.revision)?, &scene.update.template)));
    let refusal = match change {
        Some(change) => change.refusal(),
        None => Some(format!(
            "its revision `{}` is not known any more, so that nobody knows what changes",
            view.revision
        )),
    };
    if let Some(why) = refusal {
        return if scene.wish.update.fallback { Route::Turn(Purpose::Recreate) } else { Route::Blocked(why) };
    }
    let nothing = request::targets(view, &scene.update.template, &scene.revisions).is_empty();
    if nothing && !left_closed(view.pod, &scene.revisions) {
        return Route::Relabel;
    }
    if view.pod.phase != PodPhase::Running {
        // Nothing in it is warm, and an agent has nothing to work on.
        return Route::Turn(Purpose::Recreate);
    }
    let hot = scene.wish.update.way == UpdateType::HotPatchUpdate;
    Route::Turn(if hot { Purpose::HotPatch } else { Purpose::InPlace })
}
