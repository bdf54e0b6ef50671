//! Claims of a `GameStatefulSet` that exist: which pods wait for their owners, and when they grow.

use super::*;
use crate::workload::claims::StorageClass;

fn draft(scaled: &str) -> Draft {
    let claim =
        json!([{"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}]);
    stateful_set()
        .with("/podManagementPolicy", json!("Parallel"))
        .with("/volumeClaimTemplates", claim)
        .with("/persistentVolumeClaimRetentionPolicy", json!({"whenDeleted": "Delete", "whenScaled": scaled}))
}

/// Three pods with their claims.
fn three(draft: &Draft) -> Sight {
    let mut sight = sight(&["web-0", "web-1", "web-2"], &draft.revision());
    for ordinal in 0..3 {
        let claim = Claim {
            labels: [("app".to_owned(), "web".to_owned())].into(),
            bound: true,
            storage: Some("1Gi".to_owned()),
            class: Some("fast".to_owned()),
            ..Claim::default()
        };
        sight.claims.insert(format!("data-web-{ordinal}"), claim);
    }
    sight
}

#[test]
fn of_thousands_of_missing_claims_some_are_created_at_a_time() {
    let draft = draft("Retain").with("/replicas", json!(1100));
    let mut sight = sight(&[], &draft.revision());
    let mut created = Vec::new();
    for _ in 0..3 {
        let decision = sight.decide(&draft);
        let claims = decision.actions.iter().filter_map(|action| match action {
            Action::CreateClaim { name, .. } => Some(name.clone()),
            _ => None,
        });
        let claims: Vec<_> = claims.collect();
        let bound =
            Claim { labels: [("app".to_owned(), "web".to_owned())].into(), bound: true, ..Claim::default() };
        created.push((claims.len(), decision.created().len()));
        sight.claims.extend(claims.into_iter().map(|name| (name, bound.clone())));
        sight.pods.extend(decision.created().into_iter().map(|name| pod(name, &draft.revision())));
    }
    // The pods of the first claims, then the next claims.
    assert_eq!(created, [(500, 0), (0, 500), (500, 0)]);
}

fn owners(sight: &Sight, ordinal: u32) -> Vec<String> {
    sight.claims[&format!("data-web-{ordinal}")].owners.iter().map(|owner| owner.uid.clone()).collect()
}

#[test]
fn a_pod_is_removed_by_a_scale_in_only_when_it_owns_its_claim() {
    let (whole, fewer) = (draft("Delete"), draft("Delete").with("/replicas", json!(2)));
    let mut sight = three(&whole);
    step(&mut sight, &whole);
    assert_eq!(
        (owners(&sight, 0), owners(&sight, 2)),
        (vec!["uid-web".to_owned()], vec!["uid-web".to_owned()])
    );
    assert!(step(&mut sight, &whole).actions.is_empty());
    let hook = json!({"hook": {"templateName": "test"}});
    let gated = fewer.clone().with("/preDeleteUpdateStrategy", hook);
    step(&mut sight, &gated);
    assert_eq!(owners(&sight, 2), ["uid-web"], "it can be taken back while the hook runs");
    hooks_end(&mut sight, HookPhase::Successful);
    let decision = step(&mut sight, &gated);
    assert!(decision.deleted().is_empty(), "{:?}", decision.actions);
    assert_eq!(owners(&sight, 2), ["uid-web-2"]);
    let mut taken_back = sight.clone();
    assert_eq!(step(&mut sight, &gated).deleted(), ["web-2"]);
    assert_eq!(owners(&sight, 1), ["uid-web"], "of the pods that stay nothing is deleted");
    // The claim is of a pod that is gone: the garbage collector deletes it.
    let again = sight.decide(&whole);
    assert!(again.created().is_empty() && condition(&again, "ScaleFailed").2.contains("data-web-2"));
    // Or the scale-in is taken back in time.
    step(&mut taken_back, &whole);
    step(&mut taken_back, &whole);
    assert_eq!(owners(&taken_back, 2), ["uid-web"]);
    assert!(step(&mut taken_back, &whole).deleted().is_empty());
}

#[test]
fn a_pod_that_is_recreated_never_owns_its_claim() {
    let whole = draft("Delete").with("/updateStrategy", json!({"type": "RollingUpdate"}));
    let mut sight = three(&whole);
    step(&mut sight, &whole);
    let update = whole.image("app:2");
    let decision = step(&mut sight, &update);
    assert_eq!(decision.deleted().len(), 1, "{:?}", decision.actions);
    for ordinal in 0..3 {
        assert_eq!(owners(&sight, ordinal), ["uid-web"]);
    }
    // Another client deletes a pod that stays.
    sight.pods[0].deletion = Some(sight.now);
    step(&mut sight, &update);
    assert_eq!(owners(&sight, 0), ["uid-web"]);
}

#[test]
fn an_ended_pod_beyond_the_replicas_hands_over_its_claim_first() {
    let (whole, fewer) = (draft("Delete"), draft("Delete").with("/replicas", json!(2)));
    let mut sight = three(&whole);
    sight.pod("web-2").phase = PodPhase::Failed;
    assert!(step(&mut sight, &fewer).deleted().is_empty());
    assert_eq!(owners(&sight, 2), ["uid-web-2"]);
    assert_eq!(step(&mut sight, &fewer).deleted(), ["web-2"]);
}

#[test]
fn a_scale_in_with_retained_claims_waits_for_nothing() {
    let fewer = draft("Retain").with("/replicas", json!(2));
    let mut sight = three(&fewer);
    sight.claims.values_mut().for_each(|claim| claim.labels.clear());
    assert_eq!(step(&mut sight, &fewer).deleted(), ["web-2"]);
    assert!((0..3).all(|ordinal| owners(&sight, ordinal).is_empty()), "they are not the set's");
}

#[test]
fn a_larger_storage_request_reaches_the_claims_or_the_condition_says_why_not() {
    let larger =
        draft("Retain").with("/volumeClaimTemplates/0/spec/resources/requests/storage", json!("2Gi"));
    let mut sight = three(&larger);
    let storage = |sight: &Sight| sight.claims["data-web-1"].storage.clone().unwrap();
    sight.classes = [("fast".to_owned(), StorageClass::Read { expands: false })].into();
    step(&mut sight, &larger);
    let decision = step(&mut sight, &larger);
    let (status, reason, message) = condition(&decision, "UpdateFailed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "ClaimNotExpanded"));
    assert!(message.contains("claim data-web-0 stays at 1Gi") && message.contains("class fast"), "{message}");
    assert_eq!(condition(&decision, "Progressing").1, "Complete", "the pods are not held up");
    assert_eq!(storage(&sight), "1Gi");
    assert!(
        decision.requeue_at.is_some_and(|at| at <= sight.now + crate::workload::claims::READ_CLASS_AGAIN)
    );
    sight.classes = [("fast".to_owned(), StorageClass::Read { expands: true })].into();
    step(&mut sight, &larger);
    assert_eq!(storage(&sight), "2Gi");
    let decision = step(&mut sight, &larger);
    assert!(decision.actions.is_empty(), "{:?}", decision.actions);
    assert_eq!(condition(&decision, "UpdateFailed").1, "NoFailure");
    step(&mut sight, &draft("Retain"));
    assert_eq!(storage(&sight), "2Gi", "it never shrinks");
}

/// A set of three with a scale-in that has given the claim of web-2 to its pod, and has not deleted the pod yet.
fn handed_over(whole: &Draft) -> Sight {
    let mut sight = three(whole);
    step(&mut sight, whole);
    assert!(step(&mut sight, &whole.clone().with("/replicas", json!(2))).deleted().is_empty());
    assert_eq!(owners(&sight, 2), ["uid-web-2"]);
    sight
}

#[test]
fn a_pod_that_stays_in_the_set_is_deleted_only_when_it_does_not_own_its_claim() {
    let whole = draft("Delete").with("/updateStrategy", json!({"type": "RollingUpdate"}));
    // The scale-in is taken back together with an update, which recreates the pod.
    let mut updated = handed_over(&whole);
    let decision = step(&mut updated, &whole.clone().image("app:2"));
    assert!(!decision.deleted().contains(&"web-2"), "{:?}", decision.actions);
    assert_eq!(owners(&updated, 2), ["uid-web"]);
    assert!(step(&mut updated, &whole.clone().image("app:2")).deleted().contains(&"web-2"));
    // Or the pod has ended, and another one of its name is created.
    let mut ended = handed_over(&whole);
    ended.pod("web-2").phase = PodPhase::Failed;
    let decision = step(&mut ended, &whole);
    assert!(decision.deleted().is_empty(), "{:?}", decision.actions);
    assert_eq!(owners(&ended, 2), ["uid-web"]);
    assert_eq!(step(&mut ended, &whole).deleted(), ["web-2"]);
}

#[test]
fn a_pod_that_another_client_deletes_before_its_hook_has_passed_leaves_its_claim() {
    let hook = json!({"hook": {"templateName": "test"}});
    let whole = draft("Delete").with("/preDeleteUpdateStrategy", hook);
    let fewer = whole.clone().with("/replicas", json!(2));
    let mut evicted = three(&whole);
    step(&mut evicted, &whole);
    step(&mut evicted, &fewer);
    hooks_end(&mut evicted, HookPhase::Failed);
    step(&mut evicted, &fewer);
    evicted.pod("web-2").deletion = Some(evicted.now);
    for _ in 0..3 {
        step(&mut evicted, &fewer);
        assert_eq!(owners(&evicted, 2), ["uid-web"], "the hook has not saved its data");
    }
    // The same if its node is lost, and it is deleted by force.
    let lost = fewer.clone().with("/template/metadata/annotations", json!({workload_key::NODE_LOST: "true"}));
    evicted.nodes.insert("node".to_owned(), crate::workload::order::Node::default());
    assert_eq!(step(&mut evicted, &lost).deleted(), ["web-2"]);
    assert_eq!(owners(&evicted, 2), ["uid-web"]);
    // A pod whose hook has passed keeps its claim to the end.
    let mut passed = three(&whole);
    step(&mut passed, &whole);
    step(&mut passed, &fewer);
    hooks_end(&mut passed, HookPhase::Successful);
    step(&mut passed, &fewer);
    passed.pod("web-2").deletion = Some(passed.now);
    step(&mut passed, &fewer);
    assert_eq!(owners(&passed, 2), ["uid-web-2"]);
}

/// Three pods, of which web-2 is to be removed after its hook.
fn leaving() -> (Draft, Sight) {
    let hook = json!({"hook": {"templateName": "test"}});
    let whole = draft("Delete").with("/preDeleteUpdateStrategy", hook);
    let mut sight = three(&whole);
    step(&mut sight, &whole);
    (whole.with("/replicas", json!(2)), sight)
}

#[test]
fn a_pod_that_ends_before_its_hook_has_passed_leaves_its_claim() {
    for phase in [None, Some(HookPhase::Running), Some(HookPhase::Failed), Some(HookPhase::Successful)] {
        let (fewer, mut sight) = leaving();
        if let Some(phase) = phase {
            step(&mut sight, &fewer);
            hooks_end(&mut sight, phase);
        }
        sight.pod("web-2").phase = PodPhase::Failed;
        let mut deleted = Vec::new();
        for _ in 0..2 {
            deleted.extend(step(&mut sight, &fewer).deleted().into_iter().map(str::to_owned));
        }
        assert_eq!(deleted, ["web-2"], "{phase:?}");
        let owner = if phase == Some(HookPhase::Successful) { "uid-web-2" } else { "uid-web" };
        assert_eq!(owners(&sight, 2), [owner], "{phase:?}");
    }
}

/// Its node was lost. The pod was made again and does not start, so its hook has nothing to ask.
#[test]
fn a_pod_that_is_pending_leaves_its_claim_to_a_scale_in_with_a_hook() {
    let (fewer, mut sight) = leaving();
    let pod = sight.pod("web-2");
    (pod.phase, pod.ready_since) = (PodPhase::Pending, None);
    let decision = step(&mut sight, &fewer);
    assert_eq!((decision.deleted(), decision.asked().len()), (vec!["web-2"], 0));
    assert_eq!(owners(&sight, 2), ["uid-web"], "no hook has saved what is in it");
    // A claim that never had a volume has no data.
    let (fewer, mut sight) = leaving();
    sight.claims.get_mut("data-web-2").unwrap().bound = false;
    let pod = sight.pod("web-2");
    (pod.phase, pod.ready_since) = (PodPhase::Pending, None);
    assert!(step(&mut sight, &fewer).deleted().is_empty());
    assert_eq!(owners(&sight, 2), ["uid-web-2"]);
    assert_eq!(step(&mut sight, &fewer).deleted(), ["web-2"]);
}
