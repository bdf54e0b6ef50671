//! Canary steps over several decisions: what `paused` is while a step waits, and what is left of the steps when they are
//! removed.

use super::*;

fn in_steps() -> Draft {
    in_place()
        .with("/updateStrategy/maxUnavailable", json!(3))
        .with("/updateStrategy/canary", json!({"steps": [{"partition": 2}, {"pause": {}}, {"partition": 0}]}))
}

/// Three pods that were rolled out with steps, and an update until its second step pauses.
fn pausing() -> (Sight, Draft) {
    let old = in_steps();
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    rounds(&mut sight, &old, 3);
    assert_eq!(sight.before.steps.canary.revision, sight.before.update_revision);
    let new = old.image("app:2");
    rounds(&mut sight, &new, 8);
    assert_eq!((sight.before.steps.index, sight.before.steps.pauses.len()), (Some(1), 1));
    (sight, new)
}

/// No pod has ever run, so there is none that steps protect: also if the set was created without pods, and complete as such.
#[test]
fn the_image_that_repairs_a_first_rollout_reaches_the_pod_that_holds_up_an_ordered_set() {
    for first in [5, 0] {
        let steps = json!({"steps": [{"partition": 3}, {"pause": {}}, {"partition": 0}]});
        let bad = stateful_set()
            .with("/replicas", json!(5))
            .with("/updateStrategy", json!({"type": "InplaceUpdate", "canary": steps}))
            .image("app:bad");
        let mut sight = sight(&[], &bad.revision());
        let created = bad.clone().with("/replicas", json!(first));
        step(&mut sight, &created);
        let decision = step(&mut sight, &created);
        assert_eq!(condition(&decision, "Ready").0, if first == 0 { "True" } else { "False" });
        sight.pods.push(Pod { ready_since: None, ..pod("web-0", &bad.revision()) });
        step(&mut sight, &bad);
        let good = bad.image("app:2");
        let mut asked = Vec::new();
        for _ in 0..3 {
            asked.extend(step(&mut sight, &good).requested().into_iter().map(str::to_owned));
            assert_eq!(sight.before.steps.index, Some(3), "{first}");
        }
        assert_eq!(asked, ["web-0"], "{first}");
        assert_eq!(sight.before.stable_revision, "", "{first}");
    }
}

/// The update is complete, and no pod has shown that its revision serves.
#[test]
fn what_is_released_while_there_are_no_pods_does_not_replace_the_revision_that_served() {
    let old = in_steps();
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    rounds(&mut sight, &old, 3);
    let served = sight.before.update_revision.clone();
    let none = old.with("/replicas", json!(0));
    rounds(&mut sight, &none, 3);
    assert!(sight.pods.is_empty());
    let new = none.image("app:2");
    for draft in [&new, &new.clone().with("/updateStrategy/canary", json!(null))] {
        for _ in 0..3 {
            let decision = step(&mut sight, draft);
            assert_eq!(condition(&decision, "Progressing").1, "Complete");
            assert_ne!(sight.before.update_revision, served);
            assert_eq!(sight.before.stable_revision, served);
            assert_eq!(sight.before.steps.canary.revision, served);
        }
    }
}

/// One pod has never become available, but the others serve.
#[test]
fn a_workload_that_serves_has_steps_although_it_was_never_complete() {
    let steps = json!({"steps": [{"partition": 2}, {"pause": {}}, {"partition": 0}]});
    let old = stateful_set()
        .with("/replicas", json!(3))
        .with("/podManagementPolicy", json!("Parallel"))
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "canary": steps}));
    let mut sight = sight(&["web-0", "web-1"], &old.revision());
    sight.pods.push(Pod { ready_since: None, ..pod("web-2", &old.revision()) });
    step(&mut sight, &old);
    for _ in 0..3 {
        let decision = step(&mut sight, &old.clone().image("app:2"));
        let asked = decision.requested();
        assert!(asked.iter().all(|name| *name == "web-2"), "{asked:?}");
        assert_eq!(sight.before.steps.index, Some(0));
    }
}

fn rounds(sight: &mut Sight, draft: &Draft, rounds: usize) {
    for _ in 0..rounds {
        step(sight, draft);
        let image = draft.spec.pointer("/template/spec/containers/0/image").unwrap();
        agents_succeed(sight, image.as_str().unwrap());
    }
}

