//! The arguments of the hooks of an update in place, and the status of pods that wait for them.

use super::*;
use crate::api::workload::HookCondition;

fn with_args(draft: &Draft, field: &str) -> Draft {
    let args = json!([{"name": "service-name", "value": "svc"}, {"name": "of-the-template"}]);
    draft.clone().with(&format!("/{field}"), json!({"hook": {"templateName": "test", "args": args}}))
}

fn texts(args: &[crate::api::request::HookArg]) -> Vec<(&str, &str)> {
    args.iter().map(|arg| (arg.name.as_str(), arg.value.as_str())).collect()
}

#[test]
fn a_pre_inplace_hook_gets_its_arguments_the_pod_and_the_containers_that_change() {
    let old = with_args(&two_containers(), "preInplaceUpdateStrategy");
    let one_image = other_image(&old, 1, "b:2");
    let both_images = other_image(&one_image, 0, "a:2");
    for (new, modified) in [(one_image, vec!["b"]), (both_images, vec!["a", "b"])] {
        let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
        let decision = step(&mut sight, &new);
        let runs = decision.actions.iter().filter_map(|action| match action {
            Action::CreateRun(run) => Some(run),
            _ => None,
        });
        let runs: Vec<_> = runs.collect();
        assert_eq!(runs.len(), 3, "{decision:?}");
        for run in runs {
            let pod = format!("web-{}", run.labels[workload_key::HOOK_INSTANCE]);
            let names: Vec<_> = (0..modified.len()).map(|at| format!("ModifiedContainer[{at}]")).collect();
            let mut expected = vec![
                ("service-name", "svc"),
                ("PodName", pod.as_str()),
                ("PodNamespace", "default"),
                ("PodIP", "10.0.0.1"),
                ("HostIP", "10.0.1.1"),
                ("PodContainer[0]", "a"),
                ("PodContainer[1]", "b"),
            ];
            expected.extend(names.iter().map(String::as_str).zip(modified.iter().copied()));
            assert_eq!(texts(&run.args), expected);
            assert_eq!(run.labels["hookrun-type"], "pre-inplace-step");
        }
    }
}

#[test]
fn a_post_inplace_hook_gets_the_arguments_that_have_a_value_in_the_request() {
    let old = with_args(&in_place(), "postInplaceUpdateStrategy");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    let decision = step(&mut sight, &old.image("app:2"));
    let requests = requests(&decision);
    assert_eq!(requests.len(), 3);
    for request in requests {
        assert_eq!(texts(&request.post_hook.unwrap().args), [("service-name", "svc")]);
    }
}

#[test]
fn pods_that_wait_for_their_pre_inplace_hook_are_listed_until_it_succeeds() {
    let old = with_args(&in_place(), "preInplaceUpdateStrategy");
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    sight.now = at(7);
    step(&mut sight, &new);
    sight.now = at(60);
    step(&mut sight, &new);
    let listed = |pod: &str, phase: &str| HookCondition {
        pod_name: pod.to_owned(),
        start_time: Some(at(7)),
        phase: phase.to_owned(),
    };
    let three = ["web-a", "web-b", "web-c"];
    let mut reported = sight.before.pre_inplace.clone();
    reported.sort_by(|one, other| one.pod_name.cmp(&other.pod_name));
    assert_eq!(reported, three.map(|pod| listed(pod, "Running")));
    assert!(sight.before.pre_delete.is_empty() && sight.before.post_inplace.is_empty());

    let phases = [("uid-web-a", HookPhase::Failed), ("uid-web-b", HookPhase::Successful)];
    for run in &mut sight.runs {
        run.phase = phases.iter().find(|(uid, _)| *uid == run.pod_uid).map_or(run.phase, |(_, phase)| *phase);
    }
    step(&mut sight, &new);
    let mut reported = sight.before.deployment().pre_inplace_hook_condition;
    reported.sort_by(|one, other| one.pod_name.cmp(&other.pod_name));
    assert_eq!(reported, [listed("web-a", "Failed"), listed("web-c", "Running")]);
}

#[test]
fn pods_at_their_post_inplace_hook_are_listed_since_their_agent_accepted_the_request() {
    let old = with_args(&in_place(), "postInplaceUpdateStrategy");
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    for (name, begun) in [("web-a", Some(at(12))), ("web-b", None)] {
        let pod = sight.pod(name);
        let mut running = answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::PostHook));
        running.started_at = begun;
        pod.answer = Some(running);
    }
    sight.now = at(90);
    step(&mut sight, &new);
    let mut reported = sight.before.deployment().post_inplace_hook_condition;
    reported.sort_by(|one, other| one.pod_name.cmp(&other.pod_name));
    let reported: Vec<_> =
        reported.iter().map(|one| (one.pod_name.as_str(), one.start_time, one.phase.as_str())).collect();
    // Without a time of the agent it is that of the request.
    assert_eq!(reported, [("web-a", Some(at(12)), "Running"), ("web-b", Some(at(0)), "Running")]);
}

#[test]
fn a_pod_whose_post_inplace_hook_failed_stays_listed_after_its_image_was_taken_back() {
    let old = with_args(&in_place(), "postInplaceUpdateStrategy");
    let new = old.clone().image("app:2");
    for (phase, step, reason, listed) in [
        (Phase::RolledBack, Step::Rollback, "PostHookFailed", true),
        (Phase::Failed, Step::PostHook, "PostHookFailed", true),
        (Phase::RolledBack, Step::Rollback, "NotReady", false),
    ] {
        let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
        super::step(&mut sight, &new);
        let pod = sight.pod("web-b");
        let mut failed = answer(pod.request.as_ref().unwrap(), phase, Some(step));
        (failed.reason, failed.started_at) = (reason.to_owned(), Some(at(3)));
        pod.answer = Some(failed);
        // Once as the end is recorded, and once after it.
        for _ in 0..2 {
            super::step(&mut sight, &new);
            let reported = sight.before.deployment().post_inplace_hook_condition;
            let expected = HookCondition {
                pod_name: "web-b".to_owned(),
                start_time: Some(at(3)),
                phase: "Failed".to_owned(),
            };
            assert_eq!(reported, listed.then_some(expected).into_iter().collect::<Vec<_>>(), "{reason}");
        }
    }
}
