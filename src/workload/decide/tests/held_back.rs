//! The last pod that the partition, a canary step or a pause holds back is lost: it comes back as it was, and the update
//! is not complete.

use super::*;

/// The images of the pods that are created.
pub(super) fn created_images(decision: &Decision) -> Vec<&str> {
    let created = decision.actions.iter().filter_map(|action| match action {
        Action::CreatePod { body, .. } => Some(body),
        _ => None,
    });
    created.map(|body| body["spec"]["containers"][0]["image"].as_str().unwrap()).collect()
}

/// Asserts that the pod at the old revision, when it is lost, is made again from it, and what is reported meanwhile.
fn comes_back(mut sight: Sight, old: &Draft, new: &Draft, reason: &str) {
    let stable = old.revision().name;
    let is_old = |pod: &Pod| pod.label == stable;
    assert_eq!(sight.pods.iter().filter(|pod| is_old(pod)).count(), 1, "{sight:#?}");
    sight.pods.retain(|pod| !is_old(pod));
    for _ in 0..2 {
        let decision = step(&mut sight, new);
        assert_eq!(created_images(&decision), ["app:1"]);
        assert_eq!(sight.before.current_revision, stable);
        assert_eq!(sight.before.stable_revision, stable, "the update can still be aborted");
        assert_eq!(condition(&decision, "Progressing").1, reason);
    }
}

/// The state in which all pods but one are updated.
fn updated_but_one(names: &[&str], old: &Draft, new: &Draft) -> Sight {
    let mut sight = sight(names, &old.revision());
    for draft in [old, new, new, new, new] {
        step(&mut sight, draft);
        agents_succeed(&mut sight, "app:2");
    }
    sight
}

#[test]
fn a_partition_holds_the_last_old_pod_back_when_it_is_lost() {
    let old = stateful_set()
        .with("/replicas", json!(2))
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "rollingUpdate": {"partition": 1}}));
    let new = old.clone().image("app:2");
    comes_back(updated_but_one(&["web-0", "web-1"], &old, &new), &old, &new, "PartitionReached");
    let old = in_place().with("/replicas", json!(2)).with("/updateStrategy/partition", json!(1));
    let new = old.clone().image("app:2");
    comes_back(updated_but_one(&["web-a", "web-b"], &old, &new), &old, &new, "PartitionReached");
}

/// The pod that leaves waits for its hook, and is no replica any more.
#[test]
fn a_pod_that_leaves_does_not_count_when_the_last_old_pod_of_a_set_is_lost() {
    let old = stateful_set()
        .with("/replicas", json!(2))
        .with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}))
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "rollingUpdate": {"partition": 1}}))
        .with("/preInplaceUpdateStrategy", json!({}));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-0", "web-1"], &old.revision());
    for draft in [&old, &new, &new, &new, &new, &new] {
        step(&mut sight, draft);
        hooks_end(&mut sight, HookPhase::Successful);
        agents_succeed(&mut sight, "app:2");
    }
    let fewer = new.with("/replicas", json!(1));
    step(&mut sight, &fewer);
    assert_eq!(sight.runs.len(), 1, "the hook of web-1 runs");
    comes_back(sight, &old, &fewer, "PartitionReached");
}

#[test]
fn a_pause_holds_the_last_old_pod_back_when_it_is_lost() {
    let old = in_place().with("/replicas", json!(2)).with("/updateStrategy/maxUnavailable", json!(1));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b"], &old.revision());
    for draft in [&old, &new] {
        step(&mut sight, draft);
        agents_succeed(&mut sight, "app:2");
    }
    let paused = new.with("/updateStrategy/paused", json!(true));
    step(&mut sight, &paused);
    comes_back(sight, &old, &paused, "Paused");
}

#[test]
fn a_canary_that_begins_with_a_pause_holds_the_only_pod_back_when_it_is_lost() {
    let steps = json!({"steps": [{"pause": {}}, {"partition": 0}]});
    let old = in_place().with("/replicas", json!(1)).with("/updateStrategy/canary", steps);
    let new = old.clone().image("app:2");
    comes_back(updated_but_one(&["web-a"], &old, &new), &old, &new, "Paused");
}

/// One pod cannot be created, for example because of a quota.
#[test]
fn where_nothing_holds_pods_back_the_newest_revision_is_the_current_one_when_no_pod_has_another() {
    let old = in_place().with("/replicas", json!(3));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b"], &old.revision());
    for _ in 0..4 {
        let mut decision = sight.decide(&new);
        decision.actions.retain(|action| !matches!(action, Action::CreatePod { .. }));
        carry_out(&mut sight, &decision);
        agents_succeed(&mut sight, "app:2");
    }
    assert_eq!(sight.before.current_revision, sight.before.update_revision);
    sight.pods.pop();
    let paused = new.with("/updateStrategy/paused", json!(true));
    assert_eq!(created_images(&sight.decide(&paused)), ["app:2", "app:2"]);
}

#[test]
fn a_partition_that_is_set_after_an_update_makes_pods_of_the_new_revision() {
    let old = in_place().with("/replicas", json!(2));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b"], &old.revision());
    for _ in 0..4 {
        step(&mut sight, &new);
        agents_succeed(&mut sight, "app:2");
    }
    assert_eq!(sight.before.current_revision, sight.before.update_revision);
    let partition = new.with("/updateStrategy/partition", json!(2));
    step(&mut sight, &partition);
    sight.pods.clear();
    let decision = step(&mut sight, &partition);
    assert_eq!(decision.created().len(), 2);
    assert_eq!(created_images(&decision), ["app:2", "app:2"]);
}
