//! Lost, failed and conflicting calls to the API server.

use super::super::api_server::Fault;
use super::*;

#[tokio::test]
async fn a_workload_is_made_updated_and_then_let_alone() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.deployment(3);
    fixture.ready(3).await;
    fixture.spec(|spec| spec["template"] = template("app:2"));
    fixture.agents_bring("app:2", 3).await;
    let progress = |web: &Value| web["status"]["conditions"].to_string().contains("\"Complete\"");
    fixture.status("it is complete", progress).await;
    // Unchanged objects are not written again, for example after a kubelet's status update without a change.
    fixture.api.forget();
    for name in fixture.names() {
        fixture.api.edit("shop", &name, |pod| pod["status"]["message"] = json!("still here"));
    }
    fixture.spec(|spec| spec["template"]["spec"]["containers"][0]["image"] = json!("app:2"));
    fixture.status("the next generation is reported", |_| true).await;
    let writes = fixture.api.writes();
    let other = |line: &&String| !line.contains("lease") && !line.starts_with("PATCH gamedeployment/status");
    assert_eq!(writes.iter().find(other), None, "{writes:#?}");
}

#[tokio::test]
async fn pods_whose_managed_fields_cannot_be_read_stop_nothing() {
    let fixture = Fixture::start().await;
    let late = json!([{"manager": "curl", "time": "9999-12-31T23:59:59Z"}]);
    let deep = (0..200).fold(json!({}), |inside, _| json!({"f:x": inside}));
    let deep = json!([{"manager": "curl", "fieldsV1": deep}]);
    for (name, fields) in [("late", &late), ("deep", &deep)] {
        fixture.api.put(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "shop", "name": name, "managedFields": fields},
            "spec": {"containers": [{"name": "app", "image": "other:1"}]}}));
    }
    let _controller = fixture.controller();
    fixture.deployment(1);
    fixture.api.until("the pod is there", |store| store.pods().count() == 3).await;
    // The user changes an own pod in the same way.
    let own = fixture.names().into_iter().find(|name| name.starts_with("web-")).unwrap();
    fixture.api.edit("shop", &own, |pod| {
        bring_up(pod);
        pod["metadata"]["managedFields"] = late;
    });
    fixture.reported("readyReplicas", 1).await;
    fixture.spec(|spec| spec["template"] = template("app:2"));
    fixture.agents_bring("app:2", 1).await;
    assert_eq!((fixture.names().len(), fixture.api.count("POST pod")), (3, 1));
}

#[tokio::test]
async fn a_pod_whose_making_is_not_answered_is_made_once() {
    for fault in [Fault::CutAfterEffect, Fault::AnswerAfterEffect(504, "too late")] {
        let fixture = Fixture::start().await;
        fixture.api.on("POST pod").nth(2).fault(fault);
        let _controller = fixture.controller();
        fixture.deployment(3);
        fixture.ready(3).await;
        let made = fixture.names();
        fixture.spec(|spec| spec["replicas"] = json!(4));
        fixture.ready(4).await;
        assert!(fixture.names().is_superset(&made), "none was made in place of another one");
        assert_eq!(fixture.api.count("DELETE pod"), 0);
    }
}

#[tokio::test]
async fn a_pod_whose_deletion_is_not_answered_is_the_only_one_that_goes() {
    for fault in
        [Fault::CutAfterEffect, Fault::AnswerAfterEffect(504, "too late"), Fault::Answer(503, "not now")]
    {
        let fixture = Fixture::start().await;
        let _controller = fixture.controller();
        fixture.deployment(3);
        fixture.ready(3).await;
        fixture.api.on("DELETE pod").fault(fault);
        fixture.spec(|spec| spec["replicas"] = json!(2));
        fixture.reported("replicas", 2).await;
        assert_eq!(fixture.names().len(), 2, "{:#?}", fixture.api.calls());
    }
}

#[tokio::test]
async fn a_request_whose_writing_is_not_answered_is_the_only_one() {
    for fault in
        [Fault::CutAfterEffect, Fault::AnswerAfterEffect(504, "too late"), Fault::Answer(429, "slowly")]
    {
        let fixture = Fixture::start().await;
        let _controller = fixture.controller();
        fixture.deployment(3);
        fixture.ready(3).await;
        fixture.api.on("PATCH pod").fault(fault);
        fixture.spec(|spec| spec["template"] = template("app:2"));
        // This checks each requested pod: never more than one at a time.
        fixture.agents_bring("app:2", 3).await;
    }
}

