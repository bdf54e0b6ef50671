//! Maintains the fences and standbys of an operation while one of its effects runs.
//!
//! Decides nothing: `operation` decides which fence is created again and which one is removed.

use std::time::Duration;

use tokio::time::sleep;

use crate::node::Node;
use crate::node::drive::{LEAST_LIMIT, limit, observe};
use crate::node::execute::EffectExecutor;
use crate::operation::effect::Effect;
use crate::operation::end::obstructing;
use crate::operation::fence::while_it_starts;
use crate::operation::snapshot::Declared;
use crate::operation::standby::terminated;
use crate::operation::state::Operation;
use crate::process::clock;

/// The interval between two checks of the fences.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits for the start of a container, and creates its fence again if it disappears before the container runs.
pub(super) async fn maintained<T>(
    node: &Node,
    operation: &Operation,
    (container, id): (&str, &str),
    mut starting: impl Future<Output = T> + Unpin,
) -> T {
    loop {
        tokio::select! {
            biased;
            result = &mut starting => return result,
            () = sleep(PAUSE) => {}
        }
        let Ok(snapshot) = observe(node, operation).await else { continue };
        if let Some(fence) = while_it_starts(operation, &snapshot, container, id) {
            let mut own = EffectExecutor::new(node, operation);
            let made = Box::pin(own.execute(operation, &fence, LEAST_LIMIT, &|_| {})).await;
            tracing::debug!(pod = %operation.pod, container, effect_error = ?made.err(), "fence created again");
        }
    }
}

/// Waits for the stop of a container, and removes its fence as soon as the whole pod is to be terminated. Otherwise
/// the kubelet would try in vain to stop the fence, and terminate the pod later.
pub(super) async fn released<T>(
    node: &Node,
    operation: &Operation,
    mut ending: impl Future<Output = T> + Unpin,
) -> T {
    let leaves = || {
        let Some(pods) = &node.cluster else { return false };
        // Read before the pod is looked up: if the pod is then not found, it was deleted by force.
        let is_synced = operation.in_cluster && pods.has_synced();
        pods.declared(&operation.pod).as_ref().map_or(is_synced, Declared::leaves)
    };
    loop {
        tokio::select! {
            biased;
            result = &mut ending => return result,
            () = sleep(PAUSE) => {}
        }
        if !leaves() {
            continue;
        }
        let Ok(snapshot) = observe(node, operation).await else { continue };
        let fences: Vec<_> = obstructing(operation, &snapshot).collect();
        if fences.is_empty() {
            let standbys = terminated(operation, &snapshot, clock::now());
            return tokio::join!(ending, stopped(node, operation, standbys)).0;
        }
        for fence in fences {
            let mut own = EffectExecutor::new(node, operation);
            let removed = Box::pin(own.execute(operation, &fence, LEAST_LIMIT, &|_| {})).await;
            tracing::debug!(
                pod = %operation.pod,
                effect_error = ?removed.err(),
                "the pod is being terminated: fence removed"
            );
        }
    }
}

/// Stops the standbys of a pod that is being terminated, while its container stops as well.
async fn stopped(node: &Node, operation: &Operation, standbys: Vec<Effect>) {
    for standby in standbys {
        let mut own = EffectExecutor::new(node, operation);
        let stopped = Box::pin(own.execute(operation, &standby, limit(operation, &standby), &|_| {})).await;
        tracing::debug!(
            pod = %operation.pod,
            effect_error = ?stopped.err(),
            "the pod is being terminated: standby stopped"
        );
    }
}
