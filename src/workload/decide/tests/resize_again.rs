//! What has changed while a pod waited for its node or for its hook is looked at again before its containers are touched.

use jiff::SignedDuration;

use super::disruptions::allowing;
use super::resize::with_cpu;
use super::*;
use crate::podtask::resources::Resize;

fn running(draft: &Draft) -> Sight {
    let mut sight = sight(&["web-a", "web-b", "web-c"], &draft.revision());
    step(&mut sight, draft);
    sight
}

/// The resize of a pod is written, and its node has no room for it yet.
fn deferred(old: &Draft, new: &Draft) -> (Sight, String) {
    let mut sight = running(old);
    step(&mut sight, new);
    let decision = step(&mut sight, new);
    let written = decision.actions.iter().find_map(|action| match action {
        Action::Resize { pod, .. } => Some(pod.name.clone()),
        _ => None,
    });
    let name = written.unwrap();
    sight.pod(&name).resize = Resize::Waits("Deferred: the node is full".into());
    step(&mut sight, new);
    (sight, name)
}

fn is_resized(pod: &Pod) -> bool {
    pod.task.as_ref().is_some_and(|task| task.stage == Stage::Resizing)
}

fn taken(sight: &mut Sight, name: &str, draft: &Draft) -> Vec<String> {
    let mut requested = Vec::new();
    for _ in 0..6 {
        sight.pod(name).resize = Resize::Taken;
        requested.extend(step(sight, draft).requested().iter().map(|name| (*name).to_owned()));
        sight.now += SignedDuration::from_secs(3);
    }
    requested
}

#[test]
fn no_container_is_replaced_after_a_resize_when_the_update_is_paused_or_holds_the_pod_back() {
    let new = with_cpu("2").image("app:2");
    for held in [("/updateStrategy/paused", json!(true)), ("/updateStrategy/partition", json!(3))] {
        let (mut sight, name) = deferred(&with_cpu("1"), &new);
        let held = new.clone().with(held.0, held.1);
        assert_eq!(taken(&mut sight, &name, &held), Vec::<String>::new(), "{:#?}", sight.pod(&name).task);
        assert_eq!(taken(&mut sight, &name, &new), [name], "and afterwards it is");
    }
}

/// Two pods wait for their nodes, and then the partition releases one pod only.
#[test]
fn a_partition_that_releases_fewer_pods_than_are_being_resized_holds_the_others_back() {
    let two = |draft: Draft| draft.with("/updateStrategy/maxUnavailable", json!(2));
    let new = two(with_cpu("2").image("app:2"));
    let (mut sight, _) = deferred(&two(with_cpu("1")), &new);
    assert_eq!(sight.pods.iter().filter(|pod| is_resized(pod)).count(), 2);
    let held = new.with("/updateStrategy/partition", json!(2));
    let mut requested = 0;
    for _ in 0..6 {
        sight.pods.iter_mut().for_each(|pod| pod.resize = Resize::Taken);
        requested += step(&mut sight, &held).requested().len();
    }
    assert_eq!(requested, 1);
}

/// Nobody answers the request of the other client.
#[test]
fn a_pod_that_another_client_has_keeps_no_other_pod_from_being_updated() {
    let hook = json!({"hook": {"templateName": "test"}});
    let old = with_cpu("1").with("/preInplaceUpdateStrategy", hook);
    let new = old.clone().image("app:2");
    let mut sight = running(&old);
    step(&mut sight, &new);
    let name = sight.pods.iter().find(|pod| pod.task.is_some()).unwrap().name.clone();
    sight.pod(&name).request = Some("restart-by-hand".to_owned());
    let mut updated = Vec::new();
    for _ in 0..6 {
        hooks_end(&mut sight, HookPhase::Successful);
        let decision = step(&mut sight, &new);
        updated.extend(decision.requested().iter().map(|name| (*name).to_owned()));
    }
    assert!(updated.len() == 1 && updated[0] != name, "{updated:?}");
}

#[test]
fn a_way_back_that_waits_for_its_node_ends_with_another_template() {
    let (old, new) = (with_cpu("1"), with_cpu("2").image("app:2"));
    let (mut sight, name) = deferred(&old, &new);
    sight.pod(&name).resize = Resize::Taken;
    for _ in 0..4 {
        step(&mut sight, &old);
    }
    // The process needs more memory than the limit of before.
    sight.pod(&name).resize = Resize::Waits("Error: uses more than its new limit".into());
    assert_eq!(sight.pod(&name).task.as_ref().unwrap().stage, Stage::Resizing);
    step(&mut sight, &old);
    let other = with_cpu("2").image("app:3");
    for _ in 0..4 {
        step(&mut sight, &other);
    }
    let target = sight.pod(&name).task.as_ref().unwrap().target.clone();
    assert_eq!(target, sight_revision(&other, &sight));
}

