//! A request leads to a status. A request that is withdrawn, replaced or meant for another pod is not carried out.

use std::sync::Arc;

use inplace::api::annotation;
use serde_json::json;
use tokio::time::Instant;

use super::super::runtime::{Fault, Pod};
use super::{Fixture, gate};

/// How many steps may have lasted for two seconds since then, as on a busy machine. Each of them is written as well.
fn lasting_steps(began: Instant) -> usize {
    usize::try_from(began.elapsed().as_secs() / 2).unwrap()
}

#[tokio::test]
async fn a_plain_restart_is_three_writes() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    fixture.api.forget();
    let began = Instant::now();
    fixture.pod_request("web-0", Some("restart app"));
    let status = fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(fixture.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(fixture.attempt("web-0"), 1);
    let event = &fixture.api.events()[0];
    assert_eq!((&event["message"], &event["type"]), (&status["message"], &json!("Normal")));
    assert!(event["message"].as_str().unwrap().starts_with("app restarted in place: down "), "{event:#}");
    let (first, began) = (lasting_steps(began), Instant::now());
    // Another request proves that the agent has reconciled the first one again.
    fixture.pod_request("web-0", Some("restart app #2"));
    fixture.events(2).await;
    assert_eq!(fixture.attempt("web-0"), 2);
    let (steps, writes) = (first + lasting_steps(began), fixture.api.writes());
    let statuses = writes.iter().filter(|call| call.starts_with("PATCH pod shop/web-0")).count();
    assert!((4..=4 + steps).contains(&statuses), "{writes:#?}");
    assert_eq!(writes.iter().filter(|call| call.starts_with("POST event")).count(), 2, "{writes:#?}");
    assert_eq!(writes.len(), statuses + 2, "{writes:#?}");
}

#[tokio::test]
async fn a_restart_with_a_drain_is_five_writes() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    fixture.api.forget();
    let began = Instant::now();
    fixture.pod_request("web-0", Some(r#"{"id":"d","containers":[{"name":"app"}],"gracePeriodSeconds":1}"#));
    fixture
        .api
        .until("the drain", |store| {
            gate(&store.pod("shop", "web-0").unwrap()) == Some(("False", "InPlaceDrain"))
        })
        .await;
    // Afterwards only the grace period is left, which may end before this test looks.
    assert_eq!(fixture.attempt("web-0"), 0);
    // The grace period counts from the moment when the kubelet has processed the gate.
    fixture.api.edit("shop", "web-0", |pod| {
        for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
            if condition["type"] == "Ready" {
                condition["status"] = "False".into();
            }
        }
    });
    fixture.reported("web-0", "d", "Succeeded").await;
    fixture.events(1).await;
    assert_eq!(gate(&fixture.api.pod("shop", "web-0")), Some(("True", "InPlaceReady")));
    let (steps, writes) = (lasting_steps(began), fixture.api.writes());
    assert!((5..=5 + steps).contains(&writes.len()), "{writes:#?}");
    assert_eq!(writes.iter().filter(|call| call.starts_with("PATCH pod/status")).count(), 2, "{writes:#?}");
}

#[tokio::test]
async fn without_its_annotation_a_request_is_cancelled() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let _agent = fixture.agent().await;
    fixture.runtime.on("PullImage").fault(Fault::Hang);
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    fixture.runtime.arrived("PullImage", "img:v2").await;
    fixture.pod_request("web-0", None);
    let status = fixture.reported("web-0", "text-", "Cancelled").await;
    assert_eq!(status["reason"], "RequestDeleted");
    assert_eq!(fixture.events(2).await, ["InPlaceStarted", "InPlaceCancelled"]);
    assert_eq!(fixture.attempt("web-0"), 0);
}

