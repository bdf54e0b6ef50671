//! An operation in a group restart: what it does in each phase, and that no container stays stopped.

use super::*;
use crate::failure::Class;
use crate::operation::effect::Effect;
use crate::operation::fixtures::{
    Answer, Bench, Kubelet, ask, at, declared, find, pod_in_cluster, situation_in_cluster,
};
use crate::operation::next::next;
use crate::operation::plan::Plan;
use crate::operation::preflight::Situation;
use crate::operation::snapshot::State;

const PREPARE: GroupSignal = GroupSignal::Phase(GroupPhase::Prepare);
const STOP: GroupSignal = GroupSignal::Phase(GroupPhase::Stop);
const START: GroupSignal = GroupSignal::Phase(GroupPhase::Start);

fn task(barrier: bool) -> GroupTask {
    let (rollout, ended_request) = ("r-1".to_owned(), String::new());
    GroupTask { rollout, epoch: 3, barrier, barrier_timeout_seconds: 60, ended_request, ended_phase: None }
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

/// A pod whose `app` has stopped, and waits at the barrier.
fn at_barrier(kubelet: Kubelet) -> Bench {
    let mut bench = bench("restart app", true);
    bench.kubelet = kubelet;
    held(&mut bench);
    bench.snapshot.group = STOP;
    held(&mut bench);
    bench
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
    assert_eq!(bench.log[2..], ["Fence app 3", "Stop app-2", "Fence side 3", "Stop side-2"]);
    let stopped_at = membership(&bench).stopped_at.unwrap();
    assert_eq!(until, stopped_at + SignedDuration::from_secs(60));
    bench.snapshot.group = START;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let app = ["Remove app-fence-3", "Create app 3", "Start app-3", "Remove app-fence-4"];
    assert_eq!(bench.log[6..10], app);
    assert!(bench.log.contains(&"Start side-3".to_owned()), "{:?}", bench.log);
}

/// The kubelet creates what has ended at once, under the next name if that is free.
#[test]
fn a_prompt_kubelet_starts_nothing_that_waits_at_the_barrier() {
    let mut bench = at_barrier(Kubelet::Prompt);
    assert_eq!(bench.snapshot.running("app").len(), 0, "{:?}", bench.log);
    bench.snapshot.group = START;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.snapshot.running("app").len(), 1, "{:?}", bench.log);
}

/// It might be the only one that can restart the container: the agent may be away.
#[test]
fn a_kubelet_can_restart_what_ends_while_it_is_prepared() {
    let mut bench = bench("restart app", true);
    held(&mut bench);
    assert_eq!(bench.log, ["Fence app 4"], "the name of its next attempt, 3, is free");
}

/// The fence of the next attempt but one is lost with the runtime, and none can be made.
#[test]
fn what_has_stopped_is_started_without_a_fence() {
    let mut bench = at_barrier(Kubelet::Watching);
    bench.snapshot.containers.retain(|container| !container.fence);
    bench.snapshot.group = START;
    let outcome = bench.play(|effect, _| match effect {
        Effect::Fence { .. } => Answer::No(Class::Refused),
        _ => Answer::Obey,
    });
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
}

