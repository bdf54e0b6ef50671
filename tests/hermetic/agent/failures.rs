//! Failed containers of pods that are in a group: each is reported once, and what an operation has ended is none.

use std::sync::Arc;

use inplace::api::annotation;
use serde_json::{Value, json};

use super::super::api_server::Store;
use super::{Fixture, close};

/// Creates a pod that is in a group.
fn member(fixture: &Fixture, name: &str) {
    fixture.pod_with(name, |pod| {
        close(pod, "True", annotation::GATE_READY);
        pod["metadata"]["labels"][annotation::GROUP_RESTART] = json!("train");
    });
}

fn failure(pod: &Value) -> Option<Value> {
    serde_json::from_str(pod["metadata"]["annotations"][annotation::GROUP_FAILURE].as_str()?).ok()
}

async fn failed(fixture: &Fixture, name: &str) -> Value {
    let mut found = None;
    let has_failed = |store: &Store| {
        found = store.pod("shop", name).as_ref().and_then(failure);
        found.is_some()
    };
    fixture.api.until("the failure", has_failed).await;
    found.unwrap()
}

#[tokio::test]
async fn a_failed_container_is_reported_until_an_operation_starts_it_again() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    member(&fixture, "web-1");
    fixture.kubelet("web-1");
    let _agent = fixture.agent().await;
    fixture.runtime.model(|model| {
        model.die("web-0/app", 1);
        model.die("web-1/app", 137);
    });
    let reported = failed(&fixture, "web-1").await;
    assert_eq!((&reported["container"], &reported["exitCode"]), (&json!("app"), &json!(137)));
    assert_eq!(failure(&fixture.api.pod("shop", "web-0")), None, "it is in no group");
}

#[tokio::test]
async fn what_an_operation_has_ended_is_no_failure() {
    let fixture = Arc::new(Fixture::found().await);
    for name in ["web-0", "web-1", "web-2"] {
        member(&fixture, name);
    }
    fixture.kubelet("web-0");
    let agent = fixture.agent().await;
    fixture.pod_request("web-0", Some("restart app"));
    fixture.reported("web-0", "text-", "Succeeded").await;
    // A later status has no time of a start.
    fixture.pod_request("web-0", Some("restart other"));
    fixture.reported("web-0", "text-", "Refused").await;
    fixture.runtime.model(|model| model.die("web-1/app", 1));
    failed(&fixture, "web-1").await;
    agent.kill();
    let _agent = fixture.agent().await;
    let writes = fixture.api.count("PATCH pod shop/web-1");
    fixture.runtime.model(|model| model.die("web-2/app", 3));
    failed(&fixture, "web-2").await;
    assert_eq!(failure(&fixture.api.pod("shop", "web-0")), None);
    assert_eq!(fixture.api.count("PATCH pod shop/web-1"), writes, "it is reported once");
}
