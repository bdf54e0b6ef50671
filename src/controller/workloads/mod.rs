//! Reconciles `GameDeployment`s and `GameStatefulSet`s.
//!
//! ```text
//!  watches ──▶ queue ──▶ reconcile: input ──▶ workload::decide ──▶ applier: writes, in their order ──▶ status
//! ```
//!
//! All state that decisions depend on is in the objects; nothing in this process has to survive a restart. A
//! workload is reconciled again only when the caches contain what was last written for it. Must not decide
//! anything itself, and never talks to a node.

mod applier;
pub(in crate::controller) mod cache;
mod hook_templates;
mod metrics;
mod reconcile;
mod revisions;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cluster::agents::Agents;
use crate::cluster::server::Server;
use crate::controller::Common;
use crate::controller::disruptions::Disruptions;
use crate::controller::events::Events;
use crate::controller::nodes::NodeCache;
use crate::controller::reconciler;
use crate::controller::workloads::cache::{Contents, Workloads};

pub(super) use metrics::Metrics;

/// What every reconciliation shares.
#[derive(Debug)]
struct Context {
    server: Server,
    cache: Workloads,
    contents: Contents,
    reported_revisions: revisions::ReportedRevisions,
    agents: Agents,
    disruptions: Disruptions,
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
    let Common { server, identity, workload_metrics: metrics, .. } = common;
    let cache = Workloads::watch(&server, nodes, &stop);
    let events = Events::new(server.clone(), identity);
    let (contents, reported_revisions) = (Contents::default(), revisions::ReportedRevisions::default());
    let context = Arc::new(Context {
        server,
        cache: cache.clone(),
        contents,
        reported_revisions,
        agents,
        disruptions,
        events,
        metrics,
    });
    let _observed = context.metrics.observed.hold(cache.clone());
    reconciler::run(&context, cache, &stop).await;
}
