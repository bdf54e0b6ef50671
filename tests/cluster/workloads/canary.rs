//! Canary steps, the hook after an update, and volume claims.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{Fixture, condition, is_complete, object, same_but_restarted};
use crate::{cluster::Cluster, support::http_server::HttpServer};

/// Applies a template whose hook requests its own name and then the value of the argument `path` from `address` once,
/// and expects more than `wanted`; the server returns 45. An API server of the lab, built with a newer Go than its release, refuses
/// an empty value as null.
pub(super) fn template(cluster: &Cluster, name: &str, address: SocketAddr, wanted: u32) {
    let metric = json!({"name": "webtest", "count": 1, "successCondition": format!("asInt(result) > {wanted}"),
        "provider": {"web": {"url": format!("http://{address}/{name}{{{{ args.path }}}}"), "jsonPath": "{$.age}"}}});
    let template = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"args": [{"name": "path", "value": "/as-declared"}], "metrics": [metric]}});
    cluster.apply(&template.to_string());
}

pub(super) fn canary_steps_hold_the_rollout_until_they_are_passed(cluster: &Cluster, published: &HttpServer) {
    template(cluster, "step", published.address, 30);
    let hook = json!({"templateName": "step", "args": [{"name": "path", "value": "/of-the-step"}]});
    let steps = json!([{"partition": 3}, {"pause": {}}, {"partition": 1}, {"hook": hook}, {"pause": {}}]);
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "steps" };
    let strategy = |unavailable: u32| json!({"type": "InplaceUpdate", "maxUnavailable": unavailable, "canary": {"steps": steps}});
    let manifest = |strategy: Value| {
        object("GameDeployment", "steps", &json!({"replicas": 4, "updateStrategy": strategy}))
    };
    fixture.apply(&manifest(strategy(4)));
    fixture.until("four pods are there, and no step was asked for", |status| is_complete(status, 4));
    assert_eq!(published.count("/step/of-the-step"), 0);
    let before = fixture.pods();

    fixture.image("lab/app:v2");
    let pauses = |status: &Value| status["pauseConditions"][0]["reason"] == "PausedByCanaryPauseStep";
    let status = fixture.until("it pauses after the first pod", pauses);
    assert_eq!(
        (&status["updatedReadyReplicas"], &status["currentStepIndex"]),
        (&json!(1), &json!(1)),
        "{status:#}"
    );
    assert_eq!(fixture.get()["spec"]["updateStrategy"]["paused"], false, "the user's field");
    assert_eq!(published.count("/step/of-the-step"), 0);

    // The manifest is applied again, as a GitOps program does it: without `paused`, and with `paused: false`. Another
    // field differs, so that `observedGeneration` says when the controller has seen it.
    for (unavailable, paused) in [(3, Value::Null), (4, json!(false))] {
        let mut again = manifest(strategy(unavailable));
        again["spec"]["template"] = super::template("steps", &cluster.named("lab/app:v2"));
        if paused == false {
            again["spec"]["updateStrategy"]["paused"] = paused;
        }
        fixture.apply(&again);
        let status = fixture.until("the manifest is observed", |_| true);
        assert!(pauses(&status), "{status:#}");
        assert_eq!(
            (&status["updatedReadyReplicas"], &status["currentStepIndex"]),
            (&json!(1), &json!(1)),
            "{status:#}"
        );
    }

    let resumed = cluster.inplace(&["rollout", "resume", "gamedeployment/steps"]).output().unwrap();
    assert!(String::from_utf8_lossy(&resumed.stdout).contains("canary step 1 is resumed"), "{resumed:?}");
    let last = |status: &Value| status["currentStepIndex"] == 4 && pauses(status);
    fixture.until("the last step pauses", last);
    assert_eq!(fixture.get()["metadata"]["annotations"]["inplace.dev/resume-step"], Value::Null);
    // The other way: `paused` is set to true while the step pauses, and then to false.
    fixture.patch(&json!({"spec": {"updateStrategy": {"paused": true}}}));
    let seen = |status: &Value| status["pauseConditions"][0]["userPaused"] == true;
    let status = fixture.until("the user's pause is seen", seen);
    assert!(last(&status), "{status:#}");
    fixture.patch(&json!({"spec": {"updateStrategy": {"paused": false}}}));
    let over = |status: &Value| status["currentStepIndex"] == 5 && is_complete(status, 4);
    let status = fixture.until("it is complete", over);
    assert!(status["pauseConditions"][0].is_null(), "{status:#}");
    assert_eq!(published.count("/step/of-the-step"), 1);
    for (name, pod) in &fixture.pods() {
        same_but_restarted(&before[name], pod);
    }
    fixture.delete();
}

