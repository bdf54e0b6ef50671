//! `GameDeployment` and `GameStatefulSet` end to end: the controller and an agent with their shipped rights, and
//! real pods.

mod aborted;
mod canary;
mod environment;
mod owned_claims;
mod prefetch;
mod preserved;
mod resize;
mod shipped;
mod start_first;
mod taken_over;

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::Cluster,
    hook_runs::measurements::published_server,
    rolled::budget::{self, Budget},
    support::{http_server::HttpServer, parts::Parts, wait::eventually_slowly},
};

/// Longer than an update of all pods, one after the other.
const LONG: Duration = Duration::from_secs(300);

/// A part of a test, with the server that hooks query.
type Part = fn(&Cluster, &HttpServer);

#[test]
fn workloads_are_brought_about() {
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    let left = taken_over::leave(&cluster);
    let controller = Agent::controller(&cluster, "one");
    let (cluster, parts) = (&cluster, Parts::default());
    parts.run("a takeover", || left.are_taken_over());
    parts.run("a GameDeployment", || {
        a_game_deployment_is_made_updated_in_place_scaled_and_deleted(cluster);
        for counted in [
            &["inplace_pods_updated_total", "GameDeployment", "Updated"][..],
            &["inplace_workload_downtime_seconds_count", "GameDeployment"],
        ] {
            // Two of them are those of the takeover.
            assert_eq!(controller.metric(counted).to_string(), "5", "{counted:?}");
        }
    });
    parts.run("a disruption budget", || an_update_in_place_respects_a_disruption_budget(cluster));
    parts.run("a GameStatefulSet", || {
        a_game_stateful_set_is_updated_from_its_highest_ordinal_down_to_the_partition(cluster);
    });
    let published = &published_server(&cluster.node().ip);
    parts.run("hooks", || hooks_hold_pods_until_they_let_them_pass(cluster, published));
    let rest: [(_, Part); 7] = [
        ("canary steps", canary::canary_steps_hold_the_rollout_until_they_are_passed),
        ("a hook afterwards", canary::a_hook_afterwards_takes_the_image_back_until_it_passes),
        ("a label in the environment", environment::a_label_in_the_environment_restarts_the_container),
        ("an abort", aborted::a_failed_update_takes_the_pods_back_in_place),
        ("claims", canary::claims_stay_and_are_found_again),
        ("an image ahead of its update", prefetch::the_image_arrives_while_a_hook_runs),
        ("an update without downtime", start_first::clients_of_a_workload_that_starts_first_notice_nothing),
    ];
    parts.run_all(rest.map(|(name, part)| (name, move || part(cluster, published))));
    // No write exceeded the shipped rights.
    let denied = cluster.denied();
    assert!(denied.is_empty(), "{denied:#?}");
}

fn a_game_deployment_is_made_updated_in_place_scaled_and_deleted(cluster: &Cluster) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "web" };
    fixture.apply(&object(
        "GameDeployment",
        "web",
        &json!({
            "replicas": 3,
            "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 2},
        }),
    ));
    let status = fixture.until("three pods are Ready", |status| status["readyReplicas"] == 3);
    assert_eq!(status["updatedReadyReplicas"], 3, "{status:#}");
    assert_eq!(status["labelSelector"], "app=web", "{status:#}");
    let before = fixture.pods();
    assert_eq!(before.len(), 3);

    fixture.image("lab/app:v2");
    fixture.until("three pods are updated", |status| is_complete(status, 3));
    let after = fixture.pods();
    for (name, pod) in &after {
        same_but_restarted(&before[name], pod);
        let image = cluster.named("lab/app:v2");
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
    fixture.until("five pods are Ready", |status| status["readyReplicas"] == 5);
    cluster.kubectl(&["scale", "gamedeployment/web", "--replicas=2"]);
    fixture.until("two pods count", |status| status["replicas"] == 2);
    fixture.wait("two pods are left", || (fixture.pods().len() == 2).then_some(()));
    assert!(
        fixture.pods().keys().all(|name| after.contains_key(name)),
        "the youngest leave: {:?}",
        fixture.pods().keys()
    );
    fixture.delete();
}

