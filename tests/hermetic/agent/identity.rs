//! Attacks with fields that users can write: a pod that claims the identity of another one gets no access to it. A
//! real static pod is served all the same.

use std::sync::Arc;

use inplace::api::annotation;
use inplace::operation::snapshot::Owner;
use serde_json::{Value, json};

use super::super::api_server::pods;
use super::super::runtime::{Exec, Made, Pod};
use super::{Fixture, show};

const MIRROR: &str = "kubernetes.io/config.mirror";

impl Fixture {
    /// A pod of another tenant, on the node and at the API server.
    fn victim(&self) -> Made {
        let made = self.runtime.put(Pod::new("bank", "vault").container("app", "img:v1").grace(1));
        self.show_as("bank", "vault", &made, |pod| pod["metadata"]["uid"] = json!(made.uid));
        made
    }

    /// A pod that exists only at the API server and claims the uid of `claimed` on its node.
    fn claimant(&self, namespace: &str, name: &str, claimed: &Made, request: &str) {
        self.show_as(namespace, name, claimed, |pod| {
            pod["metadata"]["annotations"] = json!({ MIRROR: claimed.uid, annotation::REQUEST: request });
        });
    }

    fn show_as(&self, namespace: &str, name: &str, made: &Made, change: impl FnOnce(&mut Value)) {
        let mut pod = pods::pod(namespace, name, "node-1");
        pod["metadata"]["annotations"] = json!({});
        pod["spec"]["containers"][0]["image"] = json!("img:v1");
        show(&mut pod, made.id("app"), 0);
        change(&mut pod);
        self.api.put(pod);
    }

    /// Waits until a pod of any namespace has a final status, and returns it.
    async fn end(&self, namespace: &str, name: &str) -> Value {
        let mut found = None;
        self.api
            .until(&format!("an end of {namespace}/{name}"), |store| {
                let status = store.pod(namespace, name).as_ref().and_then(super::status);
                found = status.filter(|status| !status["finishedAt"].is_null());
                found.is_some()
            })
            .await;
        found.unwrap()
    }

