//! `PodDisruptionBudget`s: an operation in place takes a pod out of service for a while, as an eviction does for
//! good, and claims it in the same way. A claim is an entry in `disruptedPods`; the disruption controller counts such
//! a pod as out of service, for two minutes at most. Decides which pods the budgets allow; reads and writes nothing.
//!
//! A budget that cannot be read, or whose selector is too large to cache, selects every pod of its namespace and
//! allows none.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use crate::api::selector::Matcher;
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::time::later;

/// Age at which an entry is renewed; the disruption controller removes it after two minutes.
pub const RENEW: SignedDuration = SignedDuration::from_secs(60);
/// Interval between reconciles while a pod waits for a budget.
pub const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(1);
/// Number of entries at which the API server refuses an eviction.
const MAX_DISRUPTED_PODS: usize = 2000;
/// The largest selector that is used, in bytes.
const MAX_SELECTOR_BYTES: usize = 16 << 10;
/// Stands for the names of the budgets when they could not be read.
const UNREADABLE: &str = "(the PodDisruptionBudgets of the namespace cannot be read)";

/// A `PodDisruptionBudget`, with the fields that `policy/v1` and `v1beta1` have in common.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Source")]
pub struct Disruption {
    /// Name, uid, resource version and generation.
    pub metadata: Meta,
    /// The selected pods.
    pub pods: Selected,
    /// True when pods that are not Ready may be disrupted without a claim, whatever the status.
    pub always_allows_unready: bool,
    /// How many disruptions are allowed.
    pub status: Status,
}

/// The pods that a budget selects. Its selector is converted once.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Selected {
    /// No pod.
    #[default]
    Nothing,
    /// All pods (`policy/v1`) or none (`v1beta1`): the selector is empty.
    Empty,
    /// Pods with these labels.
    Labels(Matcher),
    /// Unknown: every pod may be selected, and none is allowed.
    Unreadable,
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
pub struct Status {
    pub observed_generation: i64,
    pub disruptions_allowed: i64,
    pub current_healthy: i64,
    pub desired_healthy: i64,
    pub disrupted_pods: BTreeMap<String, Timestamp>,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Source {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    selector: Option<LabelSelector>,
    unhealthy_pod_eviction_policy: Option<String>,
}

impl From<Source> for Disruption {
    fn from(source: Source) -> Self {
        let mut status = source.status;
        // More entries than this change nothing: no further claim is made.
        while status.disrupted_pods.len() > MAX_DISRUPTED_PODS {
            status.disrupted_pods.pop_last();
        }
        Self {
            metadata: source.metadata,
            pods: source.spec.selector.as_ref().map_or(Selected::Nothing, Selected::of),
            always_allows_unready: source.spec.unhealthy_pod_eviction_policy.as_deref()
                == Some("AlwaysAllow"),
            status,
        }
    }
}

impl Selected {
    fn of(selector: &LabelSelector) -> Self {
        let labels = selector.match_labels.iter().flatten();
        let expressions = || selector.match_expressions.iter().flatten();
        let exact: usize = labels.map(|(key, value)| key.len() + value.len()).sum();
        let values = expressions().flat_map(|wanted| wanted.values.iter().flatten());
        let bytes = exact
            + expressions().map(|wanted| wanted.key.len()).sum::<usize>()
            + values.map(String::len).sum::<usize>();
        if bytes == 0 && expressions().next().is_none() {
            return Self::Empty;
        }
        let matcher = Some(selector).filter(|_| bytes <= MAX_SELECTOR_BYTES).and_then(Matcher::of);
        matcher.map_or(Self::Unreadable, Self::Labels)
    }
}

/// The budgets of a namespace and their remaining allowance.
#[derive(Clone, Debug, Default)]
pub struct DisruptionAllowance {
    budgets: Vec<Remaining>,
    /// An empty selector selects all pods (`policy/v1`) or none (`v1beta1`).
    empty_is_all: bool,
    /// True when the budgets could not be read: no pod that serves is allowed.
    unreadable: bool,
}

/// A budget, and how many disruptions were taken from it in this decision.
#[derive(Clone, Debug)]
struct Remaining {
    budget: Arc<Disruption>,
    taken: i64,
}

impl DisruptionAllowance {
    /// The allowance of these budgets; `version` is the API version they were read with.
    pub fn new(budgets: impl IntoIterator<Item = Arc<Disruption>>, version: &str) -> Self {
        let budgets = budgets.into_iter().map(|budget| Remaining { budget, taken: 0 }).collect();
        Self { budgets, empty_is_all: version == "v1", unreadable: false }
    }

