//! Reports failed containers of pods whose groups are restarted together, each at once and once.
//!
//! Reads the runtime, because a kubelet reports an ended container up to seconds later. Must not decide what follows from a
//! failure: the controller does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::group_failure::GroupFailure;
use crate::api::pod_ref::PodRef;
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::failure::Class;
use crate::node::Node;
use crate::node::failed::Failed;
use crate::process::log::chain;

/// The interval between two looks, while a pod of the node is in a group.
const INTERVAL: Duration = Duration::from_millis(200);

/// Reports the failures of the node's pods.
#[derive(Debug)]
pub(in crate::agent) struct Failures {
    pods: NodePods,
    node: Node,
    failed: Failed,
}

impl Failures {
    pub(in crate::agent) fn new(pods: NodePods, node: Node) -> Self {
        Self { pods, node, failed: Failed::default() }
    }

    /// Reports until `stop`.
    pub(in crate::agent) async fn run(mut self, stop: CancellationToken) {
        let reporting = async {
            loop {
                let members = members(&self.pods.list());
                if members.is_empty() {
                    self.pods.changed().await;
                    continue;
                }
                self.report(&members).await;
                sleep(INTERVAL).await;
            }
        };
        stop.run_until_cancelled(reporting).await;
    }

    async fn report(&mut self, members: &HashMap<PodRef, HashSet<String>>) {
        let found = match self.failed.find(&self.node, members).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "ended containers cannot be listed: retrying");
                return;
            }
        };
        for found in found {
            let (pod, failure) = (&found.pod, &found.failure);
            if self
                .pods
                .get(pod)
                .and_then(|pod| pod.failure())
                .is_some_and(|before| is_newer(&before, failure))
            {
                self.failed.handle(&found);
                continue;
            }
            match self.pods.write_failure(pod, failure).await {
                Ok(()) => {
                    let (container, code) = (&failure.container, failure.exit_code);
                    tracing::info!(%pod, container, code, "a container of a group has failed");
                    self.failed.handle(&found);
                }
                Err(error) if error.class() == Class::Gone => self.failed.handle(&found),
                Err(error) => {
                    tracing::debug!(%pod, error = chain(&error), "a failure is not reported yet: retrying");
                }
            }
        }
    }
}

/// The containers of the pods that are in a group.
fn members(pods: &[Arc<Pod>]) -> HashMap<PodRef, HashSet<String>> {
    let is_member = |pod: &&Arc<Pod>| {
        let in_group = pod.member().labels.contains_key(annotation::GROUP_RESTART);
        in_group && !pod.is_deleting() && !pod.is_finished() && !pod.is_mirror()
    };
    let names =
        |pod: &Pod| pod.declared(false).containers.into_iter().map(|container| container.name).collect();
    pods.iter().filter(is_member).map(|pod| (pod.reference(), names(pod))).collect()
}

/// Whether `before` is this failure, or one after it.
fn is_newer(before: &GroupFailure, failure: &GroupFailure) -> bool {
    before.finished_at >= failure.finished_at
}
