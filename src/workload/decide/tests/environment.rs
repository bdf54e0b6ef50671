//! A label in the environment of a container changes: the pod gets it first, and then the container is restarted.

use jiff::SignedDuration;

use super::*;

fn in_zone(zone: &str) -> Draft {
    let variable =
        json!([{"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone']"}}}]);
    let metadata = json!({"labels": {"app": "web", "zone": zone}});
    deployment()
        .with("/updateStrategy", json!({"type": "InplaceUpdate", "maxUnavailable": 3}))
        .with("/template/metadata", metadata)
        .with("/template/spec/containers/0/env", variable)
}

/// Three pods in zone `a`, and what follows at once when the template says zone `b`.
fn moved(new: &Draft) -> Sight {
    let mut sight = sight(&["web-a", "web-b", "web-c"], &in_zone("a").revision());
    for pod in &mut sight.pods {
        pod.labels.insert("zone".to_owned(), "a".to_owned());
    }
    step(&mut sight, &in_zone("a"));
    assert!(step(&mut sight, new).requested().is_empty());
    sight
}

fn zones(sight: &Sight) -> Vec<Option<&str>> {
    sight.pods.iter().map(|pod| pod.labels.get("zone").map(String::as_str)).collect()
}

fn containers(decision: &Decision) -> Vec<(String, Option<String>)> {
    let requests = decision.actions.iter().filter_map(|action| match action {
        Action::PatchPod { patch, .. } => patch.annotations.get(annotation::REQUEST)?.as_deref(),
        _ => None,
    });
    let all = requests.flat_map(|text| Request::parse(Some(text)).unwrap().unwrap().containers);
    all.map(|container| (container.name, container.image)).collect()
}

fn wait(sight: &mut Sight, millis: i64) {
    sight.now += SignedDuration::from_millis(millis);
}

#[test]
fn the_pod_has_the_label_for_two_seconds_before_its_container_is_restarted() {
    let new = in_zone("b");
    let mut sight = moved(&new);
    assert_eq!(zones(&sight), [Some("b"); 3]);
    wait(&mut sight, 1900);
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty());
    assert_eq!(decision.requeue_at, Some(sight.now + SignedDuration::from_millis(100)));
    wait(&mut sight, 200);
    let decision = step(&mut sight, &new);
    assert_eq!(containers(&decision), vec![("app".to_owned(), None); 3]);
    agents_succeed(&mut sight, "app:1");
    step(&mut sight, &new);
    let revision = sight_revision(&new, &sight);
    assert!(sight.pods.iter().all(|pod| pod.label == revision));
    wait(&mut sight, 60_000);
    assert!(step(&mut sight, &new).requested().is_empty(), "and that is all");
}

#[test]
fn a_new_image_waits_for_the_label_too() {
    let new = in_zone("b").image("app:2");
    let mut sight = moved(&new);
    assert_eq!(zones(&sight), [Some("b"); 3]);
    wait(&mut sight, 2000);
    assert_eq!(containers(&step(&mut sight, &new)), vec![("app".to_owned(), Some("app:2".to_owned())); 3]);
}

#[test]
fn a_label_that_no_container_has_in_its_environment_restarts_nothing() {
    let old = in_zone("a");
    let new = old.clone().with("/template/metadata/labels/other", json!("x"));
    let mut sight = sight(&["web-a"], &old.revision());
    step(&mut sight, &old);
    let decision = step(&mut sight, &new);
    assert!(decision.requested().is_empty());
    assert_eq!(sight.pods[0].label, sight_revision(&new, &sight));
}

/// The change is taken back before any container is touched.
#[test]
fn a_pod_that_is_not_to_move_any_more_gets_its_own_label_again() {
    let mut sight = moved(&in_zone("b"));
    let old = in_zone("a");
    let decision = step(&mut sight, &old);
    assert!(decision.requested().is_empty());
    assert_eq!(zones(&sight), [Some("a"); 3]);
    wait(&mut sight, 60_000);
    assert!(step(&mut sight, &old).requested().is_empty());
    // Another change in the meantime.
    let mut sight = moved(&in_zone("b"));
    step(&mut sight, &in_zone("c"));
    assert_eq!(zones(&sight), [Some("a"); 3], "first back");
    step(&mut sight, &in_zone("c"));
    assert_eq!(zones(&sight), [Some("c"); 3]);
}

