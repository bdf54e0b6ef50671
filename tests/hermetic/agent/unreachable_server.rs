//! The API server is unreachable: running operations continue, open ones are resumed, and a missing answer changes
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use inplace::api::annotation;

use super::super::api_server;
use super::super::runtime::Fault;
use super::Fixture;

/// Starts a restart whose stop takes a moment, and makes the API server unreachable in between.
async fn cut_off_in_the_middle(fixture: &Fixture) {
    fixture.runtime.on("StopContainer").fault(Fault::Slow(Duration::from_secs(3)));
    fixture.pod_request("web-0", Some("restart app"));
    fixture.runtime.arrived("StopContainer", "app#0").await;
    fixture.reported("web-0", "text-", "Running").await;
    fixture.api.go_away().await;
}

#[tokio::test]
async fn an_end_without_an_api_server_is_reported_when_the_server_is_back() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    let _agent = fixture.agent().await;
    cut_off_in_the_middle(&fixture).await;
    fixture
        .runtime
        .until("the new instance", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    assert_eq!(fixture.status("web-0").unwrap()["phase"], "Running");
    fixture.kubelet("web-0");
    fixture.api.edit("shop", "web-0", |pod| super::show(pod, &fixture.runtime.only("web-0/app").id, 1));
    fixture.api.come_back().await;
    fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(fixture.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(fixture.attempt("web-0"), 1);
}

#[tokio::test]
async fn what_a_process_left_open_is_taken_up_without_the_server_and_not_withdrawn_with_it() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    let agent = fixture.agent().await;
    fixture.runtime.on("StopContainer").fault(Fault::Hang);
    fixture.pod_request("web-0", Some("restart app"));
    fixture.runtime.arrived("StopContainer", "app#0").await;
    fixture.reported("web-0", "text-", "Running").await;
    agent.kill();
    fixture.api.go_away().await;
    let _agent = fixture.agent_in_the_dark();
    fixture
        .runtime
        .until("the new instance", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    fixture.api.edit("shop", "web-0", |pod| super::show(pod, &fixture.runtime.only("web-0/app").id, 1));
    fixture.api.come_back().await;
    let status = fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["containers"][0]["to"]["attempt"], 1);
    assert_eq!(fixture.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(fixture.attempt("web-0"), 1);
}

#[tokio::test]
async fn a_request_that_was_open_and_is_withdrawn_before_anything_is_touched_ends() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let agent = fixture.agent().await;
    fixture.runtime.on("PullImage").times(2).fault(Fault::Hang);
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    fixture.runtime.arrived("PullImage", "img:v2").await;
    fixture.reported("web-0", "text-", "Running").await;
    agent.kill();
    fixture.pod_request("web-0", None);
    let _agent = fixture.agent().await;
    let status = fixture.reported("web-0", "text-", "Cancelled").await;
    assert_eq!(status["reason"], "RequestDeleted");
    assert_eq!(fixture.attempt("web-0"), 0);
}

/// The pod does not show that the request was there; the journal does.
#[tokio::test]
async fn a_request_that_was_open_without_a_status_and_is_withdrawn_ends_as_well() {
    let fixture = Fixture::found().await;
    fixture.pod("web-0");
    let agent = fixture.agent().await;
    fixture.runtime.on("PullImage").times(2).fault(Fault::Hang);
    fixture.api.on("PATCH pod").fault(api_server::Fault::Hang);
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    fixture.runtime.arrived("PullImage", "img:v2").await;
    fixture.api.arrived("PATCH pod shop/web-0", 1).await;
    agent.kill();
    assert_eq!(fixture.status("web-0"), None);
    fixture.pod_request("web-0", None);
    let _agent = fixture.agent().await;
    let status = fixture.reported("web-0", "text-", "Cancelled").await;
    assert_eq!(status["reason"], "RequestDeleted");
    assert_eq!(fixture.attempt("web-0"), 0);
}

#[tokio::test]
async fn what_is_requested_during_the_outage_is_done_after_it() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.pod("web-1");
    fixture.kubelet("web-0");
    fixture.kubelet("web-1");
    let _agent = fixture.agent().await;
    cut_off_in_the_middle(&fixture).await;
    // Written while the agent does not receive it.
    fixture.pod_request("web-1", Some("restart app"));
    fixture
        .runtime
        .until("the new instance", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    assert_eq!(fixture.attempt("web-1"), 0);
    fixture.api.come_back().await;
    fixture.reported("web-1", "text-", "Succeeded").await;
    fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!((fixture.attempt("web-0"), fixture.attempt("web-1")), (1, 1));
}

