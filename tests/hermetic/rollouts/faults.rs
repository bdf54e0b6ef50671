//! Lost, failed and conflicting calls to the API server, and `PodDisruptionBudget`s.

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
async fn a_pod_that_somebody_changes_meanwhile_is_looked_at_again() {
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

fn budget(rollout_fixture: &RolloutFixture, allowed: i64) {
    rollout_fixture.fixture.api.put(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "shop", "name": "web", "generation": 1},
        "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 4, "desiredHealthy": 3, "expectedPods": 4}}));
}

/// What the disruption controller does.
fn count(store: &mut Store) {
    store.edit_of("poddisruptionbudgets", "shop", "web", |budget| {
        let out = budget["status"]["disruptedPods"].as_object().map_or(0, serde_json::Map::len);
        budget["status"]["disruptionsAllowed"] =
            json!(1_i64.saturating_sub(i64::try_from(out).unwrap()).max(0));
    });
}

#[tokio::test]
async fn a_disruption_budget_is_claimed_before_and_given_back_afterwards() {
    let rollout_fixture = RolloutFixture::with(4).await;
    budget(&rollout_fixture, 0);
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"maxUnavailable": 3}));
    let status =
        rollout_fixture.status("one", "it waits", |status| status["reason"] == "PodDisruptionBudget").await;
    assert!(status["message"].as_str().unwrap().contains("PodDisruptionBudget web"), "{status:#}");
    rollout_fixture.open(&[]).await;
    rollout_fixture.fixture.api.store(count);
    for index in 0..4 {
        let name = format!("web-1-{index}");
        rollout_fixture.open(&[&name]).await;
        let budget = rollout_fixture.fixture.api.get("poddisruptionbudgets", "shop", "web").unwrap();
        assert_eq!(budget["status"]["disruptionsAllowed"], 0, "{budget:#}");
        assert!(!budget["status"]["disruptedPods"][&name].is_null(), "{budget:#}");
        rollout_fixture.answer(&name, "Succeeded");
        let given_back = |store: &Store| {
            let budget = store.get("poddisruptionbudgets", "shop", "web").unwrap();
            budget["status"]["disruptedPods"][&name].is_null()
        };
        rollout_fixture.fixture.api.until("its entry is gone", given_back).await;
        rollout_fixture.fixture.api.store(count);
    }
    rollout_fixture.phase("one", "Succeeded").await;
}

#[tokio::test]
async fn a_claim_of_which_nothing_came_is_given_back() {
    let rollout_fixture = RolloutFixture::with(1).await;
    budget(&rollout_fixture, 1);
    rollout_fixture.fixture.api.before("PATCH pod", |store| {
        store.edit("shop", "web-1-0", |pod| pod["metadata"]["annotations"]["other"] = json!("1"));
        store.edit_of("poddisruptionbudgets", "shop", "web", |budget| {
            assert_eq!(budget["status"]["disruptedPods"].as_object().unwrap().len(), 1);
        });
    });
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({}));
    let free = |store: &Store| {
        let budget = store.get("poddisruptionbudgets", "shop", "web").unwrap();
        let has = budget["status"]["disruptedPods"].as_object().is_some_and(|pods| !pods.is_empty());
        store.calls.iter().any(|call| call.starts_with("PATCH pod ")) && !has
    };
    rollout_fixture.fixture.api.until("it is given back", free).await;
    rollout_fixture.fixture.api.store(count);
    let asked = rollout_fixture.agents("one", 1, |status| status["phase"] == "Succeeded").await;
    assert_eq!(asked, ["web-1-0"]);
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
