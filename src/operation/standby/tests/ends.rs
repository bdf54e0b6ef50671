//! Unit tests of the end: the gate beside a standby that stops, and the standby of an earlier operation.

use super::*;
use crate::operation::effect::{EffectError, GateAction};

const DRAINED: &str =
    r#"{"id":"r","containers":[{"name":"app"}],"order":"StartFirst","gracePeriodSeconds":5}"#;

fn position(bench: &Bench, effect: &str) -> usize {
    bench.log.iter().position(|done| done == effect).unwrap_or_else(|| panic!("{effect}: {:?}", bench.log))
}

/// The stop of the standby may take its whole grace period.
#[test]
fn traffic_returns_before_the_standby_stops() {
    for cancelled in [false, true] {
        let mut bench = bench(DRAINED, Kubelet::Watching);
        while bench.operation.drain.as_ref().unwrap().left_at.is_none() {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        if cancelled {
            bench.operation.withdraw(Withdrawal::Deleted);
        }
        let expected = if cancelled { Outcome::Cancelled(Withdrawal::Deleted) } else { Outcome::Succeeded };
        assert_eq!(bench.obey(), expected, "{:?}", bench.log);
        assert!(
            position(&bench, "Gate Open") < position(&bench, "StopStandby app-standby"),
            "{:?}",
            bench.log
        );
        assert_eq!(bench.log.iter().filter(|done| *done == "Gate Open").count(), 1, "{:?}", bench.log);
        assert!(is_clean(&bench), "{:?}", bench.log);
    }
}

#[test]
fn a_gate_that_cannot_be_opened_does_not_keep_the_standby() {
    let mut bench = bench(DRAINED, Kubelet::Watching);
    let outcome = bench.play(|effect, snapshot| match effect {
        Effect::Gate { gate: GateAction::Open } if snapshot.standbys("app").next().is_some() => {
            Answer::No(Class::Unavailable)
        }
        _ => Answer::Obey,
    });
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    assert_eq!(position(&bench, "Gate Open") + 1, position(&bench, "StopStandby app-standby"));
    assert_eq!(bench.log.last().unwrap(), "Gate Open");
    assert!(is_clean(&bench), "{:?}", bench.log);
}

#[test]
fn a_gate_and_a_standby_that_both_fail_are_given_up() {
    let mut bench = bench(DRAINED, Kubelet::Watching);
    let outcome = bench.play(|effect, _| match effect {
        Effect::Gate { gate: GateAction::Open } | Effect::StopStandby { .. } => Answer::No(Class::Refused),
        _ => Answer::Obey,
    });
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    let count = |effect: &str| bench.log.iter().filter(|done| *done == effect).count();
    assert_eq!(count("StopStandby app-standby"), 5, "{:?}", bench.log);
    assert!((2..=4).contains(&count("Gate Open")), "{:?}", bench.log);
}

/// A stop that was not begun yet is never too late.
#[test]
fn a_gate_that_fails_after_the_deadline_does_not_leave_the_standby() {
    let mut bench = bench(DRAINED, Kubelet::Watching);
    while bench.log.last().is_none_or(|done| done != "Gate Open") {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
    }
    assert!(bench.snapshot.standbys("app").any(Container::may_run), "{:?}", bench.log);
    let effect_error = EffectError { class: Class::Unavailable, message: "the runtime said so".into() };
    bench.operation.drain.as_mut().unwrap().settled = false;
    bench.operation.record(&Effect::Gate { gate: GateAction::Open }, Err(effect_error), bench.now);
    bench.now = later(bench.operation.deadline_at, CLEANING);
    assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
    assert!(bench.log.iter().any(|done| done == "StopStandby app-standby"), "{:?}", bench.log);
}

#[test]
fn a_container_may_load_for_as_long_as_its_standby_existed_within_limits() {
    let seconds = SignedDuration::from_secs;
    for (ahead, expected) in [(-30, 60), (30, 60), (100, 100), (36_000, 600)] {
        assert_eq!(serves_after(seconds(ahead)), seconds(expected), "{ahead}");
    }
}

/// The container may still load, and the standby may answer its readiness probe.
#[test]
fn the_standby_of_an_earlier_operation_stops_once_the_container_can_have_loaded() {
    // How many seconds before the container it was created, and from when on the container is expected to serve.
    for (ahead, from) in [(-30, 0), (30, 0), (100, 40)] {
        let mut situation = situation();
        let app = find(&mut situation.snapshot, "app-2").clone();
        let created_at = app.created_at - SignedDuration::from_secs(ahead);
        let (id, operation) = ("app-orphan".to_owned(), Some("earlier".to_owned()));
        let orphan =
            Container { id, operation, standby: true, created_at, started_at: Some(created_at), ..app };
        situation.snapshot.containers.push(orphan);
        let mut bench = Bench::of(RESTART, situation, Kubelet::Watching);
        bench.listens_after = Some(300);
        while bench.log.is_empty() {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        assert_eq!(bench.log, ["StopStandby app-orphan"]);
        let waited = bench.now.duration_since(at(0)).as_secs();
        assert!((from..from + 2).contains(&waited), "{ahead}: {waited} s");
        assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
        assert!(is_clean(&bench), "{:?}", bench.log);
    }
}
