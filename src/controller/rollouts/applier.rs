//! Applies the decision about one rollout, in its order: each write once, each with the observed version as
//! precondition.
//!
//! Must not decide anything: whatever is not done is decided again by the next reconciliation.

use std::time::Duration;

use futures_util::future::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};

use crate::api::in_place_rollout::request_id;
use crate::api::status::Status;
use crate::cluster::error::{Class, Error};
use crate::controller::disruptions::BudgetClaims;
use crate::controller::pods;
use crate::controller::queue::Outcome;
use crate::controller::rollouts::Context;
use crate::controller::rollouts::cache::{Key, TargetPods};
use crate::podtask::disruption::DisruptionAllowance;
use crate::podtask::state::Stage;
use crate::podtask::write::VersionedRef;
use crate::process::log::chain;
use crate::rollout::decide::{Decision, What, Write};
use crate::rollout::desired::Rollout;

/// Writes at the same time.
const AT_ONCE: usize = 8;

/// The writes of one reconciliation.
pub(super) struct Applier<'a> {
    context: &'a Context,
    key: &'a Key,
    rollout: &'a Rollout,
    pods: &'a TargetPods,
    claims: BudgetClaims<'a>,
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
        wrote: &'a (dyn Fn(Result<(), &Error>) + Send + Sync),
    ) -> Self {
        let claims = BudgetClaims::new(&context.disruptions, &key.namespace, allowance, wrote);
        Self { context, key, rollout, pods, claims, stale: false, failure: None, unconfirmed: Vec::new() }
    }

    /// Applies the whole decision. A failed write does not stop the others.
    pub(super) async fn carry_out(&mut self, decision: &Decision) {
        if decision.labels {
            let done = self.context.server.label_rollout(self.rollout).await;
            self.note(None, done);
        }
        for (budget, pod) in &decision.renewals {
            let done = self.claims.renew(budget, pod).await;
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
                self.claims.claim(claims, pod).await?;
                let done = patch(self.context, self.key, self.pods, write).await;
                if done.as_ref().is_err_and(|error| error.class() != Class::Unavailable) {
                    // The pod's task did not start: nothing may wait for its disruption.
                    self.claims.release(claims, pod).await?;
                }
                done
            }
            What::End(_, claims) => {
                self.claims.release(claims, pod).await?;
                patch(self.context, self.key, self.pods, write).await
            }
            What::Recall | What::Release | What::Prefetch => {
                patch(self.context, self.key, self.pods, write).await
            }
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
        if error.class() == Class::Unavailable {
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
        let back = pod.and_then(|(_, pod)| pod.record.as_ref()).is_some_and(|record| record.back);
        let id = request_id(&self.rollout.uid, back);
        let own = |answer: &&Status| answer.id == id;
        let answer = pod.and_then(|(_, pod)| pod.base.answer.as_ref()).filter(own);
        self.context.metrics.pod_ended(end.stage, back, answer.filter(|_| end.stage == Stage::Done));
    }
}

/// Patches a pod, and puts the answer into the cache.
pub(super) async fn patch(
    context: &Context,
    key: &Key,
    cached: &TargetPods,
    write: &Write,
) -> Result<(), Error> {
    let done = pods::patch(&context.server, &key.namespace, &cached.store, &write.pod, &write.patch).await;
    context.metrics.wrote("pod", &done.as_ref());
    done
}
