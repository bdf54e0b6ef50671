//! `PodDisruptionBudget`s: claimed before a pod is begun, released afterwards, and read from a cache.

use super::*;

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
async fn budgets_are_listed_at_the_start_of_a_rollout_and_watched_from_then_on() {
    let rollout_fixture = RolloutFixture::with(4).await;
    budget(&rollout_fixture, 0);
    let _controller = rollout_fixture.fixture.controller();
    let listed = || rollout_fixture.fixture.api.count("LIST poddisruptionbudgets");
    rollout_fixture.restart("one", &json!({"maxUnavailable": 3}));
    rollout_fixture.status("one", "it waits", |status| status["reason"] == "PodDisruptionBudget").await;
    let at_start = listed();
    assert!((1..=3).contains(&at_start), "{at_start} lists");
    rollout_fixture.fixture.api.store(count);
    for index in 0..4 {
        let name = format!("web-1-{index}");
        rollout_fixture.open(&[&name]).await;
        rollout_fixture.answer(&name, "Succeeded");
        let released = |store: &Store| {
            let budget = store.get("poddisruptionbudgets", "shop", "web").unwrap();
            budget["status"]["disruptedPods"][&name].is_null()
        };
        rollout_fixture.fixture.api.until("its entry is gone", released).await;
        rollout_fixture.fixture.api.store(count);
    }
    rollout_fixture.phase("one", "Succeeded").await;
    assert_eq!(listed(), at_start, "{:#?}", rollout_fixture.fixture.api.calls());
}

#[tokio::test]
async fn two_rollouts_share_what_a_budget_allows() {
    let rollout_fixture = RolloutFixture::with(4).await;
    let api = &rollout_fixture.fixture.api;
    budget(&rollout_fixture, 1);
    let _controller = rollout_fixture.fixture.controller();
    rollout_fixture.restart("one", &json!({"maxUnavailable": 4}));
    let labels = json!({"selector": {"matchLabels": {"app": "web"}}});
    rollout_fixture.restart("two", &json!({"maxUnavailable": 4, "target": labels}));
    let asked =
        |store: &Store| -> Vec<_> { store.pods().filter(|pod| open(pod).is_some()).map(name).collect() };
    let over = |store: &Store| {
        ["one", "two"].iter().all(|rollout| {
            store.get("inplacerollouts", "shop", rollout).unwrap()["status"]["phase"] == "Succeeded"
        })
    };
    // An agent refuses an id that has ended before the last one: each pod is asked once by each rollout.
    let mut restarts = Vec::new();
    loop {
        api.until("a pod is asked for, or both are over", |store| over(store) || !asked(store).is_empty())
            .await;
        let now = api.store(|store| asked(store));
        let Some(pod) = now.first() else { break };
        assert_eq!(now.len(), 1, "the budget allows one: {now:?}");
        restarts.push((pod.clone(), open(&api.pod("shop", pod)).map(|request| request.id)));
        rollout_fixture.answer(pod, "Succeeded");
        let released = |store: &Store| {
            let budget = store.get("poddisruptionbudgets", "shop", "web").unwrap();
            budget["status"]["disruptedPods"][pod].is_null()
        };
        api.until("its entry is gone", released).await;
        api.store(count);
    }
    assert_eq!(restarts.len(), 8, "{restarts:?}");
    assert_eq!(
        restarts.iter().collect::<BTreeSet<_>>().len(),
        8,
        "each pod once for each rollout: {restarts:?}"
    );
}
