//! Surveys an update: how each pod gets to the newest revision, how many pods are held back, what failed. Starts
//! nothing.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::api::game_deployment::UpdateType;
use crate::api::pod_template::PodTemplate;
use crate::api::request::{ContainerRequest, Order};
use crate::podtask::pod::PodPhase;
use crate::podtask::resources::Resize;
use crate::podtask::start_first;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::Purpose;
use crate::podtask::time::later;
use crate::workload::canary::Held;
use crate::workload::diff::Change;
use crate::workload::input::ReconcileInput;
use crate::workload::request;
use crate::workload::resize::{self, NotResizable};
use crate::workload::stateful::{is_replica_of, threshold};
use crate::workload::status::UpdateFailure;
use crate::workload::view::{PodView, left_closed};

/// The reason when the containers that change cannot start first.
pub const CANNOT_START_FIRST: &str = "CannotStartFirst";

/// How one pod gets to the newest revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The pod is at the newest revision.
    Done,
    /// The pod stays as it is until a user deletes it.
    OnDelete,
    /// Only labels and annotations change.
    Relabel,
    /// A task with this purpose.
    PodTask(Purpose),
    /// The pod cannot get there; the sentence says why.
    Blocked(String),
    /// The order is `StartFirst`, and the containers that change cannot start first; the sentence says why.
    CannotStartFirst(String),
}

/// The survey of an update.
#[derive(Clone, Debug)]
pub struct Survey<'a> {
    /// The route of each pod that counts, by name.
    pub routes: BTreeMap<&'a str, Route>,
    /// What the partition holds back.
    pub partition: Held,
    /// How many pods of a `GameDeployment` are held back.
    pub held: usize,
    /// How many pods are not at the newest revision.
    pub old: usize,
    /// How many pods need a surge pod: those to be moved, those retried later, those that failed and are not
    /// available, and those that are held back between two revisions.
    pub need_surge: usize,
    /// How many pods have failed to get to the newest revision.
    pub failed: usize,
    /// True when so many failed that no more tasks begin.
    pub stopped: bool,
    /// What the last report says about the pods that stopped the update, while nobody has asked for a retry: it stays
    /// stopped when they are gone.
    pub recorded_stop: Option<UpdateFailure>,
    /// True when the user or a canary step has paused the update.
    pub paused: bool,
    /// True when new pods get the old revision whatever the partition says: the user has paused the update, or too many
    /// pods failed to get to the newest revision.
    pub creates_old: bool,
    /// The update type of the spec.
    pub way: UpdateType,
    /// Why a pod cannot be updated, if so: reason and sentence.
    pub blocked: Option<(&'static str, String)>,
    /// When the API server is asked again whether it resizes pods, if a pod cannot be updated because it does not.
    pub ask_again: Option<Timestamp>,
    /// The pods that get no request yet: the order is `StartFirst`, and a container that changes runs and is not Ready.
    pub not_ready: Vec<&'a str>,
    /// Why the limits of the spec allow no update, if so and if there is one.
    pub no_budget: Option<String>,
}

