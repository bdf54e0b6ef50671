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

/// The agents roll back what they were asked for.
fn agents_fail(sight: &mut Sight) {
    for pod in &mut sight.pods {
        let Some(task) = pod.task.clone().filter(|task| task.stage == Stage::Ordered) else { continue };
        pod.answer = Some(answer(&task.id(), Phase::RolledBack, None));
    }
}

/// A workload of three pods of each kind, whose update the failure of the first pod has stopped.
fn stopped() -> [(Draft, Sight); 2] {
    let bounds =
        json!({"type": "InplaceUpdate", "maxUnavailable": 1, "rollingUpdate": {"maxUnavailable": 1}});
    [deployment(), stateful_set().with("/podManagementPolicy", json!("Parallel"))].map(|draft| {
        let draft = draft.with("/replicas", json!(3)).with("/updateStrategy", bounds.clone());
        let mut sight = sight(&["web-0", "web-1", "web-2"], &draft.revision());
        step(&mut sight, &draft);
        let update = draft.image("app:2");
        step(&mut sight, &update);
        agents_fail(&mut sight);
        step(&mut sight, &update);
        (update, sight)
    })
}

fn reason(decision: &Decision) -> String {
    condition(decision, "UpdateFailed").1
}

/// Name of the pod that failed.
fn failed(sight: &Sight) -> String {
    let has_failed = |pod: &&Pod| pod.task.as_ref().is_some_and(|task| task.stage == Stage::Failed);
    sight.pods.iter().find(has_failed).unwrap().name.clone()
}

#[test]
fn an_update_that_failures_stopped_creates_no_pod_of_its_revision() {
    for (update, sight) in stopped() {
        let decision = sight.decide(&update.with("/replicas", json!(5)));
        assert_eq!(reason(&decision), "TooManyFailures", "{decision:#?}");
        assert_eq!(created_images(&decision), ["app:1", "app:1"], "{decision:#?}");
    }
}

/// Its node is drained, or a scale-in removes it.
#[test]
fn an_update_that_failures_stopped_stays_so_when_the_failed_pod_is_gone() {
    for (update, mut sight) in stopped() {
        let name = failed(&sight);
        let mut fewer = sight.clone();
        sight.pods.retain(|pod| pod.name != name);
        for _ in 0..3 {
            let decision = step(&mut sight, &update);
            assert_eq!(created_images(&decision), ["app:1"], "{decision:#?}");
            assert_eq!((reason(&decision).as_str(), decision.requested().len()), ("TooManyFailures", 0));
        }
        let old = sight.revisions.iter().min_by_key(|revision| revision.number).unwrap().clone();
        sight.pods.push(pod(&name, &old));
        let scaled = update.clone().with("/replicas", json!(2));
        for (sight, update) in [(&mut sight, &update), (&mut fewer, &scaled)] {
            for _ in 0..3 {
                let decision = step(sight, update);
                assert_eq!((reason(&decision).as_str(), decision.requested().len()), ("TooManyFailures", 0));
            }
            assert!(sight.pods.iter().all(|pod| pod.task.is_none()), "the failed one is gone");
            // A retry is confirmed once the status says that the update continues.
            let retry = update.clone().annotated(workload_key::RETRY, "true");
            let first = step(sight, &retry);
            assert_eq!(first.requested().len(), 1, "{first:#?}");
            assert!(!first.actions.contains(&Action::ClearRetry), "{first:#?}");
            let second = step(sight, &retry);
            assert!(second.actions.contains(&Action::ClearRetry), "{second:#?}");
            assert_eq!(reason(&second), "NoFailure");
        }
    }
}

/// An agent that was given up reports after all that it has updated the pod.
#[test]
fn an_update_goes_on_without_a_retry_when_the_pod_that_failed_succeeds_late() {
    let old = in_place().with("/updateStrategy/maxUnavailable", json!(1));
    let update = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &old);
    let first = step(&mut sight, &update).requested()[0].to_owned();
    let pod = sight.pod(&first);
    let task = pod.task.clone().unwrap();
    pod.answer = Some(answer(&task.id(), Phase::Running, Some(Step::Verify)));
    sight.now = task.lost_at();
    step(&mut sight, &update);
    let decision = step(&mut sight, &update);
    assert_eq!((reason(&decision).as_str(), decision.requested().len()), ("TooManyFailures", 0));
    assert!(condition(&decision, "UpdateFailed").2.contains("AgentLost"), "{decision:#?}");
    let pod = sight.pod(&first);
    "app:2".clone_into(&mut pod.images[0].1);
    pod.answer = Some(answer(&task.id(), Phase::Succeeded, None));
    let asked: usize = (0..2).map(|_| step(&mut sight, &update).requested().len()).sum();
    assert_eq!(asked, 1, "the next pod");
    assert_eq!(reason(&sight.decide(&update)), "NoFailure");
}

/// A status write may be lost after pods that a retry began again are recorded as such.
#[test]
fn a_pod_that_is_to_be_tried_again_does_not_end_a_stop() {
    for (update, mut sight) in stopped() {
        let name = failed(&sight);
        sight.pod(&name).task.as_mut().unwrap().stage = Stage::Again;
        let decision = sight.decide(&update);
        assert_eq!((reason(&decision).as_str(), decision.requested().len()), ("TooManyFailures", 0));
    }
}

/// The other pod is updated, so that no pod has the old revision any more.
#[test]
fn the_last_old_pod_that_failed_comes_back_as_it_was() {
    let old = in_place().with("/replicas", json!(2)).with("/updateStrategy/maxUnavailable", json!(1));
    let update = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b"], &old.revision());
    step(&mut sight, &old);
    step(&mut sight, &update);
    agents_succeed(&mut sight, "app:2");
    assert_eq!(step(&mut sight, &update).requested().len(), 1);
    agents_fail(&mut sight);
    assert_eq!(reason(&step(&mut sight, &update)), "TooManyFailures");
    let name = failed(&sight);
    sight.pods.retain(|pod| pod.name != name);
    for _ in 0..2 {
        let decision = step(&mut sight, &update);
        assert_eq!(created_images(&decision), ["app:1"]);
        assert_eq!(reason(&decision), "TooManyFailures");
    }
    // Once there is no other pod left to update, nothing is stopped any more.
    let one = update.with("/replicas", json!(1));
    let decision = step(&mut sight, &one);
    assert_eq!(reason(&decision), "NoFailure");
    assert_eq!(condition(&decision, "Progressing").1, "Complete");
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
