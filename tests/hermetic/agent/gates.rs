//! The readiness gate of pods without an operation: it is opened on new pods and after lost drains, and otherwise
//! left alone.

use inplace::api::annotation;
use inplace::api::pod_ref::PodRef;
use inplace::node::journal::{Entry, Journal};
use inplace::operation::effect::GateAction;

use super::super::api_server::Fault as ApiFault;
use super::{Fixture, close, gate};

#[tokio::test]
async fn a_new_pod_gets_its_gate_opened_once() {
    let fixture = Fixture::found().await;
    let _agent = fixture.agent().await;
    fixture.api.on("PATCH pod/status").fault(ApiFault::Answer(503, "broken"));
    fixture.pod_with("web-0", |_| {});
    fixture.pod_with("ungated", |pod| pod["spec"]["readinessGates"] = serde_json::json!([]));
    let open = Some(("True", "InPlaceReady"));
    fixture.api.until("an open gate", |store| gate(&store.pod("shop", "web-0").unwrap()) == open).await;
    // A second new pod proves that the first one was checked again.
    fixture.pod_with("web-1", |_| {});
    fixture.api.until("an open gate", |store| gate(&store.pod("shop", "web-1").unwrap()) == open).await;
    assert_eq!(fixture.api.count("PATCH pod/status shop/web-0"), 2, "{:#?}", fixture.api.writes());
    assert_eq!(fixture.api.writes().len(), 3, "{:#?}", fixture.api.writes());
    assert_eq!(gate(&fixture.api.pod("shop", "ungated")), None);
}

/// A pod with a further gate alone is opened, drained and opened again by that gate. A pod with both gates has only its own
/// opened.
#[tokio::test]
async fn a_further_gate_is_used_for_pods_without_the_own_one() {
    const FURTHER: &str = "KruisePodReady";
    let further = |pod: &serde_json::Value| {
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        let found = conditions.iter().find(|condition| condition["type"] == FURTHER)?;
        Some(format!("{} {}", found["status"].as_str()?, found["reason"].as_str()?))
    };
    let fixture = std::sync::Arc::new(Fixture::found().await);
    let gates = |names: &[&str]| {
        let gates = names.iter().map(|name| serde_json::json!({ "conditionType": name }));
        gates.collect::<serde_json::Value>()
    };
    fixture.pod_with("further", |pod| pod["spec"]["readinessGates"] = gates(&["other", FURTHER]));
    fixture.pod_with("both", |pod| pod["spec"]["readinessGates"] = gates(&[FURTHER, annotation::GATE]));
    fixture.kubelet("further");
    let agent = fixture.agent_with(&["--readiness-gate=KruisePodReady"]).await;
    let is = |store: &super::Store, wanted: &str| {
        further(&store.pod("shop", "further").unwrap()).as_deref() == Some(wanted)
    };
    fixture.api.until("an open gate", |store| is(store, "True InPlaceReady")).await;
    let open = Some(("True", "InPlaceReady"));
    fixture.api.until("an open gate", |store| gate(&store.pod("shop", "both").unwrap()) == open).await;
    fixture
        .pod_request("further", Some(r#"{"id":"a","containers":[{"name":"app"}],"gracePeriodSeconds":1}"#));
    fixture.api.until("a drain", |store| is(store, "False InPlaceDrain")).await;
    fixture.reported("further", "a", "Succeeded").await;
    fixture.api.until("an open gate", |store| is(store, "True InPlaceReady")).await;
    assert_eq!(gate(&fixture.api.pod("shop", "further")), None);
    assert_eq!(further(&fixture.api.pod("shop", "both")), None);
    assert_eq!(fixture.attempt("further"), 1);
    // Without the flag the pod has no gate.
    agent.stop();
    let _agent = fixture.agent().await;
    fixture
        .pod_request("further", Some(r#"{"id":"b","containers":[{"name":"app"}],"gracePeriodSeconds":1}"#));
    let refused = fixture.reported("further", "b", "Refused").await;
    assert_eq!(refused["reason"], "NoReadinessGate");
}

#[tokio::test]
async fn a_drain_that_was_left_behind_is_opened_and_no_other() {
    let fixture = Fixture::found().await;
    fixture.pod_with("failed", |pod| close(pod, "False", annotation::GATE_FAILED));
    fixture.pod_with("foreign", |pod| close(pod, "False", "StartInPlaceUpdate"));
    fixture.pod_with("leaving", |pod| {
        close(pod, "False", annotation::GATE_DRAIN);
        pod["metadata"]["deletionTimestamp"] = serde_json::json!("2026-11-20T10:00:00Z");
    });
    fixture.pod_with("lost", |pod| close(pod, "False", annotation::GATE_DRAIN));
    let _agent = fixture.agent().await;
    let open = Some(("True", "InPlaceReady"));
    fixture.api.until("an open gate", |store| gate(&store.pod("shop", "lost").unwrap()) == open).await;
    for (name, reason) in
        [("failed", "InPlaceFailed"), ("foreign", "StartInPlaceUpdate"), ("leaving", "InPlaceDrain")]
    {
        assert_eq!(gate(&fixture.api.pod("shop", name)), Some(("False", reason)), "{name}");
    }
    assert_eq!(fixture.api.writes().len(), 1, "{:#?}", fixture.api.writes());
}

#[tokio::test]
async fn a_gate_that_a_later_operation_could_not_open_is_opened_and_one_that_failed_is_not() {
    let fixture = Fixture::found().await;
    let journal = Journal::open(fixture.state.path()).unwrap();
    for (name, owed_gate) in [("mended", Some(GateAction::Open)), ("failed", None)] {
        fixture.pod_with(name, |pod| close(pod, "False", annotation::GATE_FAILED));
        let uid = fixture.api.pod("shop", name)["metadata"]["uid"].as_str().unwrap().to_owned();
        let mut entry = Entry::new(PodRef { namespace: "shop".into(), name: name.into(), uid });
        entry.owed_gate = owed_gate;
        journal.write(&entry).unwrap();
    }
    let _agent = fixture.agent().await;
    let open = Some(("True", "InPlaceReady"));
    fixture.api.until("an open gate", |store| gate(&store.pod("shop", "mended").unwrap()) == open).await;
    // A new pod proves that the other one was checked as well.
    fixture.pod_with("new", |_| {});
    fixture.api.until("an open gate", |store| gate(&store.pod("shop", "new").unwrap()) == open).await;
    assert_eq!(gate(&fixture.api.pod("shop", "failed")), Some(("False", "InPlaceFailed")));
    assert_eq!(fixture.api.writes().len(), 2, "{:#?}", fixture.api.writes());
}