#[tokio::test]
async fn a_pod_that_another_client_changes_meanwhile_is_reconciled_again() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.deployment(2);
    fixture.ready(2).await;
    fixture.api.before("PATCH pod", |store| {
        let names: Vec<_> = store.pods().map(name).collect();
        for name in names {
            store.edit("shop", &name, |pod| pod["metadata"]["annotations"]["other"] = json!("1"));
        }
    });
    fixture.spec(|spec| spec["template"] = template("app:2"));
    fixture.agents_bring("app:2", 2).await;
    let failures: Vec<_> =
        fixture.api.events().into_iter().filter(|event| event["type"] == "Warning").collect();
    assert!(failures.is_empty(), "nobody needs to know: {failures:#?}");
}

#[tokio::test]
async fn a_pod_that_is_gone_before_it_is_written_is_replaced() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.deployment(2);
    fixture.ready(2).await;
    fixture.api.before("PATCH pod", |store| {
        let first = store.pods().map(name).next().unwrap();
        store.remove("shop", &first);
    });
    fixture.spec(|spec| spec["template"] = template("app:2"));
    fixture
        .api
        .until("there are two again", |store| {
            store.calls.iter().any(|call| call.starts_with("PATCH pod")) && store.pods().count() == 2
        })
        .await;
    fixture.kubelet();
    fixture.agents_bring("app:2", 2).await;
}

#[tokio::test]
async fn what_cannot_be_created_is_reported_in_few_events_and_created_once_it_can_be() {
    let fixture = Fixture::start().await;
    fixture.api.on("POST pod").times(24).fault(Fault::Answer(403, "exceeded quota: pods=0"));
    let _controller = fixture.controller();
    fixture.deployment(20);
    let failed = |web: &Value| {
        let conditions = web["status"]["conditions"].as_array().into_iter().flatten();
        let failed = conditions.clone().find(|one| one["type"] == "ScaleFailed");
        failed.is_some_and(|one| {
            one["status"] == "True" && one["message"].to_string().contains("exceeded quota")
        })
    };
    fixture.status("it is reported", failed).await;
    assert!(fixture.api.count("POST pod") <= 24, "not all are tried while none can be made");
    fixture.ready(20).await;
    fixture.status("and not reported any more", |web| !failed(web)).await;
    let events = fixture.api.events();
    assert!(events.len() <= 25, "{} events", events.len());
}

#[tokio::test]
async fn a_watch_that_breaks_off_or_lost_its_history_loses_nothing() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.deployment(2);
    fixture.ready(2).await;
    for (round, image) in ["app:2", "app:3", "app:4"].into_iter().enumerate() {
        match round {
            0 => fixture.api.end_watches(),
            1 => fixture.api.compact(),
            _ => {
                fixture.api.go_away().await;
                fixture.api.come_back().await;
            }
        }
        fixture.spec(|spec| spec["template"] = template(image));
        fixture.agents_bring(image, 2).await;
    }
    assert_eq!(fixture.names().len(), 2);
}

#[tokio::test]
async fn whoever_leads_next_goes_on_where_the_last_one_was_killed() {
    let fixture = Fixture::start().await;
    fixture.api.on("POST pod").nth(3).fault(Fault::HangAfterEffect);
    let first = fixture.controller();
    fixture.deployment(5);
    fixture.api.arrived("POST pod", 3).await;
    drop(first);
    let second = fixture.controller();
    fixture.ready(5).await;
    let names = fixture.names();
    fixture.api.on("PATCH pod").fault(Fault::HangAfterEffect);
    fixture.spec(|spec| spec["template"] = template("app:2"));
    fixture.api.arrived("PATCH pod", 1).await;
    drop(second);
    let _third = fixture.controller();
    fixture.agents_bring("app:2", 5).await;
    assert_eq!(fixture.names(), names);
}

#[tokio::test]
async fn a_status_that_somebody_else_was_faster_to_change_is_written_again() {
    let fixture = Fixture::start().await;
    fixture.api.before("PATCH gamedeployment/status", |store| {
        store.edit_of("gamedeployments", "shop", "web", |web| web["metadata"]["labels"] = json!({"a": "b"}));
    });
    let _controller = fixture.controller();
    fixture.deployment(1);
    fixture.ready(1).await;
    assert_eq!(fixture.web()["metadata"]["labels"]["a"], "b");
}
