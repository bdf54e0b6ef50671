//! Whether anybody can take up what is asked of a pod: it has a node, and the agent of that node is ready.
//!
//! A pod that nobody reaches is not begun, and one that was begun before its agent went away is waited for. Neither is a
//! failure: one dead node, or one pod that cannot be scheduled, does not end a rollout of all others.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::rollout::pod::Pod;
use crate::workload::task::{SILENCE, later};

/// The nodes whose agent is ready, and since when.
pub type ReadyAgents = BTreeMap<String, Timestamp>;

/// Who reaches a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// An agent; since when it is ready, where that is known.
    Agent(Option<Timestamp>),
    /// Nobody: it has no node.
    NoNode,
    /// Nobody: the agent of this node is not ready.
    NoAgent(String),
}

impl Reach {
    /// Of a pod. Where nothing is known of agents, every node has one.
    pub(super) fn of(pod: &Pod, agents: Option<&ReadyAgents>) -> Self {
        match (pod.base.node.as_ref(), agents) {
            (None, _) => Self::NoNode,
            (Some(_), None) => Self::Agent(None),
            (Some(node), Some(agents)) => agents
                .get(node)
                .map_or_else(|| Self::NoAgent(node.clone()), |since| Self::Agent(Some(*since))),
        }
    }

    pub(super) fn is_given(&self) -> bool {
        matches!(self, Self::Agent(_))
    }

    /// True while silence says nothing: nobody is there who could answer, or only since a moment ago.
    pub(super) fn excuses_silence(&self, now: Timestamp) -> bool {
        match self {
            Self::Agent(since) => since.is_some_and(|since| later(since, SILENCE) > now),
            Self::NoNode | Self::NoAgent(_) => true,
        }
    }

    /// Why nobody reaches it, for people.
    pub(super) fn problem(&self) -> String {
        match self {
            Self::Agent(_) => String::new(),
            Self::NoNode => "it has no node".to_owned(),
            Self::NoAgent(node) => format!("no agent is ready on node {node}"),
        }
    }
}