/// A process that reserves a name may be killed.
#[test]
fn a_fence_that_is_lost_at_the_barrier_is_replaced_by_the_new_container() {
    let mut bench = at_barrier(Kubelet::Watching);
    bench.snapshot.containers.retain(|container| container.id != "app-fence-3");
    held(&mut bench);
    assert_eq!(bench.log[1..], ["Fence app 3", "Stop app-2", "Create app 3"]);
    bench.snapshot.group = START;
    assert_eq!(bench.obey(), Outcome::Succeeded);
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
    // Longer ago than a pod waits at the barrier.
    (ended.state, ended.finished_at, ended.exit_code) = (State::Exited, Some(at(-120_000)), 137);
    let alone = situation_in_cluster(snapshot);
    let refusal = ask("restart app", &alone).unwrap_err();
    assert_eq!(refusal.reason(), "NotRunning");
    let together = Situation { group: Some(task(true)), ..alone };
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
fn a_container_that_cannot_wait_is_refused_by_name() {
    let refusal = |text: &str, task: GroupTask, change: fn(&mut Snapshot)| {
        let mut snapshot = pod_in_cluster();
        change(&mut snapshot);
        let situation = Situation { group: Some(task), ..situation_in_cluster(snapshot) };
        ask(text, &situation).err().map(|refusal| (refusal.reason(), refusal.to_string()))
    };
    let slow: fn(&mut Snapshot) =
        |snapshot| find(snapshot, "app-2").grace = std::time::Duration::from_secs(58);
    assert_eq!(refusal("restart app", task(true), |_| {}), None);
    let follows_objects: fn(&mut Snapshot) = |snapshot| declared(snapshot).env_from_objects = true;
    for (text, change, says) in [
        ("restart app", slow, "may take 58 s to stop"),
        ("restart app,side", |_| {}, "may take 60 s to stop"),
        ("restart app", follows_objects, "or pod.allowStaleEnv: true"),
    ] {
        let (reason, message) = refusal(text, task(true), change).unwrap();
        assert!(reason == "CannotWait" && message.contains(says), "{text}: {message}");
    }
    // Without a barrier nothing waits.
    assert_eq!(refusal("restart app", task(false), slow), None);
    assert_eq!(refusal("restart app", task(false), follows_objects), None);
    let stale = r#"{"containers":[{"name":"app"}],"allowStaleEnv":true}"#;
    assert_eq!(refusal(stale, task(true), follows_objects), None);
}

/// The node has another name of its image, which its spec could get.
#[test]
fn a_group_restart_changes_no_spec() {
    for (text, expected) in [
        ("swap app=repo/app:v2", Err("EngineUnavailable")),
        (r#"{"containers":[{"name":"app"}],"engine":"Respec"}"#, Err("EngineUnavailable")),
        ("restart app", Ok(Engine::Stop)),
    ] {
        let mut snapshot = pod_in_cluster();
        declared(&mut snapshot).env_from_objects = true;
        let alone = situation_in_cluster(snapshot);
        let engine = |situation: &Situation| {
            let engine = |admitted| Plan::of(admitted).containers[0].engine;
            ask(text, situation).map(engine).map_err(|refusal| refusal.reason())
        };
        assert_eq!(engine(&alone), Ok(Engine::Respec), "{text}");
        assert_eq!(engine(&Situation { group: Some(task(false)), ..alone }), expected, "{text}");
    }
}

#[test]
fn a_pod_that_is_not_prepared_in_time_is_left_as_it_is() {
    for signal in [STOP, START] {
        let mut bench = bench("restart app", true);
        bench.snapshot.group = signal;
        assert_eq!(bench.obey(), Outcome::Cancelled(Withdrawal::Unprepared), "{signal:?}");
        assert_eq!(bench.log, Vec::<String>::new());
    }
    // It was prepared too late, while its agent had no contact with the API server.
    let mut late = bench("restart app", true);
    held(&mut late);
    late.snapshot.group = GroupSignal::LeftOut;
    assert_eq!(late.obey(), Outcome::Cancelled(Withdrawal::Unprepared));
    assert!(!late.log.contains(&"Stop app-2".to_owned()), "{:?}", late.log);
}

#[test]
fn when_one_container_of_a_pod_fails_the_others_are_started_first() {
    for (fails, other) in [("side", "app-3"), ("app", "side-3")] {
        let mut bench = bench("restart app,side", true);
        held(&mut bench);
        bench.snapshot.group = STOP;
        let outcome = bench.play(|effect, _| match effect {
            Effect::Create { container, .. } if container == fails => Answer::No(Class::Final),
            _ => Answer::Obey,
        });
        assert!(matches!(outcome, Outcome::Failed { touched: true, .. }), "{outcome:?}");
        assert_eq!(find(&mut bench.snapshot, other).state, State::Running);
    }
}

#[test]
fn a_container_that_cannot_be_fenced_fails_the_preparation() {
    let mut bench = bench("restart app,side", true);
    let outcome = bench.play(|effect, _| match effect {
        Effect::Fence { container, .. } if container == "side" => Answer::No(Class::Final),
        _ => Answer::Obey,
    });
    assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
    assert_eq!(bench.log.iter().filter(|effect| effect.starts_with("Stop")).count(), 0, "{:?}", bench.log);
}
