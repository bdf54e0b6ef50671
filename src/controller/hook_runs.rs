//! Runs the HookRuns that belong to no node, those that set annotations of their pod, and those whose node has
//! had no ready agent for a while.
//!
//! When the agent comes back, this runner releases the node's HookRuns and the agent takes them over. Must not
//! touch the HookRuns of operations.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::cluster::agents::Agents;
use crate::cluster::hooks::{HookRuns, Summary};
use crate::controller::Common;
use crate::hook::place::Place;
use crate::hook::runner::{Identity, Ownership, RunSelection, Runner, RunnerContext, Terms};

/// After a node has had no ready agent for this long, the controller runs its hooks. Longer than an update of the
/// agent takes.
const GRACE: Duration = Duration::from_secs(20);
/// The same for hooks that run a command. The controller can only let them end with an error, so it waits longer than an agent
/// that finishes an operation before it is replaced.
const GRACE_OF_COMMANDS: Duration = Duration::from_secs(300);
/// HookRuns at the same time. Most of them only wait for the next measurement.
const MAX_RUNS: usize = 4096;
/// Bytes of large HookRuns at the same time: together with the memory that measuring them takes, half of a
/// controller's memory limit.
const MAX_BYTES: usize = 24 << 20;
/// The runner's name, as it is written on a HookRun. It is the same in all processes: the Lease decides which one
/// leads.
const RUNNER: &str = "controller";

pub(super) async fn run(common: Common, agents: Agents, stop: CancellationToken) {
    let Common { server, identity, executor, hook_metrics, .. } = common;
    let labels = format!("!{}", annotation::OPERATION);
    let runs = HookRuns::watch(server.clone(), "HookRuns", &labels, stop.clone());
    let orphans = Orphans { agents, ready: None, away: HashMap::new() };
    // An agent that is not ready gets no time to release its HookRuns: it may not exist at all.
    let identity = Identity { runner: RUNNER.to_owned(), host: identity, release_timeout: Duration::ZERO };
    let context = RunnerContext {
        server,
        executor,
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

/// Selects the HookRuns that no agent runs.
struct Orphans {
    agents: Agents,
    /// The nodes with a ready agent, from the last observation. None if the cache of agents is not current.
    ready: Option<BTreeSet<String>>,
    /// For nodes that have HookRuns and no ready agent: since when.
    away: HashMap<String, Instant>,
}

impl RunSelection for Orphans {
    fn begin(&mut self) {
        self.ready = self.agents.ready();
        match &self.ready {
            Some(ready) => self.away.retain(|node, _| !ready.contains(node)),
            // While the cache is not current, an agent may have been ready without being observed.
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
        // An earlier leader has waited for the agent of what it has taken.
        let is_taken = run.runner() == Some(RUNNER);
        if is_taken || since.elapsed() >= grace(run) { Ownership::Ours } else { Ownership::Unknown }
    }

    /// The pod that the arguments name, if any, is looked up by name: the controller has no runtime that could
    /// check the uid.
    fn place(&self, run: &Summary) -> Result<Place, String> {
        Ok(Place { namespace: kube::ResourceExt::namespace(run).unwrap_or_default(), ..Place::default() })
    }

    async fn changed(&mut self) {
        let now = Instant::now();
        let ends =
            self.away.values().flat_map(|since| [GRACE, GRACE_OF_COMMANDS].map(|grace| *since + grace));
        let next = ends.filter(|at| *at > now).min();
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

fn grace(run: &Summary) -> Duration {
    if run.runs_commands() { GRACE_OF_COMMANDS } else { GRACE }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_hook_that_only_an_agent_can_run_waits_longer_for_one() {
        let of = |provider: serde_json::Value| {
            let metric = json!({"name": "m", "provider": provider});
            let run = json!({"metadata": {"name": "r"}, "spec": {"metrics": [metric]}});
            grace(&serde_json::from_value(run).unwrap())
        };
        assert_eq!(of(json!({"web": {"url": "http://localhost"}})), GRACE);
        assert_eq!(of(json!({"exec": {"container": "app", "command": ["true"]}})), GRACE_OF_COMMANDS);
    }
}
