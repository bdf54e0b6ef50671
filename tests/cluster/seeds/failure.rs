//! The document's section on hooks that do not pass: a hook that fails holds its pod, reports that, and is run
//! again when the user sets `retry`. The hook measures every ten seconds.

use inplace::api::hook_run::HookPhase;
use serde_json::{Value, json};

use super::{FAIL, HOOKED, SUCCESS, UpdateCase, workload::*};

pub(super) fn a_failed_hook_holds_the_pod_until_it_is_retried(case: &UpdateCase<'_>) {
    case.create(&FAIL.replace("60s", "10s"));
    case.create(HOOKED);
    case.shows(DEPLOYMENT, "6 6 6 6 6");
    let before = identity(&case.pods.now());

    case.scale(DEPLOYMENT, 5);
    let run = case.runs(1, HookPhase::Running).keys().next().unwrap().clone();
    case.shows(DEPLOYMENT, "5 6 6 6 6");
    case.runs(1, HookPhase::Failed);
    case.shows(DEPLOYMENT, "5 6 6 6 6");
    let revision = case.json(DEPLOYMENT)["status"]["updateRevision"].as_str().unwrap().to_owned();
    let pod = pod_of(&revision, &run);
    let watched = case.wait_deployment("the failure is reported, and all are available", |object| {
        object.status.as_ref().is_some_and(|status| {
            let failed = status.pre_delete_hook_condition.iter().any(|condition| condition.phase == "Failed");
            failed && status.available_replicas == 6
        })
    });
    let status = case.json(DEPLOYMENT)["status"].clone();
    let start = watched.status.as_ref().unwrap().pre_delete_hook_condition[0].start_time.unwrap().to_string();
    let printed = json!({
        "availableReplicas": 6,
        "collisionCount": 0,
        "labelSelector": "app=test-gamedeployment",
        "observedGeneration": 2,
        "preDeleteHookCondition": [{"phase": "Failed", "podName": pod, "startTime": start}],
        "readyReplicas": 6,
        "replicas": 6,
        "updateRevision": revision,
        "updatedReadyReplicas": 6,
        "updatedReplicas": 6,
    });
    for (field, value) in printed.as_object().unwrap() {
        assert_eq!(status[field], *value, "{field}: {status:#}");
    }
    assert_eq!(identity(&case.pods.now()), before);

    // The user fixes the template, and sets `retry`.
    let configured = case.apply(&SUCCESS.replace("60s", "10s"));
    assert_eq!(configured, "hooktemplate.tkex.tencent.com/test configured\n");
    case.replace(DEPLOYMENT, "/spec/preDeleteUpdateStrategy/retry", true);
    let again = case.runs(1, HookPhase::Running);
    assert_eq!(again.keys().collect::<Vec<_>>(), [&run]);
    assert_eq!(case.json(DEPLOYMENT)["spec"]["preDeleteUpdateStrategy"]["retry"], false, "it is asked once");
    case.shows(DEPLOYMENT, "5 5 5 5 5");
    case.no_runs();
    let left: Vec<_> = before.into_iter().filter(|known| known[0] != pod).collect();
    let after = case.wait_pods("five are left", |pods| pods.len() == 5);
    assert_eq!(identity(&after), left);
    assert_eq!(case.json(DEPLOYMENT)["status"]["preDeleteHookCondition"], Value::Null);

    a_failed_hook_keeps_the_old_image(case, &left);
}

/// "As with scaling", says the document: an update waits for the same hook.
fn a_failed_hook_keeps_the_old_image(case: &UpdateCase<'_>, pods: &[[String; 4]]) {
    case.apply(&FAIL.replace("60s", "10s"));
    case.set_image(DEPLOYMENT, "python:3.5");
    case.runs(2, HookPhase::Failed);
    case.shows(DEPLOYMENT, "5 0 0 5 5");
    case.wait_deployment("both failures are reported", |object| {
        let watched = object.status.iter().flat_map(|status| &status.pre_delete_hook_condition);
        watched.filter(|condition| condition.phase == "Failed").count() == 2
    });
    assert!(case.pod_rows().iter().all(|(_, row)| row == "1/1 Running 0"), "{}", case.all());
    // The reversal needs no hook, because the pods were not changed.
    case.set_image(DEPLOYMENT, "python:latest");
    case.no_runs();
    case.shows(DEPLOYMENT, "5 5 5 5 5");
    case.restarted(0);
    assert_eq!(identity(&case.pods.now()), pods);
}
