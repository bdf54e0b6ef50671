//! `PodDisruptionBudget`s and updates in place: a pod is claimed before it is begun, and released afterwards.

use super::*;

fn budget(store: &Store) -> Value {
    store.get("poddisruptionbudgets", "shop", "web").unwrap()["status"].clone()
}

/// What the disruption controller does: of three pods two are demanded.
fn count(store: &mut Store) {
    store.edit_of("poddisruptionbudgets", "shop", "web", |budget| {
        let out = budget["status"]["disruptedPods"].as_object().map_or(0, serde_json::Map::len);
        budget["status"]["disruptionsAllowed"] = json!(u8::from(out == 0));
    });
}

#[tokio::test]
async fn an_update_in_place_waits_for_a_budget_and_claims_at_it() {
    let fixture = Fixture::start().await;
    let _controller = fixture.controller();
    fixture.deployment(3);
    fixture.ready(3).await;
    fixture.api.put(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"namespace": "shop", "name": "web", "generation": 1},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 3, "desiredHealthy": 2}}));
    // The budget was created before the change: it binds, however late its watch is.
    fixture.spec(|spec| {
        spec["template"] = template("app:2");
        spec["updateStrategy"]["maxUnavailable"] = json!(3);
    });
    let waits = |web: &Value| {
        let conditions = web["status"]["conditions"].as_array().unwrap();
        conditions.iter().any(|one| one["status"] == "True" && one["reason"] == "PodDisruptionBudget")
    };
    fixture.status("it waits for the budget", waits).await;
    assert!(fixture.api.store(|store| store.pods().all(|pod| open(pod).is_none())));
    fixture.api.store(count);
    for _ in 0..3 {
        let asked =
            |store: &Store| store.pods().filter(|pod| open(pod).is_some()).map(name).collect::<Vec<_>>();
        fixture.api.until("a pod is asked for", |store| !asked(store).is_empty()).await;
        let asked = fixture.api.store(|store| asked(store));
        assert_eq!(asked.len(), 1, "the budget allows one");
        let status = fixture.api.store(|store| budget(store));
        assert_eq!(status["disruptionsAllowed"], 0, "{status:#}");
        assert!(!status["disruptedPods"][&asked[0]].is_null(), "{status:#}");
        fixture.api.edit("shop", &asked[0], carry_out);
        let released = |store: &Store| budget(store)["disruptedPods"][&asked[0]].is_null();
        fixture.api.until("its entry is gone", released).await;
        fixture.api.store(count);
    }
    fixture.reported("updatedReadyReplicas", 3).await;
}
