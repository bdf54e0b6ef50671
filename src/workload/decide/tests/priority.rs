//! `updateStrategy.priority`: one group of pods is completed before the next one begins.

use serde_json::json;

use super::*;
use crate::workload::check;

/// Four pods: a and c in zone 2, b and d in zone 1.
fn zones(draft: &Draft, names: [&str; 4]) -> Sight {
    let mut sight = sight(&names, &draft.revision());
    for (name, zone) in names.into_iter().zip(["2", "1", "2", "1"]) {
        sight.pod(name).node = Some(format!("node-{zone}"));
        let labels = std::sync::Arc::new([("zone".to_owned(), zone.to_owned())].into());
        let node = crate::workload::order::Node { ready: true, labels, ..Default::default() };
        sight.nodes.insert(format!("node-{zone}"), node);
    }
    sight
}

fn zone_first() -> serde_json::Value {
    json!([{"nodeLabel": "zone"}])
}

/// Four pods, all of which may be unavailable at once.
fn by_zone() -> Draft {
    let strategy = json!({"type": "InplaceUpdate", "maxUnavailable": 4, "priority": zone_first()});
    deployment().with("/replicas", json!(4)).with("/updateStrategy", strategy)
}

/// The pods that get a request, in the order of the reconciles; the agents end one request at a time.
fn order(sight: &mut Sight, draft: &Draft) -> Vec<String> {
    let mut order = Vec::new();
    for _ in 0..20 {
        let decision = sight.decide(draft);
        order.push(decision.requested().join(" "));
        carry_out(sight, &decision);
        let busy =
            |pod: &&Pod| matches!(pod.task_state(sight.now), crate::podtask::state::TaskState::Busy { .. });
        let name = sight.pods.iter().find(busy).map(|pod| pod.name.clone());
        let Some(name) = name else { continue };
        let id = sight.pod(&name).task.as_ref().unwrap().id();
        sight.pod(&name).answer = Some(answer(&id, Phase::Succeeded, None));
        sight.pod(&name).images[0].1 = "app:2".to_owned();
    }
    order.retain(|names| !names.is_empty());
    order
}

/// An agent changes the image in the pod's spec long before it has seen the new container stay up.
#[test]
fn a_pod_whose_spec_has_the_new_image_holds_its_group_until_its_task_has_ended() {
    let draft = by_zone();
    let mut sight = zones(&draft, ["web-a", "web-b", "web-c", "web-d"]);
    let update = draft.image("app:2");
    let decision = sight.decide(&update);
    assert_eq!(decision.requested(), ["web-b", "web-d"]);
    carry_out(&mut sight, &decision);
    for name in ["web-b", "web-d"] {
        let id = sight.pod(name).task.as_ref().unwrap().id();
        sight.pod(name).answer = Some(answer(&id, Phase::Running, None));
        sight.pod(name).images[0].1 = "app:2".to_owned();
    }
    let decision = sight.decide(&update);
    assert!(decision.requested().is_empty(), "{:?}", decision.requested());
    carry_out(&mut sight, &decision);
    for name in ["web-b", "web-d"] {
        let id = sight.pod(name).task.as_ref().unwrap().id();
        sight.pod(name).answer = Some(answer(&id, Phase::Succeeded, None));
    }
    let mut begun = Vec::new();
    for _ in 0..3 {
        let decision = sight.decide(&update);
        begun.extend(decision.requested().iter().map(|name| (*name).to_owned()));
        carry_out(&mut sight, &decision);
    }
    assert_eq!(begun, ["web-a", "web-c"]);
}

#[test]
fn a_zone_is_completed_before_the_next_one_begins() {
    let draft = by_zone();
    let mut sight = zones(&draft, ["web-a", "web-b", "web-c", "web-d"]);
    sight.pod("web-a").ready_since = None;
    let order_of = order(&mut sight, &draft.image("app:2"));
    assert_eq!(order_of, ["web-b web-d", "web-a web-c"], "zone 1, then zone 2");
    // A set whose pods are updated in parallel.
    let rolling = json!({"maxUnavailable": 4});
    let strategy = json!({"type": "InplaceUpdate", "rollingUpdate": rolling, "priority": zone_first()});
    let draft = stateful_set().with("/replicas", json!(4)).with("/updateStrategy", strategy);
    let parallel = draft.clone().with("/podManagementPolicy", json!("Parallel"));
    let mut sight = zones(&parallel, ["web-0", "web-1", "web-2", "web-3"]);
    assert_eq!(order(&mut sight, &parallel.clone().image("app:2")), ["web-1 web-3", "web-0 web-2"]);
    // By ordinal otherwise: refused at admission, and ignored if it was stored all the same.
    assert_eq!(check::stateful_set(None, &parallel.set_object(), false), Vec::<String>::new());
    let problems = check::stateful_set(None, &draft.set_object(), false);
    assert!(problems[0].starts_with("spec.updateStrategy.priority: needs"), "{problems:?}");
    let mut sight = zones(&draft, ["web-0", "web-1", "web-2", "web-3"]);
    assert_eq!(order(&mut sight, &draft.image("app:2")), ["web-3", "web-2", "web-1", "web-0"]);
}
