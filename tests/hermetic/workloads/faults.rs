//! Lost, failed and conflicting calls to the API server.

use super::super::api_server::Fault;
use super::*;

#[tokio::test]
async fn a_workload_is_made_updated_and_then_let_alone() {
    let site = Site::start().await;
    let _controller = site.controller();
    site.deployment(3);
    site.ready(3).await;
    site.spec(|spec| spec["template"] = template("app:2"));
    site.agents_bring("app:2", 3).await;
    let progress = |web: &Value| web["status"]["conditions"].to_string().contains("\"Complete\"");
    site.status("it is complete", progress).await;
    // Unchanged objects are not written again, for example after a kubelet's status update without a change.
    site.api.forget();
    for name in site.names() {
        site.api.edit("shop", &name, |pod| pod["status"]["message"] = json!("still here"));
    }
    site.spec(|spec| spec["template"]["spec"]["containers"][0]["image"] = json!("app:2"));
    site.status("the next generation is told", |_| true).await;
    let writes = site.api.writes();
    let other = |line: &&String| !line.contains("lease") && !line.starts_with("PATCH gamedeployment/status");
    assert_eq!(writes.iter().find(other), None, "{writes:#?}");
}

#[tokio::test]
async fn a_pod_whose_making_is_not_answered_is_made_once() {
    for fault in [Fault::CutAfterEffect, Fault::AnswerAfterEffect(504, "too late")] {
        let site = Site::start().await;
        site.api.on("POST pod").nth(2).fault(fault);
        let _controller = site.controller();
        site.deployment(3);
        site.ready(3).await;
        let made = site.names();
        site.spec(|spec| spec["replicas"] = json!(4));
        site.ready(4).await;
        assert!(site.names().is_superset(&made), "none was made in place of another one");
        assert_eq!(site.api.count("DELETE pod"), 0);
    }
}

#[tokio::test]
async fn a_pod_whose_deletion_is_not_answered_is_the_only_one_that_goes() {
    for fault in
        [Fault::CutAfterEffect, Fault::AnswerAfterEffect(504, "too late"), Fault::Answer(503, "not now")]
    {
        let site = Site::start().await;
        let _controller = site.controller();
        site.deployment(3);
        site.ready(3).await;
        site.api.on("DELETE pod").fault(fault);
        site.spec(|spec| spec["replicas"] = json!(2));
        site.told("replicas", 2).await;
        assert_eq!(site.names().len(), 2, "{:#?}", site.api.calls());
    }
}

#[tokio::test]
async fn a_request_whose_writing_is_not_answered_is_the_only_one() {
    for fault in
        [Fault::CutAfterEffect, Fault::AnswerAfterEffect(504, "too late"), Fault::Answer(429, "slowly")]
    {
        let site = Site::start().await;
        let _controller = site.controller();
        site.deployment(3);
        site.ready(3).await;
        site.api.on("PATCH pod").fault(fault);
        site.spec(|spec| spec["template"] = template("app:2"));
        // This checks each requested pod: never more than one at a time.
        site.agents_bring("app:2", 3).await;
    }
}

#[tokio::test]
async fn a_pod_that_somebody_changes_meanwhile_is_looked_at_again() {
    let site = Site::start().await;
    let _controller = site.controller();
    site.deployment(2);
    site.ready(2).await;
    site.api.before("PATCH pod", |store| {
        let names: Vec<_> = store.pods().map(name).collect();
        for name in names {
            store.edit("shop", &name, |pod| pod["metadata"]["annotations"]["other"] = json!("1"));
        }
    });
    site.spec(|spec| spec["template"] = template("app:2"));
    site.agents_bring("app:2", 2).await;
    let failures: Vec<_> = site.api.events().into_iter().filter(|event| event["type"] == "Warning").collect();
    assert!(failures.is_empty(), "nobody needs to know: {failures:#?}");
}

#[tokio::test]
async fn a_pod_that_is_gone_before_it_is_written_is_replaced() {
    let site = Site::start().await;
    let _controller = site.controller();
    site.deployment(2);
    site.ready(2).await;
    site.api.before("PATCH pod", |store| {
        let first = store.pods().map(name).next().unwrap();
        store.remove("shop", &first);
    });
    site.spec(|spec| spec["template"] = template("app:2"));
    site.api
        .until("there are two again", |store| {
            store.calls.iter().any(|call| call.starts_with("PATCH pod")) && store.pods().count() == 2
        })
        .await;
    site.kubelet();
    site.agents_bring("app:2", 2).await;
}

#[tokio::test]
async fn what_cannot_be_made_is_told_persistently_in_few_events_and_made_once_it_can_be() {
    let site = Site::start().await;
    site.api.on("POST pod").times(24).fault(Fault::Answer(403, "exceeded quota: pods=0"));
    let _controller = site.controller();
    site.deployment(20);
    let failed = |web: &Value| {
        let conditions = web["status"]["conditions"].as_array().into_iter().flatten();
        let failed = conditions.clone().find(|one| one["type"] == "ScaleFailed");
        failed.is_some_and(|one| {
            one["status"] == "True" && one["message"].to_string().contains("exceeded quota")
        })
    };
    site.status("it is told", failed).await;
    assert!(site.api.count("POST pod") <= 24, "not all are tried while none can be made");
    site.ready(20).await;
    site.status("and told no more", |web| !failed(web)).await;
    let events = site.api.events();
    assert!(events.len() <= 25, "{} events", events.len());
}

#[tokio::test]
async fn a_watch_that_breaks_off_or_lost_its_history_loses_nothing() {
    let site = Site::start().await;
    let _controller = site.controller();
    site.deployment(2);
    site.ready(2).await;
    for (round, image) in ["app:2", "app:3", "app:4"].into_iter().enumerate() {
        match round {
            0 => site.api.end_watches(),
            1 => site.api.compact(),
            _ => {
                site.api.go_away().await;
                site.api.come_back().await;
            }
        }
        site.spec(|spec| spec["template"] = template(image));
        site.agents_bring(image, 2).await;
    }
    assert_eq!(site.names().len(), 2);
}

#[tokio::test]
async fn whoever_leads_next_goes_on_where_the_last_one_was_killed() {
    let site = Site::start().await;
    site.api.on("POST pod").nth(3).fault(Fault::HangAfterEffect);
    let first = site.controller();
    site.deployment(5);
    site.api.arrived("POST pod", 3).await;
    drop(first);
    let second = site.controller();
    site.ready(5).await;
    let names = site.names();
    site.api.on("PATCH pod").fault(Fault::HangAfterEffect);
    site.spec(|spec| spec["template"] = template("app:2"));
    site.api.arrived("PATCH pod", 1).await;
    drop(second);
    let _third = site.controller();
    site.agents_bring("app:2", 5).await;
    assert_eq!(site.names(), names);
}

#[tokio::test]
async fn a_status_that_somebody_else_was_faster_to_change_is_written_again() {
    let site = Site::start().await;
    site.api.before("PATCH gamedeployment/status", |store| {
        store.edit_of("gamedeployments", "shop", "web", |web| web["metadata"]["labels"] = json!({"a": "b"}));
    });
    let _controller = site.controller();
    site.deployment(1);
    site.ready(1).await;
    assert_eq!(site.web()["metadata"]["labels"]["a"], "b");
}
