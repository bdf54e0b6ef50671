//! `PodDisruptionBudget`s: an operation in place takes a pod out of service for a while, as an eviction does for
//! good, and claims it in the same way. A claim is an entry in `disruptedPods`; the disruption controller counts such
//! a pod as out of service, for two minutes at most.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use crate::podtask::pod::PodPhase;
use crate::podtask::selector;
use crate::podtask::time::later;
use crate::rollout::pod::Pod;

/// Age at which an entry is renewed; the disruption controller removes it after two minutes.
pub const RENEW: SignedDuration = SignedDuration::from_secs(60);
/// Number of entries at which the API server refuses an eviction.
const MOST: usize = 2000;

/// A `PodDisruptionBudget`, with the fields that `policy/v1` and `v1beta1` have in common.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Disruption {
    /// Name, uid, resource version and generation.
    pub metadata: Meta,
    /// The selected pods and the policy for unhealthy ones.
    pub spec: Spec,
    /// How many disruptions are allowed.
    pub status: Status,
}

/// See [`Disruption`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "as Kubernetes names them")]
pub struct Meta {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
}

/// See [`Disruption`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "as Kubernetes names them")]
pub struct Spec {
    pub selector: Option<LabelSelector>,
    pub unhealthy_pod_eviction_policy: Option<String>,
}

/// See [`Disruption`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(missing_docs, reason = "as Kubernetes names them")]
pub struct Status {
    pub observed_generation: i64,
    pub disruptions_allowed: i64,
    pub current_healthy: i64,
    pub desired_healthy: i64,
    pub disrupted_pods: BTreeMap<String, Timestamp>,
}

/// The budgets of a namespace and their remaining allowance.
#[derive(Clone, Debug, Default)]
pub struct DisruptionAllowance {
    budgets: Vec<Disruption>,
    /// An empty selector selects all pods (`policy/v1`) or none (`v1beta1`).
    pub empty_is_all: bool,
}

impl DisruptionAllowance {
    /// The allowance of these budgets; `version` is the API version they were read with.
    pub fn new(budgets: Vec<Disruption>, version: &str) -> Self {
        Self { budgets, empty_is_all: version == "v1" }
    }

    /// The budgets that select `pod`.
    fn of<'r>(&'r self, pod: &'r Pod) -> impl Iterator<Item = &'r Disruption> {
        self.budgets.iter().filter(move |budget| self.selects(budget, pod))
    }

    fn selects(&self, budget: &Disruption, pod: &Pod) -> bool {
        let Some(wanted) = &budget.spec.selector else { return false };
        let none = |count: Option<usize>| count.unwrap_or(0) == 0;
        let empty = none(wanted.match_labels.as_ref().map(BTreeMap::len))
            && none(wanted.match_expressions.as_ref().map(Vec::len));
        if empty { self.empty_is_all } else { selector::matches(wanted, &pod.labels) }
    }

    /// True when `pod` has an entry: it is being evicted, or about to be.
    pub fn is_disrupted(&self, pod: &Pod) -> bool {
        self.of(pod).any(|budget| budget.status.disrupted_pods.contains_key(&pod.base.name))
    }

    /// Takes the allowance for `pod` and returns the names of the budgets to claim at.
    ///
    /// # Errors
    /// The name of the budget that does not allow it.
    pub fn claim(&mut self, pod: &Pod, ready: bool) -> Result<Vec<String>, String> {
        if pod.base.phase == PodPhase::Pending {
            return Ok(Vec::new());
        }
        let mut claims = Vec::new();
        for (at, budget) in self.budgets.iter().enumerate().filter(|(_, budget)| self.selects(budget, pod)) {
            match budget.needs_claim(ready) {
                Some(true) => claims.push(at),
                Some(false) => return Err(budget.metadata.name.clone()),
                None => {}
            }
        }
        let mut names = Vec::new();
        for at in claims {
            let Some(budget) = self.budgets.get_mut(at) else { continue };
            budget.status.disruptions_allowed -= 1;
            names.push(budget.metadata.name.clone());
        }
        Ok(names)
    }

    /// The budgets among `claims` whose entry for `pod` is to be renewed now, and when the next renewal is due.
    pub fn due(&self, pod: &Pod, claims: &[String], now: Timestamp) -> (Vec<String>, Option<Timestamp>) {
        let (mut due, mut next) = (Vec::new(), None);
        for budget in self.budgets.iter().filter(|budget| claims.contains(&budget.metadata.name)) {
            let entry = budget.status.disrupted_pods.get(&pod.base.name);
            match entry.map(|at| later(*at, RENEW)).filter(|at| *at > now) {
                Some(at) => next = Some(next.map_or(at, |next: Timestamp| next.min(at))),
                None => due.push(budget.metadata.name.clone()),
            }
        }
        (due, next)
    }

    /// The budget of this name as it was read, unless [`Self::claim`] has reduced its allowance.
    pub fn get(&self, name: &str) -> Option<&Disruption> {
        self.budgets.iter().find(|budget| budget.metadata.name == name)
    }
}

impl Disruption {
    /// Whether a pod may be disrupted: with a claim (`true`), not at all (`false`), or without a claim (`None`),
    /// because it serves no traffic.
    fn needs_claim(&self, ready: bool) -> Option<bool> {
        let status = &self.status;
        let always = self.spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow");
        let healthy = status.current_healthy >= status.desired_healthy && status.desired_healthy > 0;
        if !ready && (always || healthy) {
            return None;
        }
        let is_current = status.observed_generation >= self.metadata.generation;
        Some(is_current && status.disruptions_allowed > 0 && status.disrupted_pods.len() < MOST)
    }
}