/// A pod that is not Ready is not claimed when it is resized.
#[test]
fn a_pod_that_is_ready_after_its_resize_is_claimed_before_its_container_is_replaced() {
    let new = with_cpu("2").image("app:2");
    let mut sight = running(&with_cpu("1"));
    for pod in &mut sight.pods {
        pod.ready_since = None;
    }
    sight.disruptions = allowing(0, &[]);
    step(&mut sight, &new);
    step(&mut sight, &new);
    let name = sight.pods.iter().find(|pod| is_resized(pod)).unwrap().name.clone();
    for pod in &mut sight.pods {
        pod.ready_since = Some(at(-900));
    }
    assert_eq!(taken(&mut sight, &name, &new), Vec::<String>::new());
    sight.disruptions = allowing(1, &[]);
    assert_eq!(taken(&mut sight, &name, &new), [name.as_str()]);
    assert!(!sight.pod(&name).task.as_ref().unwrap().claims.is_empty());
}

#[test]
fn a_request_of_another_client_is_not_replaced() {
    let new = with_cpu("2").image("app:2");
    let (mut sight, name) = deferred(&with_cpu("1"), &new);
    sight.pod(&name).request = Some("restart-by-hand".to_owned());
    assert_eq!(taken(&mut sight, &name, &new), Vec::<String>::new());
    sight.pod(&name).answer = Some(answer("restart-by-hand", Phase::Succeeded, None));
    assert_eq!(taken(&mut sight, &name, &new), [name]);
    // The same while a hook runs.
    let hook = json!({"hook": {"templateName": "test"}});
    let old = with_cpu("1").with("/preInplaceUpdateStrategy", hook);
    let old = old.with("/updateStrategy/maxUnavailable", json!(3));
    let new = old.clone().image("app:2");
    let mut sight = running(&old);
    step(&mut sight, &new);
    sight.pod("web-a").request = Some("restart-by-hand".to_owned());
    hooks_end(&mut sight, HookPhase::Successful);
    assert_eq!(step(&mut sight, &new).requested(), ["web-b", "web-c"]);
    sight.pod("web-a").answer = Some(answer("restart-by-hand", Phase::Succeeded, None));
    assert_eq!(step(&mut sight, &new).requested(), ["web-a"]);
}

/// The label is written when the node has room, not hours before the request.
#[test]
fn a_pod_keeps_its_labels_while_its_resize_waits() {
    let variable =
        json!([{"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone']"}}}]);
    let zone = |draft: Draft, zone: &str| {
        draft
            .with("/template/metadata/labels", json!({"app": "web", "zone": zone}))
            .with("/template/spec/containers/0/env", variable.clone())
    };
    let (old, new) = (zone(with_cpu("1"), "a"), zone(with_cpu("2"), "b"));
    let (mut sight, name) = deferred(&old, &new);
    let zone = |sight: &mut Sight| sight.pod(&name).labels.get("zone").cloned();
    assert_ne!(zone(&mut sight), Some("b".to_owned()));
    sight.pod(&name).resize = Resize::Taken;
    assert!(step(&mut sight, &new).requested().is_empty());
    assert_eq!(zone(&mut sight), Some("b".to_owned()));
    sight.now += SignedDuration::from_secs(2);
    assert_eq!(step(&mut sight, &new).requested(), [name.as_str()]);
}

/// A pod that a partition holds goes back to its own revision; nobody answers the request for it.
#[test]
fn a_way_back_that_no_agent_answers_is_retried_and_reported() {
    let old = with_cpu("1");
    let new = old.clone().image("app:2");
    let mut sight = running(&old);
    step(&mut sight, &new);
    let name = sight.pods.iter().find(|pod| pod.request.is_some()).unwrap().name.clone();
    let pod = sight.pod(&name);
    pod.images[0].1 = "app:2".to_owned();
    pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Failed, Some(Step::Verify)));
    pod.ready_since = None;
    let held = old.with("/updateStrategy/partition", json!(3));
    let mut requests = 0;
    let mut reported = false;
    for _ in 0..40 {
        sight.now += SignedDuration::from_secs(30);
        let decision = step(&mut sight, &held);
        requests += decision.requested().iter().filter(|one| **one == name).count();
        reported |= condition(&decision, "UpdateFailed").1 == "NoAgent";
    }
    assert!((2..=4).contains(&requests), "{requests} requests in 20 minutes");
    assert!(reported);
}
