//! A user of OpenKruise or Argo Rollouts, whose objects are carried out as they are: `ContainerRecreateRequest`s, and rollouts of
//! the pods of their workloads. The definitions here have only the names and the structure that the test needs.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::Cluster,
    pod::{PAIR, Pod},
    support::{parts::Parts, wait::eventually},
};

#[test]
fn objects_of_openkruise_are_carried_out_as_they_are() {
    let cluster = &*Cluster::leased();
    let _agent = Agent::start(cluster, &["--readiness-gate=KruisePodReady"]);
    install(cluster);
    let _controller = Agent::controller_with(cluster, "openkruise", &["--container-recreate-requests"]);
    let parts = Parts::default();
    parts.run("a restart", || a_container_is_restarted_and_the_object_deleted(cluster));
    parts.run("a failure that is ignored", || the_next_container_is_restarted_after_one_that_fails(cluster));
    parts.run("a refusal", || what_cannot_be_carried_out_touches_nothing(cluster));
    parts.run("a drain", || a_pod_is_drained_by_the_gate_that_it_has(cluster));
    parts.run("a time to stop", || a_container_has_the_time_to_stop_that_the_object_says(cluster));
    for target in &TARGETS {
        parts.run(target.word, || target.pods_are_restarted(cluster));
    }
}

/// Definitions of the kinds, and the optional rights of the controller without the webhook, which this test does not serve.
fn install(cluster: &Cluster) {
    let kinds = TARGETS.iter().map(|target| (target.kind, target.api_version, target.plural));
    let recreating = ("ContainerRecreateRequest", "apps.kruise.io/v1alpha1", "containerrecreaterequests");
    for (kind, api_version, plural) in kinds.chain([recreating]) {
        let (group, version) = api_version.split_once('/').unwrap();
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}});
        let version = json!({"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}}});
        let name = format!("{plural}.{group}");
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name}, "spec": {"group": group, "scope": "Namespaced", "versions": [version],
                "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()}}});
        cluster.apply(&definition.to_string());
        cluster.kubectl(&["wait", "--for=condition=Established", "--timeout=180s", &format!("crd/{name}")]);
    }
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/daemonset/recreate-requests/recreate-requests.yaml");
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&std::fs::read_to_string(shipped).unwrap()).unwrap();
    for object in objects.iter().filter(|object| object["kind"] != "ValidatingWebhookConfiguration") {
        cluster.apply(&object.to_string());
    }
}

fn object(cluster: &Cluster, name: &str) -> Option<Value> {
    cluster.find("/apis/apps.kruise.io/v1alpha1/namespaces/default/containerrecreaterequests", name)
}

fn completed(cluster: &Cluster, name: &str) -> Value {
    eventually(&format!("{name} is completed"), || {
        object(cluster, name)
            .map(|object| object["status"].clone())
            .filter(|status| status["phase"] == "Completed")
    })
}

/// Creates an object and waits for its end; returns the status.
fn carried_out(cluster: &Cluster, name: &str, spec: &Value) -> Value {
    cluster.apply(
        &json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "ContainerRecreateRequest",
            "metadata": {"name": name, "namespace": "default"}, "spec": spec})
        .to_string(),
    );
    completed(cluster, name)
}

fn a_container_is_restarted_and_the_object_deleted(cluster: &Cluster) {
    let pod = Pod::run(cluster, "recreated", PAIR);
    let before = pod.facts().settled();
    // As a user of OpenKruise writes it, with a finalizer: what the controller deletes can be read, however late that is.
    cluster.apply(&format!(
        "apiVersion: apps.kruise.io/v1alpha1\nkind: ContainerRecreateRequest\n\
         metadata: {{name: again, namespace: default, finalizers: [tests.example.com/read]}}\n\
         spec:\n  podName: {}\n  containers:\n  - name: app\n  strategy:\n    failurePolicy: Fail\n    orderedRecreate: false\n    \
         minStartedSeconds: 1\n  activeDeadlineSeconds: 300\n  ttlSecondsAfterFinished: 5\n",
        pod.name
    ));
    let status = completed(cluster, "again");
    let state = &status["containerRecreateStates"][0];
    assert_eq!((&state["name"], &state["phase"]), (&json!("app"), &json!("Succeeded")), "{status:#}");
    let after = pod.facts().settled();
    assert_ne!(after.running("app").id, before.running("app").id);
    assert_eq!(after.running("side").id, before.running("side").id, "only the named container");
    assert_eq!(pod.get().metadata.uid.as_ref(), Some(&pod.uid));
    let time = |text: &Value| text.as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let deleted = eventually("its time to live is over", || {
        time(&object(cluster, "again").unwrap()["metadata"]["deletionTimestamp"])
    });
    let lived = deleted.duration_since(time(&status["completionTime"]).unwrap());
    assert!(lived >= SignedDuration::from_secs(5), "{lived}");
    let released = r#"{"metadata": {"finalizers": null}}"#;
    cluster.kubectl(&["patch", "containerrecreaterequest", "again", "--type=merge", "-p", released]);
    let labels = pod.get().metadata.labels.unwrap_or_default();
    assert!(!labels.contains_key("inplace.dev/recreate-request-uid"), "{labels:?}");
}

