//! cpu and memory of the template change: the pods are resized, one after the other, and their containers stay.

use jiff::SignedDuration;

use super::*;
use crate::podtask::resources::Resize;

const RESOURCES: &str = "/template/spec/containers/0/resources";

pub(super) fn with_cpu(cpu: &str) -> Draft {
    deployment()
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 1}))
        .with(RESOURCES, json!({"limits": {"cpu": cpu, "memory": "1Gi"}}))
}

/// Three pods with one cpu.
fn running() -> Sight {
    let mut sight = sight(&["web-a", "web-b", "web-c"], &with_cpu("1").revision());
    step(&mut sight, &with_cpu("1"));
    sight
}

/// The specs that a decision writes by a resize, by the pod.
fn resized(decision: &Decision) -> Vec<(&str, &Value)> {
    let resizes = decision.actions.iter().filter_map(|action| match action {
        Action::Resize { pod, spec, .. } => Some((pod.name.as_str(), spec)),
        _ => None,
    });
    resizes.collect()
}

/// The first pod is chosen, and then its resize is written.
fn begun(sight: &mut Sight, new: &Draft) -> String {
    assert!(resized(&step(sight, new)).is_empty(), "the task is recorded first");
    let decision = step(sight, new);
    let [(name, _)] = resized(&decision)[..] else { panic!("{:#?}", decision.actions) };
    name.to_owned()
}

fn stage(sight: &mut Sight, name: &str) -> Stage {
    sight.pod(name).task.as_ref().unwrap().stage
}

#[test]
fn pods_are_resized_one_after_the_other_and_no_agent_is_asked() {
    let (mut sight, new) = (running(), with_cpu("2"));
    for updated in 0..3 {
        assert!(resized(&step(&mut sight, &new)).is_empty());
        let decision = step(&mut sight, &new);
        let [(name, spec)] = resized(&decision)[..] else { panic!("{:#?}", decision.actions) };
        let resources = json!({"limits": {"cpu": "2"}, "requests": {"cpu": "2"}});
        assert_eq!(*spec, json!({"containers": [{"name": "app", "resources": resources}]}));
        assert_eq!(columns(&new, &decision)[1], updated);
        let name = name.to_owned();
        for _ in 0..3 {
            let decision = step(&mut sight, &new);
            assert!(decision.actions.is_empty(), "{:#?}", decision.actions);
            let (_, _, message) = condition(&decision, "Progressing");
            assert!(
                message.ends_with(&format!("1 pods are being resized: pod {name}: not seen")),
                "{message}"
            );
        }
        sight.pod(&name).resize = Resize::Taken;
        let decision = step(&mut sight, &new);
        assert!(decision.requested().is_empty() && resized(&decision).is_empty());
        let revision = sight_revision(&new, &sight);
        assert_eq!(sight.pod(&name).label, revision);
    }
    let decision = step(&mut sight, &new);
    assert!(decision.actions.is_empty(), "{:#?}", decision.actions);
    assert_eq!(condition(&decision, "Progressing").1, "Complete");
}

#[test]
fn a_new_image_follows_the_resize() {
    let (mut sight, new) = (running(), with_cpu("2").image("app:2"));
    let name = begun(&mut sight, &new);
    assert!(step(&mut sight, &new).requested().is_empty());
    sight.pod(&name).resize = Resize::Taken;
    assert_eq!(step(&mut sight, &new).requested(), [name.as_str()]);
    agents_succeed_at(&mut sight, &name, "app:2");
    step(&mut sight, &new);
    let revision = sight_revision(&new, &sight);
    assert_eq!(sight.pod(&name).label, revision);
}

fn agents_succeed_at(sight: &mut Sight, name: &str, image: &str) {
    let pod = sight.pod(name);
    let id = pod.task.as_ref().unwrap().id();
    image.clone_into(&mut pod.images[0].1);
    pod.answer = Some(answer(&id, Phase::Succeeded, None));
}

