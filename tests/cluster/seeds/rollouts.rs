//! The other update strategies, as published where there is a manifest, and what a pause stops.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{HOT_PATCH, ROLLING, SET_HOT_PATCH, SET_ROLLING, UpdateCase, workload::*};

/// `hotpatch-update.yaml`, with a hook that must not be run: its template does not even exist.
pub(super) fn a_hot_patch_asks_nobody_and_drains_nothing(case: &UpdateCase<'_>) {
    case.create(HOT_PATCH);
    case.merge(DEPLOYMENT, &json!({"spec": {"preDeleteUpdateStrategy": {"hook": {"templateName": "test"}}}}));
    case.shows(DEPLOYMENT, "8 8 8 8 8");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    case.set_image(DEPLOYMENT, "main:v2");
    case.shows(DEPLOYMENT, "8 5 5 8 8");
    case.restarted(5);
    assert_eq!(identity(&case.pods.now()), before);
    let history = case.pods.history();
    assert!(before.iter().all(|pod| !was_drained(&history[mark..], &pod[0])), "{}", case.all());
    case.never_more_than(2, mark);
    assert!(case.runs.history().iter().all(BTreeMap::is_empty));
}

pub(super) fn a_set_is_hot_patched_down_to_its_partition(case: &UpdateCase<'_>) {
    case.create(SET_HOT_PATCH);
    case.shows(SET, "5 5 5 5 5");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    case.set_image(SET, "main:v2");
    case.shows(SET, "5 5 3 2 2");
    case.restarted(2);
    let history = case.pods.history();
    assert!(before.iter().all(|pod| !was_drained(&history[mark..], &pod[0])), "{}", case.all());
    assert_eq!(case.asked_since(mark), ["test-gamestatefulset-4", "test-gamestatefulset-3"]);
    assert_eq!(identity(&case.pods.now()), before);
}

/// `rolling-update.yaml`: at most two pods more, at most two fewer, and the partition stays.
pub(super) fn a_rolling_update_replaces_within_its_budget(case: &UpdateCase<'_>) {
    case.create(ROLLING);
    case.shows(DEPLOYMENT, "8 8 8 8 8");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    case.set_image(DEPLOYMENT, "python:latest");
    case.shows(DEPLOYMENT, "8 5 5 8 8");
    case.wait_pods("the old ones have gone", |pods| pods.len() == 8);
    case.restarted(0);
    let after = identity(&case.pods.now());
    assert_eq!(after.iter().filter(|pod| before.contains(pod)).count(), 3);
    for pods in &case.pods.history()[mark..] {
        let stay = pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        assert!(stay <= 10, "{stay} pods, with those that go {}", pods.len());
        let serve = pods.values().filter(|pod| serves(pod)).count();
        assert!(serve >= 6, "{serve} serve\n{}", case.all());
    }
}

pub(super) fn a_set_is_replaced_down_to_its_partition(case: &UpdateCase<'_>) {
    case.create(SET_ROLLING);
    case.shows(SET, "5 5 5 5 5");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    case.set_image(SET, "python:latest");
    case.shows(SET, "5 5 3 2 2");
    let is_new = |pod: &&Arc<Pod>| serves(pod) && image(pod) == case.image("python:latest");
    let after = case.wait_pods("two are new", |pods| pods.values().filter(is_new).count() == 2);
    assert_eq!(identity(&after)[..3], before[..3]);
    for (old, new) in before.iter().zip(after.values()).skip(3) {
        assert_eq!(old[0], name(new));
        assert_ne!(Some(&old[1]), new.metadata.uid.as_ref(), "another pod of the name");
        assert_eq!(image(new), case.image("python:latest"));
    }
    case.never_more_than(1, mark);
}

pub(super) fn on_delete_waits_for_the_user(case: &UpdateCase<'_>) {
    case.create(&small(3, &json!({"type": "OnDelete"})));
    case.shows(DEPLOYMENT, "3 3 3 3 3");
    let before = identity(&case.pods.now());
    case.set_image(DEPLOYMENT, "app:v2");
    case.shows(DEPLOYMENT, "3 0 0 3 3");
    case.wait_deployment("it waits for the user", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "Progressing").is_some_and(|watched| watched.reason == "OnDelete")
    });
    assert_eq!(identity(&case.pods.now()), before);
    case.kubectl(&["delete", "pod", &before[1][0]]);
    case.shows(DEPLOYMENT, "3 1 1 3 3");
    let after = case.wait_pods("the old one has gone", |pods| pods.len() == 3);
    let kept = identity(&after).iter().filter(|pod| before.contains(pod)).count();
    assert_eq!(kept, 2);
}

/// `kubectl scale` works meanwhile, in both directions; and the controller does not change the user's `paused`.
pub(super) fn paused_stops_updates_and_not_scaling(case: &UpdateCase<'_>) {
    case.create(&small(3, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    case.shows(DEPLOYMENT, "3 3 3 3 3");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    case.replace(DEPLOYMENT, "/spec/updateStrategy/paused", true);
    case.set_image(DEPLOYMENT, "app:v2");
    case.shows(DEPLOYMENT, "3 0 0 3 3");
    case.scale(DEPLOYMENT, 4);
    case.shows(DEPLOYMENT, "4 0 0 4 4");
    assert!(case.pods.now().values().all(|pod| image(pod) == case.image("app:v1")), "{}", case.all());
    case.scale(DEPLOYMENT, 2);
    case.shows(DEPLOYMENT, "2 0 0 2 2");
    assert_eq!(case.asked_since(mark), Vec::<String>::new());
    assert_eq!(case.json(DEPLOYMENT)["spec"]["updateStrategy"]["paused"], true);
    let left = case.wait_pods("two are left", |pods| pods.len() == 2);

    case.replace(DEPLOYMENT, "/spec/updateStrategy/paused", false);
    case.shows(DEPLOYMENT, "2 2 2 2 2");
    case.restarted(2);
    assert_eq!(identity(&case.pods.now()), identity(&left));
    assert!(before.len() > left.len());
}

fn image(pod: &Pod) -> String {
    pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
}
