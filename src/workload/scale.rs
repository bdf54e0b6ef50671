//! How many pods of a `GameDeployment` there should be: which ones are made, and which ones leave.
//!
//! Names come from a fixed sequence, so that what was made and is not seen yet is made again in vain and not twice. Pods that
//! leave carry it written on them: who scales back keeps them.
//!
//! Pods beyond `replicas` (`maxSurge`) are marked when they are made. An update in place keeps every other pod, so that these
//! leave first when it is over, and one takes the place of a pod that is gone meanwhile instead.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::vec::IntoIter;

use crate::api::game_deployment::UpdateType;
use crate::workload::canary::Held;
use crate::workload::input::ReconcileInput;
use crate::workload::name;
use crate::workload::new_pod::NewPod;
use crate::workload::order::Deletion;
use crate::workload::pods::{PodPhase, View};
use crate::workload::spec::Deployment;
use crate::workload::survey::Survey;
use crate::workload::task::Purpose;

/// Pods that come and pods that go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scaling<'a> {
    /// To be made, in this order.
    pub create_pods: Vec<NewPod<'a>>,
    /// To leave, each after its gate.
    pub leave: BTreeSet<&'a str>,
    /// To lose the mark of those that stand in: they take the places of pods that are gone.
    pub kept: BTreeSet<&'a str>,
    /// To be deleted at once: they have ended, or their node is lost.
    pub clear: Vec<(&'a str, Clear)>,
    /// Why no more pods can be made.
    pub problem: Option<String>,
}

/// Why a pod is deleted without a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// It has ended and its successor has the same name.
    Ended,
    /// Its node is lost.
    LostNode,
}

/// Decides for pods that are alike.
pub fn decide<'a>(input: &ReconcileInput<'a>, own: &Deployment, survey: &Survey<'a>) -> Scaling<'a> {
    // Of pods that leave anyway, none needs another one to stand in for it.
    let surge = input.spec.bounds().surge.min(survey.without_stand_in).min(input.spec.replicas);
    let most = input.spec.replicas + surge;
    let fewest = if survey.moving() { most } else { input.spec.replicas };
    let leave = leaving(input, own, survey, most);
    let missing = fewest.saturating_sub(input.views.len());
    let mut scaling = Scaling { leave, ..Scaling::default() };
    create_pods(input, own, survey, missing, &mut scaling);
    scaling.kept = kept(input, &scaling);
    scaling
}

/// How many pods there are that do not only stand in. Those that leave do not count.
fn regular(input: &ReconcileInput<'_>, leave: &BTreeSet<&str>) -> usize {
    input.views.iter().filter(|view| !view.pod.surge && !leave.contains(view.pod.name.as_str())).count()
}

/// Pods that stand in and are to stay: as many as places are left empty, those that serve first.
fn kept<'a>(input: &ReconcileInput<'a>, scaling: &Scaling<'a>) -> BTreeSet<&'a str> {
    let made = scaling.create_pods.iter().filter(|new_pod| !new_pod.surge).count();
    let empty = input.spec.replicas.saturating_sub(regular(input, &scaling.leave) + made);
    let stays = |view: &&View<'_>| view.pod.surge && !scaling.leave.contains(view.pod.name.as_str());
    let mut standing_in: Vec<_> = input.views.iter().filter(stays).collect();
    standing_in.sort_by(|one, other| (other.available, &one.pod.name).cmp(&(one.available, &other.pod.name)));
    standing_in.into_iter().take(empty).map(|view| view.pod.name.as_str()).collect()
}

