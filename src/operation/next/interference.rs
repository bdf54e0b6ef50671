//! Unit tests of `next`: other programs change the pod, the node or the clock during an operation.

use jiff::SignedDuration;

use crate::api::annotation;
use crate::api::status::Phase;
use crate::failure::Class;
use crate::operation::effect::{Effect, Verb};
use crate::operation::fixtures::{Answer, Bench, Kubelet, at, find, instance, pod};
use crate::operation::next::unseen;
use crate::operation::note::Note;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::snapshot::{Container, Gate, Owner, Snapshot, State};

const RESTART: &str = "restart app";
const DRAINED_RESTART: &str = r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":20}"#;
const DRAINED_SWAP: &str =
    r#"{"containers":[{"name":"app","image":"repo/app:v2"}],"gracePeriodSeconds":20,"engine":"Respec"}"#;

fn gate(bench: &Bench) -> Gate {
    bench.snapshot.declared.as_ref().unwrap().gate.clone()
}

fn count(bench: &Bench, line: &str) -> usize {
    bench.log.iter().filter(|done| done.starts_with(line)).count()
}

/// Gives the pod a new sandbox, in which a kubelet has started `app` from `image_id`.
pub(in crate::operation) fn move_pod(snapshot: &mut Snapshot, image_id: &str) {
    let sandbox = snapshot.sandbox.as_mut().unwrap();
    (sandbox.id, sandbox.ready) = ("sandbox-2".into(), true);
    let spec_hash = find(snapshot, "side-2").spec_hash.clone();
    snapshot.containers = ["app", "side"].map(|name| instance(name, 3, State::Running)).into();
    for container in &mut snapshot.containers {
        container.id = format!("{}-new", container.name);
        container.spec_hash.clone_from(&spec_hash);
        (container.created_at, container.started_at) = (at(25_000), Some(at(25_000)));
    }
    find(snapshot, "app-new").image_id = image_id.into();
}

