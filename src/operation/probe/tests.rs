//! Unit tests of an instance that its kubelet ends: after a probe that was due before the start, and otherwise.

use std::time::Duration;

use super::*;
use crate::operation::effect::Effect;
use crate::operation::fixtures::{Answer, Bench, Kubelet, declared, find};
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::snapshot::Liveness;
use crate::operation::state::Reached;

const RESTART: &str = r#"{"containers":[{"name":"app"}],"deadlineSeconds":90,"engine":"Recreate"}"#;

/// A kubelet that observes new instances between creation and start, and ends them.
#[derive(Clone, Copy)]
struct Case {
    has_liveness_probe: bool,
    has_startup_probe: bool,
    /// Whether it reports that it observed the instance before the start.
    reports_unstarted: bool,
    /// The milliseconds from the start to the end.
    ends_after: i64,
    /// How many instances it ends.
    ends: u32,
}

const USUAL: Case = Case {
    has_liveness_probe: true,
    has_startup_probe: false,
    reports_unstarted: true,
    ends_after: 900,
    ends: 1,
};

fn run(case: Case) -> (Outcome, Bench) {
    let mut bench = Bench::beside(Kubelet::Silent, RESTART);
    let liveness = Liveness { kills_after: Duration::from_secs(30), grace: None };
    let container = declared(&mut bench.snapshot);
    container.liveness = case.has_liveness_probe.then_some(liveness);
    container.has_startup_probe = case.has_startup_probe;
    let mut ended = 0;
    let outcome = loop {
        let mut world = |effect: &Effect, snapshot: &mut Snapshot| {
            if let Effect::Start { id, .. } = effect {
                let container = declared(snapshot);
                container.container_id = Some(id.clone());
                (container.running, container.ready) = (false, false);
                container.unstarted = case.reports_unstarted;
            }
            Answer::Obey
        };
        if let Some(outcome) = bench.step(&mut world) {
            break outcome;
        }
        let newest = bench.snapshot.running("app").last().map(|instance| (*instance).clone());
        let Some(newest) = newest.filter(|newest| newest.attempt > 2) else { continue };
        let end = later(newest.started_at.unwrap(), SignedDuration::from_millis(case.ends_after));
        // The kubelet observes the runtime again before it ends the instance.
        let observed = later(newest.started_at.unwrap(), SignedDuration::from_millis(100));
        if ended == case.ends && bench.now >= observed {
            let container = declared(&mut bench.snapshot);
            (container.running, container.ready, container.unstarted) = (true, true, false);
        } else if ended < case.ends && bench.now >= end {
            ended += 1;
            let instance = find(&mut bench.snapshot, &newest.id);
            (instance.state, instance.finished_at) = (State::Exited, Some(end));
            declared(&mut bench.snapshot).unstarted = false;
        }
    };
    (outcome, bench)
}

#[test]
fn an_instance_that_ends_after_a_probe_before_its_start_is_replaced() {
    let startup = Case { has_liveness_probe: false, has_startup_probe: true, ..USUAL };
    for case in [USUAL, startup, Case { ends: 3, ..USUAL }] {
        let (outcome, bench) = run(case);
        assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
        let to = &bench.operation.targets[0].reached.as_ref().unwrap().to;
        assert_eq!(to.attempt, 3 + case.ends);
        assert_eq!(bench.operation.remarks.len(), case.ends as usize, "{:?}", bench.operation.remarks);
        assert!(bench.operation.remarks[0].contains("attempt 3"), "{:?}", bench.operation.remarks);
        assert!(bench.snapshot.fences("app").next().is_none());
    }
}

#[test]
fn an_instance_that_ends_for_another_reason_has_failed() {
    let cases = [
        (
            "the kubelet did not report it before its start",
            Case { reports_unstarted: false, ends_after: 100, ..USUAL },
        ),
        ("it has no such probe", Case { has_liveness_probe: false, ends_after: 100, ..USUAL }),
        ("it ends with every attempt", Case { ends: 4, ..USUAL }),
    ];
    for (why, case) in cases {
        let (outcome, bench) = run(case);
        let failure = match outcome {
            Outcome::Failed { failure, .. } => failure,
            outcome => panic!("{why}: {outcome:?}, {:?}", bench.log),
        };
        assert!(matches!(failure, Failure::Exited { .. }), "{why}: {failure:?}");
    }
}

/// The kubelet reports the instance as Ready before it ends it: it does both in the same sync.
#[test]
fn an_instance_that_was_reported_before_its_start_is_observed_for_longer() {
    for (reports_unstarted, settles) in [(false, 250), (true, 3000)] {
        let (outcome, bench) = run(Case { reports_unstarted, ends: 0, ..USUAL });
        assert_eq!(outcome, Outcome::Succeeded);
        let reached = bench.operation.targets[0].reached.as_ref().unwrap();
        let proven = reached.ready_at.unwrap().duration_since(reached.started_at.unwrap()).as_millis();
        assert!((settles..settles + 250).contains(&proven), "{proven}");
    }
}

#[test]
fn an_instance_that_ends_after_it_was_accepted_has_failed() {
    let mut bench = Bench::beside(Kubelet::Silent, RESTART);
    declared(&mut bench.snapshot).has_startup_probe = true;
    let mut new = bench.snapshot.running("app")[0].clone();
    (new.attempt, new.operation, new.state) = (3, Some(bench.operation.request.id.clone()), State::Exited);
    new.finished_at = new.started_at;
    let target = &mut bench.operation.targets[0];
    (target.touched, target.forward.reported_unstarted) = (true, true);
    for (ready_at, excused) in [(None, true), (new.started_at, false)] {
        let reached = Reached {
            to: new.reported(),
            stopped_at: None,
            started_at: new.started_at,
            counts_from: None,
            ready_at,
            startup: None,
        };
        bench.operation.targets[0].reached = Some(reached);
        let snapshot = Snapshot { containers: vec![new.clone()], ..bench.snapshot.clone() };
        let note = probed_too_early(&bench.operation, &bench.operation.targets[0], &snapshot);
        assert_eq!(note.is_some(), excused, "{ready_at:?}");
    }
}

#[test]
fn an_end_long_after_the_start_is_not_the_kubelets() {
    let mut bench = Bench::beside(Kubelet::Silent, RESTART);
    declared(&mut bench.snapshot).has_startup_probe = true;
    let target = &mut bench.operation.targets[0];
    (target.touched, target.forward.reported_unstarted) = (true, true);
    let grace = i64::try_from(target.grace_seconds).unwrap();
    let id = bench.operation.request.id.clone();
    for (seconds, excused) in [(10 + grace - 1, true), (10 + grace + 1, false)] {
        let mut new = bench.snapshot.running("app")[0].clone();
        (new.attempt, new.operation, new.state) = (3, Some(id.clone()), State::Exited);
        new.finished_at = Some(later(new.started_at.unwrap(), SignedDuration::from_secs(seconds)));
        let snapshot = Snapshot { containers: vec![new], ..bench.snapshot.clone() };
        let note = probed_too_early(&bench.operation, &bench.operation.targets[0], &snapshot);
        assert_eq!(note.is_some(), excused, "{seconds}");
    }
}