/// Pods that leave: those that the user names, and as many more as there are too many.
fn leaving<'a>(
    input: &ReconcileInput<'a>,
    own: &Deployment,
    survey: &Survey<'a>,
    most: usize,
) -> BTreeSet<&'a str> {
    let named = |view: &View<'_>| own.pods_to_delete.contains(&view.pod.name);
    let mut leave: BTreeSet<&str> =
        input.views.iter().filter(|view| named(view)).map(|view| view.pod.name.as_str()).collect();
    // Those that are to be recreated will be gone as well, and nobody is made for what is too many.
    let recreated = |view: &View<'_>| survey.moving() && view.asks(Purpose::Recreate);
    let goes = |view: &&View<'_>| recreated(view) && !named(view);
    let going = input.views.iter().filter(goes).count();
    let surplus = input.views.len().saturating_sub(most + leave.len() + going);
    if surplus == 0 {
        return leave;
    }
    let stays = |view: &&View<'_>| !(named(view) || recreated(view));
    // Who only stands in goes before every other pod, whatever was chosen: those keep what is warm in them.
    let stands_in = |view: &&View<'_>| view.pod.surge && input.spec.is_in_place();
    let (standing_in, own_pods): (Vec<_>, Vec<_>) = input.views.iter().filter(stays).partition(stands_in);
    let (surge_chosen, surge_rest): (Vec<_>, Vec<_>) =
        standing_in.into_iter().partition(|view| view.asks(Purpose::ScaleIn));
    let (chosen, rest): (Vec<_>, Vec<_>) = own_pods.into_iter().partition(|view| view.asks(Purpose::ScaleIn));
    let order = Deletion { nodes: input.nodes, costly_first: own.costly_first, update: input.update_name() };
    let standing_in = sorted(&order, surge_chosen).chain(sorted(&order, surge_rest));
    // What was chosen stays chosen, and what its hook let pass is the last to be taken back.
    let (passed, asking) = chosen.into_iter().partition(|view| input.has_passed(view));
    let chosen = sorted(&order, passed).chain(sorted(&order, asking));
    // Among pods that do as well, the old ones go first while there are more than the partition holds back.
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
    leave.extend(standing_in.chain(chosen).chain(others).take(surplus).map(|view| view.pod.name.as_str()));
    leave
}

fn sorted<'s, 'a>(order: &Deletion<'_>, mut views: Vec<&'s View<'a>>) -> Peekable<IntoIter<&'s View<'a>>> {
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
    let missing = missing.min(free_places(input));
    let stay = |view: &&View<'_>| {
        !view.is_at(input.update_name()) && !scaling.leave.contains(view.pod.name.as_str())
    };
    let mut old = input.views.iter().filter(stay).count();
    let used: BTreeSet<u32> = input.pods.iter().filter_map(|pod| pod.index).collect();
    let mut indices = own.indices.map(|(first, last)| (first..=last).filter(|index| !used.contains(index)));
    let (mut made, mut tried) = (BTreeSet::new(), BTreeMap::new());
    let places = input.spec.replicas.saturating_sub(regular(input, &scaling.leave));
    for number in 0..missing {
        let index = match indices.as_mut().map(Iterator::next) {
            Some(None) => {
                scaling.problem = Some(
                    "every number of the pods' index range is in use: make the range larger, or scale in"
                        .to_owned(),
                );
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

/// How many more pods may be on their way.
pub(super) fn free_places(input: &ReconcileInput<'_>) -> usize {
    let batch = input.spec.create_batch.up(input.spec.replicas).max(1);
    if batch >= input.spec.replicas {
        return usize::MAX;
    }
    let coming = input.views.iter().filter(|view| view.pod.phase == PodPhase::Pending).count();
    batch.saturating_sub(coming)
}

/// The first name of the revision's sequence that nobody has, beyond those that were `tried`.
fn free_name(
    input: &ReconcileInput<'_>,
    own: &Deployment,
    revision: &str,
    made: &BTreeSet<String>,
    tried: &mut usize,
) -> Option<(String, String)> {
    // More names than can be in use, were each of them there twice.
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
    /// True when a new pod is made at the old revision because `old` pods are there.
    fn keeps_old(&self, old: usize) -> bool {
        if self.way == UpdateType::OnDelete {
            return false;
        }
        self.paused || matches!(self.partition, Held::All) || old < self.held
    }
}
