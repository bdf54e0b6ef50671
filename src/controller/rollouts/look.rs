//! One look at one rollout: what is seen of it, what follows, and what is told of it afterwards.

use std::time::Duration;

use tokio::time::Instant;

use crate::api::in_place_rollout::InPlaceRolloutStatus;
use crate::cluster::error::{Class, Error};
use crate::cluster::rollouts::Key;
use crate::controller::queue::Outcome;
use crate::controller::rollouts::Site;
use crate::controller::rollouts::follow::Follow;
use crate::controller::rollouts::hand::Hand;
use crate::process::clock;
use crate::process::log::chain;
use crate::rollout::decide::{Decision, Seen, decide};
use crate::rollout::disruption::Room;
use crate::rollout::target::Target;
use crate::rollout::wish::Wish;
use crate::workload::action::PodRef;

/// How long nothing is heard of a target at most: nobody tells that it is gone.
const LOOK_ANEW: Duration = Duration::from_secs(10);

/// Looks at `key` once. `doubts` are pods of which nobody knows whether they were written.
pub(super) async fn look(site: &Site, key: &Key, doubts: Vec<PodRef>) -> Outcome {
    let began = Instant::now();
    let wish = site.known.get(key).filter(|wish| !wish.deleting);
    let looked = match &wish {
        Some(wish) if wish.is_active() => bring_about(site, key, wish, doubts).await,
        Some(wish) => {
            site.follows.forget(key);
            forget_in_time(site, wish).await
        }
        None => {
            site.follows.forget(key);
            Ok(Outcome::default())
        }
    };
    site.metrics.looked(began.elapsed().as_secs_f64());
    looked.unwrap_or_else(|error| {
        // Somebody else was faster, or it is gone: the next look says.
        if !matches!(error.class(), Class::Refused | Class::Gone) {
            tracing::info!("{key}: {}", chain(&error));
        }
        Outcome { failed: true, ..Outcome::default() }
    })
}

async fn bring_about(site: &Site, key: &Key, wish: &Wish, doubts: Vec<PodRef>) -> Result<Outcome, Error> {
    let follow = site.follows.of(key, wish, false).await?;
    if !follow.pods.is_current() {
        // It is looked at again when they are.
        return Ok(Outcome { doubts, ..Outcome::default() });
    }
    let doubts = settle(site, key, &follow, doubts).await;
    if !doubts.is_empty() {
        return Ok(Outcome { failed: true, doubts, ..Outcome::default() });
    }
    let (mut decision, mut room, mut version) = decided(site, wish, &follow).await?;
    let mut follow = follow;
    if decision.status.phase.is_terminal() || wish.before.started_at.is_none() {
        // What it begins with and how it ends must be true of the target as it is now.
        follow = site.follows.of(key, wish, true).await?;
        if !follow.pods.is_current() {
            return Ok(Outcome::default());
        }
        (decision, room, version) = decided(site, wish, &follow).await?;
    }
    let mut hand = Hand::new(site, key, wish, &follow.pods, &room, version);
    hand.carry_out(&decision).await;
    let Decision { mut status, events, look_again, .. } = decision;
    if let Some(error) = hand.failure() {
        status = spoilt(wish, status, error);
    }
    if !hand.stale() {
        tell(site, key, wish, &status).await?;
        if hand.failure().is_none() {
            for event in &events {
                site.events.tell(key.reference(&wish.uid), event).await;
            }
        }
    }
    let again = look_again.map(clock::until);
    let again =
        if status.phase.is_terminal() { again } else { Some(again.unwrap_or(LOOK_ANEW).min(LOOK_ANEW)) };
    Ok(hand.outcome(again))
}

async fn decided(site: &Site, wish: &Wish, follow: &Follow) -> Result<(Decision, Room, &'static str), Error> {
    let budgets = site.server.disruptions(&wish.namespace).await?;
    let version = budgets.version;
    let room = Room::new(budgets.items, version);
    let pods = follow.pods.list();
    let newer = site.known.newer(wish);
    let agents = site.agents.ready_since();
    let seen = Seen {
        target: &follow.target,
        pods: pods.iter().map(|(_, pod)| pod.as_ref()).collect(),
        room: room.clone(),
        newer: newer.as_deref(),
        agents: agents.as_ref(),
        now: clock::now(),
    };
    Ok((decide(wish, seen), room, version))
}

/// One that has ended is deleted when its time is over.
async fn forget_in_time(site: &Site, wish: &Wish) -> Result<Outcome, Error> {
    let seen = Seen {
        target: &Target::Absent,
        pods: Vec::new(),
        room: Room::default(),
        newer: None,
        agents: None,
        now: clock::now(),
    };
    let decision = decide(wish, seen);
    if decision.delete {
        site.server.delete_rollout(wish).await?;
    }
    Ok(Outcome { again: decision.look_again.map(clock::until), ..Outcome::default() })
}

/// Finds out what became of pods whose last write had no answer. Those of which nobody knows are left.
async fn settle(site: &Site, key: &Key, follow: &Follow, doubts: Vec<PodRef>) -> Vec<PodRef> {
    let mut left = Vec::new();
    for pod in doubts {
        match site.server.see_pod(&key.namespace, &pod).await {
            Ok(Some(seen)) => follow.pods.learn(seen),
            Ok(None) => follow.pods.forget(&key.namespace, &pod.name, &pod.uid),
            Err(error) => {
                tracing::debug!("{key}: {}", chain(&error));
                left.push(pod);
            }
        }
    }
    left
}

/// What is told when a write has failed: that, and nothing that is not true yet.
fn spoilt(wish: &Wish, decided: InPlaceRolloutStatus, error: &str) -> InPlaceRolloutStatus {
    let before = wish.before.clone();
    let failures =
        if decided.failures.len() > before.failures.len() { before.failures } else { decided.failures };
    InPlaceRolloutStatus {
        observed_generation: wish.generation,
        reason: "WriteFailed".to_owned(),
        message: format!("{error}; it is tried again"),
        failures,
        ..before
    }
}

/// Writes the status, if it says anything new.
async fn tell(site: &Site, key: &Key, wish: &Wish, status: &InPlaceRolloutStatus) -> Result<(), Error> {
    if *status == wish.before {
        return Ok(());
    }
    let told = site.server.rollout_status(&site.known, wish, status).await;
    site.metrics.wrote("status", &told);
    told?;
    if status.phase.is_terminal() {
        tracing::info!("{key}: {:?}: {}", status.phase, status.message);
        site.metrics.ended(status.phase);
    }
    Ok(())
}
