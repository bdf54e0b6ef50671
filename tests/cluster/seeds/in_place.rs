//! The document's section on updates: in place, as many pods as the partition permits, and as many at once as the
//! budget permits.

use std::collections::BTreeSet;

use inplace::api::hook_run::HookPhase;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{HOOKED, IN_PLACE, SUCCESS, UpdateCase, workload::*};
use crate::{agent::status, pod::container, support::hook_server::HookServer};

/// The walk-through after its scaling in, whose hook is short here. The hook of the update passes when the test has read what
/// `kubectl` lists meanwhile.
pub(super) fn three_of_five_in_batches_of_two(case: &UpdateCase<'_>) {
    case.create(&SUCCESS.replace("60s", "1s"));
    case.create(HOOKED);
    case.shows(DEPLOYMENT, "6 6 6 6 6");
    case.scale(DEPLOYMENT, 5);
    case.shows(DEPLOYMENT, "5 5 5 5 5");
    let hook_server = HookServer::open();
    let url =
        format!("http://{}:{}/{{{{ args.PodName }}}}", case.fixture.cluster.node().ip, hook_server.port);
    let metric = json!({"name": "webtest", "interval": "2s", "successfulLimit": 1,
        "successCondition": "asInt(result) == 1", "provider": {"web": {"url": url, "jsonPath": "{$.done}"}}});
    let template = json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookTemplate",
        "metadata": {"name": "test"}, "spec": {"metrics": [metric]}});
    case.apply(&template.to_string());
    case.no_runs();
    case.wait_pods("five are left", |pods| pods.len() == 5);
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    let old = case.json(DEPLOYMENT)["status"]["updateRevision"].as_str().unwrap().to_owned();

    case.set_image(DEPLOYMENT, "python:3.5");
    let runs = case.runs(2, HookPhase::Running);
    let first: Vec<_> = runs.keys().map(|run| pod_of(&old, run)).collect();
    case.shows(DEPLOYMENT, "5 0 0 5 5");
    // Still with the old image, and in traffic.
    assert!(case.pod_rows().iter().all(|(_, row)| row == "1/1 Running 0"));
    for pod in &first {
        hook_server.say(pod, 1);
    }

    // The first two are updated; their HookRuns are removed, and that of the third exists.
    case.shows(DEPLOYMENT, "5 2 2 5 5");
    case.restarted(2);
    let runs = case.runs(1, HookPhase::Running);
    let third = pod_of(&old, runs.keys().next().unwrap());
    assert!(!first.contains(&third), "{first:?}, {third}");
    hook_server.say(&third, 1);

    case.shows(DEPLOYMENT, "5 3 3 5 5");
    case.restarted(3);
    case.no_runs();
    let after = case.pods.now();
    assert_eq!(identity(&after), before);
    let updated = [&first[..], &[third]].concat();
    for (name, pod) in &after {
        let image = if updated.contains(name) { "python:3.5" } else { "python:latest" };
        assert_eq!(pod.spec.as_ref().unwrap().containers[0].image, Some(case.image(image)), "{name}");
        assert_eq!(was_drained(&case.pods.history()[mark..], name), updated.contains(name), "{name}");
    }
    case.never_more_than(2, mark);
    // One HookRun for the scaling, and these three.
    let history = case.runs.history();
    let all: BTreeSet<_> = history.iter().flat_map(|runs| runs.keys()).collect();
    assert_eq!(all.len(), 4, "{all:?}");
}

/// `inplace-update.yaml`: eight pods, of which the partition holds three, two at once, each drained for half a
/// minute first.
pub(super) fn five_of_eight_without_hooks(case: &UpdateCase<'_>) {
    case.create(IN_PLACE);
    case.shows(DEPLOYMENT, "8 8 8 8 8");
    let (before, mark) = (identity(&case.pods.now()), case.mark());
    case.set_image(DEPLOYMENT, "python:latest");
    case.shows(DEPLOYMENT, "8 5 5 8 8");
    case.restarted(5);
    let after = case.pods.now();
    assert_eq!(identity(&after), before);
    case.never_more_than(2, mark);
    for pod in after.values().filter(|pod| restarts(pod) == 1) {
        let watched = status(pod).unwrap();
        let report = &watched.containers[0];
        let runs = container(pod, "python").unwrap().container_id.clone().unwrap();
        assert!(runs.ends_with(&report.to.as_ref().unwrap().container_id), "{runs}: {watched:#?}");
        // The grace period is waited out in full.
        let since = |time: Option<Timestamp>| time.unwrap().duration_since(watched.started_at.unwrap());
        assert!(since(report.stopped_at) >= SignedDuration::from_secs(30), "{watched:#?}");
    }
    // With partition 0 the others follow.
    case.replace(DEPLOYMENT, "/spec/updateStrategy/partition", 0);
    case.shows(DEPLOYMENT, "8 8 8 8 8");
    case.restarted(8);
    assert_eq!(identity(&case.pods.now()), before);
    case.never_more_than(2, mark);
}
