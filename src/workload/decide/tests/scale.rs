//! Tests of pods that are created and removed.

use super::*;
use crate::workload::claims::Claim;

/// 17: a choice can be taken back, also by a controller that has just started.
#[test]
fn a_scale_in_can_be_taken_back_while_its_hook_runs() {
    let mut sight = sight(&["web-a", "web-b", "web-c", "web-d", "web-e", "web-f"], &seed(6).revision());
    step(&mut sight, &seed(5));
    let chosen = sight.pods.iter().find(|pod| pod.task.is_some()).unwrap().name.clone();
    step(&mut sight, &seed(6));
    let decision = step(&mut sight, &seed(6));
    assert!(decision.created().is_empty() && decision.deleted().is_empty());
    assert!(sight.runs.is_empty() && !sight.pod(&chosen).leaving);
    let decision = step(&mut sight, &seed(5));
    assert_eq!(decision.asked().len(), 1, "asked anew");
}

/// 17: whatever changes in between.
#[test]
fn the_pod_that_was_chosen_stays_the_one() {
    let mut sight = sight(&FIVE, &seed(5).revision());
    step(&mut sight, &seed(4));
    let chosen = sight.pods.iter().position(|pod| pod.task.is_some()).unwrap();
    for at in (0..5).filter(|at| *at != chosen) {
        sight.pods[at].ready_since = None;
        sight.pods[at].cost = Some(-9.0);
        assert!(step(&mut sight, &seed(4)).asked().is_empty());
    }
    let name = sight.pods[chosen].name.clone();
    hooks_end(&mut sight, HookPhase::Successful);
    assert_eq!(step(&mut sight, &seed(4)).deleted(), [name.as_str()]);
}

/// 24: lengths.
#[test]
fn long_names_make_valid_hooks() {
    let mut draft = seed(5);
    draft.spec["preDeleteUpdateStrategy"]["hook"]["templateName"] = json!("t".repeat(253));
    let mut sight = sight(&FIVE, &draft.revision());
    sight.templates.insert("t".repeat(253), crate::workload::hooks::TemplateState::Valid);
    let decision = sight.decide(&draft.with("/replicas", json!(4)));
    let Some(Action::CreateRun(run)) =
        decision.actions.iter().find(|action| matches!(action, Action::CreateRun(_)))
    else {
        panic!("no hook")
    };
    assert!(run.name.len() <= 253 && run.labels.values().all(|value| value.len() <= 63));
}

/// f3135546b: a pod that does not run has nothing to prepare.
#[test]
fn pods_that_do_not_run_are_not_asked() {
    let mut sight = sight(&FIVE, &seed(5).revision());
    sight.pods[2].phase = PodPhase::Pending;
    sight.pods[2].ready_since = None;
    let decision = sight.decide(&seed(4));
    assert_eq!((decision.deleted(), decision.asked().len()), (vec!["web-c"], 0));
}

/// 34a713bf5, b92496df8.
#[test]
fn a_scale_in_that_waits_does_not_hold_a_scale_out_back() {
    let draft = stateful_set()
        .with("/replicas", json!(3))
        .with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let mut sight = sight(&["web-0", "web-1", "web-2", "web-3"], &draft.revision());
    step(&mut sight, &draft);
    assert!(sight.pod("web-3").task.is_some());
    sight.pods.retain(|pod| pod.name != "web-1");
    assert_eq!(step(&mut sight, &draft).created(), ["web-1"]);
}

/// ea7e46666: names.
#[test]
fn a_name_is_not_given_twice_even_while_its_pod_is_on_its_way_out() {
    let draft = deployment();
    let revision = draft.revision();
    let mut sight = sight(&[], &revision);
    let first: Vec<_> = sight.decide(&draft).created().into_iter().map(str::to_owned).collect();
    assert_eq!(first.len(), 3);
    assert_eq!(sight.decide(&draft).created(), first, "made again in vain when it is not seen yet");
    for name in &first {
        sight.pods.push(Pod { deletion: Some(sight.now), ..pod(name, &revision) });
    }
    sight.taken.insert("web-other".to_owned());
    let second = sight.decide(&draft);
    assert!(second.created().iter().all(|name| !first.iter().any(|used| used == name)));
}

