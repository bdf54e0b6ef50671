//! The HookRun of a hook of an operation that an earlier process has begun.

use serde_json::{Value, json};

use super::super::runtime::Fault;
use super::Fixture;

/// The journal does not hold what a hook asks; the template does.
#[tokio::test]
async fn a_hook_of_an_operation_that_is_taken_up_is_published_with_what_it_asks() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let provider = json!({ "exec": { "container": "app", "command": ["wait"], "timeoutSeconds": 60 } });
    fixture.api.put(json!({ "apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": { "namespace": "shop", "name": "never" },
        "spec": { "metrics": [{ "name": "never", "count": 1, "successCondition": "result == 'done'", "provider": provider }] } }));
    fixture.runtime.on("ExecSync").always().fault(Fault::Hang);
    fixture.runtime.on("PullImage").fault(Fault::Hang);
    let first = fixture.agent().await;
    let request = json!({ "id": "h", "containers": [{ "name": "app", "image": "img:v2" }], "preHook": { "templateName": "never" } });
    fixture.pod_request("web-0", Some(&request.to_string()));
    fixture.runtime.arrived("PullImage", "img:v2").await;
    first.kill();
    let _second = fixture.agent().await;
    let runs = |store: &super::Store| store.all("hookruns").cloned().collect::<Vec<Value>>();
    fixture.api.until("the HookRun", |store| !runs(store).is_empty()).await;
    let run = fixture.api.store(|store| runs(store)).remove(0);
    assert_eq!(run["spec"]["metrics"][0]["provider"]["exec"]["command"], json!(["wait"]), "{run:#}");
    assert_eq!(run["metadata"]["ownerReferences"][0]["name"], "web-0", "{run:#}");
}
