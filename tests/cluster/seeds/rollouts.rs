//! The other update strategies, as published where there is a manifest, and what a pause stops.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::{HOT_PATCH, Play, ROLLING, SET_HOT_PATCH, SET_ROLLING, workload::*};

/// `hotpatch-update.yaml`, with a hook that must not be run: its template does not even exist.
pub(super) fn a_hot_patch_asks_nobody_and_drains_nothing(play: &Play<'_>) {
    play.create(HOT_PATCH);
    play.merge(DEPLOYMENT, &json!({"spec": {"preDeleteUpdateStrategy": {"hook": {"templateName": "test"}}}}));
    play.shows(DEPLOYMENT, "8 8 8 8 8");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.set_image(DEPLOYMENT, "main:v2");
    play.shows(DEPLOYMENT, "8 5 5 8 8");
    play.restarted(5);
    assert_eq!(identity(&play.pods.now()), before);
    let history = play.pods.history();
    assert!(before.iter().all(|pod| !was_drained(&history[mark..], &pod[0])), "{}", play.all());
    play.never_more_than(2, mark);
    assert!(play.runs.history().iter().all(BTreeMap::is_empty));
}

pub(super) fn a_set_is_hot_patched_down_to_its_partition(play: &Play<'_>) {
    play.create(SET_HOT_PATCH);
    play.shows(SET, "5 5 5 5 5");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.set_image(SET, "main:v2");
    play.shows(SET, "5 5 3 2 2");
    play.restarted(2);
    let history = play.pods.history();
    assert!(before.iter().all(|pod| !was_drained(&history[mark..], &pod[0])), "{}", play.all());
    assert_eq!(play.asked_since(mark), ["test-gamestatefulset-4", "test-gamestatefulset-3"]);
    assert_eq!(identity(&play.pods.now()), before);
}

/// `rolling-update.yaml`: at most two pods more, at most two fewer, and the partition stays.
pub(super) fn a_rolling_update_replaces_within_its_budget(play: &Play<'_>) {
    play.create(ROLLING);
    play.shows(DEPLOYMENT, "8 8 8 8 8");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.set_image(DEPLOYMENT, "python:latest");
    play.shows(DEPLOYMENT, "8 5 5 8 8");
    play.wait_pods("the old ones have gone", |pods| pods.len() == 8);
    play.restarted(0);
    let after = identity(&play.pods.now());
    assert_eq!(after.iter().filter(|pod| before.contains(pod)).count(), 3);
    for pods in &play.pods.history()[mark..] {
        let stay = pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
        assert!(stay <= 10, "{stay} pods, with those that go {}", pods.len());
        let serve = pods.values().filter(|pod| serves(pod)).count();
        assert!(serve >= 6, "{serve} serve\n{}", play.all());
    }
}

pub(super) fn a_set_is_replaced_down_to_its_partition(play: &Play<'_>) {
    play.create(SET_ROLLING);
    play.shows(SET, "5 5 5 5 5");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.set_image(SET, "python:latest");
    play.shows(SET, "5 5 3 2 2");
    let after = play.pods.now();
    assert_eq!(identity(&after)[..3], before[..3]);
    for (old, new) in before.iter().zip(after.values()).skip(3) {
        assert_eq!(old[0], name(new));
        assert_ne!(Some(&old[1]), new.metadata.uid.as_ref(), "another pod of the name");
        assert_eq!(image(new), play.image("python:latest"));
    }
    play.never_more_than(1, mark);
}

pub(super) fn on_delete_waits_for_the_user(play: &Play<'_>) {
    play.create(&small(3, &json!({"type": "OnDelete"})));
    play.shows(DEPLOYMENT, "3 3 3 3 3");
    let before = identity(&play.pods.now());
    play.set_image(DEPLOYMENT, "app:v2");
    play.shows(DEPLOYMENT, "3 0 0 3 3");
    play.wait_deployment("it waits for the user", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "Progressing").is_some_and(|told| told.reason == "OnDelete")
    });
    assert_eq!(identity(&play.pods.now()), before);
    play.kubectl(&["delete", "pod", &before[1][0]]);
    play.shows(DEPLOYMENT, "3 1 1 3 3");
    let after = play.wait_pods("the old one has gone", |pods| pods.len() == 3);
    let kept = identity(&after).iter().filter(|pod| before.contains(pod)).count();
    assert_eq!(kept, 2);
}

/// `kubectl scale` works meanwhile, in both directions; and the controller does not change the user's `paused`.
pub(super) fn paused_stops_updates_and_not_scaling(play: &Play<'_>) {
    play.create(&small(3, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    play.shows(DEPLOYMENT, "3 3 3 3 3");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.replace(DEPLOYMENT, "/spec/updateStrategy/paused", true);
    play.set_image(DEPLOYMENT, "app:v2");
    play.shows(DEPLOYMENT, "3 0 0 3 3");
    play.scale(DEPLOYMENT, 4);
    play.shows(DEPLOYMENT, "4 0 0 4 4");
    assert!(play.pods.now().values().all(|pod| image(pod) == play.image("app:v1")), "{}", play.all());
    play.scale(DEPLOYMENT, 2);
    play.shows(DEPLOYMENT, "2 0 0 2 2");
    assert_eq!(play.asked_since(mark), Vec::<String>::new());
    assert_eq!(play.json(DEPLOYMENT)["spec"]["updateStrategy"]["paused"], true);
    let left = play.wait_pods("two are left", |pods| pods.len() == 2);

    play.replace(DEPLOYMENT, "/spec/updateStrategy/paused", false);
    play.shows(DEPLOYMENT, "2 2 2 2 2");
    play.restarted(2);
    assert_eq!(identity(&play.pods.now()), identity(&left));
    assert!(before.len() > left.len());
}

fn image(pod: &Pod) -> String {
    pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
}
