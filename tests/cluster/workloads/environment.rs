//! A label that a container has in its environment: an update in place gives the pod the label and starts the container
//! again with it, and leaves the other container of the pod alone.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Fixture, is_complete, object};
use crate::{cluster::Cluster, support::http_server::HttpServer};

/// The containers of a pod: only `app` has the label in its environment.
fn template(zone: &str, image: &str) -> Value {
    let from = json!({"fieldRef": {"fieldPath": "metadata.labels['zone']"}});
    json!({
        "metadata": {"labels": {"app": "zoned", "zone": zone}},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [
            {"name": "app", "image": image, "env": [{"name": "ZONE", "valueFrom": from}]},
            {"name": "side", "image": "lab/app:v1"}]},
    })
}

/// The restarts of each container, in each pod by its uid.
fn restarts(fixture: &Fixture<'_>) -> BTreeMap<String, [u64; 2]> {
    let of = |pod: &Value, name: &str| {
        let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
        let found = statuses.iter().find(|status| status["name"] == name).unwrap();
        found["restartCount"].as_u64().unwrap()
    };
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap().to_owned();
    fixture.pods().values().map(|pod| (uid(pod), [of(pod, "app"), of(pod, "side")])).collect()
}

pub(super) fn a_container_sees_the_changed_label_of_its_environment(cluster: &Cluster, _: &HttpServer) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "zoned" };
    let apply = |zone: &str, image: &str| {
        let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 1});
        let spec = json!({"replicas": 2, "updateStrategy": strategy, "template": template(zone, image)});
        fixture.apply(&object("GameDeployment", "zoned", &spec));
        fixture.until("two pods are updated", |status| is_complete(status, 2));
    };
    let sees = |zone: &str| {
        for (name, pod) in &fixture.pods() {
            assert_eq!(pod["metadata"]["labels"]["zone"], zone, "{pod:#}");
            let seen = cluster.kubectl(&["exec", name, "-c", "app", "--", "sh", "-c", "echo $ZONE"]);
            assert_eq!(seen.trim(), zone, "the environment of {name}");
        }
    };
    let restarted = |before: &BTreeMap<String, [u64; 2]>, app: u64| {
        let expected: BTreeMap<_, _> = before.keys().map(|uid| (uid.clone(), [app, 0])).collect();
        assert_eq!(restarts(&fixture), expected);
    };

    apply("east", "lab/app:v1");
    sees("east");
    let before = restarts(&fixture);
    apply("west", "lab/app:v1");
    sees("west");
    restarted(&before, 1);
    // A swap starts the container with the label as well, and once.
    apply("north", "lab/app:v2");
    sees("north");
    restarted(&before, 2);
    fixture.delete();
}
