//! Tests of the fake itself over HTTP.

use serde_json::{Value, json};

use super::{ApiServer, pods};

const PATH: &str = "/api/v1/namespaces/shop/pods/web-0";

async fn ask(api: &ApiServer, verb: &str, path: &str, media: &str, body: &Value) -> (u16, Value) {
    // The client requires a crypto provider even without TLS; a second installation changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("http://{}{path}", api.shared.address());
    let request = reqwest::Client::new().request(verb.parse().unwrap(), url);
    let answer = request.header("content-type", media).body(body.to_string()).send().await.unwrap();
    let code = answer.status().as_u16();
    (code, serde_json::from_str(&answer.text().await.unwrap()).unwrap())
}

async fn patch(api: &ApiServer, path: &str, kind: &str, body: Value) -> (u16, Value) {
    ask(api, "PATCH", path, &format!("application/{kind}patch+json"), &body).await
}

async fn shop() -> ApiServer {
    let api = ApiServer::start().await;
    api.put(pods::pod("shop", "web-0", "node-1"));
    api
}

#[tokio::test]
async fn a_json_patch_is_done_whole_or_not_at_all() {
    let api = shop().await;
    let before = api.pod("shop", "web-0");
    let image = "/spec/containers/0/image";
    let replace = json!({ "op": "replace", "path": image, "value": "app:v2" });
    let test = |value: &str| json!({ "op": "test", "path": image, "value": value });
    let (code, said) = patch(&api, PATH, "json-", json!([replace, test("else")])).await;
    assert_eq!((code, said["details"].is_null(), api.pod("shop", "web-0")), (422, true, before.clone()));
    let (code, after) = patch(&api, PATH, "json-", json!([replace, test("app:v2")])).await;
    assert_eq!((code, &after), (200, &api.pod("shop", "web-0")));
    assert_eq!(after["spec"]["containers"][0]["image"], "app:v2");
    assert_ne!(after["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn conditions_merge_by_type_and_the_spec_is_out_of_reach_of_the_status() {
    let api = shop().await;
    let body = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }, { "type": "New" }] },
        "spec": { "nodeName": "other" } });
    let (code, after) = patch(&api, &format!("{PATH}/status"), "strategic-merge-", body).await;
    let conditions = after["status"]["conditions"].as_array().unwrap();
    assert_eq!((code, conditions.len(), &after["spec"]["nodeName"]), (200, 5, &json!("node-1")));
    assert_eq!(conditions[3]["status"], "False");
    assert_eq!(conditions[3]["lastTransitionTime"], "2026-11-20T10:00:05Z", "the rest of it stays");
}

#[tokio::test]
async fn what_must_not_change_does_not() {
    let api = shop().await;
    for (body, field) in [
        (json!({ "metadata": { "uid": "other" } }), "metadata.uid"),
        (json!({ "spec": { "nodeName": "other" } }), "spec"),
    ] {
        let (code, said) = patch(&api, PATH, "merge-", body).await;
        assert_eq!((code, &said["details"]["causes"][0]["field"]), (422, &json!(field)));
    }
    let (code, _) = patch(&api, PATH, "merge-", json!({ "metadata": { "resourceVersion": "0" } })).await;
    assert_eq!(code, 409);
    let (code, _) = patch(&api, "/api/v1/namespaces/shop/pods/none", "merge-", json!({})).await;
    assert_eq!(code, 404);
    let unchanged = patch(&api, PATH, "merge-", json!({})).await.1;
    assert_eq!(unchanged["metadata"]["resourceVersion"], "1");
}
