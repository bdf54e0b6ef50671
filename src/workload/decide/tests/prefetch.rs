//! Which pods name the images that their agents pull in advance, and for how long.

use super::*;

/// The annotation of each pod that has one.
fn named(sight: &Sight) -> Vec<(&str, &str)> {
    let named = |pod: &'_ Pod| pod.prefetch.is_some();
    let pods = sight.pods.iter().filter(|pod| named(pod));
    pods.map(|pod| (pod.name.as_str(), pod.prefetch.as_deref().unwrap_or_default())).collect()
}

/// Five pods on three nodes: a and b, c and d, e.
fn on_three_nodes(draft: &Draft) -> Sight {
    let mut sight = sight(&FIVE, &draft.revision());
    for (pod, node) in sight.pods.iter_mut().zip(["n1", "n1", "n2", "n2", "n3"]) {
        pod.node = Some(node.to_owned());
    }
    sight
}

fn draft(strategy: &Value) -> Draft {
    let mut update = json!({"type": "InplaceUpdate", "maxUnavailable": 1});
    for (key, value) in strategy.as_object().unwrap() {
        update[key] = value.clone();
    }
    deployment().with("/replicas", json!(5)).with("/updateStrategy", update)
}

#[test]
fn one_waiting_pod_of_each_other_node_names_the_image_until_its_own_request() {
    let draft = draft(&json!({}));
    let mut sight = on_three_nodes(&draft);
    let update = draft.image("app:2");
    let decision = step(&mut sight, &update);
    assert_eq!(decision.requested(), ["web-a"]);
    assert_eq!(named(&sight), [("web-c", "app:2"), ("web-e", "app:2")]);
    assert!(step(&mut sight, &update).actions.is_empty(), "nothing is written twice");
    let mut writes = 0;
    for _ in 0..20 {
        agents_succeed(&mut sight, "app:2");
        let decision = step(&mut sight, &update);
        let prefetch = |action: &&Action| matches!(action, Action::PatchPod { why: Why::Prefetch, .. });
        writes += decision.actions.iter().filter(prefetch).count();
    }
    assert!(sight.pods.iter().all(|pod| pod.images[0].1 == "app:2"), "{:#?}", sight.pods);
    assert_eq!(
        (named(&sight), writes),
        (vec![], 0),
        "a request removes the annotation, and no other pod gets it"
    );
}

#[test]
fn what_is_held_back_paused_or_updated_in_one_batch_names_nothing() {
    for (strategy, expected) in [
        (json!({"partition": 2}), vec![("web-c", "app:2")]),
        (json!({"partition": 4}), vec![]),
        (json!({"paused": true}), vec![]),
        (json!({"maxUnavailable": 5}), vec![]),
        (json!({"type": "RollingUpdate"}), vec![]),
        (json!({"type": "OnDelete"}), vec![]),
        (json!({"inPlaceUpdateStrategy": {"prefetch": false}}), vec![]),
        (json!({"type": "HotPatchUpdate"}), vec![("web-c", "app:2"), ("web-e", "app:2")]),
    ] {
        let draft = draft(&strategy);
        let mut sight = on_three_nodes(&draft);
        step(&mut sight, &draft.image("app:2"));
        assert_eq!(named(&sight), expected, "{strategy}");
    }
}

#[test]
fn another_image_replaces_the_annotation_and_a_pause_removes_it() {
    let draft = draft(&json!({}));
    let mut sight = on_three_nodes(&draft);
    step(&mut sight, &draft.clone().image("app:2"));
    let other = draft.image("app:3");
    step(&mut sight, &other);
    // The request of the pod on the first node was for the image before.
    assert_eq!(named(&sight), [("web-b", "app:3"), ("web-c", "app:3"), ("web-e", "app:3")]);
    step(&mut sight, &other.with("/updateStrategy/paused", json!(true)));
    assert_eq!(named(&sight), []);
}

#[test]
fn a_pod_that_waits_for_its_hook_names_the_image_too() {
    let draft = draft(&json!({"maxUnavailable": 5}))
        .with("/preInplaceUpdateStrategy", json!({"hook": {"templateName": "test"}}));
    let mut sight = on_three_nodes(&draft);
    let update = draft.image("app:2");
    step(&mut sight, &update);
    step(&mut sight, &update);
    assert_eq!(named(&sight), [("web-a", "app:2"), ("web-c", "app:2"), ("web-e", "app:2")]);
    hooks_end(&mut sight, HookPhase::Successful);
    step(&mut sight, &update);
    assert_eq!(named(&sight), []);
}