/// The budget is stricter than `maxUnavailable`; the disruption controller of the cluster computes its status.
fn an_update_in_place_respects_a_disruption_budget(cluster: &Cluster) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "budgeted" };
    // With a drain, a pod is not Ready for a while that the watch below does not miss.
    let drain = json!({"gracePeriodSeconds": 2});
    let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 3, "inPlaceUpdateStrategy": drain});
    let spec = json!({"replicas": 3, "updateStrategy": strategy});
    fixture.apply(&object("GameDeployment", "budgeted", &spec));
    fixture.until("three pods are Ready", |status| status["readyReplicas"] == 3);
    let least = |least: u32| {
        let budget = json!({"apiVersion": budget::interface(cluster), "kind": "PodDisruptionBudget",
            "metadata": {"name": "budgeted", "namespace": "default"},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "budgeted"}}}});
        cluster.apply(&budget.to_string());
    };
    least(3);
    let budget = Budget::watch(cluster, "budgeted", 3);
    fixture.image("lab/app:v2");
    fixture.until("it waits for the budget", |status| {
        condition(status, "Progressing")["reason"] == "PodDisruptionBudget"
    });
    least(2);
    fixture.until("three pods are updated", |status| is_complete(status, 3));
    budget.was_never_broken(2);
    let left = cluster.kubectl(&["get", "pdb", "budgeted", "-o", "jsonpath={.status.disruptedPods}"]);
    assert!(left.is_empty() || left == "{}", "an entry is left: {left}");
    fixture.delete();
}

fn a_game_stateful_set_is_updated_from_its_highest_ordinal_down_to_the_partition(cluster: &Cluster) {
    let fixture = Fixture { cluster, kind: "gamestatefulset", name: "set" };
    fixture.apply(&object(
        "GameStatefulSet",
        "set",
        &json!({
            "replicas": 5,
            "serviceName": "set",
            "updateStrategy": {
                "type": "InplaceUpdate",
                "rollingUpdate": {"partition": 3},
                "inPlaceUpdateStrategy": {"gracePeriodSeconds": 2},
            },
        }),
    ));
    fixture.until("five pods are Ready", |status| status["readyReplicas"] == 5);
    let before = fixture.pods();
    assert_eq!(before.keys().collect::<Vec<_>>(), ["set-0", "set-1", "set-2", "set-3", "set-4"]);
    fixture.image("lab/app:v2");
    let updated = |many: u32| move |status: &Value| status["updatedReadyReplicas"] == many;
    fixture.until("two pods are updated", updated(2));
    let columns = || {
        let listed = cluster.kubectl(&["get", "gamestatefulset", "set", "--no-headers"]);
        listed.split_whitespace().take(6).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(columns(), ["set", "5", "5", "3", "2", "2"]);
    let after = fixture.pods();
    for (name, pod) in &after {
        if name.as_str() >= "set-3" {
            same_but_restarted(&before[name], pod);
        } else {
            assert_eq!(pod["status"]["containerStatuses"][0]["restartCount"], 0, "{pod:#}");
        }
    }
    let ready = |pod: &Value| {
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        let ready = conditions.iter().find(|one| one["type"] == "Ready").unwrap();
        ready["lastTransitionTime"].as_str().unwrap().to_owned()
    };
    assert!(ready(&after["set-4"]) <= ready(&after["set-3"]), "the highest first, one after the other");
    fixture.patch(&json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}));
    fixture.until("all are updated", updated(5));
    for (name, pod) in &fixture.pods() {
        same_but_restarted(&before[name], pod);
    }
    fixture.delete();
}

