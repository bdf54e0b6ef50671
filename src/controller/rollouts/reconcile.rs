//! One reconciliation of one rollout: collects the input, has `rollout::decide` decide, applies the decision and
//! writes the status.
//!
//! Must not decide anything about a pod.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::in_place_rollout::InPlaceRolloutStatus;
use crate::cluster::agents;
use crate::cluster::error::{Class, Error};
use crate::controller::pods::confirm;
use crate::controller::queue::Outcome;
use crate::controller::reconciler::Reconciler;
use crate::controller::rollouts::Context;
use crate::controller::rollouts::applier::{Applier, patch};
use crate::controller::rollouts::cache::Key;
use crate::controller::rollouts::follow::{Follow, Room};
use crate::podtask::disruption::DisruptionAllowance;
use crate::podtask::priority::NodeLabels;
use crate::podtask::write::VersionedRef;
use crate::process::clock;
use crate::process::log::chain;
use crate::rollout::check;
use crate::rollout::decide::{Decision, RolloutInput, decide};
use crate::rollout::desired::Rollout;
use crate::rollout::failed_write;
use crate::rollout::prefetch::abandoned;
use crate::rollout::reach::ReadyAgent;
use crate::rollout::target::TargetState;

/// The longest time between two reconciliations of an active rollout: its target is not watched, so its deletion
/// causes no event.
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// The pause of a rollout while the pods of others are listed.
const WHILE_LISTING: Duration = Duration::from_secs(1);
/// The reason while too many older rollouts of the namespace are in progress.
const TOO_MANY: &str = "TooManyRollouts";

impl Reconciler for Context {
    type Key = Key;

    async fn reconcile(&self, key: &Key, unconfirmed: Vec<VersionedRef>) -> Result<Outcome, Error> {
        let began = Instant::now();
        let rollout = self.cache.get(key).filter(|rollout| !rollout.deleting);
        let outcome = match &rollout {
            // Its target may select the pods of others: it is not looked up.
            Some(rollout) if rollout.is_active() && !check::spec(&rollout.spec).is_empty() => {
                self.follows.remove(key);
                end_invalid(self, key, rollout).await
            }
            Some(rollout) if rollout.is_active() => reconcile_active(self, key, rollout, unconfirmed).await,
            Some(rollout) => {
                stop_following(self, key).await;
                delete_if_expired(self, rollout).await
            }
            None => {
                stop_following(self, key).await;
                Ok(Outcome::default())
            }
        };
        self.metrics.reconciled(began.elapsed().as_secs_f64());
        outcome
    }
}

/// Ends the watch of the pods of a rollout that has ended or is gone, and removes the images that it named on them.
/// Each pod is tried at most once: what is left stays until a later rollout of the pod.
async fn stop_following(context: &Context, key: &Key) {
    let Some(follow) = context.follows.get(key) else { return };
    context.follows.remove(key);
    let active = context.cache.active_in(&key.namespace);
    for (_, pod) in follow.pods.list() {
        let Some(write) = abandoned(&pod, &active) else { continue };
        let failed = patch(context, key, &follow.pods, &write).await.err();
        let Some(error) = failed.filter(|error| error.class() != Class::Gone) else { continue };
        tracing::warn!("{key}: the images that a pod names in advance stay named: {}", chain(&error));
        // The other pods would wait for the same server.
        if matches!(error.class(), Class::NotSent | Class::Unavailable) {
            break;
        }
    }
}

/// Reconciles a rollout if there is room to follow it; otherwise its pods stay as they are.
async fn reconcile_active(
    context: &Context,
    key: &Key,
    rollout: &Rollout,
    unconfirmed: Vec<VersionedRef>,
) -> Result<Outcome, Error> {
    let has_begun = rollout.before.started_at.is_some();
    if has_begun && context.follows.has(key) {
        return reconcile_cached(context, key, rollout, unconfirmed).await;
    }
    let again = match context.follows.room(key, &context.cache.older(rollout)) {
        Room::Listing => WHILE_LISTING,
        Room::Full if !has_begun => {
            context.follows.remove(key);
            let message = "too many older rollouts of the namespace are in progress, or those of too many pods: it waits \
                           until one of them has ended or is deleted";
            let (reason, message) = (TOO_MANY.to_owned(), message.to_owned());
            let status = InPlaceRolloutStatus { reason, message, ..rollout.before.clone() };
            report(context, key, rollout, &status).await?;
            MAX_INTERVAL
        }
        Room::Full | Room::Free => return reconcile_cached(context, key, rollout, unconfirmed).await,
    };
    Ok(Outcome { again: Some(again), unconfirmed, ..Outcome::default() })
}

