//! Surge pods of an update in place (`maxSurge`): which ones are created, labelled and kept, and when they are
//! removed.

use super::*;

#[test]
fn a_surge_pod_has_a_label_is_deleted_first_and_replaces_a_missing_pod() {
    let draft = deployment()
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 0, "maxSurge": 1}));
    let draft = draft.with("/replicas", json!(2));
    let mut sight = sight(&["web-a", "web-b"], &draft.revision());
    let update = draft.clone().image("app:2");
    let decision = step(&mut sight, &update);
    let label = |decision: &Decision| -> Vec<Value> {
        let body = |action: &Action| match action {
            Action::CreatePod { body, .. } => Some(body["metadata"]["labels"]["inplace.dev/surge"].clone()),
            _ => None,
        };
        decision.actions.iter().filter_map(body).collect()
    };
    assert_eq!(label(&decision), [json!("true")], "{decision:#?}");
    let revision = sight.revisions.iter().max_by_key(|revision| revision.number).unwrap().clone();
    let mut stand_in = pod("web-s", &revision);
    (stand_in.surge, stand_in.ready_since) = (true, Some(at(-5000)));
    sight.pods.push(stand_in);
    for _ in 0..6 {
        step(&mut sight, &update);
        agents_succeed(&mut sight, "app:2");
    }
    let names: Vec<_> = sight.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["web-a", "web-b"], "the originals stay");
    // A surge pod takes the place of a pod that is gone.
    sight.pods.remove(0);
    sight.pods.push(Pod { surge: true, ..pod("web-s", &revision) });
    let decision = step(&mut sight, &update);
    assert!(decision.created().is_empty() && decision.deleted().is_empty(), "{:#?}", decision.actions);
    assert!(!sight.pod("web-s").surge, "{:#?}", decision.actions);
    assert!(step(&mut sight, &update).actions.is_empty());
}

/// `OnDelete` leaves the originals to the user.
#[test]
fn the_surge_pod_goes_when_the_update_type_becomes_on_delete() {
    let draft = deployment()
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 0, "maxSurge": 1}));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &draft.revision());
    let update = draft.image("app:2");
    step(&mut sight, &update);
    let revision = sight.revisions.iter().max_by_key(|revision| revision.number).unwrap().clone();
    sight.pods.push(Pod { surge: true, ready_since: Some(at(-5000)), ..pod("web-s", &revision) });
    let by_user = update.with("/updateStrategy/type", json!("OnDelete"));
    assert_eq!(step(&mut sight, &by_user).deleted(), ["web-s"]);
    for _ in 0..3 {
        assert!(step(&mut sight, &by_user).deleted().is_empty(), "the originals stay");
    }
}

/// Two originals and their surge pod as release 0.1.0 created it: without the label.
fn unmarked() -> (Draft, Sight) {
    let draft = deployment()
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 0, "maxSurge": 1}))
        .with("/replicas", json!(2));
    let mut sight = sight(&["web-a", "web-b"], &draft.revision());
    let update = draft.image("app:2");
    step(&mut sight, &update);
    let revision = sight.revisions.iter().max_by_key(|revision| revision.number).unwrap().clone();
    sight.pods.push(Pod { created: at(-500), ready_since: Some(at(-400)), ..pod("web-s", &revision) });
    (update, sight)
}

fn go_on(sight: &mut Sight, draft: &Draft) -> Vec<String> {
    let image = draft.spec().template.image("app").unwrap().to_owned();
    for _ in 0..8 {
        step(sight, draft);
        agents_succeed(sight, &image);
    }
    sight.pods.iter().map(|pod| pod.name.clone()).collect()
}

#[test]
fn a_surge_pod_without_the_label_of_this_release_is_deleted_when_the_update_is_over() {
    let (update, mut sight) = unmarked();
    assert_eq!(go_on(&mut sight, &update), ["web-a", "web-b"], "the originals stay");
}

/// Without the label, the decision about an update that is rolled back can only use revisions and ages. The label
/// settles it, also when it is set by hand before an upgrade.
#[test]
fn the_label_set_by_hand_saves_the_original_pods_of_an_update_that_is_reverted() {
    let (update, mut sight) = unmarked();
    sight.pod("web-s").surge = true;
    step(&mut sight, &update);
    assert_eq!(go_on(&mut sight, &update.image("app:1")), ["web-a", "web-b"], "the originals stay");
}

/// Two originals, of which `web-a` failed at `app:2` and is not available, and its surge pod; then the user sets
/// `app:1` again.
fn failed_and_taken_back() -> (Draft, Sight) {
    let draft = deployment()
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 0, "maxSurge": 1}))
        .with("/replicas", json!(2));
    let mut sight = sight(&["web-a", "web-b"], &draft.revision());
    let update = draft.clone().image("app:2");
    step(&mut sight, &update);
    let old = sight.revisions.iter().min_by_key(|revision| revision.number).unwrap().clone();
    sight.pods.push(Pod { surge: true, ready_since: Some(at(-400)), ..pod("web-s", &old) });
    sight.pod("web-a").ready_since = None;
    step(&mut sight, &update);
    let failed = sight.pod("web-a");
    "app:2".clone_into(&mut failed.images[0].1);
    failed.answer = Some(answer(&failed.task.clone().unwrap().id(), Phase::Failed, Some(Step::Verify)));
    step(&mut sight, &update);
    (draft, sight)
}

