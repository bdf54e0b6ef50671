//! Pods that must not be lost: only surge pods are deleted after an update in place, no pod is created without
//! its claims, and orphaned objects are adopted unchanged.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Fixture, Part, condition, is_complete, object, same_but_restarted};
use crate::{
    agent::Agent,
    cluster::Cluster,
    hook_runs::measurements::published_server,
    support::{http_server::HttpServer, parts::Parts},
};

#[test]
fn no_pod_is_lost_by_an_update_a_claim_or_an_orphaned_history() {
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    let _controller = Agent::controller(&cluster, "one");
    let published = published_server(&cluster.node().ip);
    let parts = Parts::default();
    let all: [(_, Part); 8] = [
        ("surge pods of an update", the_original_pods_stay_and_the_surge_pod_is_deleted),
        ("surge pods of an update with a drain", the_original_pods_stay_also_if_they_are_drained),
        ("surge pods of a scale-in", a_scale_in_deletes_surge_pods_and_only_as_many_as_are_surplus),
        ("pods that wait", pods_that_wait_for_their_hook_stay),
        ("pods that failed", pods_that_failed_go_back_and_stay),
        ("an image that dies late", an_image_that_dies_late_goes_to_one_pod_only),
        ("a claim", a_pod_waits_for_its_claim),
        ("orphaned objects", what_was_orphaned_is_taken_over_as_it_is),
    ];
    let (cluster, published) = (&cluster, &published);
    parts.run_all(all.map(|(name, part)| (name, move || part(cluster, published))));
    // Requests that only the quota refused were permitted by the role.
    let mut denied = cluster.denied();
    denied.retain(|line| line["annotations"]["authorization.k8s.io/decision"] != "allow");
    assert!(denied.is_empty(), "{denied:#?}");
}

fn uids(pods: &BTreeMap<String, Value>) -> BTreeMap<&str, &str> {
    pods.iter().map(|(name, pod)| (name.as_str(), pod["metadata"]["uid"].as_str().unwrap())).collect()
}

fn is_surge(pod: &Value) -> bool {
    pod["metadata"]["labels"]["inplace.dev/surge"] == "true"
}

fn surging(name: &str, surge: u32, more: &Value) -> Value {
    let mut spec = json!({"replicas": 2,
        "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 0, "maxSurge": surge}});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    object("GameDeployment", name, &spec)
}

/// Waits until there are as many pods as before the update, and asserts that they are the same.
fn only_originals_are_left(
    fixture: &Fixture<'_>,
    before: &BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    fixture.wait("only so many pods are left", || (fixture.pods().len() == before.len()).then_some(()));
    let after = fixture.pods();
    assert_eq!(uids(&after), uids(before));
    after
}

fn the_original_pods_stay_and_the_surge_pod_is_deleted(cluster: &Cluster, _: &HttpServer) {
    surge_pod_is_deleted(cluster, "surging", &json!({}));
}

/// A pod that is drained becomes Ready later than the surge pod, by which an owner would choose it for deletion.
fn the_original_pods_stay_also_if_they_are_drained(cluster: &Cluster, _: &HttpServer) {
    let drain = json!({"updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 0, "maxSurge": 1,
        "inPlaceUpdateStrategy": {"gracePeriodSeconds": 3}}});
    surge_pod_is_deleted(cluster, "drained", &drain);
}

fn surge_pod_is_deleted(cluster: &Cluster, name: &'static str, more: &Value) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name };
    fixture.apply(&surging(name, 1, more));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    let before = fixture.pods();
    assert!(!before.values().any(is_surge), "{before:#?}");
    fixture.image("lab/app:v2");
    fixture.wait("one stands in", || fixture.pods().values().any(is_surge).then_some(()));
    fixture.until("both are updated", |status| is_complete(status, 2) && status["replicas"] == 2);
    for (name, pod) in &only_originals_are_left(&fixture, &before) {
        same_but_restarted(&before[name], pod);
    }
    fixture.delete();
}

/// Four original pods and two surge pods; then the workload is scaled to three.
fn a_scale_in_deletes_surge_pods_and_only_as_many_as_are_surplus(cluster: &Cluster, _: &HttpServer) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "shrinking" };
    let more = json!({"replicas": 4, "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 0, "maxSurge": 2,
        "inPlaceUpdateStrategy": {"gracePeriodSeconds": 5}}});
    fixture.apply(&surging("shrinking", 2, &more));
    fixture.until("four pods are there", |status| is_complete(status, 4));
    let before = fixture.pods();
    fixture.image("lab/app:v2");
    let drains = |pod: &Value| !pod["metadata"]["annotations"]["inplace.dev/request"].is_null();
    fixture.wait("they stand in and the first ones drain", || {
        let pods = fixture.pods();
        (pods.values().any(is_surge) && pods.values().any(drains)).then_some(())
    });
    cluster.kubectl(&["scale", "gamedeployment/shrinking", "--replicas=3"]);
    fixture.until("three are updated", |status| is_complete(status, 3) && status["replicas"] == 3);
    fixture.wait("three are left", || (fixture.pods().len() == 3).then_some(()));
    let after = fixture.pods();
    assert!(!after.values().any(is_surge), "{after:#?}");
    for (name, pod) in &after {
        same_but_restarted(&before[name], pod);
    }
    let deleted: Vec<_> =
        cluster.writes().into_iter().filter(|write| is_deletion(write, "shrinking-")).collect();
    assert_eq!(deleted.len(), 3, "two that stood in and one that is too many: {deleted:#?}");
    fixture.delete();
}