/// ad580ae29: revision of recreated pods.
#[test]
fn a_pod_that_is_made_again_below_the_partition_is_the_old_one() {
    for policy in ["OrderedReady", "Parallel"] {
        let old = stateful_set()
            .with("/podManagementPolicy", json!(policy))
            .with("/updateStrategy", json!({"type": "InplaceUpdate", "rollingUpdate": {"partition": 2}}));
        let new = old.clone().image("app:2");
        let mut sight = sight(&["web-0", "web-2"], &old.revision());
        let decision = step(&mut sight, &new);
        let body = decision.actions.iter().find_map(|action| match action {
            Action::CreatePod { body, .. } => Some(body.clone()),
            _ => None,
        });
        assert_eq!(body.unwrap()["spec"]["containers"][0]["image"], "app:1", "{policy}");
    }
}

#[test]
fn a_workload_on_its_way_out_is_left_to_the_garbage_collector() {
    let mut object = deployment().object();
    object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let sight = sight(&[], &deployment().revision());
    let spec = crate::workload::spec::WorkloadSpec::of_deployment(&object);
    assert_eq!(crate::workload::decide::decide(&spec, &sight.before, &sight.seen()), Decision::default());
}

#[test]
fn named_pods_are_deleted_and_replaced() {
    let draft = deployment().with("/scaleStrategy", json!({"podsToDelete": ["web-b", "gone"]}));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &draft.revision());
    assert_eq!(step(&mut sight, &draft).deleted(), ["web-b"]);
    let decision = step(&mut sight, &draft);
    assert_eq!(decision.created().len(), 1);
    assert!(!["web-b", "gone"].contains(&decision.created()[0]), "it would be deleted again");
}

#[test]
fn who_leaves_first() {
    let draft = deployment().with("/replicas", json!(4));
    let revision = draft.revision();
    let mut sight = sight(&FIVE, &revision);
    let first = |sight: &Sight, draft: &Draft| sight.decide(draft).deleted()[0].to_owned();
    for at in 0..5 {
        sight.pods[at].created = at_created(at);
    }
    assert_eq!(first(&sight, &draft), "web-e", "the youngest");
    sight.pod("web-b").cost = Some(-1.0);
    sight.pod("web-c").cost = Some(7.0);
    assert_eq!(first(&sight, &draft), "web-b", "the cheapest");
    let costly = draft.clone().annotated(workload_key::COST_ORDER, "descend");
    assert_eq!(first(&sight, &costly), "web-c", "or the dearest");
    // A pod without a cost has the cost 0, as in Kubernetes.
    sight.pod("web-b").cost = Some(1.0);
    assert_eq!(first(&sight, &draft), "web-e", "the youngest of those without a cost");
    sight.pod("web-c").cost = Some(-7.0);
    sight.pod("web-b").cost = Some(-1.0);
    assert_eq!(first(&sight, &costly), "web-e", "those without a cost before those of a negative one");
    sight.nodes.insert(
        "other".to_owned(),
        crate::workload::order::Node { cost: Some(1.0), ready: true, ..Default::default() },
    );
    sight.pod("web-d").node = Some("other".to_owned());
    assert_eq!(first(&sight, &draft), "web-d", "a cheap node before a cheap pod");
    sight.pod("web-a").ready_since = None;
    assert_eq!(first(&sight, &draft), "web-a", "what serves nobody before all");
}

fn at_created(at_index: usize) -> jiff::Timestamp {
    at(-1000 + i64::try_from(at_index).unwrap())
}

#[test]
fn a_percentage_as_partition_counts_the_ordinals_of_the_set() {
    let set = stateful_set().with("/replicas", json!(3)).with("/reserveOrders", json!([0, 1]));
    for (partition, first) in
        [(json!("50%"), Some(4)), (json!("100%"), Some(5)), (json!("0%"), Some(2)), (json!(3), Some(3))]
    {
        let path = "/updateStrategy";
        let draft = set
            .clone()
            .with(path, json!({"type": "InplaceUpdate", "rollingUpdate": {"partition": partition}}));
        let spec = draft.spec();
        let held = crate::workload::canary::Held::Part(spec.update.partition);
        assert_eq!(crate::workload::stateful::threshold(&spec, held), first, "{partition}");
    }
}

#[test]
fn reserved_ordinals_are_left_out_and_freed_ones_come_back() {
    let draft = stateful_set().with("/podManagementPolicy", json!("Parallel"));
    let mut sight = sight(&["web-0", "web-1", "web-2"], &draft.revision());
    let reserved = draft.clone().with("/reserveOrders", json!([1]));
    let decision = step(&mut sight, &reserved);
    assert_eq!((decision.deleted(), decision.created()), (vec!["web-1"], vec!["web-3"]));
}

