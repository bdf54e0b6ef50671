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

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::cluster::agents::Agents;
use crate::cluster::server::Server;
use crate::cluster::workloads::Workloads;
use crate::controller::Common;
use crate::controller::events::Events;
use crate::controller::queue::Queue;

pub(super) use metrics::Metrics;

/// Looks at once.
const AT_ONCE: usize = 8;

/// What every look works with.
#[derive(Debug)]
struct Site {
    server: Server,
    known: Workloads,
    agents: Agents,
    events: Events,
    metrics: Metrics,
}

pub(super) async fn run(common: Common, agents: Agents, stop: CancellationToken) {
    let Common { server, identity, workload_metrics: metrics, .. } = common;
    let mut known = Workloads::watch(&server, &stop);
    let events = Events::new(server.clone(), identity);
    let site = Arc::new(Site { server, known: known.clone(), agents, events, metrics });
    let mut queue = Queue::default();
    let mut looks = JoinSet::new();
    loop {
        let now = Instant::now();
        for (key, generation) in known.news() {
            queue.hear(&key, generation, now);
        }
        let current = known.is_current();
        while current && looks.len() < AT_ONCE {
            let Some((key, doubts)) = queue.take(now) else { break };
            let site = Arc::clone(&site);
            looks.spawn(async move {
                let outcome = look::look(&site, &key, doubts).await;
                (key, outcome)
            });
        }
        site.metrics.queue.set(i64::try_from(queue.depth(now)).unwrap_or(i64::MAX));
        let next = queue.due().filter(|_| current && looks.len() < AT_ONCE);
        tokio::select! {
            () = stop.cancelled() => break,
            () = known.changed() => {}
            Some(ended) = looks.join_next() => {
                if let Ok((key, outcome)) = ended {
                    queue.end(&key, outcome, Instant::now());
                }
            }
            () = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
    // Somebody else may lead by now: what is not written is not written any more.
    looks.shutdown().await;
}
