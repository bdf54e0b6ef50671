//! Failures during an update in place, and their results.

use inplace::api::{annotation::REQUEST, status::Phase};
use serde_json::json;

use super::{Play, workload::*};
use crate::{
    agent::status,
    pod::{annotation, eventually},
};

/// Untouched pods stay untouched; the others go back, and the revision is the old one again, not a third one.
pub(super) fn a_rollback_in_the_middle_leaves_what_was_not_touched(play: &Play<'_>) {
    play.create(&small(4, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    play.shows(DEPLOYMENT, "4 4 4 4 4");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    let revision = play.json(DEPLOYMENT)["status"]["updateRevision"].clone();
    play.set_image(DEPLOYMENT, "app:v2");
    // The test waits for a restart and not for the request: a pod that gets the request for its old image before
    // it has started is not touched at all.
    play.wait_pods("the first has been swapped", |pods| pods.values().any(|pod| restarts(pod) > 0));
    play.set_image(DEPLOYMENT, "app:v1");
    play.shows(DEPLOYMENT, "4 4 4 4 4");
    assert_eq!(play.json(DEPLOYMENT)["status"]["updateRevision"], revision);
    let pods = play.wait_pods("all serve, each there and back or untouched", |pods| {
        pods.values().all(|pod| serves(pod) && [0, 2].contains(&restarts(pod)))
    });
    assert_eq!(identity(&pods), before);
    let count = |times| pods.values().filter(|pod| restarts(pod) == times).count();
    assert!(count(2) >= 1 && count(0) >= 1, "{}", play.all());
    play.never_more_than(1, mark);
    assert_eq!(play.listed("controllerrevisions").len(), 1 + 2);
}

/// The agent rolls the image back; the controller stops, reports why, and continues with the next template.
pub(super) fn a_failing_image_stops_at_the_threshold(play: &Play<'_>) {
    play.create(&small(4, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    play.shows(DEPLOYMENT, "4 4 4 4 4");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.set_image(DEPLOYMENT, "app:crash");
    let stopped = play.wait_deployment("it has stopped", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "UpdateFailed").is_some_and(|told| told.status == "True")
    });
    let conditions = &stopped.status.as_ref().unwrap().conditions;
    let told = condition(conditions, "UpdateFailed").unwrap();
    assert_eq!(told.reason, "TooManyFailures", "{told:#?}");
    let failed = play.asked_since(mark);
    assert_eq!(failed.len(), 1);
    assert!(told.message.contains(&failed[0]), "{told:#?}");
    let pods = play.wait_pods("all serve", |pods| pods.values().all(|pod| serves(pod)));
    assert_eq!(status(&pods[&failed[0]]).unwrap().phase, Phase::RolledBack);
    play.shows(DEPLOYMENT, "4 0 0 4 4");
    assert!(pods.iter().all(|(name, pod)| failed.contains(name) || restarts(pod) == 0), "{}", play.all());

    play.set_image(DEPLOYMENT, "app:v2");
    play.shows(DEPLOYMENT, "4 4 4 4 4");
    play.wait_deployment("nothing has failed any more", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "UpdateFailed").is_none_or(|told| told.status == "False")
    });
    assert_eq!(identity(&play.pods.now()), before);
    play.never_more_than(1, mark);
}

/// An image that cannot be pulled causes no downtime. With a higher failure threshold, other pods are tried.
pub(super) fn an_image_that_is_not_there_touches_nothing(play: &Play<'_>) {
    play.create(&small(3, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    play.merge(DEPLOYMENT, &json!({"metadata": {"annotations": {"inplace.dev/failure-threshold": "2"}}}));
    play.shows(DEPLOYMENT, "3 3 3 3 3");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.set_image(DEPLOYMENT, "app:nowhere");
    play.wait_deployment("it has stopped", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "UpdateFailed").is_some_and(|told| told.reason == "TooManyFailures")
    });
    assert_eq!(play.asked_since(mark).len(), 2);
    play.shows(DEPLOYMENT, "3 0 0 3 3");
    play.restarted(0);
    assert_eq!(identity(&play.pods.now()), before);
    play.never_more_than(0, mark);
    // The reversal needs no update.
    play.set_image(DEPLOYMENT, "app:v1");
    play.shows(DEPLOYMENT, "3 3 3 3 3");
    play.restarted(0);
}

/// The controller keeps nothing essential in memory: no pod is updated twice, and none is left out.
pub(super) fn another_controller_goes_on_where_a_killed_one_stopped(play: &Play<'_>) {
    play.create(&small(6, &json!({"type": "InplaceUpdate", "maxUnavailable": 2})));
    play.shows(DEPLOYMENT, "6 6 6 6 6");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    let leads = |index: usize| play.site.controllers[index].metric(&["inplace_leader"]) > 0.0;
    let first = usize::from(leads(1));
    assert!(leads(first));
    play.set_image(DEPLOYMENT, "app:v2");
    play.wait_pods("the first has its turn", |pods| {
        pods.values().any(|pod| annotation(pod, REQUEST).is_some())
    });
    play.site.controllers[first].kill();
    // Without a controller pods are Ready, and changed where a request was written.
    play.wait_pods("all serve", |pods| pods.values().all(|pod| serves(pod)));
    eventually("the other one leads", || leads(1 - first).then_some(()));
    play.shows(DEPLOYMENT, "6 6 6 6 6");
    play.restarted(6);
    assert_eq!(identity(&play.pods.now()), before);
    play.never_more_than(2, mark);
}
