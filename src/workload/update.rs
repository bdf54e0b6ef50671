//! Who is updated next: which way a pod can go, how many are held back, and how many may be on their way at once.
//!
//! Two bounds hold at any time. At most `maxUnavailable` pods (and one for each that there is more than wanted) have a turn.
//! And a pod that serves gets one only while, without it, `replicas - maxUnavailable` pods still serve; one that does not
//! serve loses nothing, so that broken pods never hold their own repair back.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::api::game_deployment::UpdateType;
use crate::workload::canary::Held;
use crate::workload::diff::Change;
use crate::workload::order;
use crate::workload::pods::{PodPhase, View, left_closed};
use crate::workload::request;
use crate::workload::scene::Scene;
use crate::workload::stateful::threshold;
use crate::workload::turn::{AGAIN, Purpose, Stage, Standing, Turn, later};

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
            failed,
            stopped,
            paused,
            way: scene.wish.update.way,
            blocked: None,
        };
        survey.remaining = survey.to_move(scene);
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
    fn is_eligible(&self, scene: &Scene<'_>, view: &View<'_>) -> bool {
        if scene.wish.stateful().is_none() {
            return self.old > self.held;
        }
        let ordinal = view.pod.ordinal(&scene.wish.name);
        threshold(scene.wish, self.partition)
            .is_some_and(|first| ordinal.is_some_and(|ordinal| ordinal >= first))
    }

    fn to_move(&self, scene: &Scene<'_>) -> usize {
        if matches!(self.way, UpdateType::HotPatchUpdate | UpdateType::OnDelete) {
            return 0;
        }
        let goes = |view: &&View<'_>| {
            matches!(self.route(view), Route::Turn(_))
                && self.is_eligible(scene, view)
                && view.setback(scene.update_name()).is_none()
        };
        let going = scene.views.iter().filter(goes).count();
        if scene.wish.stateful().is_some() { going } else { going.min(self.old.saturating_sub(self.held)) }
    }
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

    /// True when `turn` is this one.
    pub fn is(&self, turn: &Turn) -> bool {
        turn.purpose == self.purpose && turn.target == self.target
    }
}

/// Who has a turn, and who only gets other labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picks<'a> {
    /// Those with a turn.
    pub turns: BTreeMap<&'a str, Wanted<'a>>,
    /// Those that only get labels and annotations.
    pub relabel: BTreeSet<&'a str>,
}

