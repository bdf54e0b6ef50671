//! What the seeds print, decision by decision; and what must hold where the reference does not.

use serde_json::{Value, json};

use crate::api::annotation;
use crate::api::hook_run::HookPhase;
use crate::api::request::Request;
use crate::api::status::{Phase, Step};
use crate::api::workload_key;
use crate::workload::action::{Action, RunWish, Why};
use crate::workload::decide::Decision;
use crate::workload::fixtures::{Draft, Sight, answer, at, deployment, pod, sight, stateful_set};
use crate::workload::hooks::{HookType, Run};
use crate::workload::pods::{Pod, PodPhase};
use crate::workload::turn::{Purpose, Stage, Turn};

const FIVE: [&str; 5] = ["web-a", "web-b", "web-c", "web-d", "web-e"];

/// The seeds' GameDeployment: in place, partition 2, maxUnavailable 2, grace 30, a pre-delete hook.
fn seed(replicas: u32) -> Draft {
    deployment()
        .with("/replicas", json!(replicas))
        .with("/preDeleteUpdateStrategy", json!({"hook": {"templateName": "test"}}))
        .with(
            "/updateStrategy",
            json!({"type": "InplaceUpdate", "partition": 2, "maxUnavailable": 2,
                   "inPlaceUpdateStrategy": {"gracePeriodSeconds": 30}}),
        )
}

/// Carries a decision out as a controller, and as garbage collection would.
fn carry_out(sight: &mut Sight, decision: &Decision) {
    for action in &decision.actions {
        match action {
            Action::WriteRevision(revision, _) => {
                sight.revisions.retain(|known| known.name != revision.name);
                sight.revisions.push(revision.clone());
            }
            Action::DeleteRevision(name) => sight.revisions.retain(|known| known.name != *name),
            Action::DeletePod { pod, .. } => sight.pods.retain(|known| known.name != pod.name),
            Action::PatchPod { pod, patch, .. } => write(sight.pod(&pod.name), patch),
            Action::CreateRun(run) => sight.runs.push(made(run, sight.now)),
            Action::DeleteRun(name) => sight.runs.retain(|run| run.name != *name),
            _ => {}
        }
    }
    if let Some(report) = &decision.report {
        sight.before = report.clone();
    }
}

fn made(run: &RunWish, now: jiff::Timestamp) -> Run {
    Run {
        name: run.name.clone(),
        kind: run.kind,
        key: run.annotations[workload_key::TURN].clone(),
        pod_uid: run.annotations.get(workload_key::HOOK_POD).cloned().unwrap_or_default(),
        phase: HookPhase::Running,
        approved: false,
        created: Some(now),
        deleting: false,
    }
}

fn write(pod: &mut Pod, patch: &crate::workload::action::PodPatch) {
    if let Some(Some(label)) = patch.labels.get(workload_key::REVISION) {
        pod.label.clone_from(label);
    }
    for (key, value) in &patch.annotations {
        match key.as_str() {
            workload_key::TURN => pod.turn = value.as_ref().map(|text| serde_json::from_str(text).unwrap()),
            workload_key::LEAVING => pod.leaving = value.is_some(),
            annotation::REQUEST => {
                pod.request = Request::parse(value.as_deref()).unwrap().map(|request| request.id);
            }
            _ => {}
        }
    }
}

fn step(sight: &mut Sight, draft: &Draft) -> Decision {
    let decision = sight.decide(draft);
    carry_out(sight, &decision);
    decision
}

/// Lets every open hook end so.
fn hooks_end(sight: &mut Sight, phase: HookPhase) {
    for run in &mut sight.runs {
        run.phase = phase;
    }
}

/// Lets agents carry out every request that is open.
fn agents_succeed(sight: &mut Sight, image: &str) {
    for pod in &mut sight.pods {
        let Some(turn) = pod.turn.clone().filter(|turn| turn.stage == Stage::Ordered) else { continue };
        image.clone_into(&mut pod.images[0].1);
        pod.restarts += 1;
        pod.answer = Some(answer(&turn.id(), Phase::Succeeded, None));
    }
}

/// DESIRED UPDATED `UPDATED_READY` READY TOTAL.
fn columns(draft: &Draft, decision: &Decision) -> [usize; 5] {
    let counts = decision.report.as_ref().unwrap().counts;
    [draft.wish().replicas, counts.updated, counts.updated_ready, counts.ready, counts.total]
}

