//! The changes to the webhook configuration by a controller that the admission policy must allow or deny: the
//! same cases for a real API server and for the expressions alone (`hermetic`).

use serde_json::{Value, json};

/// A field of the shipped configuration that gets another value.
pub(super) struct WebhookCase {
    pub(super) what: &'static str,
    /// A JSON pointer.
    pub(super) field: &'static str,
    pub(super) value: Value,
    /// A part of the message; `None`: the change is allowed.
    pub(super) denied: Option<&'static str>,
}

pub(super) fn cases() -> Vec<WebhookCase> {
    let case = |what, field, value, denied| WebhookCase { what, field, value, denied };
    let webhook =
        |what, field, value| case(what, field, value, Some("nothing of a webhook but the caBundle"));
    let metadata =
        |what, field, value| case(what, field, value, Some("no label, annotation, finalizer and owner"));
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"});
    let secrets = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["*"], "scope": "*"}]);
    vec![
        case("whom to trust", "/webhooks/0/clientConfig/caBundle", json!("aGVsbG8="), None),
        case("whom to trust, of the last", "/webhooks/3/clientConfig/caBundle", json!("aGVsbG8="), None),
        webhook("every secret is shown to it", "/webhooks/0/rules", secrets),
        webhook("another server", "/webhooks/0/clientConfig", json!({"url": "https://192.0.2.1/validate"})),
        webhook("another service", "/webhooks/0/clientConfig/service/namespace", json!("shop")),
        webhook("another path", "/webhooks/1/clientConfig/service/path", json!("/validate")),
        webhook("a failure lets pass", "/webhooks/0/failurePolicy", json!("Ignore")),
        webhook("a failure holds everybody up", "/webhooks/3/failurePolicy", json!("Fail")),
        webhook("every namespace", "/webhooks/2/namespaceSelector", json!({})),
        webhook("every pod", "/webhooks/1/objectSelector", json!({})),
        webhook("exact matches", "/webhooks/0/matchPolicy", json!("Exact")),
        webhook("never", "/webhooks/0/matchConditions", json!([{"name": "no", "expression": "false"}])),
        webhook("side effects", "/webhooks/0/sideEffects", json!("NoneOnDryRun")),
        webhook("a longer wait", "/webhooks/0/timeoutSeconds", json!(30)),
        webhook("another name", "/webhooks/0/name", json!("other.inplace.dev")),
        webhook("no webhook", "/webhooks", json!([])),
        metadata("a label", "/metadata/labels/a", json!("b")),
        metadata("an annotation", "/metadata/annotations", json!({"a": "b"})),
        metadata("a finalizer", "/metadata/finalizers", json!(["example.dev/held"])),
        metadata("an owner", "/metadata/ownerReferences", json!([owner])),
    ]
}
