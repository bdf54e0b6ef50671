//! Applies the decision about one rollout, in its order: each write once, each with the observed version as
//! precondition.
//!
//! Must not decide anything: whatever is not done is decided again by the next reconciliation.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};

use crate::api::status::Status;
use crate::cluster::error::{Class, Error};
use crate::controller::pods;
use crate::controller::queue::Outcome;
use crate::controller::rollouts::Context;
use crate::controller::rollouts::cache::{Key, TargetPods};
use crate::podtask::state::Stage;
use crate::podtask::write::VersionedRef;
use crate::process::clock;
use crate::process::log::chain;
use crate::rollout::decide::{Decision, What, Write};
use crate::rollout::desired::Rollout;
use crate::rollout::disruption::{Disruption, DisruptionAllowance};

/// Writes at the same time.
const AT_ONCE: usize = 8;

/// The writes of one reconciliation.
pub(super) struct Applier<'a> {
    context: &'a Context,
    key: &'a Key,
    rollout: &'a Rollout,
    pods: &'a TargetPods,
    budgets: Budgets<'a>,
    /// At least one object was not in the observed state.
    stale: bool,
    failure: Option<String>,
    unconfirmed: Vec<VersionedRef>,
}

impl<'a> Applier<'a> {
    pub(super) fn new(
        context: &'a Context,
        key: &'a Key,
        rollout: &'a Rollout,
        pods: &'a TargetPods,
        allowance: &'a DisruptionAllowance,
        version: &'static str,
    ) -> Self {
        let budgets = Budgets::new(context, &key.namespace, version, allowance);
        Self { context, key, rollout, pods, budgets, stale: false, failure: None, unconfirmed: Vec::new() }
    }

    /// Applies the whole decision. A failed write does not stop the others.
    pub(super) async fn carry_out(&mut self, decision: &Decision) {
        for (budget, pod) in &decision.renewals {
            let done = self.budgets.renew(budget, pod).await;
            self.note(None, done);
        }
        // Writes that claim or release budgets are applied one by one: each changes the version that is the
        // precondition of the next claim.
        let (claiming, plain): (Vec<_>, Vec<_>) = decision.writes.iter().partition(|write| write.claims());
        for write in claiming {
            let done = self.claim_and_write(write).await;
            self.note(Some(write), done);
        }
        let mut writes = Vec::with_capacity(plain.len());
        for write in plain {
            let (context, key, pods) = (self.context, self.key, self.pods);
            writes.push(async move { (write, patch(context, key, pods, write).await) }.boxed());
        }
        let done: Vec<_> = stream::iter(writes).buffered(AT_ONCE).collect().await;
        for (write, done) in done {
            self.note(Some(write), done);
        }
    }

    pub(super) fn has_conflict(&self) -> bool {
        self.stale
    }

    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The outcome for the queue.
    pub(super) fn outcome(self, again: Option<Duration>) -> Outcome {
        let failed = self.failure.is_some();
        Outcome { failed, stale: self.stale, again, unconfirmed: self.unconfirmed }
    }

    async fn claim_and_write(&mut self, write: &Write) -> Result<(), Error> {
        let pod = &write.pod.name;
        match &write.what {
            What::Begin(claims) => {
                self.budgets.claim(claims, pod).await?;
                let done = patch(self.context, self.key, self.pods, write).await;
                if done.as_ref().is_err_and(|error| error.class() != Class::Away) {
                    // The pod's task did not start: nothing may wait for its disruption.
                    self.budgets.release(claims, pod).await?;
                }
                done
            }
            What::End(_, claims) => {
                self.budgets.release(claims, pod).await?;
                patch(self.context, self.key, self.pods, write).await
            }
            What::Recall => patch(self.context, self.key, self.pods, write).await,
        }
    }

    /// Handles the result of one write: counts it, and records it for the next reconciliation.
    pub(super) fn note(&mut self, write: Option<&Write>, done: Result<(), Error>) {
        let Err(error) = done else {
            if let Some(write) = write {
                self.count(write);
            }
            return;
        };
        if error.class() == Class::Away {
            self.unconfirmed.extend(write.map(|write| write.pod.clone()));
        }
        if matches!(error.class(), Class::Refused | Class::Gone) {
            self.stale = true;
            return;
        }
        let error = chain(&error);
        tracing::info!("{}: {error}", self.key);
        self.failure.get_or_insert(error);
    }

    fn count(&self, write: &Write) {
        let What::End(end, _) = &write.what else { return };
        let pods = self.pods.list();
        let pod = pods.iter().find(|(_, pod)| pod.base.uid == write.pod.uid);
        let own = |answer: &&Status| answer.id == self.rollout.uid;
        let answer = pod.and_then(|(_, pod)| pod.base.answer.as_ref()).filter(own);
        self.context.metrics.pod_ended(end.stage, answer.filter(|_| end.stage == Stage::Done));
    }
}

/// Patches a pod, and puts the answer into the cache.
async fn patch(context: &Context, key: &Key, cached: &TargetPods, write: &Write) -> Result<(), Error> {
    let done = pods::patch(&context.server, &key.namespace, &cached.store, &write.pod, &write.patch).await;
    context.metrics.wrote("pod", &done);
    done
}

/// The `PodDisruptionBudget`s, each in the version that the last write on it returned.
pub(super) struct Budgets<'a> {
    context: &'a Context,
    namespace: &'a str,
    version: &'static str,
    allowance: &'a DisruptionAllowance,
    newer: HashMap<String, Disruption>,
}

impl<'a> Budgets<'a> {
    pub(super) fn new(
        context: &'a Context,
        namespace: &'a str,
        version: &'static str,
        allowance: &'a DisruptionAllowance,
    ) -> Self {
        Self { context, namespace, version, allowance, newer: HashMap::new() }
    }

    fn now(&self, name: &str) -> Option<Disruption> {
        self.newer.get(name).or_else(|| self.allowance.get(name)).cloned()
    }

    /// Claims all budgets or none: if one claim fails, those made before are released.
    async fn claim(&mut self, names: &[String], pod: &str) -> Result<(), Error> {
        for (at, name) in names.iter().enumerate() {
            let Some(budget) = self.now(name) else { continue };
            let place = (self.version, self.namespace);
            let done = self.context.server.claim_disruption(place, &budget, pod, clock::now()).await;
            self.context.metrics.wrote("budget", &done);
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
            let has = |budget: &Disruption| budget.status.disrupted_pods.contains_key(pod);
            let Some(budget) = self.now(name).filter(has) else { continue };
            self.entry(name, &budget, pod, false).await?;
        }
        Ok(())
    }

    async fn renew(&mut self, name: &str, pod: &str) -> Result<(), Error> {
        let Some(budget) = self.now(name) else { return Ok(()) };
        self.entry(name, &budget, pod, true).await
    }

    async fn entry(&mut self, name: &str, budget: &Disruption, pod: &str, there: bool) -> Result<(), Error> {
        let at = there.then(clock::now);
        let done = self.context.server.note_disruption((self.version, self.namespace), budget, pod, at).await;
        self.context.metrics.wrote("budget", &done);
        match done {
            Ok(newer) => drop(self.newer.insert(name.to_owned(), newer)),
            // A budget that is gone restricts nothing.
            Err(error) if error.class() == Class::Gone => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