/// The containers run with the label of the template that failed.
#[test]
fn after_a_failure_the_pod_has_its_own_label_and_the_way_back_restarts_the_container() {
    for (phase, at_step) in [(Phase::Failed, Step::Verify), (Phase::RolledBack, Step::Rollback)] {
        let new = in_zone("b").image("app:2");
        let mut sight = moved(&new);
        wait(&mut sight, 2000);
        step(&mut sight, &new);
        for pod in &mut sight.pods {
            pod.answer = Some(answer(pod.request.as_ref().unwrap(), phase, Some(at_step)));
            if phase == Phase::Failed {
                pod.images[0].1 = "app:2".to_owned();
            }
        }
        step(&mut sight, &new);
        assert_eq!(zones(&sight), [Some("a"); 3], "{phase:?}");
        let old = in_zone("a");
        step(&mut sight, &old);
        wait(&mut sight, 2000);
        let image = (phase == Phase::Failed).then(|| "app:1".to_owned());
        assert_eq!(containers(&step(&mut sight, &old)), vec![("app".to_owned(), image); 3], "{phase:?}");
        agents_succeed(&mut sight, "app:1");
        step(&mut sight, &old);
        wait(&mut sight, 60_000);
        assert!(step(&mut sight, &old).requested().is_empty(), "{phase:?}");
        assert_eq!(zones(&sight), [Some("a"); 3]);
    }
}

/// A refusal touched nothing.
#[test]
fn a_pod_whose_agent_refuses_has_its_own_label_and_is_not_restarted() {
    let new = in_zone("b");
    let mut sight = moved(&new);
    wait(&mut sight, 2000);
    step(&mut sight, &new);
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::Refused, None));
    }
    step(&mut sight, &new);
    assert_eq!(zones(&sight), [Some("a"); 3]);
    let old = in_zone("a");
    step(&mut sight, &old);
    wait(&mut sight, 60_000);
    assert!(step(&mut sight, &old).requested().is_empty());
}

/// The reconcile during the wait deletes what no pod needs.
#[test]
fn the_revision_whose_label_a_container_may_have_is_kept_until_the_container_is_restarted() {
    let limited = |draft: Draft| draft.with("/revisionHistoryLimit", json!(0));
    let (old, new) = (limited(in_zone("a")), limited(in_zone("b")));
    let mut sight = moved(&new);
    wait(&mut sight, 2000);
    step(&mut sight, &new);
    for pod in &mut sight.pods {
        pod.answer = Some(answer(pod.request.as_ref().unwrap(), Phase::RolledBack, Some(Step::Rollback)));
    }
    step(&mut sight, &new);
    for _ in 0..3 {
        step(&mut sight, &old);
    }
    wait(&mut sight, 2000);
    assert_eq!(step(&mut sight, &old).requested().len(), 3);
}

/// Its kubelet started the container again while the pod had the label of the target.
#[test]
fn a_container_that_ended_by_itself_while_the_pod_had_the_label_is_restarted_on_the_way_back() {
    let mut sight = moved(&in_zone("b"));
    sight.pods[0].restarts += 1;
    let old = in_zone("a");
    step(&mut sight, &old);
    step(&mut sight, &old);
    wait(&mut sight, 2000);
    let decision = step(&mut sight, &old);
    assert_eq!(decision.requested(), [sight.pods[0].name.as_str()]);
}

/// A `PodDisruptionBudget` allowed the update when the label was written, and does not allow it two seconds later.
#[test]
fn a_pod_that_has_to_wait_has_its_own_label_meanwhile() {
    let new = in_zone("b");
    let mut sight = moved(&new);
    let budget = |allowed: i32| {
        let object = json!({"metadata": {"name": "pdb"}, "spec": {"selector": {}},
            "status": {"disruptionsAllowed": allowed, "desiredHealthy": 3}});
        crate::podtask::disruption::DisruptionAllowance::new(
            [std::sync::Arc::new(serde_json::from_value(object).unwrap())],
            "v1",
        )
    };
    sight.disruptions = budget(0);
    wait(&mut sight, 2000);
    assert!(step(&mut sight, &new).requested().is_empty());
    assert_eq!(zones(&sight), [Some("a"); 3]);
    sight.disruptions = budget(3);
    wait(&mut sight, 60_000);
    step(&mut sight, &new);
    assert_eq!(zones(&sight), [Some("b"); 3]);
    wait(&mut sight, 2000);
    assert_eq!(step(&mut sight, &new).requested().len(), 3);
}
