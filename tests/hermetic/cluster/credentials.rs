//! Registry credentials come from the secrets that the pod names, and are never printed.

use inplace::cluster::credentials::for_image;
use inplace::failure::Class;
use serde_json::json;

use super::super::api_server::Fault;
use super::Fixture;

#[tokio::test]
async fn the_secrets_of_the_pod_are_read_and_those_that_are_missing_passed_over() {
    let fixture = Fixture::start().await;
    let config = r#"{"auths":{"https://registry.example/team":{"username":"team","password":"hunter2"},
        "registry.example":{"auth":"YWxsOmh1bnRlcjM="}}}"#;
    fixture.api.secret("shop", "new", &[(".dockerconfigjson", config)]);
    fixture.api.secret(
        "shop",
        "old",
        &[(".dockercfg", r#"{"old.example:5000":{"auth":"b2xkOmh1bnRlcjQ"}}"#)],
    );
    fixture.api.secret("shop", "other", &[("token", "hunter5")]);
    fixture.api.secret("shop", "broken", &[(".dockerconfigjson", "hunter6")]);
    let names = ["missing", "old", "other", "broken", "new"].map(|name| json!({ "name": name }));
    fixture.api.edit("shop", "web-0", |pod| pod["spec"]["imagePullSecrets"] = json!(names));
    fixture.until("it is known", |pods| pods.declared(&fixture.web()).unwrap().has_pull_secrets).await;

    let found = fixture.pods.pull_credentials(&fixture.web()).await.unwrap();
    let users = |image: &str| {
        for_image(&found, image)
            .iter()
            .map(|one| (one.username.clone(), one.password.clone()))
            .collect::<Vec<_>>()
    };
    let pair = |name: &str, password: &str| (name.to_owned(), password.to_owned());
    assert_eq!(users("registry.example/team/app:v1"), [pair("team", "hunter2"), pair("all", "hunter3")]);
    assert_eq!(users("registry.example/else/app:v1"), [pair("all", "hunter3")]);
    assert_eq!(users("old.example:5000/app@sha256:00"), [pair("old", "hunter4")]);
    assert_eq!(users("nginx"), []);
    assert!(!format!("{found:?}").contains("hunter"), "{found:?}");
}

#[tokio::test]
async fn an_agent_that_may_not_read_secrets_says_so() {
    let fixture = Fixture::start().await;
    fixture.api.edit("shop", "web-0", |pod| pod["spec"]["imagePullSecrets"] = json!([{ "name": "pull" }]));
    fixture.until("it is known", |pods| pods.declared(&fixture.web()).unwrap().has_pull_secrets).await;
    fixture.api.on("GET secret").fault(Fault::Answer(403, "secrets \"pull\" is forbidden"));
    let error = fixture.pods.pull_credentials(&fixture.web()).await.unwrap_err();
    assert_eq!(error.class(), Class::Denied);
    assert!(error.to_string().contains("shop/pull") && error.to_string().contains("not allowed"), "{error}");
}
