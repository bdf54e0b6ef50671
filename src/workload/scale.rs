//! Decides how many pods of a `GameDeployment` exist: which pods are created and which are removed.
//!
//! Names come from a deterministic sequence: if a pod was created and is not in the cache yet, it is created again
//! under the same name, which fails, and no second pod appears. The choice of pods to remove is recorded on the pods:
//! those that are needed again after a change of `replicas` stay.
//!
//! Pods beyond `replicas` (`maxSurge`) are labelled as surge pods when they are created. An update in place keeps all
//! other pods: surge pods are removed first when the update is over, except one that replaces a pod that is gone in
//! the meantime. The same applies if the update type becomes `OnDelete` before.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::vec::IntoIter;

use crate::api::game_deployment::UpdateType;
use crate::podtask::pod::PodPhase;
use crate::podtask::task::Purpose;
use crate::workload::act::MOST_CREATED;
use crate::workload::canary::Held;
use crate::workload::input::ReconcileInput;
use crate::workload::name;
use crate::workload::new_pod::NewPod;
use crate::workload::order::Deletion;
use crate::workload::replacement::Replacement;
use crate::workload::spec::Deployment;
use crate::workload::survey::Survey;
use crate::workload::update;
use crate::workload::view::PodView;

/// Pods that one decision lists at most, one more than are created at once: whoever may change a workload may set `replicas` to two
/// billions, and the memory of the controller belongs to all.
pub(super) const MOST_LISTED: usize = MOST_CREATED + 1;

/// The pods to create and to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scaling<'a> {
    /// Pods to create, in order: at most one more than are created at once.
    pub create_pods: Vec<NewPod<'a>>,
    /// Names of pods to remove, each after its gate.
    pub leave: BTreeSet<&'a str>,
    /// Names of surge pods that become regular pods: they lose the label because they replace pods that are gone.
    pub promoted: BTreeSet<&'a str>,
    /// Pods to delete at once: they have ended, or their node is lost.
    pub clear: Vec<(&'a str, Clear)>,
    /// Names of all pods of a set whose ordinals it does not have any more, including those that are being deleted.
    pub condemned: BTreeSet<&'a str>,
    /// Why no more pods can be created.
    pub problem: Option<String>,
}

impl Scaling<'_> {
    /// True when the pod of this name is to be removed, now or after others.
    pub fn goes(&self, name: &str) -> bool {
        self.leave.contains(name) || self.condemned.contains(name)
    }
}

/// Why a pod is deleted without a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// The pod has ended, and its successor has the same name.
    Ended,
    /// The node of the pod is lost.
    LostNode,
}

/// Decides for pods without ordinals.
pub fn decide<'a>(input: &ReconcileInput<'a>, own: &Deployment, survey: &Survey<'a>) -> Scaling<'a> {
    // A pod that leaves anyway needs no surge pod.
    let surge = survey.surge(input).min(input.spec.replicas);
    let most = input.spec.replicas + surge;
    let fewest = if survey.moving() { most } else { input.spec.replicas };
    let leave = leaving(input, own, survey, most);
    let missing = fewest.saturating_sub(input.views.len()).min(free_places(input));
    let mut scaling = Scaling { leave, problem: input.spec.index_problem(), ..Scaling::default() };
    create_pods(input, own, survey, missing.min(MOST_LISTED), &mut scaling);
    // With so many pods missing, no surge pod takes the place of one.
    if missing <= MOST_LISTED {
        scaling.promoted = promoted(input, &scaling);
    }
    scaling
}

/// How many pods are not surge pods. Pods to be removed do not count.
fn regular(input: &ReconcileInput<'_>, leave: &BTreeSet<&str>) -> usize {
    input.views.iter().filter(|view| !view.pod.surge && !leave.contains(view.pod.name.as_str())).count()
}