fn requests(decision: &Decision) -> Vec<Request> {
    let text = |action: &Action| match action {
        Action::PatchPod { patch, .. } => patch.annotations.get(annotation::REQUEST).cloned().flatten(),
        _ => None,
    };
    decision
        .actions
        .iter()
        .filter_map(text)
        .map(|text| Request::parse(Some(&text)).unwrap().unwrap())
        .collect()
}

fn condition(decision: &Decision, kind: &str) -> (String, String, String) {
    let conditions = &decision.report.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|condition| condition.kind == kind).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

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
    let chosen = sight.pods.iter().find(|pod| pod.turn.is_some()).unwrap().clone();
    assert_eq!(name, format!("pre-delete-hook-{}-{}-test", revision.name, chosen.instance));
    assert!(chosen.leaving);
    let told = &sight.before.pre_delete;
    assert_eq!((told[0].pod_name.as_str(), told[0].phase.as_str()), (chosen.name.as_str(), "Pending"));

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
        assert!(request.id.ends_with("-1") && request.check().is_ok(), "{}", request.id);
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
    assert_eq!(condition(&decision, "Progressing").1, "HeldBack");
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
    let args: Vec<_> =
        run.args.iter().map(|arg| (arg.name.as_str(), arg.value.as_deref().unwrap())).collect();
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

fn in_place() -> Draft {
    deployment().with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 3}))
}

fn two_containers() -> Draft {
    in_place().with(
        "/template/spec/containers",
        json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]),
    )
}

fn other_image(draft: &Draft, container: usize, image: &str) -> Draft {
    draft.clone().with(&format!("/template/spec/containers/{container}/image"), json!(image))
}

/// 1: r1 -> r2 changes container a, r3 changes b before the grace period of r2 is over.
#[test]
fn no_part_of_an_update_is_lost_when_another_one_follows_within_its_grace_period() {
    let one = two_containers();
    let two = other_image(&one, 0, "a:2");
    let three = other_image(&two, 1, "b:3");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &one.revision());
    step(&mut sight, &two);
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::Drain)));
    }
    let decision = step(&mut sight, &three);
    assert!(sight.pods.iter().all(|pod| pod.request.is_none()), "taken back first: {decision:?}");
    assert!(sight.pods.iter().all(|pod| pod.label == one.revision().name), "no label moves before its image");
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        pod.answer = Some(answer(&id, Phase::Cancelled, None));
    }
    step(&mut sight, &three);
    let decision = step(&mut sight, &three);
    let wanted: Vec<_> = requests(&decision)
        .iter()
        .map(|request| {
            request
                .containers
                .iter()
                .map(|one| format!("{}={}", one.name, one.image.clone().unwrap()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(wanted, vec![vec!["a=a:2".to_owned(), "b=b:3".to_owned()]; 3]);
}

/// 1, too late to be taken back: what the first one did is not done again, what it did not is not left out.
#[test]
fn an_update_that_cannot_be_taken_back_is_followed_by_the_rest() {
    let one = two_containers();
    let two = other_image(&one, 0, "a:2");
    let three = other_image(&two, 1, "b:3");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &one.revision());
    step(&mut sight, &two);
    for pod in &mut sight.pods {
        pod.images[0].1 = "a:2".to_owned();
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::Verify)));
    }
    assert!(step(&mut sight, &three).requested().is_empty());
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        pod.answer = Some(answer(&id, Phase::Succeeded, None));
    }
    step(&mut sight, &three);
    assert!(
        sight.pods.iter().all(|pod| pod.label == sight_revision(&two, &sight)),
        "the truth is written down"
    );
    let decision = step(&mut sight, &three);
    assert!(
        requests(&decision)
            .iter()
            .all(|request| request.containers.len() == 1 && request.containers[0].name == "b")
    );
    assert_eq!(decision.requested().len(), 3);
}

fn sight_revision(draft: &Draft, sight: &Sight) -> String {
    crate::workload::revision::find("web", &draft.wish().template, &sight.revisions, 0).revision.name
}