/// The deferred one waits as long as its node is full; no other pod is begun within the budget of one.
#[test]
fn a_resize_that_is_deferred_waits_and_one_that_is_not_possible_fails_the_pod() {
    let (mut sight, new) = (running(), with_cpu("64"));
    let name = begun(&mut sight, &new);
    sight.pod(&name).resize = Resize::Waits("Deferred: the node is full".into());
    sight.now += SignedDuration::from_hours(3);
    let decision = step(&mut sight, &new);
    assert!(decision.actions.is_empty());
    assert!(condition(&decision, "Progressing").2.contains("Deferred: the node is full"));
    // What a kubelet found out about the resources of before is no answer.
    let infeasible = |newest| Resize::Infeasible { note: "Infeasible: 64 is too much".into(), newest };
    sight.pod(&name).resize = infeasible(false);
    sight.pod(&name).task.as_mut().unwrap().at = sight.now;
    let decision = step(&mut sight, &new);
    assert!(decision.actions.is_empty());
    assert_eq!(decision.requeue_at, Some(sight.now + SignedDuration::from_secs(10)));
    sight.pod(&name).resize = infeasible(true);
    let decision = step(&mut sight, &new);
    let event = decision.actions.iter().find_map(|action| action.event(None)).unwrap();
    assert!(event.warning && event.message.contains("Infeasible: 64 is too much"), "{event:?}");
    assert_eq!(stage(&mut sight, &name), Stage::Failed);
    let decision = sight.decide(&new);
    assert!(condition(&decision, "UpdateFailed").2.contains("Infeasible: 64 is too much"));
    assert!(decision.deleted().is_empty(), "it is not recreated");
}

/// Each failed pod goes back by the same way.
#[test]
fn an_update_that_is_undone_resizes_the_pods_back() {
    let (mut sight, new, old) = (running(), with_cpu("2"), with_cpu("1"));
    let done = begun(&mut sight, &new);
    sight.pod(&done).resize = Resize::Taken;
    step(&mut sight, &new);
    let torn = begun(&mut sight, &new);
    assert_ne!(done, torn);
    let mut back = Vec::new();
    for _ in 0..12 {
        let decision = step(&mut sight, &old);
        back.extend(resized(&decision).iter().map(|(name, _)| (*name).to_owned()));
        sight.pods.iter_mut().for_each(|pod| pod.resize = Resize::Taken);
    }
    back.sort();
    let mut both = [done, torn];
    both.sort();
    assert_eq!(back, both);
    let one = running().pods[0].resources.clone();
    assert!(sight.pods.iter().all(|pod| pod.resources == one && pod.label == sight.pods[0].label));
}

#[test]
fn an_abort_resizes_the_failed_pod_back() {
    let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 1, "onFailure": "Abort"});
    let with_cpu = |cpu: &str| with_cpu(cpu).with("/updateStrategy", strategy.clone());
    let (mut sight, new) = (running(), with_cpu("64"));
    step(&mut sight, &with_cpu("1"));
    let name = begun(&mut sight, &new);
    sight.pod(&name).resize = Resize::Infeasible { note: "Infeasible: no".into(), newest: true };
    let mut back = Vec::new();
    for _ in 0..8 {
        let decision = step(&mut sight, &new);
        back.extend(resized(&decision).iter().map(|(name, spec)| ((*name).to_owned(), (*spec).clone())));
    }
    let [(of, spec)] = &back[..] else { panic!("{back:?}") };
    assert_eq!((of, &spec["containers"][0]["resources"]["limits"]["cpu"]), (&name, &json!("1")));
}

/// A node that stays full: the deadline ends the wait, and the pod goes back.
#[test]
fn a_deferred_resize_is_late_and_is_aborted() {
    let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 1, "onFailure": "Abort"});
    let with_cpu = |cpu: &str| {
        let draft = with_cpu(cpu).with("/updateStrategy", strategy.clone());
        draft.with("/progressDeadlineSeconds", json!(100))
    };
    let (mut sight, new) = (running(), with_cpu("3"));
    step(&mut sight, &with_cpu("1"));
    let name = begun(&mut sight, &new);
    sight.pod(&name).resize = Resize::Waits("Deferred: the node is full".into());
    sight.now += SignedDuration::from_secs(99);
    assert!(step(&mut sight, &new).actions.is_empty());
    sight.now += SignedDuration::from_secs(2);
    let decision = step(&mut sight, &new);
    let cause = condition(&decision, "UpdateFailed").2;
    assert!(
        cause.contains("no progress for 100 s") && cause.contains("Deferred: the node is full"),
        "{cause}"
    );
    for _ in 0..8 {
        step(&mut sight, &new);
        sight.pods.iter_mut().for_each(|pod| pod.resize = Resize::Taken);
    }
    assert_eq!(condition(&sight.decide(&new), "Progressing").1, "Aborted");
    let one = running().pods[0].resources.clone();
    assert!(sight.pods.iter().all(|pod| pod.resources == one));
}

