//! The shipped admission policies, expression by expression: the cases that the cluster tests `policy` send to a
//! real API server, evaluated on the same YAML without one.

#[path = "../../cluster/policy/cases.rs"]
#[allow(dead_code, reason = "the tests on a real API server use more of it")]
mod cases;
mod expressions;
#[path = "../../cluster/policy/hook_cases.rs"]
#[allow(dead_code, reason = "the tests on a real API server use more of it")]
mod hook_cases;
#[path = "../../cluster/policy/webhook_cases.rs"]
mod webhook_cases;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use self::cases::{OWN, Part, manifest, running};
use self::expressions::{Policies, Review};
use self::hook_cases::{Act, merge};

const AGENT: &str = "system:serviceaccount:inplace-system:inplace-agent";
const CONTROLLER: &str = "system:serviceaccount:inplace-system:inplace-controller";

#[test]
fn every_case_is_judged_as_by_an_api_server_and_every_validation_is_needed_by_one() {
    let policies = Policies::shipped();
    let mut needed: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (what, review, denied) in all() {
        let found = policies.denies(&review);
        match (&denied, found) {
            (None, None) => {}
            (Some((policy, why)), Some(denial)) => {
                let reported = &denial.message;
                assert!(
                    denial.policy == *policy && reported.contains(why),
                    "{what}: denied otherwise: {denial:?}"
                );
                needed.entry(denial.policy).or_default().insert(denial.validation);
            }
            (_, found) => panic!("{what}: expected {denied:?}, found {found:?}"),
        }
    }
    // A validation that is never the first to deny could be missing or wrong.
    let each = policies.sizes().into_iter().map(|(name, count)| (name, (0..count).collect()));
    assert_eq!(needed, each.collect());
}

/// The policies apply to these accounts, in whatever namespace they are installed.
#[test]
fn the_accounts_are_meant_in_every_namespace_and_nobody_else_is() {
    let policies = Policies::shipped();
    let deletes = |user: &str| Review {
        user: user.to_owned(),
        node: Some(OWN),
        operation: "DELETE",
        group: "",
        resource: "pods",
        subresource: "",
        old: pod(OWN, "", None),
        new: Value::Null,
    };
    for user in [AGENT, "system:serviceaccount:other:inplace-agent", "system:serviceaccount:a:inplace-agent"]
    {
        assert!(policies.denies(&deletes(user)).is_some(), "{user}");
    }
    for user in [
        CONTROLLER,
        "admin",
        "inplace-agent",
        "system:node:inplace-agent",
        "system:serviceaccount:inplace-system:inplace-agent-2",
        "system:serviceaccount:inplace-system:my-inplace-agent",
        "system:serviceaccount:inplace-agent:default",
    ] {
        assert!(policies.denies(&deletes(user)).is_none(), "{user}");
    }
}

/// A further readiness gate opens the policy for that condition alone.
#[test]
fn a_further_condition_is_allowed_by_its_name() {
    let sets = |name: &str| {
        let (old, mut new) = (pod(OWN, "restart app", None), pod(OWN, "restart app", None));
        strategic(&mut new, &json!({"status": {"conditions": [{"type": name, "status": "False"}]}}));
        of_pod("UPDATE", "status", old, new)
    };
    let policies = Policies::with_condition("KruisePodReady");
    for allowed in ["KruisePodReady", "InPlaceUpdateReady"] {
        assert!(policies.denies(&sets(allowed)).is_none(), "{allowed}");
    }
    for denied in ["Ready", "example.dev/x", "KruisePodReady2"] {
        let denial = policies.denies(&sets(denied)).unwrap();
        assert!(
            denial.message.ends_with("no condition but InPlaceUpdateReady, KruisePodReady"),
            "{}",
            denial.message
        );
    }
    assert!(Policies::shipped().denies(&sets("KruisePodReady")).is_some());
}

/// A description, the request, and the policy that denies it with part of its message.
type Judged = (String, Review, Option<(&'static str, &'static str)>);

fn all() -> Vec<Judged> {
    let mut all = pods();
    all.extend(hook_runs());
    all.extend(webhooks());
    all
}

fn pod(node: &str, request: &str, reported: Option<&str>) -> Value {
    let mut pod = manifest("web-1", node, request, reported);
    pod["status"] = running();
    pod
}

fn of_pod(operation: &'static str, subresource: &'static str, old: Value, new: Value) -> Review {
    let user = AGENT.to_owned();
    Review { user, node: Some(OWN), operation, group: "", resource: "pods", subresource, old, new }
}

