//! The `PodDisruptionBudget`s of the cluster, and the claims at them. One watch, shared by all controllers, updates a
//! cache of what decisions need of each budget; its selector is converted when it is read.
//!
//! While the cache is not current, the budgets of a namespace are listed instead. Must not decide which pod may be
//! disrupted: `podtask::disruption` does.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::cluster::error::{Class, Error};
use crate::cluster::patch::as_us;
use crate::cluster::server::{Selection, Server};
use crate::cluster::store::{Store, is_not_older};
use crate::cluster::trim::{self, Trim, Trimmed, meta_of, within};
use crate::cluster::version::Moved;
use crate::controller::bounds::memory;
use crate::podtask::disruption::{Disruption, DisruptionAllowance, Meta};
use crate::process::clock;

const DISRUPTIONS: Moved = Moved { group: "policy", plural: "poddisruptionbudgets" };
/// The page size of lists: any user can create budgets, each as large as the API server allows.
const PAGE: u32 = 20;
/// The most memory of a cached selector, in bytes.
const MAX_SELECTOR: usize = 32 << 10;
/// How long the cache may take to contain what was listed.
const UNTIL_SEEN: Duration = Duration::from_secs(5);

/// All `PodDisruptionBudget`s. Clones share the cache.
#[derive(Clone, Debug)]
pub(super) struct Disruptions {
    server: Server,
    store: Store<Trimmed<CachedDisruption>>,
}

/// The cached part of a budget.
#[derive(Clone, Debug)]
pub(super) struct CachedDisruption(Arc<Disruption>);

impl Disruptions {
    /// Watches until `stop`.
    pub(super) fn watch(server: Server, stop: &CancellationToken) -> Self {
        let what = "PodDisruptionBudgets".to_owned();
        let store = Store::watch(
            server.clone(),
            Selection { what, page: PAGE, ..Selection::default() },
            stop.clone(),
        );
        Self { server, store }
    }

    /// The allowance in `namespace`, from the cache if it is current.
    ///
    /// # Errors
    /// As any call.
    pub(super) async fn allowance(&self, namespace: &str) -> Result<DisruptionAllowance, Error> {
        if !(self.store.has_synced() && self.store.is_current()) {
            return Ok(self.list(namespace).await?.0);
        }
        let cached = self.store.group(&within(namespace));
        Ok(DisruptionAllowance::new(cached.iter().map(|one| Arc::clone(&one.value.0)), self.version()))
    }

    /// The newest allowance in `namespace`, and waits until the cache is as new: a budget that was created before a
    /// change of the spec binds every decision after that change.
    ///
    /// # Errors
    /// As any call, and if the watch does not deliver what was listed.
    pub(super) async fn newest(&self, namespace: &str) -> Result<DisruptionAllowance, Error> {
        let (allowance, listed) = self.list(namespace).await?;
        let mut store = self.store.clone();
        let seen = async {
            // While the cache is not current, nothing is read from it; then it is listed anew first.
            while store.has_synced() && store.is_current() && !listed.iter().all(|one| contains(&store, one))
            {
                store.changed().await;
            }
        };
        if timeout(UNTIL_SEEN, seen).await.is_err() {
            let doing = format!("waiting for the watch of the PodDisruptionBudgets of namespace {namespace}");
            let message = format!("it has not delivered what was listed {} s ago", UNTIL_SEEN.as_secs());
            return Err(Error::own(&doing, Class::Unavailable, message));
        }
        Ok(allowance)
    }

    /// The API version that the server has.
    fn version(&self) -> &'static str {
        if self.server.is_older(DISRUPTIONS.group) { "v1beta1" } else { "v1" }
    }

    /// None if the API server does not have the kind.
    async fn list(
        &self,
        namespace: &str,
    ) -> Result<(DisruptionAllowance, Vec<Trimmed<CachedDisruption>>), Error> {
        let listed =
            match self.server.list_moved::<Trimmed<CachedDisruption>>(&DISRUPTIONS, namespace, None).await {
                Err(error) if error.class() == Class::Gone => Vec::new(),
                listed => listed?.items,
            };
        let budgets = listed.iter().map(|one| Arc::clone(&one.value.0));
        Ok((DisruptionAllowance::new(budgets, self.version()), listed))
    }

    /// Claims one disruption for `pod`, as an eviction does, on the version of the budget that was seen. `Refused`:
    /// the budget was modified concurrently.
    async fn claim(&self, namespace: &str, budget: &Disruption, pod: &str) -> Result<Arc<Disruption>, Error> {
        let status = json!({
            "disruptionsAllowed": budget.status.disruptions_allowed - 1,
            "disruptedPods": { pod: seconds(clock::now()) },
        });
        let metadata =
            json!({ "uid": budget.metadata.uid, "resourceVersion": budget.metadata.resource_version });
        self.patch(namespace, budget, &json!({ "metadata": metadata, "status": status })).await
    }

    /// Records again that `pod` is out of service (`Some`), or that it no longer is.
    async fn enter(
        &self,
        namespace: &str,
        budget: &Disruption,
        pod: &str,
        at: Option<Timestamp>,
    ) -> Result<Arc<Disruption>, Error> {
        let status = json!({ "disruptedPods": { pod: at.map(seconds) } });
        let metadata = json!({ "uid": budget.metadata.uid });
        self.patch(namespace, budget, &json!({ "metadata": metadata, "status": status })).await
    }

    async fn patch(
        &self,
        namespace: &str,
        budget: &Disruption,
        body: &Value,
    ) -> Result<Arc<Disruption>, Error> {
        let name = &budget.metadata.name;
        let doing = format!("claiming at PodDisruptionBudget {namespace}/{name}");
        let request = DISRUPTIONS.request(self.version(), namespace);
        let request = request.patch_subresource("status", name, &as_us(), &Patch::Merge(body));
        let newer: Trimmed<CachedDisruption> = self.server.ask(&doing, request).await?;
        let budget = Arc::clone(&newer.value.0);
        self.store.upsert(newer);
        Ok(budget)
    }
}