/// 2: rollback inside the grace period.
#[test]
fn a_rollback_within_the_grace_period_takes_the_request_back_and_leaves_the_pod_as_it_was() {
    let (old, new) = (in_place(), in_place().image("app:2"));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::Drain)));
    }
    step(&mut sight, &old);
    assert!(sight.pods.iter().all(|pod| pod.request.is_none()));
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        pod.answer = Some(answer(&id, Phase::Cancelled, None));
    }
    step(&mut sight, &old);
    let decision = step(&mut sight, &old);
    assert_eq!((decision.actions.len(), columns(&old, &decision)), (0, [3, 3, 3, 3, 3]));
}

/// 3, 4: what counts is what the agent saw, never whether an image id changed.
#[test]
fn a_rollback_after_a_failed_update_mends_what_was_left_behind() {
    let (old, new) = (in_place(), in_place().image("app:2"));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    step(&mut sight, &new);
    // One was rolled back by its agent, one was left closed with the new image, one closed with the old image.
    for (at, (phase, image)) in
        [(Phase::RolledBack, "app:1"), (Phase::Failed, "app:2"), (Phase::Failed, "app:1")]
            .into_iter()
            .enumerate()
    {
        let pod = &mut sight.pods[at];
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), phase, Some(Step::Verify)));
        image.clone_into(&mut pod.images[0].1);
        pod.ready_since = pod.ready_since.filter(|_| phase == Phase::RolledBack);
    }
    step(&mut sight, &new);
    let decision = step(&mut sight, &old);
    assert_eq!(columns(&old, &decision)[1], 1, "two of them are not what their label says");
    assert_eq!(decision.requested(), ["web-b", "web-c"]);
    let asked = requests(&decision);
    assert_eq!(asked[0].containers[0].image.as_deref(), Some("app:1"));
    assert_eq!(
        asked[1].containers[0].image, None,
        "the image is right: a restart lets it into traffic again"
    );
    for name in ["web-b", "web-c"] {
        let pod = sight.pod(name);
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Succeeded, None));
        pod.images[0].1 = "app:1".to_owned();
        pod.ready_since = Some(at(0));
    }
    step(&mut sight, &old);
    let decision = step(&mut sight, &old);
    assert_eq!((decision.actions.len(), columns(&old, &decision)), (0, [3, 3, 3, 3, 3]));
}

/// 6: `paused` is the user's.
#[test]
fn paused_stops_updates_and_not_scaling_and_is_left_as_the_user_set_it() {
    let (old, new) = (in_place(), in_place().image("app:2").with("/updateStrategy/paused", json!(true)));
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty());
    assert!(!decision.actions.iter().any(|action| matches!(action, Action::SetPaused(_))));
    assert_eq!(condition(&decision, "Progressing").1, "Paused");
    let decision = step(&mut sight, &new.clone().with("/replicas", json!(4)));
    assert_eq!(decision.created().len(), 1);
    let Some(Action::CreatePod { body, .. }) = decision.actions.last() else {
        panic!("{:?}", decision.actions)
    };
    assert_eq!(body["spec"]["containers"][0]["image"], "app:1", "no pod gets the paused revision");
    assert_eq!(step(&mut sight, &new.with("/replicas", json!(2))).deleted().len(), 1);
}

/// 10: the hook after an update is over before the pod takes traffic again, and its failure is a failed update.
#[test]
fn the_post_hook_is_part_of_the_update_and_is_tried_again_on_demand() {
    let hook = json!({"hook": {"templateName": "test", "args": [{"name": "k", "value": "v"}]}});
    let old = in_place().with("/postInplaceUpdateStrategy", hook);
    let new = old.clone().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &old.revision());
    let decision = step(&mut sight, &new);
    let request = &requests(&decision)[0];
    assert_eq!(request.post_hook.as_ref().unwrap().template_name, "test");
    assert!(request.pre_hook.is_none() && decision.asked().is_empty());
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Running, Some(Step::PostHook)));
    }
    step(&mut sight, &new);
    assert_eq!(
        (sight.before.post_inplace.len(), sight.before.post_inplace[0].phase.as_str()),
        (3, "Running")
    );
    for pod in &mut sight.pods {
        let id = pod.answer.as_ref().unwrap().id.clone();
        pod.answer = Some(answer(&id, Phase::RolledBack, Some(Step::PostHook)));
    }
    step(&mut sight, &new);
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty(), "it is not tried again by itself");
    assert_eq!(sight.before.post_inplace[0].phase, "Failed");
    let retry = new.clone().with("/postInplaceUpdateStrategy/retry", json!(true));
    assert!(step(&mut sight, &retry).actions.contains(&Action::ClearRetry));
    let decision = step(&mut sight, &new);
    let ids: Vec<_> = requests(&decision).into_iter().map(|request| request.id).collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| id.ends_with("-2")), "another id each: {ids:?}");
}