/// True for the controller's deletion of a pod whose name has this beginning.
fn is_deletion(write: &Value, beginning: &str) -> bool {
    let object = &write["objectRef"];
    write["verb"] == "delete"
        && write["responseStatus"]["code"] == 200
        && write["user"]["username"] == "system:serviceaccount:inplace-system:inplace-controller"
        && object["resource"] == "pods"
        && object["name"].as_str().is_some_and(|name| name.starts_with(beginning))
}

fn pods_that_wait_for_their_hook_stay(cluster: &Cluster, published: &HttpServer) {
    super::canary::template(cluster, "surge-hook", published.address, 30);
    let hook = json!({"preInplaceUpdateStrategy": {"hook": {"templateName": "surge-hook"}}});
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "asking" };
    fixture.apply(&surging("asking", 2, &hook));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    let before = fixture.pods();
    fixture.image("lab/app:v2");
    fixture.until("both are updated", |status| is_complete(status, 2) && status["replicas"] == 2);
    for (name, pod) in &only_originals_are_left(&fixture, &before) {
        same_but_restarted(&before[name], pod);
    }
    fixture.delete();
}

fn pods_that_failed_go_back_and_stay(cluster: &Cluster, _: &HttpServer) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "failing" };
    // With `maxUnavailable: 0` no pod would be started, because the surge pod has the same broken image. On a busy node,
    // the runtime may report its exit only after the second that a swap is observed without `minReadySeconds`.
    let strategy = json!({"minReadySeconds": 5,
        "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1, "maxSurge": 1}});
    fixture.apply(&surging("failing", 1, &strategy));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    let before = fixture.pods();
    fixture.image("lab/app:crash");
    fixture.until("one has failed", |status| condition(status, "UpdateFailed")["status"] == "True");
    let after = fixture.pods();
    let there = uids(&after);
    assert!(uids(&before).iter().all(|(name, uid)| there.get(name) == Some(uid)), "{there:?}");
    // The user reverts the change.
    fixture.image("lab/app:v1");
    fixture.until("it is as it was", |status| is_complete(status, 2) && status["readyReplicas"] == 2);
    only_originals_are_left(&fixture, &before);
    fixture.delete();
}

/// The image exits after 2 s, which is longer than an agent watches a swap without `minReadySeconds`.
fn an_image_that_dies_late_goes_to_one_pod_only(cluster: &Cluster, _: &HttpServer) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "late-death" };
    let strategy =
        json!({"minReadySeconds": 15, "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1}});
    fixture.apply(&surging("late-death", 0, &strategy));
    fixture.until("two pods are there", |status| is_complete(status, 2) && status["availableReplicas"] == 2);
    let before = fixture.pods();
    fixture.image("lab/app:late");
    let stopped = |status: &Value| condition(status, "UpdateFailed")["reason"] == "TooManyFailures";
    let status = fixture.until("the update has stopped", stopped);
    assert_eq!(status["updatedReplicas"], 0, "{status:#}");
    let message = condition(&status, "UpdateFailed")["message"].as_str().unwrap();
    assert!(message.contains("RolledBack"), "{message}");
    let after = fixture.pods();
    assert_eq!(uids(&after), uids(&before));
    let untouched = |pod: &&Value| pod["status"]["containerStatuses"][0]["restartCount"] == 0;
    assert_eq!(after.values().filter(untouched).count(), 1, "{after:#?}");
    fixture.delete();
}

fn a_pod_waits_for_its_claim(cluster: &Cluster, _: &HttpServer) {
    let quota = |most: u32| {
        cluster.apply(&json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "claims", "namespace": "default"},
            "spec": {"hard": {"persistentvolumeclaims": most.to_string()}}}).to_string());
    };
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "late-0"},
        "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "late",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": cluster.node().dir.join("late-0"), "type": "DirectoryOrCreate"}}});
    cluster.apply(&volume.to_string());
    quota(0);
    let fixture = Fixture { cluster, kind: "gamestatefulset", name: "late" };
    fixture.wait("the quota counts", || {
        let seen = cluster.find("/api/v1/namespaces/default/resourcequotas", "claims")?;
        seen["status"]["hard"].is_object().then_some(())
    });
    fixture.apply(&object(
        "GameStatefulSet",
        "late",
        &json!({
            "replicas": 1, "serviceName": "late",
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "late",
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}],
        }),
    ));
    let refused = |status: &Value| {
        condition(status, "ScaleFailed")["message"].as_str().is_some_and(|message| message.contains("quota"))
    };
    fixture.until("the quota is reported", refused);
    assert!(fixture.pods().is_empty(), "no pod without its claim");
    quota(5);
    fixture.until("the pod is there", |status| status["readyReplicas"] == 1);
    fixture.delete();
}

