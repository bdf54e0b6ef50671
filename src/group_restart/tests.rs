//! Which failures restart a group, and how often.

use serde_json::json;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_790_000_000 + second).unwrap()
}

fn pod(name: &str, failed: Option<(i32, i64)>) -> GroupPod {
    let failure = failed.map(|(exit_code, second)| GroupFailure {
        container: "app".into(),
        exit_code,
        finished_at: at(second),
    });
    GroupPod { name: name.into(), uid: format!("uid-{name}"), failure, status: None, policy: String::new() }
}

fn status(phase: &str, started: Option<i64>) -> Status {
    let container = json!({"name": "app", "action": "Restart", "engine": "Recreate",
        "from": {"image": "a", "imageID": "a", "containerID": "c-0", "attempt": 0},
        "startedAt": started.map(at)});
    serde_json::from_value(json!({"id": "r", "phase": phase, "reason": "", "message": "", "startedAt": null,
        "finishedAt": null, "containers": [container]}))
    .unwrap()
}

fn earlier(name: &str, second: i64, has_ended: bool) -> Earlier {
    Earlier { name: name.into(), created: at(second), has_ended }
}

fn restart(step: Step) -> Restart {
    let Step::Restart(restart) = step else { panic!("{step:?}") };
    restart
}

fn reason(step: &Step) -> &'static str {
    let Step::Leave { reason, .. } = step else { panic!("{step:?}") };
    reason
}

#[test]
fn the_first_failure_restarts_the_group_once() {
    let pods = [pod("a", None), pod("b", Some((1, 20))), pod("c", Some((137, 10)))];
    let begun = restart(decide("train", &pods, &[], at(30)));
    assert_eq!((begun.pod.as_str(), begun.failure.exit_code, begun.barrier), ("c", 137, true));
    assert_eq!(begun.containers, ["app"]);
    assert!(begun.name.starts_with("train-failed-"), "{}", begun.name);
    assert_eq!(restart(decide("train", &pods, &[], at(99))).name, begun.name, "a second leader");
    let open = [earlier(&begun.name, 30, false)];
    assert_eq!(decide("train", &pods, &open, at(31)), Step::Nothing);
}

/// Both failed before the new containers were started.
#[test]
fn two_failures_at_the_same_time_are_one_restart() {
    let mut pods = [pod("a", Some((1, 10))), pod("b", Some((1, 12)))];
    let begun = restart(decide("train", &pods, &[], at(13)));
    let ended = [earlier(&begun.name, 13, true)];
    for pod in &mut pods {
        pod.status = Some(status("Succeeded", Some(15)));
    }
    assert_eq!(decide("train", &pods, &ended, at(20)), Step::Nothing);
    // A new container fails.
    pods[1].failure = pod("b", Some((1, 18))).failure;
    assert_eq!(restart(decide("train", &pods, &ended, at(20))).pod, "b");
}

#[test]
fn a_pod_that_is_being_restarted_has_no_open_failure() {
    let mut failed = pod("a", Some((1, 10)));
    for (phase, started, is_open) in [
        ("Running", None, false),
        ("Succeeded", None, true),
        ("Succeeded", Some(10), false),
        ("Failed", Some(9), true),
    ] {
        failed.status = Some(status(phase, started));
        let step = decide("train", std::slice::from_ref(&failed), &[], at(11));
        assert_eq!(step != Step::Nothing, is_open, "{phase} {started:?}");
    }
}

#[test]
fn a_failure_whose_group_restart_failed_begins_no_other_one() {
    let failed = [pod("a", Some((1, 10)))];
    let name = restart(decide("train", &failed, &[], at(11))).name;
    assert_eq!(decide("train", &failed, &[earlier(&name, 11, true)], at(60)), Step::Nothing);
}

#[test]
fn restarts_are_limited_within_a_window() {
    let mut failed = pod("a", Some((1, 5_000)));
    failed.policy = "max-restarts=2,window=1h".into();
    let of = |times: [i64; 2]| {
        let before = times.map(|second| earlier(&format!("t-{second}"), second, true));
        decide("train", std::slice::from_ref(&failed), &before, at(5_001))
    };
    assert_eq!(reason(&of([2_000, 3_000])), "GroupRestartLimit");
    restart(of([1_000, 3_000]));
}

#[test]
fn a_code_that_restarts_nothing_hides_no_other_failure() {
    let policy = "fail-codes=2,containers=side+app,barrier=false";
    let mut pods = [pod("a", Some((2, 10))), pod("b", Some((1, 12)))];
    for pod in &mut pods {
        pod.policy = policy.into();
    }
    let begun = restart(decide("train", &pods, &[], at(13)));
    assert_eq!((begun.pod.as_str(), begun.barrier), ("b", false));
    assert_eq!(begun.containers, ["side", "app"]);
    let step = decide("train", &pods[..1], &[], at(13));
    assert_eq!(reason(&step), "GroupNotRestarted");
    pods[0].policy = "on-failure".into();
    assert_eq!(reason(&decide("train", &pods[..1], &[], at(13))), "InvalidGroupRestartPolicy");
}

#[test]
fn the_pods_of_a_group_have_one_policy() {
    let mut pods = [pod("a", Some((1, 10))), pod("b", None)];
    pods[0].policy = "max-restarts=60000".into();
    let step = decide("train", &pods, &[], at(11));
    assert_eq!(reason(&step), "InvalidGroupRestartPolicy");
    pods[1].policy = pods[0].policy.clone();
    restart(decide("train", &pods, &[], at(11)));
}

/// A label value may have letters and signs that a name must not have.
#[test]
fn the_name_of_a_rollout_is_a_name() {
    let failed = [pod("a", Some((1, 10)))];
    for group in ["Train_Big.1", "x".repeat(63).as_str()] {
        let name = restart(decide(group, &failed, &[], at(11))).name;
        assert!(name.len() <= 63 && crate::api::request::is_dns_subdomain(&name), "{name}");
    }
}
