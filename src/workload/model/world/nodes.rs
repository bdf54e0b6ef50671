//! Nodes of the simulated cluster that are lost and come back. Pods on a lost node are not Ready, its agent does nothing,
//! and pods that are deleted there stay.

use std::collections::BTreeSet;

use crate::api::status::{Phase, Step};
use crate::podtask::pod::{Pod, PodPhase};
use crate::workload::order::{Node, Nodes};

use super::World;

/// How many nodes the cluster has.
pub(in crate::workload::model) const NODES: usize = 3;

impl World {
    /// The node at this index is lost or comes back.
    pub(super) fn lose(&mut self, at: usize, lost: bool) {
        let name = node_name(at);
        if !lost {
            self.lost.remove(&name);
            return;
        }
        self.lost.insert(name);
        for pod in self.pods.iter_mut().filter(|pod| is_on(pod, &self.lost)) {
            pod.ready_since = None;
            pod.version.push('n');
        }
    }

    /// Kubelets report the container of a pod that is not Ready, unless an agent or a failed request keeps the pod out of
    /// traffic: it runs, or in some pods it waits for its start.
    pub(super) fn report_containers(&mut self) {
        for (at, pod) in self.pods.iter_mut().enumerate() {
            let out = is_closed(pod) || self.open.contains_key(&pod.uid) || self.gates.contains_key(&pod.uid);
            let broken = pod.phase == PodPhase::Running && pod.ready_since.is_none() && !out;
            pod.unready = if broken { vec![("app".to_owned(), at % 2 == 0)] } else { Vec::new() };
        }
    }

    /// The nodes as the controller sees them.
    pub(super) fn nodes(&self) -> Nodes {
        let node = |name: &String| Node { ready: !self.lost.contains(name), ..Node::default() };
        (0..NODES).map(node_name).map(|name| (name.clone(), node(&name))).collect()
    }
}

/// Name of the node at this index.
pub(super) fn node_name(at: usize) -> String {
    format!("node-{}", at % NODES)
}

/// True if the pod is on one of these nodes.
pub(super) fn is_on(pod: &Pod, nodes: &BTreeSet<String>) -> bool {
    pod.node.as_ref().is_some_and(|node| nodes.contains(node))
}

/// True if a request failed after the pod was touched: its readiness gate is closed.
pub(super) fn is_closed(pod: &Pod) -> bool {
    let failed = pod.answer.as_ref().filter(|answer| answer.phase == Phase::Failed);
    failed.and_then(|answer| answer.step).is_some_and(|step| step >= Step::Swap)
}
