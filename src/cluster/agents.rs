//! A cache of the agents' pods, updated by one watch. It says on which nodes an agent is ready. Must not decide
//! what follows from that.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::{Resource, ResourceExt as _};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::cluster::server::{Selection, Server};
use crate::cluster::store::{Cached, Store};

/// The labels of the agent DaemonSet's pods.
pub const LABELS: &str = "app.kubernetes.io/name=inplace,app.kubernetes.io/component=agent";

/// The default of the agents' flag `--max-operations`.
pub const DEFAULT_MAX_OPERATIONS: u16 = 32;

/// A ready agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyAgent {
    /// Since when it is ready.
    pub since: Timestamp,
    /// How many operations it carries out at once.
    pub max_operations: usize,
}

/// The agents' pods. Clones share the cache, but each clone tracks its own [`Self::changed`].
#[derive(Clone, Debug)]
pub struct Agents(Store<AgentPod>);

impl Agents {
    /// Watches the agents' pods in `namespace` until `stop`.
    pub fn watch(server: Server, namespace: &str, stop: CancellationToken) -> Self {
        let selection = Selection {
            what: format!("the agents in namespace {namespace}"),
            namespace: Some(namespace.to_owned()),
            labels: Some(LABELS.to_owned()),
            ..Selection::default()
        };
        Self(Store::watch(server, selection, stop))
    }

    /// The nodes whose agent is ready. `None` while the cache is not current.
    pub fn ready(&self) -> Option<BTreeSet<String>> {
        self.0.is_current().then(|| {
            let pods = self.0.list();
            pods.iter().filter(|pod| pod.is_ready()).map(|pod| pod.spec.node_name.clone()).collect()
        })
    }

    /// The ready agents by node; while the cache is not current, those that were ready last: without them a node that is dead
    /// would look like one whose agent does not answer. `None` while nothing is known about agents: the pods are not listed
    /// yet, or no agent runs as a pod in this namespace.
    pub fn by_node(&self) -> Option<BTreeMap<String, ReadyAgent>> {
        if !self.0.has_synced() || self.0.is_empty() {
            return None;
        }
        let pods = self.0.list();
        let agent = |pod: &AgentPod| ReadyAgent {
            since: pod.ready_since().unwrap_or(Timestamp::UNIX_EPOCH),
            max_operations: pod.spec.containers.0.into(),
        };
        let ready = pods.iter().filter(|pod| pod.is_ready());
        Some(ready.map(|pod| (pod.spec.node_name.clone(), agent(pod))).collect())
    }

    /// Returns when anything has changed since the last call on this clone.
    pub async fn changed(&mut self) {
        self.0.changed().await;
    }
}

/// The fields of an agent's pod that are read.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = Pod)]
struct AgentPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    node_name: String,
    #[serde(default)]
    containers: MaxOperations,
}

/// The value of `--max-operations` in the arguments and environment of a pod's containers, which are not cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "Vec<Container>")]
struct MaxOperations(u16);

#[derive(Deserialize)]
struct Container {
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: Option<String>,
}

impl Default for MaxOperations {
    fn default() -> Self {
        Self(DEFAULT_MAX_OPERATIONS)
    }
}

impl From<Vec<Container>> for MaxOperations {
    /// As the agent reads it: the last argument counts, then the environment, then the default.
    fn from(containers: Vec<Container>) -> Self {
        const FLAG: &str = "--max-operations";
        let args = || containers.iter().flat_map(|one| one.args.iter().flatten());
        let inline = args().filter_map(|arg| arg.strip_prefix(FLAG)?.strip_prefix('='));
        let apart =
            args().zip(args().skip(1)).filter(|(flag, _)| *flag == FLAG).map(|(_, value)| value.as_str());
        let variables = containers.iter().flat_map(|one| one.env.iter().flatten());
        let env = variables
            .filter(|one| one.name == "INPLACE_MAX_OPERATIONS")
            .filter_map(|one| one.value.as_deref());
        let number = |text: &str| text.parse().ok().filter(|number: &u16| *number > 0);
        let given = inline.chain(apart).filter_map(number).last();
        Self(given.or_else(|| env.filter_map(number).next_back()).unwrap_or(DEFAULT_MAX_OPERATIONS))
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    conditions: Option<Vec<Condition>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    last_transition_time: Option<Time>,
}

impl AgentPod {
    /// An agent that is being deleted starts nothing new, so it does not count as ready.
    fn is_ready(&self) -> bool {
        self.metadata.deletion_timestamp.is_none() && self.ready().is_some()
    }

    fn ready_since(&self) -> Option<Timestamp> {
        self.ready()?.last_transition_time.as_ref().map(|time| time.0)
    }

    fn ready(&self) -> Option<&Condition> {
        let mut conditions = self.status.conditions.iter().flatten();
        conditions.find(|condition| condition.r#type == "Ready" && condition.status == "True")
    }
}

impl Cached for AgentPod {
    fn key(&self) -> String {
        self.uid().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_limit_of_an_agent_is_read_as_the_agent_reads_it() {
        let env = json!([{"name": "INPLACE_MAX_OPERATIONS", "value": "7"}]);
        for (container, limit) in [
            (json!({}), DEFAULT_MAX_OPERATIONS),
            (json!({"args": ["agent", "--max-operations=4"]}), 4),
            (json!({"args": ["agent", "--max-operations=4", "--max-operations", "9"]}), 9),
            (json!({"args": ["agent"], "env": env}), 7),
            (json!({"args": ["--max-operations=0", "--max-operations=x"]}), DEFAULT_MAX_OPERATIONS),
        ] {
            let spec: Spec =
                serde_json::from_value(json!({"nodeName": "n", "containers": [container]})).unwrap();
            assert_eq!(spec.containers.0, limit, "{container}");
        }
    }
}