/// 11: approvals.
#[test]
fn an_approval_is_worth_nothing_for_another_target_and_nothing_twice() {
    let (old, new) = (seed(5), seed(5).image("app:2"));
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &new);
    assert_eq!(sight.runs.len(), 2);
    hooks_end(&mut sight, HookPhase::Successful);
    let newer = seed(5).image("app:3");
    let decision = step(&mut sight, &newer);
    assert!(decision.requested().is_empty(), "approved for app:2 only");
    step(&mut sight, &newer);
    let decision = step(&mut sight, &newer);
    let fresh = sight.runs.iter().filter(|run| run.phase == HookPhase::Running).count();
    assert_eq!((fresh, sight.runs.len()), (2, 2), "{decision:?}");
    hooks_end(&mut sight, HookPhase::Successful);
    assert_eq!(step(&mut sight, &newer).requested().len(), 2);
    // The same hook is not worth a deletion either.
    let decision = step(&mut sight, &newer.clone().with("/replicas", json!(0)));
    assert!(decision.deleted().is_empty());
}

/// 14: a template that is missing is told, and nothing is done in the meantime.
#[test]
fn a_hook_template_that_is_not_there_is_said_in_a_condition() {
    let mut sight = sight(&FIVE, &seed(5).revision());
    sight.templates.clear();
    let decision = step(&mut sight, &seed(4));
    assert!(decision.deleted().is_empty() && decision.asked().is_empty());
    let (status, _, message) = condition(&decision, "ScaleFailed");
    assert!(status == "True" && message.contains("HookTemplate test is not there"), "{message}");
    let decision = step(&mut sight, &seed(5).image("app:2"));
    assert_eq!(condition(&decision, "UpdateFailed").1, "HookTemplate");
    sight.templates.insert("test".to_owned(), crate::workload::hooks::TemplateState::Valid);
    let decision = step(&mut sight, &seed(5).image("app:2"));
    assert_eq!((decision.asked().len(), condition(&decision, "UpdateFailed").0.as_str()), (2, "False"));
}

/// 16 and bd112c461: broken pods.
#[test]
fn broken_old_pods_do_not_hold_their_own_repair_back() {
    for policy in ["OrderedReady", "Parallel"] {
        let old = stateful_set()
            .with("/podManagementPolicy", json!(policy))
            .with("/updateStrategy", json!({"type": "InplaceUpdate"}));
        let mut sight = sight(&["web-0", "web-1", "web-2"], &old.revision());
        for pod in &mut sight.pods {
            pod.ready_since = None;
        }
        let decision = step(&mut sight, &old.clone().image("app:2"));
        assert_eq!(decision.requested(), ["web-2"], "{policy}");
        sight.pods[2].ready_since = Some(at(-60));
        agents_succeed(&mut sight, "app:2");
        assert_eq!(step(&mut sight, &old.clone().image("app:2")).requested(), ["web-1"], "{policy}");
    }
}

/// 16: a new revision that is broken is mended by the next one.
#[test]
fn a_broken_new_pod_holds_the_rest_back_and_not_its_own_repair() {
    let old = stateful_set().with("/updateStrategy", json!({"type": "InplaceUpdate"}));
    let (bad, good) = (old.clone().image("app:bad"), old.clone().image("app:good"));
    let mut sight = sight(&["web-0", "web-1", "web-2"], &old.revision());
    step(&mut sight, &bad);
    agents_succeed(&mut sight, "app:bad");
    sight.pod("web-2").ready_since = None;
    step(&mut sight, &bad);
    assert!(step(&mut sight, &bad).requested().is_empty(), "web-1 still serves and is left alone");
    assert_eq!(step(&mut sight, &good).requested(), ["web-2"]);
}