/// The first container ends when it starts for the second time.
fn the_next_container_is_restarted_after_one_that_fails(cluster: &Cluster) {
    let once = "test ! -e /dev/shm/once || exit 3; touch /dev/shm/once; while :; do sleep 1; done";
    let pod = Pod::run(
        cluster,
        "ignored",
        &format!(
            "containers:\n- {{name: app, image: lab/app:v1, command: [sh, -c, \"{once}\"]}}\n\
             - {{name: side, image: lab/app:v1}}\n"
        ),
    );
    let before = pod.facts().settled();
    let spec = json!({"podName": pod.name, "containers": [{"name": "app"}, {"name": "side"}],
        "strategy": {"failurePolicy": "Ignore", "minStartedSeconds": 2}});
    let status = carried_out(cluster, "both", &spec);
    let containers = &status["containerRecreateStates"];
    assert_eq!(
        (&containers[0]["phase"], &containers[1]["phase"]),
        (&json!("Failed"), &json!("Succeeded")),
        "{status:#}"
    );
    assert!(containers[0]["message"].as_str().unwrap().contains("code 3"), "{status:#}");
    assert_ne!(pod.facts().running("side").id, before.running("side").id);
    cluster.kubectl(&["delete", "containerrecreaterequest", "both"]);
}

fn what_cannot_be_carried_out_touches_nothing(cluster: &Cluster) {
    let pod = Pod::run(cluster, "refused", PAIR);
    let before = pod.facts().settled();
    let create = |name: &str, strategy: Value| {
        let spec = json!({"podName": pod.name, "containers": [{"name": "app"}], "strategy": strategy});
        carried_out(cluster, name, &spec)
    };
    let unknown = create("unknown", json!({"newField": true}));
    let message = unknown["message"].as_str().unwrap();
    assert!(message.contains("spec.strategy.newField: this program does not know"), "{message}");
    // The agent refuses: the pod has no readiness gate.
    let undrained = create("drain", json!({"unreadyGracePeriodSeconds": 3}));
    assert!(undrained["message"].as_str().unwrap().contains("NoReadinessGate"), "{undrained:#}");
    assert_eq!(undrained["containerRecreateStates"][0]["phase"], "Failed");
    assert_eq!(pod.facts().settled().running("app").id, before.running("app").id);
    cluster.kubectl(&["delete", "containerrecreaterequest", "unknown", "drain"]);
}

/// The container ignores SIGTERM, and the grace period of its pod is longer than the request may take.
fn a_container_has_the_time_to_stop_that_the_object_says(cluster: &Cluster) {
    let command = "trap '' TERM; while :; do sleep 1; done";
    let pod = Pod::run(
        cluster,
        "patient",
        &format!(
            "terminationGracePeriodSeconds: 300\ncontainers:\n- {{name: app, image: lab/app:v1, command: [sh, -c, \"{command}\"]}}\n"
        ),
    );
    let before = pod.facts().settled();
    let spec = json!({"podName": pod.name, "containers": [{"name": "app"}], "activeDeadlineSeconds": 280,
        "strategy": {"terminationGracePeriodSeconds": 3}});
    let status = carried_out(cluster, "hurried", &spec);
    assert_eq!(status["containerRecreateStates"][0]["phase"], "Succeeded", "{status:#}");
    let after = pod.facts().settled();
    assert_ne!(after.running("app").id, before.running("app").id);
    let report = crate::agent::status(&pod.get()).unwrap();
    let took = report.containers[0].stopped_at.unwrap().duration_since(report.started_at.unwrap());
    // On a busy machine the steps around the stop take much longer than the stop.
    assert!((3..300).contains(&took.as_secs()), "{took}");
    cluster.kubectl(&["delete", "containerrecreaterequest", "hurried"]);
}

