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
    let operation = json!({"inplace.dev/operation": "r1", "inplace.dev/node": OWN});
    // The definition of the kind takes a moment, and the policy another one.
    let end = Instant::now() + Duration::from_secs(60);
    let stranger = run("stranger", &json!({"inplace.dev/operation": "r1", "inplace.dev/node": "node-b"}));
    while !denied(own.create(&make, &stranger).await).is_some_and(|why| why.contains("not of node node-a")) {
        people.delete("stranger", &DeleteParams::default()).await.ok();
        assert!(Instant::now() < end, "the policy does not come into force");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Its operation's, from the beginning to the end.
    own.create(&make, &run("operation", &operation)).await.unwrap();
    let status = Patch::Merge(json!({"status": {"phase": "Running"}}));
    own.patch_status("operation", &how, &status).await.unwrap();
    own.delete("operation", &DeleteParams::default()).await.unwrap();
    // Somebody else's that it runs.
    people.create(&make, &run("drain", &json!({"inplace.dev/node": OWN}))).await.unwrap();
    people.create(&make, &run("other", &json!({"inplace.dev/node": "node-b"}))).await.unwrap();
    let note = |key: &str| json!({"metadata": {"annotations": {key: "true"}}});
    let taken = Patch::Merge(note("inplace.dev/runner"));
    own.patch("drain", &how, &taken).await.unwrap();
    own.patch_status("drain", &how, &status).await.unwrap();
    for (what, change, why) in [
        ("approve", note("inplace.dev/approve"), "approved by hand"),
        ("end", json!({"spec": {"terminate": true}}), "what a HookRun measures"),
        ("give away", json!({"metadata": {"labels": {"inplace.dev/node": "node-b"}}}), "not of node node-a"),
        ("adopt", json!({"metadata": {"labels": {"inplace.dev/operation": "r1"}}}), "its labels"),
    ] {
        let done = own.patch("drain", &how, &Patch::Merge(change)).await;
        assert!(denied(done).is_some_and(|told| told.contains(why)), "{what}");
    }
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
