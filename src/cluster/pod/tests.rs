//! Tests with realistic pods, as kubelets and API servers of several releases write them.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::api::status::Phase;
use crate::operation::snapshot::{
    DeclaredContainer, ExecProbe, Gate, Liveness, PullPolicy, RestartPolicy, UserSource,
};

fn read(pod: &Value) -> Pod {
    // From text, as it is received.
    serde_json::from_str(&pod.to_string()).unwrap()
}

/// A Deployment's pod on a current release: a native sidecar, an init container that has ended, two containers.
fn today() -> Value {
    json!({
        "metadata": {
            "name": "web-7f9c-x2x4z", "generateName": "web-7f9c-", "namespace": "shop", "generation": 3,
            "uid": "5d1f3a52-9a0c-4a8e-8d2e-2f0c8f1d7b11", "resourceVersion": "812345",
            "creationTimestamp": "2026-11-20T10:00:00Z",
            "labels": { "app": "web" },
            "annotations": {
                "kubernetes.io/config.seen": "2026-11-20T10:00:00.1Z", "prometheus.io/scrape": "true",
                "inplace.dev/request": "swap app=registry.example/team/app:v2",
                "inplace.dev/status": "{\"id\":\"web-1\",\"phase\":\"Succeeded\",\"reason\":\"\",\"message\":\"\",\
                    \"startedAt\":null,\"finishedAt\":null,\"containers\":[]}"
            },
            "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:status": {} } }]
        },
        "spec": {
            "nodeName": "node-1", "restartPolicy": "Always",
            "readinessGates": [{ "conditionType": "other.example/ready" }, { "conditionType": "InPlaceUpdateReady" }],
            "imagePullSecrets": [{ "name": "team-pull" }, {}],
            "initContainers": [
                { "name": "migrate", "image": "migrate:v1", "imagePullPolicy": "IfNotPresent" },
                { "name": "proxy", "image": "proxy:v3", "imagePullPolicy": "Always", "restartPolicy": "Always",
                  "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "spec.nodeName" } } }] }
            ],
            "containers": [
                { "name": "app", "image": "registry.example/team/app:v1", "imagePullPolicy": "IfNotPresent",
                  "env": [{ "name": "PASSWORD", "value": "hunter2" }],
                  "volumeMounts": [{ "name": "config", "mountPath": "/etc/app" },
                                   { "name": "scratch", "mountPath": "/data", "subPath": "app" }] },
                { "name": "batch", "image": "batch:v1", "imagePullPolicy": "Never", "restartPolicy": "Never",
                  "livenessProbe": { "periodSeconds": 5, "failureThreshold": 2, "terminationGracePeriodSeconds": 7 },
                  "resources": { "limits": { "cpu": "1", "hugepages-2Mi": "4Mi", "gpu.example/card": "1" },
                                 "requests": { "cpu": "1", "gpu.example/card": "1", "other.kubernetes.io/x": "1" } },
                  "restartPolicyRules": [{ "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }],
                  "lifecycle": { "postStart": { "exec": { "command": ["true"] } }, "preStop": { "sleep": { "seconds": 1 } } } }
            ],
            "volumes": [{ "name": "config", "configMap": { "name": "web" } }, { "name": "scratch", "emptyDir": {} }]
        },
        "status": {
            "phase": "Running",
            "conditions": [
                { "type": "InPlaceUpdateReady", "status": "False", "reason": "InPlaceDrain", "lastTransitionTime": "2026-11-20T10:01:00Z" },
                { "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "lastTransitionTime": "2026-11-20T10:01:02Z" }
            ],
            "initContainerStatuses": [
                { "name": "migrate", "ready": true, "restartCount": 0, "imageID": "sha256:aa", "containerID": "containerd://11",
                  "state": { "terminated": { "exitCode": 0 } } },
                { "name": "proxy", "ready": true, "started": true, "restartCount": 1, "imageID": "sha256:bb",
                  "containerID": "containerd://22", "state": { "running": { "startedAt": "2026-11-20T10:00:03Z" } } }
            ],
            "containerStatuses": [
                { "name": "batch", "ready": false, "restartCount": 0, "image": "batch:v1", "imageID": "",
                  "state": { "waiting": { "reason": "ContainerCreating" } } },
                { "name": "app", "ready": true, "restartCount": 4, "imageID": "sha256:cc", "containerID": "cri-o://33",
                  "state": { "running": {} } }
            ]
        }
    })
}

/// It is an int64 there, with a lower limit only.
#[test]
fn every_grace_period_of_a_probe_that_the_api_server_accepts_is_read() {
    for (seconds, grace) in [(1, 1), (9_999_999_999, 9_999_999_999), (i64::MAX, i64::MAX.unsigned_abs())] {
        let mut pod = today();
        pod["spec"]["containers"][1]["livenessProbe"]["terminationGracePeriodSeconds"] = json!(seconds);
        let pod = read(&pod);
        let batch = pod.containers().iter().find(|container| container.name == "batch").unwrap();
        assert_eq!(batch.liveness.unwrap().grace, Some(Duration::from_secs(grace)), "{seconds}");
    }
}

#[test]
fn a_pod_of_today_in_the_words_of_the_decisions() {
    let pod = read(&today());
    let reference = pod.reference();
    assert_eq!(
        (reference.to_string().as_str(), reference.uid.as_str()),
        ("shop/web-7f9c-x2x4z", pod.api_uid())
    );
    assert_eq!((pod.node(), pod.is_finished(), pod.is_mirror()), ("node-1", false, false));
    assert_eq!(pod.request(), Some("swap app=registry.example/team/app:v2"));
    assert_eq!(pod.status().unwrap().phase, Phase::Succeeded);
    assert_eq!(pod.pull_secrets(), ["team-pull"]);
    let container = |name: &str, image: &str| DeclaredContainer {
        name: name.into(),
        sidecar: false,
        image: image.into(),
        pull_policy: PullPolicy::IfNotPresent,
        restart_policy: RestartPolicy::Always,
        has_restart_rules: false,
        has_post_start: false,
        is_probed: false,
        readiness: None,
        liveness: None,
        has_startup_probe: false,
        startup_period: None,
        devices: Vec::new(),
        env_from_objects: false,
        sub_path_of_objects: false,
        user: UserSource::Image,
        container_id: None,
        ready: false,
        started: false,
        running: false,
        unstarted: false,
        restarts: 0,
        image_id: String::new(),
    };
    let expected = Declared {
        current: true,
        deleting: false,
        ending: None,
        gate: Gate::Closed { reason: "InPlaceDrain".into() },
        unready_since: Some("2026-11-20T10:01:02Z".parse().unwrap()),
        has_pull_secrets: true,
        memory_limit: None,
        containers: vec![
            DeclaredContainer {
                sidecar: true,
                pull_policy: PullPolicy::Always,
                container_id: Some("22".into()),
                ready: true,
                started: true,
                running: true,
                restarts: 1,
                image_id: "sha256:bb".into(),
                ..container("proxy", "proxy:v3")
            },
            DeclaredContainer {
                container_id: Some("33".into()),
                ready: true,
                running: true,
                restarts: 4,
                image_id: "sha256:cc".into(),
                ..container("app", "registry.example/team/app:v1")
            },
            DeclaredContainer {
                pull_policy: PullPolicy::Never,
                restart_policy: RestartPolicy::Never,
                has_restart_rules: true,
                has_post_start: true,
                liveness: Some(Liveness {
                    kills_after: Duration::from_secs(10),
                    grace: Some(Duration::from_secs(7)),
                }),
                devices: vec!["gpu.example/card".into()],
                ..container("batch", "batch:v1")
            },
        ],
    };
    assert_eq!(pod.declared(true), expected);
    assert_eq!(pod.declared(false), Declared { current: false, ..expected });
}

#[test]
fn a_readiness_probe_that_runs_a_command() {
    let mut pod = today();
    pod["spec"]["containers"][0]["readinessProbe"] = json!({ "exec": { "command": ["check", "it"] }, "initialDelaySeconds": 3, "periodSeconds": 7,
                "timeoutSeconds": 2, "successThreshold": 4, "failureThreshold": 3 });
    pod["spec"]["containers"][1]["readinessProbe"] =
        json!({ "tcpSocket": { "port": 80 }, "periodSeconds": 7 });
    let declared = read(&pod).declared(true);
    let app = declared.container("app").unwrap();
    let seconds = Duration::from_secs;
    let expected = ExecProbe {
        command: ["check".to_owned(), "it".to_owned()].into(),
        initial_delay: seconds(3),
        period: seconds(7),
        timeout: seconds(2),
        success_threshold: 4,
    };
    assert_eq!((app.is_probed, app.readiness.as_ref()), (true, Some(&expected)));
    let batch = declared.container("batch").unwrap();
    assert_eq!((batch.is_probed, batch.readiness.as_ref()), (true, None));
}

#[test]
fn the_memory_limit_of_a_pod_is_that_of_its_cgroup() {
    let limit = |memory: &str| json!({ "limits": { "memory": memory } });
    let of = |change: &dyn Fn(&mut Value)| {
        let mut pod = today();
        for (list, index, memory) in [
            ("initContainers", 0, "700Mi"),
            ("initContainers", 1, "50Mi"),
            ("containers", 0, "200Mi"),
            ("containers", 1, "1Gi"),
        ] {
            pod["spec"][list][index]["resources"] = limit(memory);
        }
        change(&mut pod["spec"]);
        read(&pod).declared(true).memory_limit.map(|bytes| bytes >> 20)
    };
    assert_eq!(of(&|_| {}), Some(1274), "containers and the native sidecar");
    let mut resized = today();
    resized["spec"]["initContainers"] = json!([]);
    for index in [0, 1] {
        resized["spec"]["containers"][index]["resources"] = limit("1Gi");
    }
    resized["status"]["containerStatuses"][0]["resources"] = limit("200Mi");
    let read_limit = read(&resized).declared(true).memory_limit.map(|bytes| bytes >> 20);
    assert_eq!(read_limit, Some(1224), "a kubelet has not raised the limit of one container yet");
    assert_eq!(of(&|spec| spec["overhead"] = json!({ "memory": "6Mi", "cpu": "1" })), Some(1280));
    assert_eq!(of(&|spec| spec["resources"] = limit("512Mi")), Some(512), "the pod has its own");
    let large: &dyn Fn(&mut Value) = &|spec| spec["initContainers"][0]["resources"] = limit("2000Mi");
    assert_eq!(of(large), Some(2000), "an init container needs more");
    for (list, index) in [("initContainers", 0), ("initContainers", 1), ("containers", 1)] {
        let without: &dyn Fn(&mut Value) = &|spec| spec[list][index]["resources"] = json!({});
        assert_eq!(of(without), None, "{list} {index} has no limit");
    }
}

#[test]
fn containers_are_found_where_the_spec_has_them() {
    let pod = read(&today());
    let at = |name: &str| pod.place(name).map(|(place, image)| ((place.list(), place.index), image));
    assert_eq!(at("proxy"), Some((("initContainers", 1), "proxy:v3")));
    assert_eq!(at("batch"), Some((("containers", 1), "batch:v1")));
    assert_eq!((at("migrate"), at("none")), (None, None));
}

#[test]
fn only_what_is_needed_is_kept() {
    let pod = read(&today());
    let shown = format!("{pod:?}");
    for word in ["hunter2", "prometheus.io", "f:status"] {
        assert!(!shown.contains(word), "{word}: {shown}");
    }
    assert!(pod.annotation("kubernetes.io/config.seen").is_some());
}

#[test]
fn a_container_that_is_created_and_not_started() {
    let ended =
        json!({ "terminated": { "containerID": "containerd://44", "startedAt": "2026-11-20T10:02:00Z" } });
    let created =
        json!({ "terminated": { "containerID": "containerd://44", "startedAt": null, "exitCode": 0 } });
    let before =
        json!({ "terminated": { "containerID": "containerd://33", "startedAt": "2026-11-20T10:00:00Z" } });
    let cases = [
        ("containerd://44", json!({ "waiting": {} }), before.clone(), true),
        ("containerd://44", created.clone(), before.clone(), true),
        ("containerd://44", json!({ "waiting": { "reason": "CreateContainerError" } }), created, true),
        ("containerd://44", json!({ "running": {} }), before.clone(), false),
        ("containerd://44", ended.clone(), before, false),
        ("containerd://44", json!({ "waiting": { "reason": "CrashLoopBackOff" } }), ended, false),
        ("", json!({ "waiting": { "reason": "ContainerCreating" } }), json!({}), false),
    ];
    for (id, state, last, unstarted) in cases {
        let mut pod = today();
        let status = &mut pod["status"]["containerStatuses"][1];
        (status["containerID"], status["state"], status["lastState"]) = (json!(id), state, last);
        let read = read(&pod).declared(true);
        assert_eq!(read.container("app").unwrap().unstarted, unstarted, "{status:#}", status = pod["status"]);
    }
}

#[test]
fn a_startup_probe_and_whether_it_has_passed() {
    for (probe, started, expected) in [
        (json!(null), json!(true), (None, true)),
        (json!({ "periodSeconds": 3 }), json!(true), (Some(3), true)),
        (json!({ "periodSeconds": 3 }), json!(false), (Some(3), false)),
        (json!({}), json!(null), (Some(10), false)),
    ] {
        let mut pod = today();
        pod["spec"]["containers"][0]["startupProbe"] = probe;
        pod["status"]["containerStatuses"][1]["started"] = started;
        let app = read(&pod).declared(true).container("app").cloned().unwrap();
        assert_eq!((app.startup_period.map(|period| period.as_secs()), app.started), expected);
        assert_eq!(app.has_startup_probe, app.startup_period.is_some());
    }
}

#[test]
fn values_that_follow_objects_are_noticed() {
    let app = |change: Value| {
        let mut pod = today();
        for (key, value) in change.as_object().unwrap() {
            pod["spec"]["containers"][0][key] = value.clone();
        }
        let app = read(&pod).declared(true).container("app").cloned().unwrap();
        (app.env_from_objects, app.sub_path_of_objects)
    };
    let from = |source: Value| json!({ "env": [{ "name": "A", "value": "a" }, { "name": "B", "valueFrom": source }] });
    for (change, expected) in [
        (json!({}), (false, false)),
        (json!({ "envFrom": [{ "configMapRef": { "name": "web" } }] }), (true, false)),
        (json!({ "envFrom": [] }), (false, false)),
        (from(json!({ "configMapKeyRef": { "name": "web", "key": "k" } })), (true, false)),
        (from(json!({ "secretKeyRef": { "name": "web", "key": "k" } })), (true, false)),
        (from(json!({ "fileKeyRef": { "volumeName": "scratch", "path": "p", "key": "k" } })), (true, false)),
        (from(json!({ "fieldRef": { "fieldPath": "metadata.labels['app']" } })), (true, false)),
        (from(json!({ "fieldRef": { "fieldPath": "metadata.annotations['a']" } })), (true, false)),
        (from(json!({ "fieldRef": { "fieldPath": "metadata.name" } })), (false, false)),
        (from(json!({ "fieldRef": { "fieldPath": "status.podIP" } })), (false, false)),
        (from(json!({ "resourceFieldRef": { "resource": "limits.cpu" } })), (false, false)),
        (json!({ "volumeMounts": [{ "name": "config", "mountPath": "/a", "subPath": "a" }] }), (false, true)),
        (
            json!({ "volumeMounts": [{ "name": "config", "mountPath": "/a", "subPathExpr": "$(A)" }] }),
            (false, true),
        ),
        (json!({ "volumeMounts": [{ "name": "config", "mountPath": "/a", "subPath": "" }] }), (false, false)),
        (json!({ "volumeMounts": [{ "name": "gone", "mountPath": "/a", "subPath": "a" }] }), (false, false)),
    ] {
        assert_eq!(app(change.clone()), expected, "{change}");
    }
    for kind in ["configMap", "secret", "projected", "downwardAPI", "emptyDir", "persistentVolumeClaim"] {
        let mut pod = today();
        pod["spec"]["volumes"] = json!([{ "name": "config", kind: {} }]);
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{ "name": "config", "mountPath": "/a", "subPath": "a" }]);
        let follows = read(&pod).declared(true).container("app").unwrap().sub_path_of_objects;
        assert_eq!(follows, !matches!(kind, "emptyDir" | "persistentVolumeClaim"), "{kind}");
    }
}

