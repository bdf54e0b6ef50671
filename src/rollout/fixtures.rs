//! A rollout and pods for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::request::Request;
use crate::podtask::disruption::{Disruption, DisruptionAllowance};
use crate::podtask::priority::NodeLabels;
use crate::rollout::decide::{RolloutInput, Write};
use crate::rollout::desired::Rollout;
use crate::rollout::pod::Pod;
use crate::rollout::target::{TargetState, Template};

static NO_NODES: std::sync::OnceLock<NodeLabels> = std::sync::OnceLock::new();

pub(super) const UID: &str = "r-1";

/// This many seconds after the creation of the rollout.
pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A restart of `Deployment/web`, begun at 0.
pub(super) fn rollout(more: &Value) -> Rollout {
    let mut spec = json!({"target": {"workloadRef": {"kind": "Deployment", "name": "web"}},
        "containers": [{"name": "app"}], "maxUnavailable": 1});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let object = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout", "spec": spec,
        "metadata": {"namespace": "shop", "name": "one", "uid": UID, "generation": 1, "creationTimestamp": at(0)}});
    let mut rollout = Rollout::read(serde_json::from_value::<InPlaceRollout>(object).unwrap());
    rollout.before.started_at = Some(at(0));
    rollout
}

/// An old and Ready pod as an API object.
pub(super) fn pod(index: usize) -> Value {
    json!({"metadata": {"name": format!("web-{index}"), "uid": format!("u{index}"), "resourceVersion": "1",
            "labels": {"app": "web"}, "annotations": {}, "creationTimestamp": at(-1000),
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "rs", "controller": true}]},
        "spec": {"nodeName": "n", "containers": [{"name": "app", "image": "app:1"}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": at(-900)}]}})
}

pub(super) fn read(pod: &Value) -> Pod {
    Pod::read(&serde_json::from_value(pod.clone()).unwrap())
}

pub(super) fn target() -> TargetState {
    let images = BTreeMap::from([("app".to_owned(), "app:1".to_owned())]);
    let template = Template { owner: "Deployment/web".to_owned(), images };
    TargetState::Present {
        owners: Some(["rs".to_owned()].into()),
        templates: vec![template],
        desired: None,
        gives_up_at: None,
    }
}

pub(super) fn seen<'a>(
    target: &'a TargetState,
    pods: &'a [Pod],
    budgets: &[Disruption],
    now: Timestamp,
) -> RolloutInput<'a> {
    let allowance = DisruptionAllowance::new(budgets.iter().cloned().map(Arc::new), "v1");
    let nodes = NO_NODES.get_or_init(NodeLabels::new);
    let pods = pods.iter().collect();
    let active = [UID, "r-2"].map(str::to_owned).into();
    RolloutInput { nodes, target, pods, allowance, newer: None, aborting: None, active, agents: None, now }
}

/// Applies a write as the API server does.
pub(super) fn apply(pod: &mut Value, write: &Write) {
    for (field, changes) in [("labels", &write.patch.labels), ("annotations", &write.patch.annotations)] {
        let map = pod["metadata"][field].as_object_mut().unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => drop(map.insert(key.clone(), json!(value))),
                None => drop(map.remove(key)),
            }
        }
    }
}

/// Sets the status that the agent reports about the request of the rollout.
pub(super) fn say(pod: &mut Value, phase: &str, step: Option<&str>) {
    say_about(pod, UID, phase, step);
}

/// The request on the pod.
pub(super) fn request(pod: &Value) -> Option<Request> {
    Request::parse(pod["metadata"]["annotations"]["inplace.dev/request"].as_str()).unwrap()
}

/// The agent carries out the request on the pod: it reports `phase`, and after a success the pod has the new images.
pub(super) fn carry_out(pod: &mut Value, phase: &str) {
    let request = request(pod).unwrap();
    say_about(pod, &request.id, phase, None);
    for container in request.containers.into_iter().filter(|_| phase == "Succeeded") {
        let all = pod["spec"]["containers"].as_array_mut().unwrap();
        let own = all.iter_mut().find(|one| one["name"] == *container.name).unwrap();
        own["image"] = container.image.map_or(own["image"].clone(), Value::from);
    }
}

/// Sets the status that the agent reports about the request `id`.
pub(super) fn say_about(pod: &mut Value, id: &str, phase: &str, step: Option<&str>) {
    let answer = json!({"id": id, "phase": phase, "step": step, "reason": "", "message": "said", "startedAt": null,
        "finishedAt": null, "containers": []});
    pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
}

/// Makes the pod Ready or not Ready.
pub(super) fn ready(pod: &mut Value, is: bool, now: Timestamp) {
    let status = if is { "True" } else { "False" };
    pod["status"]["conditions"] = json!([{"type": "Ready", "status": status, "lastTransitionTime": now}]);
}

/// A `PodDisruptionBudget` for all pods with this number of allowed disruptions.
pub(super) fn budget(allowed: i64) -> Disruption {
    serde_json::from_value(json!({"metadata": {"name": "pdb", "uid": "p", "resourceVersion": "1", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 4, "desiredHealthy": 3}}))
    .unwrap()
}
