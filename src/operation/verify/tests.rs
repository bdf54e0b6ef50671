//! Unit tests of `verify`: readiness reports that are late, missing, or about another instance.

use super::*;
use crate::operation::fixtures::{Answer, Bench, Kubelet, at, declared};
use crate::operation::outcome::Outcome;

const RESTART: &str =
    r#"{"containers":[{"name":"app"}],"readyTimeoutSeconds":5,"deadlineSeconds":90,"engine":"Recreate"}"#;

/// A restart whose new instance was observed running, and whose kubelet reports nothing from here on.
fn restarted() -> Bench {
    let mut bench = Bench::beside(Kubelet::Watching, RESTART);
    while bench.operation.targets[0].reached.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.kubelet = Kubelet::Silent;
    bench
}

#[test]
fn the_report_of_the_kubelet_counts_for_the_instance_that_it_names() {
    let mut bench = restarted();
    // The report is still about the previous instance.
    let reported = declared(&mut bench.snapshot);
    (reported.container_id, reported.ready, reported.running) = (Some("app-2".into()), true, true);
    let waits = bench.now;
    while bench.now < at(4000) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    assert!(bench.operation.targets[0].reached.as_ref().unwrap().ready_at.is_none());
    declared(&mut bench.snapshot).container_id = Some("app-3".into());
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert!(bench.operation.targets[0].reached.as_ref().unwrap().ready_at.unwrap() > waits);
}

#[test]
fn what_does_not_become_ready_in_time_has_failed() {
    let mut bench = restarted();
    declared(&mut bench.snapshot).ready = false;
    let outcome = bench.obey();
    let Outcome::Failed { failure: Failure::NotReady { seconds: 5, .. }, touched: true, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let started = bench.snapshot.by_id("app-3").unwrap().started_at.unwrap();
    let waited = bench.now.duration_since(started).as_millis();
    assert!((5250..5500).contains(&waited), "{waited}");
}

#[test]
fn the_image_of_a_rollback_has_the_default_time_to_become_ready() {
    let swap = r#"{"containers":[{"name":"app","image":"repo/app:v2"}],"readyTimeoutSeconds":5}"#;
    let mut bench = Bench::beside(Kubelet::Prompt, swap);
    let reached = |bench: &Bench| {
        bench.operation.targets[0].reached.as_ref().map(|reached| reached.to.container_id.clone())
    };
    let until_reached = |bench: &mut Bench, before: Option<&String>| {
        while reached(bench).is_none_or(|id| Some(&id) == before) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        bench.kubelet = Kubelet::Silent;
        declared(&mut bench.snapshot).ready = false;
    };
    until_reached(&mut bench, None);
    let first = reached(&bench);
    while bench.operation.rollback_cause.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.kubelet = Kubelet::Prompt;
    until_reached(&mut bench, first.as_ref());
    let began = bench.now;
    while bench.now.duration_since(began).as_secs() < 100 {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    let back = reached(&bench);
    let reported = declared(&mut bench.snapshot);
    (reported.container_id, reported.ready) = (back, true);
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::RolledBack(Failure::NotReady { seconds: 5, .. })), "{outcome:?}");
}

#[test]
fn while_its_status_is_not_current_no_container_has_failed() {
    for unknown in [false, true] {
        let mut bench = restarted();
        declared(&mut bench.snapshot).ready = false;
        let mut received = bench.snapshot.declared.clone().unwrap();
        if unknown {
            // The agent has restarted and has not received its pods yet.
            bench.snapshot.declared = None;
        } else {
            bench.snapshot.declared.as_mut().unwrap().current = false;
        }
        while bench.now < at(30_000) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{unknown}");
        }
        received.containers[0].ready = true;
        bench.snapshot.declared = Some(received);
        assert_eq!(bench.obey(), Outcome::Succeeded, "{unknown}");
    }
}

#[test]
fn a_container_without_a_probe_is_ready_also_while_its_status_is_not_current() {
    let mut bench = restarted();
    let reported = declared(&mut bench.snapshot);
    (reported.ready, reported.is_probed) = (false, false);
    bench.snapshot.declared.as_mut().unwrap().current = false;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert!(bench.now < at(31_000), "{}", bench.now);
}

