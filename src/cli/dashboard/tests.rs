//! The pages of the dashboard, derived from objects without a server.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::dashboard::cells::CachedPod;
use crate::cli::dashboard::kinds::{EventFacts, NodeFacts, RolloutFacts};
use crate::cli::dashboard::view::{Id, Objects, Page, Query};
use crate::cluster::trim::Trimmed;
use crate::process::clock;

/// A pod of the Deployment `web`, with an annotation for each of `notes`.
fn pod(name: &str, node: Option<&str>, notes: &[(&str, Value)]) -> CachedPod {
    let notes: serde_json::Map<_, _> =
        notes.iter().map(|(key, value)| ((*key).to_owned(), json!(value.to_string()))).collect();
    let pod = json!({"metadata": {"name": name, "namespace": "shop", "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-11-20T09:00:00Z", "labels": {"app": "web", "pod-template-hash": "7f9c"}, "annotations": notes,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7f9c", "uid": "r", "controller": true}]},
        "spec": {"nodeName": node, "containers": [{"name": "app", "image": "app:1", "env": [{"name": "A", "value": "hunter2"}]}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn status(id: &str, phase: &str) -> (&'static str, Value) {
    let status = json!({"id": id, "phase": phase, "reason": "", "message": "", "startedAt": "2026-11-20T10:00:00Z",
        "finishedAt": null, "containers": []});
    ("inplace.dev/status", status)
}

fn record(uid: &str) -> (&'static str, Value) {
    ("inplace.dev/rollout", json!({"rollout": uid, "name": "r"}))
}

/// The rollout `r` with the uid `u` of the Deployment `web`, in this phase.
fn objects(phase: &str, target: &Value, pods: Vec<CachedPod>) -> Objects {
    let rollout = json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"name": "r", "namespace": "shop", "uid": "u"},
        "spec": {"target": target, "containers": [{"name": "app"}]},
        "status": {"phase": phase, "startedAt": "2026-11-20T10:00:00Z"}});
    let rollout: Trimmed<RolloutFacts> = serde_json::from_value(rollout).unwrap();
    let id = Id { namespace: "shop".into(), name: "r".into(), uid: "u".into() };
    let mut objects =
        Objects { pods, rollouts: vec![(id, rollout.value.0.unwrap())], current: true, ..Objects::default() };
    Arc::make_mut(&mut objects.seen).observe(&objects.pods, clock::now());
    objects
}

fn web() -> Value {
    json!({"workloadRef": {"kind": "Deployment", "name": "web"}})
}

fn page(objects: &Objects, query: &Query) -> Value {
    serde_json::to_value(Page::of(objects, query)).unwrap()
}

fn rollout(objects: &Objects) -> Value {
    page(objects, &Query::Rollout { namespace: "shop".into(), name: "r".into() })
}

/// Name and state of each cell.
fn states(page: &Value) -> Vec<(String, String)> {
    let list = |value: &Value| value.as_array().unwrap().clone();
    let nodes = list(&page["view"]["zones"]).into_iter().flat_map(|zone| list(&zone["nodes"]));
    let cells = nodes.flat_map(|node| list(&node["cells"]));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    cells.map(|cell| (text(&cell["name"]), text(&cell["state"]))).collect()
}

#[test]
fn the_state_of_a_pod_in_a_rollout_follows_from_its_record_and_its_status() {
    let pods = || {
        vec![
            pod("a", None, &[record("u"), status("u", "Succeeded")]),
            pod("b", None, &[record("u"), status("u", "RolledBack")]),
            pod("c", None, &[record("u"), status("before", "Failed")]),
            pod("d", None, &[status("before", "Failed")]),
            pod("e", None, &[record("other"), status("u", "Succeeded")]),
            pod(
                "f",
                None,
                &[("inplace.dev/rollout", json!({"rollout": "u", "reason": "NoAgent", "note": "no agent"}))],
            ),
        ]
    };
    let names =
        |phase: &str| states(&rollout(&objects(phase, &web(), pods()))).into_iter().map(|(_, state)| state);
    let expected = ["Succeeded", "RolledBack", "Pending", "Waiting", "Succeeded", "Failed"];
    assert!(names("Running").eq(expected));
    let expected = ["Succeeded", "RolledBack", "Pending", "Idle", "Succeeded", "Failed"];
    assert!(names("Failed").eq(expected));
}

#[test]
fn once_a_rollout_takes_a_pod_back_only_that_request_counts() {
    let back = ("inplace.dev/rollout", json!({"rollout": "u", "back": true}));
    let pods = vec![
        pod("a", None, &[back.clone(), status("u", "Failed")]),
        pod("b", None, &[back, status("u-back", "Succeeded")]),
    ];
    let found = states(&rollout(&objects("Aborting", &web(), pods)));
    assert_eq!(found, [("a".into(), "Pending".into()), ("b".into(), "Succeeded".into())]);
}

#[test]
fn a_rollout_has_the_pods_of_its_target() {
    let pods = || vec![pod("a", None, &[])];
    let replica_set = json!({"workloadRef": {"kind": "ReplicaSet", "name": "web-7f9c"}});
    for (target, expected) in [
        (web(), 1),
        (replica_set, 1),
        (json!({"selector": {"matchLabels": {"app": "web"}}}), 1),
        (json!({"selector": {"matchLabels": {"app": "db"}}}), 0),
        (json!({"workloadRef": {"kind": "StatefulSet", "name": "web"}}), 0),
    ] {
        let found = states(&rollout(&objects("Running", &target, pods())));
        assert_eq!(found.len(), expected, "{target}");
    }
}

#[test]
fn pods_are_grouped_by_zone_and_node_and_unknown_ones_come_last() {
    let pods = ["node-10", "node-2", "gone"].map(|node| pod(&format!("on-{node}"), Some(node), &[]));
    let mut pods = pods.to_vec();
    pods.extend([pod("web-10", None, &[]), pod("web-9", None, &[])]);
    let mut objects = objects("Running", &web(), pods);
    for node in ["node-2", "node-10"] {
        objects.nodes.insert(node.into(), NodeFacts { zone: Some("eu".into()), ready: true });
    }
    let page = rollout(&objects);
    let zones = page["view"]["zones"].as_array().unwrap();
    assert_eq!(zones.iter().map(|zone| &zone["name"]).collect::<Vec<_>>(), [&json!("eu"), &Value::Null]);
    let names: Vec<_> = states(&page).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["on-node-2", "on-node-10", "on-gone", "web-9", "web-10"]);
    assert_eq!(zones[1]["nodes"][0]["ready"], Value::Null, "a node that cannot be read");
}

#[test]
fn a_workload_counts_the_last_operations_of_its_pods() {
    let request = ("inplace.dev/request", json!({"id": "next", "containers": [{"name": "app"}]}));
    let pods = vec![
        pod("a", None, &[status("x", "Failed")]),
        pod("b", None, &[status("x", "Running")]),
        pod("c", None, &[status("x", "Failed"), request]),
        pod("d", None, &[]),
    ];
    let objects = objects("Superseded", &web(), pods);
    let overview = page(&objects, &Query::Overview);
    let row = &overview["view"]["workloads"][0];
    let counts = ["pods", "ready", "running", "failed"].map(|field| row[field].as_u64().unwrap());
    assert_eq!((row["name"].as_str(), counts), (Some("deployment/web"), [4, 4, 1, 1]));
    let query = Query::Workload { namespace: "shop".into(), kind: "deployment".into(), name: "web".into() };
    let workload = page(&objects, &query);
    let found: Vec<_> = states(&workload).into_iter().map(|(_, state)| state).collect();
    assert_eq!(found, ["Failed", "Running", "Pending", "Idle"]);
    assert_eq!(workload["view"]["rollouts"][0]["phase"], "Superseded");
}

#[test]
fn the_events_of_a_pod_have_its_uid_and_those_of_a_static_pod_that_of_its_node() {
    let event = |name: &str, uid: &str| -> Arc<Trimmed<EventFacts>> {
        let event = json!({"metadata": {"name": "e", "namespace": "shop"}, "reason": uid,
            "involvedObject": {"kind": "Pod", "name": name, "uid": uid}});
        Arc::new(serde_json::from_value(event).unwrap())
    };
    let pods = vec![pod("a", None, &[]), pod("b", None, &[("kubernetes.io/config.mirror", json!(7))])];
    let mut objects = objects("Running", &web(), pods);
    objects.events = vec![event("a", "uid-a"), event("a", "7"), event("b", "uid-b"), event("b", "7")];
    for (name, expected) in [("a", "uid-a"), ("b", "7")] {
        let page = page(&objects, &Query::Pod { namespace: "shop".into(), name: name.into() });
        let events = page["view"]["events"].as_array().unwrap();
        let reasons: Vec<_> = events.iter().map(|event| &event["reason"]).collect();
        assert_eq!(reasons, [expected], "{name}");
    }
}

#[test]
fn what_does_not_exist_is_no_view() {
    let objects = objects("Running", &web(), vec![pod("a", None, &[])]);
    let text = String::from;
    for query in [
        Query::Rollout { namespace: text("other"), name: text("r") },
        Query::Workload { namespace: text("shop"), kind: text("job"), name: text("web") },
        Query::Pod { namespace: text("shop"), name: text("b") },
    ] {
        assert!(Page::of(&objects, &query).is_missing(), "{query:?}");
    }
    let one = page(&objects, &Query::Pod { namespace: text("shop"), name: text("a") });
    assert_eq!(one["view"]["containers"], json!([["app", "app:1"]]));
    assert!(!one.to_string().contains("hunter2"));
}
