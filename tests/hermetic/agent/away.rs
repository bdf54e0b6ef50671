//! The API server is unreachable: running operations continue, open ones are resumed, and a missing answer changes
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use inplace::api::annotation;

use super::super::api_server;
use super::super::runtime::Fault;
use super::Town;

/// Starts a restart whose stop takes a moment, and makes the API server unreachable in between.
async fn cut_off_in_the_middle(town: &Town) {
    town.runtime.on("StopContainer").fault(Fault::Slow(Duration::from_millis(500)));
    town.pod_request("web-0", Some("restart app"));
    town.runtime.arrived("StopContainer", "app#0").await;
    town.reported("web-0", "text-", "Running").await;
    town.api.go_away().await;
}

#[tokio::test]
async fn an_end_that_nobody_could_hear_is_told_when_the_server_is_back() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    let _agent = town.agent().await;
    cut_off_in_the_middle(&town).await;
    town.runtime
        .until("the new life", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    assert_eq!(town.status("web-0").unwrap()["phase"], "Running");
    town.kubelet("web-0");
    town.api.edit("shop", "web-0", |pod| super::show(pod, &town.runtime.only("web-0/app").id, 1));
    town.api.come_back().await;
    town.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(town.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(town.attempt("web-0"), 1);
}

#[tokio::test]
async fn what_a_process_left_open_is_taken_up_without_the_server_and_not_withdrawn_with_it() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    let agent = town.agent().await;
    town.runtime.on("StopContainer").fault(Fault::Hang);
    town.pod_request("web-0", Some("restart app"));
    town.runtime.arrived("StopContainer", "app#0").await;
    town.reported("web-0", "text-", "Running").await;
    agent.kill();
    town.api.go_away().await;
    let _agent = town.agent_in_the_dark();
    town.runtime
        .until("the new life", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    town.api.edit("shop", "web-0", |pod| super::show(pod, &town.runtime.only("web-0/app").id, 1));
    town.api.come_back().await;
    let status = town.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["containers"][0]["to"]["attempt"], 1);
    assert_eq!(town.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(town.attempt("web-0"), 1);
}

#[tokio::test]
async fn a_request_that_was_open_and_is_withdrawn_before_anything_is_touched_ends() {
    let town = Town::found().await;
    town.pod("web-0");
    let agent = town.agent().await;
    town.runtime.on("PullImage").times(2).fault(Fault::Hang);
    town.pod_request("web-0", Some("swap app=img:v2"));
    town.runtime.arrived("PullImage", "img:v2").await;
    town.reported("web-0", "text-", "Running").await;
    agent.kill();
    town.pod_request("web-0", None);
    let _agent = town.agent().await;
    let status = town.reported("web-0", "text-", "Cancelled").await;
    assert_eq!(status["reason"], "RequestDeleted");
    assert_eq!(town.attempt("web-0"), 0);
}

#[tokio::test]
async fn what_is_wished_in_the_silence_is_done_after_it() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    town.pod("web-1");
    town.kubelet("web-0");
    town.kubelet("web-1");
    let _agent = town.agent().await;
    cut_off_in_the_middle(&town).await;
    // Written while the agent does not receive it.
    town.pod_request("web-1", Some("restart app"));
    town.runtime
        .until("the new life", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    assert_eq!(town.attempt("web-1"), 0);
    town.api.come_back().await;
    town.reported("web-1", "text-", "Succeeded").await;
    town.reported("web-0", "text-", "Succeeded").await;
    assert_eq!((town.attempt("web-0"), town.attempt("web-1")), (1, 1));
}

#[tokio::test]
async fn a_server_that_lags_behind_withdraws_nothing() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    town.pod("web-1");
    town.kubelet("web-0");
    town.kubelet("web-1");
    let _agent = town.agent().await;
    // One of several API servers, whose watch cache is older than the state that another one has returned.
    town.api.lag();
    town.runtime.on("PullImage").fault(Fault::Hang);
    town.pod_request("web-0", Some(r#"{"id":"a","containers":[{"name":"app","image":"img:v2"}]}"#));
    town.runtime.arrived("PullImage", "img:v2").await;
    town.reported("web-0", "a", "Running").await;
    let lists = town.api.count("LIST pods");
    let watches = town.api.count("WATCH pods");
    // Meanwhile the version to continue the watch from has expired.
    town.api.on("WATCH pods").fault(api_server::Fault::Answer(410, "too old resource version"));
    town.api.end_watches();
    town.api.arrived("LIST pods", lists + 1).await;
    town.api.arrived("WATCH pods", watches + 2).await;
    // A request that is served afterwards proves that the list has been processed.
    town.pod_request("web-1", Some("restart app"));
    town.reported("web-1", "text-", "Succeeded").await;
    assert_eq!(town.status("web-0").unwrap()["phase"], "Running", "{:#?}", town.api.events());
    town.pod_request("web-0", None);
    town.reported("web-0", "a", "Cancelled").await;
    assert_eq!(town.attempt("web-0"), 0);
}

#[tokio::test]
async fn silence_of_the_server_is_not_held_against_a_container() {
    let town = Arc::new(Town::found().await);
    town.pod_with("web-0", |pod| {
        super::close(pod, "True", inplace::api::annotation::GATE_READY);
        pod["spec"]["containers"][0]["readinessProbe"] = serde_json::json!({ "tcpSocket": { "port": 80 } });
    });
    let _agent = town.agent().await;
    town.runtime.on("StopContainer").fault(Fault::Slow(Duration::from_millis(300)));
    town.pod_request("web-0", Some(r#"{"id":"a","containers":[{"name":"app"}],"readyTimeoutSeconds":1}"#));
    town.runtime.arrived("StopContainer", "app#0").await;
    town.reported("web-0", "a", "Running").await;
    town.api.mute(true);
    town.runtime
        .until("the new life", |model| {
            model.running("web-0/app").iter().any(|instance| instance.attempt() == 1)
        })
        .await;
    // The kubelet has reported Ready, but the agent's watch does not deliver it.
    let id = town.runtime.only("web-0/app").id;
    town.api.edit("shop", "web-0", |pod| super::show(pod, &id, 1));
    // The time to become Ready has passed when the agent reads the pod.
    let reads = town.api.count("GET pod shop/web-0");
    town.api.arrived("GET pod shop/web-0", reads + 2).await;
    town.api.mute(false);
    town.reported("web-0", "a", "Succeeded").await;
    assert_eq!(town.attempt("web-0"), 1);
}

#[tokio::test]
async fn a_container_that_is_not_ready_in_time_is_told_so_after_one_more_look() {
    let town = Arc::new(Town::found().await);
    town.pod_with("web-0", |pod| {
        super::close(pod, "True", inplace::api::annotation::GATE_READY);
        pod["spec"]["containers"][0]["readinessProbe"] = serde_json::json!({ "tcpSocket": { "port": 80 } });
        pod["status"]["containerStatuses"][0]["ready"] = serde_json::json!(false);
    });
    town.kubelet("web-0");
    let _agent = town.agent().await;
    let reads = town.api.count("GET pod shop/web-0");
    town.pod_request("web-0", Some(r#"{"id":"a","containers":[{"name":"app"}],"readyTimeoutSeconds":1}"#));
    let status = town.reported("web-0", "a", "Failed").await;
    assert_eq!(status["reason"], "NotReady", "{status:#}");
    assert_eq!(town.api.count("GET pod shop/web-0"), reads + 1);
}

/// Names are taken per pod, regardless of the sandbox: after a reboot, the old fence would block the kubelet that
/// the operation waits for.
#[tokio::test]
async fn a_kubelet_that_starts_the_pod_anew_after_a_reboot_finds_no_name_taken() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    let agent = town.agent().await;
    town.runtime.on("StartContainer").fault(Fault::Hang);
    town.pod_request("web-0", Some("restart app"));
    town.runtime.arrived("StartContainer", "app#1").await;
    agent.kill();
    let sandbox = town.runtime.model(|model| {
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
    assert!(town.runtime.model(start_anew).is_err(), "the fence holds the name");
    let _agent = town.agent().await;
    town.runtime.until("the name to be free", |model| model.fences("web-0/app").is_empty()).await;
    assert_eq!(town.status("web-0").unwrap()["phase"], "Running");
    let id = town.runtime.model(start_anew).unwrap();
    town.api.edit("shop", "web-0", |pod| super::show(pod, &id, 2));
    let status = town.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["containers"][0]["to"]["containerID"], *id, "{status:#}");
}
