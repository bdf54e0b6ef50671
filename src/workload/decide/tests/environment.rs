//! Labels and annotations that a container has in its environment.

use super::*;

/// Three pods; `a` has the label `zone` in its environment and `b` has nothing of its pod in it.
fn reading() -> Draft {
    two_containers().with("/template/metadata/labels/zone", json!("x")).with(
        "/template/spec/containers/0/env",
        json!([{"name": "ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['zone']"}}}]),
    )
}

fn moved() -> Draft {
    reading().with("/template/metadata/labels/zone", json!("y"))
}

/// The value of the label that each patch of a pod sets, and whether the patch has a request.
fn zones(decision: &Decision) -> Vec<(Option<&str>, bool)> {
    let patches = decision.actions.iter().filter_map(|action| match action {
        Action::PatchPod { patch, .. } => Some(patch),
        _ => None,
    });
    let sends = |annotation: Option<&Option<String>>| annotation.is_some_and(Option::is_some);
    patches
        .map(|patch| {
            let zone = patch.labels.get("zone").and_then(Option::as_deref);
            (zone, sends(patch.annotations.get(annotation::REQUEST)))
        })
        .collect()
}

fn containers(decision: &Decision) -> Vec<(String, Option<String>)> {
    let requests = requests(decision);
    let first = requests.first().map(|request| request.containers.clone()).unwrap_or_default();
    first.into_iter().map(|container| (container.name, container.image)).collect()
}

#[test]
fn a_container_that_reads_a_changed_label_is_restarted_after_the_label_is_written() {
    let mut sight = sight(&FIVE[..3], &reading().revision());
    let decision = step(&mut sight, &moved());
    assert_eq!(containers(&decision), [("a".to_owned(), None)]);
    assert_eq!(zones(&decision), [(Some("y"), true); 3], "in the same write");
    assert!(sight.pods.iter().all(|pod| pod.label == reading().revision().name), "not at the revision yet");
    agents_succeed(&mut sight, "a:1");
    step(&mut sight, &moved());
    let decision = step(&mut sight, &moved());
    assert_eq!((decision.requested().len(), columns(&moved(), &decision)[1]), (0, 3), "restarted once");
}

#[test]
fn a_container_that_is_swapped_anyhow_is_not_restarted_and_also_sees_the_new_label() {
    let sight = sight(&FIVE[..3], &reading().revision());
    let decision = sight.decide(&other_image(&moved(), 0, "a:2"));
    assert_eq!(containers(&decision), [("a".to_owned(), Some("a:2".to_owned()))]);
    assert_eq!(zones(&decision), [(Some("y"), true); 3]);
    let decision = sight.decide(&other_image(&moved(), 1, "b:2"));
    assert_eq!(containers(&decision), [("a".to_owned(), None), ("b".to_owned(), Some("b:2".to_owned()))]);
}

#[test]
fn what_no_container_reads_is_written_at_the_end_as_before() {
    let sight = sight(&FIVE[..3], &reading().revision());
    let other = reading().with("/template/metadata/labels/tier", json!("1"));
    assert!(sight.decide(&other).requested().is_empty());
    let decision = sight.decide(&other_image(&other, 1, "b:2"));
    assert_eq!(containers(&decision), [("b".to_owned(), Some("b:2".to_owned()))]);
    assert_eq!(zones(&decision), [(None, true); 3]);
}

#[test]
fn a_pod_that_did_not_get_there_has_the_labels_of_its_own_revision_again() {
    for (phase, at_step) in
        [(Phase::Failed, Some(Step::Pull)), (Phase::Failed, Some(Step::Swap)), (Phase::Refused, None)]
    {
        let mut sight = sight(&FIVE[..3], &reading().revision());
        step(&mut sight, &moved());
        for pod in &mut sight.pods {
            pod.answer = Some(answer(&pod.task.as_ref().unwrap().id(), phase, at_step));
        }
        let decision = step(&mut sight, &moved());
        assert_eq!(zones(&decision), [(Some("x"), false); 3], "{phase:?} {at_step:?}");
    }
}

#[test]
fn a_request_that_is_recalled_leaves_the_labels_of_the_pods_revision() {
    let mut sight = sight(&FIVE[..3], &reading().revision());
    step(&mut sight, &moved());
    let mut seen = Vec::new();
    for _ in 0..4 {
        sight.now = later_by(sight.now, 200);
        let decision = step(&mut sight, &reading());
        seen.extend(zones(&decision).into_iter().filter_map(|(zone, _)| zone.map(str::to_owned)));
    }
    assert_eq!(seen, ["x"; 3]);
}

fn later_by(time: jiff::Timestamp, seconds: i64) -> jiff::Timestamp {
    time.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap()
}
