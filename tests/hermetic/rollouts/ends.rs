//! Rollouts that end before they are complete, and what happens to their pods.

use super::*;

#[tokio::test]
async fn what_a_deleted_rollout_asked_for_is_taken_back_where_nothing_is_touched() {
    let shop = Shop::with(4).await;
    let controller = shop.site.controller();
    let uid = shop.restart("one", &json!({"maxUnavailable": 3}));
    shop.open(&["web-1-0", "web-1-1", "web-1-2"]).await;
    // One request is being carried out, one is pending at its agent, one has no answer.
    shop.site.api.edit("shop", "web-1-0", |pod| say(pod, &uid, "Running", "Swap"));
    shop.site.api.edit("shop", "web-1-1", |pod| say(pod, &uid, "Pending", ""));
    drop(controller);
    shop.site.api.store(|store| store.remove_of("inplacerollouts", "shop", "one"));
    let _next = shop.site.controller();
    let request = |pod: &Value| pod["metadata"]["annotations"]["inplace.dev/request"].clone();
    shop.site
        .api
        .until("two are taken back", |store| {
            let is = |index: u32| request(&store.pod("shop", &format!("web-1-{index}")).unwrap()).is_null();
            is(1) && is(2) && !is(0)
        })
        .await;
    shop.site.api.edit("shop", "web-1-1", |pod| say(pod, &uid, "Cancelled", ""));
    shop.site.api.edit("shop", "web-1-0", |pod| say(pod, &uid, "Succeeded", ""));
    shop.site.api.until("nobody is worked on", |store| !store.pods().any(is_worked_on)).await;
    let stages: Vec<_> = (0..4).map(|index| record(&shop.pod(index))["stage"].clone()).collect();
    assert_eq!(stages, [json!("Done"), json!("Dropped"), json!("Dropped"), Value::Null]);
}

#[tokio::test]
async fn a_newer_one_of_the_same_target_takes_its_place() {
    let shop = Shop::with(4).await;
    let _controller = shop.site.controller();
    let first = shop.restart("one", &json!({"maxUnavailable": 2}));
    shop.open(&["web-1-0", "web-1-1"]).await;
    shop.site.api.edit("shop", "web-1-0", |pod| say(pod, &first, "Running", "Swap"));
    shop.site.api.put(json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "shop", "name": "two", "generation": 1, "creationTimestamp": "2099-01-01T00:00:00Z"},
        "spec": {"target": {"workloadRef": {"kind": "Deployment", "name": "web"}}, "containers": [{"name": "app"}],
            "maxUnavailable": 1}}));
    let taken_back = |store: &Store| record(&store.pod("shop", "web-1-1").unwrap())["stage"] == "Dropped";
    shop.site.api.until("what is not touched is taken back", taken_back).await;
    // The budget of the newer rollout counts what the older one has begun.
    let status = shop.status("two", "it runs", |status| status["phase"] == "Running").await;
    assert_eq!((&status["done"], &status["busy"]), (&json!(0), &json!(0)), "{status:#}");
    shop.site.api.edit("shop", "web-1-0", |pod| say(pod, &first, "Succeeded", ""));
    let status = shop.phase("one", "Superseded").await;
    assert!(status["message"].as_str().unwrap().contains("two"), "{status:#}");
    let asked = shop.agents("two", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, all(), "of all, what was restarted before it too");
}

#[tokio::test]
async fn a_target_that_is_not_there_is_waited_for_and_one_that_vanishes_ends_it() {
    let shop = Shop::with(2).await;
    let _controller = shop.site.controller();
    shop.restart("one", &json!({"target": {"workloadRef": {"kind": "StatefulSet", "name": "web"}}}));
    let status = shop.status("one", "it waits", |status| status["reason"] == "TargetNotFound").await;
    assert_eq!(status["phase"], "Pending");
    assert!(status["message"].as_str().unwrap().contains("StatefulSet/web"), "{status:#}");
    let late = |object: &mut Value| object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    shop.site.api.edit_of("inplacerollouts", "shop", "one", late);
    assert_eq!(shop.phase("one", "Failed").await["reason"], "TargetNotFound");

    let uid = shop.restart("two", &json!({}));
    shop.open(&["web-1-0"]).await;
    shop.site.api.store(|store| store.remove_of("deployments", "shop", "web"));
    let gone = |status: &Value| status["reason"] == "TargetGone";
    let status = shop.status("two", "it is noticed", gone).await;
    assert_eq!(status["phase"], "Running", "until what was begun has ended");
    shop.site.api.edit("shop", "web-1-0", |pod| say(pod, &uid, "Succeeded", ""));
    assert_eq!(shop.phase("two", "Failed").await["reason"], "TargetGone");
    shop.open(&[]).await;
}

