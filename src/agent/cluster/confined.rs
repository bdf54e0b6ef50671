//! Checks and reports whether an admission policy confines this agent's token to its node. Without such a policy, a
//! stolen token allows changes to every pod of the cluster.
//!
//! Must not change anything: it only sets a metric and logs.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::cluster::confinement::Confinement;
use crate::cluster::server::Server;

/// The pause between two checks. A policy may be installed or removed at any time.
const AGAIN: Duration = Duration::from_secs(3600);
/// The pause after a check without a result.
const RETRY: Duration = Duration::from_secs(60);

/// Checks when the agent starts and then once an hour. Runs until the future is dropped.
pub(in crate::agent) async fn watch(server: Server, namespace: String, registered: Gauge) {
    let mut last = None;
    loop {
        let found = server.confinement(&namespace).await;
        registered.set(number(&found));
        if last.as_ref() != Some(&found) {
            log(&found);
        }
        let pause = if matches!(found, Confinement::Unknown(_)) { RETRY } else { AGAIN };
        last = Some(found);
        tokio::time::sleep(pause).await;
    }
}

/// Registers the gauge that [`watch`] sets.
pub(in crate::agent) fn register(registry: &mut Registry) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(-1);
    let help = "1 if an admission policy restricts this agent's token to its node, 0 if none does, -1 if this is unknown";
    registry.register("confined", help, gauge.clone());
    gauge
}

fn number(found: &Confinement) -> i64 {
    match found {
        Confinement::Confined => 1,
        Confinement::Open => 0,
        Confinement::Unknown(_) => -1,
    }
}

fn log(found: &Confinement) {
    match found {
        Confinement::Confined => {
            tracing::info!("an admission policy restricts this agent's token to its node");
        }
        Confinement::Open => tracing::warn!(
            "no admission policy restricts this agent's token to its node: with a stolen token every pod of the \
             cluster can be changed. Kubernetes 1.30 or newer: kubectl apply -k daemonset/admission-policy"
        ),
        Confinement::Unknown(why) => {
            tracing::info!(
                why,
                "it is unknown whether an admission policy restricts this agent's token to its node"
            );
        }
    }
}
