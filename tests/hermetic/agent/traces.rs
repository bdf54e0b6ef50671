//! Traces of operations, sent to a collector that answers, refuses for a while, or never answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::Fixture;
use crate::support::http_server::{HttpServer, answer, answer_json, never};

/// The spans of a request to the collector.
fn spans(body: &str) -> Vec<Value> {
    let body: Value = serde_json::from_str(body).unwrap();
    body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a str> {
    let found = span["attributes"].as_array().unwrap().iter().find(|attribute| attribute["key"] == key);
    found.and_then(|attribute| attribute["value"]["stringValue"].as_str())
}

async fn restarted(collector: &HttpServer) -> (Arc<Fixture>, super::Agent) {
    // As `main` does.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let flag = format!("--otlp-endpoint=http://{}", collector.address);
    let agent = fixture.agent_with(&[&flag]).await;
    fixture.pod_request("web-0", Some(r#"{"id":"r1","containers":[{"name":"app"}]}"#));
    fixture.reported("web-0", "r1", "Succeeded").await;
    (fixture, agent)
}

#[tokio::test]
async fn an_operation_is_a_span_with_its_effects_and_its_downtime_below_it() {
    let collector = HttpServer::start("127.0.0.1:0", |_, stream| answer_json(stream, "{}"));
    let (fixture, _agent) = restarted(&collector).await;
    fixture.api.patiently("the trace", collector.arrived(1)).await;
    let requests = collector.requests();
    assert_eq!(requests[0].line, "POST /v1/traces");
    assert!(requests[0].has("content-type: application/json"));
    let spans = spans(&requests[0].body);
    let names: Vec<_> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names[0], "Restart");
    for expected in ["Stop", "Create", "Start", "downtime"] {
        assert!(names.contains(&expected), "{expected} is not in {names:?}");
    }
    let root = &spans[0];
    assert_eq!(attribute(root, "k8s.pod.name"), Some("web-0"));
    assert_eq!(attribute(root, "inplace.request.id"), Some("r1"));
    assert_eq!(attribute(root, "inplace.phase"), Some("Succeeded"));
    let nanoseconds = |span: &Value, field: &str| span[field].as_str().unwrap().parse::<u128>().unwrap();
    for span in &spans {
        assert_eq!(span["traceId"], root["traceId"]);
        assert!(nanoseconds(span, "startTimeUnixNano") <= nanoseconds(span, "endTimeUnixNano"), "{span}");
        if span != root {
            assert_eq!((&span["parentSpanId"], &span["status"]), (&root["spanId"], &serde_json::json!({})));
        }
    }
    let downtime = spans.iter().find(|span| span["name"] == "downtime").unwrap();
    assert_eq!(attribute(downtime, "k8s.container.name"), Some("app"));
}

#[tokio::test]
async fn a_trace_is_sent_again_to_a_collector_that_is_overloaded() {
    let overloaded = AtomicBool::new(true);
    let collector = HttpServer::start("127.0.0.1:0", move |_, stream| {
        let code = if overloaded.swap(false, Ordering::Relaxed) { 503 } else { 200 };
        answer(stream, code, "", "")
    });
    let (fixture, _agent) = restarted(&collector).await;
    fixture.api.patiently("the second attempt", collector.arrived(2)).await;
    let requests = collector.requests();
    assert_eq!(requests[0].body, requests[1].body);
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_up_neither_an_operation_nor_the_end_of_the_agent() {
    let collector = HttpServer::start("127.0.0.1:0", |_, stream| never(stream));
    let (fixture, agent) = restarted(&collector).await;
    fixture.api.patiently("the trace", collector.arrived(1)).await;
    fixture.pod_request("web-0", Some(r#"{"id":"r2","containers":[{"name":"app"}]}"#));
    fixture.reported("web-0", "r2", "Succeeded").await;
    agent.stop();
    assert!(collector.requests().len() <= 2, "the agent has ended before it sent a trace again");
}