/// The container ends by itself while its fence is created, and is collected: of those that do not run, the fence is the newest.
#[test]
fn a_container_that_is_collected_before_the_first_touch_is_restarted_once_its_kubelet_has_started_it() {
    for attempt in [0, 3] {
        let mut bench = Bench::new(RESTART, pod(Owner::Kubelet));
        while bench.log.is_empty() {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        assert_eq!(bench.log, ["Fence app 4"]);
        bench.snapshot.containers.retain(|container| container.name != "app" || container.fence);
        find(&mut bench.snapshot, "app-fence-4").holder = true;
        for _ in 0..20 {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        assert_eq!(bench.log.len(), 1, "{:?}", bench.log);
        let (next, now) = (instance("app", attempt, State::Running), bench.now);
        bench.snapshot.containers.push(Container { created_at: now, started_at: Some(now), ..next });
        assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
        let running = bench.snapshot.running("app");
        assert_eq!((running.len(), running[0].attempt), (1, attempt + 1), "{:?}", bench.log);
        assert!(bench.snapshot.fences("app").next().is_none());
    }
}

#[test]
fn an_image_pulled_long_before_the_first_touch_is_asked_for_again() {
    let mut bench = Bench::beside(Kubelet::Prompt, DRAINED_SWAP);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let line =
        ["Pull repo/app:v2", "Gate Drain", "Pull repo/app:v2", "Fence app 4", "Respec app repo/app:v2"];
    assert_eq!(bench.log[..5], line, "{:?}", bench.log);
}

#[test]
fn an_image_that_is_gone_and_cannot_be_pulled_again_ends_it_untouched() {
    let mut bench = Bench::beside(Kubelet::Prompt, DRAINED_SWAP);
    let mut pulls = 0;
    let outcome = bench.play(|effect, _| {
        pulls += u32::from(effect.verb() == Verb::Pull);
        if effect.verb() == Verb::Pull && pulls > 1 { Answer::No(Class::Final) } else { Answer::Obey }
    });
    let untouched = matches!(&outcome, Outcome::Failed { failure: Failure::Pull { .. }, touched: false, .. });
    assert!(untouched, "{outcome:?}");
    assert_eq!((count(&bench, "Respec"), gate(&bench)), (0, Gate::Open), "{:?}", bench.log);
}

#[test]
fn a_pod_that_was_rebooted_under_a_drained_restart_takes_traffic_again() {
    let mut bench = Bench::beside(Kubelet::Watching, DRAINED_RESTART);
    while bench.operation.targets[0].stopped_at.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.snapshot.sandbox.as_mut().unwrap().ready = false;
    for _ in 0..10 {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.operation.ending);
    }
    move_pod(&mut bench.snapshot, "sha:v1");
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!((gate(&bench), count(&bench, "Create")), (Gate::Open, 0), "{:?}", bench.log);
}

#[test]
fn a_swap_in_a_new_sandbox_is_judged_by_the_image() {
    let cases = [("sha:v2", Phase::Succeeded), ("sha:v1", Phase::RolledBack), ("sha:v3", Phase::Failed)];
    for (image, phase) in cases {
        let mut bench = Bench::beside(Kubelet::Watching, DRAINED_SWAP);
        let mut moved = false;
        while !moved {
            let ended = bench.step(&mut |effect, snapshot| {
                if effect.verb() == Verb::Respec {
                    move_pod(snapshot, image);
                    moved = true;
                }
                Answer::Obey
            });
            assert_eq!(ended, None);
        }
        let outcome = bench.obey();
        assert_eq!(outcome.phase(), phase, "{outcome:?}");
        let closed = Gate::Closed { reason: annotation::GATE_FAILED.into() };
        assert_eq!(gate(&bench), if phase == Phase::Failed { closed } else { Gate::Open });
    }
}

/// The new image fails there, or has failed before. Then the pod's spec is all that is changed.
#[test]
fn a_swap_that_fails_is_rolled_back_in_a_new_sandbox() {
    for has_failed in [false, true] {
        let mut bench = Bench::beside(Kubelet::Watching, DRAINED_SWAP);
        play_until(&mut bench, Verb::Respec);
        if has_failed {
            let failure = Failure::NotReady { container: "app".into(), seconds: 1 };
            bench.operation.note(Note::RollBack(failure));
        }
        move_pod(&mut bench.snapshot, "sha:v2");
        find(&mut bench.snapshot, "app-new").state = State::Exited;
        let begun = bench.log.len();
        let outcome = bench.play(|effect, snapshot| {
            if effect.verb() == Verb::Respec {
                let new = find(snapshot, "app-new");
                (new.state, new.image_id) = (State::Running, "sha:v1".into());
            }
            Answer::Obey
        });
        assert!(matches!(outcome, Outcome::RolledBack(_)), "{outcome:?} {:?}", bench.log);
        assert_eq!(bench.log[begun..], ["Respec app repo/app:v1", "Gate Open"]);
        assert!(bench.now < bench.operation.deadline_at);
    }
}

/// Its kubelet starts all containers in the new sandbox: those that were swapped with the new image, the others with the
/// previous one.
#[test]
fn a_pod_that_is_half_swapped_when_it_gets_a_new_sandbox_is_rolled_back() {
    let text = r#"{"containers":[{"name":"app","image":"repo/app:v2"},{"name":"side","image":"repo/app:v2"}],
        "engine":"Respec","eachReady":true}"#;
    let mut bench = Bench::beside(Kubelet::Watching, text);
    play_until(&mut bench, Verb::Respec);
    move_pod(&mut bench.snapshot, "sha:v2");
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Respec {
            find(snapshot, "app-new").image_id = "sha:v1".into();
        }
        Answer::Obey
    });
    let is_lost = matches!(outcome, Outcome::RolledBack(Failure::Sandbox { .. }));
    assert!(is_lost, "{outcome:?} {:?}", bench.log);
    let changes: Vec<_> = bench.log.iter().filter(|line| line.starts_with("Respec")).collect();
    assert_eq!(changes, ["Respec app repo/app:v2", "Respec app repo/app:v1"]);
}