#[test]
fn a_pod_on_its_way_back_to_its_own_revision_is_not_there_before_its_end() {
    let (draft, mut sight) = failed_and_taken_back();
    step(&mut sight, &draft);
    let failed = sight.pod("web-a");
    let task = failed.task.clone().unwrap();
    assert_eq!((task.stage, &task.target), (Stage::Ordered, &failed.label));
    failed.answer = Some(answer(&task.id(), Phase::Running, Some(Step::Swap)));
    let decision = step(&mut sight, &draft);
    assert!(decision.actions.is_empty(), "the pod that stands in for it stays: {:#?}", decision.actions);
    assert_eq!(decision.report.unwrap().counts.updated, 2, "web-b and web-s");
}

#[test]
fn there_is_no_surge_pod_where_no_pod_is_desired() {
    let (draft, mut sight) = failed_and_taken_back();
    let none = draft.image("app:2").with("/replicas", json!(0));
    let decision = step(&mut sight, &none);
    assert_eq!(decision.deleted(), ["web-a", "web-b", "web-s"], "{:#?}", decision.actions);
}

/// `web-a` runs `app:2` at the revision of `app:1`, is available and is held back: it goes back while a surge pod
/// exists.
#[test]
fn a_pod_that_is_held_back_between_two_revisions_gets_a_stand_in_too() {
    let (draft, mut sight) = failed_and_taken_back();
    sight.pods.retain(|pod| pod.name != "web-s");
    sight.pod("web-a").ready_since = Some(at(-400));
    let held = draft.image("app:2").with("/updateStrategy/partition", json!(2));
    step(&mut sight, &held.clone().annotated(workload_key::RETRY, "true"));
    let decision = step(&mut sight, &held);
    let [made] = decision.created()[..] else { panic!("{:#?}", decision.actions) };
    // A pod beyond the number that is held back is created at the newest revision.
    let newest = sight.revisions.iter().max_by_key(|revision| revision.number).unwrap().clone();
    sight.pods.push(Pod { surge: true, ready_since: Some(at(-400)), ..pod(made, &newest) });
    step(&mut sight, &held);
    let task = sight.pod("web-a").task.clone().unwrap();
    assert_eq!((task.stage, &task.target), (Stage::Ordered, &sight.pod("web-a").label));
    assert_eq!(go_back(&mut sight, &held), ["web-a", "web-b"]);
    assert_eq!(sight.pod("web-a").image("app"), Some("app:1"));
}

fn go_back(sight: &mut Sight, draft: &Draft) -> Vec<String> {
    for _ in 0..8 {
        agents_succeed(sight, "app:1");
        step(sight, draft);
    }
    sight.pods.iter().map(|pod| pod.name.clone()).collect()
}

/// The pods that a scale-in makes surplus are no surge pods.
#[test]
fn a_scale_in_is_carried_out_while_nothing_is_to_be_updated() {
    let steps = json!({"steps": [{"pause": {}}, {"partition": 0}]});
    let held = [("paused", json!(true)), ("partition", json!("100%")), ("canary", steps)];
    for way in ["InplaceUpdate", "RollingUpdate"] {
        for (field, value) in &held {
            let old = deployment()
                .with("/replicas", json!(5))
                .with("/updateStrategy", json!({"type": way, "maxUnavailable": 1, "maxSurge": 2}))
                .with(&format!("/updateStrategy/{field}"), value.clone());
            let new = old.clone().image("app:2");
            let mut sight = sight(&FIVE, &old.revision());
            for draft in [&old, &old, &new, &new, &new] {
                step(&mut sight, draft);
            }
            let fewer = new.with("/replicas", json!(3));
            for _ in 0..3 {
                step(&mut sight, &fewer);
            }
            assert_eq!(sight.pods.len(), 3, "{way}, {field}");
            let is_old = |pod: &Pod| pod.label == old.revision().name && pod.request.is_none();
            assert!(sight.pods.iter().all(is_old), "{way}, {field}: {:#?}", sight.pods);
        }
    }
}

#[test]
fn a_pause_keeps_the_surge_pods_of_a_set_and_not_the_ordinals_that_a_scale_in_removes() {
    let old =
        stateful_set().with("/replicas", json!(5)).with("/podManagementPolicy", json!("Parallel")).with(
            "/updateStrategy",
            json!({"type": "InplaceUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 2}}),
        );
    let new = old.clone().image("app:2").with("/updateStrategy/paused", json!(true));
    let mut sight = sight(&["web-0", "web-1", "web-2", "web-3", "web-4"], &old.revision());
    step(&mut sight, &old);
    step(&mut sight, &new);
    let newest = sight.revisions.iter().max_by_key(|revision| revision.number).unwrap().clone();
    sight.pods.push(pod("web-5", &newest));
    assert!(step(&mut sight, &new).deleted().is_empty(), "a surge pod");
    let other = new.clone().image("app:3");
    assert!(step(&mut sight, &other).deleted().is_empty(), "also after a further change");
    sight.pods.pop();
    assert_eq!(step(&mut sight, &new.with("/replicas", json!(3))).deleted(), ["web-3", "web-4"]);
}

#[test]
fn a_pause_keeps_the_surge_pods_of_a_deployment() {
    let (draft, mut sight) = failed_and_taken_back();
    let paused = draft.image("app:2").with("/updateStrategy/paused", json!(true));
    for _ in 0..2 {
        assert!(step(&mut sight, &paused).deleted().is_empty(), "web-s stands in for web-a");
    }
}
