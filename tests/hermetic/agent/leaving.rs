//! A pod that its kubelet ends: nothing of ours holds that up, and nothing is begun in it.

use serde_json::{Value, json};

use super::super::runtime::Fault;
use super::Town;

/// As an eviction by the kubelet shows itself: nobody deletes the pod.
fn evicted(pod: &mut Value) {
    pod["status"]["conditions"].as_array_mut().unwrap().push(json!({ "type": "DisruptionTarget",
        "status": "True", "reason": "TerminationByKubelet" }));
}

fn deleted(pod: &mut Value) {
    pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T10:00:00Z");
}

/// What ends `web-0`.
type End = fn(&Town);

#[tokio::test]
async fn the_fence_goes_as_soon_as_the_pod_is_to_be_ended_however_long_the_stop_takes() {
    let ends: [End; 3] = [
        |town| town.api.edit("shop", "web-0", evicted),
        |town| town.api.edit("shop", "web-0", deleted),
        // By force: the object goes first.
        |town| town.api.remove("shop", "web-0"),
    ];
    for end in ends {
        let town = Town::found().await;
        town.pod("web-0");
        let _agent = town.agent().await;
        // For longer than this test waits for anything.
        town.runtime.on("StopContainer").fault(Fault::Hang);
        town.wish("web-0", Some(r#"{"id":"r","containers":[{"name":"app"}],"deadlineSeconds":600}"#));
        town.runtime.arrived("StopContainer", "app#0").await;
        assert_eq!(town.runtime.fences().len(), 1);
        end(&town);
        town.runtime.until("no fence", |model| model.fences("web-0/app").is_empty()).await;
        assert_eq!(town.attempt("web-0"), 0, "{:#?}", town.runtime.history());
    }
}

#[tokio::test]
async fn nothing_is_begun_in_a_pod_that_is_to_be_ended() {
    let town = Town::found().await;
    town.pod_with("web-0", evicted);
    let _agent = town.agent().await;
    town.wish("web-0", Some("restart app"));
    let status = town.told("web-0", "text-", "Refused").await;
    assert_eq!(status["reason"], "Deleting", "{status:#}");
    assert!(town.runtime.calls("CreateContainer").is_empty());
}
