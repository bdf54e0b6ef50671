//! How many pods may get a request now.
//!
//! At most `maxUnavailable` pods have a request in progress. An available pod gets one only if, including it, no more than
//! `maxUnavailable` pods are unavailable or have a request in progress, requests of other clients included. A pod that is not
//! available is exempt, so that broken pods never block their own repair. A pod that the target is to have and that is
//! missing or being deleted counts as unavailable.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::in_place_rollout::InPlaceRolloutSpec;
use crate::podtask::amount::Amount;
use crate::podtask::budget::Budget;
use crate::rollout::view::PodView;

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

    /// How many more pods may be begun in all: partition and pods that are begun or over already.
    pub(super) fn remaining(self, views: &[PodView<'_>]) -> usize {
        let begun = views.iter().filter(|view| view.is_busy() || view.outcome().is_some()).count();
        views.len().saturating_sub(self.held).saturating_sub(begun)
    }

    /// The budget for the next pods, of which `remaining` may begin in all, when `missing` pods of the target do not
    /// exist or are being deleted.
    pub(super) fn budget(self, views: &[PodView<'_>], missing: usize, remaining: usize) -> Budget {
        let busy = views.iter().filter(|view| view.is_busy()).count();
        let is_out = |view: &&PodView<'_>| !view.available || view.is_busy() || view.taken;
        let out = missing + views.iter().filter(is_out).count();
        Budget {
            tasks: remaining.min(self.unavailable.saturating_sub(busy)),
            available: self.unavailable.saturating_sub(out),
        }
    }
}