/// Surge pods that become regular pods: as many as places are empty, available ones first.
fn promoted<'a>(input: &ReconcileInput<'a>, scaling: &Scaling<'a>) -> BTreeSet<&'a str> {
    let made = scaling.create_pods.iter().filter(|new_pod| !new_pod.surge).count();
    let empty = input.spec.replicas.saturating_sub(regular(input, &scaling.leave) + made);
    let stays = |view: &&PodView<'_>| view.pod.surge && !scaling.leave.contains(view.pod.name.as_str());
    let mut surge_pods: Vec<_> = input.views.iter().filter(stays).collect();
    surge_pods.sort_by(|one, other| (other.available, &one.pod.name).cmp(&(one.available, &other.pod.name)));
    surge_pods.into_iter().take(empty).map(|view| view.pod.name.as_str()).collect()
}

/// Pods to remove: those that the user names, and as many more as are surplus.
fn leaving<'a>(
    input: &ReconcileInput<'a>,
    own: &Deployment,
    survey: &Survey<'a>,
    most: usize,
) -> BTreeSet<&'a str> {
    let named = |view: &PodView<'_>| own.pods_to_delete.contains(&view.pod.name);
    let mut leave: BTreeSet<&str> =
        input.views.iter().filter(|view| named(view)).map(|view| view.pod.name.as_str()).collect();
    let going = recreated(input, survey, named);
    // Whether pods can be recreated changes from one moment to the next: a scale-in that has begun goes on.
    let chosen = input.views.iter().filter(|view| view.waits_for(Purpose::ScaleIn) && !named(view)).count();
    let surplus = input.views.len().saturating_sub(most + leave.len());
    let surplus = surplus.saturating_sub(going.len()).max(chosen.min(surplus));
    if surplus == 0 {
        return leave;
    }
    let stays = |view: &&PodView<'_>| !named(view) && !going.contains(view.pod.name.as_str());
    // Surge pods are removed before all other pods, whatever was chosen: the other pods keep their warm state, and with
    // `OnDelete` only a user replaces them. `RollingUpdate` replaces the other pods.
    let replaces = input.spec.update.way == UpdateType::RollingUpdate;
    let is_surge = |view: &&PodView<'_>| view.pod.surge && !replaces;
    let (surge_pods, own_pods): (Vec<_>, Vec<_>) = input.views.iter().filter(stays).partition(is_surge);
    let (surge_chosen, surge_rest): (Vec<_>, Vec<_>) =
        surge_pods.into_iter().partition(|view| view.waits_for(Purpose::ScaleIn));
    let (chosen, rest): (Vec<_>, Vec<_>) =
        own_pods.into_iter().partition(|view| view.waits_for(Purpose::ScaleIn));
    let order = Deletion { nodes: input.nodes, costly_first: own.costly_first, update: input.update_name() };
    let surge_pods = sorted(&order, surge_chosen).chain(sorted(&order, surge_rest));
    // A pod that was chosen stays chosen, and a pod whose hook has passed is the last to be taken back.
    let (passed, asking) = chosen.into_iter().partition(|view| input.has_passed(view));
    let chosen = sorted(&order, passed).chain(sorted(&order, asking));
    // Among equally healthy pods, old ones go first while there are more than the partition holds back.
    let (new, old): (Vec<_>, Vec<_>) = rest.into_iter().partition(|view| view.is_at(input.update_name()));
    let mut excess = old.len().saturating_sub(survey.held);
    let (mut new, mut old) = (sorted(&order, new), sorted(&order, old));
    let others = std::iter::from_fn(|| {
        let from_old = match (old.peek(), new.peek()) {
            (Some(old), Some(new)) => order.health(old, new).then((excess == 0).cmp(&false)).is_le(),
            (old, _) => old.is_some(),
        };
        excess = excess.saturating_sub(usize::from(from_old));
        if from_old { old.next() } else { new.next() }
    });
    leave.extend(surge_pods.chain(chosen).chain(others).take(surplus).map(|view| view.pod.name.as_str()));
    leave
}

/// Pods that are to be recreated and will be gone as well: a surplus pod gets no replacement. One whose hook has failed
/// stays until a person acts, and one that the limits do not let go now may stay for long.
fn recreated<'a>(
    input: &ReconcileInput<'a>,
    survey: &Survey<'_>,
    leaves: impl Fn(&PodView<'_>) -> bool,
) -> BTreeSet<&'a str> {
    let pool: Vec<_> = input.views.iter().filter(|view| !leaves(view)).collect();
    let mut budget = update::spare(input, &pool);
    let mut replacement = Replacement::of(input, &pool, &Scaling::default());
    let mut going = BTreeSet::new();
    for view in pool {
        let waits = survey.moving() && view.waits_for(Purpose::Recreate) && !input.has_failed_hook(view);
        if waits && budget.allows(view.available) && replacement.allows(input, view) {
            budget.spend(view.available);
            replacement.spend();
            going.insert(view.pod.name.as_str());
        }
    }
    going
}

