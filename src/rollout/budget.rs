//! How many pods may be begun.
//!
//! At most `maxUnavailable` pods are with their agents. An available pod is begun only if, including it, no more than
//! `maxUnavailable` pods are unavailable or with an agent, requests of other clients included. A pod that is not
//! available is exempt, so that broken pods never block their own repair.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::in_place_rollout::InPlaceRolloutSpec;
use crate::rollout::view::{State, View};
use crate::workload::amount::Amount;

/// The limits of a spec, for a given number of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of unavailable pods.
    pub unavailable: usize,
    /// Number of pods that are left as they are.
    pub held: usize,
    /// Number of failures that end the rollout.
    pub failures: usize,
}

impl Bounds {
    /// The limits for `pods`. Admission rejects a value that cannot be parsed; here it holds everything back.
    pub fn of(spec: &InPlaceRolloutSpec, pods: usize) -> Self {
        let read = |value: &IntOrString| Amount::read(value).ok();
        let at_least_one = |value| read(value).map_or(1, |amount| amount.up(pods).max(1));
        Self {
            unavailable: at_least_one(&spec.max_unavailable),
            held: read(&spec.partition).map_or(pods, |amount| amount.held_back(pods).min(pods)),
            failures: at_least_one(&spec.failure_threshold),
        }
    }
}

/// The remaining budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget {
    limit: usize,
    /// Pods that are with their agents.
    busy: usize,
    /// Pods that are unavailable or with an agent.
    out: usize,
    /// How many more pods may be begun at all.
    rest: usize,
}

impl Budget {
    pub(super) fn of(bounds: Bounds, views: &[View<'_>]) -> Self {
        let count = |is: &dyn Fn(&View<'_>) -> bool| views.iter().filter(|view| is(view)).count();
        let busy = count(&|view| view.is_busy());
        let begun = busy + count(&|view| view.outcome().is_some());
        Self {
            limit: bounds.unavailable,
            busy,
            out: count(&|view| !view.available || view.is_busy() || view.state == State::Taken),
            rest: views.len().saturating_sub(bounds.held).saturating_sub(begun),
        }
    }

    /// How many more pods may be begun at all.
    pub(super) fn rest(self) -> usize {
        self.rest
    }

    /// True when `view` may be begun.
    pub(super) fn allows(self, view: &View<'_>) -> bool {
        self.rest > 0 && self.busy < self.limit && (!view.available || self.out < self.limit)
    }

    /// Counts `view` as begun.
    pub(super) fn spend(&mut self, view: &View<'_>) {
        self.busy += 1;
        self.out += usize::from(view.available);
        self.rest = self.rest.saturating_sub(1);
    }
}
