//! Rollouts that end before they are complete, and what happens to their pods.

use super::super::api_server::{Fault, pods::agent};
use super::*;

#[tokio::test]
async fn what_a_deleted_rollout_asked_for_is_taken_back_where_nothing_is_touched() {
    let rollout_fixture = RolloutFixture::with(4).await;
    let controller = rollout_fixture.fixture.controller();
    let uid = rollout_fixture.restart("one", &json!({"maxUnavailable": 3}));
    rollout_fixture.open(&["web-1-0", "web-1-1", "web-1-2"]).await;
    // One request is being carried out, one is pending at its agent, one has no answer.
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| say(pod, &uid, "Running", "Swap"));
    rollout_fixture.fixture.api.edit("shop", "web-1-1", |pod| say(pod, &uid, "Pending", ""));
    drop(controller);
    rollout_fixture.fixture.api.store(|store| store.remove_of("inplacerollouts", "shop", "one"));
    let _next = rollout_fixture.fixture.controller();
    let request = |pod: &Value| pod["metadata"]["annotations"]["inplace.dev/request"].clone();
    rollout_fixture
        .fixture
        .api
        .until("two are taken back", |store| {
            let is = |index: u32| request(&store.pod("shop", &format!("web-1-{index}")).unwrap()).is_null();
            is(1) && is(2) && !is(0)
        })
        .await;
    rollout_fixture.fixture.api.edit("shop", "web-1-1", |pod| say(pod, &uid, "Cancelled", ""));
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| say(pod, &uid, "Succeeded", ""));
    rollout_fixture.fixture.api.until("nobody is worked on", |store| !store.pods().any(is_worked_on)).await;
    let stages: Vec<_> = (0..4).map(|index| record(&rollout_fixture.pod(index))["stage"].clone()).collect();
    assert_eq!(stages, [json!("Done"), json!("Dropped"), json!("Dropped"), Value::Null]);
}

#[tokio::test]
async fn what_a_deleted_rollout_has_pulled_in_advance_goes_with_it() {
    let rollout_fixture = RolloutFixture::with(2).await;
    let api = &rollout_fixture.fixture.api;
    api.edit("shop", "web-1-1", |pod| pod["spec"]["nodeName"] = json!("node-2"));
    let _controller = rollout_fixture.fixture.controller();
    let swap = json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true});
    let uid = rollout_fixture.restart("one", &swap);
    let named = |store: &Store| {
        let pod = store.pod("shop", "web-1-1").unwrap();
        pod["metadata"]["annotations"]["inplace.dev/rollout-prefetch"].clone()
    };
    let own = format!("app:2,rollout={uid}");
    api.until("a pod that waits names the image", |store| named(store) == own).await;
    api.store(|store| store.remove_of("inplacerollouts", "shop", "one"));
    api.until("it names nothing", |store| named(store).is_null()).await;
}

/// A webhook may refuse the writes on a pod for ever.
#[tokio::test]
async fn images_that_cannot_be_removed_do_not_keep_an_ended_rollout() {
    let rollout_fixture = RolloutFixture::with(1).await;
    let api = &rollout_fixture.fixture.api;
    // It has the labels of the target and another owner: only the end of the rollout writes on it.
    let unowned = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "unowned", "labels": {"app": "web"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"inplace.dev/rollout-prefetch": "app:2,rollout=gone"}},
        "spec": {"nodeName": "node-1", "containers": [{"name": "app", "image": "app:1"}]},
        "status": {"phase": "Running"}});
    api.put(unowned);
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"ttlSecondsAfterFinished": 1}));
    rollout_fixture.open(&["web-1-0"]).await;
    // The first write records the end of the pod.
    api.on("PATCH pod").nth(2).times(1000).fault(Fault::Answer(500, "the webhook failed"));
    rollout_fixture.answer("web-1-0", "Succeeded");
    let gone = |store: &Store| store.get("inplacerollouts", "shop", "one").is_none();
    api.until("it is deleted", gone).await;
    assert_eq!(api.count("PATCH pod shop/unowned"), 1, "its pods are no longer followed");
}

#[tokio::test]
async fn a_label_without_its_record_holds_up_no_later_rollout() {
    let rollout_fixture = RolloutFixture::with(1).await;
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| {
        pod["metadata"]["labels"]["inplace.dev/rollout-uid"] = json!("gone");
    });
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({}));
    let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-0"]);
}

