//! Pods on which a bk-bcs operator has begun an update in place.

use jiff::SignedDuration;

use super::*;
use crate::podtask::foreign::ForeignUpdate;
use crate::workload::revision::Revision;

/// A workload whose template has the image 2, its revisions, and pods that are at the new one.
fn taken_over(update: ForeignUpdate, way: &str) -> (Draft, Sight) {
    let draft = deployment().with("/updateStrategy", json!({"type": way, "maxUnavailable": 1}));
    let old = draft.revision();
    let draft = draft.image("app:2");
    let new = Revision { number: 2, ..draft.revision() };
    let mut sight = sight(&["web-a", "web-b", "web-c"], &new);
    sight.revisions.insert(0, old);
    let pod = sight.pod("web-a");
    (pod.ready_since, pod.foreign) = (None, Some(update));
    (draft, sight)
}

fn update(unwritten: &[&str], restarting: &[&str]) -> ForeignUpdate {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    ForeignUpdate {
        began: Some(at(-10)),
        gate_closed: true,
        unwritten: names(unwritten),
        restarting: names(restarting),
    }
}

fn gates(decision: &Decision) -> Vec<(&str, bool)> {
    let gate = |action: &'_ Action| matches!(action, Action::SetGate { .. });
    let gates = decision.actions.iter().filter(|action| gate(action));
    gates
        .map(|action| match action {
            Action::SetGate { pod, open } => (pod.name.as_str(), *open),
            _ => unreachable!(),
        })
        .collect()
}

#[test]
fn a_gate_is_opened_when_its_update_is_complete_and_nothing_else_happens() {
    for way in ["InplaceUpdate", "RollingUpdate", "OnDelete"] {
        let (draft, sight) = taken_over(update(&[], &[]), way);
        let decision = sight.decide(&draft);
        assert_eq!(gates(&decision), [("web-a", true)], "{way}");
        assert_eq!((decision.deleted().len(), decision.requested().len()), (0, 0), "{way}");
    }
    let (draft, mut sight) = taken_over(update(&[], &[]), "InplaceUpdate");
    sight.pod("web-a").request = Some("another-1".to_owned());
    assert!(gates(&sight.decide(&draft)).is_empty(), "an agent works on it");
}

#[test]
fn a_container_that_its_kubelet_restarts_is_waited_for_and_then_reported() {
    let (draft, mut sight) = taken_over(update(&[], &["app"]), "InplaceUpdate");
    let decision = sight.decide(&draft);
    assert_eq!((gates(&decision).len(), decision.requested().len(), decision.deleted().len()), (0, 0, 0));
    let stuck_at = sight.pods[0].foreign.as_ref().and_then(ForeignUpdate::stuck_at);
    assert_eq!(decision.requeue_at, stuck_at);
    sight.now = stuck_at.unwrap();
    let failed = |decision: &Decision| {
        let report = decision.report.clone().unwrap();
        let condition = report.conditions.iter().find(|condition| condition.kind == "UpdateFailed").unwrap();
        (condition.status.clone(), condition.reason.clone())
    };
    assert_eq!(failed(&decision).0, "False");
    assert_eq!(failed(&sight.decide(&draft)), ("True".to_owned(), "ForeignUpdate".to_owned()));
}

#[test]
fn images_that_were_not_written_are_swapped_by_a_request() {
    let (draft, mut sight) = taken_over(update(&["app"], &[]), "InplaceUpdate");
    sight.pod("web-a").images = vec![("app".to_owned(), "app:1".to_owned())];
    assert!(
        gates(&step(&mut sight, &draft)).is_empty(),
        "the task says first that the gate is closed by this controller"
    );
    let decision = sight.decide(&draft);
    assert_eq!(gates(&decision), [("web-a", false)], "the gate first, so that the agent opens it at the end");
    assert!(decision.requested().is_empty());
    assert_eq!(decision.report.as_ref().unwrap().counts.updated, 2, "the label does not say what runs");

    sight.pod("web-a").foreign.as_mut().unwrap().gate_closed = false;
    let decision = sight.decide(&draft);
    assert_eq!((gates(&decision).len(), decision.requested()), (0, vec!["web-a"]));
    let patch = decision.actions.iter().find_map(|action| match action {
        Action::PatchPod { patch, .. } => Some(patch),
        _ => None,
    });
    let annotations = &patch.unwrap().annotations;
    assert_eq!(annotations.get(workload_key::UPDATE_GRACE), Some(&None), "nobody writes the images later");
    let request = Request::parse(annotations[annotation::REQUEST].as_deref()).unwrap().unwrap();
    assert_eq!(request.containers[0].image.as_deref(), Some("app:2"));

    carry_out(&mut sight, &decision);
    sight.pod("web-a").foreign = None;
    assert_eq!(sight.decide(&draft).report.unwrap().counts.updated, 2, "until the agent has answered");
}

#[test]
fn a_new_template_waits_for_the_update_that_is_under_way_but_not_for_one_that_is_stuck() {
    let (draft, mut sight) = taken_over(update(&[], &["app"]), "InplaceUpdate");
    let draft = draft.image("app:3");
    let decision = sight.decide(&draft);
    assert!(gates(&decision).is_empty() && !decision.requested().contains(&"web-a"));
    sight.now = at(3600);
    step(&mut sight, &draft);
    let decision = sight.decide(&draft);
    assert_eq!(gates(&decision), [("web-a", false)]);
    sight.pod("web-a").foreign = None;
    assert!(sight.decide(&draft).requested().contains(&"web-a"));
}

