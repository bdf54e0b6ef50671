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

    /// The nodes whose agent is ready, each with the time since when. `None` while nothing is known about agents:
    /// the pods are not listed yet, or no agent runs as a pod in this namespace.
    pub fn ready_since(&self) -> Option<BTreeMap<String, Timestamp>> {
        if !self.0.is_current() || self.0.is_empty() {
            return None;
        }
        let pods = self.0.list();
        let since = |pod: &AgentPod| pod.ready_since().unwrap_or(Timestamp::UNIX_EPOCH);
        let ready = pods.iter().filter(|pod| pod.is_ready());
        Some(ready.map(|pod| (pod.spec.node_name.clone(), since(pod))).collect())
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
