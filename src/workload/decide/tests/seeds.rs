//! The output of the seeds, decision by decision.

use super::*;

#[test]
fn scale_in_from_6_to_5_waits_for_its_hook_and_shows_it() {
    let six = ["web-a", "web-b", "web-c", "web-d", "web-e", "web-f"];
    let revision = seed(6).revision();
    let mut sight = sight(&six, &revision);
    assert_eq!(columns(&seed(6), &step(&mut sight, &seed(6))), [6, 6, 6, 6, 6]);

    let decision = step(&mut sight, &seed(5));
    assert_eq!(columns(&seed(5), &decision), [5, 6, 6, 6, 6]);
    assert!(decision.deleted().is_empty());
    let [name] = decision.asked()[..] else { panic!("{:?}", decision.asked()) };
    let chosen = sight.pods.iter().find(|pod| pod.task.is_some()).unwrap().clone();
    assert_eq!(name, format!("pre-delete-hook-{}-{}-test", revision.name, chosen.instance));
    assert!(chosen.leaving);
    let reported = &sight.before.pre_delete;
    assert_eq!(
        (reported[0].pod_name.as_str(), reported[0].phase.as_str()),
        (chosen.name.as_str(), "Pending")
    );

    let decision = step(&mut sight, &seed(5));
    assert_eq!((decision.actions.len(), columns(&seed(5), &decision)), (0, [5, 6, 6, 6, 6]), "it waits");
    assert_eq!(sight.before.pre_delete[0].phase, "Running");

    hooks_end(&mut sight, HookPhase::Successful);
    let decision = step(&mut sight, &seed(5));
    assert_eq!(decision.deleted(), [chosen.name.as_str()]);
    let decision = step(&mut sight, &seed(5));
    assert_eq!(columns(&seed(5), &decision), [5, 5, 5, 5, 5]);
    assert!(sight.runs.is_empty() && sight.before.pre_delete.is_empty(), "No resources found");
}

#[test]
fn a_failed_hook_keeps_the_pod_until_retry_which_is_taken_up_once() {
    let revision = seed(6).revision();
    let mut sight = sight(&["web-a", "web-b", "web-c", "web-d", "web-e", "web-f"], &revision);
    step(&mut sight, &seed(5));
    hooks_end(&mut sight, HookPhase::Failed);
    for _ in 0..3 {
        let decision = step(&mut sight, &seed(5));
        assert!(decision.actions.is_empty(), "{:?}", decision.actions);
        assert_eq!(columns(&seed(5), &decision), [5, 6, 6, 6, 6]);
        assert_eq!(sight.before.pre_delete[0].phase, "Failed");
    }
    let name = sight.runs[0].name.clone();
    let retry = seed(5).with("/preDeleteUpdateStrategy/retry", json!(true));
    let decision = step(&mut sight, &retry);
    assert_eq!(decision.actions, [Action::DeleteRun(name.clone()), Action::ClearRetry]);
    let decision = step(&mut sight, &seed(5));
    assert_eq!(decision.asked(), [name.as_str()], "a new one of the same name");
    hooks_end(&mut sight, HookPhase::Successful);
    assert_eq!(step(&mut sight, &seed(5)).deleted().len(), 1);
}

#[test]
fn three_of_five_are_updated_in_place_two_at_a_time_each_after_its_hook() {
    let (old, new) = (seed(5), seed(5).image("python:3.5"));
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &old);
    let decision = step(&mut sight, &new);
    assert_eq!(columns(&new, &decision), [5, 0, 0, 5, 5], "UPDATED drops at once");
    assert_eq!(decision.asked().len(), 2);
    assert!(decision.asked().iter().all(|name| name.starts_with("pre-delete-hook-web-")));
    assert!(step(&mut sight, &new).requested().is_empty(), "nothing is touched while hooks run");

    hooks_end(&mut sight, HookPhase::Successful);
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requested().len(), 2);
    for request in requests(&decision) {
        assert_eq!(
            (request.grace_period_seconds, request.containers[0].image.as_deref()),
            (30, Some("python:3.5"))
        );
        assert!(request.id.ends_with("-1000") && request.check().is_ok(), "{}", request.id);
    }
    assert_eq!(sight.runs.len(), 2, "the hooks stay until the pods are updated");
    agents_succeed(&mut sight, "python:3.5");
    let decision = step(&mut sight, &new);
    assert_eq!(columns(&new, &decision), [5, 2, 2, 5, 5]);
    assert_eq!(decision.asked().len(), 1);
    step(&mut sight, &new);
    assert_eq!(sight.runs.len(), 1, "only the last one's");
    hooks_end(&mut sight, HookPhase::Successful);
    step(&mut sight, &new);
    agents_succeed(&mut sight, "python:3.5");
    step(&mut sight, &new);
    let decision = step(&mut sight, &new);
    assert_eq!(columns(&new, &decision), [5, 3, 3, 5, 5]);
    assert!(sight.runs.is_empty() && decision.actions.is_empty());
    assert_eq!(sight.pods.iter().filter(|pod| pod.restarts == 1).count(), 3);
    assert!(sight.pods.iter().all(|pod| !pod.leaving), "20: autoscalers count them again");
    assert_eq!(condition(&decision, "Progressing").1, "PartitionReached");
}

