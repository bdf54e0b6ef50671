//! A hook that cannot be run is named in a condition, with what to change, before anything is tried; it is no write that failed.

use super::*;

fn put(fixture: &Fixture, name: &str, spec: &Value) {
    fixture.api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"namespace": "shop", "name": name}, "spec": spec}));
}

/// A metric without a result: nothing is measured for an hour.
fn asks(path: &str) -> Value {
    json!({"name": "ask", "initialDelay": "1h", "successCondition": "true",
        "provider": {"web": {"url": format!("http://127.0.0.1:1/{path}")}}})
}

/// Waits until the condition of this kind has this reason, and a message with these parts.
async fn says(fixture: &Fixture, kind: &str, reason: &str, parts: &[&str]) {
    let is = |condition: &Value| {
        let message = condition["message"].as_str().unwrap_or_default();
        let has_parts = parts.iter().all(|part| message.contains(part));
        condition["type"] == kind && condition["reason"] == reason && has_parts
    };
    let has = |web: &Value| web["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is));
    fixture.status(&format!("{kind} is {reason}: {parts:?}"), has).await;
}

async fn a_run(fixture: &Fixture) {
    fixture.api.until("the hook", |store| store.all("hookruns").count() == 1).await;
}

#[tokio::test]
async fn an_argument_without_a_value_is_named_until_the_workload_gives_one() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    put(&fixture, "ask", &json!({"args": [{"name": "room"}], "metrics": [asks("{{ args.room }}")]}));
    fixture.deployment(2);
    fixture.ready(2).await;
    fixture.spec(|spec| {
        spec["replicas"] = json!(1);
        spec["preDeleteUpdateStrategy"] = json!({"hook": {"templateName": "ask"}});
    });
    let parts = ["HookTemplate ask cannot be used for pod web-", "args.room was not resolved"];
    says(&fixture, "ScaleFailed", "Blocked", &parts).await;
    fixture.spec(|spec| {
        spec["preDeleteUpdateStrategy"]["hook"]["args"] = json!([{"name": "room", "value": "1"}]);
    });
    a_run(&fixture).await;
}

#[tokio::test]
async fn a_stored_template_that_is_not_valid_here_is_named_for_a_pod_and_for_a_canary_step() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    let mut endless = asks("");
    endless["interval"] = json!("5s");
    put(&fixture, "ask", &json!({"metrics": [endless]}));
    fixture.deployment(1);
    fixture.ready(1).await;
    fixture.spec(|spec| {
        spec["preInplaceUpdateStrategy"] = json!({"hook": {"templateName": "ask"}});
        spec["template"] = template("app:2");
    });
    says(&fixture, "UpdateFailed", "HookTemplate", &["for pod web-", "metric `ask`: count"]).await;
    fixture.spec(|spec| {
        spec.as_object_mut().unwrap().remove("preInplaceUpdateStrategy");
        spec["updateStrategy"]["canary"] = json!({"steps": [{"hook": {"templateName": "ask"}}]});
    });
    says(&fixture, "UpdateFailed", "HookTemplate", &["for step 0", "metric `ask`: count"]).await;
    put(&fixture, "ask", &json!({"metrics": [asks("")]}));
    a_run(&fixture).await;
}

#[tokio::test]
async fn a_hook_after_the_update_that_no_agent_runs_is_named_before_the_one_before_it_runs() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    let field = json!({"path": "metadata.annotations.example.dev/weight", "value": "100"});
    let back = |function: &str| {
        let provider = json!({"kubernetes": {"function": function, "fields": [field]}});
        json!({"metrics": [{"name": "back", "provider": provider}]})
    };
    put(&fixture, "ask", &json!({"metrics": [asks("")]}));
    put(&fixture, "back", &back("patch"));
    fixture.deployment(1);
    fixture.ready(1).await;
    fixture.spec(|spec| {
        spec["preInplaceUpdateStrategy"] = json!({"hook": {"templateName": "ask"}});
        spec["postInplaceUpdateStrategy"] = json!({"hook": {"templateName": "back"}});
        spec["template"] = template("app:2");
    });
    let parts = ["HookTemplate back cannot be used for pod web-", "`postInplaceUpdateStrategy`, may not set"];
    says(&fixture, "UpdateFailed", "HookTemplate", &parts).await;
    assert_eq!(fixture.api.count("POST hookrun"), 0, "{:#?}", fixture.api.calls());
    assert!(fixture.api.store(|store| store.pods().all(|pod| open(pod).is_none())));
    put(&fixture, "back", &back("get"));
    a_run(&fixture).await;
}