#[tokio::test]
async fn a_newer_one_of_the_same_target_takes_its_place() {
    let rollout_fixture = RolloutFixture::with(4).await;
    let _controller = rollout_fixture.fixture.controller();
    let first = rollout_fixture.restart("one", &json!({"maxUnavailable": 2}));
    rollout_fixture.open(&["web-1-0", "web-1-1"]).await;
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| say(pod, &first, "Running", "Swap"));
    rollout_fixture.fixture.api.put(json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"namespace": "shop", "name": "two", "generation": 1, "creationTimestamp": "2099-01-01T00:00:00Z"},
        "spec": {"target": {"workloadRef": {"kind": "Deployment", "name": "web"}}, "containers": [{"name": "app"}],
            "maxUnavailable": 1}}));
    let taken_back = |store: &Store| record(&store.pod("shop", "web-1-1").unwrap())["stage"] == "Dropped";
    rollout_fixture.fixture.api.until("what is not touched is taken back", taken_back).await;
    // The budget of the newer rollout counts what the older one has begun.
    let status = rollout_fixture.status("two", "it runs", |status| status["phase"] == "Running").await;
    assert_eq!((&status["done"], &status["busy"]), (&json!(0), &json!(0)), "{status:#}");
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| say(pod, &first, "Succeeded", ""));
    let status = rollout_fixture.phase("one", "Superseded").await;
    assert!(status["message"].as_str().unwrap().contains("two"), "{status:#}");
    let asked = rollout_fixture.agents("two", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, all(), "of all, what was restarted before it too");
}

#[tokio::test]
async fn a_target_that_is_not_there_is_waited_for_and_one_that_vanishes_ends_it() {
    let rollout_fixture = RolloutFixture::with(2).await;
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture
        .restart("one", &json!({"target": {"workloadRef": {"kind": "StatefulSet", "name": "web"}}}));
    let status =
        rollout_fixture.status("one", "it waits", |status| status["reason"] == "TargetNotFound").await;
    assert_eq!(status["phase"], "Pending");
    assert!(status["message"].as_str().unwrap().contains("StatefulSet/web"), "{status:#}");
    let late = |object: &mut Value| object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    rollout_fixture.fixture.api.edit_of("inplacerollouts", "shop", "one", late);
    assert_eq!(rollout_fixture.phase("one", "Failed").await["reason"], "TargetNotFound");

    let uid = rollout_fixture.restart("two", &json!({}));
    rollout_fixture.open(&["web-1-0"]).await;
    rollout_fixture.fixture.api.store(|store| store.remove_of("deployments", "shop", "web"));
    let gone = |status: &Value| status["reason"] == "TargetGone";
    let status = rollout_fixture.status("two", "it is noticed", gone).await;
    assert_eq!(status["phase"], "Running", "until what was begun has ended");
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| say(pod, &uid, "Succeeded", ""));
    assert_eq!(rollout_fixture.phase("two", "Failed").await["reason"], "TargetGone");
    rollout_fixture.open(&[]).await;
}

#[tokio::test]
async fn an_image_that_the_template_does_not_name_is_swapped_only_where_that_is_meant() {
    let rollout_fixture = RolloutFixture::with(2).await;
    let _controller = rollout_fixture.fixture.controller();
    let swap =
        |drift: bool| json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": drift});
    rollout_fixture.restart("one", &swap(false));
    let status = rollout_fixture.phase("one", "Failed").await;
    assert_eq!(status["reason"], "TemplateDrift");
    assert!(status["message"].as_str().unwrap().contains("allowTemplateDrift: true"), "{status:#}");
    assert!(record(&rollout_fixture.pod(0)).is_null(), "before anything is touched");
    rollout_fixture.restart("two", &swap(true));
    let asked = rollout_fixture.agents("two", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-0", "web-1-1"]);
}

#[tokio::test]
async fn a_job_that_would_take_the_restarts_for_failures_keeps_its_pods() {
    let rollout_fixture = RolloutFixture::with(1).await;
    let labels = json!({"app": "web"});
    let job = |policy: &str| {
        let template = json!({"metadata": {"labels": labels}, "spec": {"restartPolicy": policy,
            "containers": [{"name": "app", "image": "app:1"}]}});
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "shop", "name": policy.to_lowercase()},
            "spec": {"selector": {"matchLabels": labels}, "backoffLimit": 1, "template": template}})
    };
    let _controller = rollout_fixture.fixture.controller();
    for (policy, phase, reason) in
        [("OnFailure", "Failed", "BackoffLimit"), ("Never", "Succeeded", "AllPodsDone")]
    {
        let job = rollout_fixture.fixture.api.put(job(policy));
        let owner = json!([{"apiVersion": "batch/v1", "kind": "Job", "name": name(&job), "uid": job["metadata"]["uid"],
            "controller": true}]);
        rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| pod["metadata"]["ownerReferences"] = owner);
        let rollout = name(&job);
        rollout_fixture
            .restart(&rollout, &json!({"target": {"workloadRef": {"kind": "Job", "name": rollout}}}));
        let asked = rollout_fixture.agents(&rollout, 1, |status| status["finishedAt"].is_string()).await;
        let status = rollout_fixture.phase(&rollout, phase).await;
        assert_eq!(
            (&status["reason"], asked.len()),
            (&json!(reason), usize::from(policy == "Never")),
            "{status:#}"
        );
    }
}

