//! Whether an agent can accept a request for a pod: the pod has a node, and the agent of that node is ready.
//!
//! A pod that no agent reaches gets no request. The rollout waits for a pod whose agent became unready after the request.
//! Neither is a failure: one dead node, or one pod that cannot be scheduled, does not end the rollout of all other
//! pods.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::podtask::state::ANSWER_TIMEOUT;
use crate::podtask::time::later;
use crate::rollout::pod::Pod;

/// An agent that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyAgent {
    /// When it became ready.
    pub since: Timestamp,
    /// How many requests it carries out at once.
    pub at_once: usize,
}

/// The ready agents by node.
pub type ReadyAgents = BTreeMap<String, ReadyAgent>;

/// Whether an agent reaches a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// This agent reaches it; `None`: agents are not in the cache.
    Agent(Option<ReadyAgent>),
    /// None does: the pod has no node.
    NoNode,
    /// None does: the agent of this node is not ready.
    NoAgent(String),
}

impl Reach {
    /// The reach of a pod. If agents are not in the cache, every node counts as having one.
    pub(super) fn of(pod: &Pod, agents: Option<&ReadyAgents>) -> Self {
        match (pod.base.node.as_ref(), agents) {
            (None, _) => Self::NoNode,
            (Some(_), None) => Self::Agent(None),
            (Some(node), Some(agents)) => agents
                .get(node)
                .map_or_else(|| Self::NoAgent(node.clone()), |agent| Self::Agent(Some(*agent))),
        }
    }

    pub(super) fn is_reachable(&self) -> bool {
        matches!(self, Self::Agent(_))
    }

    /// How many requests the agent carries out at once; `None`: unknown.
    pub(super) fn at_once(&self) -> Option<usize> {
        if let Self::Agent(agent) = self { agent.map(|agent| agent.at_once) } else { None }
    }

    /// True while a missing answer is no failure: no agent is ready, or it became ready too recently.
    pub(super) fn may_still_answer(&self, now: Timestamp) -> bool {
        match self {
            Self::Agent(agent) => agent.is_some_and(|agent| later(agent.since, ANSWER_TIMEOUT) > now),
            Self::NoNode | Self::NoAgent(_) => true,
        }
    }

    /// Why no agent reaches the pod, for people.
    pub(super) fn problem(&self) -> String {
        match self {
            Self::Agent(_) => String::new(),
            Self::NoNode => "not scheduled to a node".to_owned(),
            Self::NoAgent(node) => format!("no agent is ready on node {node}"),
        }
    }
}
