//! The watches of an agent on each simulated node, by the code of the agent, each agent with its own connections. They
//! record when they have what was written.

use std::{collections::HashMap, time::Duration};

use inplace::{
    api::annotation,
    cluster::{groups::GroupRestarts, hooks::HookRuns, pod::FurtherGates, pods::NodePods, server::Server},
};
use kube::{Client, Resource as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::lag::{Ledger, Watch};
use crate::{api_server::ApiServer, support::wait::eventually_async};

/// Time limit for all watches to be connected.
const CONNECTED: Duration = Duration::from_secs(300);

/// The watches; they end when dropped.
pub(super) struct Agents {
    of_nodes: Vec<(Client, NodePods)>,
    others: Vec<(GroupRestarts, HookRuns)>,
    stop: CancellationToken,
    _observing: JoinSet<()>,
}

impl Agents {
    /// Each agent watches the pods of its node. All watches are connected when this returns.
    pub(super) async fn start(server: &ApiServer, nodes: u32, ledger: &Ledger) -> Self {
        let (stop, mut agents, mut observing) = (CancellationToken::new(), Vec::new(), JoinSet::new());
        for number in 0..nodes {
            let client = server.admin().await;
            let pods = NodePods::watch(
                client.clone(),
                &format!("node-{number}"),
                FurtherGates::default(),
                stop.clone(),
            );
            observing.spawn(observe(pods.clone(), ledger.clone()));
            agents.push((client, pods));
        }
        let started = Self { of_nodes: agents, others: Vec::new(), stop, _observing: observing };
        eventually_async(CONNECTED, "watches of all nodes", async || {
            let connected = started.of_nodes.iter().filter(|(_, pods)| pods.is_current()).count();
            if connected == started.of_nodes.len() { Ok(()) } else { Err(format!("{connected}")) }
        })
        .await;
        started
    }

    /// Each agent watches group restarts and the HookRuns of its node too, as an agent does.
    pub(super) async fn watch_the_rest(&mut self) {
        for (client, pods) in &self.of_nodes {
            let (server, stop) = (Server::new(client.clone()), self.stop.clone());
            let label = format!("{}={}", annotation::NODE, pods.node());
            let runs = HookRuns::watch(server.clone(), "HookRuns", &label, stop.clone());
            self.others.push((GroupRestarts::watch(server, stop), runs));
        }
        eventually_async(CONNECTED, "the other watches", async || {
            let is = |(groups, runs): &&(GroupRestarts, HookRuns)| groups.is_current() && runs.has_synced();
            let connected = self.others.iter().filter(is).count();
            if connected == self.others.len() { Ok(()) } else { Err(format!("{connected}")) }
        })
        .await;
    }

    /// How many pods the agents know.
    pub(super) fn pods(&self) -> usize {
        self.of_nodes.iter().map(|(_, pods)| pods.list().len()).sum()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Records each new version of a pod.
async fn observe(mut pods: NodePods, ledger: Ledger) {
    let mut known: HashMap<String, Option<String>> = HashMap::new();
    loop {
        pods.changed().await;
        for pod in pods.list() {
            let (uid, version) = (pod.api_uid(), &pod.meta().resource_version);
            if known.get(uid) != Some(version) {
                known.insert(uid.to_owned(), version.clone());
                ledger.saw(Watch::Node, &pod.reference().name, version.as_deref());
            }
        }
    }
}