    /// Creates a HookRun of this node that runs a command in the container `app` of `pod`.
    fn exec_run(&self, namespace: &str, run: &str, pod: &str, owner: Option<&str>) {
        let owners: Vec<_> = owner
            .map(|uid| json!({ "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid }))
            .into_iter()
            .collect();
        let exec = json!({ "container": "app", "command": ["cat", "/proc/1/environ"] });
        self.api.put(json!({
            "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": { "namespace": namespace, "name": run, "labels": { "inplace.dev/node": "node-1" },
                "ownerReferences": owners },
            "spec": {
                "args": [{ "name": "PodName", "value": pod }],
                "metrics": [{ "name": "steal", "count": 1, "consecutiveErrorLimit": 0, "provider": { "exec": exec } }],
            },
        }));
    }

    async fn run_ended(&self, namespace: &str, name: &str) -> Value {
        let is = |run: &Value| !matches!(run["status"]["phase"].as_str(), None | Some("Running" | "Pending"));
        self.api
            .until(&format!("the end of {name}"), |store| {
                store.get("hookruns", namespace, name).is_some_and(|run| is(&run))
            })
            .await;
        self.api.get("hookruns", namespace, name).unwrap()
    }

    /// Asserts that no command ran in the pod and that none of its containers was created, stopped or removed.
    fn assert_untouched(&self, made: &Made) {
        assert_eq!(self.runtime.history(), Vec::<String>::new());
        assert_eq!(self.runtime.only("vault/app").id, made.id("app"));
        assert!(self.runtime.calls("ExecSync").is_empty(), "{:#?}", self.runtime.calls("ExecSync"));
        assert!(self.runtime.story().is_empty(), "{:#?}", self.runtime.story());
        let journal = self.state.path().join(format!("journal/{}.json", made.uid));
        assert!(!journal.exists(), "a journal of the victim was written");
    }
}

#[tokio::test]
async fn a_pod_that_claims_the_uid_of_another_is_refused_and_the_other_is_untouched() {
    for request in ["restart app", "swap app=img:v2"] {
        let fixture = Fixture::found().await;
        let victim = fixture.victim();
        fixture.claimant("shop", "evil", &victim, request);
        let _agent = fixture.agent().await;
        let status = fixture.end("shop", "evil").await;
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!("Refused"), &json!("IdentityMismatch")),
            "{status:#}"
        );
        let says = status["message"].as_str().unwrap();
        assert!(says.contains(MIRROR) && !says.contains("bank"), "{says}");
        fixture.assert_untouched(&victim);
    }
}

#[tokio::test]
async fn a_claim_takes_nothing_away_from_the_pod_that_is_claimed() {
    let fixture = Arc::new(Fixture::found().await);
    let victim = fixture.victim();
    let _agent = fixture.agent().await;
    fixture.claimant("shop", "evil", &victim, "restart app");
    fixture.end("shop", "evil").await;
    fixture.api.edit("bank", "vault", |pod| {
        pod["metadata"]["annotations"][annotation::REQUEST] = json!("restart app");
    });
    let seen = Arc::clone(&fixture);
    tokio::spawn(async move {
        seen.runtime.until("another instance", |model| model.instances("vault/app").len() > 1).await;
        seen.runtime.until("it runs", |model| !model.running("vault/app").is_empty()).await;
        let id = seen.runtime.only("vault/app").id;
        seen.api.edit("bank", "vault", |pod| show(pod, &id, 1));
    });
    let status = fixture.end("bank", "vault").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    fixture.api.remove("shop", "evil");
    fixture.api.edit("bank", "vault", |pod| {
        pod["metadata"]["annotations"][annotation::REQUEST] = json!("restart nobody");
    });
    fixture
        .api
        .until("the next answer", |store| {
            store.pod("bank", "vault").as_ref().and_then(super::status).unwrap()["phase"] == "Refused"
        })
        .await;
}

#[tokio::test]
async fn a_pod_of_the_same_name_that_claims_the_uid_of_the_one_before_is_refused() {
    let fixture = Fixture::found().await;
    let victim = fixture.victim();
    fixture.api.remove("bank", "vault");
    fixture.claimant("bank", "vault", &victim, "restart app");
    let _agent = fixture.agent().await;
    let status = fixture.end("bank", "vault").await;
    assert_eq!(
        (&status["phase"], &status["reason"]),
        (&json!("Refused"), &json!("IdentityMismatch")),
        "{status:#}"
    );
    fixture.assert_untouched(&victim);
}

#[tokio::test]
async fn a_hook_runs_no_command_in_a_pod_that_is_only_claimed() {
    let fixture = Fixture::found().await;
    fixture.runtime.exec(|_, _| Exec::ok("PASSWORD=hunter2"));
    let victim = fixture.victim();
    fixture.claimant("shop", "evil", &victim, "");
    fixture.claimant("bank", "vault-copy", &victim, "");
    let _agent = fixture.agent().await;
    for (namespace, pod) in [("shop", "evil"), ("bank", "vault-copy")] {
        fixture.exec_run(namespace, "steal", pod, None);
        let run = fixture.run_ended(namespace, "steal").await;
        assert_eq!(run["status"]["phase"], "Error", "{run:#}");
        assert!(!run.to_string().contains("hunter2"), "{run:#}");
        assert!(run.to_string().contains(MIRROR), "{run:#}");
    }
    fixture.assert_untouched(&victim);
}

#[tokio::test]
async fn a_hook_of_an_earlier_pod_of_that_name_runs_no_command() {
    let fixture = Fixture::found().await;
    let victim = fixture.victim();
    let _agent = fixture.agent().await;
    fixture.exec_run("bank", "late", "vault", Some("another-uid"));
    let run = fixture.run_ended("bank", "late").await;
    assert_eq!(run["status"]["phase"], "Error", "{run:#}");
    fixture.assert_untouched(&victim);
    // A run that the pod itself owns, and a run without an owner.
    for (run, owner) in [("own", Some(victim.uid.as_str())), ("free", None)] {
        fixture.exec_run("bank", run, "vault", owner);
        let run = fixture.run_ended("bank", run).await;
        assert_eq!(run["status"]["phase"], "Successful", "{run:#}");
    }
}

#[tokio::test]
async fn a_hook_about_a_pod_that_is_not_on_the_node_is_not_run() {
    let fixture = Fixture::found().await;
    let victim = fixture.victim();
    let _agent = fixture.agent().await;
    fixture.exec_run("shop", "elsewhere", "web-0", None);
    // The pod is on the node, but not in the namespace of the run.
    fixture.exec_run("shop", "foreign", "vault", None);
    fixture.exec_run("shop", "named", "vault", None);
    fixture.api.edit_of("hookruns", "shop", "named", |run| {
        run["spec"]["args"].as_array_mut().unwrap().push(json!({ "name": "PodNamespace", "value": "bank" }));
    });
    fixture.exec_run("shop", "unnamed", "", None);
    fixture.api.edit_of("hookruns", "shop", "unnamed", |run| run["spec"]["args"] = json!([]));
    // The watch of the pods delivers this pod a moment later.
    fixture.exec_run("bank", "early", "late", None);
    let late = fixture.runtime.put(Pod::new("bank", "late").container("app", "img:v1"));
    fixture.show_as("bank", "late", &late, |pod| pod["metadata"]["uid"] = json!(late.uid));
    assert_eq!(fixture.run_ended("bank", "early").await["status"]["phase"], "Successful");
    for (run, why) in [
        ("elsewhere", "pod shop/web-0 is not on node node-1"),
        ("foreign", "pod shop/vault is not on node"),
        ("named", "namespace shop"),
        ("unnamed", "the HookRun names no pod"),
    ] {
        let run = fixture.run_ended("shop", run).await;
        assert_eq!(run["status"]["phase"], "Error", "{run:#}");
        assert!(run["status"]["message"].as_str().unwrap().contains(why), "{run:#}");
        assert!(run["status"]["metricResults"].is_null(), "{run:#}");
    }
    assert_eq!(fixture.runtime.calls("ExecSync").len(), 1, "{:#?}", fixture.runtime.calls("ExecSync"));
    assert_eq!(fixture.runtime.only("vault/app").id, victim.id("app"));
}

#[tokio::test]
async fn a_static_pod_is_served_under_the_uid_of_its_node() {
    let fixture = Arc::new(Fixture::found().await);
    let pod = Pod::new("shop", "etcd-node-1").owner(Owner::KubeletStatic).container("app", "img:v1").grace(1);
    let made = fixture.runtime.put(pod);
    fixture.claimant("shop", "etcd-node-1", &made, "restart app");
    fixture.kubelet("etcd-node-1");
    let _agent = fixture.agent().await;
    let status = fixture.end("shop", "etcd-node-1").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    assert_eq!(status["containers"][0]["engine"], "Recreate");
    assert_eq!(fixture.attempt("etcd-node-1"), 1);
    fixture.exec_run("shop", "look", "etcd-node-1", None);
    let run = fixture.run_ended("shop", "look").await;
    assert_eq!(run["status"]["phase"], "Successful", "{run:#}");
}

#[tokio::test]
async fn a_container_that_the_spec_does_not_declare_is_refused() {
    let fixture = Fixture::found().await;
    let pod = Pod::new("shop", "job")
        .container("app", "img:v1")
        .container("setup", "img:v1")
        .container("debug", "img:v1");
    let made = fixture.runtime.put(pod);
    fixture.show_as("shop", "job", &made, |pod| {
        pod["metadata"]["uid"] = json!(made.uid);
        pod["spec"]["initContainers"] = json!([{ "name": "setup", "image": "img:v1" }]);
        pod["spec"]["ephemeralContainers"] = json!([{ "name": "debug", "image": "img:v1" }]);
    });
    let _agent = fixture.agent().await;
    for (id, container, image) in [
        ("a", "setup", None),
        ("b", "debug", None),
        ("c", "setup", Some("img:v2")),
        ("d", "debug", Some("img:v2")),
    ] {
        let mut target = json!({ "name": container });
        if let Some(image) = image {
            target["image"] = json!(image);
        }
        fixture.pod_request("job", Some(&json!({ "id": id, "containers": [target] }).to_string()));
        let status = fixture.reported("job", id, "Refused").await;
        assert_eq!(status["reason"], "UndeclaredContainer", "{status:#}");
    }
    assert!(fixture.runtime.story().is_empty(), "{:#?}", fixture.runtime.story());
}