#[tokio::test]
async fn a_server_that_lags_behind_withdraws_nothing() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.pod("web-1");
    fixture.kubelet("web-0");
    fixture.kubelet("web-1");
    let _agent = fixture.agent().await;
    // One of several API servers, whose watch cache is older than the state that another one has returned.
    fixture.api.lag();
    fixture.runtime.on("PullImage").fault(Fault::Hang);
    fixture.pod_request("web-0", Some(r#"{"id":"a","containers":[{"name":"app","image":"img:v2"}]}"#));
    fixture.runtime.arrived("PullImage", "img:v2").await;
    fixture.reported("web-0", "a", "Running").await;
    let lists = fixture.api.count("LIST pods");
    let watches = fixture.api.count("WATCH pods");
    // Meanwhile the version to continue the watch from has expired.
    fixture.api.on("WATCH pods").fault(api_server::Fault::Answer(410, "too old resource version"));
    fixture.api.end_watches();
    fixture.api.arrived("LIST pods", lists + 1).await;
    fixture.api.arrived("WATCH pods", watches + 2).await;
    // A request that is served afterwards proves that the list has been processed.
    fixture.pod_request("web-1", Some("restart app"));
    fixture.reported("web-1", "text-", "Succeeded").await;
    assert_eq!(fixture.status("web-0").unwrap()["phase"], "Running", "{:#?}", fixture.api.events());
    fixture.pod_request("web-0", None);
    fixture.reported("web-0", "a", "Cancelled").await;
    assert_eq!(fixture.attempt("web-0"), 0);
}

#[tokio::test]
async fn silence_of_the_server_is_not_held_against_a_container() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod_with("web-0", |pod| {
        super::close(pod, "True", inplace::api::annotation::GATE_READY);
        pod["spec"]["containers"][0]["readinessProbe"] = serde_json::json!({ "tcpSocket": { "port": 80 } });
    });
    let _agent = fixture.agent().await;
    fixture.runtime.on("StopContainer").fault(Fault::Slow(Duration::from_secs(3)));
    fixture.pod_request("web-0", Some(r#"{"id":"a","containers":[{"name":"app"}],"readyTimeoutSeconds":1}"#));
    fixture.runtime.arrived("StopContainer", "app#0").await;
    fixture.reported("web-0", "a", "Running").await;
    fixture.api.mute(true);
    fixture
        .runtime
        .until("the new instance", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    // The kubelet has reported Ready, but the agent's watch does not deliver it.
    let id = fixture.runtime.only("web-0/app").id;
    fixture.api.edit("shop", "web-0", |pod| super::show(pod, &id, 1));
    // The time to become Ready has passed when the agent reads the pod.
    let reads = fixture.api.count("GET pod shop/web-0");
    fixture.api.arrived("GET pod shop/web-0", reads + 2).await;
    fixture.api.mute(false);
    fixture.reported("web-0", "a", "Succeeded").await;
    assert_eq!(fixture.attempt("web-0"), 1);
}

#[tokio::test]
async fn a_container_that_is_not_ready_in_time_is_reported_after_one_more_observation() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod_with("web-0", |pod| {
        super::close(pod, "True", inplace::api::annotation::GATE_READY);
        pod["spec"]["containers"][0]["readinessProbe"] = serde_json::json!({ "tcpSocket": { "port": 80 } });
        pod["status"]["containerStatuses"][0]["ready"] = serde_json::json!(false);
    });
    fixture.kubelet("web-0");
    let _agent = fixture.agent().await;
    let reads = fixture.api.count("GET pod shop/web-0");
    fixture.pod_request("web-0", Some(r#"{"id":"a","containers":[{"name":"app"}],"readyTimeoutSeconds":1}"#));
    let status = fixture.reported("web-0", "a", "Failed").await;
    assert_eq!(status["reason"], "NotReady", "{status:#}");
    assert_eq!(fixture.api.count("GET pod shop/web-0"), reads + 1);
}

/// Names are taken per pod, regardless of the sandbox: after a reboot, the old fence would block the kubelet that
/// the operation waits for.
#[tokio::test]
async fn a_kubelet_that_starts_the_pod_anew_after_a_reboot_finds_no_name_taken() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    let agent = fixture.agent().await;
    fixture.runtime.on("StartContainer").fault(Fault::Hang);
    fixture.pod_request("web-0", Some("restart app"));
    fixture.runtime.arrived("StartContainer", "app#1").await;
    fixture.reported("web-0", "text-", "Running").await;
    agent.kill();
    let sandbox = fixture.runtime.model(|model| {
        assert_eq!(model.fences("web-0/app").len(), 1);
        let old = model.sandboxes[0].clone();
        model.stop_sandbox(&old.id);
        let mut config = old.config;
        config.metadata.as_mut().unwrap().attempt = 1;
        model.run_sandbox(config, "").unwrap()
    });
    let start_anew = |model: &mut super::super::runtime::Model| {
        let newest = model.instances("web-0/app").last().copied().cloned().unwrap();
        let mut config = newest.config.clone();
        config.metadata.as_mut().unwrap().attempt = 2;
        config.labels.remove(annotation::OPERATION);
        let id = model.create(&sandbox, config, newest.pod_config)?;
        model.start(&id).map(|()| id)
    };
    assert!(fixture.runtime.model(start_anew).is_err(), "the fence holds the name");
    let _agent = fixture.agent().await;
    fixture.runtime.until("the name to be free", |model| model.fences("web-0/app").is_empty()).await;
    assert_eq!(fixture.status("web-0").unwrap()["phase"], "Running");
    let id = fixture.runtime.model(start_anew).unwrap();
    fixture.api.edit("shop", "web-0", |pod| super::show(pod, &id, 2));
    let status = fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["containers"][0]["to"]["containerID"], *id, "{status:#}");
}
