//! Which failures restart a group, and how often.

use serde_json::json;

use super::*;
use crate::api::status::Status;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn failed(exit_code: i32, second: i64) -> GroupFailure {
    let container_id = format!("c-{second}");
    GroupFailure { container: "app".into(), container_id, exit_code, finished_at: at(second) }
}

fn pod(name: &str, failure: Option<(i32, i64)>) -> GroupPod {
    let failure = failure.map(|(exit_code, second)| failed(exit_code, second));
    let uid = format!("uid-{name}");
    GroupPod { name: name.into(), uid, created: None, failure, policy: String::new(), restarted_by: None }
}

fn status(phase: &str, container: &str, started: Option<i64>, in_group: bool) -> Status {
    let container = json!({"name": container, "action": "Restart", "engine": "Recreate",
        "from": {"image": "a", "imageID": "a", "containerID": "c-0", "attempt": 0}, "startedAt": started.map(at)});
    let mut status = json!({"id": "r", "phase": phase, "reason": "", "message": "", "startedAt": null,
        "finishedAt": null, "containers": [container]});
    if in_group {
        status["group"] = json!({"epoch": 1});
    }
    serde_json::from_value(status).unwrap()
}

fn earlier(name: &str, second: i64, has_ended: bool) -> Earlier {
    let ended = has_ended.then(|| at(second));
    Earlier {
        name: name.into(),
        uid: format!("r-{name}"),
        created: at(second),
        prepared: None,
        started: None,
        ended,
    }
}

fn restart(decision: &Decision) -> Restart {
    decision.restart.clone().unwrap_or_else(|| panic!("{decision:?}"))
}

fn reasons(decision: &Decision) -> Vec<&'static str> {
    assert_eq!((&decision.restart, decision.again_at), (&None, None));
    decision.left.iter().map(|left| left.reason).collect()
}

#[test]
fn the_first_failure_restarts_the_group_once() {
    let pods = [pod("a", None), pod("b", Some((1, 20))), pod("c", Some((137, 10)))];
    let begun = restart(&decide("train", &pods, &[], at(30)));
    assert_eq!((begun.pod.as_str(), begun.failure.exit_code, begun.terms.barrier), ("c", 137, true));
    assert_eq!(begun.containers, ["app"]);
    assert!(begun.name.starts_with("train-failed-"), "{}", begun.name);
    assert_eq!(restart(&decide("train", &pods, &[], at(99))).name, begun.name, "a second leader");
    let open = [earlier(&begun.name, 30, false)];
    assert_eq!(decide("train", &pods, &open, at(31)), Decision::default());
}

#[test]
fn a_failure_is_over_once_an_operation_has_started_the_container() {
    let failure = failed(1, 10);
    assert!(failure.is_open(None));
    for (phase, container, started, in_group, is_open) in [
        ("Running", "app", None, true, false),
        ("Succeeded", "app", None, false, true),
        ("Succeeded", "app", Some(10), false, false),
        ("Failed", "app", Some(9), false, true),
        ("Succeeded", "side", Some(11), false, true),
        // The group was restarted, though this container was not.
        ("Succeeded", "side", Some(11), true, false),
        ("Failed", "side", Some(11), true, true),
    ] {
        let status = status(phase, container, started, in_group);
        assert_eq!(failure.is_open(Some(&status)), is_open, "{phase} {container} {started:?} {in_group}");
    }
    assert!(!GroupFailure { container: "a/b".into(), ..failure }.is_open(None));
}

#[test]
fn a_failure_whose_group_restart_failed_begins_no_other_one() {
    let failed = [pod("a", Some((1, 10)))];
    let name = restart(&decide("train", &failed, &[], at(11))).name;
    assert_eq!(decide("train", &failed, &[earlier(&name, 11, true)], at(60)), Decision::default());
}

/// Several workers fail within a second: each one ends when its neighbour does not answer.
#[test]
fn failures_before_the_new_containers_start_are_one_group_restart() {
    let pods = [pod("a", Some((1, 10))), pod("b", Some((137, 12)))];
    let begun = restart(&decide("train", &pods[..1], &[], at(11)));
    let next = |created: i64, started: Option<i64>, ended: i64| {
        let (started, ended) = (started.map(at), Some(at(ended)));
        let one = Earlier { started, ended, ..earlier(&begun.name, created, true) };
        decide("train", &pods, &[one], at(60)).restart.map(|begun| begun.pod)
    };
    assert_eq!(next(13, None, 43), None, "it could not be prepared, and was created after both");
    assert_eq!(next(11, None, 41), None, "one has failed during the preparation");
    assert_eq!(next(11, Some(15), 41), None, "a pod of it has failed");
    assert_eq!(next(13, Some(12), 12), None, "another clock");
    let other = Some("b".to_owned());
    assert_eq!(next(10, None, 11), other, "one has failed after it had ended");
    assert_eq!(next(10, Some(11), 41), other, "one has failed after the start");
}

