//! HookRuns under the policy: those of the agent's own node, and of them only what is its own.

use std::time::Duration;

use inplace::api::hook_run::HookRun;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::world::{NAMESPACE, OWN, World};

pub(super) async fn only_of_its_own_node(world: &World<'_>, agent: &Client) {
    let own = Api::<HookRun>::namespaced(agent.clone(), NAMESPACE);
    let people = Api::<HookRun>::namespaced(world.server.admin().await, NAMESPACE);
    let make = PostParams::default();
    let how = PatchParams::default();
    // The definition of the kind takes a moment, and the policy another one.
    let end = Instant::now() + Duration::from_secs(60);
    let stranger = run("stranger", &json!({"inplace.dev/operation": "r1", "inplace.dev/node": "node-b"}));
    while !denied(own.create(&make, &stranger).await).is_some_and(|why| why.contains("not of node node-a")) {
        people.delete("stranger", &DeleteParams::default()).await.ok();
        assert!(Instant::now() < end, "the policy does not come into force");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Its operation's, from the beginning to the end.
    own.create(&make, &of_operation(&json!({}))).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Running"}}));
    own.patch_status(OPERATION, &how, &status).await.unwrap();
    own.delete(OPERATION, &DeleteParams::default()).await.unwrap();
    creates_what_an_operation_needs_alone(&own).await;
    // Somebody else's that it runs.
    let mut drain = run("drain", &json!({"inplace.dev/node": OWN}));
    drain.metadata.finalizers = Some(vec!["example.dev/held".to_owned()]);
    drain.metadata.annotations = Some([("team".to_owned(), "a".to_owned())].into());
    drain.metadata.owner_references = Some(vec![serde_json::from_value(pod("web-1")).unwrap()]);
    people.create(&make, &drain).await.unwrap();
    people.create(&make, &run("other", &json!({"inplace.dev/node": "node-b"}))).await.unwrap();
    let note = |key: &str| json!({"metadata": {"annotations": {key: "true"}}});
    let runner = |runner: Option<&str>| json!({"metadata": {"annotations": {"inplace.dev/runner": runner}}});
    let taken = Patch::Merge(runner(Some("node/node-a")));
    own.patch("drain", &how, &taken).await.unwrap();
    own.patch_status("drain", &how, &status).await.unwrap();
    for (what, change, why) in [
        ("approve", note("inplace.dev/approve"), "approved by hand"),
        ("end", json!({"spec": {"terminate": true}}), "what a HookRun measures"),
        ("give away", json!({"metadata": {"labels": {"inplace.dev/node": "node-b"}}}), "not of node node-a"),
        ("adopt", json!({"metadata": {"labels": {"inplace.dev/operation": "r1"}}}), "its labels"),
        ("guard", json!({"metadata": {"labels": {"inplace.dev/delete-guard": "finish"}}}), "its labels"),
        ("hand over", runner(Some("node/node-b")), "no other runner"),
        ("another annotation", note("a"), "no annotation of a HookRun"),
        ("no annotation", json!({"metadata": {"annotations": {"team": null}}}), "no annotation of a HookRun"),
        (
            "another owner",
            json!({"metadata": {"ownerReferences": [pod("db-0")]}}),
            "no owners and finalizers",
        ),
        ("no owner", json!({"metadata": {"ownerReferences": null}}), "no owners and finalizers"),
        ("no finalizer", json!({"metadata": {"finalizers": null}}), "no owners and finalizers"),
    ] {
        let done = own.patch("drain", &how, &Patch::Merge(change)).await;
        assert!(denied(done).is_some_and(|told| told.contains(why)), "{what}");
    }
    own.patch("drain", &how, &Patch::Merge(runner(None))).await.unwrap();
    for (what, done) in [
        ("take", own.patch("other", &how, &taken).await),
        ("write", own.patch_status("other", &how, &status).await),
    ] {
        assert!(denied(done).is_some_and(|told| told.contains("not of node node-a")), "{what}");
    }
    let done = own.create(&make, &run("made", &json!({"inplace.dev/node": OWN}))).await;
    assert!(denied(done).is_some_and(|told| told.contains("own operations")), "make");
    let done = own.delete("drain", &DeleteParams::default()).await;
    assert!(denied(done).is_some_and(|told| told.contains("own operations")), "delete");
}

/// Every HookRun that an agent may not create, by what differs from one of its operation.
async fn creates_what_an_operation_needs_alone(own: &Api<HookRun>) {
    let try_it = PostParams { dry_run: true, ..PostParams::default() };
    let meta = |change: Value| json!({"metadata": change});
    let (labels, owner, name) = ("three labels alone", "one owner", "name of the HookRun");
    let of_controller =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "web-1", "uid": "u", "controller": true});
    let of_set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u"});
    let finish = json!({"labels": {"inplace.dev/delete-guard": "finish"}, "annotations": {"inplace.dev/approve": "true"}});
    for (what, change, why) in [
        ("a deletion to be finished, approved", meta(finish), labels),
        ("another label", meta(json!({"labels": {"a": "b"}})), labels),
        ("another type", meta(json!({"labels": {"hookrun-type": "pre-delete-step"}})), labels),
        ("no type", meta(json!({"labels": {"hookrun-type": null}})), labels),
        ("approved by hand", meta(json!({"annotations": {"inplace.dev/approve": "true"}})), labels),
        ("a finalizer", meta(json!({"finalizers": ["example.dev/held"]})), labels),
        ("no owner", meta(json!({"ownerReferences": null})), owner),
        ("two owners", meta(json!({"ownerReferences": [pod("web-1"), pod("web-2")]})), owner),
        ("an owner that is no pod", meta(json!({"ownerReferences": [of_set]})), owner),
        ("an owner that controls it", meta(json!({"ownerReferences": [of_controller]})), owner),
        ("the name of another pod", meta(json!({"ownerReferences": [pod("db-0")]})), name),
        ("the other moment", meta(json!({"labels": {"hookrun-type": "post-inplace-step"}})), name),
        ("one that has ended", json!({"spec": {"terminate": true}}), "that has ended"),
    ] {
        let told = denied(own.create(&try_it, &of_operation(&change)).await);
        assert!(told.as_ref().is_some_and(|told| told.contains(why)), "{what}: {told:?}");
    }
    // Of a long name as much as the agent writes.
    let long = "a".repeat(120);
    let name = format!("pre-inplace-hook-{}-1a2b3c4d-drain", &long[..100]);
    let change = meta(json!({"name": name, "ownerReferences": [pod(&long)]}));
    own.create(&try_it, &of_operation(&change)).await.unwrap();
}

