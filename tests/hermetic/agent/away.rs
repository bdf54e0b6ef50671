//! The API server is away: what is under way goes on, what was open is taken up, and nothing is concluded from silence.

use std::sync::Arc;
use std::time::Duration;

use super::super::runtime::Fault;
use super::Town;

/// Begins a restart that takes a moment at its stop, and takes the API server away meanwhile.
async fn cut_off_in_the_middle(town: &Town) {
    town.runtime.on("StopContainer").fault(Fault::Slow(Duration::from_millis(500)));
    town.wish("web-0", Some("restart app"));
    town.runtime.arrived("StopContainer", "app#0").await;
    town.told("web-0", "text-", "Running").await;
    town.api.go_away().await;
}

#[tokio::test]
async fn an_end_that_nobody_could_hear_is_told_when_the_server_is_back() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    let _agent = town.agent().await;
    cut_off_in_the_middle(&town).await;
    town.runtime
        .until("the new life", |model| model.running("web-0/app").iter().any(|life| life.attempt() == 1))
        .await;
    assert_eq!(town.status("web-0").unwrap()["phase"], "Running");
    town.kubelet("web-0");
    town.api.edit("shop", "web-0", |pod| super::show(pod, &town.runtime.only("web-0/app").id, 1));
    town.api.come_back().await;
    town.told("web-0", "text-", "Succeeded").await;
    assert_eq!(town.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(town.attempt("web-0"), 1);
}

#[tokio::test]
async fn what_a_process_left_open_is_taken_up_without_the_server_and_not_withdrawn_with_it() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    let agent = town.agent().await;
    town.runtime.on("StopContainer").fault(Fault::Hang);
    town.wish("web-0", Some("restart app"));
    town.runtime.arrived("StopContainer", "app#0").await;
    town.told("web-0", "text-", "Running").await;
    agent.kill();
    town.api.go_away().await;
    let _agent = town.agent_in_the_dark();
    town.runtime
        .until("the new life", |model| model.running("web-0/app").iter().any(|life| life.attempt() == 1))
        .await;
    town.api.edit("shop", "web-0", |pod| super::show(pod, &town.runtime.only("web-0/app").id, 1));
    town.api.come_back().await;
    let status = town.told("web-0", "text-", "Succeeded").await;
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
    town.wish("web-0", Some("swap app=img:v2"));
    town.runtime.arrived("PullImage", "img:v2").await;
    town.told("web-0", "text-", "Running").await;
    agent.kill();
    town.wish("web-0", None);
    let _agent = town.agent().await;
    let status = town.told("web-0", "text-", "Cancelled").await;
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
    // Written while nobody hears it.
    town.wish("web-1", Some("restart app"));
    town.runtime
        .until("the new life", |model| model.running("web-0/app").iter().any(|life| life.attempt() == 1))
        .await;
    assert_eq!(town.attempt("web-1"), 0);
    town.api.come_back().await;
    town.told("web-1", "text-", "Succeeded").await;
    town.told("web-0", "text-", "Succeeded").await;
    assert_eq!((town.attempt("web-0"), town.attempt("web-1")), (1, 1));
}
