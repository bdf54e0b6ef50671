//! Lost, failed and conflicting calls to the API server.

use super::super::api_server::Fault;
use super::*;

#[tokio::test]
async fn a_write_whose_answer_is_lost_asks_no_pod_twice() {
    for fault in
        [Fault::CutAfterEffect, Fault::AnswerAfterEffect(504, "too late"), Fault::Answer(429, "slowly")]
    {
        let rollout_fixture = RolloutFixture::with(4).await;
        rollout_fixture.fixture.api.on("PATCH pod").fault(fault);
        let _controller = rollout_fixture.fixture.controller();
        rollout_fixture.restart("one", &json!({}));
        let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
        assert_eq!(asked, all());
    }
}

#[tokio::test]
async fn whoever_leads_next_goes_on_where_the_last_one_was_killed() {
    let rollout_fixture = RolloutFixture::with(4).await;
    let first = rollout_fixture.fixture.controller();
    rollout_fixture.fixture.api.on("PATCH pod").fault(Fault::HangAfterEffect);
    rollout_fixture.restart("one", &json!({}));
    rollout_fixture.fixture.api.arrived("PATCH pod", 1).await;
    drop(first);
    let second = rollout_fixture.fixture.controller();
    rollout_fixture.open(&["web-1-0"]).await;
    rollout_fixture.answer("web-1-0", "Succeeded");
    // The controller is killed when the end of the first pod is recorded and the status does not report it yet.
    rollout_fixture.fixture.api.on("PATCH inplacerollout/status").fault(Fault::HangAfterEffect);
    rollout_fixture.fixture.api.forget();
    rollout_fixture.fixture.api.arrived("PATCH pod", 1).await;
    drop(second);
    let _third = rollout_fixture.fixture.controller();
    let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, all()[1..]);
}

#[tokio::test]
async fn a_pod_that_another_client_changes_meanwhile_is_reconciled_again() {
    let rollout_fixture = RolloutFixture::with(4).await;
    rollout_fixture.fixture.api.before("PATCH pod", |store| {
        let names: Vec<_> = store.pods().map(name).collect();
        for name in names {
            store.edit("shop", &name, |pod| pod["metadata"]["annotations"]["other"] = json!("1"));
        }
    });
    rollout_fixture.fixture.api.before("PATCH inplacerollout/status", |store| {
        store.edit_of("inplacerollouts", "shop", "one", |one| one["metadata"]["labels"] = json!({"a": "b"}));
    });
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({}));
    let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, all());
}

#[tokio::test]
async fn a_refused_write_after_a_resume_does_not_look_like_the_end() {
    let rollout_fixture = RolloutFixture::with(2).await;
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"paused": true}));
    rollout_fixture.phase("one", "Paused").await;
    rollout_fixture.fixture.api.on("PATCH pod").times(2).fault(Fault::Answer(403, "not now"));
    rollout_fixture.rollout("one", |spec| spec["paused"] = json!(false));
    let failed = |status: &Value| status["reason"] == "WriteFailed";
    let status = rollout_fixture.status("one", "the write failed", failed).await;
    assert_eq!((&status["phase"], &status["busy"]), (&json!("Running"), &json!(0)), "{status:#}");
    let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-0", "web-1-1"]);
}

#[tokio::test]
async fn a_pod_that_somebody_else_works_on_waits() {
    let rollout_fixture = RolloutFixture::with(2).await;
    rollout_fixture.fixture.api.edit("shop", "web-1-0", |pod| {
        pod["metadata"]["annotations"]["inplace.dev/request"] = json!("restart app #mine");
    });
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"maxUnavailable": 2}));
    rollout_fixture.open(&["web-1-0", "web-1-1"]).await;
    assert!(record(&rollout_fixture.pod(0)).is_null());
    rollout_fixture.answer("web-1-1", "Succeeded");
    let status = rollout_fixture.status("one", "it waits", |status| status["reason"] == "PodsTaken").await;
    assert_eq!(status["done"], 1);
    rollout_fixture.answer("web-1-0", "Succeeded");
    let asked = rollout_fixture.agents("one", 2, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-0"]);
}