#[tokio::test]
async fn a_newer_request_takes_the_place_of_one_that_has_touched_nothing() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    fixture.runtime.on("PullImage").fault(Fault::Hang);
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    fixture.runtime.arrived("PullImage", "img:v2").await;
    fixture.pod_request("web-0", Some(r#"{"id":"newer","containers":[{"name":"app"}]}"#));
    fixture.reported("web-0", "newer", "Succeeded").await;
    assert_eq!(fixture.events(3).await, ["InPlaceStarted", "InPlaceCancelled", "InPlaceSucceeded"]);
    assert_eq!(
        (fixture.attempt("web-0"), fixture.runtime.only("web-0/app").image()),
        (1, "img:v1"),
        "{:#?}",
        fixture.runtime.history()
    );
}

#[tokio::test]
async fn a_pod_made_again_under_the_same_name_is_another_pod() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    let _agent = fixture.agent().await;
    fixture.runtime.on("PullImage").fault(Fault::Hang);
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    fixture.runtime.arrived("PullImage", "img:v2").await;
    fixture.events(1).await;
    fixture.api.remove("shop", "web-0");
    fixture.runtime.model(|model| {
        model.die("web-0/app", 0);
        model.sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
    });
    fixture.made("web-0", Pod::new("shop", "web-0").again(), |pod| {
        super::close(pod, "True", annotation::GATE_READY);
        pod["metadata"]["annotations"][annotation::REQUEST] = json!("restart app");
        // Before the agent can see the request.
        fixture.kubelet("web-0");
    });
    let status = fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["containers"][0]["action"], "Restart");
    assert_eq!(fixture.attempt("web-0"), 1);
    let uid = fixture.api.pod("shop", "web-0")["metadata"]["uid"].clone();
    // The end of the operation on the first pod is not reported.
    assert_eq!(fixture.events(2).await, ["InPlaceStarted", "InPlaceSucceeded"]);
    assert_eq!(fixture.api.events()[1]["involvedObject"]["uid"], uid);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_once() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let agent = fixture.agent().await;
    fixture.pod_request("web-0", Some("reboot app"));
    let status = fixture.reported("web-0", "", "Refused").await;
    assert_eq!(status["reason"], "InvalidRequest");
    assert_eq!(fixture.events(1).await, ["InPlaceRefused"]);
    assert_eq!(fixture.api.events()[0]["type"], "Warning");
    agent.stop();
    fixture.api.forget();
    let _agent = fixture.agent().await;
    fixture.pod_request("web-0", Some("restart nobody"));
    fixture.reported("web-0", "text-", "Refused").await;
    // The first status was still valid, so it was not written again. Its event was, in vain.
    assert_eq!(fixture.events(2).await.len(), 2);
    let writes = fixture.api.writes();
    assert_eq!((fixture.api.count("PATCH pod"), writes.len()), (1, 3), "{writes:#?}");
}

/// Each of them would replace the status of the other, and be carried out again.
#[tokio::test]
async fn what_cannot_be_read_waits_for_the_group_restart_that_was_refused() {
    let fixture = Arc::new(Fixture::found().await);
    for name in ["web-0", "web-1", "web-2"] {
        fixture.pod(name);
    }
    fixture.api.edit("shop", "web-2", |pod| pod["metadata"]["labels"]["app"] = json!("train"));
    fixture.api.put(json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "shop", "name": "train", "uid": "r-1", "labels": {(annotation::TOGETHER): "true"}},
        "spec": {"target": {"selector": {"matchLabels": {"app": "train"}}}, "strategy": "Together",
            "containers": [{"name": "nobody"}], "together": {"onUnprepared": "Skip"}},
        "status": {"phase": "Running", "group": {"epoch": 1, "phase": "Prepare", "prepareAt": "2026-11-20T10:00:00Z"}}}));
    fixture.kubelet("web-1");
    let _agent = fixture.agent().await;
    // The agent has read the rollout. The watch of the pods is another one, and may be faster.
    fixture.reported("web-2", "r-1", "Refused").await;
    fixture.api.edit("shop", "web-0", |pod| {
        pod["metadata"]["labels"]["app"] = json!("train");
        pod["metadata"]["annotations"][annotation::REQUEST] = json!("reboot app");
    });
    fixture.reported("web-0", "r-1", "Refused").await;
    // Another request proves that the agent has reconciled the pod again.
    fixture.api.edit("shop", "web-0", |pod| pod["metadata"]["labels"]["more"] = json!("1"));
    fixture.pod_request("web-1", Some("restart app"));
    fixture.reported("web-1", "text-", "Succeeded").await;
    assert_eq!(fixture.status("web-0").unwrap()["id"], "r-1");
    let writes = fixture.api.writes();
    assert_eq!(
        writes.iter().filter(|call| call.starts_with("PATCH pod shop/web-0")).count(),
        1,
        "{writes:#?}"
    );
    // When it is over, the user learns that the request is not valid.
    fixture
        .api
        .edit_of("inplacerollouts", "shop", "train", |rollout| rollout["status"]["phase"] = json!("Failed"));
    fixture.reported("web-0", "", "Refused").await;
}
