//! Sends any review to the webhooks, with any answers of the API server: it is answered, refused as unreadable, or refused as too
//! large. A readiness gate is never a reason to refuse a pod.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock, Mutex};

use http::Response;
use inplace::cluster::server::Server;
use inplace::controller::admission::{Terms, WebhookArgs, Webhooks};
use kube::client::Body;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tower::service_fn;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

pub(super) fn run(data: &[u8]) {
    // The first line is the webhook, the second the review. Each further line is an answer of the API server: its status and body.
    let mut lines = data.split(|byte| *byte == b'\n');
    let path = match lines.next() {
        Some(b"validate") => "/validate",
        Some(b"mutate-pods") => "/mutate-pods",
        Some(b"guard") => "/guard",
        _ => return,
    };
    let review = lines.next().unwrap_or_default();
    let answers: VecDeque<_> = lines.map(answer).collect();
    let (status, body) = RUNTIME.block_on(async {
        let webhooks = Webhooks::new(
            &WebhookArgs::default(),
            Server::new(client(answers)),
            "inplace-system",
            Terms::default(),
        );
        webhooks.answer(path, review.to_vec()).await
    });
    if status != 200 {
        assert!(matches!(status, 400 | 413), "status {status}");
        return;
    }
    let answer: Value = serde_json::from_slice(&body).expect("a review as JSON");
    let response = &answer["response"];
    // A text that the webhook skips may have bytes that are no text.
    if let Ok(review) = serde_json::from_slice::<Value>(review) {
        assert_eq!(response["uid"], review["request"]["uid"]);
    }
    let allowed = response["allowed"].as_bool().expect("a decision");
    assert!(allowed || response["status"]["message"].is_string(), "a refusal says why");
    assert!(allowed || path != "/mutate-pods", "a gate is no reason to refuse a pod");
    if let Some(patch) = response.get("patch") {
        let text: k8s_openapi::ByteString = serde_json::from_value(patch.clone()).expect("base64");
        serde_json::from_slice::<Vec<Value>>(&text.0).expect("a JSON patch");
    }
}

/// A line as an answer: three digits, a space and the body.
fn answer(line: &[u8]) -> (u16, Vec<u8>) {
    let status = line.get(..3).and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    let status = status.filter(|status| (200..600).contains(status)).unwrap_or(404);
    (status, line.get(4..).unwrap_or_default().to_vec())
}

/// A client of an API server that gives these answers, one after the other, and then has nothing.
fn client(answers: VecDeque<(u16, Vec<u8>)>) -> kube::Client {
    let answers = Arc::new(Mutex::new(answers));
    let service = service_fn(move |_request: http::Request<Body>| {
        let next = answers.lock().expect("one thread").pop_front();
        let (status, body) = next.unwrap_or((404, Vec::new()));
        let answer = Response::builder().status(status).body(Body::from(body));
        std::future::ready(answer)
    });
    kube::Client::new(service, "default")
}