#[test]
fn the_hooks_arguments_are_those_of_the_user_and_what_is_known_of_the_pod() {
    let hook = json!({"hook": {"templateName": "test", "args": [{"name": "service-name", "value": "svc"}]}});
    let draft = deployment().with("/replicas", json!(4)).with("/preDeleteUpdateStrategy", hook);
    let sight = sight(&["web-a", "web-b", "web-c", "web-d"], &draft.revision());
    let decision = sight.decide(&draft.with("/replicas", json!(2)));
    assert_eq!(decision.asked().len(), 2, "4 -> 2 asks two at once");
    let Some(Action::CreateRun(run)) =
        decision.actions.iter().find(|action| matches!(action, Action::CreateRun(_)))
    else {
        panic!("no hook")
    };
    let args: Vec<_> = run.args.iter().map(|arg| (arg.name.as_str(), arg.value.as_str())).collect();
    let pod = format!("web-{}", run.labels[workload_key::HOOK_INSTANCE]);
    assert_eq!(
        args,
        [
            ("service-name", "svc"),
            ("PodName", pod.as_str()),
            ("PodNamespace", "default"),
            ("PodIP", "10.0.0.1"),
            ("HostIP", "10.0.1.1"),
            ("PodContainer[0]", "app"),
        ]
    );
    assert_eq!((run.node.as_deref(), run.labels["hookrun-type"].as_str()), (Some("node"), "pre-delete-step"));
}

#[test]
fn a_set_updates_pod_4_then_pod_3_and_shows_5_5_3_2_2() {
    let old = stateful_set().with("/replicas", json!(5)).with(
        "/updateStrategy",
        json!({"type": "InplaceUpdate", "rollingUpdate": {"partition": 3},
            "inPlaceUpdateStrategy": {"gracePeriodSeconds": 30}}),
    );
    let new = old.clone().image("python:latest");
    let mut sight = sight(&["web-0", "web-1", "web-2", "web-3", "web-4"], &old.revision());
    let row = |decision: &Decision| {
        let status = decision.report.as_ref().unwrap().stateful_set();
        [
            status.replicas,
            status.ready_replicas,
            status.current_replicas,
            status.updated_replicas,
            status.updated_ready_replicas,
        ]
    };
    assert_eq!(row(&step(&mut sight, &old)), [5, 5, 5, 5, 5]);
    for expected in ["web-4", "web-3"] {
        let decision = step(&mut sight, &new);
        assert_eq!(decision.requested(), [expected]);
        assert!(step(&mut sight, &new).requested().is_empty(), "one after the other");
        agents_succeed(&mut sight, "python:latest");
    }
    step(&mut sight, &new);
    let decision = step(&mut sight, &new);
    assert_eq!((row(&decision), decision.actions.len()), ([5, 5, 3, 2, 2], 0));
    let all = new.with("/updateStrategy/rollingUpdate/partition", json!(0));
    let order: Vec<_> = (0..3)
        .map(|_| {
            let asked = step(&mut sight, &all).requested().join(" ");
            agents_succeed(&mut sight, "python:latest");
            asked
        })
        .collect();
    assert_eq!(order, ["web-2", "web-1", "web-0"]);
    step(&mut sight, &all);
    assert_eq!(row(&step(&mut sight, &all)), [5, 5, 5, 5, 5]);
}

/// 23: metadata.
#[test]
fn metadata_alone_changes_without_a_hook_a_drain_or_a_restart() {
    let new = seed(5).with("/template/metadata/annotations", json!({"note": "x"}));
    let mut sight = sight(&FIVE, &seed(5).revision());
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty() && decision.asked().is_empty());
    let patched: Vec<_> = decision
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::PatchPod { patch, why: Why::Metadata, .. } => Some(patch.annotations["note"].as_deref()),
            _ => None,
        })
        .collect();
    assert_eq!(patched, [Some("x"); 3], "the partition still holds");
    assert_eq!(columns(&new, &step(&mut sight, &new)), [5, 3, 3, 5, 5]);
}

#[test]
fn a_hot_patch_asks_nothing_and_drains_nothing() {
    let old = seed(5).with("/updateStrategy/type", json!("HotPatchUpdate"));
    let sight = sight(&FIVE, &old.revision());
    let decision = sight.decide(&old.image("app:2"));
    assert_eq!((decision.requested().len(), decision.asked().len()), (2, 0));
    assert!(
        requests(&decision)
            .iter()
            .all(|request| request.grace_period_seconds == 0 && request.post_hook.is_none())
    );
}

#[test]
fn on_delete_waits_for_somebody() {
    let old = deployment().with("/updateStrategy/type", json!("OnDelete"));
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    assert!(step(&mut sight, &new).deleted().is_empty());
    sight.pods.pop();
    let decision = step(&mut sight, &new);
    let Some(Action::CreatePod { body, .. }) = decision.actions.last() else {
        panic!("{:?}", decision.actions)
    };
    assert_eq!(body["spec"]["containers"][0]["image"], "app:2");
}

#[test]
fn a_rolling_update_recreates_within_its_surge() {
    let old = deployment().with("/replicas", json!(4)).with(
        "/updateStrategy",
        json!({"type": "RollingUpdate", "partition": 1, "maxUnavailable": 2, "maxSurge": 2}),
    );
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c", "web-d"], &old.revision());
    let decision = step(&mut sight, &new);
    assert_eq!((decision.created().len(), decision.deleted().len()), (2, 2));
}
