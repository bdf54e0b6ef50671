//! The changes to HookRuns by an agent that the admission policy must allow or deny: the same cases for a real
//! API server and for the expressions alone (`hermetic`).

use serde_json::{Value, json};

use super::cases::OWN;

/// The change, and the run of [`existing`] that it is applied to.
pub(super) enum Act {
    Create(Value),
    /// A JSON merge patch.
    Patch(&'static str, Value),
    Status(&'static str, Value),
    Delete(&'static str),
}

pub(super) struct HookCase {
    pub(super) what: &'static str,
    pub(super) act: Act,
    /// A part of the message; `None`: the change is allowed.
    pub(super) denied: Option<&'static str>,
}

/// The name of the object that [`of_operation`] makes.
pub(super) const OPERATION: &str = "pre-inplace-hook-web-1-1a2b3c4d-drain";
/// The name of an existing HookRun of an operation.
const ENDED: &str = "post-inplace-hook-web-1-1a2b3c4d-check";

/// The HookRuns that exist before: a user's run of this node, which the agent runs; another one without a runner;
/// one of the other node; one of an operation.
pub(super) fn existing() -> Vec<Value> {
    let mut drain = run("drain", &json!({"inplace.dev/node": OWN}));
    let meta = &mut drain["metadata"];
    meta["finalizers"] = json!(["example.dev/held"]);
    meta["annotations"] = json!({"team": "a", "inplace.dev/runner": "node/node-a"});
    meta["ownerReferences"] = json!([pod("web-1")]);
    let labels =
        json!({"inplace.dev/operation": "r1", "inplace.dev/node": OWN, "hookrun-type": "post-inplace-step"});
    let fresh = run("fresh", &json!({"inplace.dev/node": OWN}));
    vec![drain, fresh, run("other", &json!({"inplace.dev/node": "node-b"})), run(ENDED, &labels)]
}

pub(super) fn cases() -> Vec<HookCase> {
    let mut all = writes();
    all.extend(creations());
    all
}

fn writes() -> Vec<HookCase> {
    let case = |what, act, denied| HookCase { what, act, denied };
    let patch = |what, change, why| case(what, Act::Patch("drain", change), why);
    let note = |key: &str| json!({"metadata": {"annotations": {key: "true"}}});
    let runner = |runner: Option<&str>| json!({"metadata": {"annotations": {"inplace.dev/runner": runner}}});
    let label = |key: &str, value: &str| json!({"metadata": {"labels": {key: value}}});
    let status = || json!({"status": {"phase": "Running"}});
    let owners = |owners: Value| json!({"metadata": {"ownerReferences": owners}});
    let (foreign, frozen) = (Some("not of node node-a"), Some("no owners and finalizers"));
    let (labels, notes) = (Some("its labels"), Some("no annotation of a HookRun"));
    vec![
        patch("let go", runner(None), None),
        case("take", Act::Patch("fresh", runner(Some("node/node-a"))), None),
        case("write", Act::Status("drain", status()), None),
        case("write its own", Act::Status(ENDED, status()), None),
        case("delete its own", Act::Delete(ENDED), None),
        patch("approve", note("inplace.dev/approve"), Some("approved by hand")),
        patch("end", json!({"spec": {"terminate": true}}), Some("what a HookRun measures")),
        patch("give away", label("inplace.dev/node", "node-b"), foreign),
        patch("adopt", label("inplace.dev/operation", "r1"), labels),
        patch("guard", label("inplace.dev/delete-guard", "finish"), labels),
        patch("hand over", runner(Some("node/node-b")), Some("no other runner")),
        case("hand to another", Act::Patch("fresh", runner(Some("node/node-b"))), Some("no other runner")),
        patch("another annotation", note("a"), notes),
        patch("no annotation", json!({"metadata": {"annotations": {"team": null}}}), notes),
        patch("another owner", owners(json!([pod("db-0")])), frozen),
        patch("no owner", owners(Value::Null), frozen),
        patch("no finalizer", json!({"metadata": {"finalizers": null}}), frozen),
        case("take another node's", Act::Patch("other", runner(Some("node/node-a"))), foreign),
        case("write another node's", Act::Status("other", status()), foreign),
        case("delete another node's", Act::Delete("other"), foreign),
        case("delete somebody's", Act::Delete("drain"), Some("own operations")),
    ]
}

/// Every HookRun that an agent may not create, by its difference from one of its operation.
fn creations() -> Vec<HookCase> {
    let create = |what, object, denied| HookCase { what, act: Act::Create(object), denied };
    let meta = |what, change: Value, why| create(what, of_operation(&json!({"metadata": change})), Some(why));
    let (labels, owner, name) = ("three labels alone", "one owner", "name of the HookRun");
    let of_controller =
        json!({"apiVersion": "v1", "kind": "Pod", "name": "web-1", "uid": "u", "controller": true});
    let of_set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "u"});
    let finish = json!({"labels": {"inplace.dev/delete-guard": "finish"}, "annotations": {"inplace.dev/approve": "true"}});
    // A long pod name, as far as the agent writes it.
    let long = "a".repeat(120);
    let long_name = format!("pre-inplace-hook-{}-1a2b3c4d-drain", &long[..100]);
    let long = json!({"metadata": {"name": long_name, "ownerReferences": [pod(&long)]}});
    let other_node = json!({"inplace.dev/operation": "r1", "inplace.dev/node": "node-b"});
    vec![
        create("its operation's", of_operation(&json!({})), None),
        create("its operation's, of a long name", of_operation(&long), None),
        create("another node's", run("other-node", &other_node), Some("not of node node-a")),
        create("of no operation", run("made", &json!({"inplace.dev/node": OWN})), Some("own operations")),
        meta("a deletion to be finished, approved", finish, labels),
        meta("another label", json!({"labels": {"a": "b"}}), labels),
        meta("another type", json!({"labels": {"hookrun-type": "pre-delete-step"}}), labels),
        meta("no type", json!({"labels": {"hookrun-type": null}}), labels),
        meta("approved by hand", json!({"annotations": {"inplace.dev/approve": "true"}}), labels),
        meta("a finalizer", json!({"finalizers": ["example.dev/held"]}), labels),
        meta("no owner", json!({"ownerReferences": null}), owner),
        meta("two owners", json!({"ownerReferences": [pod("web-1"), pod("web-2")]}), owner),
        meta("an owner that is no pod", json!({"ownerReferences": [of_set]}), owner),
        meta("an owner that controls it", json!({"ownerReferences": [of_controller]}), owner),
        meta("the name of another pod", json!({"ownerReferences": [pod("db-0")]}), name),
        meta("the other moment", json!({"labels": {"hookrun-type": "post-inplace-step"}}), name),
        create(
            "one that has ended",
            of_operation(&json!({"spec": {"terminate": true}})),
            Some("that has ended"),
        ),
    ]
}

/// A HookRun as the agent creates it, with a change.
pub(super) fn of_operation(change: &Value) -> Value {
    let labels =
        json!({"inplace.dev/operation": "r1", "inplace.dev/node": OWN, "hookrun-type": "pre-inplace-step"});
    let mut object = run(OPERATION, &labels);
    object["metadata"]["ownerReferences"] = json!([pod("web-1")]);
    merge(&mut object, change);
    object
}

/// An owner reference to a pod.
fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "u"})
}

/// Applies a JSON merge patch.
pub(super) fn merge(object: &mut Value, change: &Value) {
    for (key, value) in change.as_object().unwrap() {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(key)),
            Value::Object(_) => {
                let below = &mut object[key.as_str()];
                if !below.is_object() {
                    *below = json!({});
                }
                merge(below, value);
            }
            value => object[key.as_str()] = value.clone(),
        }
    }
}

fn run(name: &str, labels: &Value) -> Value {
    let web = json!({"url": "http://127.0.0.1:1", "jsonPath": "{$.age}"});
    json!({
        "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
        "metadata": {"name": name, "namespace": "shop", "labels": labels},
        "spec": {"metrics": [{"name": "m", "provider": {"web": web}}]},
    })
}