#[test]
fn a_manifest_that_is_applied_again_leaves_a_step_paused_and_an_approval_resumes_it() {
    let (mut sight, new) = pausing();
    for again in [new.clone(), new.clone().with("/updateStrategy/paused", json!(false))] {
        for _ in 0..3 {
            let decision = step(&mut sight, &again);
            assert!(decision.actions.is_empty(), "{decision:#?}");
            assert_eq!((sight.before.steps.index, sight.before.counts.updated), (Some(1), 1));
            assert_eq!(condition(&decision, "Progressing").1, "Paused");
            assert_eq!(condition(&decision, "Reconciling").0, "True");
        }
    }
    let revision = sight.before.update_revision.clone();
    let other = new.clone().annotated(workload_key::RESUME_STEP, &format!("{revision}/2"));
    assert_eq!(step(&mut sight, &other).actions, [Action::ClearResume]);
    assert_eq!(sight.before.steps.index, Some(1));
    let approved = new.clone().annotated(workload_key::RESUME_STEP, &format!("{revision}/1"));
    let decision = step(&mut sight, &approved);
    assert!(!decision.actions.contains(&Action::ClearResume), "{decision:#?}");
    assert!(decision.requested().is_empty(), "the status says first that the step is over");
    let decision = step(&mut sight, &approved);
    assert!(decision.actions.contains(&Action::ClearResume), "{decision:#?}");
    rounds(&mut sight, &new, 6);
    assert_eq!((sight.before.steps.index, sight.before.counts.updated), (Some(3), 3));
}

#[test]
fn the_users_own_pause_holds_the_update_after_the_step_is_resumed() {
    let (mut sight, new) = pausing();
    let paused = new.annotated(workload_key::RESUME_STEP, &format!("{}/1", sight.before.update_revision));
    step(&mut sight, &paused.with("/updateStrategy/paused", json!(true)));
    let held = in_steps().image("app:2").with("/updateStrategy/paused", json!(true));
    rounds(&mut sight, &held, 6);
    assert_eq!((sight.before.steps.index, sight.before.counts.updated), (Some(2), 1));
}

#[test]
fn the_way_back_has_no_steps_also_after_the_steps_were_removed_for_a_while() {
    let (mut sight, new) = pausing();
    let stable = sight.before.steps.canary.revision.clone();
    let hold = |draft: &Draft| draft.clone().with("/updateStrategy/partition", json!(3));
    let without = hold(&new.clone().with("/updateStrategy/canary", json!(null)));
    rounds(&mut sight, &without, 2);
    assert_eq!(sight.before.steps.canary.revision, stable, "the update is not complete");
    assert_eq!((sight.before.steps.index, sight.before.steps.pauses.len()), (None, 0));
    rounds(&mut sight, &in_steps(), 4);
    assert_eq!(sight.before.steps.index, Some(3), "back to the revision that was rolled out");
    assert_eq!(sight.before.counts.updated, 3);
}

#[test]
fn a_rollout_without_steps_needs_none_when_there_are_steps_again() {
    let (mut sight, new) = pausing();
    rounds(&mut sight, &new.clone().with("/updateStrategy/canary", json!(null)), 8);
    assert_eq!(sight.before.steps.canary.revision, sight.before.update_revision);
    rounds(&mut sight, &new, 1);
    assert_eq!(sight.before.steps.index, Some(3));
}

/// The pod that leaves is no part of what the partition of a step holds back.
#[test]
fn a_pod_that_waits_for_its_hook_before_it_leaves_stops_no_step() {
    let hook = json!({"hook": {"templateName": "test"}});
    let old = in_steps().with("/preDeleteUpdateStrategy", hook).with("/replicas", json!(4));
    let mut sight = sight(&["web-a", "web-b", "web-c", "web-d"], &old.revision());
    rounds(&mut sight, &old, 3);
    assert_eq!(sight.before.steps.canary.revision, sight.before.update_revision);
    let fewer = old.with("/replicas", json!(3));
    step(&mut sight, &fewer);
    let new = fewer.image("app:2");
    for _ in 0..8 {
        rounds(&mut sight, &new, 1);
        update_hooks_pass(&mut sight);
    }
    assert_eq!((sight.before.steps.index, sight.before.steps.pauses.len()), (Some(1), 1));
    assert_eq!((sight.before.counts.updated, sight.pods.len()), (1, 4));
}
