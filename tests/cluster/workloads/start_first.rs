//! `inPlaceUpdateStrategy.order: StartFirst`: clients that never stop asking the pods of a workload notice neither an update
//! nor an image that does not start.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Fixture, condition, is_complete, object, same_but_restarted};
use crate::{cluster::Cluster, start_first::Client, support::http_server::HttpServer};

/// A server that shares its port, as a template.
fn server(name: &str, image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_migrate_req", "value": "1"}]},
            "containers": [{"name": "app", "image": image, "command": ["serve", "8080"], "ports": [{"containerPort": 8080}],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30}}],
        },
    })
}

/// One workload whose pods clients ask.
struct Served<'a> {
    fixture: Fixture<'a>,
    replicas: u32,
    before: BTreeMap<String, Value>,
    clients: Vec<Client>,
}

impl<'a> Served<'a> {
    fn begin(cluster: &'a Cluster, kind: &'static str, name: &'static str, more: &Value) -> Self {
        let fixture = Fixture {
            cluster,
            kind: if kind == "GameDeployment" { "gamedeployment" } else { "gamestatefulset" },
            name,
        };
        let mut spec = json!({"template": server(name, &cluster.named("lab/app:v1")),
            "updateStrategy": {"type": "InplaceUpdate", "inPlaceUpdateStrategy": {"order": "StartFirst"}}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let replicas = u32::try_from(spec["replicas"].as_u64().unwrap()).unwrap();
        fixture.apply(&object(kind, name, &spec));
        Self { fixture, replicas, before: BTreeMap::new(), clients: Vec::new() }
    }

    fn ask(&mut self) {
        self.fixture.until("its pods are there", |status| is_complete(status, self.replicas));
        self.before = self.fixture.pods();
        self.clients =
            self.before.values().map(|pod| Client::at(pod["status"]["podIP"].as_str().unwrap())).collect();
    }

    fn image(&self, image: &str) {
        let template = server(self.fixture.name, &self.fixture.cluster.named(image));
        self.fixture.patch(&json!({"spec": {"template": template}}));
    }

    /// Every pod was updated once, and its readiness gate was never closed.
    fn is_updated(&self) {
        self.fixture.until("it is updated", |status| is_complete(status, self.replicas));
        for (name, pod) in &self.fixture.pods() {
            same_but_restarted(&self.before[name], pod);
            assert_eq!(gate(pod), gate(&self.before[name]), "nothing was drained");
            let request = pod["metadata"]["annotations"]["inplace.dev/request"].as_str().unwrap();
            assert!(request.contains(r#""order":"StartFirst""#), "{request}");
        }
        self.clients.iter().for_each(|client| client.awaits("v2"));
    }

    /// The update stopped at its first pod, and no container was touched.
    fn is_stopped(&self, updated: &BTreeMap<String, Value>) {
        let status = self.fixture.until("the update has stopped", |status| {
            condition(status, "UpdateFailed")["reason"] == "TooManyFailures"
        });
        let said = condition(&status, "UpdateFailed")["message"].as_str().unwrap();
        assert!(
            said.contains("1 pods could not be updated") && said.contains("Failed: NotStartedBeside: "),
            "{said}"
        );
        assert_eq!(condition(&status, "Stalled")["status"], "True", "{status:#}");
        // Its kubelet may collect the previous instance, and reports no last state then.
        let instance = |pod: &Value| {
            let container = &pod["status"]["containerStatuses"][0];
            (container["containerID"].clone(), container["restartCount"].clone(), container["ready"].clone())
        };
        for (name, pod) in &self.fixture.pods() {
            let before = &updated[name];
            assert_eq!(pod["metadata"]["uid"], before["metadata"]["uid"]);
            assert_eq!(pod["spec"]["containers"], before["spec"]["containers"], "{name}");
            assert_eq!(instance(pod), instance(before), "{name}");
        }
    }

    fn end(self) {
        for client in self.clients {
            client.was_always_served(self.fixture.name);
        }
        self.fixture.delete();
    }
}

fn gate(pod: &Value) -> &Value {
    let conditions = pod["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|one| one["type"] == "InPlaceUpdateReady").unwrap()
}

pub(super) fn clients_of_a_workload_that_starts_first_notice_nothing(cluster: &Cluster, _: &HttpServer) {
    let mut served = [
        Served::begin(cluster, "GameDeployment", "always", &json!({"replicas": 2})),
        Served::begin(
            cluster,
            "GameStatefulSet",
            "always-set",
            &json!({"replicas": 1, "serviceName": "always-set"}),
        ),
    ];
    served.iter_mut().for_each(Served::ask);
    for one in &served {
        one.image("lab/app:v2");
    }
    served.iter().for_each(Served::is_updated);
    let updated: Vec<_> = served.iter().map(|one| one.fixture.pods()).collect();
    for one in &served {
        one.image("lab/app:crash");
    }
    for (one, pods) in served.iter().zip(&updated) {
        one.is_stopped(pods);
    }
    served.into_iter().for_each(Served::end);
}
