//! cpu and memory of the template change: where the API server resizes running pods, the containers keep running with their
//! new limits; elsewhere the change is refused before a pod is touched.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Fixture, condition, is_complete, object};
use crate::cluster::Cluster;
use crate::support::http_server::HttpServer;
use crate::support::release;

fn template(cluster: &Cluster, [cpu, memory]: [&str; 2], image: &str) -> Value {
    let limits = json!({"limits": {"cpu": cpu, "memory": memory}});
    json!({
        "metadata": {"labels": {"app": "sized"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "app", "image": cluster.named(image), "resources": limits}],
        },
    })
}

fn has_resize(cluster: &Cluster) -> bool {
    let list: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/api/v1"])).unwrap();
    list["resources"].as_array().unwrap().iter().any(|resource| resource["name"] == "pods/resize")
}

fn version(cluster: &Cluster) -> String {
    let version: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/version"])).unwrap();
    version["gitVersion"].as_str().unwrap().to_owned()
}

/// The uid and the container of each pod, and the limits that its kubelet reports.
fn containers(fixture: &Fixture<'_>) -> BTreeMap<String, (Value, Value, Value)> {
    let of = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        (pod["metadata"]["uid"].clone(), status["containerID"].clone(), status["resources"]["limits"].clone())
    };
    fixture.pods().iter().map(|(name, pod)| (name.clone(), of(pod))).collect()
}

pub(super) fn limits_change_in_the_running_container_or_nothing_is_touched(
    cluster: &Cluster,
    _: &HttpServer,
) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "sized" };
    let template = |limits, image| template(cluster, limits, image);
    let spec = json!({"replicas": 2, "template": template(["200m", "64Mi"], "lab/app:v1"),
        "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1}});
    fixture.apply(&object("GameDeployment", "sized", &spec));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    let before = containers(&fixture);

    fixture.patch(&json!({"spec": {"template": template(["300m", "96Mi"], "lab/app:v1")}}));
    if !has_resize(cluster) {
        release::not_exercised("resizes of running pods", release::RESIZE_SINCE, &version(cluster));
        fixture.until("it is refused", |status| {
            let failed = condition(status, "UpdateFailed");
            let message = failed["message"].as_str().unwrap_or_default();
            failed["reason"] == "NotInPlace"
                && message.contains("limits.cpu (the API server has no resize of pods")
        });
        assert_eq!(containers(&fixture), before);
        return fixture.delete();
    }
    fixture.until("it is resized", |status| is_complete(status, 2));
    for (name, (uid, id, limits)) in containers(&fixture) {
        assert_eq!((&uid, &id), (&before[&name].0, &before[&name].1), "{name} keeps its container");
        assert_eq!(limits, json!({"cpu": "300m", "memory": "96Mi"}), "{name}");
    }
    // With a new image, in one step.
    fixture.patch(&json!({"spec": {"template": template(["400m", "96Mi"], "lab/app:v2")}}));
    fixture.until("it is updated", |status| is_complete(status, 2));
    for (name, pod) in fixture.pods() {
        super::same_but_restarted(
            &json!({"metadata": {"uid": before[&name].0},
            "status": {"podIP": pod["status"]["podIP"]}}),
            &pod,
        );
        assert_eq!(pod["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"], "400m", "{pod:#}");
    }
    // No node has so much. The first pod says so, and the way back resizes it back.
    fixture.patch(&json!({"spec": {"template": template(["4000", "96Mi"], "lab/app:v2")}}));
    fixture.until("the update has failed", |status| {
        let message = condition(status, "UpdateFailed")["message"].clone();
        message.as_str().is_some_and(|message| message.contains("Infeasible"))
    });
    fixture.patch(&json!({"spec": {"template": template(["400m", "96Mi"], "lab/app:v2")}}));
    fixture.until("it is back", |status| is_complete(status, 2));
    let uids =
        |of: &BTreeMap<String, (Value, Value, Value)>| of.values().map(|of| of.0.clone()).collect::<Vec<_>>();
    assert_eq!(uids(&containers(&fixture)), uids(&before));
    fixture.delete();
}