#[test]
fn without_an_api_server_it_is_enough_to_run() {
    let mut bench =
        Bench::new(RESTART, crate::operation::fixtures::pod(crate::operation::snapshot::Owner::Kubelet));
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert!(bench.now < at(1000), "{}", bench.now);
}

/// A kubelet that queries a registry before a start requests the reserved name only after the response.
#[test]
fn the_fence_stays_until_the_kubelet_reports_the_new_instance_as_running() {
    let fenced = |bench: &Bench| bench.snapshot.fences("app").next().is_some();
    let mut bench = Bench::beside(Kubelet::Silent, RESTART);
    while bench.operation.targets[0].reached.is_none() || bench.now < at(3000) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        assert!(bench.log.is_empty() || fenced(&bench), "{:?}", bench.log);
    }
    let reported = declared(&mut bench.snapshot);
    (reported.container_id, reported.ready, reported.running) = (Some("app-3".into()), false, true);
    for _ in 0..3 {
        bench.step(&mut |_, _| Answer::Obey);
    }
    assert!(!fenced(&bench), "{:?}", bench.log);
    // The kubelet reports nothing for a long time: the fence is removed all the same.
    let mut silent = Bench::beside(Kubelet::Silent, &RESTART.replace(":5,", ":60,"));
    while silent.now < at(29_000) {
        assert_eq!(silent.step(&mut |_, _| Answer::Obey), None);
    }
    assert!(fenced(&silent));
    while silent.now < at(31_000) {
        assert_eq!(silent.step(&mut |_, _| Answer::Obey), None);
    }
    assert!(!fenced(&silent), "{:?}", silent.log);
}

#[test]
fn what_was_running_when_it_was_observed_may_have_exited_since() {
    let mut bench = restarted();
    let started = bench.snapshot.by_id("app-3").unwrap().started_at.unwrap();
    let reported = declared(&mut bench.snapshot);
    (reported.container_id, reported.ready, reported.running) = (Some("app-3".into()), true, true);
    let settles = later(started, RESTART_SETTLES);
    let (early, late) = (later(settles, -WATCH), later(settles, SWAP_SETTLES));
    let is_proven = |bench: &Bench, at| {
        let snapshot = Snapshot { observed_at: Some(at), ..bench.snapshot.clone() };
        match verify(&bench.operation, bench.operation.targets.iter(), &snapshot, late) {
            Verdict::Next(Next::Wait(waiting)) => {
                assert_eq!(waiting.until, late, "it is observed again at once");
                false
            }
            Verdict::Next(Next::Note(Note::Proven(..))) => true,
            _ => panic!("neither proven nor awaited"),
        }
    };
    assert!(!is_proven(&bench, early));
    assert!(is_proven(&bench, settles));
    // The clock was set back after the observation.
    assert!(is_proven(&bench, later(late, SWAP_SETTLES)));
}

/// Each observation beside a standby runs a process in the pod.
#[test]
fn beside_a_standby_an_instance_is_observed_longer_and_less_often() {
    let mut bench = restarted();
    bench.operation.targets[0].forward.reported_unstarted = true;
    bench.snapshot.containers.retain(|container| !container.fence);
    let reported = declared(&mut bench.snapshot);
    (reported.container_id, reported.ready, reported.running) = (Some("app-3".into()), true, true);
    let mut standby = bench.snapshot.by_id("app-3").unwrap().clone();
    let started = standby.started_at.unwrap();
    (standby.id, standby.standby) = ("app-standby".into(), true);
    let mut beside = bench.snapshot.clone();
    beside.containers.push(standby);
    let until = |snapshot: &Snapshot, after: i64| {
        let now = later(started, SignedDuration::from_secs(after));
        match verify(&bench.operation, bench.operation.targets.iter(), snapshot, now) {
            Verdict::Next(Next::Wait(waiting)) => Some(waiting.until.duration_since(now)),
            Verdict::Next(Next::Note(Note::Proven(..))) => None,
            _ => panic!("neither proven nor awaited"),
        }
    };
    assert_eq!([1, 4].map(|after| until(&beside, after)), [Some(WATCH), Some(WATCH_BESIDE)]);
    assert_eq!([1, 4].map(|after| until(&bench.snapshot, after)), [Some(WATCH), None]);
}
