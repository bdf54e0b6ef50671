//! The order in which pods are deleted and updated. How many there are is decided elsewhere.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::podtask::pod::PodPhase;
use crate::podtask::state::TaskState;
use crate::workload::view::PodView;

/// What the cache holds of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// The deletion cost of pods on this node.
    pub cost: Option<f64>,
    /// False when the node does not report: its kubelet is unreachable.
    pub ready: bool,
    /// How many requests the agent of the node carries out at once; `None`: unknown.
    pub at_once: Option<usize>,
    /// Labels of the node.
    pub labels: Arc<BTreeMap<String, String>>,
}

/// Nodes by name.
pub type Nodes = BTreeMap<String, Node>;

/// Health of a pod, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Unscheduled,
    Pending,
    NotReady,
    Ready,
    /// The agent has its request: other pods are taken first.
    Busy,
}

fn health(view: &PodView<'_>) -> Health {
    match view.pod.phase {
        _ if matches!(view.task_state, TaskState::Busy { .. }) => Health::Busy,
        _ if view.pod.node.is_none() => Health::Unscheduled,
        PodPhase::Pending => Health::Pending,
        _ if view.ready => Health::Ready,
        _ => Health::NotReady,
    }
}

/// The order of deletion: pods that serve no traffic first, then pods of a low cost, then young pods.
pub struct Deletion<'a> {
    /// The nodes with their costs.
    pub nodes: &'a Nodes,
    /// True when pods of high cost go first.
    pub costly_first: bool,
    /// The newest revision.
    pub update: &'a str,
}

impl Deletion<'_> {
    /// Compares the health of two pods.
    pub fn health(&self, one: &PodView<'_>, other: &PodView<'_>) -> Ordering {
        health(one).cmp(&health(other))
    }

    /// Compares two pods.
    pub fn compare(&self, one: &PodView<'_>, other: &PodView<'_>) -> Ordering {
        self.health(one, other)
            .then_with(|| self.node_cost(one).total_cmp(&self.node_cost(other)))
            .then_with(|| self.pod_cost(one).total_cmp(&self.pod_cost(other)))
            // A pod that was updated in place is Ready since the update only, but it is not young.
            .then_with(|| one.was_updated_to(self.update).cmp(&other.was_updated_to(self.update)))
            .then_with(|| ready_since(other).cmp(&ready_since(one)))
            .then_with(|| other.pod.restarts.cmp(&one.pod.restarts))
            .then_with(|| other.pod.created.cmp(&one.pod.created))
            .then_with(|| one.pod.name.cmp(&other.pod.name))
    }

    fn node_cost(&self, view: &PodView<'_>) -> f64 {
        let node = view.pod.node.as_ref().and_then(|node| self.nodes.get(node));
        node.and_then(|node| node.cost).unwrap_or(f64::INFINITY)
    }

    fn pod_cost(&self, view: &PodView<'_>) -> f64 {
        if self.costly_first { -cost(view) } else { cost(view) }
    }
}

/// The order of updates of a `GameDeployment`: pods that serve no traffic first, then pods of a low cost, then young
/// pods.
pub fn update(one: &PodView<'_>, other: &PodView<'_>) -> Ordering {
    one.available
        .cmp(&other.available)
        .then_with(|| health(one).cmp(&health(other)))
        .then_with(|| cost(one).total_cmp(&cost(other)))
        .then_with(|| ready_since(other).cmp(&ready_since(one)))
        .then_with(|| one.pod.name.cmp(&other.pod.name))
}

fn ready_since(view: &PodView<'_>) -> Option<Timestamp> {
    view.pod.ready_since
}

/// A pod without a cost has the cost 0, as in Kubernetes.
fn cost(view: &PodView<'_>) -> f64 {
    view.pod.cost.unwrap_or(0.0)
}
