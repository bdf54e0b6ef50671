//! The objects of a cluster with rollouts in progress: what the tests and the pictures of the dashboard show.

use inplace::process::clock;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::api_server::{ApiServer, pods};

/// The uid of the rollout that is in progress.
pub(super) const UID: &str = "5b1f6a52-7c1e-4a39-9c86-d2f41d0c6f10";
/// Pods of the Deployment of that rollout.
pub(super) const WEB: usize = 40;

/// The time so many milliseconds ago.
pub(super) fn ago(ms: i64) -> String {
    before(clock::now(), ms)
}

fn before(now: Timestamp, ms: i64) -> String {
    let at: Timestamp = now - SignedDuration::from_millis(ms);
    format!("{at:.3}")
}

/// A status of the request `id` that restarted the container `app`, and began `began` ms ago.
pub(super) fn status(id: &str, phase: &str, step: &str, began: i64, down: Option<i64>) -> Value {
    let instance = |attempt: u32| json!({"containerID": format!("c{attempt}"), "attempt": attempt, "image": "registry.example/shop/web:v7", "imageID": "sha256:7"});
    // One clock reading for all times: the page computes durations from them.
    let now = clock::now();
    let ago = |ms: i64| before(now, ms);
    let mut app = json!({"name": "app", "action": "Restart", "engine": "Recreate", "from": instance(2)});
    if let Some(down) = down {
        app["to"] = instance(3);
        app["stoppedAt"] = json!(ago(began - 640));
        app["startedAt"] = json!(ago(began - 640 - down));
        app["readyAt"] = json!(ago(began - 1900));
        app["downtimeMs"] = json!(down);
    }
    let has_ended = !matches!(phase, "Running" | "Pending");
    let message = match (phase, down) {
        ("Succeeded", Some(down)) => format!("app restarted in place: down {down} ms, attempt 2 -> 3"),
        ("Failed", _) => "app is not Ready after 60 s".to_owned(),
        _ => format!("{step} is under way"),
    };
    json!({"id": id, "phase": phase, "step": step, "reason": if phase == "Failed" { "NotReady" } else { "" },
        "message": message, "startedAt": ago(began), "finishedAt": has_ended.then(|| ago(began - 2100)),
        "containers": [app]})
}

/// A pod of `workload`, which is `KIND/NAME`.
pub(super) fn pod(workload: &str, name: &str, node: &str) -> Value {
    let (kind, owner) = workload.split_once('/').unwrap();
    let mut pod = pods::pod("shop", name, node);
    let (kind, owner, hash) = match kind {
        "Deployment" => ("ReplicaSet", format!("{owner}-7f9c5d"), "7f9c5d"),
        kind => (kind, owner.to_owned(), "none"),
    };
    pod["metadata"]["creationTimestamp"] = json!(ago(7_200_000));
    pod["metadata"]["labels"] = json!({"app": owner, "pod-template-hash": hash});
    pod["metadata"]["annotations"] = json!({});
    pod["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": owner, "controller": true}]);
    pod["spec"]["containers"][0]["image"] = json!("registry.example/shop/web:v7");
    pod
}

/// Gives the pod this status.
pub(super) fn answer(pod: &mut Value, status: &Value) {
    pod["metadata"]["annotations"]["inplace.dev/status"] = json!(status.to_string());
}

/// Gives the pod a task of the rollout that is in progress, and this status of it.
pub(super) fn task(pod: &mut Value, status: &Value) {
    let record = json!({"rollout": UID, "name": "web-restart-x7k2p", "stage": "Ordered", "at": ago(60_000), "seconds": 600});
    pod["metadata"]["annotations"]["inplace.dev/rollout"] = json!(record.to_string());
    answer(pod, status);
}

/// The name of the pod `number` of the Deployment.
pub(super) fn web(number: usize) -> String {
    format!(
        "web-7f9c5d-{}",
        ["q", "x", "k", "m"][number % 4].to_owned() + &format!("{:03}", number * 37 % 1000)
    )
}

