//! Runs the HookRuns that belong to no node, those that set annotations of their pod, and those whose node has had no ready
//! agent for a while.
//!
//! An agent that comes back gets its runs back: they are let go here, and it takes them. Must not touch those of operations.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::cluster::agents::Agents;
use crate::cluster::hooks::{HookRuns, Summary};
use crate::controller::Common;
use crate::hook::place::Place;
use crate::hook::runner::{Duty, Identity, Ownership, Runner, RunnerContext, Terms};

/// A node without a ready agent for so long does not run its hooks: longer than an agent's update takes.
const GRACE: Duration = Duration::from_secs(20);
/// HookRuns at once; most of them only wait for the next measurement.
const MAX_RUNS: usize = 4096;
/// Bytes of large HookRuns at once: with what measuring them takes, half of what a controller may have.
const MAX_BYTES: usize = 24 << 20;
/// As it is written on a run. The same for all processes: who leads is decided by the Lease.
const RUNNER: &str = "controller";

pub(super) async fn run(common: Common, agents: Agents, stop: CancellationToken) {
    let Common { server, identity, engine, hook_metrics, .. } = common;
    let labels = format!("!{}", annotation::OPERATION);
    let runs = HookRuns::watch(server.clone(), "HookRuns", &labels, stop.clone());
    let orphans = Orphans { agents, ready: None, away: HashMap::new() };
    // An agent that is not ready is not asked to let go: it may not be there at all.
    let identity = Identity { runner: RUNNER.to_owned(), host: identity, patience: Duration::ZERO };
    let context = RunnerContext {
        server,
        engine,
        runs,
        identity,
        terms: Terms::default(),
        max_runs: MAX_RUNS,
        max_bytes: MAX_BYTES,
        metrics: hook_metrics,
        stop,
    };
    Runner::new(context, orphans).run().await;
}

/// The runs that no agent runs.
struct Orphans {
    agents: Agents,
    /// The nodes with a ready agent, as they were last known.
    ready: Option<BTreeSet<String>>,
    /// Since when nodes that have runs are known to have no ready agent.
    away: HashMap<String, Instant>,
}

impl Duty for Orphans {
    fn begin(&mut self) {
        self.ready = self.agents.ready();
        match &self.ready {
            Some(ready) => self.away.retain(|node, _| !ready.contains(node)),
            // What was not seen meanwhile may have been ready.
            None => self.away.clear(),
        }
    }

    fn ownership(&mut self, run: &Summary) -> Ownership {
        let Some(node) = run.node().filter(|_| !run.is_for_controller()) else { return Ownership::Ours };
        let Some(ready) = &self.ready else { return Ownership::Unknown };
        if ready.contains(node) {
            return Ownership::Theirs;
        }
        let since = *self.away.entry(node.to_owned()).or_insert_with(Instant::now);
        if since.elapsed() >= GRACE { Ownership::Ours } else { Ownership::Unknown }
    }

    /// The pod that its arguments name, if any, is found by its name: no runtime is at hand to tell it by its uid.
    fn place(&self, run: &Summary) -> Result<Place, String> {
        Ok(Place { namespace: kube::ResourceExt::namespace(run).unwrap_or_default(), pod: None })
    }

    async fn changed(&mut self) {
        let now = Instant::now();
        let next = self.away.values().map(|since| *since + GRACE).filter(|at| *at > now).min();
        tokio::select! {
            () = self.agents.changed() => {}
            () = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            } => {}
        }
    }
}