async fn reconcile_cached(
    context: &Context,
    key: &Key,
    rollout: &Rollout,
    unconfirmed: Vec<VersionedRef>,
) -> Result<Outcome, Error> {
    let follow = context.follows.of(key, rollout, false).await?;
    if !follow.pods.is_current() {
        // The watch enqueues it again when its cache is current.
        return Ok(Outcome { unconfirmed, ..Outcome::default() });
    }
    if !rollout.spec.priority.is_empty() && !context.nodes.has_synced() {
        return Ok(Outcome { again: Some(Duration::from_secs(1)), unconfirmed, ..Outcome::default() });
    }
    let unconfirmed = confirm(&context.server, &key.namespace, &follow.pods.store, unconfirmed).await;
    if !unconfirmed.is_empty() {
        return Ok(Outcome { failed: true, unconfirmed, ..Outcome::default() });
    }
    // A budget that was created before the spec was changed binds from that change on.
    let newest = rollout.before.observed_generation != rollout.generation;
    let (mut decision, mut allowance) = decided(context, rollout, &follow, newest).await?;
    let mut follow = follow;
    let starts = rollout.before.started_at.is_none();
    if decision.status.phase.is_terminal() || starts {
        // The start and the end of a rollout must be decided on the target as it is now, not on a cached one.
        follow = context.follows.of(key, rollout, true).await?;
        if !follow.pods.is_current() {
            return Ok(Outcome::default());
        }
        let newest = starts && decision.status.started_at.is_some();
        (decision, allowance) = decided(context, rollout, &follow, newest).await?;
    }
    let wrote = |done: Result<(), &Error>| context.metrics.wrote("budget", &done);
    let mut applier = Applier::new(context, key, rollout, &follow.pods, &allowance, &wrote);
    applier.carry_out(&decision).await;
    let requeue_at = decision.requeue_at;
    let (status, events) = match applier.failure() {
        Some(error) => failed_write::after(rollout, decision, error, clock::now()),
        None => (decision.status, decision.events),
    };
    if !applier.has_conflict() {
        let reported = report(context, key, rollout, &status).await;
        if reported.is_ok() {
            for event in &events {
                context.events.report(key.reference(&rollout.uid), event).await;
            }
        }
        applier.note(None, reported);
    }
    let again = requeue_at.map(clock::until);
    let again = if status.phase.is_terminal() {
        // The next reconcile finds it at its end, and waits for the end of its time to live.
        Some(Duration::ZERO)
    } else {
        Some(again.unwrap_or(MAX_INTERVAL).min(MAX_INTERVAL))
    };
    Ok(applier.outcome(again))
}

async fn decided(
    context: &Context,
    rollout: &Rollout,
    follow: &Follow,
    newest: bool,
) -> Result<(Decision, DisruptionAllowance), Error> {
    let allowance = if newest {
        context.disruptions.newest(&rollout.namespace).await?
    } else {
        context.disruptions.allowance(&rollout.namespace).await?
    };
    let pods = follow.pods.list();
    let newer = context.cache.newer(rollout);
    let aborting = context.cache.aborting(rollout);
    let agents = context.agents.by_node().map(|agents| {
        let agent =
            |agent: agents::ReadyAgent| ReadyAgent { since: agent.since, at_once: agent.max_operations };
        agents.into_iter().map(|(node, ready)| (node, agent(ready))).collect()
    });
    let on = pods.iter().filter_map(|(_, pod)| pod.base.node.as_deref());
    let nodes = if rollout.spec.priority.is_empty() { NodeLabels::new() } else { context.nodes.labels(on) };
    let input = RolloutInput {
        nodes: &nodes,
        target: &follow.target,
        pods: pods.iter().map(|(_, pod)| pod.as_ref()).collect(),
        allowance: allowance.clone(),
        newer: newer.as_deref(),
        aborting: aborting.as_deref(),
        active: context.cache.active_in(&rollout.namespace),
        agents: agents.as_ref(),
        now: clock::now(),
    };
    Ok((decide(rollout, input), allowance))
}

/// The decision about a rollout without its target and pods.
fn decided_alone(rollout: &Rollout) -> Decision {
    let input = RolloutInput {
        nodes: &NodeLabels::new(),
        target: &TargetState::Absent,
        pods: Vec::new(),
        allowance: DisruptionAllowance::default(),
        newer: None,
        aborting: None,
        active: BTreeSet::new(),
        agents: None,
        now: clock::now(),
    };
    decide(rollout, input)
}

/// Ends a rollout whose spec is invalid.
async fn end_invalid(context: &Context, key: &Key, rollout: &Rollout) -> Result<Outcome, Error> {
    let decision = decided_alone(rollout);
    report(context, key, rollout, &decision.status).await?;
    for event in &decision.events {
        context.events.report(key.reference(&rollout.uid), event).await;
    }
    Ok(Outcome { again: Some(Duration::ZERO), ..Outcome::default() })
}

/// Deletes an ended rollout when its time to live is over.
async fn delete_if_expired(context: &Context, rollout: &Rollout) -> Result<Outcome, Error> {
    let decision = decided_alone(rollout);
    if decision.delete {
        context.server.delete_rollout(rollout).await?;
    }
    Ok(Outcome { again: decision.requeue_at.map(clock::until), ..Outcome::default() })
}

/// Writes the status if it has changed.
async fn report(
    context: &Context,
    key: &Key,
    rollout: &Rollout,
    status: &InPlaceRolloutStatus,
) -> Result<(), Error> {
    if *status == rollout.before {
        return Ok(());
    }
    let reported = context.server.rollout_status(&context.cache, rollout, status).await;
    context.metrics.wrote("status", &reported.as_ref());
    reported?;
    if status.phase.is_terminal() {
        tracing::info!("{key}: {:?}: {}", status.phase, status.message);
        context.metrics.ended(rollout, status);
    }
    Ok(())
}