#[test]
fn every_state_of_the_gate() {
    let gate = |gates: Value, conditions: Value| {
        let mut pod = today();
        pod["spec"]["readinessGates"] = gates;
        pod["status"]["conditions"] = conditions;
        read(&pod).declared(true).gate
    };
    let ours = || json!([{ "conditionType": "InPlaceUpdateReady" }]);
    let says = |status: &str| json!([{ "type": "Ready", "status": "True" }, { "type": "InPlaceUpdateReady", "status": status }]);
    assert_eq!(gate(Value::Null, says("True")), Gate::Absent);
    assert_eq!(gate(json!([{ "conditionType": "other.example/ready" }]), says("True")), Gate::Absent);
    assert_eq!(gate(ours(), Value::Null), Gate::Unset);
    assert_eq!(gate(ours(), says("True")), Gate::Open);
    assert_eq!(gate(ours(), says("False")), Gate::Closed { reason: String::new() });
    assert_eq!(gate(ours(), says("Unknown")), Gate::Closed { reason: String::new() });
}

#[test]
fn the_pods_policy_holds_where_a_container_has_none() {
    use RestartPolicy::{Always, Never, OnFailure};
    let policy = |text: Value| {
        let mut pod = today();
        pod["spec"]["restartPolicy"] = text;
        let declared = read(&pod).declared(true);
        ["app", "proxy", "batch"].map(|name| declared.container(name).unwrap().restart_policy)
    };
    assert_eq!(policy(json!("OnFailure")), [OnFailure, Always, Never]);
    assert_eq!(policy(json!("Never")), [Never, Always, Never]);
    assert_eq!(policy(json!("FromTheFuture")), [Never, Always, Never]);
    assert_eq!(policy(Value::Null), [Always, Always, Never]);
}

