//! A status is written exactly once, whatever faults the API server has and wherever the agent crashes.

use std::sync::Arc;

use inplace::api::annotation;
use serde_json::json;

use super::super::api_server::{Fault as ApiFault, pods};
use super::super::runtime::Pod;
use super::{Fixture, close, show, status};

#[tokio::test]
async fn what_the_server_refuses_is_written_again() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    fixture.api.on("PATCH pod").fault(ApiFault::Answer(429, "slow down"));
    fixture.api.on("PATCH pod").nth(3).fault(ApiFault::Answer(500, "broken"));
    fixture.api.on("PATCH pod").nth(4).fault(ApiFault::CutAfterEffect);
    fixture.pod_request("web-0", Some("restart app"));
    fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(fixture.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(fixture.attempt("web-0"), 1);
}

#[tokio::test]
async fn an_event_whose_answer_was_lost_has_the_same_name_when_it_is_written_again() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    fixture.api.on("POST event").fault(ApiFault::Answer(503, "broken"));
    fixture.pod_request("web-0", Some("restart app"));
    fixture.events(1).await;
    let posts: Vec<_> =
        fixture.api.writes().into_iter().filter(|call| call.starts_with("POST event")).collect();
    assert_eq!(posts.len(), 2);
    assert_eq!(posts[0], posts[1]);
}

#[tokio::test]
async fn a_status_that_a_crash_left_unwritten_is_written_by_the_next_process() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let agent = fixture.agent().await;
    // The write of the final status, or of a step that lasts, as on a busy machine.
    fixture.api.on("PATCH pod").nth(2).fault(ApiFault::Hang);
    fixture.pod_request("web-0", Some("restart app"));
    fixture.reported("web-0", "text-", "Running").await;
    fixture.api.arrived("PATCH pod shop/web-0", 2).await;
    // Before that the journal may have no operation yet, and then none has ended in it.
    fixture
        .runtime
        .until("the new instance", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    fixture.concluded("web-0").await;
    agent.kill();
    assert_eq!(fixture.attempt("web-0"), 1);
    let before = fixture.status("web-0").unwrap();
    assert_eq!(before["phase"], "Running");
    // The request is deleted, but its final status has not been written yet.
    fixture.pod_request("web-0", None);
    let _agent = fixture.agent().await;
    let status = fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["id"], before["id"]);
    assert_eq!(fixture.attempt("web-0"), 1);
    assert_eq!(fixture.events(1).await, ["InPlaceSucceeded"]);
}

/// The event of an end is written after the status.
#[tokio::test]
async fn an_event_that_a_crash_left_unwritten_is_written_once() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let agent = fixture.agent().await;
    fixture.api.on("POST event").nth(1).fault(ApiFault::Hang);
    fixture.pod_request("web-0", Some("restart app"));
    fixture.reported("web-0", "text-", "Succeeded").await;
    fixture.api.arrived("POST event", 1).await;
    agent.kill();
    assert!(fixture.api.events().is_empty());
    for posts in [2, 3] {
        let agent = fixture.agent().await;
        fixture.api.arrived("POST event", posts).await;
        agent.stop();
        assert_eq!(fixture.events(1).await, ["InPlaceSucceeded"]);
    }
}

#[tokio::test]
async fn a_pod_that_is_gone_gets_no_answer() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.pod("web-1");
    fixture.kubelet("web-1");
    let agent = fixture.agent().await;
    fixture.api.before("PATCH pod", |store| store.remove("shop", "web-0"));
    fixture.pod_request("web-0", Some("restart app"));
    fixture.api.arrived("PATCH pod shop/web-0", 1).await;
    fixture.pod_request("web-1", Some("restart app"));
    fixture.reported("web-1", "text-", "Succeeded").await;
    // Nothing is left to write, so the agent ends at once and without a warning.
    agent.stop();
    assert!(fixture.api.count("PATCH pod shop/web-0") <= 2, "{:#?}", fixture.api.writes());
}

/// As with an admission webhook that delays the changes of the pods of one namespace.
#[tokio::test]
async fn a_namespace_whose_writes_hang_holds_up_no_other() {
    let fixture = Arc::new(Fixture::found().await);
    let slow: Vec<_> = (0..12).map(|number| format!("slow-{number}")).collect();
    for name in &slow {
        fixture.pod(name);
    }
    let _agent = fixture.agent().await;
    fixture.api.on("PATCH pod").within("shop").times(1000).fault(ApiFault::Hang);
    for name in &slow {
        fixture.pod_request(name, Some("restart none"));
    }
    fixture.api.arrived("PATCH pod shop/", 6).await;
    let made = fixture.runtime.put(Pod::new("bank", "quick").container("app", "img:v1").grace(1));
    let mut pod = pods::pod("bank", "quick", "node-1");
    pod["metadata"]["uid"] = json!(made.uid);
    pod["metadata"]["annotations"] = json!({ annotation::REQUEST: "restart none" });
    show(&mut pod, made.id("app"), 0);
    fixture.api.put(pod);
    let is_answered =
        |store: &super::Store| store.pod("bank", "quick").and_then(|pod| status(&pod)).is_some();
    fixture.api.until("the status of the other namespace", is_answered).await;
    // None of the slow ones has ended yet.
    assert_eq!(fixture.api.count("PATCH pod shop/"), 6, "{:#?}", fixture.api.writes());
}

/// The answer to a write can be read no better than the pod.
#[tokio::test]
async fn a_status_that_was_stored_is_not_written_again_because_its_pod_cannot_be_read() {
    let fixture = Fixture::found().await;
    fixture.pod_with("odd", |pod| {
        close(pod, "True", annotation::GATE_READY);
        pod["spec"]["containers"][0]["livenessProbe"] = json!({ "periodSeconds": "often" });
    });
    let agent = fixture.agent().await;
    fixture.pod_request("odd", Some("restart app"));
    fixture.reported("odd", "text-", "Refused").await;
    assert_eq!(fixture.events(1).await, ["InPlaceRefused"]);
    agent.stop();
    assert_eq!(fixture.api.count("PATCH pod shop/odd"), 1, "{:#?}", fixture.api.writes());
}
