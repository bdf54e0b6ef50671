//! Waits until another program changes something that an operation waits for: the phase of a group restart, or what the
//! API server has of the pod. Without an API server there is no such change.
//!
//! Does not decide whether the change matters.

use std::future::pending;

use crate::api::pod_ref::PodRef;
use crate::cluster::groups::GroupRestarts;
use crate::cluster::pods::NodePods;
use crate::node::Node;
use crate::operation::snapshot::Declared;
use crate::operation::state::Operation;

/// The caches that one operation follows.
pub(super) struct Changes {
    pod: PodRef,
    pods: Option<NodePods>,
    groups: Option<GroupRestarts>,
}

impl Changes {
    /// Follows the pod of `operation`, and its group restart if it is part of one.
    pub(super) fn of(node: &Node, operation: &Operation) -> Self {
        let groups = node.groups.clone().filter(|_| operation.group.is_some());
        Self { pod: operation.pod.clone(), pods: node.cluster.clone(), groups }
    }

    /// Returns when a group restart has changed, or when the pod is no longer as in `seen`. Cancel-safe.
    pub(super) async fn next(&mut self, seen: Option<&Declared>) {
        let Self { pod, pods, groups } = self;
        let of_pod = async {
            let Some(pods) = pods else { return pending().await };
            loop {
                pods.changed().await;
                if pods.declared(pod).as_ref() != seen {
                    return;
                }
            }
        };
        let of_group = async {
            match groups {
                Some(groups) => groups.changed().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = of_pod => {}
            () = of_group => {}
        }
    }
}