#[tokio::test]
async fn an_image_that_the_template_does_not_name_is_swapped_only_where_that_is_meant() {
    let shop = Shop::with(2).await;
    let _controller = shop.site.controller();
    let swap =
        |drift: bool| json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": drift});
    shop.restart("one", &swap(false));
    let status = shop.phase("one", "Failed").await;
    assert_eq!(status["reason"], "TemplateDrift");
    assert!(status["message"].as_str().unwrap().contains("allowTemplateDrift: true"), "{status:#}");
    assert!(record(&shop.pod(0)).is_null(), "before anything is touched");
    shop.restart("two", &swap(true));
    let asked = shop.agents("two", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-0", "web-1-1"]);
}

#[tokio::test]
async fn a_job_that_would_take_the_restarts_for_failures_keeps_its_pods() {
    let shop = Shop::with(1).await;
    let labels = json!({"app": "web"});
    let job = |policy: &str| {
        let template = json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": policy,
            "containers": [{"name": "app", "image": "app:1"}]}});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "shop", "name": policy.to_lowercase()},
            "spec": {"selector": {"matchLabels": labels}, "backoffLimit": 1, "template": template}})
    };
    let _controller = shop.site.controller();
    for (policy, phase, reason) in
        [("OnFailure", "Failed", "BackoffLimit"), ("Never", "Succeeded", "AllPodsThrough")]
    {
        let job = shop.site.api.put(job(policy));
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name(&job), "uid": job["metadata"]["uid"],
            "controller": true}]);
        shop.site.api.edit("shop", "web-1-0", |pod| pod["metadata"]["ownerReferences"] = owner);
        let rollout = name(&job);
        shop.restart(&rollout, &json!({"target": {"workloadRef": {"kind": "Job", "name": rollout}}}));
        let asked = shop.agents(&rollout, 1, |status| status["finishedAt"].is_string()).await;
        let status = shop.phase(&rollout, phase).await;
        assert_eq!(
            (&status["reason"], asked.len()),
            (&json!(reason), usize::from(policy == "Never")),
            "{status:#}"
        );
    }
}

#[tokio::test]
async fn it_is_over_at_its_deadline_and_deleted_when_its_time_is_over() {
    let shop = Shop::with(2).await;
    let _controller = shop.site.controller();
    shop.restart("one", &json!({"deadlineSeconds": 1, "ttlSecondsAfterFinished": 1}));
    shop.open(&["web-1-0"]).await;
    let status = shop.phase("one", "Failed").await;
    assert_eq!((&status["reason"], &status["failed"]), (&json!("DeadlineExceeded"), &json!(0)), "{status:#}");
    shop.open(&[]).await;
    assert_eq!(record(&shop.pod(0))["stage"], "Dropped");
    let gone = |store: &Store| store.get("inplacerollouts", "shop", "one").is_none();
    shop.site.api.until("it is deleted", gone).await;
}

#[tokio::test]
async fn one_dead_node_and_one_pod_without_a_node_end_nothing() {
    let shop = Shop::with(4).await;
    let agent = |node: &str, ready: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": node, "containers": []},
            "metadata": {"namespace": "inplace-system", "name": format!("agent-{node}"),
                "labels": {"app.kubernetes.io/name": "inplace", "app.kubernetes.io/component": "agent"}},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:05Z"}]}})
    };
    shop.site.api.put(agent("node-1", "True"));
    shop.site.api.put(agent("node-2", "False"));
    shop.site.api.edit("shop", "web-1-0", |pod| {
        pod["spec"]["nodeName"] = json!("node-2");
        pod["status"]["conditions"][0]["status"] = json!("False");
    });
    shop.site.api.edit("shop", "web-1-1", |pod| {
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["status"] = json!({"phase": "Pending"});
    });
    let _controller = shop.site.controller();
    shop.restart("one", &json!({"maxUnavailable": 3}));
    for pod in ["web-1-2", "web-1-3"] {
        shop.open(&[pod]).await;
        shop.answer(pod, "Succeeded");
    }
    let waits = |status: &Value| status["reason"] == "PodsUnreachable" && status["done"] == 2;
    let status = shop.status("one", "it waits for the two", waits).await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("web-1-0 (no agent is ready on node node-2), web-1-1 (it has no node)"),
        "{message}"
    );
    assert_eq!((&status["phase"], &status["failed"]), (&json!("Running"), &json!(0)), "{status:#}");
    // Both are reachable again: the pod's own spec shows it for one, the pod of its node's agent for the other.
    shop.site.api.put(agent("node-2", "True"));
    shop.site.api.edit("shop", "web-1-1", |pod| pod["spec"]["nodeName"] = json!("node-1"));
    shop.open(&["web-1-0", "web-1-1"]).await;
    shop.answer("web-1-0", "Succeeded");
    shop.answer("web-1-1", "Succeeded");
    shop.phase("one", "Succeeded").await;
}