/// 17: what was chosen can be taken back, also by a controller that has just started.
#[test]
fn a_scale_in_can_be_taken_back_while_its_hook_runs() {
    let mut sight = sight(&["web-a", "web-b", "web-c", "web-d", "web-e", "web-f"], &seed(6).revision());
    step(&mut sight, &seed(5));
    let chosen = sight.pods.iter().find(|pod| pod.turn.is_some()).unwrap().name.clone();
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
    let chosen = sight.pods.iter().position(|pod| pod.turn.is_some()).unwrap();
    for at in (0..5).filter(|at| *at != chosen) {
        sight.pods[at].ready_since = None;
        sight.pods[at].cost = Some(-9.0);
        assert!(step(&mut sight, &seed(4)).asked().is_empty());
    }
    let name = sight.pods[chosen].name.clone();
    hooks_end(&mut sight, HookPhase::Successful);
    assert_eq!(step(&mut sight, &seed(4)).deleted(), [name.as_str()]);
}

/// 18: nothing is spent on a change that cannot be made.
#[test]
fn a_change_that_is_not_in_place_asks_no_hook_and_says_what_to_do() {
    let changed = seed(5).with("/template/spec/hostNetwork", json!(true));
    let mut sight = sight(&FIVE, &seed(5).revision());
    let decision = step(&mut sight, &changed);
    assert!(decision.asked().is_empty() && decision.deleted().is_empty() && decision.requested().is_empty());
    let (status, reason, message) = condition(&decision, "UpdateFailed");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "NotInPlace"));
    assert!(message.contains("spec.hostNetwork") && message.contains("RollingUpdate"), "{message}");
    assert!(step(&mut sight, &changed).actions.is_empty(), "and does not try again and again");
    let fallback = changed.annotated(workload_key::FALLBACK, "Recreate");
    assert_eq!(step(&mut sight, &fallback).asked().len(), 2, "pods are recreated, after their hooks");
}

/// 21: order changes between looks.
#[test]
fn never_more_hooks_than_the_budget_whatever_the_order() {
    let (old, new) = (seed(5), seed(5).image("app:2"));
    let mut sight = sight(&FIVE, &old.revision());
    step(&mut sight, &new);
    for round in 0..5 {
        sight.pods.rotate_left(1);
        sight.pods[0].cost = Some(f64::from(round) - 10.0);
        sight.pods[1].ready_since = Some(at(-i64::from(round)));
        step(&mut sight, &new);
        assert_eq!(sight.runs.len(), 2);
    }
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

/// f3135546b: nothing to prepare.
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
    assert!(sight.pod("web-3").turn.is_some());
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
        sight.pods.push(Pod { deleting: true, ..pod(name, &revision) });
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

/// An agent that is not there.
#[test]
fn a_request_that_nobody_takes_up_is_taken_back_said_and_tried_again_later() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requested().len(), 3);
    let decision = step(&mut sight, &new);
    assert_eq!(decision.look_again, Some(at(120)));
    sight.now = at(120);
    step(&mut sight, &new);
    assert!(sight.pods.iter().all(|pod| pod.request.is_none()), "a late agent finds nothing to do");
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty());
    let (_, reason, message) = condition(&decision, "UpdateFailed");
    assert!(reason == "NoAgent" && message.contains("DaemonSet"), "{reason} {message}");
    sight.now = at(300);
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requested().len(), 3);
    assert!(requests(&decision).iter().all(|request| request.id.ends_with("-2")));
}

#[test]
fn failures_stop_a_rollout_at_the_threshold() {
    let old = in_place().with("/replicas", json!(5)).with("/updateStrategy/maxUnavailable", json!(1));
    let new = old.clone().image("app:2").annotated(workload_key::FAILURE_THRESHOLD, "2");
    let mut sight = sight(&FIVE, &old.revision());
    for round in 1..=2 {
        let decision = step(&mut sight, &new);
        assert_eq!(decision.requested().len(), 1, "round {round}");
        let name = decision.requested()[0].to_owned();
        let pod = sight.pod(&name);
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Verify)));
    }
    assert!(step(&mut sight, &new).requested().is_empty());
    let decision = step(&mut sight, &new);
    assert!(decision.actions.is_empty());
    assert_eq!(condition(&decision, "UpdateFailed").1, "TooManyFailures");
    assert_eq!(condition(&decision, "Progressing").0, "False");
    let again = new.clone().annotated(workload_key::RETRY, "true");
    assert!(step(&mut sight, &again).actions.contains(&Action::ClearRetry));
    assert_eq!(step(&mut sight, &new).requested().len(), 1);
}