#[test]
fn an_ended_pod_of_a_set_makes_room_and_a_lost_node_is_not_waited_for() {
    let draft = stateful_set().with(
        "/template/metadata/annotations",
        json!({"pod.gamestatefulset.bkbcs.tencent.com/node-lost-force-delete": "true"}),
    );
    let mut sight = sight(&["web-0", "web-1", "web-2"], &draft.revision());
    sight.pods[1].phase = PodPhase::Failed;
    sight.pods[2].deletion = Some(sight.now);
    let lost = |sight: &Sight| -> Vec<(String, Why)> {
        let of = |action: &Action| match action {
            Action::DeletePod { pod, why } => Some((pod.name.clone(), *why)),
            _ => None,
        };
        sight.decide(&draft).actions.iter().filter_map(of).collect()
    };
    assert_eq!(lost(&sight), [("web-1".to_owned(), Why::EndedPod)]);
    sight.nodes.insert("node".to_owned(), crate::workload::order::Node::default());
    assert_eq!(lost(&sight)[1], ("web-2".to_owned(), Why::LostNode));
}

#[test]
fn an_ordered_set_grows_and_shrinks_one_by_one() {
    let draft = stateful_set();
    let mut sight = sight(&["web-0"], &draft.revision());
    sight.pods[0].ready_since = None;
    assert!(sight.decide(&draft).created().is_empty(), "web-0 is not ready");
    sight.pods[0].ready_since = Some(at(-1));
    assert_eq!(sight.decide(&draft).created(), ["web-1"]);
    let mut sight = self::sight(&["web-0", "web-1", "web-2"], &draft.revision());
    let fewer = draft.with("/replicas", json!(1));
    assert_eq!(sight.decide(&fewer).deleted(), ["web-2"]);
    sight.pods[2].deletion = Some(sight.now);
    assert!(sight.decide(&fewer).deleted().is_empty(), "web-2 is not gone yet");
}