/// OpenKruise gives its pods this gate, and an existing pod cannot get another one.
fn a_pod_is_drained_by_the_gate_that_it_has(cluster: &Cluster) {
    const GATE: &str = "KruisePodReady";
    let pod = Pod::run(
        cluster,
        "gated",
        &format!("readinessGates: [{{conditionType: {GATE}}}]\n{}", PAIR.trim_start()),
    );
    pod.wait("it is Ready", crate::pod::is_ready);
    // Within this time its kubelet reports that it is not Ready, on a busy machine too.
    let strategy = json!({"unreadyGracePeriodSeconds": 10});
    let spec = json!({"podName": pod.name, "containers": [{"name": "app"}], "strategy": strategy});
    let status = carried_out(cluster, "drained", &spec);
    assert_eq!(status["containerRecreateStates"][0]["phase"], "Succeeded", "{status:#}");
    pod.wait("it is Ready again", crate::pod::is_ready);
    let seen = pod.seen();
    let condition = |pod: &k8s_openapi::api::core::v1::Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let gate = conditions.iter().find(|condition| condition.type_ == GATE)?;
        Some(format!("{} {}", gate.status, gate.reason.as_deref()?))
    };
    let mut seen_conditions: Vec<_> = seen.versions().filter_map(condition).collect();
    seen_conditions.dedup();
    assert_eq!(seen_conditions, ["True InPlaceReady", "False InPlaceDrain", "True InPlaceReady"]);
    let is_unready = |pod: &k8s_openapi::api::core::v1::Pod| {
        condition(pod).as_deref() == Some("False InPlaceDrain") && !crate::pod::is_ready(pod)
    };
    assert!(seen.versions().any(is_unready), "the pod left the endpoints");
    cluster.kubectl(&["delete", "containerrecreaterequest", "drained"]);
}

/// A kind of another project: what a user writes on the command line for `NAME`, and the resource of kubectl.
struct Target {
    kind: &'static str,
    api_version: &'static str,
    plural: &'static str,
    word: &'static str,
}

const TARGETS: [Target; 4] = [
    Target {
        kind: "CloneSet",
        api_version: "apps.kruise.io/v1alpha1",
        plural: "clonesets",
        word: "cloneset",
    },
    Target {
        kind: "StatefulSet",
        api_version: "apps.kruise.io/v1beta1",
        plural: "statefulsets",
        word: "asts",
    },
    Target {
        kind: "DaemonSet",
        api_version: "apps.kruise.io/v1alpha1",
        plural: "daemonsets",
        word: "daemonset.apps.kruise.io",
    },
    Target { kind: "Rollout", api_version: "argoproj.io/v1alpha1", plural: "rollouts", word: "rollout" },
];

impl Target {
    fn resource(&self) -> String {
        format!("{}.{}", self.plural, self.api_version.split('/').next().unwrap())
    }

    fn owner(&self, name: &str, uid: &Value) -> Value {
        json!([{"apiVersion": self.api_version, "kind": self.kind, "name": name, "uid": uid, "controller": true,
            "blockOwnerDeletion": true}])
    }

    /// Restarts the pod of an object of this kind. The test plays the controller of the kind: it creates the pod, or the
    /// `ReplicaSet` of a `Rollout`, with the owner and the labels that such an object has.
    fn pods_are_restarted(&self, cluster: &Cluster) {
        let name = format!("of-{}", self.word.split('.').next().unwrap());
        let labels = json!({"app": name});
        let containers = json!([{"name": "app", "image": cluster.image("app:v1")}]);
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": containers}});
        let spec = json!({"replicas": 1, "selector": {"matchLabels": labels}, "template": template});
        let meta = json!({"name": name, "namespace": "default"});
        cluster.apply(
            &json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": meta, "spec": spec})
                .to_string(),
        );
        let resource = self.resource();
        let object: Value =
            serde_json::from_str(&cluster.kubectl(&["get", &resource, &name, "-o", "json"])).unwrap();
        let owner = self.owner(&name, &object["metadata"]["uid"]);
        let pod = if self.kind == "Rollout" {
            let set =
                json!({"name": name, "namespace": "default", "labels": labels, "ownerReferences": owner});
            cluster.apply(
                &json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": set, "spec": spec})
                    .to_string(),
            );
            let (found, _) = eventually("the pod of the ReplicaSet", || {
                cluster.pods(&format!("app={name}")).into_iter().next()
            });
            Pod::existing(cluster, "default", &found)
        } else {
            let metadata = json!({"labels": labels, "ownerReferences": owner});
            Pod::make(cluster, &name, json!({"metadata": metadata, "spec": {"containers": containers}}))
        };
        pod.wait("it is Ready", crate::pod::is_ready);
        let before = pod.facts().settled();
        let target = format!("{}/{name}", self.word);
        let output = cluster.inplace(&["restart", &target, "--wait=2m"]).output().unwrap();
        assert!(output.status.success(), "{target}: {}", String::from_utf8_lossy(&output.stderr));
        assert_ne!(pod.facts().settled().running("app").id, before.running("app").id, "{target}");
        assert_eq!(pod.get().metadata.uid.as_ref(), Some(&pod.uid));
        if self.kind == "Rollout" {
            cluster.kubectl(&["delete", "replicaset", &name]);
        }
        cluster.kubectl(&["delete", &resource, &name, "--cascade=orphan"]);
    }
}
