//! A label that a container has in its environment changes in the template: the containers are restarted in their pods and
//! have the new value, and an update that fails leaves the old one.

use std::fs;

use serde_json::{Value, json};

use super::{Fixture, condition, is_complete, object, same_but_restarted};
use crate::{
    cluster::{Cluster, block_on},
    support::{facts::observe, http_server::HttpServer},
};

fn template(cluster: &Cluster, zone: &str, image: &str) -> Value {
    let field = json!({"fieldRef": {"fieldPath": "metadata.labels['zone']"}});
    let image = cluster.named(image);
    json!({
        "metadata": {"labels": {"app": "zoned", "zone": zone, "note": zone}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {"name": "app", "image": image, "env": [{"name": "ZONE", "valueFrom": field}]},
                {"name": "side", "image": cluster.named("lab/app:v1")},
            ],
        },
    })
}

pub(super) fn a_label_in_the_environment_restarts_the_container(cluster: &Cluster, _: &HttpServer) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "zoned" };
    let spec = json!({"replicas": 2, "template": template(cluster, "a", "lab/app:v1"),
        "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 2}});
    fixture.apply(&object("GameDeployment", "zoned", &spec));
    fixture.until("two pods are there", |status| is_complete(status, 2));
    let before = fixture.pods();
    let zones = || {
        // A command in the container may print nothing on a busy machine.
        let zone = |pod: &Value| {
            let uid = pod["metadata"]["uid"].as_str().unwrap();
            let pid = block_on(observe(&cluster.node().endpoint, uid)).running("app").pid;
            let environment = fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
            let zone = environment.split('\0').find_map(|variable| variable.strip_prefix("ZONE="));
            zone.unwrap_or_else(|| panic!("{environment:?}")).to_owned()
        };
        fixture.pods().values().map(zone).collect::<Vec<_>>()
    };
    assert_eq!(zones(), ["a", "a"]);

    fixture.patch(&json!({"spec": {"template": template(cluster, "b", "lab/app:v1")}}));
    fixture.until("it is updated", |status| is_complete(status, 2));
    assert_eq!(zones(), ["b", "b"]);
    let updated = fixture.pods();
    for (name, pod) in &updated {
        same_but_restarted(&before[name], pod);
        let labels = &pod["metadata"]["labels"];
        assert_eq!((&labels["zone"], &labels["note"]), (&json!("b"), &json!("b")), "{labels}");
        let side = |pod: &Value| {
            let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
            statuses.iter().find(|status| status["name"] == "side").unwrap()["containerID"].clone()
        };
        assert_eq!(side(pod), side(&before[name]), "the other container of {name} was not touched");
    }

    // The image does not start. Its agents roll back, and the containers run with the label of the pod's own revision.
    // On a busy node the runtime may report the exit only after the second that a swap is observed without
    // `minReadySeconds`.
    let crash = template(cluster, "c", "lab/app:crash");
    fixture.patch(&json!({"spec": {"minReadySeconds": 5, "template": crash}}));
    fixture.until("the update has failed", |status| {
        condition(status, "UpdateFailed")["reason"] == "TooManyFailures"
    });
    fixture.patch(&json!({"spec": {"template": template(cluster, "b", "lab/app:v1")}}));
    fixture.until("it is at its revision again", |status| is_complete(status, 2));
    assert_eq!(zones(), ["b", "b"]);
    for (name, pod) in &fixture.pods() {
        assert_eq!(pod["metadata"]["uid"], before[name]["metadata"]["uid"]);
        assert_eq!(pod["metadata"]["labels"]["zone"], "b");
    }
    fixture.delete();
}
