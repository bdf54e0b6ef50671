//! Pods as kubelets and API servers write them.

use serde_json::{Value, json};

/// A running pod with one container `app` and the readiness gate, as a current release returns it. It includes all
/// the fields that could confuse a parser.
pub(crate) fn pod(namespace: &str, name: &str, node: &str) -> Value {
    let ready = |kind: &str| {
        json!({ "type": kind, "status": "True", "lastProbeTime": null,
        "lastTransitionTime": "2026-11-20T10:00:05Z", "observedGeneration": 1 })
    };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "generation": 1,
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "labels": { "app": "web", "pod-template-hash": "7f9c" },
            "annotations": { "cni.example/ip": "10.0.0.7/32", "inplace.dev/request": "restart app" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7f9c", "uid": "r",
                "controller": true, "blockOwnerDeletion": true }],
            "managedFields": [{ "manager": "kubelet", "operation": "Update", "apiVersion": "v1",
                "fieldsType": "FieldsV1", "fieldsV1": { "f:status": { "f:conditions": { ".": {} } } } }]
        },
        "spec": {
            "nodeName": node, "restartPolicy": "Always", "terminationGracePeriodSeconds": 30,
            "readinessGates": [{ "conditionType": "InPlaceUpdateReady" }],
            "containers": [{
                "name": "app", "image": "registry.example/team/app:v1", "imagePullPolicy": "IfNotPresent",
                "env": [{ "name": "PASSWORD", "value": "hunter2" }],
                "resources": {}, "terminationMessagePath": "/dev/termination-log",
                "volumeMounts": [{ "name": "kube-api-access", "mountPath": "/var/run/secrets", "readOnly": true }]
            }],
            "volumes": [{ "name": "kube-api-access", "projected": { "sources": [], "defaultMode": 420 } }]
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.7", "hostIP": "192.0.2.1", "qosClass": "BestEffort",
            "conditions": [ready("PodScheduled"), ready("Initialized"), ready("ContainersReady"), ready("Ready")],
            "containerStatuses": [{
                "name": "app", "ready": true, "started": true, "restartCount": 2,
                "image": "registry.example/team/app:v1",
                "imageID": "registry.example/team/app@sha256:0a1b", "containerID": "containerd://4f5c",
                "state": { "running": { "startedAt": "2026-11-20T10:00:04Z" } },
                "lastState": { "terminated": { "exitCode": 137, "containerID": "containerd://3e4b" } }
            }]
        }
    })
}

/// The pod of the agent of a node. It is Ready if `ready` is `True`.
pub(crate) fn agent(node: &str, ready: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node, "containers": []},
        "metadata": {"namespace": "inplace-system", "name": format!("agent-{node}"), "uid": node,
            "labels": {"app.kubernetes.io/name": "inplace", "app.kubernetes.io/component": "agent"}},
        "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:05Z"}]}})
}
