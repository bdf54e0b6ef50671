//! A write that the API server refuses for hours delays and repeats nothing else.

use super::super::api_server::Fault;
use super::*;

const RETRY: &str = "inplace.dev/retry";
/// More refusals than a test can reach.
const ALWAYS: usize = 100_000;

/// A template of a hook that has no result by itself.
fn hook_template() -> Value {
    json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate", "metadata": {"namespace": "shop", "name": "ask"},
        "spec": {"metrics": [{"name": "ask", "initialDelay": "1h", "successCondition": "true",
            "provider": {"web": {"url": "http://127.0.0.1:1/"}}}]}})
}

/// The agents take the open requests back.
fn fail(fixture: &Fixture) {
    let is_open = |pod: &&Value| open(pod).is_some();
    let names: Vec<_> = fixture.api.store(|store| store.pods().filter(is_open).map(name).collect());
    for name in names {
        fixture.api.edit("shop", &name, |pod| {
            let id = open(pod).unwrap().id;
            let answer = json!({"id": id, "phase": "RolledBack", "step": "Swap", "reason": "Exited", "message": "exited",
                "startedAt": "2026-11-20T10:00:05Z", "finishedAt": null, "containers": []});
            pod["metadata"]["annotations"]["inplace.dev/status"] = json!(answer.to_string());
        });
    }
}

/// The number of pods whose task has failed.
fn failed(store: &Store) -> usize {
    let task = |pod: &&Value| pod["metadata"]["annotations"]["inplace.dev/task"].to_string();
    store.pods().filter(|pod| task(pod).contains("Failed")).count()
}

/// Waits until the controller has been refused this write several times more.
async fn refused(fixture: &Fixture, call: &str) {
    let before = fixture.api.count(call);
    fixture.api.arrived(call, before + 3).await;
}

#[tokio::test]
async fn a_retry_is_one_retry_although_a_pod_cannot_be_created() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.deployment(3);
    fixture.ready(3).await;
    fixture.api.on("POST pod").times(ALWAYS).fault(Fault::Answer(403, "exceeded quota"));
    fixture.spec(|spec| {
        spec["replicas"] = json!(4);
        spec["updateStrategy"]["maxUnavailable"] = json!(2);
        spec["template"] = template("app:bad");
    });
    fixture.api.edit_of("gamedeployments", "shop", "web", |web| {
        web["metadata"]["annotations"] = json!({"inplace.dev/failure-threshold": "1"});
    });
    fixture.api.until("a request", |store| store.pods().any(|pod| open(pod).is_some())).await;
    fail(&fixture);
    fixture.api.until("its failure is recorded", |store| failed(store) == 1).await;
    fixture.api.edit_of("gamedeployments", "shop", "web", |web| {
        web["metadata"]["annotations"][RETRY] = json!("true");
    });
    fixture.api.until("the next request", |store| store.pods().any(|pod| open(pod).is_some())).await;
    let is_confirmed = |store: &Store| {
        store.get("gamedeployments", "shop", "web").unwrap()["metadata"]["annotations"][RETRY].is_null()
    };
    fixture.api.until("the retry is confirmed", is_confirmed).await;
    fail(&fixture);
    fixture.api.until("its failure is recorded", |store| failed(store) == 1).await;
    refused(&fixture, "POST pod").await;
    assert_eq!(fixture.api.store(|store| failed(store)), 1);
    assert!(fixture.api.store(|store| store.pods().all(|pod| open(pod).is_none())));
}

#[tokio::test]
async fn a_step_ends_and_its_hook_runs_once_although_a_pod_cannot_be_created() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.api.put(hook_template());
    fixture.deployment(3);
    fixture.ready(3).await;
    fixture.api.on("POST pod").times(ALWAYS).fault(Fault::Answer(403, "exceeded quota"));
    fixture.spec(|spec| {
        spec["replicas"] = json!(4);
        spec["template"] = template("app:2");
        spec["updateStrategy"]["canary"] =
            json!({"steps": [{"hook": {"templateName": "ask"}}, {"pause": {}}, {"partition": 0}]});
    });
    fixture.api.until("the hook of the step", |store| store.all("hookruns").count() == 1).await;
    let run = fixture.api.store(|store| store.all("hookruns").next().map(name)).unwrap();
    fixture.api.edit_of("hookruns", "shop", &run, |run| {
        run["metadata"]["annotations"]["inplace.dev/approve"] = json!("true");
    });
    fixture.reported("currentStepIndex", 1).await;
    refused(&fixture, "POST pod").await;
    assert_eq!(fixture.web()["status"]["currentStepIndex"], 1);
    assert_eq!(fixture.api.count("POST hookrun"), 1, "{:#?}", fixture.api.calls());
}

/// A deployment whose updates wait for a hook, and the name of the run of the first one.
async fn asking() -> (Fixture, Running, String) {
    let fixture = Fixture::start().await;
    let controller = fixture.controller();
    fixture.api.put(hook_template());
    fixture.deployment(1);
    fixture.ready(1).await;
    fixture.spec(|spec| {
        spec["preInplaceUpdateStrategy"] = json!({"hook": {"templateName": "ask"}});
        spec["template"] = template("app:2");
    });
    fixture.api.until("the hook", |store| store.all("hookruns").count() == 1).await;
    let run = fixture.api.store(|store| store.all("hookruns").next().map(name)).unwrap();
    (fixture, controller, run)
}

#[tokio::test]
async fn a_hook_run_that_a_deleted_workload_left_is_made_anew() {
    let (fixture, _controller, run) = asking().await;
    let old = fixture.api.get("hookruns", "shop", &run).unwrap()["metadata"]["uid"].clone();
    // What the garbage collector does after a deletion that orphans.
    fixture.api.edit_of("hookruns", "shop", &run, |run| run["metadata"]["ownerReferences"] = json!([]));
    fixture
        .api
        .until("another one", |store| store.all("hookruns").any(|run| run["metadata"]["uid"] != old))
        .await;
    assert_eq!(fixture.api.store(|store| store.all("hookruns").count()), 1);
}

#[tokio::test]
async fn a_hook_run_of_another_owner_is_left_and_named() {
    let (fixture, _controller, run) = asking().await;
    fixture.api.edit_of("hookruns", "shop", &run, |run| {
        run["metadata"]["ownerReferences"][0]["uid"] = json!("somebody-else");
    });
    let web = fixture
        .status("it is named", |web| web["status"]["conditions"].to_string().contains("delete it"))
        .await;
    assert!(web["status"]["conditions"].to_string().contains(&run), "{web:#}");
    assert_eq!(fixture.api.count("DELETE hookrun"), 0);
}