#[tokio::test]
async fn it_is_over_at_its_deadline_and_deleted_when_its_time_is_over() {
    let rollout_fixture = RolloutFixture::with(2).await;
    let _controller = rollout_fixture.fixture.controller();
    // The watches of each controller are open before the time begins.
    rollout_fixture.fixture.api.arrived("WATCH pods", 4).await;
    rollout_fixture.restart("one", &json!({"deadlineSeconds": 5, "ttlSecondsAfterFinished": 3}));
    rollout_fixture.open(&["web-1-0"]).await;
    let status = rollout_fixture.phase("one", "Failed").await;
    assert_eq!((&status["reason"], &status["failed"]), (&json!("DeadlineExceeded"), &json!(0)), "{status:#}");
    rollout_fixture.open(&[]).await;
    assert_eq!(record(&rollout_fixture.pod(0))["stage"], "Dropped");
    let gone = |store: &Store| store.get("inplacerollouts", "shop", "one").is_none();
    rollout_fixture.fixture.api.until("it is deleted", gone).await;
}

#[tokio::test]
async fn one_that_is_refused_supersedes_none_and_is_deleted_when_its_time_is_over() {
    let rollout_fixture = RolloutFixture::with(2).await;
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({}));
    rollout_fixture.open(&["web-1-0"]).await;
    let drifts = json!({"containers": [{"name": "app", "image": "app:2"}], "ttlSecondsAfterFinished": 1});
    rollout_fixture.restart("drifts", &drifts);
    rollout_fixture.restart("invalid", &json!({"maxUnavailable": "many", "ttlSecondsAfterFinished": 1}));
    for (name, reason) in [("drifts", "TemplateDrift"), ("invalid", "Invalid")] {
        let gone = |store: &Store| store.get("inplacerollouts", "shop", name).is_none();
        rollout_fixture.fixture.api.until(&format!("{name} ({reason}) is deleted"), gone).await;
    }
    rollout_fixture.answer("web-1-0", "Succeeded");
    let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-1"], "it goes on");
}

#[tokio::test]
async fn one_dead_node_and_one_pod_without_a_node_end_nothing() {
    let rollout_fixture = RolloutFixture::with(4).await;
    rollout_fixture.fixture.api.put(agent("node-1", "True"));
    rollout_fixture.fixture.api.put(agent("node-2", "False"));
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| {
        pod["spec"]["nodeName"] = json!("node-2");
        pod["status"]["conditions"][0]["status"] = json!("False");
    });
    rollout_fixture.fixture.api.edit("shop", "web-1-1", |pod| {
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["status"] = json!({"phase": "Pending"});
    });
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"maxUnavailable": 3}));
    for pod in ["web-1-2", "web-1-3"] {
        rollout_fixture.open(&[pod]).await;
        rollout_fixture.answer(pod, "Succeeded");
    }
    let waits = |status: &Value| status["reason"] == "PodsUnreachable" && status["done"] == 2;
    let status = rollout_fixture.status("one", "it waits for the two", waits).await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("web-1-0 (no agent is ready on node node-2), web-1-1 (not scheduled to a node)"),
        "{message}"
    );
    assert_eq!((&status["phase"], &status["failed"]), (&json!("Running"), &json!(0)), "{status:#}");
    // Both are reachable again: the pod's own spec shows it for one, the pod of its node's agent for the other.
    rollout_fixture.fixture.api.put(agent("node-2", "True"));
    rollout_fixture.fixture.api.edit("shop", "web-1-1", |pod| pod["spec"]["nodeName"] = json!("node-1"));
    rollout_fixture.open(&["web-1-0", "web-1-1"]).await;
    rollout_fixture.answer("web-1-0", "Succeeded");
    rollout_fixture.answer("web-1-1", "Succeeded");
    rollout_fixture.phase("one", "Succeeded").await;
}

