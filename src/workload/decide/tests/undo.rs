//! The previous template in the middle of an update: pods go back in place, within the same budget.

use super::*;

#[test]
fn an_undo_in_the_middle_of_an_update_goes_back_in_place_within_the_budget() {
    let old = in_place().with("/replicas", json!(5)).with("/updateStrategy/maxUnavailable", json!(2));
    let new = old.clone().image("app:2");
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &old);
    // Three pods are updated, and two have a request that no agent has accepted.
    let mut updated = Vec::new();
    for _ in 0..4 {
        let asked: Vec<_> = step(&mut sight, &new).requested().into_iter().map(str::to_owned).collect();
        if updated.len() < 2 {
            updated.extend(asked);
            agents_succeed(&mut sight, "app:2");
        }
    }
    assert_eq!(updated.len(), 2);
    let uids: Vec<_> = sight.pods.iter().map(|pod| pod.uid.clone()).collect();
    let mut back = Vec::new();
    for _ in 0..8 {
        let decision = step(&mut sight, &old);
        assert!(decision.deleted().is_empty() && decision.created().is_empty(), "{decision:#?}");
        assert!(requests(&decision).len() <= 2, "{decision:#?}");
        assert!(requests(&decision).iter().all(|one| one.containers[0].image.as_deref() == Some("app:1")));
        back.extend(decision.requested().into_iter().map(str::to_owned));
        let open = sight
            .pods
            .iter()
            .filter(|pod| pod.task.as_ref().is_some_and(|task| task.stage == Stage::Ordered));
        assert!(open.count() <= 2, "within the budget");
        agents_succeed(&mut sight, "app:1");
    }
    updated.sort();
    back.sort();
    assert_eq!(back, updated, "only the pods that were updated are restarted");
    assert_eq!(sight.pods.iter().map(|pod| pod.uid.clone()).collect::<Vec<_>>(), uids);
    assert!(sight.pods.iter().all(|pod| pod.label == old.revision().name && pod.images[0].1 == "app:1"));
}

/// The failures that an undo has answered do not count when the template is applied again.
#[test]
fn a_template_that_failed_is_tried_again_after_an_undo() {
    for policy in ["Pause", "Abort"] {
        let old = in_place().with("/updateStrategy/onFailure", json!(policy));
        let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "3");
        let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
        step(&mut sight, &old);
        assert_eq!(step(&mut sight, &new).requested().len(), 3);
        for pod in &mut sight.pods {
            let id = pod.request.clone().unwrap();
            pod.answer = Some(answer(&id, Phase::RolledBack, None));
        }
        for _ in 0..3 {
            step(&mut sight, &new);
        }
        for _ in 0..3 {
            step(&mut sight, &old);
        }
        assert_eq!(sight.before.aborted_revision, "");
        let decision = step(&mut sight, &new);
        assert_eq!(decision.requested().len(), 3, "{policy}: {decision:#?}");
        assert_eq!(condition(&decision, "UpdateFailed").0, "False", "{policy}");
    }
}