impl<'a> Survey<'a> {
    /// Surveys all pods that count. `by_step`: a canary step has paused the update, and its partition applies to new
    /// pods.
    pub fn of(input: &ReconcileInput<'a>, partition: Held, paused: bool, by_step: bool) -> Self {
        let mut changes = BTreeMap::new();
        let routes: BTreeMap<_, _> = input
            .views
            .iter()
            .map(|view| (view.pod.name.as_str(), route(input, view, &mut changes)))
            .collect();
        let lacks =
            |change: &Change| change.reasons.values().any(|why| matches!(why, NotResizable::NoResize));
        let ask_again = changes.values().flatten().any(lacks).then(|| later(input.now, resize::ASK_AGAIN));
        let replicas = input.spec.replicas;
        let held = match partition {
            Held::All => replicas,
            Held::Part(amount) => amount.held_back(replicas),
        };
        let update = input.update_name();
        let old = input.views.iter().filter(|view| !view.is_at(update)).count();
        let failed = input.views.iter().filter(|view| input.failure(view) == Some(Stage::Failed)).count();
        let stopped = failed >= input.spec.threshold();
        let mut survey = Self {
            routes,
            partition,
            held,
            old,
            need_surge: 0,
            failed,
            stopped,
            recorded_stop: None,
            paused,
            creates_old: (paused && !by_step) || stopped,
            way: input.spec.update.way,
            blocked: None,
            ask_again,
            not_ready: Vec::new(),
            no_budget: None,
        };
        // A surge pod needs no surge pod itself. That of a set is known by its ordinal.
        let (is_set, is_replica) = (input.spec.stateful().is_some(), is_replica_of(input.spec));
        let is_surge = |view: &PodView<'_>| {
            if is_set { !is_replica(view.pod) } else { view.pod.surge && input.spec.is_in_place() }
        };
        let gave_up = |view: &PodView<'_>| input.failure(view) == Some(Stage::Failed) && view.available;
        survey.need_surge = survey.to_move(input, |view| !is_surge(view) && !gave_up(view));
        let goes_back = |view: &&PodView<'_>| {
            !is_surge(view) && !survey.is_eligible(input, view) && needs_repair(input, view)
        };
        survey.need_surge += input.views.iter().filter(goes_back).count();
        survey.blocked = input.views.iter().find_map(|view| match survey.route(view) {
            Route::Blocked(why) if survey.is_eligible(input, view) => {
                Some(("NotInPlace", format!("pod {}: {why}", view.pod.name)))
            }
            Route::CannotStartFirst(why) if survey.is_eligible(input, view) => {
                let remedy = "set spec.updateStrategy.inPlaceUpdateStrategy.order to StopFirst, or change the template";
                Some((CANNOT_START_FIRST, format!("pod {}: {why}; {remedy}", view.pod.name)))
            }
            _ => None,
        });
        let is_idle = |view: &PodView<'_>| {
            matches!(view.task_state, TaskState::Over | TaskState::Waiting)
                || view.is_resizing() && view.pod.resize == Resize::Taken
        };
        let waits = |view: &&PodView<'_>| {
            matches!(survey.route(view), Route::PodTask(Purpose::InPlace | Purpose::HotPatch))
                && survey.is_eligible(input, view)
                && input.failure(view) != Some(Stage::Failed)
                && is_idle(view)
                && input.spec.starts_first()
                && is_early(input, view, &input.update.template)
        };
        survey.not_ready = input.views.iter().filter(waits).map(|view| view.pod.name.as_str()).collect();
        let waits = |view: &PodView<'_>| !view.is_at(update) && survey.is_eligible(input, view);
        survey.no_budget = input.spec.budget_problem().filter(|_| input.views.iter().any(waits));
        survey
    }

    /// True when tasks may begin.
    pub fn moving(&self) -> bool {
        !self.paused && !self.stopped && self.no_budget.is_none() && self.way != UpdateType::OnDelete
    }

    /// How many pods may exist beyond `replicas`. While no task may begin, these are surge pods that exist: a scale-in
    /// makes no other pod one.
    pub(super) fn surge(&self, input: &ReconcileInput<'_>) -> usize {
        let most = input.spec.bounds().surge.min(self.need_surge);
        if self.moving() {
            return most;
        }
        let (is_set, is_replica) = (input.spec.stateful().is_some(), is_replica_of(input.spec));
        let (update, current) = (input.update_name(), input.current_name());
        let is_created = |view: &PodView<'_>| !view.was_updated_to(view.revision);
        // The surge pod of a set has no label: it was created at a revision to which pods were being updated, or could not be
        // updated. Without the latter, an update that failures stopped would continue. A surge pod of bk-bcs has no label
        // either.
        let is_surge = |view: &&PodView<'_>| {
            if is_set {
                let is_newer = view.revision != current && is_created(view);
                !is_replica(view.pod) && (is_newer || input.failure(view).is_some())
            } else {
                view.pod.surge || input.spec.is_in_place() && view.is_at(update) && is_created(view)
            }
        };
        most.min(input.views.iter().filter(is_surge).count())
    }

    /// The route of a pod.
    pub fn route(&self, view: &PodView<'_>) -> &Route {
        self.routes.get(view.pod.name.as_str()).unwrap_or(&Route::Done)
    }

    /// True when the partition releases this pod. In a `GameDeployment` the partition names no pods: true while more
    /// old pods exist than are held back.
    pub(super) fn is_eligible(&self, input: &ReconcileInput<'_>, view: &PodView<'_>) -> bool {
        if input.spec.stateful().is_none() {
            return self.old > self.held;
        }
        let ordinal = view.pod.ordinal(&input.spec.name);
        threshold(input.spec, self.partition)
            .is_some_and(|first| ordinal.is_some_and(|ordinal| ordinal >= first))
    }

    fn to_move(&self, input: &ReconcileInput<'_>, counts: impl Fn(&PodView<'_>) -> bool) -> usize {
        if matches!(self.way, UpdateType::HotPatchUpdate | UpdateType::OnDelete) {
            return 0;
        }
        let goes = |view: &&PodView<'_>| {
            matches!(self.route(view), Route::PodTask(_)) && self.is_eligible(input, view) && counts(view)
        };
        let going = input.views.iter().filter(goes).count();
        if input.spec.stateful().is_some() {
            return going;
        }
        // Of the old pods, those beyond `replicas` leave.
        going.min(self.old.min(input.spec.replicas).saturating_sub(self.held))
    }
}

