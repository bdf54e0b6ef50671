//! An operation in a group restart: what it does in each phase, and that no container stays stopped.

use super::*;
use crate::operation::fixtures::{Answer, Bench, Kubelet, at, find, pod_in_cluster, situation_in_cluster};
use crate::operation::next::next;
use crate::operation::plan::Plan;
use crate::operation::preflight::Refusal;
use crate::operation::snapshot::State;

const PREPARE: GroupSignal = GroupSignal::Phase(GroupPhase::Prepare);
const STOP: GroupSignal = GroupSignal::Phase(GroupPhase::Stop);
const START: GroupSignal = GroupSignal::Phase(GroupPhase::Start);

fn task(barrier: bool) -> GroupTask {
    let (rollout, ended_request) = ("r-1".to_owned(), String::new());
    GroupTask { rollout, epoch: 3, barrier, barrier_timeout_seconds: 30, ended_request }
}

fn bench(text: &str, barrier: bool) -> Bench {
    let mut bench = Bench::beside(Kubelet::Watching, text);
    bench.operation.group = Some(GroupMembership::new(task(barrier)));
    bench.snapshot.group = PREPARE;
    bench
}

/// Runs until the operation waits for the other pods, and returns until when.
fn held(bench: &mut Bench) -> Timestamp {
    for _ in 0..200 {
        match next(&bench.operation, &bench.snapshot, bench.now) {
            Next::Wait(waiting) if waiting.on.contains("the other pods") => return waiting.until,
            _ => assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log),
        }
    }
    panic!("it never waits: {:?}", bench.log);
}

fn membership(bench: &Bench) -> &GroupMembership {
    bench.operation.group.as_ref().unwrap()
}

#[test]
fn a_pod_is_prepared_then_stopped_then_started_each_when_the_group_is() {
    let mut bench = bench("restart app,side", true);
    held(&mut bench);
    assert_eq!(bench.log, ["Fence app 4", "Fence side 4"]);
    assert!(membership(&bench).prepared_at.is_some() && !bench.operation.touched());
    bench.snapshot.group = STOP;
    let until = held(&mut bench);
    assert_eq!(bench.log[2..], ["Stop app-2", "Create app 3", "Stop side-2", "Create side 3"]);
    let stopped_at = membership(&bench).stopped_at.unwrap();
    assert_eq!(until, stopped_at + SignedDuration::from_secs(30));
    bench.snapshot.group = START;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let starts: Vec<_> = bench.log.iter().filter(|effect| effect.starts_with("Start")).collect();
    assert_eq!(starts, ["Start app-3", "Start side-3"]);
}

#[test]
fn without_a_barrier_a_pod_is_stopped_and_started_at_once() {
    let mut bench = bench("restart app", false);
    held(&mut bench);
    bench.snapshot.group = START;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log[..4], ["Fence app 4", "Stop app-2", "Create app 3", "Start app-3"]);
    assert_eq!(membership(&bench).stopped_at, None);
}

#[test]
fn a_pod_that_waits_at_the_barrier_starts_by_itself_in_the_end() {
    for signal in [GroupSignal::Unknown, STOP, PREPARE] {
        let mut bench = bench("restart app", true);
        held(&mut bench);
        bench.snapshot.group = STOP;
        let until = held(&mut bench);
        bench.snapshot.group = signal;
        assert_eq!(bench.obey(), Outcome::Succeeded, "{signal:?}");
        let started = find(&mut bench.snapshot, "app-3").started_at.unwrap();
        assert!(started >= until && started < until + SignedDuration::from_secs(1), "{signal:?}: {started}");
    }
}

#[test]
fn the_barrier_ends_before_the_deadline_of_the_request() {
    let mut bench = bench(r#"{"containers":[{"name":"app"}],"deadlineSeconds":90}"#, true);
    bench.operation.group.as_mut().unwrap().task.barrier_timeout_seconds = 600;
    held(&mut bench);
    bench.snapshot.group = STOP;
    assert_eq!(held(&mut bench), at(80_000));
    assert_eq!(bench.obey(), Outcome::Succeeded);
}

#[test]
fn a_group_that_is_over_ends_what_is_prepared_and_starts_what_has_stopped() {
    let mut prepared = bench("restart app", true);
    held(&mut prepared);
    prepared.snapshot.group = GroupSignal::Over;
    assert_eq!(prepared.obey(), Outcome::Cancelled(Withdrawal::Deleted));
    assert_eq!(prepared.log, ["Fence app 4", "Remove app-fence-4"]);
    let mut stopped = bench("restart app", true);
    held(&mut stopped);
    stopped.snapshot.group = STOP;
    held(&mut stopped);
    stopped.snapshot.group = GroupSignal::Over;
    let now = stopped.now;
    assert_eq!(stopped.obey(), Outcome::Succeeded);
    assert!(find(&mut stopped.snapshot, "app-3").started_at.unwrap() < now + SignedDuration::from_secs(1));
}

#[test]
fn an_api_server_that_is_away_stops_nothing_that_is_prepared() {
    let mut bench = bench("restart app", true);
    held(&mut bench);
    bench.snapshot.group = GroupSignal::Unknown;
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
    assert_eq!(bench.log, ["Fence app 4", "Remove app-fence-4"]);
}

#[test]
fn a_container_that_has_ended_is_part_of_a_group_restart() {
    let mut snapshot = pod_in_cluster();
    let ended = find(&mut snapshot, "app-2");
    (ended.state, ended.finished_at, ended.exit_code) = (State::Exited, Some(at(-1_000)), 137);
    let alone = situation_in_cluster(snapshot);
    let refusal = crate::operation::fixtures::ask("restart app", &alone).unwrap_err();
    assert_eq!(refusal.reason(), "NotRunning");
    let together = crate::operation::preflight::Situation { in_group: true, ..alone };
    let mut bench = Bench::of("restart app", together, Kubelet::Silent);
    bench.operation.group = Some(GroupMembership::new(task(true)));
    bench.snapshot.group = PREPARE;
    held(&mut bench);
    assert_eq!(bench.log, ["Fence app 4"]);
    bench.snapshot.group = STOP;
    held(&mut bench);
    assert_eq!(bench.log[1..], ["Create app 3"]);
}

#[test]
fn only_what_this_program_starts_can_wait_at_a_barrier() {
    let plan = |text: &str| {
        let situation = situation_in_cluster(pod_in_cluster());
        Plan::of(crate::operation::fixtures::ask(text, &situation).unwrap()).check_for_barrier()
    };
    assert_eq!(plan("restart app"), Ok(()));
    let Err(refusal @ Refusal::CannotWait { .. }) = plan("swap app=repo/app:v2") else { panic!() };
    assert!(refusal.to_string().contains("together.barrier: false"), "{refusal}");
}
