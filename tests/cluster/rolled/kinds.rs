//! The other kinds of targets, and pods that are selected by labels alone.

use inplace::api::workload_kind::Kind;
use serde_json::{Value, json};

use super::{Fixture, Load};
use crate::support::wait::eventually;

/// Pods of each workload.
const COUNT: usize = 2;

pub(super) fn an_owner_has_nothing_to_do(fixture: &Fixture<'_>, kind: &str) {
    let load = Load { fixture, kind, name: &kind.to_lowercase() };
    load.apply(COUNT, false);
    goes_through(&load, "readyReplicas");
}

pub(super) fn a_job_goes_on(fixture: &Fixture<'_>, policy: &str) {
    let load = Load { fixture, kind: "Job", name: &policy.to_lowercase() };
    let mut template = load.template(false);
    template["spec"]["restartPolicy"] = policy.into();
    let spec =
        json!({"parallelism": COUNT, "completions": COUNT, "backoffLimit": COUNT, "template": template});
    load.make(COUNT, &spec);
    if policy == "OnFailure" {
        is_spared(&load);
    }
    goes_through(&load, "active");
}

/// The Job would count this many restarts as failures and give up, so the rollout fails and touches no pod. Then
/// the test sets the Job's backoffLimit to a value that is large enough.
fn is_spared(load: &Load<'_>) {
    let (before, target) = (load.pods(), format!("job/{}", load.name));
    let output = load.fixture.inplace(&["restart", &target, "--wait=3m"]).output().unwrap();
    let reported = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{reported}");
    let bears = COUNT + 1;
    assert!(reported.contains(&format!("set backoffLimit to at least {bears}")), "{reported}");
    load.same_but_restarted(&before, 0);
    let patch = json!({"spec": {"backoffLimit": bears}}).to_string();
    load.fixture.cluster.kubectl(&["patch", "job", load.name, "--type=merge", "-p", &patch]);
}

/// The workload is restarted, and its owner, which counts its pods in `field`, has the same spec and counts as
/// before.
fn goes_through(load: &Load<'_>, field: &str) {
    let (before, owner) = (load.pods(), counted(load, field));
    let target = format!("{}/{}", Kind::read(load.kind).unwrap().short, load.name);
    load.fixture.through(&["restart", &target, "--max-unavailable", "1"], COUNT);
    load.same_but_restarted(&before, 1);
    let after = counted(load, field);
    assert_eq!(after["spec"], owner["spec"]);
    let status = &after["status"];
    assert!(status["failed"].is_null() && status["succeeded"].is_null(), "{status:#}");
}

/// Waits until the owner counts all pods, and returns it.
fn counted(load: &Load<'_>, field: &str) -> Value {
    let kind = Kind::read(load.kind).unwrap();
    let path = format!("/apis/{}/namespaces/default/{}/{}", kind.api_version(), kind.plural(), load.name);
    eventually(&format!("{} counts its pods", load.name), || {
        let owner = load.fixture.cluster.read(&path);
        (owner["status"][field] == COUNT).then_some(owner)
    })
}

pub(super) fn labels_mean_pods_of_any_owner(fixture: &Fixture<'_>) {
    let loads =
        [("Deployment", "motley"), ("StatefulSet", "mixed")].map(|(kind, name)| Load { fixture, kind, name });
    for load in &loads {
        load.apply(COUNT, false);
    }
    fixture.cluster.kubectl(&["label", "pods", "-l", "app in (motley, mixed)", "crew=all"]);
    let before = loads.each_ref().map(Load::pods);
    let image = format!("app={}", fixture.cluster.image("app:v2"));
    let refused = fixture.inplace(&["swap", "-l", "crew=all", &image, "--wait=3m"]).output().unwrap();
    let reported = String::from_utf8(refused.stdout).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{reported}");
    assert!(reported.contains("Failed: the template of ReplicaSet/motley-"), "{reported}");
    fixture.through(&["restart", "-l", "crew=all", "--max-unavailable", "1"], 2 * COUNT);
    for (load, before) in loads.iter().zip(&before) {
        load.same_but_restarted(before, 1);
    }
}

pub(super) fn a_pod_that_cannot_be_scheduled_ends_nothing(fixture: &Fixture<'_>) {
    let load = Load { fixture, kind: "Deployment", name: "placed" };
    load.apply(COUNT, false);
    let mut template = Load { name: "nowhere", ..load }.template(false);
    template["spec"]["nodeSelector"] = json!({"nowhere": "true"});
    let spec = json!({"replicas": 1, "selector": {"matchLabels": {"app": "nowhere"}}, "template": template});
    fixture.cluster.apply(
        &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "nowhere", "namespace": "default"},
            "spec": spec})
        .to_string(),
    );
    let labelled = eventually("the pod that cannot be scheduled is there", || {
        let nowhere = Load { name: "nowhere", ..load };
        nowhere.pods().into_keys().next()
    });
    let before = load.pods();
    fixture.cluster.kubectl(&["label", "pods", "-l", "app in (placed, nowhere)", "crew=some"]);
    let rollout = fixture.begin(&["restart", "-l", "crew=some", "--max-unavailable", "2"]);
    let status = eventually("it waits for the pod without a node", || {
        let status = fixture.rollout(&rollout)["status"].clone();
        (status["reason"] == "PodsUnreachable" && status["done"] == COUNT).then_some(status)
    });
    let message = status["message"].as_str().unwrap();
    assert!(message.contains(&format!("{labelled} (not scheduled to a node)")), "{message}");
    assert!(status["failed"].is_null() || status["failed"] == 0, "{status:#}");
    load.same_but_restarted(&before, 1);
    // When the owner is deleted, the rest of the rollout is complete.
    fixture.cluster.kubectl(&["delete", "deployment", "nowhere", "--timeout=180s"]);
    let wait = |condition: &str| {
        let (condition, name) = (format!("--for=condition={condition}"), format!("ipr/{rollout}"));
        fixture.cluster.kubectl(&["wait", condition.as_str(), name.as_str(), "--timeout=180s"])
    };
    wait("Ready");
    assert_eq!(fixture.rollout(&rollout)["status"]["phase"], "Succeeded");
}