#[test]
fn a_container_that_restarts_by_itself_before_the_touch_is_replaced_then() {
    for engine in ["Recreate", "Stop"] {
        let text = format!(r#"{{"containers":[{{"name":"app"}}],"engine":"{engine}"}}"#);
        let mut bench = Bench::beside(Kubelet::Prompt, &text);
        let crashed = find(&mut bench.snapshot, "app-2");
        (crashed.state, crashed.finished_at, crashed.exit_code) = (State::Exited, Some(at(0)), 1);
        let outcome = bench.obey();
        assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
        assert_eq!(bench.snapshot.running("app")[0].attempt, 4, "{:?}", bench.log);
        assert_eq!(count(&bench, "Stop app-3"), 1, "{:?}", bench.log);
    }
}

#[test]
fn a_container_that_crashes_all_the_time_ends_the_request_untouched() {
    let mut bench = Bench::beside(Kubelet::Prompt, RESTART);
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() != Verb::Fence {
            return Answer::Obey;
        }
        let id = snapshot.running("app")[0].id.clone();
        let crashed = find(snapshot, &id);
        (crashed.state, crashed.finished_at, crashed.exit_code) = (State::Exited, Some(at(1)), 1);
        Answer::No(Class::Unavailable)
    });
    let untouched =
        matches!(&outcome, Outcome::Failed { failure: Failure::Changed { .. }, touched: false, .. });
    assert!(untouched, "{outcome:?}");
}

#[test]
fn nothing_is_created_in_a_pod_that_its_kubelet_ends() {
    for at_verb in [Verb::PreStop, Verb::Stop] {
        let mut bench = Bench::beside(Kubelet::Watching, RESTART);
        find(&mut bench.snapshot, "app-2").has_pre_stop = true;
        bench.operation.targets[0].has_pre_stop = true;
        let outcome = bench.play(|effect, snapshot| {
            if effect.verb() == at_verb {
                snapshot.declared.as_mut().unwrap().ending = Some("Failed (DeadlineExceeded)".into());
            }
            Answer::Obey
        });
        let Outcome::Failed { failure, touched: true, .. } = &outcome else { panic!("{outcome:?}") };
        assert!(failure.to_string().contains("DeadlineExceeded"), "{failure}");
        assert_eq!((count(&bench, "Create"), count(&bench, "Start")), (0, 0), "{:?}", bench.log);
        assert_eq!(bench.snapshot.fences("app").count(), 0, "{:?}", bench.log);
    }
}

#[test]
fn a_clock_that_jumps_while_a_container_is_down_does_not_keep_it_down() {
    for last in [Verb::Stop, Verb::Create] {
        let mut bench = Bench::beside(Kubelet::Watching, RESTART);
        let mut done = false;
        while !done {
            let mut world = |effect: &Effect, _: &mut Snapshot| {
                done = effect.verb() == last;
                Answer::Obey
            };
            assert_eq!(bench.step(&mut world), None);
        }
        let jump = SignedDuration::from_hours(5);
        bench.now += jump;
        bench.operation.shift(jump);
        assert_eq!(bench.obey(), Outcome::Succeeded, "{last:?}: {:?}", bench.log);
    }
}

/// Runs the operation until `verb` was executed.
fn play_until(bench: &mut Bench, verb: Verb) {
    let mut done = false;
    while !done {
        let mut world = |effect: &Effect, _: &mut Snapshot| {
            done = effect.verb() == verb;
            Answer::Obey
        };
        assert_eq!(bench.step(&mut world), None);
    }
}

/// While the process is frozen or the runtime is away, the program cannot act. No kubelet restarts these containers.
#[test]
fn a_container_of_node_run_comes_up_again_however_late_it_is() {
    for text in [RESTART, "swap app=repo/app:v2"] {
        for last in [Verb::PreStop, Verb::Stop, Verb::Create] {
            for away in [false, true] {
                let mut pod = pod(Owner::NodeRun);
                find(&mut pod, "app-2").has_pre_stop = true;
                let mut bench = Bench::new(text, pod);
                play_until(&mut bench, Verb::PreStop);
                if last != Verb::PreStop {
                    play_until(&mut bench, Verb::Stop);
                }
                if last == Verb::Create {
                    // The container that was created ahead was lost.
                    bench.snapshot.containers.retain(|container| container.id != "app-3");
                    play_until(&mut bench, Verb::Create);
                }
                bench.now += SignedDuration::from_hours(1);
                let mut left = if away { 3 } else { 0 };
                let outcome = bench.play(|_, _| {
                    left -= i32::from(left > 0);
                    if left > 0 { Answer::No(Class::Unavailable) } else { Answer::Obey }
                });
                let what = format!("{text}, {last:?}, away: {away}: {outcome:?} {:?}", bench.log);
                let running = bench.snapshot.running("app");
                assert_eq!(running.len(), 1, "{what}");
                assert!(running[0].attempt > 2, "{what}");
            }
        }
    }
}