/// The agent takes its image back, and the abort takes the resources back.
#[test]
fn an_image_that_fails_after_its_resize_leaves_no_resources() {
    let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 1, "onFailure": "Abort"});
    let with_cpu = |cpu: &str| with_cpu(cpu).with("/updateStrategy", strategy.clone());
    let (mut sight, new) = (running(), with_cpu("2").image("app:2"));
    step(&mut sight, &with_cpu("1"));
    let name = begun(&mut sight, &new);
    sight.pod(&name).resize = Resize::Taken;
    assert_eq!(step(&mut sight, &new).requested(), [name.as_str()]);
    let id = sight.pod(&name).task.as_ref().unwrap().id();
    sight.pod(&name).answer = Some(answer(&id, Phase::RolledBack, Some(Step::Verify)));
    let mut back = 0;
    for _ in 0..8 {
        let decision = step(&mut sight, &new);
        assert!(decision.requested().is_empty(), "the image is there: {:#?}", decision.actions);
        back += resized(&decision).len();
        sight.pods.iter_mut().for_each(|pod| pod.resize = Resize::Taken);
    }
    assert_eq!(back, 1);
    assert_eq!(condition(&sight.decide(&new), "Progressing").1, "Aborted");
    let one = running().pods[0].resources.clone();
    assert!(sight.pods.iter().all(|pod| pod.resources == one));
}

/// With the order `StartFirst` a container that runs and is not Ready gets no request. One that its resize has broken would never
/// get one.
#[test]
fn a_container_that_is_not_ready_after_its_resize_fails_the_pod_in_time() {
    let order =
        |draft: Draft| draft.with("/updateStrategy/inPlaceUpdateStrategy", json!({"order": "StartFirst"}));
    let (mut sight, new) = (running(), order(with_cpu("2").image("app:2")));
    step(&mut sight, &order(with_cpu("1")));
    let name = begun(&mut sight, &new);
    let broken_at = sight.now + SignedDuration::from_secs(5);
    sight.now += SignedDuration::from_secs(10);
    let pod = sight.pod(&name);
    (pod.resize, pod.ready_since, pod.unready_since) = (Resize::Taken, None, Some(broken_at));
    pod.unready = vec![("app".to_owned(), false)];
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty(), "{:#?}", decision.actions);
    assert!(condition(&decision, "Progressing").2.contains(&format!("for example {name}: ")));
    let end = broken_at + SignedDuration::from_secs(120);
    assert!(decision.requeue_at.is_some_and(|at| at <= end));
    sight.now = end - SignedDuration::from_secs(1);
    assert_eq!(step(&mut sight, &new).requeue_at, Some(end));
    assert_eq!(stage(&mut sight, &name), Stage::Resizing);
    let mut ready = sight.clone();
    let pod = ready.pod(&name);
    (pod.ready_since, pod.unready_since, pod.unready) = (Some(end), None, Vec::new());
    assert_eq!(step(&mut ready, &new).requested(), [name.as_str()], "Ready in time");
    sight.now = end;
    step(&mut sight, &new);
    assert_eq!(stage(&mut sight, &name), Stage::Failed);
    assert!(condition(&sight.decide(&new), "UpdateFailed").2.contains("app is not Ready for 120 s"));
    // A retry repairs it: nothing that serves would be replaced.
    let again = new.clone().annotated(workload_key::RETRY, "true");
    step(&mut sight, &again);
    let decision = step(&mut sight, &new);
    let requested = requests(&decision);
    assert_eq!(
        (decision.requested(), requested[0].order),
        (vec![name.as_str()], crate::api::request::Order::StopFirst)
    );
}

/// A resize that waits holds no pod for longer than its user wants.
#[test]
fn another_update_type_replaces_a_pod_whose_resize_waits() {
    let (mut sight, new) = (running(), with_cpu("64"));
    let name = begun(&mut sight, &new);
    let rolling = new.with("/updateStrategy/type", json!("RollingUpdate"));
    // Whether the API server resizes pods is asked only for updates in place.
    sight.resizes = false;
    step(&mut sight, &rolling);
    assert_eq!(stage(&mut sight, &name), Stage::Dropped);
    assert_eq!(step(&mut sight, &rolling).deleted().len(), 1);
}

#[test]
fn what_the_api_server_refuses_fails_the_pod_and_is_not_written_again() {
    let (mut sight, new) = (running(), with_cpu("2"));
    assert!(resized(&step(&mut sight, &new)).is_empty());
    let decision = sight.decide(&new);
    let Some(Action::Resize { pod, task, .. }) = decision.actions.first() else { panic!() };
    write(sight.pod(&pod.name), &crate::workload::resize::refused(task, "no such quota"));
    let name = pod.name.clone();
    let decision = step(&mut sight, &new);
    assert!(resized(&decision).is_empty());
    assert_eq!(stage(&mut sight, &name), Stage::Failed);
    let decision = step(&mut sight, &new);
    assert!(condition(&decision, "UpdateFailed").2.contains("no such quota"), "{decision:#?}");
    sight.now += SignedDuration::from_hours(3);
    assert!(resized(&step(&mut sight, &new)).is_empty());
    // A retry is another attempt.
    let again = new.annotated(workload_key::RETRY, "true");
    step(&mut sight, &again);
    begun(&mut sight, &again);
}

