//! Decides which ordinals of a `GameStatefulSet` exist: which pods are created and which are removed.
//!
//! A scale-in that waits never delays a scale-out. A broken pod delays only pods with higher ordinals that do not
//! exist yet.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::game_deployment::UpdateType;
use crate::podtask::amount::Amount;
use crate::podtask::pod::Pod;
use crate::workload::canary::Held;
use crate::workload::input::ReconcileInput;
use crate::workload::new_pod::NewPod;
use crate::workload::scale::{Clear, MOST_LISTED, Scaling, free_places};
use crate::workload::spec::{StatefulSet, WorkloadSpec};
use crate::workload::survey::Survey;
use crate::workload::view::PodView;

/// The ordinals of a set: those of its replicas, then those of surge pods of an update. They are not listed, because
/// there may be two billions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordinals<'s> {
    reserved: &'s BTreeSet<u32>,
    /// The ordinals of the replicas end before this one.
    own_end: u32,
    /// The ordinals of surge pods end before this one.
    surge_end: u32,
}

impl<'s> Ordinals<'s> {
    /// The ordinals for `spec` with `surge` additional pods.
    pub fn of(spec: &WorkloadSpec, set: &'s StatefulSet, surge: usize) -> Self {
        let (own_end, surge_end) = (unreserved(set, spec.replicas), unreserved(set, spec.replicas + surge));
        Self { reserved: &set.reserved, own_end, surge_end }
    }

    /// True for the ordinal of a replica.
    pub fn is_own(&self, ordinal: u32) -> bool {
        ordinal < self.own_end && !self.reserved.contains(&ordinal)
    }

    /// How many ordinals of replicas there are from `first` on.
    pub fn own_from(&self, first: u32) -> usize {
        let all = self.own_end.saturating_sub(first);
        let reserved = if all == 0 { 0 } else { self.reserved.range(first..self.own_end).count() };
        usize::try_from(all).unwrap_or(usize::MAX).saturating_sub(reserved)
    }

    fn is_surge(&self, ordinal: u32) -> bool {
        (self.own_end..self.surge_end).contains(&ordinal) && !self.reserved.contains(&ordinal)
    }

    fn contains(&self, ordinal: u32) -> bool {
        self.is_own(ordinal) || self.is_surge(ordinal)
    }

    /// The ordinals in order, those of surge pods only `with_surge`.
    fn iter(self, with_surge: bool) -> impl Iterator<Item = u32> {
        let end = if with_surge { self.surge_end } else { self.own_end };
        (0..end).filter(move |ordinal| !self.reserved.contains(ordinal))
    }
}

/// The ordinal that follows the first `count` ones that a set may use.
fn unreserved(set: &StatefulSet, count: usize) -> u32 {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    let shift = |ordinal: u32, reserved: &u32| ordinal.saturating_add(u32::from(*reserved <= ordinal));
    set.reserved.iter().fold(count, shift)
}

/// The first ordinal that is not held back; none when all are. A number is an ordinal, as in a `StatefulSet`. A
/// percentage is one of the ordinals that the set has: with `reserveOrders` these are not the first numbers.
pub fn threshold(spec: &WorkloadSpec, held: Held) -> Option<u32> {
    let amount = match held {
        Held::All => return None,
        Held::Part(amount) => amount,
    };
    let held_back = amount.held_back(spec.replicas);
    match (amount, spec.stateful()) {
        (Amount::Percent(_), Some(set)) => Some(unreserved(set, held_back)),
        _ => u32::try_from(held_back).ok(),
    }
}

/// Tells which pods are replicas: those with the ordinal of one. All pods without ordinals are.
pub fn is_replica_of(spec: &WorkloadSpec) -> impl Fn(&Pod) -> bool {
    let own = spec.stateful().map(|set| Ordinals::of(spec, set, 0));
    move |pod| {
        own.as_ref().is_none_or(|own| pod.ordinal(&spec.name).is_some_and(|ordinal| own.is_own(ordinal)))
    }
}

/// The lowest ordinal of a replica without an available pod, if the set is ordered: it creates no pod above that.
pub(super) fn lowest_unavailable(input: &ReconcileInput<'_>) -> Option<u32> {
    let set = input.spec.stateful().filter(|set| set.ordered)?;
    let serve = input.views.iter().filter(|view| view.available);
    let available: BTreeSet<_> = serve.filter_map(|view| view.pod.ordinal(&input.spec.name)).collect();
    Ordinals::of(input.spec, set, 0).iter(false).find(|ordinal| !available.contains(ordinal))
}

