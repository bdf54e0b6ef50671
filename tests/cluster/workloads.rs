//! `GameDeployment` and `GameStatefulSet` from one end to the other: the controller and an agent with their shipped rights,
//! real pods.

use std::{collections::BTreeMap, thread, time::Duration};

use serde_json::{Value, json};

use crate::{agent::Agent, cluster::Cluster, traffic::now};

/// Longer than an update of all pods, one after the other.
const LONG: Duration = Duration::from_secs(120);

#[test]
fn a_game_deployment_is_made_updated_in_place_scaled_and_deleted() {
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    let _controller = Agent::controller(&cluster, "one");
    let site = Site { cluster: &cluster, kind: "gamedeployment", name: "web" };
    site.apply(&json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template("lab/app:v1"),
            "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 2},
        },
    }));
    let status = site.until("three pods are Ready", |status| status["readyReplicas"] == 3);
    assert_eq!(status["updatedReadyReplicas"], 3, "{status:#}");
    assert_eq!(status["labelSelector"], "app=web", "{status:#}");
    let before = site.pods();
    assert_eq!(before.len(), 3);

    let image = cluster.named("lab/app:v2");
    site.patch(&json!({"spec": {"template": template(&image)}}));
    let complete = |status: &Value| {
        let progressing = condition(status, "Progressing");
        status["updatedReadyReplicas"] == 3 && progressing["reason"] == "Complete"
    };
    site.until("three pods are updated", complete);
    let after = site.pods();
    for (name, pod) in &after {
        let old = &before[name];
        assert_eq!(pod["metadata"]["uid"], old["metadata"]["uid"], "{name} is the same pod");
        assert_eq!(pod["status"]["podIP"], old["status"]["podIP"], "{name} kept its address");
        assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 1, "{pod:#}");
        assert_eq!(pod["spec"]["containers"][0]["image"], image.as_str(), "{pod:#}");
    }
    let listed = cluster.kubectl(&["get", "gamedeployment", "web"]);
    let words: Vec<Vec<_>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        words[0],
        ["NAME", "DESIRED", "UPDATED", "UPDATED_READY", "READY", "TOTAL", "AGE"],
        "{listed}"
    );
    assert_eq!(words[1][..6], ["web", "3", "3", "3", "3", "3"], "{listed}");

    cluster.kubectl(&["scale", "gamedeployment/web", "--replicas=5"]);
    site.until("five pods are Ready", |status| status["readyReplicas"] == 5);
    cluster.kubectl(&["scale", "gamedeployment/web", "--replicas=2"]);
    site.until("two pods count", |status| status["replicas"] == 2);
    site.wait("two pods are left", || (site.pods().len() == 2).then_some(()));
    assert!(
        site.pods().keys().all(|name| after.contains_key(name)),
        "the youngest leave: {:?}",
        site.pods().keys()
    );

    // Nothing is written while nothing happens, and nothing that was written was beyond its rights.
    let writes = cluster.writes();
    let denied: Vec<_> = writes.iter().filter(|write| write["responseStatus"]["code"] == 403).collect();
    assert!(denied.is_empty(), "{denied:#?}");
    cluster.kubectl(&["delete", "gamedeployment", "web", "--timeout=60s"]);
    site.wait("its pods are gone", || site.pods().is_empty().then_some(()));
}

struct Site<'a> {
    cluster: &'a Cluster,
    kind: &'static str,
    name: &'static str,
}

impl Site<'_> {
    fn apply(&self, object: &Value) {
        self.cluster.apply(&object.to_string());
    }

    fn patch(&self, patch: &Value) {
        self.cluster.kubectl(&["patch", self.kind, self.name, "--type=merge", "-p", &patch.to_string()]);
    }

    fn get(&self) -> Value {
        serde_json::from_str(&self.cluster.kubectl(&["get", self.kind, self.name, "-o", "json"])).unwrap()
    }

    /// Its status, once it is of the present spec and as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait(what, || {
            let object = self.get();
            let status = &object["status"];
            let told = status["observedGeneration"] == object["metadata"]["generation"] && wanted(status);
            told.then(|| status.clone())
        })
    }

    /// Its pods by name.
    fn pods(&self) -> BTreeMap<String, Value> {
        let list = self.cluster.kubectl(&["get", "pods", "-l", "app=web", "-o", "json"]);
        let list: Value = serde_json::from_str(&list).unwrap();
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(|pod| (name(pod), pod.clone())).collect()
    }

    fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = now() + LONG;
        loop {
            if let Some(found) = look() {
                return found;
            }
            let object =
                self.cluster.kubectl(&["get", self.kind, self.name, "-o", "yaml", "--ignore-not-found"]);
            assert!(now() < end, "never happened: {what}: {object}");
            thread::sleep(Duration::from_millis(200));
        }
    }
}

fn template(image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [{"name": "app", "image": image}]},
    })
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let conditions = status["conditions"].as_array();
    conditions.into_iter().flatten().find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}