pub(super) fn a_hook_afterwards_takes_the_image_back_until_it_passes(
    cluster: &Cluster,
    published: &HttpServer,
) {
    template(cluster, "check", published.address, 100);
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "checked" };
    fixture.apply(&object(
        "GameDeployment",
        "checked",
        &json!({
            "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1},
            "postInplaceUpdateStrategy":
                {"hook": {"templateName": "check", "args": [{"name": "path", "value": "/afterwards"}]}},
        }),
    ));
    fixture.until("a pod is there", |status| is_complete(status, 1));
    let image = || fixture.pods().values().next().unwrap()["spec"]["containers"][0]["image"].clone();
    let before = image();

    fixture.image("lab/app:v2");
    let failed = |status: &Value| condition(status, "UpdateFailed")["status"] == "True";
    let status = fixture.until("the hook has failed", failed);
    assert_eq!((&status["readyReplicas"], &status["updatedReplicas"]), (&json!(1), &json!(0)), "{status:#}");
    assert_eq!((image(), published.count("/check/afterwards")), (before.clone(), 1));
    let (name, pod) = fixture.pods().pop_first().unwrap();
    let reported = pod["metadata"]["annotations"]["inplace.dev/status"].as_str().unwrap();
    let reported: inplace::api::status::Status = serde_json::from_str(reported).unwrap();
    let accepted = reported.started_at.unwrap().as_second();
    let accepted = jiff::Timestamp::from_second(accepted).unwrap().to_string();
    assert_eq!(
        status["postInplaceHookCondition"],
        json!([{"podName": name, "startTime": accepted, "phase": "Failed"}]),
        "{status:#}"
    );
    let said = condition(&status, "UpdateFailed");
    assert_eq!(said["reason"], "HookFailed", "{status:#}");
    assert!(said["message"].as_str().unwrap().contains("(HookRun "), "{said:#}");
    cluster.kubectl(&["wait", "--for=condition=Stalled", "gamedeployment/checked", "--timeout=180s"]);

    template(cluster, "check", published.address, 30);
    fixture.patch(&json!({"spec": {"postInplaceUpdateStrategy": {"retry": true}}}));
    let status = fixture.until("it is complete", |status| is_complete(status, 1));
    cluster.kubectl(&["wait", "--for=condition=Ready", "gamedeployment/checked", "--timeout=180s"]);
    assert_ne!(image(), before);
    assert!(!failed(&status) && status["postInplaceHookCondition"].is_null(), "{status:#}");
    assert_eq!(fixture.get()["spec"]["postInplaceUpdateStrategy"]["retry"], false);
    fixture.delete();
}

pub(super) fn claims_stay_and_are_found_again(cluster: &Cluster, _: &HttpServer) {
    for ordinal in 0..2 {
        let path = cluster.node().dir.join(format!("kept-{ordinal}"));
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("kept-{ordinal}")},
            "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}});
        cluster.apply(&volume.to_string());
    }
    let pod = |image: &str| {
        json!({"metadata": {"labels": {"app": "kept"}}, "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "app", "image": cluster.named(image), "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        }})
    };
    let fixture = Fixture { cluster, kind: "gamestatefulset", name: "kept" };
    fixture.apply(&object("GameStatefulSet", "kept", &json!({
        "replicas": 2, "serviceName": "kept", "podManagementPolicy": "Parallel", "template": pod("lab/app:v1"),
        "updateStrategy": {"type": "InplaceUpdate", "rollingUpdate": {"maxUnavailable": 2}},
        "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"storageClassName": "by-hand",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}],
    })));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    let before = fixture.pods();
    fixture.patch(&json!({"spec": {"template": pod("lab/app:v2")}}));
    fixture.until("both are updated", |status| is_complete(status, 2));
    for (name, pod) in &fixture.pods() {
        same_but_restarted(&before[name], pod);
    }

    let claims = || cluster.kubectl(&["get", "pvc", "-o", "jsonpath={.items[*].metadata.uid}"]);
    let made = claims();
    assert_eq!(made.split_whitespace().count(), 2);
    for replicas in ["1", "2"] {
        cluster.kubectl(&["scale", "gamestatefulset/kept", &format!("--replicas={replicas}")]);
        fixture
            .wait("so many pods are there", || (fixture.pods().len().to_string() == replicas).then_some(()));
    }
    fixture.until("the second one is back", |status| status["readyReplicas"] == 2);
    let pod = &fixture.pods()["kept-1"];
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    let data = volumes.iter().find(|volume| volume["name"] == "data").unwrap();
    assert_eq!(data["persistentVolumeClaim"]["claimName"], "data-kept-1", "{pod:#}");
    fixture.delete();
    assert_eq!(claims(), made, "claims are never deleted without a policy");
    super::owned_claims::claims_grow_and_go_as_the_policy_says(cluster);
}