/// The clock of the node is behind that of the controller.
#[test]
fn what_fails_in_a_pod_that_was_restarted_is_part_of_a_later_group_restart_only() {
    let mut failed = [pod("a", Some((1, 10)))];
    let first = Earlier { started: Some(at(20)), ..earlier("t-1", 15, true) };
    assert_eq!(decide("train", &failed, std::slice::from_ref(&first), at(60)), Decision::default());
    failed[0].restarted_by = Some(first.uid.clone());
    restart(&decide("train", &failed, std::slice::from_ref(&first), at(60)));
    let both = [earlier("t-0", 12, true), first.clone()];
    restart(&decide("train", &failed, &both, at(60)));
    let both = [first, earlier("t-2", 30, true)];
    assert_eq!(decide("train", &failed, &both, at(60)), Decision::default());
}

#[test]
fn what_fails_in_a_pod_that_was_created_later_is_not_part_of_a_group_restart() {
    let first = [Earlier { started: Some(at(20)), ..earlier("t-1", 15, true) }];
    let mut failed = [pod("a", Some((1, 18)))];
    failed[0].created = Some(at(15));
    assert_eq!(decide("train", &failed, &first, at(60)), Decision::default());
    failed[0].created = Some(at(16));
    restart(&decide("train", &failed, &first, at(60)));
    // Until its agents prepare, a pod that is created becomes a member.
    let first = first.map(|one| Earlier { prepared: Some(at(16)), ..one });
    assert_eq!(decide("train", &failed, &first, at(60)), Decision::default());
}

#[test]
fn a_failure_follows_the_group_restart_that_has_started_its_pod() {
    for (started, in_group, follows) in
        [(Some(9), true, true), (Some(11), true, false), (None, true, false), (Some(9), false, false)]
    {
        let status = status("Succeeded", "app", started, in_group);
        assert_eq!(failed(1, 10).follows(&status), follows, "{started:?} {in_group}");
    }
}

#[test]
fn restarts_are_limited_within_a_window() {
    let mut failed = pod("a", Some((1, 5_000)));
    failed.policy = "max-restarts=2,window=1h".into();
    let of = |times: [i64; 2]| {
        let before = times.map(|second| earlier(&format!("t-{second}"), second, true));
        decide("train", std::slice::from_ref(&failed), &before, at(5_001))
    };
    assert_eq!(reasons(&of([2_000, 3_000])), ["GroupRestartLimit"]);
    restart(&of([1_000, 3_000]));
}

#[test]
fn restarts_that_follow_each_other_wait_longer_each_time() {
    let failed = pod("a", Some((1, 100)));
    let of = |times: &[i64]| {
        let before: Vec<_> =
            times.iter().map(|second| earlier(&format!("t-{second}"), *second, true)).collect();
        decide("train", std::slice::from_ref(&failed), &before, at(101)).again_at
    };
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[95]), None);
    assert_eq!(of(&[98]), Some(at(103)));
    assert_eq!(of(&[90, 98]), Some(at(108)));
    assert_eq!(of(&[10, 20, 30, 40, 50, 60, 70, 80]), Some(at(80 + 300)));
}

#[test]
fn a_code_that_restarts_nothing_hides_no_other_failure() {
    let policy = "fail-codes=2,containers=side+app,barrier=false";
    let mut pods = [pod("a", Some((2, 10))), pod("b", Some((1, 12)))];
    for pod in &mut pods {
        pod.policy = policy.into();
    }
    let begun = restart(&decide("train", &pods, &[], at(13)));
    assert_eq!((begun.pod.as_str(), begun.terms.barrier), ("b", false));
    assert_eq!(begun.containers, ["side", "app"]);
    assert_eq!(reasons(&decide("train", &pods[..1], &[], at(13))), ["GroupNotRestarted"]);
    pods[0].policy = "on-failure".into();
    assert_eq!(reasons(&decide("train", &pods[..1], &[], at(13))), ["InvalidGroupRestartPolicy"]);
}

/// Nobody expects the restart hours later, when an earlier group restart no longer counts.
#[test]
fn an_old_failure_restarts_nothing() {
    let failed = [pod("a", Some((1, 0)))];
    restart(&decide("train", &failed, &[], at(590)));
    for second in [610, -610] {
        assert_eq!(reasons(&decide("train", &failed, &[], at(second))), ["GroupNotRestarted"], "{second}");
    }
}

#[test]
fn the_pods_of_a_group_have_one_policy() {
    let mut pods = [pod("a", Some((1, 10))), pod("b", None)];
    pods[0].policy = "max-restarts=60000".into();
    assert_eq!(reasons(&decide("train", &pods, &[], at(11))), ["InvalidGroupRestartPolicy"]);
    pods[1].policy = pods[0].policy.clone();
    restart(&decide("train", &pods, &[], at(11)));
}

/// A label value may have letters and signs that a name must not have.
#[test]
fn the_name_of_a_rollout_is_a_name() {
    let failed = [pod("a", Some((1, 10)))];
    for group in ["Train_Big.1", "a._-b", "", "x".repeat(63).as_str()] {
        let name = restart(&decide(group, &failed, &[], at(11))).name;
        assert!(name.len() <= 63 && crate::api::request::is_dns_subdomain(&name), "{name}");
    }
}