/// True when the request that takes `view` to `target` has to wait until a container that runs is Ready.
pub(super) fn is_early(input: &ReconcileInput<'_>, view: &PodView<'_>, target: &PodTemplate) -> bool {
    let targets = request::targets(view, target, &input.revisions);
    request::order(input, view, &targets).is_none()
}

/// Why the containers of `view` that change cannot start first, if the template says so and they have to.
fn not_first(input: &ReconcileInput<'_>, view: &PodView<'_>, targets: &[ContainerRequest]) -> Option<String> {
    if !input.spec.starts_first() || request::order(input, view, targets) == Some(Order::StopFirst) {
        return None;
    }
    let names = targets.iter().map(|target| target.name.as_str());
    let why = start_first::problem(&input.update.template, names)?;
    Some(format!("{why} (order StartFirst)"))
}

/// True when a pod stopped between two revisions and can go back to its own.
pub(super) fn needs_repair(input: &ReconcileInput<'_>, view: &PodView<'_>) -> bool {
    let own = view.pod.label.as_str();
    view.between_revisions
        && input.spec.is_in_place()
        && input.template(own).is_some()
        && view.last_failure(own) != Some(Stage::Failed)
}

/// The route of `view`. The difference between two revisions is computed once for all pods.
fn route<'a>(
    input: &ReconcileInput<'a>,
    view: &PodView<'a>,
    changes: &mut BTreeMap<&'a str, Option<Change>>,
) -> Route {
    if view.is_at(input.update_name()) {
        // A task that has just succeeded still has to be recorded; nothing else is to be done.
        return Route::Done;
    }
    match input.spec.update.way {
        UpdateType::OnDelete => return Route::OnDelete,
        UpdateType::RollingUpdate => return Route::PodTask(Purpose::Recreate),
        UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate => {}
    }
    let change = changes.entry(view.revision).or_insert_with(|| {
        Some(Change::between(input.template(view.revision)?, &input.update.template, input.resizes))
    });
    let refusal = match change {
        Some(change) => change.refusal(),
        None => Some(format!(
            "its revision `{}` does not exist any more, so the change of the template cannot be determined",
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
    let targets = request::targets(view, &input.update.template, &input.revisions);
    let resizes = resize::is_due(view, &input.update.template, &input.revisions);
    if targets.is_empty() && !resizes && !left_closed(view.pod, &input.revisions) {
        return Route::Relabel;
    }
    if view.pod.phase != PodPhase::Running {
        // The pod has no warm state, and an agent has no container to work on.
        return Route::PodTask(Purpose::Recreate);
    }
    // The agent would refuse the request, and a deletion would stop what serves.
    if let Some(why) = not_first(input, view, &targets).filter(|_| !targets.is_empty()) {
        return Route::CannotStartFirst(why);
    }
    let hot = input.spec.update.way == UpdateType::HotPatchUpdate;
    Route::PodTask(if hot { Purpose::HotPatch } else { Purpose::InPlace })
}