fn sorted<'s, 'a>(
    order: &Deletion<'_>,
    mut views: Vec<&'s PodView<'a>>,
) -> Peekable<IntoIter<&'s PodView<'a>>> {
    views.sort_by(|one, other| order.compare(one, other));
    views.into_iter().peekable()
}

fn create_pods<'a>(
    input: &ReconcileInput<'a>,
    own: &Deployment,
    survey: &Survey<'a>,
    missing: usize,
    scaling: &mut Scaling<'a>,
) {
    // Otherwise the problem says why no pod can be created.
    let Ok(numbers) = &own.indices else { return };
    let stay = |view: &&PodView<'_>| {
        !view.is_at(input.update_name()) && !scaling.leave.contains(view.pod.name.as_str())
    };
    let mut old = input.views.iter().filter(stay).count();
    // The number of a pod that has ended can be given again: nobody deletes that pod before its node is gone.
    let present = input.pods.iter().filter(|pod| !pod.has_ended());
    let used: BTreeSet<u32> = present.filter_map(|pod| pod.index).collect();
    let mut indices = numbers.clone().map(|numbers| numbers.filter(|index| !used.contains(index)));
    let (mut made, mut tried) = (BTreeSet::new(), BTreeMap::new());
    let places = input.spec.replicas.saturating_sub(regular(input, &scaling.leave));
    for number in 0..missing {
        let index = match indices.as_mut().map(Iterator::next) {
            Some(None) => {
                let problem =
                    "every number of the pods' index range is in use: extend the range, or scale in";
                scaling.problem.get_or_insert_with(|| problem.to_owned());
                return;
            }
            index => index.flatten(),
        };
        let hold = survey.keeps_old(old);
        old += usize::from(hold);
        let revision = if hold { input.current_name() } else { input.update_name() };
        let tried = tried.entry(revision).or_insert(0);
        if let Some((name, instance)) = free_name(input, own, revision, &made, tried) {
            made.insert(name.clone());
            scaling.create_pods.push(NewPod { name, revision, instance, index, surge: number >= places });
        }
    }
}

/// How many more pods may be Pending.
pub(super) fn free_places(input: &ReconcileInput<'_>) -> usize {
    let batch = input.spec.create_batch.up(input.spec.replicas).max(1);
    if batch >= input.spec.replicas {
        return usize::MAX;
    }
    let coming = input.views.iter().filter(|view| view.pod.phase == PodPhase::Pending).count();
    batch.saturating_sub(coming)
}

/// The first free name of the revision's sequence, after the names that were `tried`.
fn free_name(
    input: &ReconcileInput<'_>,
    own: &Deployment,
    revision: &str,
    made: &BTreeSet<String>,
    tried: &mut usize,
) -> Option<(String, String)> {
    // More names than can be in use, even if each of them occurred twice.
    let most = 64 + 4 * (input.pods.len() + made.len() + input.taken.len() + own.pods_to_delete.len());
    (*tried..most).find_map(|at| {
        *tried = at + 1;
        let instance = name::instance(&format!("{}/{revision}/{at}", input.spec.uid));
        let name = format!("{}-{instance}", input.spec.name);
        let used = input.by_name.contains_key(name.as_str())
            || made.contains(&name)
            || input.taken.contains(&name)
            || own.pods_to_delete.contains(&name);
        (!used).then_some((name, instance))
    })
}

impl Survey<'_> {
    /// True when a new pod is created at the old revision, given that `old` pods are at it.
    fn keeps_old(&self, old: usize) -> bool {
        if self.way == UpdateType::OnDelete {
            return false;
        }
        self.creates_old || matches!(self.partition, Held::All) || old < self.held
    }
}
