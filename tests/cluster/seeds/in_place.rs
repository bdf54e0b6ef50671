//! The document's section on updates: in place, as many pods as the partition permits, and as many at once as the
//! budget permits.

use std::collections::BTreeSet;

use inplace::api::hook_run::HookPhase;
use jiff::{SignedDuration, Timestamp};

use super::{HOOKED, IN_PLACE, Play, SUCCESS, workload::*};
use crate::{agent::status, pod::container};

/// The walk-through after its scaling in; the hook measures every ten seconds.
pub(super) fn three_of_five_in_batches_of_two(play: &Play<'_>) {
    play.create(&SUCCESS.replace("60s", "10s"));
    play.create(HOOKED);
    play.shows(DEPLOYMENT, "6 6 6 6 6");
    play.scale(DEPLOYMENT, 5);
    play.shows(DEPLOYMENT, "5 5 5 5 5");
    play.no_runs();
    play.wait_pods("five are left", |pods| pods.len() == 5);
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    let old = play.json(DEPLOYMENT)["status"]["updateRevision"].as_str().unwrap().to_owned();

    play.set_image(DEPLOYMENT, "python:3.5");
    let runs = play.runs(2, HookPhase::Running);
    let first: Vec<_> = runs.keys().map(|run| pod_of(&old, run)).collect();
    play.shows(DEPLOYMENT, "5 0 0 5 5");
    // Still with the old image, and in traffic.
    assert!(play.pod_rows().iter().all(|(_, row)| row == "1/1 Running 0"));

    // The first two are updated; their HookRuns are removed, and that of the third exists.
    play.shows(DEPLOYMENT, "5 2 2 5 5");
    play.restarted(2);
    let runs = play.runs(1, HookPhase::Running);
    let third = pod_of(&old, runs.keys().next().unwrap());
    assert!(!first.contains(&third), "{first:?}, {third}");

    play.shows(DEPLOYMENT, "5 3 3 5 5");
    play.restarted(3);
    play.no_runs();
    let after = play.pods.now();
    assert_eq!(identity(&after), before);
    let updated = [&first[..], &[third]].concat();
    for (name, pod) in &after {
        let image = if updated.contains(name) { "python:3.5" } else { "python:latest" };
        assert_eq!(pod.spec.as_ref().unwrap().containers[0].image, Some(play.image(image)), "{name}");
        assert_eq!(was_drained(&play.pods.history()[mark..], name), updated.contains(name), "{name}");
    }
    play.never_more_than(2, mark);
    // One HookRun for the scaling, and these three.
    let history = play.runs.history();
    let all: BTreeSet<_> = history.iter().flat_map(|runs| runs.keys()).collect();
    assert_eq!(all.len(), 4, "{all:?}");
}

/// `inplace-update.yaml`: eight pods, of which the partition holds three, two at once, each drained for half a
/// minute first.
pub(super) fn five_of_eight_without_hooks(play: &Play<'_>) {
    play.create(IN_PLACE);
    play.shows(DEPLOYMENT, "8 8 8 8 8");
    let (before, mark) = (identity(&play.pods.now()), play.mark());
    play.set_image(DEPLOYMENT, "python:latest");
    play.shows(DEPLOYMENT, "8 5 5 8 8");
    play.restarted(5);
    let after = play.pods.now();
    assert_eq!(identity(&after), before);
    play.never_more_than(2, mark);
    for pod in after.values().filter(|pod| restarts(pod) == 1) {
        let told = status(pod).unwrap();
        let report = &told.containers[0];
        let runs = container(pod, "python").unwrap().container_id.clone().unwrap();
        assert!(runs.ends_with(&report.to.as_ref().unwrap().container_id), "{runs}: {told:#?}");
        // The grace period is waited out in full.
        let since = |time: Option<Timestamp>| time.unwrap().duration_since(told.started_at.unwrap());
        assert!(since(report.stopped_at) >= SignedDuration::from_secs(30), "{told:#?}");
    }
    // With partition 0 the others follow.
    play.replace(DEPLOYMENT, "/spec/updateStrategy/partition", 0);
    play.shows(DEPLOYMENT, "8 8 8 8 8");
    play.restarted(8);
    assert_eq!(identity(&play.pods.now()), before);
    play.never_more_than(2, mark);
}