/// Decides. Pods that `leave` are out of it.
pub fn pick<'a>(scene: &Scene<'a>, survey: &Survey<'a>, leave: &BTreeSet<&str>) -> Picks<'a> {
    let update = scene.update_name();
    let mut picks = Picks::default();
    if !survey.moving() {
        return picks;
    }
    let pool: Vec<_> = scene.views.iter().filter(|view| !leave.contains(view.pod.name.as_str())).collect();
    let stateful = scene.wish.stateful().is_some();
    let old = pool.iter().filter(|view| !view.is_at(update)).count();
    let mut allowance = match survey.partition {
        _ if stateful => usize::MAX,
        Held::All => 0,
        Held::Part(_) => old.saturating_sub(survey.held),
    };
    let bounds = scene.wish.bounds();
    let limit = (bounds.unavailable + pool.len().saturating_sub(scene.wish.replicas)).max(1);
    let mut under_way = 0;
    let mut spare = Spare::of(scene, &pool);

    // Those that are under way already.
    for view in pool.iter().filter(|view| matches!(view.standing, Standing::Busy { .. })) {
        under_way += 1;
        if view.live().is_some_and(|turn| turn.target == update) {
            allowance = allowance.saturating_sub(1);
        }
    }
    let held_back =
        |view: &View<'_>| if stateful { !survey.is_eligible(scene, view) } else { old <= survey.held };
    // The turn that a pod may have: to the newest revision, or back to its own when it is held back between two.
    let wanted = |view: &View<'a>| match survey.route(view) {
        _ if held_back(view) => mending(scene, view),
        Route::Turn(purpose) => Some(Wanted::new(*purpose, update)),
        Route::There | Route::OnDelete | Route::Relabel | Route::Blocked(_) => None,
    };
    let mut take =
        |view: &View<'a>, wanted: Wanted<'a>, picks: &mut Picks<'a>, under_way: &mut usize, chosen: bool| {
            let mends = held_back(view);
            let room = *under_way < limit && (mends || allowance > 0) && (chosen || spare.allows(view));
            if room {
                picks.turns.insert(&view.pod.name, wanted);
                allowance = allowance.saturating_sub(usize::from(!mends));
                *under_way += 1;
                spare.commit(view);
            }
        };
    // Those that were chosen and may stay so.
    for view in pool.iter().filter(|view| view.standing == Standing::Asking) {
        if let (Some(turn), Some(wanted)) = (view.live(), wanted(view))
            && wanted.is(turn)
        {
            take(view, wanted, &mut picks, &mut under_way, true);
        }
    }
    // And the next ones.
    let mut next: Vec<_> =
        pool.into_iter().filter(|view| view.standing == Standing::Over && may_begin(scene, view)).collect();
    next.sort_by(|one, other| compare(scene, one, other));
    for view in &next {
        if let Some(wanted) = wanted(view) {
            take(view, wanted, &mut picks, &mut under_way, false);
        }
    }
    // Labels cost nobody anything.
    let relabels = next.iter().filter(|view| *survey.route(view) == Route::Relabel && !held_back(view));
    picks.relabel.extend(relabels.take(allowance).map(|view| view.pod.name.as_str()));
    picks
}

/// The way back of a pod that stopped between two revisions and is held back: to its own.
fn mending<'a>(scene: &Scene<'a>, view: &View<'a>) -> Option<Wanted<'a>> {
    let own = view.pod.label.as_str();
    let mends =
        view.torn && scene.wish.is_in_place() && scene.template(own).is_some() && view.setback(own).is_none();
    let purpose = match (view.pod.phase, scene.wish.update.way) {
        (PodPhase::Running, UpdateType::HotPatchUpdate) => Purpose::HotPatch,
        (PodPhase::Running, _) => Purpose::InPlace,
        _ => Purpose::Recreate,
    };
    mends.then(|| Wanted::new(purpose, own))
}

/// True unless its last turn says that it is not to be tried now, or somebody else works on it.
fn may_begin(scene: &Scene<'_>, view: &View<'_>) -> bool {
    let again = || view.pod.turn.as_ref().is_none_or(|turn| later(turn.at, AGAIN) <= scene.now);
    match view.setback(scene.update_name()) {
        Some(Stage::Failed) => false,
        Some(_) => again() && !view.is_taken(),
        None => !scene.wish.is_in_place() || !view.is_taken(),
    }
}

/// Where pods are alike, what serves nobody goes first; with ordinals, that and then the highest. Who did not answer waits
/// for the others.
fn compare(scene: &Scene<'_>, one: &View<'_>, other: &View<'_>) -> Ordering {
    let silent = |view: &View<'_>| view.setback(scene.update_name()).is_some();
    let base = silent(one).cmp(&silent(other));
    if scene.wish.stateful().is_none() {
        return base.then_with(|| order::update(one, other));
    }
    let ordinal = |view: &View<'_>| view.pod.ordinal(&scene.wish.name);
    base.then_with(|| one.available.cmp(&other.available)).then_with(|| ordinal(other).cmp(&ordinal(one)))
}

/// How many pods that serve may still be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    left: usize,
}

impl Spare {
    /// Of the pods in `pool`, those with the agent counted as gone already.
    pub fn of(scene: &Scene<'_>, pool: &[&View<'_>]) -> Self {
        let busy = |view: &View<'_>| matches!(view.standing, Standing::Busy { .. });
        let serving = pool.iter().filter(|view| view.available && !busy(view)).count();
        let floor = scene.wish.replicas.saturating_sub(scene.wish.bounds().unavailable);
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
