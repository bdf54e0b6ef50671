//! The takeover from a bk-bcs operator: workloads, pods and `ControllerRevision`s as that operator leaves them, with an update
//! in place under way, and then our controller. An update whose image is missing is taken back. No pod is created again and no
//! container restarted that need not be.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Fixture, condition, object, template};
use crate::cluster::Cluster;

/// The workloads that are left behind, each with its pods.
pub(super) struct Left<'a> {
    kept: Fixture<'a>,
    moving: Fixture<'a>,
    undone: Fixture<'a>,
    before: BTreeMap<String, Value>,
}

/// Installs what a bk-bcs operator leaves. No controller may run yet.
pub(super) fn leave(cluster: &Cluster) -> Left<'_> {
    let kept = Fixture { cluster, kind: "gamedeployment", name: "kept" };
    let moving = Fixture { cluster, kind: "gamedeployment", name: "moving" };
    let undone = Fixture { cluster, kind: "gamedeployment", name: "undone" };
    // As a user writes it: with quantities and empty fields that a Go program writes in another way.
    let mut written = template("kept", &cluster.named("lab/app:v1"));
    written["spec"]["hostNetwork"] = json!(false);
    written["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1m", "memory": "1024Ki"}});
    written["spec"]["containers"][0]["env"] = json!([{"name": "EMPTY", "value": ""}]);
    kept.apply(&object("GameDeployment", "kept", &json!({"replicas": 2, "template": written})));
    let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 2});
    let new = template("moving", &cluster.named("lab/app:v2"));
    let spec = json!({"replicas": 3, "updateStrategy": strategy, "template": new});
    moving.apply(&object("GameDeployment", "moving", &spec));

    let mut recorded = template("kept", &cluster.named("lab/app:v1"));
    recorded["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1m", "memory": "1Mi"}});
    recorded["spec"]["containers"][0]["env"] = json!([{"name": "EMPTY"}]);
    revision(&kept, "kept-6d5f9c7b4d", 1, recorded.clone());
    for instance in ["aaaaa", "bbbbb"] {
        pod(&kept, instance, "kept-6d5f9c7b4d", &recorded);
    }
    let mut old = template("moving", &cluster.named("lab/app:v1"));
    let mut new = new;
    for template in [&mut old, &mut new] {
        template["spec"]["containers"][0]["resources"] = json!({});
    }
    revision(&moving, "moving-58d4f6c9b7", 1, old.clone());
    revision(&moving, "moving-7f8c5d6b9f", 2, new);
    for instance in ["graced", "written", "untouched"] {
        pod(&moving, instance, "moving-58d4f6c9b7", &old);
    }
    let (old, new) = ("undone-58d4f6c9b7", "undone-7f8c5d6b9f");
    let at = |image: &str| template("undone", &cluster.named(image));
    undone.apply(&object(
        "GameDeployment",
        "undone",
        &json!({"replicas": 1, "template": at(MISSING),
            "updateStrategy": {"type": "InplaceUpdate", "maxUnavailable": 1}}),
    ));
    revision(&undone, old, 1, at("lab/app:v1"));
    revision(&undone, new, 2, at(MISSING));
    pod(&undone, "graced", old, &at("lab/app:v1"));
    for (fixture, many) in [(&kept, 2), (&moving, 3), (&undone, 1)] {
        fixture.wait("the pods are Ready", || {
            let pods = fixture.pods();
            (pods.len() == many && pods.values().all(|pod| is(pod, "Ready"))).then_some(())
        });
    }
    // The update of two pods is begun: the grace period of one has not ended, the other one's kubelet restarts it.
    begin(&moving, "moving-graced", "lab/app:v2", true);
    begin(&moving, "moving-written", "lab/app:v2", false);
    begin(&undone, "undone-graced", MISSING, true);
    moving.wait("the kubelet has restarted the container", || {
        (moving.pods()["moving-written"]["status"]["containerStatuses"][0]["restartCount"] == 1).then_some(())
    });
    let mut before = kept.pods();
    before.extend(moving.pods());
    before.extend(undone.pods());
    assert!(!is(&before["moving-graced"], "Ready") && !is(&before["moving-written"], "Ready"));
    let checked = cluster.inplace(&["migrate", "check"]).output().unwrap();
    let text = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.success(),
        "nothing is to be resolved: {text}{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    for line in [
        "default/GameDeployment/kept\n  nothing changes\n",
        "pod moving-graced: the images of app are not written yet",
        "pod moving-written: its update is complete",
        "1 of 3 pods are not at revision moving-7f8c5d6b9f",
        "pod undone-graced: the images of app are not written yet",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    Left { kept, moving, undone, before }
}

