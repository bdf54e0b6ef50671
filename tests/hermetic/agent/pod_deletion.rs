//! A pod that its kubelet ends: the agent does not delay that, and starts nothing in the pod.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::runtime::Fault;
use super::Fixture;

/// The condition of an eviction by the kubelet: the pod is not deleted.
fn evicted(pod: &mut Value) {
    pod["status"]["conditions"].as_array_mut().unwrap().push(json!({ "type": "DisruptionTarget",
        "status": "True", "reason": "TerminationByKubelet" }));
}

fn deleted(pod: &mut Value) {
    pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T10:00:00Z");
}

/// The event that ends `web-0`.
type End = fn(&Fixture);

#[tokio::test]
async fn the_fence_goes_as_soon_as_the_pod_is_to_be_ended_however_long_the_stop_takes() {
    let ends: [End; 3] = [
        |fixture| fixture.api.edit("shop", "web-0", evicted),
        |fixture| fixture.api.edit("shop", "web-0", deleted),
        // A forced deletion removes the object first.
        |fixture| fixture.api.remove("shop", "web-0"),
    ];
    for end in ends {
        let fixture = Fixture::found().await;
        fixture.pod("web-0");
        let _agent = fixture.agent().await;
        // Longer than this test waits for anything.
        fixture.runtime.on("StopContainer").fault(Fault::Hang);
        fixture
            .pod_request("web-0", Some(r#"{"id":"r","containers":[{"name":"app"}],"deadlineSeconds":600}"#));
        fixture.runtime.arrived("StopContainer", "app#0").await;
        assert_eq!(fixture.runtime.fences().len(), 1);
        end(&fixture);
        fixture.runtime.until("no fence", |model| model.fences("web-0/app").is_empty()).await;
        assert_eq!(fixture.attempt("web-0"), 0, "{:#?}", fixture.runtime.history());
    }
}

#[tokio::test]
async fn nothing_is_begun_in_a_pod_that_is_to_be_ended() {
    let fixture = Fixture::found().await;
    fixture.pod_with("web-0", evicted);
    let _agent = fixture.agent().await;
    fixture.pod_request("web-0", Some("restart app"));
    let status = fixture.reported("web-0", "text-", "Refused").await;
    assert_eq!(status["reason"], "Deleting", "{status:#}");
    assert!(fixture.runtime.calls("CreateContainer").is_empty());
}

/// The author of the request gets no other answer.
#[tokio::test]
async fn a_request_of_a_pod_that_has_ended_is_refused() {
    for is_torn_down in [false, true] {
        let fixture = Fixture::found().await;
        fixture.pod_with("web-0", |pod| {
            (pod["status"]["phase"], pod["status"]["reason"]) = (json!("Failed"), json!("DeadlineExceeded"));
        });
        if is_torn_down {
            let sandbox = fixture.runtime.only("web-0/app").sandbox_id;
            fixture.runtime.model(|model| model.stop_sandbox(&sandbox));
        }
        let _agent = fixture.agent().await;
        fixture.pod_request("web-0", Some("restart app"));
        let status = fixture.reported("web-0", "text-", "Refused").await;
        assert_eq!(status["reason"], "Deleting", "{status:#}");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("Failed (DeadlineExceeded)"), "{message}");
        assert!(fixture.runtime.calls("CreateContainer").is_empty());
    }
}

/// An eviction through the API sets the condition and then deletes the pod. A guard may refuse the deletion, and
/// then nothing ends the pod.
#[tokio::test]
async fn a_pod_that_others_only_want_to_delete_is_restarted() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod_with("web-0", |pod| {
        pod["status"]["conditions"].as_array_mut().unwrap().push(json!({ "type": "DisruptionTarget",
            "status": "True", "reason": "EvictionByEvictionAPI" }));
    });
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    fixture.pod_request("web-0", Some("restart app"));
    fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(fixture.attempt("web-0"), 1);
}

/// The deletion comes while the container is being stopped: no container is created in the pod afterwards.
#[tokio::test]
async fn a_pod_that_is_deleted_by_force_gets_no_new_container() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let _agent = fixture.agent().await;
    fixture.runtime.on("StopContainer").fault(Fault::SlowReply(Duration::from_secs(15)));
    fixture.pod_request("web-0", Some("restart app"));
    fixture.runtime.arrived("StopContainer", "app#0").await;
    fixture.api.remove("shop", "web-0");
    // Without a fence, the agent has received the deletion.
    fixture.runtime.until("no fence", |model| model.fences("web-0/app").is_empty()).await;
    // The agent reads the pod once more before the operation ends, and once more to write the status.
    fixture.api.arrived("GET pod", 2).await;
    assert_eq!(fixture.runtime.instances("web-0/app").len(), 1, "{:#?}", fixture.runtime.history());
}
