//! Reconciles `InPlaceRollout`s.
//!
//! ```text
//!  watch of rollouts, watch of the ──▶ queue ──▶ reconcile: target, ──▶ rollout::decide ──▶ applier: ──▶ status
//!  pods of each active one (follow)              pods, budgets                           writes
//!  watch of the pods with a record ──▶ orphans: what a rollout that is gone left on them
//! ```
//!
//! All state that decisions depend on is in the objects; nothing in this process has to survive a restart. A
//! rollout is reconciled again only when the caches contain what was last written for it. Must not decide
//! anything itself, and never talks to a node.

mod applier;
mod cache;
mod follow;
mod metrics;
mod orphans;
mod reconcile;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::cluster::agents::Agents;
use crate::cluster::server::Server;
use crate::controller::Common;
use crate::controller::disruptions::Disruptions;
use crate::controller::events::Events;
use crate::controller::nodes::NodeCache;
use crate::controller::reconciler::{self, Changes};
use crate::controller::rollouts::cache::{Key, Rollouts};
use follow::Follows;

pub(super) use metrics::Metrics;

/// Reads the object of a watch event as the caches do.
#[cfg(any(fuzzing, feature = "faults"))]
pub(super) fn watched(event: &[u8]) {
    crate::cluster::trim::watched::<cache::CachedRollout>(event);
    crate::cluster::trim::watched::<cache::CachedPod>(event);
}

/// Capacity of the channel of rollouts whose pods have changed. A watch waits while it is full.
const MAX_CHANGES: usize = 64;

/// What every reconciliation shares.
#[derive(Debug)]
struct Context {
    server: Server,
    cache: Rollouts,
    follows: Follows,
    agents: Agents,
    disruptions: Disruptions,
    nodes: NodeCache,
    events: Events,
    metrics: Metrics,
}

pub(super) async fn run(
    common: Common,
    agents: Agents,
    disruptions: Disruptions,
    nodes: NodeCache,
    stop: CancellationToken,
) {
    let Common { server, identity, rollout_metrics: metrics, .. } = common;
    let cache = Rollouts::watch(&server, &stop);
    let (updates, pods) = mpsc::channel(MAX_CHANGES);
    let follows = Follows::new(server.clone(), updates, stop.clone());
    let events = Events::new(server.clone(), identity);
    let context = Arc::new(Context { server, cache, follows, agents, disruptions, nodes, events, metrics });
    let changes = RolloutChanges { cache: context.cache.clone(), pods, changed: Vec::new() };
    let _observed = context.metrics.observed.hold(context.cache.clone());
    tokio::join!(reconciler::run(&context, changes, &stop), orphans::run(&context, &stop));
}

/// Changes of rollouts and of the pods that they work on.
struct RolloutChanges {
    cache: Rollouts,
    pods: mpsc::Receiver<Key>,
    /// Rollouts whose pods have changed.
    changed: Vec<Key>,
}

impl Changes<Key> for RolloutChanges {
    fn take(&mut self) -> Vec<(Key, i64)> {
        let mut all = self.cache.updates();
        for key in self.changed.drain(..) {
            let generation = self.cache.get(&key).map_or(0, |rollout| rollout.generation);
            all.push((key, generation));
        }
        all
    }

    fn is_current(&self) -> bool {
        self.cache.is_current()
    }

    async fn changed(&mut self) {
        tokio::select! {
            () = self.cache.changed() => {}
            Some(key) = self.pods.recv() => self.changed.push(key),
        }
    }
}