#[tokio::test]
async fn an_abort_is_continued_by_another_controller() {
    let rollout_fixture = RolloutFixture::with(3).await;
    let controller = rollout_fixture.fixture.controller();
    let uid = rollout_fixture.restart(
        "one",
        &json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true,
            "onFailure": "Abort"}),
    );
    for index in 0..2 {
        rollout_fixture.open(&[&format!("web-1-{index}")]).await;
        rollout_fixture.swapped(index, "app:2");
    }
    rollout_fixture.open(&["web-1-2"]).await;
    rollout_fixture.answer("web-1-2", "RolledBack");
    rollout_fixture.open(&["web-1-0"]).await;
    drop(controller);
    let _next = rollout_fixture.fixture.controller();
    let asked = open(&rollout_fixture.pod(0)).unwrap();
    assert_eq!((asked.id, asked.containers[0].image.as_deref()), (format!("{uid}-back"), Some("app:1")));
    let counts = |status: &Value| status["phase"] == "Aborting" && status["abort"]["pods"] == 2;
    rollout_fixture.status("one", "two pods go back", counts).await;
    rollout_fixture.swapped(0, "app:1");
    rollout_fixture.open(&["web-1-1"]).await;
    rollout_fixture.swapped(1, "app:1");
    let status = rollout_fixture.phase("one", "Aborted").await;
    assert_eq!((&status["reason"], &status["abort"]["returned"]), (&json!("FailureThreshold"), &json!(2)));
    for index in 0..2 {
        let record = record(&rollout_fixture.pod(index));
        assert_eq!((&record["stage"], &record["back"]), (&json!("Done"), &json!(true)), "{record}");
    }
    assert!(!rollout_fixture.fixture.api.store(|store| store.pods().any(is_worked_on)));
}

#[tokio::test]
async fn a_newer_restart_waits_until_the_abort_has_ended() {
    let rollout_fixture = RolloutFixture::with(2).await;
    let _controller = rollout_fixture.fixture.controller();
    let swap = json!({"containers": [{"name": "app", "image": "app:2"}], "allowTemplateDrift": true, "onFailure": "Abort"});
    rollout_fixture.restart("one", &swap);
    rollout_fixture.open(&["web-1-0"]).await;
    rollout_fixture.swapped(0, "app:2");
    rollout_fixture.open(&["web-1-1"]).await;
    rollout_fixture.answer("web-1-1", "RolledBack");
    rollout_fixture.open(&["web-1-0"]).await;
    // As restart on change creates it.
    rollout_fixture.restart("restart", &json!({}));
    let waits = rollout_fixture.status("restart", "it waits", |status| status["message"].is_string()).await;
    assert_eq!(
        (&waits["phase"], &waits["reason"]),
        (&json!("Pending"), &json!("AbortInProgress")),
        "{waits:#}"
    );
    assert!(waits["message"].as_str().unwrap().contains("InPlaceRollout one"), "{waits:#}");
    rollout_fixture.phase("one", "Aborting").await;
    rollout_fixture.swapped(0, "app:1");
    rollout_fixture.phase("one", "Aborted").await;
    let asked = rollout_fixture.agents("restart", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-0", "web-1-1"]);
    // A newer swap does not wait: it replaces the bad image.
    let uid = rollout_fixture.restart("bad", &swap);
    rollout_fixture.open(&["web-1-0"]).await;
    rollout_fixture.swapped(0, "app:2");
    rollout_fixture.open(&["web-1-1"]).await;
    rollout_fixture.answer("web-1-1", "RolledBack");
    rollout_fixture.open(&["web-1-0"]).await;
    rollout_fixture
        .fixture
        .api
        .edit("shop", "web-1-0", |pod| say(pod, &format!("{uid}-back"), "Running", "Swap"));
    rollout_fixture.restart("restart-2", &json!({}));
    rollout_fixture.restart(
        "good",
        &json!({"containers": [{"name": "app", "image": "app:3"}], "allowTemplateDrift": true}),
    );
    rollout_fixture.phase("restart-2", "Superseded").await;
    // It counts as superseded once the newer one has begun.
    rollout_fixture.status("bad", "it ends", |status| status["reason"] == "Superseded").await;
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| {
        pod["spec"]["containers"][0]["image"] = json!("app:1");
        say(pod, &format!("{uid}-back"), "Succeeded", "");
    });
    rollout_fixture.phase("bad", "Superseded").await;
    rollout_fixture.agents("good", 1, |status| status["phase"] == "Succeeded").await;
}
