//! Brings about what `GameDeployment`s and `GameStatefulSet`s want.
//!
//! ```text
//!  watches ──▶ queue of workloads ──▶ look: what is seen ──▶ workload::decide ──▶ hand: writes, in their order ──▶ status
//! ```
//!
//! Everything that decides is in the objects; nothing here has to survive. A workload is looked at again only when what is
//! seen includes what was written for it last. Must not decide anything itself, and never talks to a node.

mod hand;
mod look;
mod metrics;
mod revisions;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cluster::agents::Agents;
use crate::cluster::server::Server;
use crate::cluster::workloads::{Contents, Workloads};
use crate::controller::Common;
use crate::controller::events::Events;
use crate::controller::looks::Looks;

pub(super) use metrics::Metrics;

/// What every look works with.
#[derive(Debug)]
struct Site {
    server: Server,
    known: Workloads,
    contents: Contents,
    misfits: revisions::Misfits,
    agents: Agents,
    events: Events,
    metrics: Metrics,
}

pub(super) async fn run(common: Common, agents: Agents, stop: CancellationToken) {
    let Common { server, identity, workload_metrics: metrics, .. } = common;
    let mut known = Workloads::watch(&server, &stop);
    let events = Events::new(server.clone(), identity);
    let (contents, misfits) = (Contents::default(), revisions::Misfits::default());
    let site = Arc::new(Site { server, known: known.clone(), contents, misfits, agents, events, metrics });
    let mut looks = Looks::new();
    loop {
        for (key, generation) in known.news() {
            looks.hear(&key, generation);
        }
        let current = known.is_current();
        if current {
            looks.begin(|key, doubts| {
                let site = Arc::clone(&site);
                async move { look::look(&site, &key, doubts).await }
            });
        }
        site.metrics.queue.set(i64::try_from(looks.depth()).unwrap_or(i64::MAX));
        tokio::select! {
            () = stop.cancelled() => break,
            () = known.changed() => {}
            () = looks.turned(current) => {}
        }
    }
    looks.shutdown().await;
}
