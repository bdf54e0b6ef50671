//! The pods of a group restart on one node.

use std::sync::Arc;

use inplace::api::annotation;
use serde_json::{Value, json};

use super::super::api_server::Store;
use super::super::runtime::Fault;
use super::{Fixture, status};
use crate::support::wait::until;

const PODS: [&str; 3] = ["train-0", "train-1", "train-2"];

/// A rollout whose group restart of the pods is in this phase.
fn group_restart(phase: &str) -> Value {
    json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "shop", "name": "train", "uid": "train", "labels": {(annotation::TOGETHER): "true"}},
        "spec": {"target": {"selector": {"matchLabels": {"app": "web"}}}, "strategy": "Together",
            "containers": [{"name": "app"}]},
        "status": {"phase": "Running", "group": {"epoch": 1, "phase": phase, "prepareAt": "2026-11-20T10:01:00Z"}}})
}

/// If they stopped in several rounds, the barrier could open while some still run.
#[tokio::test]
async fn the_pods_of_a_group_stop_at_once_however_few_operations_a_node_allows() {
    let fixture = Arc::new(Fixture::found().await);
    for pod in PODS {
        fixture.pod(pod);
    }
    fixture.api.put(group_restart("Prepare"));
    let _agent = fixture.agent_with(&["--max-operations=1"]).await;
    let is_prepared = |store: &Store, pod: &str| {
        let status = store.pod("shop", pod).as_ref().and_then(status);
        status.is_some_and(|status| status["group"]["preparedAt"].is_string())
    };
    let are_prepared = |store: &Store| PODS.iter().all(|pod| is_prepared(store, pod));
    fixture.api.until("all pods are prepared", are_prepared).await;
    fixture.runtime.on("StopContainer").always().fault(Fault::Hang);
    fixture.api.put(group_restart("Stop"));
    let stopping =
        || fixture.runtime.calls("StopContainer").iter().filter(|call| call.about == "app#0").count();
    fixture.api.patiently("each container is asked to stop", until(|| stopping() == PODS.len())).await;
}
