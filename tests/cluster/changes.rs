//! A change of a `ConfigMap` restarts the containers that mount it: once, in place, with the new content.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    support::wait::{eventually, eventually_or},
};

/// Records the content at the container's start, whatever the volume contains later.
const STARTED: &str = "cat /etc/app/level >/started; exec app";

/// How often the content changes until each kubelet has refreshed its volume before the restart.
const TRIES: u64 = 4;

struct Fixture {
    cluster: &'static Cluster,
    name: String,
}

impl Fixture {
    /// Name, uid and restart count of each pod.
    fn pods(&self) -> Vec<(String, String, u64)> {
        let pods = self.cluster.pods(&format!("app={}", self.name)).into_iter();
        pods.map(|(name, pod)| {
            let restarts = pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or_default();
            (name, pod["metadata"]["uid"].as_str().unwrap().to_owned(), restarts)
        })
        .collect()
    }

    /// The content with which each container was started, once each has recorded that: it is Ready before.
    fn started(&self) -> Vec<String> {
        let read = |(pod, ..): (String, String, u64)| {
            let mut command =
                self.cluster.kubectl_command(&["exec", &pod, "-c", "app", "--", "cat", "/started"]);
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        };
        eventually("what each container was started with", || {
            let started: Vec<_> = self.pods().into_iter().map(read).collect();
            started.iter().all(|started| !started.is_empty()).then_some(started)
        })
    }

    /// Changes the content. A process of `kubectl` may take longer than a change has to be stable until it is handled alone.
    fn level(&self, level: &str) {
        let api: Api<ConfigMap> = Api::namespaced(self.cluster.client.clone(), "default");
        let patch = Patch::Merge(json!({"data": {"level": level}}));
        block_on(api.patch(&self.name, &PatchParams::default(), &patch)).unwrap();
    }

    fn rollouts(&self) -> Vec<Value> {
        let listed = self.cluster.read("/apis/inplace.dev/v1alpha1/namespaces/default/inplacerollouts");
        let ours = |rollout: &&Value| rollout["spec"]["target"]["workloadRef"]["name"] == *self.name;
        listed["items"].as_array().unwrap().iter().filter(ours).cloned().collect()
    }

    /// The rollout at its end. On a busy machine each pod takes long, so the time limit is for each of them.
    fn end_of(&self, rollout: &Value) -> Value {
        let name = rollout["metadata"]["name"].as_str().unwrap();
        let path = format!("/apis/inplace.dev/v1alpha1/namespaces/default/inplacerollouts/{name}");
        let has_ended =
            |rollout: &Value| matches!(rollout["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let mut done = 0;
        loop {
            let rollout = eventually_or(&format!("the end, or more than {done} pods that are done"), || {
                let rollout = self.cluster.read(&path);
                let goes_on = has_ended(&rollout) || rollout["status"]["done"].as_u64() > Some(done);
                if goes_on { Ok(rollout) } else { Err(rollout["status"].to_string()) }
            });
            if has_ended(&rollout) {
                return rollout;
            }
            done = rollout["status"]["done"].as_u64().unwrap();
        }
    }

    /// Changes the content to these levels, one after the other, and waits for the rollout. Repeats that with other
    /// content while a container has read the old one: a kubelet on a busy node may refresh a volume later than the
    /// controller waits (docs/config-restart.md). Returns the last rollout and the number of rollouts.
    fn changed(&self, levels: &[&str]) -> (Value, u64) {
        for tries in 1..=TRIES {
            let before = self.rollouts();
            let levels = levels.iter().map(|level| format!("{level}.{tries}")).collect::<Vec<_>>();
            for level in &levels {
                self.level(level);
            }
            let rollout = eventually("another rollout", || {
                let is_new = |other: &Value| {
                    before.iter().all(|known| known["metadata"]["uid"] != other["metadata"]["uid"])
                };
                self.rollouts().into_iter().find(is_new)
            });
            let rollout = self.end_of(&rollout);
            assert_eq!(
                (&rollout["status"]["phase"], &rollout["status"]["done"]),
                (&json!("Succeeded"), &json!(3)),
                "{rollout:#}"
            );
            if self.started().iter().all(|started| Some(started) == levels.last()) {
                return (rollout, tries);
            }
        }
        panic!("a kubelet has refreshed its volume too late {TRIES} times");
    }
}

#[test]
fn a_configmap_that_is_changed_twice_restarts_each_container_once_with_what_is_new() {
    let cluster = Cluster::shared();
    Agent::shared();
    let _controller = Agent::controller(cluster, "changes");
    let fixture = Fixture { cluster, name: format!("changes-{}", std::process::id()) };
    let name = fixture.name.as_str();
    let config =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"level": "1"}});
    cluster.apply(&config.to_string());
    let container = json!({"name": "app", "image": cluster.image("app:v1"), "command": ["sh", "-c", STARTED],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/app"}]});
    let spec = json!({"terminationGracePeriodSeconds": 2, "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": name}}]});
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "annotations": {
            "inplace.dev/restart-on-change": format!("configmap/{name}"),
            "inplace.dev/restart-on-change-max-unavailable": "2",
        }},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": spec}},
    });
    cluster.apply(&deployment.to_string());
    eventually("three pods that are Ready, and what there is written down", || {
        let now = cluster.read(&format!("/apis/apps/v1/namespaces/default/deployments/{name}"));
        let seen = &now["metadata"]["annotations"]["inplace.dev/restart-on-change-seen"];
        (now["status"]["readyReplicas"] == 3 && seen.is_string()).then_some(())
    });
    let before = fixture.pods();
    assert_eq!(fixture.started(), ["1"; 3]);
    let (_, rollouts) = fixture.changed(&["2", "3"]);
    let after = eventually("the kubelet to report the restarts", || {
        let pods = fixture.pods();
        pods.iter().all(|(.., restarts)| *restarts >= rollouts).then_some(pods)
    });
    let expected = |restarts: u64| -> Vec<_> {
        before.iter().map(|(pod, uid, _)| (pod.clone(), uid.clone(), restarts)).collect()
    };
    assert_eq!(after, expected(rollouts));
    assert_eq!(fixture.rollouts().len() as u64, rollouts);

    let annotation = "inplace.dev/restart-on-change-order=StartFirst";
    cluster.kubectl(&["annotate", "deployment", name, annotation]);
    let (rollout, more) = fixture.changed(&["4"]);
    assert_eq!(rollout["spec"]["pod"]["order"], "StartFirst");
    let expected = expected(rollouts + more);
    eventually("the kubelet to report the restarts", || (fixture.pods() == expected).then_some(()));
    cluster.kubectl(&["delete", "deployment", name]);
    cluster.kubectl(&["delete", "configmap", name]);
    eventually("its rollout to go with it", || fixture.rollouts().is_empty().then_some(()));
}
