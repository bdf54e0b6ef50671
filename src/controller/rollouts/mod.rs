//! Brings about what `InPlaceRollout`s want.
//!
//! ```text
//!  watch of rollouts, watch of the pods ──▶ queue ──▶ look: target, pods, budgets ──▶ rollout::decide ──▶ hand: writes ──▶ status
//!  of each one that is under way (follow)
//!  watch of the pods that are worked on ──▶ strays: what a rollout that is gone left on them
//! ```
//!
//! Everything that decides is in the objects; nothing here has to survive. A rollout is looked at again only when what is seen
//! includes what was written for it last. Must not decide anything itself, and never talks to a node.

mod follow;
mod hand;
mod look;
mod metrics;
mod strays;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cluster::agents::Agents;
use crate::cluster::rollouts::{Key, Rollouts};
use crate::cluster::server::Server;
use crate::controller::Common;
use crate::controller::events::Events;
use crate::controller::looks::Looks;
use follow::Follows;

pub(super) use metrics::Metrics;

/// What every look works with.
#[derive(Debug)]
struct Site {
    server: Server,
    known: Rollouts,
    follows: Follows,
    agents: Agents,
    events: Events,
    metrics: Metrics,
}

pub(super) async fn run(common: Common, agents: Agents, stop: CancellationToken) {
    let Common { server, identity, rollout_metrics: metrics, .. } = common;
    let known = Rollouts::watch(&server, &stop);
    let (news, pods) = mpsc::unbounded_channel();
    let follows = Follows::new(server.clone(), news, stop.clone());
    let events = Events::new(server.clone(), identity);
    let site = Arc::new(Site { server, known, follows, agents, events, metrics });
    tokio::join!(bring_about(&site, pods, &stop), strays::run(&site, &stop));
}

async fn bring_about(site: &Arc<Site>, mut pods: mpsc::UnboundedReceiver<Key>, stop: &CancellationToken) {
    let mut known = site.known.clone();
    let mut looks = Looks::new();
    loop {
        for (key, generation) in known.news() {
            looks.hear(&key, generation);
        }
        let current = known.is_current();
        if current {
            looks.begin(|key, doubts| {
                let site = Arc::clone(site);
                async move { look::look(&site, &key, doubts).await }
            });
        }
        tokio::select! {
            () = stop.cancelled() => break,
            () = known.changed() => {}
            Some(key) = pods.recv() => {
                let generation = known.get(&key).map_or(0, |wish| wish.generation);
                looks.hear(&key, generation);
            }
            () = looks.turned(current) => {}
        }
    }
    looks.shutdown().await;
}