/// Stores all objects.
pub(super) fn put(api: &ApiServer) {
    for (number, zone) in ["eu-1a", "eu-1a", "eu-1b", "eu-1b", "eu-1c"].iter().enumerate() {
        api.put(json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("node-{number}"), "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {"conditions": [{"type": "Ready", "status": if number == 3 { "False" } else { "True" }}]}}));
    }
    for number in 0..WEB {
        let mut pod = pod("Deployment/web", &web(number), &format!("node-{}", number % 5));
        match number {
            0..=22 => {
                let began = 95_000 - 3_000 * i64::try_from(number).unwrap();
                task(&mut pod, &status(UID, "Succeeded", "Ready", began, Some(61 + 7 * began % 53)));
            }
            23 => {
                task(&mut pod, &status(UID, "Failed", "Verify", 70_000, Some(88)));
                pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
            }
            24..=26 => task(&mut pod, &status(UID, "Running", "Verify", 1_500, Some(74))),
            27 => task(&mut pod, &status(UID, "Pending", "Pull", 500, None)),
            _ => {}
        }
        api.put(pod);
    }
    api.put(rollout("web-restart-x7k2p", UID, "Deployment/web", None, 100_000));
    api.edit_of("inplacerollouts", "shop", "web-restart-x7k2p", |rollout| {
        rollout["status"] = json!({"observedGeneration": 1, "phase": "Running", "target": "Deployment/web", "pods": WEB,
            "wanted": WEB, "done": 23, "busy": 4, "failed": 1, "unavailable": 4, "startedAt": ago(100_000),
            "downtimeMs": {"median": 84, "most": 111}, "failures": [{"pod": web(23), "uid": "u", "reason": "NotReady",
            "message": "app is not Ready after 60 s", "at": ago(8_000)}]});
    });
    api.put(rollout(
        "web-swap-v7",
        "older",
        "Deployment/web",
        Some("registry.example/shop/web:v7"),
        9_000_000,
    ));
    api.edit_of("inplacerollouts", "shop", "web-swap-v7", |rollout| {
        rollout["status"] = json!({"observedGeneration": 1, "phase": "Succeeded", "target": "Deployment/web", "pods": WEB,
            "wanted": WEB, "done": WEB, "startedAt": ago(9_000_000), "finishedAt": ago(8_800_000),
            "downtimeMs": {"median": 205, "most": 341}});
    });
    arena(api);
    for (at, reason, text) in [
        (95_000, "InPlaceStarted", "request 5b1f6a52 is carried out: restart app"),
        (92_900, "InPlaceSucceeded", "app restarted in place: down 71 ms, attempt 2 -> 3"),
    ] {
        let about = json!({"kind": "Pod", "namespace": "shop", "name": web(0), "uid": api.pod("shop", &web(0))["metadata"]["uid"]});
        api.put(json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": format!("e{at}"), "namespace": "shop"},
            "involvedObject": about, "reason": reason, "message": text, "type": "Normal", "lastTimestamp": ago(at),
            "source": {"component": "inplace"}}));
    }
}

/// An `InPlaceRollout` of a workload.
pub(super) fn rollout(name: &str, uid: &str, workload: &str, image: Option<&str>, created: i64) -> Value {
    let (kind, target) = workload.split_once('/').unwrap();
    let mut app = json!({"name": "app"});
    if let Some(image) = image {
        app["image"] = json!(image);
    }
    json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout", "metadata": {"name": name, "namespace": "shop",
        "uid": uid, "generation": 1, "creationTimestamp": ago(created)},
        "spec": {"target": {"workloadRef": {"apiVersion": "apps/v1", "kind": kind, "name": target}}, "containers": [app]}})
}

/// A `GameStatefulSet` whose update is in progress, with two revisions.
fn arena(api: &ApiServer) {
    let template = |image: &str| {
        json!({"metadata": {"labels": {"app": "arena"}}, "spec": {"containers": [
        {"name": "app", "image": image, "env": [{"name": "PASSWORD", "value": "hunter2"}]}]}})
    };
    let uid = api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameStatefulSet",
        "metadata": {"name": "arena", "namespace": "shop", "generation": 4, "creationTimestamp": ago(90_000_000)},
        "spec": {"replicas": 12, "serviceName": "arena", "selector": {"matchLabels": {"app": "arena"}},
            "template": template("registry.example/shop/arena:2.4"), "updateStrategy": {"type": "InplaceUpdate"}},
        "status": {"observedGeneration": 4, "replicas": 12, "readyReplicas": 12, "updatedReplicas": 5, "updatedReadyReplicas": 5,
            "currentRevision": "arena-6b8f", "updateRevision": "arena-7c9d", "conditions": [{"type": "Progressing",
            "status": "True", "reason": "Updating", "message": "5 of 12 pods are updated"}]}}))["metadata"]["uid"].clone();
    for (number, name, image, age) in [
        (1, "arena-6b8f", "registry.example/shop/arena:2.3", 90_000_000),
        (2, "arena-7c9d", "registry.example/shop/arena:2.4", 300_000),
    ] {
        api.put(json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "metadata": {"name": name, "namespace": "shop",
            "creationTimestamp": ago(age), "annotations": {"kubernetes.io/change-cause": format!("release {number}")},
            "ownerReferences": [{"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameStatefulSet", "name": "arena",
                "uid": uid, "controller": true}]},
            "revision": number, "data": {"spec": {"template": template(image)}}}));
    }
    for number in 0..12 {
        let mut pod =
            pod("GameStatefulSet/arena", &format!("arena-{number}"), &format!("node-{}", number % 5));
        let updated = number >= 7;
        pod["metadata"]["labels"]["controller-revision-hash"] =
            json!(if updated { "arena-7c9d" } else { "arena-6b8f" });
        if updated {
            let began = 40_000 + 9_000 * i64::from(number);
            answer(&mut pod, &status("7c9d-1", "Succeeded", "Ready", began, Some(180 + i64::from(number))));
        }
        api.put(pod);
    }
}