/// A scale-in by several pods, of which the highest one waits for its hook, is no reason to update several at once, and
/// no reason to update pods that are about to go.
#[test]
fn an_ordered_set_is_updated_one_by_one_while_pods_leave() {
    let draft = stateful_set()
        .with("/replicas", json!(8))
        .with("/updateStrategy", json!({"type": "InplaceUpdate"}))
        .with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let names: Vec<_> = (0..8).map(|ordinal| format!("web-{ordinal}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut sight = sight(&names, &draft.revision());
    let fewer = draft.image("app:2").with("/replicas", json!(5));
    for _ in 0..4 {
        step(&mut sight, &fewer);
    }
    let tasks: Vec<_> =
        sight.pods.iter().filter(|pod| pod.task.is_some()).map(|pod| pod.name.as_str()).collect();
    assert_eq!(tasks, ["web-4", "web-7"], "one to update, one to remove");
}

#[test]
fn hooks_of_pods_that_are_gone_go() {
    let mut sight = sight(&FIVE, &seed(5).revision());
    step(&mut sight, &seed(4));
    let chosen = sight.pods.iter().find(|pod| pod.task.is_some()).unwrap().name.clone();
    sight.pods.retain(|pod| pod.name != chosen);
    let name = sight.runs[0].name.clone();
    assert_eq!(sight.decide(&seed(4)).actions, [Action::DeleteRun(name)]);
    assert_eq!(sight.runs[0].kind, HookType::PreDelete);
}

#[test]
fn a_pod_is_made_only_when_its_claims_are_there_and_stay() {
    let claim = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let draft = stateful_set().with("/volumeClaimTemplates", claim);
    let mut sight = sight(&[], &draft.revision());
    let made = |sight: &Sight| -> Vec<String> {
        let name = |action: &Action| match action {
            Action::CreateClaim { name, .. } | Action::CreatePod { name, .. } => Some(name.clone()),
            _ => None,
        };
        sight.decide(&draft).actions.iter().filter_map(name).collect()
    };
    // A pod without its claim is Pending for ever, even if the claim appears later.
    assert_eq!(made(&sight), ["data-web-0"]);
    sight.claims.insert("data-web-0".to_owned(), Claim { terminating: true, ..Claim::default() });
    assert!(made(&sight).is_empty());
    let (status, _, message) = condition(&sight.decide(&draft), "ScaleFailed");
    assert_eq!(status, "True");
    assert!(message.contains("web-0 waits for its claim data-web-0"), "{message}");
    sight.claims.insert("data-web-0".to_owned(), Claim::default());
    assert_eq!(made(&sight), ["web-0"]);
    // Other pods that may be created at the same time do not wait for it.
    let parallel = draft.clone().with("/podManagementPolicy", json!("Parallel"));
    sight.claims.insert("data-web-0".to_owned(), Claim { terminating: true, ..Claim::default() });
    sight.claims.insert("data-web-1".to_owned(), Claim::default());
    assert_eq!(sight.decide(&parallel).created(), ["web-1"]);
}

#[test]
fn a_pod_whose_claim_is_gone_gets_another_one() {
    let claim = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    let draft = stateful_set().with("/volumeClaimTemplates", claim).with("/replicas", json!(2));
    let mut sight = sight(&["web-0", "web-1", "web-2"], &draft.revision());
    sight.claims.insert("data-web-0".to_owned(), Claim::default());
    sight.pod("web-1").phase = PodPhase::Pending;
    let claims: Vec<_> = sight
        .decide(&draft)
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::CreateClaim { name, .. } => Some(name.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(claims, ["data-web-1"], "none for a pod that leaves");
}

#[test]
fn each_pod_gets_a_number_that_no_other_one_has() {
    let draft = deployment()
        .annotated(workload_key::INDEX_ON, "true")
        .annotated(workload_key::INDEX_RANGE, r#"{"podStartIndex":100,"podEndIndex":104}"#)
        .with("/replicas", json!(4));
    let mut sight = sight(&["web-a", "web-b"], &draft.revision());
    // A pod that is being deleted still holds its number, and one that has ended does not.
    sight.pods[0].index = Some(100);
    sight.pods[0].deletion = Some(sight.now);
    sight.pods[1].index = Some(102);
    sight.pods[1].phase = PodPhase::Failed;
    let decision = sight.decide(&draft);
    let numbers: Vec<_> = decision
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::CreatePod { body, .. } => body["metadata"]["annotations"][workload_key::INDEX].as_str(),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, ["101", "102", "103"]);
    let (status, _, message) = condition(&decision, "ScaleFailed");
    assert!(status == "True" && message.contains("index range"), "{message}");
}

#[test]
fn a_batch_of_new_pods_waits_for_the_one_before() {
    let draft =
        deployment().with("/replicas", json!(10)).with("/scaleStrategy", json!({"createBatch": "30%"}));
    let mut sight = sight(&[], &draft.revision());
    let first = sight.decide(&draft).created().len();
    assert_eq!(first, 3);
    for name in ["web-a", "web-b", "web-c"] {
        sight.pods.push(Pod { phase: PodPhase::Pending, ready_since: None, ..pod(name, &draft.revision()) });
    }
    assert!(sight.decide(&draft).created().is_empty());
    sight.pods[0].phase = PodPhase::Running;
    assert_eq!(sight.decide(&draft).created().len(), 1);
}

/// Nothing is written about pods that do not change, however many there are.
#[test]
fn a_large_workload_at_rest_is_left_in_peace() {
    let draft = deployment().with("/replicas", json!(2000));
    let names: Vec<_> = (0..2000).map(|at| format!("web-{at}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut sight = sight(&names, &draft.revision());
    assert!(step(&mut sight, &draft).actions.is_empty());
    sight.pods[7].ready_since = None;
    assert!(step(&mut sight, &draft).actions.is_empty());
    let decision = step(&mut sight, &draft.with("/replicas", json!(1999)));
    assert_eq!((decision.actions.len(), decision.deleted()), (1, vec!["web-7"]));
}

#[test]
fn of_thousands_of_missing_pods_some_are_created_at_a_time() {
    let draft = deployment().with("/replicas", json!(1100));
    let mut sight = sight(&[], &draft.revision());
    let mut created = Vec::new();
    for _ in 0..3 {
        let decision = sight.decide(&draft);
        sight.pods.extend(decision.created().into_iter().map(|name| pod(name, &draft.revision())));
        created.push((decision.created().len(), decision.requeue_at.is_some_and(|at| at <= sight.now)));
    }
    assert_eq!(created, [(500, true), (500, true), (100, false)]);
    assert!(sight.decide(&draft).created().is_empty());
}

/// The memory of the controller belongs to the workloads of all users.
#[test]
fn billions_of_replicas_need_no_more_than_some_of_them() {
    let parallel = stateful_set().with("/podManagementPolicy", json!("Parallel"));
    let in_place = json!({"type": "InplaceUpdate", "rollingUpdate": {"partition": "50%", "maxSurge": 1}});
    for draft in [deployment(), parallel.clone(), parallel.with("/updateStrategy", in_place)] {
        let draft = draft.with("/replicas", json!(i32::MAX)).with("/reserveOrders", json!([1, 3]));
        let mut sight = sight(&["web-0"], &draft.revision());
        for draft in [draft.clone(), draft.image("app:2")] {
            let decision = sight.decide(&draft);
            assert_eq!(decision.created().len(), 500);
            assert!(decision.requeue_at.is_some_and(|at| at <= sight.now));
            sight.before = decision.report.unwrap();
        }
    }
}

/// A guard, or a quota of another kind, may refuse a deletion for hours.
#[test]
fn a_scale_in_that_is_refused_does_not_hold_an_update_back() {
    let old = in_place().with("/replicas", json!(6)).with("/updateStrategy/maxUnavailable", json!(1));
    let new = old.clone().image("app:2").with("/replicas", json!(5));
    let mut sight = sight(&["web-a", "web-b", "web-c", "web-d", "web-e", "web-f"], &old.revision());
    step(&mut sight, &old);
    sight.pod("web-a").cost = Some(-1.0);
    let mut asked = Vec::new();
    for _ in 0..4 {
        let mut decision = sight.decide(&new);
        asked.extend(decision.requested().into_iter().map(str::to_owned));
        assert_eq!(decision.deleted(), ["web-a"]);
        decision.actions.retain(|action| !matches!(action, Action::DeletePod { .. }));
        carry_out(&mut sight, &decision);
    }
    assert_eq!(asked.len(), 1, "{asked:?}");
}

/// The pod that leaves waits for its hook, perhaps for hours.
#[test]
fn a_scale_in_that_waits_for_its_hook_does_not_keep_an_update_from_its_end() {
    let bounds =
        json!({"type": "InplaceUpdate", "maxUnavailable": 3, "rollingUpdate": {"maxUnavailable": 3}});
    for draft in [deployment(), stateful_set().with("/podManagementPolicy", json!("Parallel"))] {
        let hook = json!({"hook": {"templateName": "test"}});
        let old = draft.with("/updateStrategy", bounds.clone()).with("/preDeleteUpdateStrategy", hook);
        let mut sight = sight(&["web-0", "web-1", "web-2"], &old.revision());
        step(&mut sight, &old);
        let fewer = old.with("/replicas", json!(2));
        step(&mut sight, &fewer);
        let new = fewer.image("app:2");
        for _ in 0..5 {
            step(&mut sight, &new);
            update_hooks_pass(&mut sight);
            agents_succeed(&mut sight, "app:2");
        }
        let decision = step(&mut sight, &new);
        assert_eq!(sight.pods.iter().filter(|pod| pod.images[0].1 == "app:1").count(), 1, "its hook runs");
        assert_eq!(condition(&decision, "Progressing").1, "Complete");
        assert_eq!(sight.before.stable_revision, sight.before.update_revision);
        assert_eq!(condition(&decision, "Ready").0, "False", "a pod is still to go");
    }
}

/// Four pods, of which one is surplus. `web-a` is to be recreated, and may not be deleted while others are not available.
fn beside_a_recreation() -> (Draft, Sight) {
    let old = deployment()
        .with("/replicas", json!(4))
        .with("/updateStrategy/maxUnavailable", json!(1))
        .with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c", "web-d"], &old.revision());
    step(&mut sight, &new);
    assert!(sight.pod("web-a").task.is_some());
    for name in ["web-b", "web-c"] {
        sight.pod(name).ready_since = None;
    }
    (new.with("/replicas", json!(3)), sight)
}

#[test]
fn a_recreation_that_waits_for_other_pods_does_not_stop_a_scale_in() {
    let (fewer, mut sight) = beside_a_recreation();
    for _ in 0..3 {
        hooks_end(&mut sight, HookPhase::Successful);
        step(&mut sight, &fewer);
    }
    let names: Vec<_> = sight.pods.iter().map(|pod| pod.name.as_str()).collect();
    assert_eq!(names, ["web-a", "web-c", "web-d"]);
}

/// The other pods are available for a moment.
#[test]
fn a_scale_in_that_began_goes_on_when_a_recreation_may_take_its_place() {
    let (fewer, mut sight) = beside_a_recreation();
    step(&mut sight, &fewer);
    for name in ["web-b", "web-c"] {
        sight.pod(name).ready_since = Some(at(-900));
    }
    step(&mut sight, &fewer);
    let task = sight.pod("web-b").task.clone().unwrap();
    assert_eq!((task.purpose, task.stage), (Purpose::ScaleIn, Stage::Chosen));
    assert!(sight.runs.iter().any(|run| run.pod_uid == "uid-web-b"), "its hook is kept");
}
