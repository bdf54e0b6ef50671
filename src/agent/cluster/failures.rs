//! Reports failed containers of pods whose groups are restarted together, each at once and once.
//!
//! Reads the runtime, because a kubelet reports an ended container up to seconds later. Must not decide what follows from a
//! failure: the controller does.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::group_failure::{FailurePolicy, GroupFailure};
use crate::cluster::pod::Pod;
use crate::cluster::pods::NodePods;
use crate::failure::Class;
use crate::node::Node;
use crate::node::failed::{Failed, Found, Members};
use crate::operation::snapshot::{DeclaredContainer, RestartPolicy};
use crate::process::clock;
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
                let members = members(self.pods.list());
                if members.is_empty() {
                    if self.pods.has_synced() {
                        self.failed = Failed::of_running();
                    }
                    self.pods.changed().await;
                    continue;
                }
                self.report(&members).await;
                sleep(INTERVAL).await;
            }
        };
        stop.run_until_cancelled(reporting).await;
    }

    async fn report(&mut self, members: &Members) {
        let found = match self.failed.find(&self.node, members).await {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "ended containers cannot be listed: retrying");
                return;
            }
        };
        for Found { pod, failure } in found {
            let id = failure.container_id.as_str();
            if self.pods.get(&pod).is_some_and(|cached| is_reported(&cached, &failure)) {
                self.failed.handled(id);
                continue;
            }
            match self.pods.write_failure(&pod, &failure).await {
                Ok(()) => {
                    let (container, code) = (&failure.container, failure.exit_code);
                    tracing::info!(%pod, container, code, "a container of a group has failed");
                    self.failed.handled(id);
                }
                Err(error) if error.class() == Class::Gone => self.failed.handled(id),
                Err(error) => {
                    if self.failed.again(id) {
                        let error = chain(&error);
                        tracing::warn!(%pod, error, "the failure of a container cannot be reported: retrying");
                    }
                }
            }
        }
    }
}

/// True if the pod has the report of this failure already, or that of an earlier one for which the group is restarted.
fn is_reported(pod: &Pod, failure: &GroupFailure) -> bool {
    let policy = pod.annotation(annotation::GROUP_RESTART_POLICY).unwrap_or_default();
    // A policy that cannot be parsed restarts nothing, which the controller reports.
    let policy = FailurePolicy::parse(policy).unwrap_or_default();
    pod.failure().is_some_and(|before| {
        before.container_id == failure.container_id
            || before.outlasts(failure, &policy, pod.status().as_ref())
    })
}

/// The pods that are in a group. Pods whose containers are not always restarted are left out: no group restart is possible
/// there, and a container that ends may be part of the end of the pod.
fn members(pods: Vec<Arc<Pod>>) -> Members {
    let now = clock::now();
    let is_member = |pod: &Arc<Pod>| {
        let always = |one: &DeclaredContainer| one.restart_policy == RestartPolicy::Always;
        pod.member().labels.contains_key(annotation::GROUP_RESTART)
            && !pod.is_mirror()
            && !pod.is_finished()
            && !pod.leaves_at(now)
            && pod.containers().iter().all(always)
    };
    pods.into_iter().filter(is_member).map(|pod| (pod.reference(), pod)).collect()
}