/// The name of what [`of_operation`] makes.
const OPERATION: &str = "pre-inplace-hook-web-1-1a2b3c4d-drain";

/// A HookRun as the agent creates it, with a change.
fn of_operation(change: &Value) -> HookRun {
    let labels =
        json!({"inplace.dev/operation": "r1", "inplace.dev/node": OWN, "hookrun-type": "pre-inplace-step"});
    let mut object = serde_json::to_value(run(OPERATION, &labels)).unwrap();
    object["metadata"]["ownerReferences"] = json!([pod("web-1")]);
    merge(&mut object, change);
    serde_json::from_value(object).unwrap()
}

/// A pod as an owner.
fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u"})
}

/// JSON merge patch.
fn merge(object: &mut Value, change: &Value) {
    for (key, value) in change.as_object().unwrap() {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(key)),
            Value::Object(_) if object[key.as_str()].is_object() => merge(&mut object[key.as_str()], value),
            value => object[key.as_str()] = value.clone(),
        }
    }
}

/// Why the policy said no.
fn denied<T>(done: Result<T, Error>) -> Option<String> {
    match done {
        Err(Error::Api(status)) if status.message.contains("inplace-agent-hooks") => {
            Some(status.message.clone())
        }
        _ => None,
    }
}

fn run(name: &str, labels: &Value) -> HookRun {
    let web = json!({"url": "http://127.0.0.1:1", "jsonPath": "{$.age}"});
    serde_json::from_value(json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"metrics": [{"name": "m", "provider": {"web": web}}]},
    }))
    .unwrap()
}