/// True if the cache holds this budget in this version or a newer one.
fn contains(store: &Store<Trimmed<CachedDisruption>>, listed: &Trimmed<CachedDisruption>) -> bool {
    let key = trim::key(trim::namespace(&listed.meta), listed.meta.name.as_deref().unwrap_or_default());
    store.get(&key).is_some_and(|cached| is_not_older(cached.as_ref(), listed))
}

/// Formats a time as the API does, in whole seconds.
fn seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Trim for CachedDisruption {
    type Kind = PodDisruptionBudget;
    type Source = Value;

    const OLDER: Option<&'static str> = Some("v1beta1");

    fn trim(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        // A budget that is not cached would allow its pods, so the number of budgets has no limit.
        let is_small =
            source.pointer("/spec/selector").is_none_or(|selector| memory(selector) <= MAX_SELECTOR);
        let read = Some(source).filter(|_| is_small).and_then(|source| serde_json::from_value(source).ok());
        let budget = read.unwrap_or_else(|| {
            Disruption::unreadable(Meta {
                name: meta.name.clone().unwrap_or_default(),
                uid: meta.uid.clone().unwrap_or_default(),
                resource_version: meta.resource_version.clone().unwrap_or_default(),
                generation: meta.generation.unwrap_or_default(),
            })
        });
        (meta, Self(Arc::new(budget)))
    }

    fn groups(&self, meta: &ObjectMeta) -> Vec<String> {
        vec![within(trim::namespace(meta))]
    }

    fn is_unchanged_since(&self, before: &Self) -> bool {
        self.0 == before.0
    }
}

/// The claims of one reconciliation, each on the version of the budget that the last write on it returned.
pub(super) struct BudgetClaims<'a> {
    disruptions: &'a Disruptions,
    namespace: &'a str,
    allowance: &'a DisruptionAllowance,
    newer: HashMap<String, Arc<Disruption>>,
    /// Receives the result of each write.
    wrote: &'a (dyn Fn(Result<(), &Error>) + Send + Sync),
}

impl<'a> BudgetClaims<'a> {
    /// `allowance` is what the decision was based on.
    pub(super) fn new(
        disruptions: &'a Disruptions,
        namespace: &'a str,
        allowance: &'a DisruptionAllowance,
        wrote: &'a (dyn Fn(Result<(), &Error>) + Send + Sync),
    ) -> Self {
        Self { disruptions, namespace, allowance, newer: HashMap::new(), wrote }
    }

    fn now(&self, name: &str) -> Option<Arc<Disruption>> {
        self.newer.get(name).or_else(|| self.allowance.get(name)).cloned()
    }

    /// Claims all budgets or none: if one claim fails, those made before are released.
    pub(super) async fn claim(&mut self, names: &[String], pod: &str) -> Result<(), Error> {
        for (at, name) in names.iter().enumerate() {
            let Some(budget) = self.now(name) else { continue };
            let done = self.disruptions.claim(self.namespace, &budget, pod).await;
            (self.wrote)(done.as_ref().map(drop));
            match done {
                Ok(newer) => drop(self.newer.insert(name.clone(), newer)),
                Err(error) => {
                    self.release(&names[..at], pod).await?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Removes the entry of `pod` from the budgets that have one.
    pub(super) async fn release(&mut self, names: &[String], pod: &str) -> Result<(), Error> {
        for name in names {
            let has = |budget: &Arc<Disruption>| budget.status.disrupted_pods.contains_key(pod);
            let Some(budget) = self.now(name).filter(has) else { continue };
            self.enter(name, &budget, pod, None).await?;
        }
        Ok(())
    }

    /// Writes the entry of `pod` again before it lapses.
    pub(super) async fn renew(&mut self, name: &str, pod: &str) -> Result<(), Error> {
        let Some(budget) = self.now(name) else { return Ok(()) };
        self.enter(name, &budget, pod, Some(clock::now())).await
    }

    async fn enter(
        &mut self,
        name: &str,
        budget: &Disruption,
        pod: &str,
        at: Option<Timestamp>,
    ) -> Result<(), Error> {
        let done = self.disruptions.enter(self.namespace, budget, pod, at).await;
        (self.wrote)(done.as_ref().map(drop));
        match done {
            Ok(newer) => drop(self.newer.insert(name.to_owned(), newer)),
            // A budget that is gone restricts nothing.
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::podtask::disruption::Selected;

    #[test]
    fn a_budget_whose_selector_takes_much_memory_allows_no_pod() {
        let selected = |values: usize| {
            let values: Vec<_> = (0..values).map(|at| at.to_string()).collect();
            let selector = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
            let budget = json!({"metadata": {"name": "pdb"}, "spec": {"selector": selector}});
            let read: Trimmed<CachedDisruption> = serde_json::from_value(budget).unwrap();
            read.value.0.pods.clone()
        };
        assert!(matches!(selected(100), Selected::Labels(_)));
        assert_eq!(selected(2000), Selected::Unreadable);
    }
}
