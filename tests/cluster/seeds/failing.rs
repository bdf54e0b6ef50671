//! Failures during an update in place, and their results.

use inplace::api::{annotation::REQUEST, status::Phase};
use serde_json::json;

use super::{UpdateCase, workload::*};
use crate::{agent::status, pod::annotation, support::wait::eventually};

/// Untouched pods stay untouched; the others go back, and the revision is the old one again, not a third one.
pub(super) fn a_rollback_in_the_middle_leaves_what_was_not_touched(case: &UpdateCase<'_>) {
    case.create(&small(4, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    case.shows(DEPLOYMENT, "4 4 4 4 4");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    let revision = case.json(DEPLOYMENT)["status"]["updateRevision"].clone();
    case.set_image(DEPLOYMENT, "app:v2");
    // The test waits for a restart and not for the request: a pod that gets the request for its old image before
    // it has started is not touched at all.
    case.wait_pods("the first has been swapped", |pods| pods.values().any(|pod| restarts(pod) > 0));
    case.set_image(DEPLOYMENT, "app:v1");
    case.shows(DEPLOYMENT, "4 4 4 4 4");
    assert_eq!(case.json(DEPLOYMENT)["status"]["updateRevision"], revision);
    let pods = case.wait_pods("all serve, each there and back or untouched", |pods| {
        pods.values().all(|pod| serves(pod) && [0, 2].contains(&restarts(pod)))
    });
    assert_eq!(identity(&pods), before);
    let count = |times| pods.values().filter(|pod| restarts(pod) == times).count();
    assert!(count(2) >= 1 && count(0) >= 1, "{}", case.all());
    case.never_more_than(1, mark);
    assert_eq!(case.listed("controllerrevisions").len(), 1 + 2);
}

/// The agent rolls the image back; the controller stops, reports why, and continues with the next template.
pub(super) fn a_failing_image_stops_at_the_threshold(case: &UpdateCase<'_>) {
    case.create(&small(4, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    case.shows(DEPLOYMENT, "4 4 4 4 4");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    // Its program is not there: on a busy machine, one that ends at once may count as running before it has ended.
    case.set_image(DEPLOYMENT, "app:noentry");
    let stopped = case.wait_deployment("it has stopped", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "UpdateFailed").is_some_and(|watched| watched.status == "True")
    });
    let conditions = &stopped.status.as_ref().unwrap().conditions;
    let watched = condition(conditions, "UpdateFailed").unwrap();
    assert_eq!(watched.reason, "TooManyFailures", "{watched:#?}");
    let failed = case.asked_since(mark);
    assert_eq!(failed.len(), 1);
    assert!(watched.message.contains(&failed[0]), "{watched:#?}");
    let pods = case.wait_pods("all serve", |pods| pods.values().all(|pod| serves(pod)));
    assert_eq!(status(&pods[&failed[0]]).unwrap().phase, Phase::RolledBack);
    case.shows(DEPLOYMENT, "4 0 0 4 4");
    assert!(pods.iter().all(|(name, pod)| failed.contains(name) || restarts(pod) == 0), "{}", case.all());

    case.set_image(DEPLOYMENT, "app:v2");
    case.shows(DEPLOYMENT, "4 4 4 4 4");
    case.wait_deployment("nothing has failed any more", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "UpdateFailed").is_none_or(|watched| watched.status == "False")
    });
    assert_eq!(identity(&case.pods.now()), before);
    case.never_more_than(1, mark);
}

/// An image that cannot be pulled causes no downtime. With a higher failure threshold, other pods are tried.
pub(super) fn an_image_that_is_not_there_touches_nothing(case: &UpdateCase<'_>) {
    case.create(&small(3, &json!({"type": "InplaceUpdate", "maxUnavailable": 1})));
    case.merge(DEPLOYMENT, &json!({"metadata": {"annotations": {"inplace.dev/failure-threshold": "2"}}}));
    case.shows(DEPLOYMENT, "3 3 3 3 3");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    case.set_image(DEPLOYMENT, "app:nowhere");
    case.wait_deployment("it has stopped", |object| {
        let conditions = object.status.as_ref().map_or(&[][..], |status| &status.conditions);
        condition(conditions, "UpdateFailed").is_some_and(|watched| watched.reason == "TooManyFailures")
    });
    assert_eq!(case.asked_since(mark).len(), 2);
    case.shows(DEPLOYMENT, "3 0 0 3 3");
    case.restarted(0);
    assert_eq!(identity(&case.pods.now()), before);
    case.never_more_than(0, mark);
    // The reversal needs no update.
    case.set_image(DEPLOYMENT, "app:v1");
    case.shows(DEPLOYMENT, "3 3 3 3 3");
    case.restarted(0);
}

/// The controller keeps nothing essential in memory: no pod is updated twice, and none is left out.
pub(super) fn another_controller_goes_on_where_a_killed_one_stopped(case: &UpdateCase<'_>) {
    case.create(&small(6, &json!({"type": "InplaceUpdate", "maxUnavailable": 2})));
    case.shows(DEPLOYMENT, "6 6 6 6 6");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    let leads = |index: usize| case.fixture.controllers[index].metric(&["inplace_leader"]) > 0.0;
    // A leader that cannot renew its lease for long, as on a busy machine, loses it.
    let first = eventually("a leader", || (0..2).find(|index| leads(*index)));
    case.set_image(DEPLOYMENT, "app:v2");
    case.wait_pods("the first is updated", |pods| {
        pods.values().any(|pod| annotation(pod, REQUEST).is_some())
    });
    case.fixture.controllers[first].kill();
    // Without a controller pods are Ready, and changed where a request was written.
    case.wait_pods("all serve", |pods| pods.values().all(|pod| serves(pod)));
    eventually("the other one leads", || leads(1 - first).then_some(()));
    case.shows(DEPLOYMENT, "6 6 6 6 6");
    case.restarted(6);
    assert_eq!(identity(&case.pods.now()), before);
    case.never_more_than(2, mark);
}
