//! A status is written exactly once, whatever faults the API server has and wherever the agent crashes.

use std::sync::Arc;

use super::super::api_server::Fault as ApiFault;
use super::Town;

#[tokio::test]
async fn what_the_server_turns_away_is_written_again() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    town.kubelet("web-0");
    let _agent = town.agent().await;
    town.api.on("PATCH pod").fault(ApiFault::Answer(429, "slow down"));
    town.api.on("PATCH pod").nth(3).fault(ApiFault::Answer(500, "broken"));
    town.api.on("PATCH pod").nth(4).fault(ApiFault::CutAfterEffect);
    town.pod_request("web-0", Some("restart app"));
    town.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(town.events(1).await, ["InPlaceSucceeded"]);
    assert_eq!(town.attempt("web-0"), 1);
}

#[tokio::test]
async fn an_event_whose_answer_was_lost_has_the_same_name_when_it_is_written_again() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    town.kubelet("web-0");
    let _agent = town.agent().await;
    town.api.on("POST event").fault(ApiFault::Answer(503, "broken"));
    town.pod_request("web-0", Some("restart app"));
    town.events(1).await;
    let posts: Vec<_> = town.api.writes().into_iter().filter(|call| call.starts_with("POST event")).collect();
    assert_eq!(posts.len(), 2);
    assert_eq!(posts[0], posts[1]);
}

#[tokio::test]
async fn an_answer_that_a_crash_kept_back_is_told_by_the_next_process() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    town.kubelet("web-0");
    let agent = town.agent().await;
    // The final status is in the journal when this call arrives.
    town.api.on("PATCH pod").nth(2).fault(ApiFault::Hang);
    town.pod_request("web-0", Some("restart app"));
    town.reported("web-0", "text-", "Running").await;
    town.api.arrived("PATCH pod shop/web-0", 2).await;
    agent.kill();
    assert_eq!(town.attempt("web-0"), 1);
    let before = town.status("web-0").unwrap();
    assert_eq!(before["phase"], "Running");
    // The request is deleted, but its final status has not been written yet.
    town.pod_request("web-0", None);
    let _agent = town.agent().await;
    let status = town.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(status["id"], before["id"]);
    assert_eq!(town.attempt("web-0"), 1);
    assert!(town.api.events().is_empty(), "its events were those of the process that died");
}

#[tokio::test]
async fn a_pod_that_is_gone_gets_no_answer() {
    let town = Arc::new(Town::found().await);
    town.pod("web-0");
    town.pod("web-1");
    town.kubelet("web-1");
    let agent = town.agent().await;
    town.api.before("PATCH pod", |store| store.remove("shop", "web-0"));
    town.pod_request("web-0", Some("restart app"));
    town.api.arrived("PATCH pod shop/web-0", 1).await;
    town.pod_request("web-1", Some("restart app"));
    town.reported("web-1", "text-", "Succeeded").await;
    // Nothing is left to write, so the agent ends at once and without a warning.
    agent.stop();
    assert!(town.api.count("PATCH pod shop/web-0") <= 2, "{:#?}", town.api.writes());
}