impl Left<'_> {
    /// A controller of this project runs now, and agents do.
    pub(super) fn are_taken_over(&self) {
        self.kept.until("its pods are at the revision of the template", |status| {
            status["updatedReadyReplicas"] == 2 && condition(status, "Progressing")["reason"] == "Complete"
        });
        self.moving.until("the update is finished", |status| {
            status["updatedReadyReplicas"] == 3 && condition(status, "Progressing")["reason"] == "Complete"
        });
        self.undone.until("the image cannot be pulled", |status| {
            condition(status, "UpdateFailed")["status"] == "True"
        });
        self.undone.wait("the pod takes traffic with its old image", || {
            is(&self.undone.pods()["undone-graced"], "Ready").then_some(())
        });
        self.undone.image("lab/app:v1");
        self.undone.until("the update is taken back", |status| {
            status["updatedReadyReplicas"] == 1 && condition(status, "Progressing")["reason"] == "Complete"
        });
        let mut after = self.kept.pods();
        after.extend(self.moving.pods());
        after.extend(self.undone.pods());
        let restarts = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap();
        assert_eq!(after.keys().collect::<Vec<_>>(), self.before.keys().collect::<Vec<_>>());
        for (name, pod) in &after {
            let before = &self.before[name];
            assert_eq!(pod["metadata"]["uid"], before["metadata"]["uid"], "{name}");
            // Those that still had the old image have been updated, once.
            let updated = ["moving-graced", "moving-untouched"].contains(&name.as_str());
            assert_eq!(restarts(pod), restarts(before) + i64::from(updated), "{pod:#}");
        }
        let grace = &after["moving-graced"]["metadata"]["annotations"]["inplace-update-grace"];
        assert!(grace.is_null(), "nobody writes the images later: {grace}");
        let revisions =
            self.kept.cluster.kubectl(&["get", "controllerrevisions", "-l", "app=kept", "-o", "name"]);
        assert_eq!(revisions.lines().count(), 1, "the template is no new revision: {revisions}");
        self.another_controller_is_left_alone();
        self.undone.delete();
        self.moving.delete();
        self.kept.delete();
    }

    /// Another client writes the status, as a bk-bcs operator does that still runs.
    fn another_controller_is_left_alone(&self) {
        let cluster = self.kept.cluster;
        let mut object = self.kept.get();
        object["status"]["readyReplicas"] = json!(7);
        let path = "/apis/tkex.tencent.com/v1alpha1/namespaces/default/gamedeployments/kept/status";
        let file = cluster.node().dir.join("kept-status.json");
        std::fs::write(&file, object.to_string()).unwrap();
        cluster.kubectl(&["replace", "--raw", path, "-f", file.to_str().unwrap()]);
        cluster.kubectl(&["scale", "gamedeployment/kept", "--replicas=1"]);
        self.kept.wait("it is reported", || {
            let events = cluster.read("/api/v1/namespaces/default/events");
            events.to_string().contains("AnotherController").then_some(())
        });
        assert_eq!(self.kept.pods().len(), 2, "nothing is done while another controller is at work");
        assert_eq!(self.kept.get()["status"]["readyReplicas"], 7, "its status is left alone, too");
    }
}

/// A `ControllerRevision` as a bk-bcs operator writes it.
fn revision(fixture: &Fixture<'_>, name: &str, number: u32, mut template: Value) {
    template["metadata"]["creationTimestamp"] = Value::Null;
    template["$patch"] = json!("replace");
    fixture.apply(&json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": fixture.name}, "ownerReferences": [owner(fixture)]},
        "revision": number, "data": {"spec": {"template": template}},
    }));
}

/// A pod as a bk-bcs operator creates it.
fn pod(fixture: &Fixture<'_>, instance: &str, revision: &str, template: &Value) {
    let mut spec = template["spec"].clone();
    let gate = json!({"conditionType": "InPlaceUpdateReady"});
    spec["readinessGates"] = json!([gate]);
    let name = format!("{}-{instance}", fixture.name);
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner(fixture)],
            "labels": {"app": fixture.name, "controller-revision-hash": revision,
                "tkex.bkbcs.tencent.com/gamedeployment-instance-id": instance}},
        "spec": spec,
    }));
}

fn owner(fixture: &Fixture<'_>) -> Value {
    json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "GameDeployment", "name": fixture.name,
        "uid": fixture.get()["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true})
}

/// An image that no registry has.
const MISSING: &str = "lab/app:missing";

/// Begins an update in place of a pod to an image as a bk-bcs operator does: it closes the gate, moves the label and writes its
/// state; the image at once, or after a grace period that has not ended.
fn begin(fixture: &Fixture<'_>, name: &str, image: &str, grace: bool) {
    let cluster = fixture.cluster;
    let image = cluster.named(image);
    let mut pod = fixture.pods().remove(name).unwrap();
    let image_id = pod["status"]["containerStatuses"][0]["imageID"].clone();
    let began = pod["status"]["conditions"][0]["lastTransitionTime"].clone();
    let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
    let gate = conditions.iter_mut().find(|one| one["type"] == "InPlaceUpdateReady").unwrap();
    (gate["status"], gate["reason"]) = (json!("False"), json!("StartInPlaceUpdate"));
    // The kubelet writes the status too.
    pod["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let path = format!("/api/v1/namespaces/default/pods/{name}/status");
    let file = cluster.node().dir.join(format!("{name}.json"));
    std::fs::write(&file, pod.to_string()).unwrap();
    cluster.kubectl(&["replace", "--raw", &path, "-f", file.to_str().unwrap()]);
    fixture.wait("the pod is out of traffic", || (!is(&fixture.pods()[name], "Ready")).then_some(()));

    let revision = format!("{}-7f8c5d6b9f", fixture.name);
    let state = json!({"revision": revision, "updateTimestamp": began, "lastContainerStatuses": {"app": {"imageID": image_id}}});
    let mut changes = json!({"metadata": {"labels": {"controller-revision-hash": revision},
        "annotations": {"inplace-update-state": state.to_string()}}});
    if grace {
        let grace = json!({"revision": revision, "containerImages": {"app": image}, "graceSeconds": 3600});
        changes["metadata"]["annotations"]["inplace-update-grace"] = json!(grace.to_string());
    } else {
        changes["spec"] = json!({"containers": [{"name": "app", "image": image}]});
    }
    cluster.kubectl(&["patch", "pod", name, "--type=strategic", "-p", &changes.to_string()]);
}

fn is(pod: &Value, kind: &str) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|one| one["type"] == kind && one["status"] == "True")
}