/// Nothing else starts it once the runtime answers again.
#[test]
fn a_container_of_node_run_that_is_down_is_not_given_up_while_the_runtime_does_not_answer() {
    for (owner, waits) in [(Owner::NodeRun, true), (Owner::Nobody, false)] {
        let mut bench = Bench::new(RESTART, pod(owner));
        play_until(&mut bench, Verb::Stop);
        let late = bench.operation.deadline_at + SignedDuration::from_hours(1);
        assert_eq!(unseen(&bench.operation, late, "no socket").is_none(), waits);
        let mut ending = bench.operation.clone();
        ending.note(Note::End(Outcome::Succeeded));
        assert_eq!(unseen(&ending, late, "no socket"), Some(Outcome::Succeeded));
        while bench.operation.targets[0].reached.is_none() {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        assert!(unseen(&bench.operation, late, "no socket").is_some());
    }
}

/// The same in the rollback of a swap.
#[test]
fn a_way_back_of_node_run_is_gone_to_its_end_however_late_it_is() {
    for away in [false, true] {
        let mut bench = Bench::new("swap app=repo/app:v2", pod(Owner::NodeRun));
        bench.dies = Some(("sha:v2", 100));
        while bench.operation.rollback_cause.is_none() {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        bench.now += SignedDuration::from_hours(1);
        let mut left = if away { 3 } else { 0 };
        let outcome = bench.play(|_, _| {
            left -= i32::from(left > 0);
            if left > 0 { Answer::No(Class::Unavailable) } else { Answer::Obey }
        });
        let running = bench.snapshot.running("app");
        assert_eq!(running.len(), 1, "{outcome:?} {:?}", bench.log);
        assert_eq!(running[0].image_id, "sha:v1", "{outcome:?} {:?}", bench.log);
    }
}

/// A refused effect is given up even then, which ends the operation.
#[test]
fn a_container_of_node_run_that_cannot_be_started_ends_it_late_too() {
    let mut bench = Bench::new(RESTART, pod(Owner::NodeRun));
    play_until(&mut bench, Verb::Stop);
    bench.now += SignedDuration::from_hours(1);
    let outcome = bench.play(|effect, _| match effect.verb() {
        Verb::Start => Answer::No(Class::Refused),
        _ => Answer::Obey,
    });
    let given_up = matches!(&outcome, Outcome::Failed { failure: Failure::Start { .. }, touched: true, .. });
    assert!(given_up, "{outcome:?} {:?}", bench.log);
}

/// Time passed between the decision to start and the start: the holder has ended, and the kubelet has created the
/// next container instance.
#[test]
fn of_two_container_instances_that_are_seen_late_one_stays() {
    for late in [SignedDuration::from_secs(61), SignedDuration::from_hours(1)] {
        for ending in [false, true] {
            let mut bench = Bench::beside(Kubelet::Watching, RESTART);
            let mut frozen = false;
            while !frozen {
                let deadline = bench.operation.deadline_at;
                let mut world = |effect: &Effect, snapshot: &mut Snapshot| {
                    frozen = effect.verb() == Verb::Start;
                    if frozen {
                        snapshot.containers.retain(|container| !container.fence);
                        let mut theirs = instance("app", 4, State::Running);
                        (theirs.created_at, theirs.started_at) = (deadline, Some(deadline));
                        theirs.spec_hash = find(snapshot, "app-2").spec_hash.clone();
                        snapshot.containers.push(theirs);
                    }
                    Answer::Obey
                };
                assert_eq!(bench.step(&mut world), None);
            }
            bench.now = bench.operation.deadline_at + late;
            if ending {
                let failed = bench.operation.late("Swap");
                bench.operation.note(Note::End(bench.operation.failed(failed)));
            }
            let mut refusals = 2;
            let outcome = bench.play(|effect, _| {
                refusals -= i32::from(effect.verb() == Verb::Stop && refusals > 0);
                if effect.verb() == Verb::Stop && refusals > 0 {
                    Answer::No(Class::Unavailable)
                } else {
                    Answer::Obey
                }
            });
            let running: Vec<_> = bench.snapshot.running("app").iter().map(|one| one.attempt).collect();
            assert_eq!(running, [4], "late: {late}, ending: {ending}: {outcome:?} {:?}", bench.log);
        }
    }
}

/// A runtime never responds: the request ends, and a person has to resolve it.
#[test]
fn of_two_container_instances_that_cannot_be_ended_both_stay_and_the_request_ends() {
    let mut bench = Bench::beside(Kubelet::Watching, RESTART);
    play_until(&mut bench, Verb::Start);
    bench.snapshot.containers.retain(|container| !container.fence);
    let mut theirs = instance("app", 4, State::Running);
    (theirs.created_at, theirs.started_at) = (bench.now, Some(bench.now));
    bench.snapshot.containers.push(theirs);
    let outcome = bench.play(|effect, _| match effect.verb() {
        Verb::Stop => Answer::No(Class::Unavailable),
        _ => Answer::Obey,
    });
    assert!(matches!(outcome, Outcome::Failed { touched: true, .. }), "{outcome:?}");
    let late = bench.now.duration_since(bench.operation.deadline_at);
    assert!(late < SignedDuration::from_secs(90), "{late}: {:?}", bench.log);
}

/// Timestamps that the runtime took earlier then lie in the future.
#[test]
fn a_clock_that_is_set_back_takes_nothing_from_a_good_container() {
    for text in [RESTART, "swap app=repo/app:v2"] {
        for owner in [Owner::NodeRun, Owner::Nobody] {
            for last in [Verb::Fence, Verb::Stop, Verb::Create, Verb::Start] {
                let mut bench = Bench::new(text, pod(owner));
                play_until(&mut bench, last);
                if last == Verb::Start {
                    while bench.operation.targets[0].reached.is_none() {
                        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
                    }
                }
                let back = SignedDuration::from_hours(-1);
                bench.now += back;
                bench.operation.shift(back);
                let left = bench.operation.deadline_at.duration_since(bench.now);
                assert!(bench.operation.forward_until() <= bench.operation.deadline_at);
                assert_eq!(bench.obey(), Outcome::Succeeded, "{text}, {last:?}: {:?}", bench.log);
                let took = left - bench.operation.deadline_at.duration_since(bench.now);
                assert!(took < SignedDuration::from_secs(5), "{text}, {last:?}: {took}");
            }
        }
    }
}

/// Also when the clock was set back between the start and the first observation of the new instance.
#[test]
fn a_start_that_is_stamped_in_the_future_counts_from_when_it_was_first_seen() {
    let mut bench = Bench::new("swap app=repo/app:v2", pod(Owner::Nobody));
    play_until(&mut bench, Verb::Start);
    let back = SignedDuration::from_hours(-1);
    bench.now += back;
    bench.operation.shift(back);
    let seen = bench.now;
    assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
    assert!(bench.now.duration_since(seen) < SignedDuration::from_secs(5), "{:?}", bench.log);
}

/// The kubelet's head start counts from the end of the previous instance, which appears to lie in the future.
#[test]
fn a_clock_that_is_set_back_does_not_hold_the_help_for_a_kubelet_back() {
    let mut bench =
        Bench::beside(Kubelet::HoldingBack, r#"{"containers":[{"name":"app","image":"repo/app:v2"}]}"#);
    // Long before: a kubelet takes the container that was created last for the newest.
    let long_ago = |container: &mut Container| container.created_at = at(-20_000_000);
    bench.snapshot.containers.iter_mut().for_each(long_ago);
    while bench.snapshot.by_id("app-2").is_some_and(|old| old.state == State::Running) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    let back = SignedDuration::from_hours(-1);
    bench.now += back;
    bench.operation.shift(back);
    let seen = bench.now;
    assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
    assert!(bench.now.duration_since(seen) < SignedDuration::from_secs(10), "{:?}", bench.log);
}