fn what_was_orphaned_is_taken_over_as_it_is(cluster: &Cluster, _: &HttpServer) {
    for (name, way) in [("left-replaced", "RollingUpdate"), ("left-in-place", "InplaceUpdate")] {
        let fixture = Fixture { cluster, kind: "gamedeployment", name };
        let whole = |image: &str| {
            let mut whole = object(
                "GameDeployment",
                name,
                &json!({"replicas": 2,
                "updateStrategy": {"type": way, "maxUnavailable": 2}}),
            );
            whole["spec"]["template"] = super::template(name, &cluster.named(image));
            whole
        };
        fixture.apply(&whole("lab/app:v1"));
        fixture.until("two pods are there", |status| is_complete(status, 2));
        fixture.apply(&whole("lab/app:v2"));
        fixture.until("both are updated", |status| is_complete(status, 2));
        fixture.wait("two pods are left", || (fixture.pods().len() == 2).then_some(()));
        let labels = format!("app={name}");
        let columns = "custom-columns=N:.metadata.name,U:.metadata.uid,R:.revision";
        let history = || cluster.kubectl(&["get", "controllerrevisions", "-l", &labels, "-o", columns]);
        let (before, history_before) = (fixture.pods(), history());
        cluster.kubectl(&["delete", "gamedeployment", name, "--cascade=orphan", "--timeout=180s"]);
        fixture.apply(&whole("lab/app:v2"));
        fixture.until("they are its own", |status| is_complete(status, 2) && status["readyReplicas"] == 2);
        let after = fixture.pods();
        assert_eq!(uids(&after), uids(&before), "{way}");
        let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].clone();
        for (name, pod) in &after {
            assert_eq!(restarts(pod), restarts(&before[name]), "{way}");
        }
        assert_eq!(history(), history_before, "{way}: no new revision, and none is lost");
        fixture.delete();
    }
}