/// Decides for pods with ordinals.
pub fn decide<'a>(input: &ReconcileInput<'a>, set: &StatefulSet, survey: &Survey<'a>) -> Scaling<'a> {
    let ordinals = Ordinals::of(input.spec, set, survey.surge(input));
    let mut scaling = Scaling { leave: leaving(input, set, &ordinals), ..Scaling::default() };
    let name = &input.spec.name;
    let by_ordinal: BTreeMap<u32, &Pod> =
        input.pods.iter().filter_map(|pod| Some((pod.ordinal(name)?, *pod))).collect();
    for (ordinal, pod) in &by_ordinal {
        if !ordinals.contains(*ordinal) {
            scaling.condemned.insert(&pod.name);
        }
        let ended = pod.has_ended() && !pod.is_deleting();
        let node = pod.node.as_ref().and_then(|node| input.nodes.get(node));
        if ended {
            scaling.clear.push((&pod.name, Clear::Ended));
        } else if pod.is_deleting() && set.force_lost && node.is_some_and(|node| !node.ready) {
            scaling.clear.push((&pod.name, Clear::LostNode));
        }
    }
    create_pods(input, set, survey, &ordinals, &by_ordinal, &mut scaling);
    scaling
}

fn leaving<'a>(input: &ReconcileInput<'a>, set: &StatefulSet, ordinals: &Ordinals<'_>) -> BTreeSet<&'a str> {
    let name = &input.spec.name;
    let condemned =
        |view: &PodView<'a>| view.pod.ordinal(name).filter(|ordinal| !ordinals.contains(*ordinal));
    let mut leaving: Vec<_> =
        input.views.iter().filter_map(|view| Some((condemned(view)?, view.pod.name.as_str()))).collect();
    leaving.sort_unstable();
    if set.ordered {
        // The highest ordinal, once no pod above it is still being deleted.
        let on_its_way =
            input.pods.iter().filter(|pod| pod.is_deleting()).filter_map(|pod| pod.ordinal(name));
        let above = on_its_way.filter(|ordinal| !ordinals.contains(*ordinal)).max();
        let highest = leaving.pop().filter(|(ordinal, _)| above.is_none_or(|above| above < *ordinal));
        return highest.map(|(_, name)| name).into_iter().collect();
    }
    leaving.into_iter().map(|(_, name)| name).collect()
}

fn create_pods<'a>(
    input: &ReconcileInput<'a>,
    set: &StatefulSet,
    survey: &Survey<'a>,
    ordinals: &Ordinals<'_>,
    present: &BTreeMap<u32, &'a Pod>,
    scaling: &mut Scaling<'a>,
) {
    let mut places = if set.ordered { 1 } else { free_places(input).min(MOST_LISTED) };
    let is_available = |ordinal: u32| {
        let is = |view: &&PodView<'_>| view.pod.ordinal(&input.spec.name) == Some(ordinal);
        input.views.iter().find(is).is_some_and(|view| view.available)
    };
    for ordinal in ordinals.iter(survey.moving()) {
        if present.contains_key(&ordinal) {
            if set.ordered && !is_available(ordinal) {
                return;
            }
            continue;
        }
        if places == 0 {
            return;
        }
        places -= 1;
        let revision = revision(input, survey, ordinals, ordinal);
        let name = format!("{}-{ordinal}", input.spec.name);
        scaling.create_pods.push(NewPod {
            name,
            revision,
            instance: ordinal.to_string(),
            index: None,
            surge: false,
        });
    }
}

/// The revision that a pod with this ordinal is created from.
fn revision<'a>(
    input: &ReconcileInput<'a>,
    survey: &Survey<'_>,
    ordinals: &Ordinals<'_>,
    ordinal: u32,
) -> &'a str {
    let on_delete = input.spec.update.way == UpdateType::OnDelete;
    if on_delete || ordinals.is_surge(ordinal) {
        return input.update_name();
    }
    let first = threshold(input.spec, survey.partition);
    let held = survey.creates_old || first.is_none_or(|first| ordinal < first);
    if held { input.current_name() } else { input.update_name() }
}
