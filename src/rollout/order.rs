//! The order of pods: those that serve no traffic first, then those of a low deletion cost, then by name. Picks nothing.

use std::cmp::Ordering;

use crate::rollout::view::PodView;

pub(super) fn compare(one: &PodView<'_>, other: &PodView<'_>) -> Ordering {
    let cost = |view: &PodView<'_>| view.pod.base.cost.unwrap_or(0.0);
    one.available
        .cmp(&other.available)
        .then_with(|| one.ready.cmp(&other.ready))
        .then_with(|| cost(one).total_cmp(&cost(other)))
        .then_with(|| one.pod.base.name.cmp(&other.pod.base.name))
}