#[test]
fn the_copy_of_a_static_pod_has_the_uid_of_its_node() {
    let mut pod = today();
    pod["metadata"]["annotations"] = json!({
        "kubernetes.io/config.hash": "4dd5ba9d3bd5bbe23c2a1b0e1c0a5f6d", "kubernetes.io/config.source": "file",
        "kubernetes.io/config.mirror": "4dd5ba9d3bd5bbe23c2a1b0e1c0a5f6d"
    });
    let pod = read(&pod);
    assert_eq!(pod.reference().uid, "4dd5ba9d3bd5bbe23c2a1b0e1c0a5f6d");
    assert_eq!((pod.api_uid(), pod.is_mirror()), ("5d1f3a52-9a0c-4a8e-8d2e-2f0c8f1d7b11", true));
}

/// Its kubelet creates it again, and goes on.
#[test]
fn the_deletion_of_a_mirror_pod_is_no_end_of_the_static_pod() {
    let mut pod = today();
    pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T11:00:00Z");
    pod["metadata"]["annotations"] =
        json!({"kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "4dd5"});
    let pod = read(&pod);
    assert!(pod.is_mirror() && pod.is_deleting() && !pod.declared(true).deleting);
}

#[test]
fn what_is_absent_or_null_blinds_nobody() {
    for pod in [
        json!({ "metadata": { "name": "a", "namespace": "b", "uid": "c", "annotations": null } }),
        json!({ "metadata": { "name": "a", "namespace": "b", "uid": "c" }, "spec": {}, "status": null }),
        json!({ "metadata": { "name": "a", "namespace": "b", "uid": "c", "deletionTimestamp": null, "annotations": {} },
            "spec": { "containers": [{ "name": "app", "env": null, "volumeMounts": null, "lifecycle": null, "image": null }],
                "initContainers": null, "volumes": null, "imagePullSecrets": null, "readinessGates": null },
            "status": { "conditions": null, "containerStatuses":
                [{ "name": "app", "state": null, "containerID": "", "ready": null, "imageID": null, "restartCount": null }] } }),
    ] {
        let pod = read(&pod);
        assert_eq!(
            (pod.reference().to_string().as_str(), pod.request(), pod.is_annotated()),
            ("b/a", None, false)
        );
        let declared = pod.declared(true);
        assert!(!declared.deleting && !declared.has_pull_secrets);
        assert!(declared.containers.iter().all(|container| container.container_id.is_none()));
    }
}

#[test]
fn the_end_of_a_pod_is_seen() {
    for (phase, finished) in
        [("Pending", false), ("Running", false), ("Unknown", false), ("Succeeded", true), ("Failed", true)]
    {
        let mut pod = today();
        pod["status"]["phase"] = json!(phase);
        pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T11:00:00Z");
        let pod = read(&pod);
        assert_eq!((pod.is_finished(), pod.declared(true).deleting), (finished, true), "{phase}");
    }
}

#[test]
fn a_pod_that_its_kubelet_ends_is_seen_although_nobody_deletes_it() {
    let cases = [
        (json!({ "phase": "Running" }), None),
        (json!({ "phase": "Failed", "reason": "DeadlineExceeded" }), Some("Failed (DeadlineExceeded)")),
        (json!({ "phase": "Succeeded" }), Some("Succeeded")),
        (
            json!({ "phase": "Running", "conditions":
                [{ "type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet" }] }),
            Some("about to be ended by its kubelet"),
        ),
        (
            json!({ "phase": "Running", "conditions":
                [{ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }] }),
            None,
        ),
        (
            json!({ "phase": "Running", "conditions":
                [{ "type": "DisruptionTarget", "status": "False", "reason": "TerminationByKubelet" }] }),
            None,
        ),
    ];
    for (status, ending) in cases {
        let mut pod = today();
        pod["status"] = status.clone();
        assert_eq!(read(&pod).declared(true).ending.as_deref(), ending, "{status}");
    }
}

#[test]
fn a_pod_counts_as_ended_from_its_deadline_on_before_its_status_says_so() {
    let [before, after] = ["2026-11-20T10:00:59Z", "2026-11-20T10:01:00Z"].map(|at| at.parse().unwrap());
    let pod = |seconds: Value, started: Value| {
        let mut pod = today();
        pod["spec"]["activeDeadlineSeconds"] = seconds;
        pod["status"]["startTime"] = started;
        read(&pod)
    };
    let ends = pod(json!(60), json!("2026-11-20T10:00:00Z"));
    assert_eq!(ends.declared_at(true, before).ending, None);
    assert_eq!(ends.declared_at(true, after).ending.as_deref(), Some("past its activeDeadlineSeconds"));
    // The pod has not started, it has no deadline, or the deadline is beyond the range of a timestamp.
    for (seconds, started) in [
        (json!(60), Value::Null),
        (Value::Null, json!("2026-11-20T10:00:00Z")),
        (json!(i64::MAX), json!("2026-11-20T10:00:00Z")),
    ] {
        assert_eq!(pod(seconds, started).declared_at(true, after).ending, None);
    }
}

#[test]
fn an_answer_that_cannot_be_read_is_none() {
    let mut pod = today();
    pod["metadata"]["annotations"]["inplace.dev/status"] = json!("gone fishing");
    assert_eq!(read(&pod).status(), None);
}