fn pods() -> Vec<Judged> {
    let denied = |why: Option<&'static str>| why.map(|why| ("inplace-agent", why));
    let mut all: Vec<Judged> = Vec::new();
    for case in cases::cases() {
        let old = pod(case.node, case.request, case.note.as_deref());
        let mut new = old.clone();
        strategic(&mut new, &case.patch);
        // A write to the pod leaves its status alone, and a write to the status leaves the spec alone.
        let (subresource, foreign) = match case.part {
            Part::Pod => ("", "status"),
            Part::Status => ("status", "spec"),
        };
        new[foreign] = old[foreign].clone();
        all.push((case.what.to_owned(), of_pod("UPDATE", subresource, old, new), denied(case.denied)));
    }
    let own = || pod(OWN, "restart app", None);
    let answered = || pod(OWN, "restart app", Some("x"));
    let write = |node| Review { node, ..of_pod("UPDATE", "", own(), answered()) };
    let nothing_else = Some("changes pods and their status, and nothing else");
    for (what, review, why) in [
        ("a token of no node", write(None), Some("belongs to no node")),
        ("the neighbour's agent", write(Some("node-b")), Some("not on node node-b")),
        ("a deletion", of_pod("DELETE", "", own(), Value::Null), nothing_else),
        ("a new pod", of_pod("CREATE", "", Value::Null, own()), nothing_else),
        (
            "an eviction",
            of_pod("CREATE", "eviction", Value::Null, json!({"metadata": {"name": "web-1"}})),
            nothing_else,
        ),
        ("an exec", of_pod("CONNECT", "exec", Value::Null, json!({"command": ["sh"]})), nothing_else),
        ("an ephemeral container", of_pod("UPDATE", "ephemeralcontainers", own(), own()), nothing_else),
        ("a resize", of_pod("UPDATE", "resize", own(), own()), nothing_else),
    ] {
        all.push((what.to_owned(), review, denied(why)));
    }
    let person = Review { user: "admin".to_owned(), ..of_pod("DELETE", "", own(), Value::Null) };
    all.push(("a person's deletion".to_owned(), person, None));
    all
}

fn hook_runs() -> Vec<Judged> {
    let review = |operation, subresource, old: Value, new: Value| Review {
        group: "tkex.tencent.com",
        resource: "hookruns",
        ..of_pod(operation, subresource, old, new)
    };
    let find =
        |name: &str| hook_cases::existing().into_iter().find(|run| run["metadata"]["name"] == name).unwrap();
    let mut all: Vec<Judged> = Vec::new();
    for case in hook_cases::cases() {
        let changed = |name: &str, change: &Value| {
            let mut run = find(name);
            merge(&mut run, change);
            (find(name), run)
        };
        let review = match case.act {
            Act::Create(run) => review("CREATE", "", Value::Null, run),
            Act::Delete(name) => review("DELETE", "", find(name), Value::Null),
            Act::Patch(name, change) => {
                let (old, new) = changed(name, &change);
                review("UPDATE", "", old, new)
            }
            Act::Status(name, change) => {
                let (old, new) = changed(name, &change);
                review("UPDATE", "status", old, new)
            }
        };
        all.push((case.what.to_owned(), review, case.denied.map(|why| ("inplace-agent-hooks", why))));
    }
    let of_no_node = Review { node: None, ..review("DELETE", "", find("drain"), Value::Null) };
    let why = ("inplace-agent-hooks", "belongs to no node");
    all.push(("a HookRun by a token of no node".to_owned(), of_no_node, Some(why)));
    all
}

fn webhooks() -> Vec<Judged> {
    let text = std::fs::read_to_string("daemonset/base/webhook.yaml").unwrap();
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let shipped =
        objects.into_iter().find(|object| object["kind"] == "ValidatingWebhookConfiguration").unwrap();
    let review = |operation, old: Value, new: Value| Review {
        user: CONTROLLER.to_owned(),
        node: None,
        operation,
        group: "admissionregistration.k8s.io",
        resource: "validatingwebhookconfigurations",
        subresource: "",
        old,
        new,
    };
    let denied = |why| ("inplace-controller-webhooks", why);
    let mut all: Vec<Judged> = Vec::new();
    for case in webhook_cases::cases() {
        let mut new = shipped.clone();
        let (parent, last) = case.field.rsplit_once('/').unwrap();
        match new.pointer_mut(case.field) {
            Some(field) => *field = case.value,
            None => new.pointer_mut(parent).unwrap()[last] = case.value,
        }
        all.push((case.what.to_owned(), review("UPDATE", shipped.clone(), new), case.denied.map(denied)));
    }
    let neither = Some(denied("neither makes nor deletes any"));
    all.push(("no configuration".to_owned(), review("DELETE", shipped.clone(), Value::Null), neither));
    all.push(("another configuration".to_owned(), review("CREATE", Value::Null, shipped), neither));
    all
}

/// Strategic merge patch, as far as the cases use it.
fn strategic(object: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().unwrap() {
        let by = match key.as_str() {
            "containers" | "initContainers" => "name",
            "conditions" => "type",
            "podIPs" => "ip",
            "ownerReferences" => "uid",
            _ => "",
        };
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(key)),
            Value::Array(items) if !by.is_empty() => {
                let list = &mut object[key.as_str()];
                if !list.is_array() {
                    *list = json!([]);
                }
                for item in items {
                    merge_item(list.as_array_mut().unwrap(), by, item);
                }
            }
            Value::Object(_) => {
                let below = &mut object[key.as_str()];
                if !below.is_object() {
                    *below = json!({});
                }
                strategic(below, value);
            }
            value => object[key.as_str()] = value.clone(),
        }
    }
}

fn merge_item(list: &mut Vec<Value>, by: &str, item: &Value) {
    let place = list.iter().position(|known| known[by] == item[by]);
    match (place, item["$patch"] == "delete") {
        (Some(place), true) => drop(list.remove(place)),
        (Some(place), false) => strategic(&mut list[place], item),
        (None, true) => {}
        (None, false) => list.push(item.clone()),
    }
}
