//! The JSON of OTLP, the protocol of OpenTelemetry, for the spans of operations: `ExportTraceServiceRequest` of
//! opentelemetry-proto 1. Ids are hexadecimal, times are nanoseconds as text, as its JSON form requires. Pure.
//!
//! The crates of OpenTelemetry are not used: the agent needs no more of the protocol than this, and has no memory left in its
//! budget for a second HTTP client.

use std::fmt::Write as _;

use jiff::Timestamp;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::agent::traces::span::{OperationSpans, Span};

/// `SPAN_KIND_INTERNAL`.
const INTERNAL: u8 = 1;
/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// The body of one request to a collector.
pub(super) fn body(node: &str, operations: &[OperationSpans]) -> Value {
    let spans: Vec<_> = operations.iter().flat_map(spans).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": attributes(&[
            ("service.name", "inplace-agent"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("k8s.node.name", node),
        ])},
        "scopeSpans": [{"scope": {"name": "inplace", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}

/// The root span comes first.
fn spans(operation: &OperationSpans) -> Vec<Value> {
    let trace = id(&["trace", &operation.namespace, &operation.request], 16);
    let begin = operation.root.begin.as_nanosecond().to_string();
    let uid = operation.uid.as_deref().unwrap_or_default();
    let span_id = |number: usize| id(&["span", &trace, &operation.pod, uid, &begin, &number.to_string()], 8);
    let phase = operation.phase.to_string();
    let common = [
        ("k8s.namespace.name", operation.namespace.as_str()),
        ("k8s.pod.name", &operation.pod),
        ("k8s.pod.uid", uid),
    ];
    let root_id = span_id(0);
    let root = [("inplace.request.id", operation.request.as_str()), ("inplace.phase", &phase)];
    let mut root = span(&operation.root, &[&common[..], &root].concat());
    root["traceId"] = json!(trace);
    root["spanId"] = json!(root_id);
    let children = operation.children.iter().zip(1..).map(|(child, number)| {
        let mut child = span(child, &common);
        child["traceId"] = json!(trace);
        child["spanId"] = json!(span_id(number));
        child["parentSpanId"] = json!(root_id);
        child
    });
    std::iter::once(root).chain(children).collect()
}

/// A span without its ids.
fn span(span: &Span, common: &[(&str, &str)]) -> Value {
    let mut all = common.to_vec();
    all.extend(span.container.as_deref().map(|name| ("k8s.container.name", name)));
    let nanoseconds = |at: Timestamp| at.as_nanosecond().to_string();
    json!({
        "name": span.name,
        "kind": INTERNAL,
        "startTimeUnixNano": nanoseconds(span.begin),
        "endTimeUnixNano": nanoseconds(span.end),
        "attributes": attributes(&all),
        "status": span.error.as_ref().map_or_else(|| json!({}), |error| json!({"code": ERROR, "message": error})),
    })
}

/// The attributes that have a value.
fn attributes(all: &[(&str, &str)]) -> Vec<Value> {
    let has_value = all.iter().filter(|(_, value)| !value.is_empty());
    has_value.map(|(key, value)| json!({"key": key, "value": {"stringValue": value}})).collect()
}

/// The first bytes of a digest, in hexadecimal: the same parts have the same id, also in another agent.
fn id(parts: &[&str], bytes: usize) -> String {
    // A length before each part: no two lists of parts have the same text.
    let text: String = parts.iter().fold(String::new(), |mut text, part| {
        let _ = write!(text, "{}:{part}", part.len());
        text
    });
    digest(&SHA256, text.as_bytes()).as_ref().iter().take(bytes).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::status::Phase;

    fn operation(pod: &str, request: &str) -> OperationSpans {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let span = |name: &str, container: Option<&str>, begin, end, error: Option<&str>| Span {
            name: name.into(),
            container: container.map(str::to_owned),
            begin: at(begin),
            end: at(end),
            error: error.map(str::to_owned),
        };
        OperationSpans {
            namespace: "shop".into(),
            pod: pod.into(),
            uid: Some(format!("uid-{pod}")),
            request: request.into(),
            phase: Phase::Failed,
            root: span("Restart", None, 1, 9, Some("CreateFailed")),
            children: vec![
                span("Stop", Some("app"), 2, 3, None),
                span("Create", Some("app"), 3, 4, Some("Internal")),
            ],
        }
    }

    #[test]
    fn the_pods_of_a_rollout_are_one_trace_and_every_span_has_its_own_id() {
        let body = body("node-1", &[operation("a", "r"), operation("b", "r"), operation("c", "other")]);
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        let text = |span: &Value, field: &str| span[field].as_str().unwrap().to_owned();
        let traces: Vec<_> = spans.iter().map(|span| text(span, "traceId")).collect();
        assert_eq!((&traces[0], traces[0].len()), (&traces[5], 32));
        assert_eq!(traces.iter().collect::<BTreeSet<_>>().len(), 2);
        let ids: BTreeSet<_> = spans.iter().map(|span| text(span, "spanId")).collect();
        assert_eq!(ids.len(), 9);
        assert!(ids.iter().all(|id| id.len() == 16));
        for (number, span) in spans.iter().enumerate() {
            let root = &spans[number / 3 * 3];
            let parent = if number % 3 == 0 { &Value::Null } else { &root["spanId"] };
            assert_eq!(span.get("parentSpanId").unwrap_or(&Value::Null), parent);
        }
    }

    #[test]
    fn a_span_has_the_names_of_opentelemetry() {
        let body = body("node-1", &[operation("a", "r")]);
        let resource = body["resourceSpans"][0]["resource"]["attributes"].to_string();
        assert!(
            resource.contains(r#"{"key":"k8s.node.name","value":{"stringValue":"node-1"}}"#),
            "{resource}"
        );
        let create = &body["resourceSpans"][0]["scopeSpans"][0]["spans"][2];
        assert_eq!(create["startTimeUnixNano"], "3000000");
        assert_eq!(create["status"], json!({"code": 2, "message": "Internal"}));
        let attributes = create["attributes"].to_string();
        assert!(
            attributes.contains(r#"{"key":"k8s.container.name","value":{"stringValue":"app"}}"#),
            "{attributes}"
        );
    }
}