    /// The allowance when the budgets cannot be read.
    pub fn unreadable() -> Self {
        Self { unreadable: true, ..Self::default() }
    }

    fn selects(&self, budget: &Disruption, pod: &Pod) -> bool {
        match &budget.pods {
            Selected::Nothing => false,
            Selected::Empty => self.empty_is_all,
            Selected::Labels(matcher) => matcher.matches(&pod.labels),
            Selected::Unreadable => true,
        }
    }

    /// The budgets that select `pod`.
    fn of<'r>(&'r self, pod: &'r Pod) -> impl Iterator<Item = &'r Disruption> {
        self.budgets.iter().map(|one| one.budget.as_ref()).filter(move |budget| self.selects(budget, pod))
    }

    /// True when `pod` has an entry: it is being evicted, or about to be.
    pub fn is_disrupted(&self, pod: &Pod) -> bool {
        self.of(pod).any(|budget| budget.status.disrupted_pods.contains_key(&pod.name))
    }

    /// Takes the allowance for `pod` and returns the names of the budgets to claim at.
    ///
    /// # Errors
    /// The name of the budget that does not allow it.
    pub fn claim(&mut self, pod: &Pod, ready: bool) -> Result<Vec<String>, String> {
        if pod.phase == PodPhase::Pending {
            return Ok(Vec::new());
        }
        if self.unreadable {
            return Err(UNREADABLE.to_owned());
        }
        let mut claims = Vec::new();
        for (at, one) in self.budgets.iter().enumerate().filter(|(_, one)| self.selects(&one.budget, pod)) {
            match one.needs_claim(ready) {
                Some(true) => claims.push(at),
                Some(false) => return Err(one.budget.metadata.name.clone()),
                None => {}
            }
        }
        let mut names = Vec::new();
        for at in claims {
            let Some(one) = self.budgets.get_mut(at) else { continue };
            one.taken += 1;
            names.push(one.budget.metadata.name.clone());
        }
        Ok(names)
    }

    /// Takes the allowance for a pod that is claimed at `claims` and still Ready, where the budget has no entry for
    /// it: the entry has lapsed, and the status counts the pod as healthy.
    pub fn deduct(&mut self, pod: &Pod, claims: &[String]) {
        for one in &mut self.budgets {
            let status = &one.budget.status;
            if claims.contains(&one.budget.metadata.name) && !status.disrupted_pods.contains_key(&pod.name) {
                one.taken += 1;
            }
        }
    }

