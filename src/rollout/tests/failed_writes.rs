//! The status after a write that failed: it says what was observed, and never looks like an end.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;
use crate::rollout::failed_write;

/// One reconcile of which a write fails. Returns the reasons of the events.
fn fails(rollout: &mut Rollout, pods: &[Value], now: i64) -> Vec<&'static str> {
    let pods: Vec<Pod> = pods.iter().map(read).collect();
    let decision = decide(rollout, seen(&target(), &pods, &[], at(now)));
    let (status, events) = failed_write::after(rollout, decision, "not allowed", at(now));
    rollout.before = status;
    events.iter().map(|event| event.reason).collect()
}

fn is_ready(rollout: &Rollout) -> bool {
    rollout.before.conditions.iter().any(|one| one.kind == "Ready" && one.status == "True")
}

#[test]
fn what_is_resumed_or_has_a_smaller_partition_is_in_progress() {
    let pods = [pod(0), pod(1)];
    for more in [json!({"paused": true}), json!({"partition": 2})] {
        let mut one = rollout(&more);
        one.before = reconcile(&more, &pods, &[], 1).status;
        assert_eq!((one.before.phase, is_ready(&one)), (RolloutPhase::Paused, more["partition"] == 2));
        one.generation = 2;
        (one.spec.paused, one.spec.partition) = (false, IntOrString::Int(0));
        assert!(fails(&mut one, &pods, 2).is_empty());
        let status = &one.before;
        assert_eq!((status.phase, status.observed_generation, status.busy), (RolloutPhase::Running, 2, 0));
        let says = (status.reason.as_str(), status.message.as_str());
        assert_eq!(says, ("WriteFailed", "not allowed; the controller retries"));
        assert!(!is_ready(&one), "{more}");
    }
    let mut paused = rollout(&json!({"paused": true}));
    fails(&mut paused, &pods, 2);
    assert_eq!(paused.before.phase, RolloutPhase::Paused);
}

#[test]
fn an_end_that_cannot_be_recorded_is_no_end() {
    let mut one = rollout(&json!({}));
    let mut pods = [pod(0)];
    say(&mut pods[0], "Succeeded", None);
    assert!(fails(&mut one, &pods, 1).is_empty());
    let status = &one.before;
    assert_eq!((status.phase, status.done, status.finished_at), (RolloutPhase::Running, 1, None));
    let mut failed = rollout(&json!({"failureThreshold": 2}));
    let mut pods = [pod(0), pod(1)];
    say(&mut pods[0], "RolledBack", None);
    assert_eq!(fails(&mut failed, &pods, 1), ["PodFailed"]);
    assert_eq!((failed.before.failed, failed.before.failures.len()), (1, 1));
    assert!(fails(&mut failed, &pods, 2).is_empty(), "it is reported once");
}

#[test]
fn the_progress_deadline_counts_while_writes_are_refused_and_its_reason_is_kept() {
    let mut one = rollout(&json!({"progressDeadlineSeconds": 60}));
    let mut pods = [pod(0), pod(1)];
    say(&mut pods[0], "Succeeded", None);
    for now in [10, 69] {
        fails(&mut one, &pods, now);
        let status = &one.before;
        assert_eq!((status.reason.as_str(), status.done), ("WriteFailed", 1));
        assert_eq!(status.progressed_at, Some(at(10)));
    }
    let stalled = "no further pod was done for 60 s (spec.progressDeadlineSeconds)";
    for now in [70, 71] {
        fails(&mut one, &pods, now);
        let status = &one.before;
        assert_eq!((status.phase, &*status.reason), (RolloutPhase::Running, "ProgressDeadlineExceeded"));
        assert_eq!(status.message, format!("{stalled}; not allowed; the controller retries"));
    }
    let read: Vec<Pod> = pods.iter().map(read).collect();
    let end = decide(&one, seen(&target(), &read, &[], at(72))).status;
    assert_eq!((end.phase, &*end.reason), (RolloutPhase::Failed, "ProgressDeadlineExceeded"));
    assert_eq!(end.message, stalled);
}

#[test]
fn a_reason_that_is_on_record_survives_a_failed_write() {
    let mut one = rollout(&json!({}));
    one.before.reason = "Superseded".to_owned();
    one.before.message = "InPlaceRollout two is newer and has the same target".to_owned();
    let mut pods = [pod(0), pod(1)];
    say(&mut pods[0], "Succeeded", None);
    fails(&mut one, &pods, 1);
    let read: Vec<Pod> = pods.iter().map(read).collect();
    let end = decide(&one, seen(&target(), &read, &[], at(2)));
    assert_eq!((end.status.phase, begun(&end).len()), (RolloutPhase::Superseded, 0));
    assert_eq!(end.status.message, "InPlaceRollout two is newer and has the same target");
}

#[test]
fn an_abort_begins_although_a_write_is_refused() {
    let mut one = rollout(&json!({"containers": [{"name": "app", "image": "app:2"}],
        "allowTemplateDrift": true, "onFailure": "Abort"}));
    let mut pods = [pod(0), pod(1)];
    say(&mut pods[0], "RolledBack", None);
    assert_eq!(fails(&mut one, &pods, 1), ["PodFailed", "RolloutAborting"]);
    assert_eq!((one.before.phase, one.before.abort.is_some()), (RolloutPhase::Aborting, true));
}
