//! The previous template in the middle of an update: pods go back in place, within the same budget.

use super::held_back::created_images;
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

/// The pods that the partition holds back were never at the revision that is undone.
#[test]
fn a_pod_that_is_lost_below_the_partition_during_an_undo_comes_back_as_it_was() {
    let old = stateful_set()
        .with("/replicas", json!(5))
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "rollingUpdate": {"partition": 3}}));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-0", "web-1", "web-2", "web-3", "web-4"], &old.revision());
    step(&mut sight, &old);
    for _ in 0..6 {
        step(&mut sight, &new);
        agents_succeed(&mut sight, "app:2");
    }
    assert_eq!(sight.before.counts.updated, 2);
    sight.pods.retain(|pod| pod.name != "web-0");
    for _ in 0..2 {
        assert_eq!(created_images(&step(&mut sight, &old)), ["app:1"]);
        assert_eq!(sight.before.current_revision, old.revision().name);
    }
}

#[test]
fn a_pod_that_is_created_after_an_undo_while_it_is_paused_is_not_what_is_undone() {
    let old = in_place().with("/replicas", json!(5)).with("/updateStrategy/maxUnavailable", json!(2));
    let new = old.clone().image("app:2");
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &old);
    step(&mut sight, &new);
    agents_succeed(&mut sight, "app:2");
    let paused = |draft: &Draft| draft.clone().with("/updateStrategy/paused", json!(true));
    step(&mut sight, &paused(&new));
    assert!(sight.pods.iter().any(|pod| pod.images[0].1 == "app:2"));
    let more = paused(&old).with("/replicas", json!(6));
    assert_eq!(created_images(&step(&mut sight, &more)), ["app:1"]);
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