/// It is never recorded as updated while its kubelet has the old resources.
#[test]
fn a_retry_waits_for_the_kubelet_too() {
    let (mut sight, new) = (running(), with_cpu("64"));
    let name = begun(&mut sight, &new);
    sight.pod(&name).resize = Resize::Infeasible { note: "Infeasible: no".into(), newest: true };
    step(&mut sight, &new);
    let old = sight.pod(&name).label.clone();
    let again = new.clone().annotated(workload_key::RETRY, "true");
    step(&mut sight, &again);
    for _ in 0..4 {
        step(&mut sight, &new);
        assert_eq!(sight.pod(&name).label, old);
    }
}

/// A webhook may store other resources than those that were written.
#[test]
fn what_was_written_is_compared_and_nothing_else() {
    let draft = with_cpu("1").with(&format!("{RESOURCES}/requests"), json!({"cpu": "500m"}));
    let mut sight = sight(&["web-a"], &draft.revision());
    let spec = json!({"containers": [{"name": "app", "resources": {"limits": {"cpu": "3"}}}]});
    let pod = sight.pod("web-a");
    assert!(!crate::workload::resize::is_written(pod, &spec));
    write_resize(pod, &spec);
    assert!(
        crate::workload::resize::is_written(pod, &spec),
        "the request is another one: {:?}",
        pod.resources
    );
}

/// Only then the API server has to be asked.
#[test]
fn revisions_differ_in_resources_of_containers_that_keep_running() {
    let of = |draft: Draft| draft.spec().template;
    let one = of(with_cpu("1"));
    let differs = |other: Draft| crate::workload::resize::differ([&one, &of(other)], &one);
    assert!(!differs(with_cpu("1000m").image("app:2")));
    assert!(!differs(with_cpu("1").with(&format!("{RESOURCES}/requests"), json!({"cpu": "1"}))));
    assert!(differs(with_cpu("2")));
    assert!(differs(with_cpu("1").with(&format!("{RESOURCES}/requests"), json!({"cpu": "500m"}))));
}

#[test]
fn without_the_subresource_nothing_is_touched() {
    let (mut sight, new) = (running(), with_cpu("2"));
    sight.resizes = false;
    let decision = step(&mut sight, &new);
    assert!(resized(&decision).is_empty() && decision.deleted().is_empty());
    assert_eq!(condition(&decision, "UpdateFailed").1, "NotInPlace");
    // An API server that is upgraded does not say so.
    assert_eq!(decision.requeue_at, Some(sight.now + SignedDuration::from_secs(300)));
    let fallback = new.annotated("inplace.dev/in-place-fallback", "Recreate");
    assert_eq!(step(&mut sight, &fallback).deleted().len(), 1);
}

/// The API server was rolled back in the middle.
#[test]
fn a_resize_without_the_subresource_ends() {
    let (mut sight, new) = (running(), with_cpu("2"));
    step(&mut sight, &new);
    sight.resizes = false;
    step(&mut sight, &new);
    assert!(sight.pods.iter().any(|pod| pod.task.as_ref().is_some_and(|task| task.stage == Stage::Failed)));
}

#[test]
fn a_pod_that_is_surplus_does_not_wait_for_its_resize() {
    let (mut sight, new) = (running(), with_cpu("2"));
    begun(&mut sight, &new);
    let fewer = new.with("/replicas", json!(0));
    step(&mut sight, &fewer);
    step(&mut sight, &fewer);
    assert!(sight.pods.is_empty(), "{:#?}", sight.pods);
}

/// What another client has set stays, unless the template changes it.
#[test]
fn a_resize_by_another_client_stays() {
    let (mut sight, new) = (running(), with_cpu("1").image("app:2"));
    let more = json!({"containers": [{"name": "app", "resources": {"limits": {"cpu": "3"}}}]});
    for pod in &mut sight.pods {
        write_resize(pod, &more);
        pod.resize = Resize::Taken;
    }
    let decision = step(&mut sight, &new);
    assert_eq!(decision.requested().len(), 1, "only the image");
    assert!(resized(&decision).is_empty());
}