#[test]
fn a_workload_on_its_way_out_is_left_to_the_garbage_collector() {
    let mut object = deployment().object();
    object.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let sight = sight(&[], &deployment().revision());
    let wish = crate::workload::wish::Wish::of_deployment(&object);
    assert_eq!(super::decide(&wish, &sight.before, &sight.seen()), Decision::default());
}

#[test]
fn what_somebody_else_asked_of_a_pod_is_waited_for() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    sight.pods[0].request = Some("mine".to_owned());
    assert_eq!(step(&mut sight, &new).requested(), ["web-b", "web-c"]);
    sight.pods[0].answer = Some(answer("mine", Phase::Succeeded, None));
    assert_eq!(step(&mut sight, &new).requested(), ["web-a"]);
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
    let dear = draft.clone().annotated(workload_key::COST_ORDER, "descend");
    assert_eq!(first(&sight, &dear), "web-c", "or the dearest");
    sight.nodes.insert("other".to_owned(), crate::workload::order::Node { cost: Some(1.0), ready: true });
    sight.pod("web-d").node = Some("other".to_owned());
    assert_eq!(first(&sight, &draft), "web-d", "a cheap node before a cheap pod");
    sight.pod("web-a").ready_since = None;
    assert_eq!(first(&sight, &draft), "web-a", "what serves nobody before all");
}

fn at_created(at_index: usize) -> jiff::Timestamp {
    at(-1000 + i64::try_from(at_index).unwrap())
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
    sight.pods[2].deleting = true;
    let lost = |sight: &Sight| -> Vec<(String, Why)> {
        let of = |action: &Action| match action {
            Action::DeletePod { pod, why } => Some((pod.name.clone(), *why)),
            _ => None,
        };
        sight.decide(&draft).actions.iter().filter_map(of).collect()
    };
    assert_eq!(lost(&sight), [("web-1".to_owned(), Why::EndedPod)]);
    sight.nodes.insert("node".to_owned(), crate::workload::order::Node { cost: None, ready: false });
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
    sight.pods[2].deleting = true;
    assert!(sight.decide(&fewer).deleted().is_empty(), "web-2 is not gone yet");
}

#[test]
fn a_pod_that_never_ran_is_made_anew_instead_of_being_updated_in_place() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    sight.pods[1].phase = PodPhase::Pending;
    sight.pods[1].ready_since = None;
    let decision = step(&mut sight, &new);
    assert_eq!((decision.deleted(), decision.requested()), (vec!["web-b"], vec!["web-a", "web-c"]));
}

#[test]
fn a_turn_of_another_controller_is_gone_on_with() {
    let new = in_place().image("app:2");
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    let target = sight_revision(&new, &sight);
    sight.pods[0].turn = Some(Turn {
        purpose: Purpose::InPlace,
        target,
        number: 7,
        at: at(-5),
        stage: Stage::Chosen,
        seconds: 0,
        note: String::new(),
    });
    let decision = step(&mut sight, &new);
    let ids: Vec<_> = requests(&decision).into_iter().map(|request| request.id).collect();
    assert!(ids[0].ends_with("-7"), "{ids:?}");
}

#[test]
fn hooks_of_pods_that_are_gone_go() {
    let mut sight = sight(&FIVE, &seed(5).revision());
    step(&mut sight, &seed(4));
    let chosen = sight.pods.iter().find(|pod| pod.turn.is_some()).unwrap().name.clone();
    sight.pods.retain(|pod| pod.name != chosen);
    let name = sight.runs[0].name.clone();
    assert_eq!(sight.decide(&seed(4)).actions, [Action::DeleteRun(name)]);
    assert_eq!(sight.runs[0].kind, HookType::PreDelete);
}

#[test]
fn the_body_of_a_value_is_never_needed_to_tell_what_is_wrong() {
    // Secrets in the environment never reach a condition or an event.
    let secret = json!([{"name": "TOKEN", "value": "s3cret"}]);
    let new = in_place().with("/template/spec/containers/0/env", secret);
    let sight = sight(&["web-a", "web-b", "web-c"], &in_place().revision());
    let decision = sight.decide(&new);
    let told: Vec<Value> =
        decision.report.unwrap().conditions.iter().map(|one| serde_json::to_value(one).unwrap()).collect();
    let events: Vec<_> = decision.actions.iter().filter_map(|action| action.event(None)).collect();
    assert!(!format!("{told:?}{events:?}").contains("s3cret"));
}
