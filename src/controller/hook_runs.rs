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
/// While the cache of agents is not current for less than this, no agent is assumed to have been ready: the API
/// server ends each watch after a while, and the next one is open a moment later.
const MAX_GAP: Duration = Duration::from_secs(10);
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
    let orphans = Orphans::new(agents);
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
    /// Since when the cache is not current.
    stale_since: Option<Instant>,
    /// The nodes that have HookRuns and no ready agent.
    lacking: HashMap<String, Lacking>,
}

/// A node without a ready agent.
struct Lacking {
    since: Instant,
    /// True if a HookRun names the node, in the present comparison.
    is_named: bool,
}

impl Orphans {
    fn new(agents: Agents) -> Self {
        Self { agents, ready: None, stale_since: None, lacking: HashMap::new() }
    }

    /// Begins a comparison with these ready agents.
    fn observe(&mut self, ready: Option<BTreeSet<String>>) {
        // The name of a node is free text of a HookRun, so that only names that are in use are kept.
        if self.ready.is_some() {
            self.lacking.retain(|_, lacking| std::mem::take(&mut lacking.is_named));
        }
        // In a long gap an agent may have been ready without being observed.
        if self.stale_since.is_some_and(|since| since.elapsed() >= MAX_GAP) {
            self.lacking.clear();
        }
        match &ready {
            Some(ready) => {
                self.stale_since = None;
                self.lacking.retain(|node, _| !ready.contains(node));
            }
            None => {
                self.stale_since.get_or_insert_with(Instant::now);
            }
        }
        self.ready = ready;
    }
}

impl RunSelection for Orphans {
    fn begin(&mut self) {
        self.observe(self.agents.ready());
    }

    fn ownership(&mut self, run: &Summary) -> Ownership {
        let Some(node) = run.node().filter(|_| !run.is_for_controller()) else { return Ownership::Ours };
        let Some(ready) = &self.ready else { return Ownership::Unknown };
        if ready.contains(node) {
            return Ownership::Theirs;
        }
        let lacking = self.lacking.entry(node.to_owned());
        let lacking = lacking.or_insert_with(|| Lacking { since: Instant::now(), is_named: true });
        lacking.is_named = true;
        // An earlier leader has waited for the agent of what it has taken.
        let is_taken = run.runner() == Some(RUNNER);
        if is_taken || lacking.since.elapsed() >= grace(run) { Ownership::Ours } else { Ownership::Unknown }
    }

    /// The pod that the arguments name, if any, is looked up by name: the controller has no runtime that could
    /// check the uid.
    fn place(&self, run: &Summary) -> Result<Place, String> {
        Ok(Place { namespace: kube::ResourceExt::namespace(run).unwrap_or_default(), ..Place::default() })
    }

    async fn changed(&mut self) {
        let now = Instant::now();
        let since = self.lacking.values().map(|lacking| lacking.since);
        let ends = since.flat_map(|since| [GRACE, GRACE_OF_COMMANDS].map(|grace| since + grace));
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
    use tokio::time::advance;

    use super::*;
    use crate::cluster::server::Server;

    /// The selection of a controller that observes what the test says.
    fn orphans() -> Orphans {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let server = Server::new(kube::Client::try_from(config).unwrap());
        let stop = CancellationToken::new();
        stop.cancel();
        Orphans::new(Agents::watch(server, "inplace-system", stop))
    }

    /// A HookRun for the agent of the node `gone`.
    fn command() -> Summary {
        let provider = json!({"exec": {"container": "app", "command": ["true"]}});
        let metadata = json!({"name": "r", "labels": {annotation::NODE: "gone"}});
        let run = json!({"metadata": metadata, "spec": {"metrics": [{"name": "m", "provider": provider}]}});
        serde_json::from_value(run).unwrap()
    }

    fn nodes(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_renewed_delays_no_run() {
        let (mut orphans, run) = (orphans(), command());
        orphans.observe(Some(nodes(&["other"])));
        assert_eq!(orphans.ownership(&run), Ownership::Unknown);
        advance(Duration::from_secs(290)).await;
        orphans.observe(None);
        assert_eq!(orphans.ownership(&run), Ownership::Unknown);
        orphans.observe(None);
        advance(Duration::from_secs(1)).await;
        orphans.observe(Some(nodes(&["other"])));
        assert_eq!(orphans.ownership(&run), Ownership::Unknown);
        advance(Duration::from_secs(9)).await;
        orphans.observe(Some(nodes(&["other"])));
        assert_eq!(orphans.ownership(&run), Ownership::Ours);
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_may_have_been_ready_gets_its_time_again() {
        let (mut orphans, run) = (orphans(), command());
        for gap in [None, Some(nodes(&["gone"]))] {
            orphans.observe(Some(nodes(&[])));
            assert_eq!(orphans.ownership(&run), Ownership::Unknown);
            advance(GRACE_OF_COMMANDS).await;
            orphans.observe(gap);
            advance(MAX_GAP).await;
            orphans.observe(Some(nodes(&[])));
            assert_eq!(orphans.ownership(&run), Ownership::Unknown);
            advance(GRACE_OF_COMMANDS).await;
            assert_eq!(orphans.ownership(&run), Ownership::Ours);
            // Of a node that no HookRun names nothing is kept.
            orphans.observe(Some(nodes(&[])));
            orphans.observe(Some(nodes(&[])));
            assert!(orphans.lacking.is_empty());
        }
    }

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