    /// The budgets among `claims` whose entry for `pod` is to be renewed now, and when the next renewal is due.
    pub fn due(&self, pod: &Pod, claims: &[String], now: Timestamp) -> (Vec<String>, Option<Timestamp>) {
        let (mut due, mut next) = (Vec::new(), None::<Timestamp>);
        let claimed = |one: &&Remaining| claims.contains(&one.budget.metadata.name);
        for Remaining { budget, .. } in self.budgets.iter().filter(claimed) {
            let entry = budget.status.disrupted_pods.get(&pod.name);
            // An entry that is renewed now is due again after the same time, also if nothing changes until then.
            let at = entry.map(|at| later(*at, RENEW)).filter(|at| *at > now).unwrap_or_else(|| {
                due.push(budget.metadata.name.clone());
                later(now, RENEW)
            });
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        (due, next)
    }

    /// The budget of this name as it was read.
    pub fn get(&self, name: &str) -> Option<&Arc<Disruption>> {
        self.budgets.iter().map(|one| &one.budget).find(|budget| budget.metadata.name == name)
    }
}

impl Disruption {
    /// A budget of which only `metadata` is known.
    pub fn unreadable(metadata: Meta) -> Self {
        Self { metadata, pods: Selected::Unreadable, ..Self::default() }
    }
}

impl Remaining {
    /// Whether a pod may be disrupted: with a claim (`true`), not at all (`false`), or without a claim (`None`),
    /// because it serves no traffic.
    fn needs_claim(&self, ready: bool) -> Option<bool> {
        let Self { budget, taken } = self;
        let status = &budget.status;
        let known = budget.pods != Selected::Unreadable;
        let healthy = status.current_healthy >= status.desired_healthy && status.desired_healthy > 0;
        if !ready && known && (budget.always_allows_unready || healthy) {
            return None;
        }
        let is_current = status.observed_generation >= budget.metadata.generation;
        let allowed = status.disruptions_allowed.saturating_sub(*taken) > 0;
        Some(known && is_current && allowed && status.disrupted_pods.len() < MAX_DISRUPTED_PODS)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Pod {
        let pod =
            json!({"metadata": {"name": "web-0", "labels": {"app": "web"}}, "status": {"phase": "Running"}});
        Pod::read(&serde_json::from_value(pod).unwrap())
    }

    fn budget(selector: &Value, allowed: i64) -> Disruption {
        let budget = json!({"metadata": {"name": "pdb", "generation": 1}, "spec": {"selector": selector},
            "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 4, "desiredHealthy": 3}});
        serde_json::from_value(budget).unwrap()
    }

    fn claim(budget: Disruption, version: &str) -> Result<Vec<String>, String> {
        DisruptionAllowance::new([Arc::new(budget)], version).claim(&pod(), true)
    }

    #[test]
    fn a_budget_that_cannot_be_read_allows_no_pod() {
        let refused = Err("pdb".to_owned());
        assert_eq!(claim(budget(&json!({"matchLabels": {"app": "web"}}), 1), "v1"), Ok(vec!["pdb".into()]));
        assert_eq!(claim(budget(&json!({"matchLabels": {"app": "db"}}), 0), "v1"), Ok(Vec::new()));
        let unknown = json!({"matchExpressions": [{"key": "app", "operator": "Like"}]});
        assert_eq!(claim(budget(&unknown, 9), "v1"), refused);
        let large =
            json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["x".repeat(20 << 10)]}]});
        assert_eq!(claim(budget(&large, 9), "v1"), refused);
        let meta = Meta { name: "pdb".into(), ..Meta::default() };
        let mut unreadable = DisruptionAllowance::new([Arc::new(Disruption::unreadable(meta))], "v1");
        assert_eq!(unreadable.claim(&pod(), true), refused);
        assert_eq!(unreadable.claim(&pod(), false), refused, "a pod that serves nobody, too");
        assert!(DisruptionAllowance::unreadable().claim(&pod(), true).is_err());
    }

    #[test]
    fn a_pod_with_a_task_whose_entry_lapsed_still_counts_as_disrupted() {
        let other = Pod { name: "web-1".into(), ..pod() };
        let one = budget(&json!({"matchLabels": {"app": "web"}}), 1);
        let mut lapsed = DisruptionAllowance::new([Arc::new(one.clone())], "v1");
        lapsed.deduct(&other, &["pdb".to_owned()]);
        assert!(lapsed.claim(&pod(), true).is_err());
        let mut entered = one;
        entered.status.disrupted_pods = [("web-1".to_owned(), Timestamp::UNIX_EPOCH)].into();
        let mut entered = DisruptionAllowance::new([Arc::new(entered)], "v1");
        entered.deduct(&other, &["pdb".to_owned()]);
        assert!(entered.claim(&pod(), true).is_ok());
    }
}
