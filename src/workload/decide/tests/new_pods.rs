//! The revision of pods that are created while an update is paused, or stopped by failures.

use super::*;

/// The images of the pods that a decision creates.
fn created_images(decision: &Decision) -> Vec<String> {
    let image = |action: &Action| match action {
        Action::CreatePod { body, .. } => {
            Some(body["spec"]["containers"][0]["image"].as_str().unwrap().to_owned())
        }
        _ => None,
    };
    decision.actions.iter().filter_map(image).collect()
}

#[test]
fn an_update_that_failures_stopped_creates_no_pod_of_its_revision() {
    for draft in [deployment(), stateful_set().with("/podManagementPolicy", json!("Parallel"))] {
        let bounds = json!({"type": "InplaceUpdate", "maxUnavailable": 1,
            "rollingUpdate": {"maxUnavailable": 1}});
        let draft = draft.with("/replicas", json!(3)).with("/updateStrategy", bounds);
        let mut sight = sight(&["web-0", "web-1", "web-2"], &draft.revision());
        step(&mut sight, &draft);
        let update = draft.image("app:2");
        step(&mut sight, &update);
        for pod in &mut sight.pods {
            let Some(task) = pod.task.clone().filter(|task| task.stage == Stage::Ordered) else { continue };
            pod.answer = Some(answer(&task.id(), Phase::RolledBack, None));
        }
        step(&mut sight, &update);
        let decision = sight.decide(&update.with("/replicas", json!(5)));
        assert_eq!(condition(&decision, "UpdateFailed").1, "TooManyFailures", "{decision:#?}");
        assert_eq!(created_images(&decision), ["app:1", "app:1"], "{decision:#?}");
    }
}

#[test]
fn a_pause_of_a_canary_step_keeps_its_partition_and_a_pause_of_the_user_the_old_revision() {
    for steps in [true, false] {
        let strategy = if steps {
            json!({"type": "InplaceUpdate", "maxUnavailable": 1,
                "canary": {"steps": [{"partition": 2}, {"pause": {}}]}})
        } else {
            json!({"type": "InplaceUpdate", "maxUnavailable": 1, "partition": 2})
        };
        let draft = deployment().with("/replicas", json!(3)).with("/updateStrategy", strategy);
        let mut sight = sight(&["web-a", "web-b", "web-c"], &draft.revision());
        step(&mut sight, &draft);
        let mut update = draft.image("app:2");
        for _ in 0..8 {
            step(&mut sight, &update);
            agents_succeed(&mut sight, "app:2");
        }
        if steps {
            assert_eq!(sight.before.steps.pauses.len(), 1);
        } else {
            update = update.with("/updateStrategy/paused", json!(true));
        }
        step(&mut sight, &update);
        let updated = sight.pods.iter().position(|pod| pod.images[0].1 == "app:2").unwrap();
        sight.pods.remove(updated);
        let expected = if steps { "app:2" } else { "app:1" };
        assert_eq!(created_images(&sight.decide(&update)), [expected], "{steps}");
        let paused = update.with("/updateStrategy/paused", json!(true));
        assert_eq!(
            created_images(&sight.decide(&paused)),
            ["app:1"],
            "the user's pause also during a step's wait"
        );
    }
}