fn hooks_hold_pods_until_they_let_them_pass(cluster: &Cluster, published: &HttpServer) {
    let fixture = Fixture { cluster, kind: "gamedeployment", name: "hooked" };
    fixture.apply(&object("GameDeployment", "hooked", &json!({
        "replicas": 2,
        "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 2},
        "preDeleteUpdateStrategy": {"hook": {"templateName": "leave", "args": [{"name": "service-name", "value": "web"}]}},
    })));
    fixture.until("two pods are Ready", |status| status["readyReplicas"] == 2);
    cluster.kubectl(&["scale", "gamedeployment/hooked", "--replicas=1"]);
    let status = fixture
        .until("the hook cannot be asked", |status| condition(status, "ScaleFailed")["status"] == "True");
    let said = condition(&status, "ScaleFailed")["message"].as_str().unwrap();
    assert!(said.contains("HookTemplate leave does not exist"), "{said}");
    assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(2), &json!(2)), "{status:#}");

    let template = |wanted: u32| {
        let url = format!("http://{}/{{{{ args.service-name }}}}/{{{{ args.PodName }}}}", published.address);
        let metric = json!({"name": "webtest", "count": 2, "interval": "1s", "failureLimit": 0,
            "successCondition": format!("asInt(result) > {wanted}"), "provider": {"web": {"url": url, "jsonPath": "{$.age}"}}});
        let args = json!([{"name": "PodName"}, {"name": "service-name"}]);
        cluster.apply(&json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
            "metadata": {"name": "leave", "namespace": "default"}, "spec": {"args": args, "metrics": [metric]}}).to_string());
    };
    template(100);
    let reported = |status: &Value| status["preDeleteHookCondition"][0].clone();
    let status = fixture.until("the hook has failed", |status| reported(status)["phase"] == "Failed");
    let leaving = reported(&status)["podName"].as_str().unwrap().to_owned();
    assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(2), &json!(2)), "{status:#}");
    let path = format!("/web/{leaving}");
    assert!(published.count(&path) > 0, "the arguments are rendered");

    template(30);
    fixture.patch(&json!({"spec": {"preDeleteUpdateStrategy": {"retry": true}}}));
    fixture.until("one pod counts", |status| status["replicas"] == 1 && reported(status).is_null());
    fixture.wait("the pod that was asked about is gone", || {
        (!fixture.pods().contains_key(&leaving)).then_some(())
    });
    assert_eq!(fixture.get()["spec"]["preDeleteUpdateStrategy"]["retry"], false);
    fixture.wait("its hooks are gone", || {
        let runs = cluster.read("/apis/tkex.tencent.com/v1alpha1/namespaces/default/hookruns");
        runs["items"].as_array().unwrap().is_empty().then_some(())
    });
    fixture.delete();
}

pub(crate) struct Fixture<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) kind: &'static str,
    pub(crate) name: &'static str,
}

impl Fixture<'_> {
    pub(crate) fn apply(&self, object: &Value) {
        self.cluster.apply(&object.to_string());
    }

    /// Sets the image in the workload's template.
    pub(crate) fn image(&self, image: &str) {
        self.patch(&json!({"spec": {"template": template(self.name, &self.cluster.named(image))}}));
    }

    pub(crate) fn delete(&self) {
        self.cluster.kubectl(&["delete", self.kind, self.name, "--timeout=180s"]);
        self.wait("its pods are gone", || self.pods().is_empty().then_some(()));
    }

    fn patch(&self, patch: &Value) {
        self.cluster.kubectl(&["patch", self.kind, self.name, "--type=merge", "-p", &patch.to_string()]);
    }

    pub(crate) fn get(&self) -> Value {
        let (kind, name) = (self.kind, self.name);
        self.cluster.read(&format!("/apis/tkex.tencent.com/v1alpha1/namespaces/default/{kind}s/{name}"))
    }

    /// Waits for a status of the current generation that fulfils a condition.
    pub(crate) fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait(what, || {
            let object = self.get();
            let status = &object["status"];
            let reported = status["observedGeneration"] == object["metadata"]["generation"] && wanted(status);
            reported.then(|| status.clone())
        })
    }

    /// The workload's pods by name.
    pub(crate) fn pods(&self) -> BTreeMap<String, Value> {
        self.cluster.pods(&format!("app={}", self.name))
    }

    fn wait<T>(&self, what: &str, poll: impl FnMut() -> Option<T>) -> T {
        eventually_slowly(LONG, what, poll, || {
            self.cluster.kubectl(&["get", self.kind, self.name, "-o", "yaml", "--ignore-not-found"])
        })
    }
}

pub(crate) fn object(kind: &str, name: &str, spec: &Value) -> Value {
    let mut whole =
        json!({"selector": {"matchLabels": {"app": name}}, "template": template(name, "lab/app:v1")});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "default"}, "spec": whole,
    })
}

fn template(name: &str, image: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [{"name": "app", "image": image}]},
    })
}

/// Asserts that it is the same pod at the same address, with its container restarted once.
pub(crate) fn same_but_restarted(before: &Value, after: &Value) {
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["status"]["podIP"], before["status"]["podIP"]);
    assert_eq!(after["status"]["containerStatuses"][0]["restartCount"], 1, "{after:#}");
}

/// True when this number of pods is updated and Ready, and the rollout is complete.
pub(crate) fn is_complete(status: &Value, updated: u32) -> bool {
    status["updatedReadyReplicas"] == updated && condition(status, "Progressing")["reason"] == "Complete"
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let conditions = status["conditions"].as_array();
    conditions.into_iter().flatten().find(|one| one["type"] == kind).unwrap_or(&Value::Null)
}