#[test]
fn an_undo_of_an_update_whose_images_were_not_written_ends_and_opens_the_gate() {
    let (draft, mut sight) = taken_over(update(&["app"], &[]), "InplaceUpdate");
    for pod in &mut sight.pods {
        pod.images = vec![("app".to_owned(), "app:1".to_owned())];
    }
    let undone = draft.image("app:1");
    let decision = sight.decide(&undone);
    let patch = decision.actions.iter().find_map(|action| match action {
        Action::PatchPod { pod, patch, .. } if pod.name == "web-a" => Some(patch),
        _ => None,
    });
    let annotations = &patch.expect("the pod gets the label of its revision").annotations;
    // Without these the pod counts as half updated for ever, and its gate stays closed.
    for key in [workload_key::UPDATE_GRACE, workload_key::UPDATE_STATE] {
        assert_eq!(annotations.get(key), Some(&None), "{key}");
    }
    assert!(decision.requested().is_empty());
    carry_out(&mut sight, &decision);
    sight.pod("web-a").foreign = Some(update(&[], &[]));
    assert_eq!(gates(&sight.decide(&undone)), [("web-a", true)]);
}

/// A takeover of an update whose image was not written on one pod. The controller has closed its gate, and sends the request
/// next.
fn closed() -> (Draft, Sight) {
    let (draft, mut sight) = taken_over(update(&["app"], &[]), "InplaceUpdate");
    let old = sight.revisions[0].name.clone();
    for pod in &mut sight.pods {
        pod.images = vec![("app".to_owned(), "app:1".to_owned())];
    }
    for pod in &mut sight.pods[1..] {
        pod.label.clone_from(&old);
    }
    step(&mut sight, &draft);
    assert_eq!(gates(&step(&mut sight, &draft)), [("web-a", false)]);
    let pod = sight.pod("web-a");
    pod.foreign.as_mut().unwrap().gate_closed = false;
    pod.gate_left_closed = true;
    (draft, sight)
}

fn send(draft: &Draft, sight: &mut Sight) {
    assert_eq!(step(sight, draft).requested(), ["web-a"]);
    sight.pod("web-a").foreign = None;
}

fn refuse(sight: &mut Sight) {
    let id = sight.pod("web-a").request.clone().unwrap();
    sight.pod("web-a").answer = Some(answer(&id, Phase::Refused, Some(Step::Pull)));
}

/// True if the controller opens the gate within six minutes.
fn opens(draft: &Draft, sight: &mut Sight) -> bool {
    (0..6).any(|_| {
        sight.now += SignedDuration::from_secs(60);
        gates(&step(sight, draft)).contains(&("web-a", true))
    })
}

/// The user takes the update back before anything is touched.
#[test]
fn a_gate_that_the_controller_has_closed_opens_when_the_update_is_taken_back() {
    for (sent, refused) in [(false, false), (true, false), (true, true)] {
        let (draft, mut sight) = closed();
        if sent {
            send(&draft, &mut sight);
        }
        if refused {
            refuse(&mut sight);
        }
        let opened = opens(&draft.image("app:1"), &mut sight);
        assert!(opened, "sent: {sent}, refused: {refused}: {:#?}", sight.pod("web-a"));
    }
}

#[test]
fn a_pod_whose_update_was_refused_takes_traffic_with_its_old_images() {
    let (draft, mut sight) = closed();
    send(&draft, &mut sight);
    refuse(&mut sight);
    assert!(opens(&draft, &mut sight), "{:#?}", sight.pod("web-a"));
    // Also while a partition holds the pod back.
    let (draft, mut sight) = closed();
    send(&draft, &mut sight);
    refuse(&mut sight);
    let held = draft.image("app:3").with("/updateStrategy/partition", json!(3));
    assert!(opens(&held, &mut sight), "{:#?}", sight.pod("web-a"));
}

#[test]
fn a_gate_stays_closed_while_a_container_does_not_run_the_image_of_its_pod() {
    let stuck = ForeignUpdate { gate_closed: false, ..update(&[], &["app"]) };
    for undone in [false, true] {
        let (draft, mut sight) = closed();
        let draft = if undone { draft.image("app:1") } else { draft };
        // Another client has written the image, and the kubelet restarts the container.
        sight.pod("web-a").images = vec![("app".to_owned(), "app:2".to_owned())];
        sight.pod("web-a").foreign = Some(stuck.clone());
        assert!(!opens(&draft, &mut sight), "{:#?}", sight.pod("web-a"));
    }
    // Images of two revisions.
    let (draft, mut sight) = closed();
    send(&draft, &mut sight);
    refuse(&mut sight);
    sight.pod("web-a").images = vec![("app".to_owned(), "app:7".to_owned())];
    assert!(!opens(&draft, &mut sight), "{:#?}", sight.pod("web-a"));
}

#[test]
fn an_annotation_about_another_image_is_removed_once_and_gives_no_endless_tasks() {
    // Anybody who may write annotations on a pod can write it.
    let mut bogus = update(&["app"], &[]);
    bogus.gate_closed = false;
    let (draft, mut sight) = taken_over(bogus, "InplaceUpdate");
    let held = draft.with("/updateStrategy/partition", json!(3));
    for _ in 0..4 {
        let decision = step(&mut sight, &held);
        let removes = |action: &Action| match action {
            Action::PatchPod { patch, .. } => {
                patch.annotations.get(workload_key::UPDATE_GRACE) == Some(&None)
            }
            _ => false,
        };
        if decision.actions.iter().any(removes) {
            return;
        }
    }
    panic!("{:#?}", sight.pod("web-a").task);
}
