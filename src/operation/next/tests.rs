//! Unit tests of `next`: complete operations, with lost responses, failures, other programs and deadlines.

use super::*;
use crate::operation::fixtures::{Answer, Bench, at, find, instance, pod};
use crate::operation::outcome::Withdrawal;
use crate::operation::snapshot::{Owner, State};
use crate::operation::verify::SWAP_SETTLES;

const RESTART: &str = "restart app";
const SWAP: &str = "swap app=repo/app:v2";
const THERE: [&str; 5] =
    ["Pull repo/app:v2", "Fence app 4", "Stop app-2", "Create app 3 of sha:v2", "Start app-3"];

fn bench(text: &str) -> Bench {
    Bench::new(text, pod(Owner::Nobody))
}

fn failure(outcome: &Outcome) -> &Failure {
    match outcome {
        Outcome::Failed { failure, .. } | Outcome::RolledBack(failure) => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restart_is_one_straight_line() {
    let mut bench = bench(RESTART);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let line = ["Fence app 4", "Stop app-2", "Create app 3", "Start app-3", "Remove app-fence-4"];
    assert_eq!(bench.log, line);
    let mut with_handler = pod(Owner::Nobody);
    find(&mut with_handler, "app-2").has_pre_stop = true;
    let mut bench = Bench::new(RESTART, with_handler);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log[..3], ["Fence app 4", "PreStop app-2", "Stop app-2"]);
    // As in a kubelet, a handler is not run without a grace period.
    let mut with_handler = pod(Owner::Nobody);
    find(&mut with_handler, "app-2").has_pre_stop = true;
    let request = r#"{"containers":[{"name":"app"}],"terminationGracePeriodSeconds":0}"#;
    let mut bench = Bench::new(request, with_handler);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log[..2], ["Fence app 4", "Stop app-2"]);
}

#[test]
fn where_no_kubelet_is_the_replacement_is_created_while_the_old_one_runs() {
    let mut with_handler = pod(Owner::NodeRun);
    find(&mut with_handler, "app-2").has_pre_stop = true;
    let mut bench = Bench::new(RESTART, with_handler);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let line =
        ["Fence app 4", "Create app 3", "PreStop app-2", "Stop app-2", "Start app-3", "Remove app-fence-4"];
    assert_eq!(bench.log[..6], line);
}

#[test]
fn what_cannot_be_created_ahead_is_felt_by_nobody() {
    for text in [RESTART, SWAP] {
        let mut bench = Bench::new(text, pod(Owner::NodeRun));
        let outcome = bench.play(|effect, _| match effect.verb() {
            Verb::Create => Answer::No(Class::Refused),
            _ => Answer::Obey,
        });
        assert!(matches!(outcome, Outcome::Failed { touched: false, .. }), "{outcome:?}");
        assert!(matches!(failure(&outcome), Failure::Create { .. }), "{outcome:?}");
        assert!(bench.log.iter().all(|done| !done.starts_with("Stop")), "{:?}", bench.log);
        assert_eq!(bench.snapshot, pod(Owner::NodeRun));
    }
}

#[test]
fn one_created_ahead_goes_when_the_request_is_withdrawn() {
    let mut bench = Bench::new(RESTART, pod(Owner::NodeRun));
    while bench.snapshot.by_id("app-3").is_none() {
        bench.step(&mut |_, _| Answer::Obey);
    }
    bench.operation.withdraw(Withdrawal::Deleted);
    assert_eq!(bench.obey(), Outcome::Cancelled(Withdrawal::Deleted));
    assert_eq!(bench.snapshot, pod(Owner::NodeRun), "{:?}", bench.log);
}

#[test]
fn a_swap_pulls_first_and_watches_longer() {
    let mut bench = bench(SWAP);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log[..5], THERE);
    assert_eq!(bench.log[5..], ["Remove app-fence-4"]);
    let reached = bench.operation.targets[0].reached.clone().unwrap();
    let watched = reached.ready_at.unwrap().duration_since(reached.started_at.unwrap());
    assert!(watched >= SWAP_SETTLES, "{watched}");
}

#[test]
fn lost_replies_change_nothing_but_the_time() {
    for text in [RESTART, SWAP] {
        let mut bench = bench(text);
        let outcome = bench.play(|effect, _| match effect.verb() {
            Verb::Pull => Answer::Obey,
            _ => Answer::Lost,
        });
        assert_eq!(outcome, Outcome::Succeeded, "{text}");
        assert_eq!(bench.log.len(), if text == RESTART { 5 } else { 6 }, "{:?}", bench.log);
    }
}

#[test]
fn withdrawn_before_the_first_touch_nothing_is_felt_and_after_it_it_goes_on() {
    for steps in 0..12 {
        let mut bench = bench(RESTART);
        for _ in 0..steps {
            bench.step(&mut |_, _| Answer::Obey);
        }
        let touched = bench.operation.touched();
        bench.operation.withdraw(Withdrawal::Replaced);
        let outcome = bench.obey();
        if touched {
            assert_eq!(outcome, Outcome::Succeeded);
        } else {
            assert_eq!(outcome, Outcome::Cancelled(Withdrawal::Replaced));
            assert_eq!(bench.snapshot, pod(Owner::Nobody), "{:?}", bench.log);
        }
    }
}

#[test]
fn somebody_elses_next_attempt_is_adopted() {
    for (state, starts) in [(State::Running, false), (State::Created, true)] {
        let mut bench = bench(RESTART);
        let outcome = bench.play(|effect, snapshot| {
            if effect.verb() != Verb::Create {
                return Answer::Obey;
            }
            let mut theirs = instance("app", 3, state);
            (theirs.created_at, theirs.started_at) = (at(100), Some(at(100)));
            snapshot.containers.push(theirs);
            Answer::No(Class::NameTaken)
        });
        assert_eq!(outcome, Outcome::Succeeded);
        // The program that created it gets ten seconds to start it.
        assert_eq!(bench.log.contains(&"Start app-3".to_owned()), starts, "{:?}", bench.log);
        assert_eq!(bench.now >= at(10_000), starts);
    }
}

#[test]
fn what_somebody_else_made_of_another_image_is_not_adopted() {
    let mut bench = bench(SWAP);
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Create && snapshot.by_id("app-3").is_none() {
            snapshot.containers.push(instance("app", 3, State::Running));
            return Answer::No(Class::NameTaken);
        }
        Answer::Obey
    });
    assert!(matches!(failure(&outcome), Failure::Changed { .. }), "{outcome:?}");
    assert_eq!(bench.snapshot.running("app")[0].image_id, "sha:v1");
}

#[test]
fn what_others_did_before_the_touch_ends_it_untouched() {
    for state in [State::Created, State::Running, State::Exited] {
        let mut bench = bench(RESTART);
        find(&mut bench.snapshot, "app-2").state = State::Exited;
        bench.snapshot.containers.push(instance("app", 3, state));
        let outcome = bench.obey();
        let untouched =
            matches!(&outcome, Outcome::Failed { failure: Failure::Changed { .. }, touched: false, .. });
        assert!(untouched && bench.log.is_empty(), "{state}: {outcome:?}, {:?}", bench.log);
    }
}

#[test]
fn what_was_there_when_it_was_taken_up_is_in_nobodys_way() {
    let mut snapshot = pod(Owner::Nobody);
    snapshot.containers.push(instance("app", 5, State::Created));
    let mut bench = Bench::new(RESTART, snapshot);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log[0], "Fence app 7");
}

#[test]
fn one_that_died_by_itself_is_replaced_all_the_same() {
    let mut bench = bench(RESTART);
    find(&mut bench.snapshot, "app-2").state = State::Exited;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log, ["Fence app 4", "Create app 3", "Start app-3", "Remove app-fence-4"]);
}

#[test]
fn a_restart_of_a_removed_container_keeps_its_image() {
    let mut bench = bench(RESTART);
    for id in ["app-0", "app-1"] {
        let older = find(&mut bench.snapshot, id);
        (older.image, older.image_id) = ("repo/app:v0".into(), "sha:v0".into());
    }
    bench.snapshot.containers.retain(|instance| instance.id != "app-2");
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.snapshot.running("app")[0].image_id, "sha:v1");
    bench.snapshot.containers.retain(|instance| instance.name != "app");
    let mut none = Bench { operation: Bench::new(RESTART, pod(Owner::Nobody)).operation, ..bench };
    let outcome = none.obey();
    assert!(matches!(outcome, Outcome::Failed { failure: Failure::Create { .. }, touched: false, .. }));
}

#[test]
fn an_image_that_dies_at_once_leads_back_with_the_next_numbers() {
    let mut bench = bench(SWAP);
    bench.dies = Some(("sha:v2", 600));
    let outcome = bench.obey();
    assert_eq!(
        outcome,
        Outcome::RolledBack(Failure::Exited { container: "app".into(), code: 3, uptime_ms: 600 })
    );
    let back = ["Remove app-fence-4", "Fence app 5", "Create app 4 of sha:v1", "Start app-4"];
    assert_eq!(bench.log[5..9], back);
    assert_eq!(bench.log[9..], ["Remove app-fence-5"]);
}

#[test]
fn on_the_way_back_the_next_fence_stands_before_the_last_one_falls() {
    let mut bench = bench(SWAP);
    bench.dies = Some(("sha:v2", 100));
    assert!(matches!(bench.obey(), Outcome::RolledBack(_)));
    let back = ["Fence app 5", "Remove app-fence-4", "Create app 4 of sha:v1", "Start app-4"];
    assert_eq!(bench.log[5..9], back);
}

#[test]
fn an_image_that_never_starts_gives_its_name_to_the_way_back() {
    let mut bench = bench(SWAP);
    let outcome = bench.play(|effect, snapshot| match effect {
        Effect::Start { id, .. } if snapshot.by_id(id).unwrap().image_id == "sha:v2" => {
            Answer::No(Class::Refused)
        }
        _ => Answer::Obey,
    });
    assert!(matches!(failure(&outcome), Failure::Start { .. }), "{outcome:?}");
    assert!(matches!(outcome, Outcome::RolledBack(_)));
    assert_eq!(bench.log.iter().filter(|line| *line == "Start app-3").count(), 3 + 1);
    let end = ["Remove app-3", "Create app 3 of sha:v1", "Start app-3", "Remove app-fence-4"];
    assert_eq!(bench.log[7..], end);
}

#[test]
fn a_swap_that_cannot_be_created_rolls_back_at_once_and_a_restart_tries_again() {
    for (text, tries) in [(SWAP, 1), (RESTART, 5)] {
        let mut bench = bench(text);
        let outcome = bench.play(|effect, _| match effect {
            Effect::Create { image, .. } if image.as_ref().is_none_or(|image| image.id == "sha:v2") => {
                Answer::No(Class::Refused)
            }
            _ => Answer::Obey,
        });
        assert!(matches!(failure(&outcome), Failure::Create { .. }), "{outcome:?}");
        assert_eq!(matches!(outcome, Outcome::RolledBack(_)), text == SWAP);
        let refused = |line: &&String| line.starts_with("Create app 3") && !line.ends_with("sha:v1");
        assert_eq!(bench.log.iter().filter(refused).count(), tries);
    }
}

#[test]
fn a_creation_believed_lost_is_not_taken_for_the_way_back() {
    let mut bench = bench(SWAP);
    let mut late = None;
    let outcome = bench.play(|effect, snapshot| match effect {
        Effect::Create { image: Some(image), .. } if image.id == "sha:v2" => {
            late = Some(snapshot.clone());
            Answer::No(Class::Refused)
        }
        Effect::Create { .. } if late.take().is_some() => {
            // The first creation is executed now, after all.
            let mut new = instance("app", 3, State::Created);
            new.image_id = "sha:v2".into();
            new.operation = snapshot.fences("app").next().unwrap().operation.clone();
            snapshot.containers.push(new);
            Answer::No(Class::NameTaken)
        }
        _ => Answer::Obey,
    });
    assert!(matches!(outcome, Outcome::RolledBack(_)), "{outcome:?}");
    assert_eq!(bench.snapshot.running("app")[0].image_id, "sha:v1");
    assert!(bench.log.contains(&"Remove app-3".to_owned()));
}

#[test]
fn a_way_back_that_fails_too_says_both() {
    let mut bench = bench(SWAP);
    bench.dies = Some(("sha:v2", 100));
    let outcome = bench.play(|effect, _| match effect {
        Effect::Create { attempt: 4, .. } => Answer::No(Class::Final),
        _ => Answer::Obey,
    });
    let Outcome::Failed { failure, then: Some(then), touched: true } = outcome else { panic!("{outcome:?}") };
    assert!(matches!((failure, then), (Failure::Exited { .. }, Failure::Create { .. })));
    assert_eq!(bench.snapshot.fences("app").count(), 0);
}

#[test]
fn the_way_back_does_not_ask_for_the_ready_seconds_again() {
    let mut bench = bench(
        r#"{"containers":[{"name":"app","image":"repo/app:v2"}],"minReadySeconds":50,"deadlineSeconds":130}"#,
    );
    bench.dies = Some(("sha:v2", 49_000));
    assert!(matches!(bench.obey(), Outcome::RolledBack(_)));
    assert!(bench.now < at(53_000), "{}", bench.now);
}

#[test]
fn keep_leaves_it_as_it_is() {
    let mut bench = bench(r#"{"containers":[{"name":"app","image":"repo/app:v2"}],"onFailure":"Keep"}"#);
    bench.dies = Some(("sha:v2", 600));
    let outcome = bench.obey();
    assert!(matches!(
        outcome,
        Outcome::Failed { failure: Failure::Exited { .. }, then: None, touched: true }
    ));
    assert_eq!(bench.log[5..], ["Remove app-fence-4"]);
}

#[test]
fn the_sandbox_decides_whether_there_is_anything_to_do() {
    type Change = fn(&mut Snapshot);
    let cases: [(Change, &str, &[&str]); 3] = [
        (|s| s.sandbox = None, "gone", &[]),
        (|s| s.sandbox.iter_mut().for_each(|b| b.ready = false), "not ready", &["Remove app-fence-4"]),
        (|s| s.sandbox.iter_mut().for_each(|b| b.id = "other".into()), "replaced", &["Remove app-fence-4"]),
    ];
    for (change, what, after) in cases {
        let mut bench = bench(RESTART);
        let outcome = bench.play(|effect, snapshot| {
            if effect.verb() == Verb::Stop {
                change(snapshot);
            }
            Answer::Obey
        });
        assert_eq!(*failure(&outcome), Failure::Sandbox { what: what.into() });
        assert_eq!(bench.log[2..], *after, "{what}");
    }
}

#[test]
fn two_of_a_name_end_it_without_another_touch() {
    for verb in [Verb::Fence, Verb::Start] {
        let mut bench = bench(SWAP);
        let outcome = bench.play(|effect, snapshot| {
            if effect.verb() == verb {
                let mut twin = instance("app", 0, State::Running);
                twin.id = "twin".into();
                snapshot.containers.push(twin.clone());
                snapshot.containers.push(Container { id: "twin-2".into(), ..twin });
            }
            Answer::Obey
        });
        assert!(matches!(outcome, Outcome::Failed { failure: Failure::Duplicate { .. }, .. }), "{outcome:?}");
        assert_eq!(bench.log.last().unwrap(), "Remove app-fence-4");
        assert_eq!(
            bench.log.iter().filter(|line| line.starts_with("Stop")).count(),
            usize::from(verb == Verb::Start)
        );
    }
}

#[test]
fn nothing_is_started_beside_what_runs_and_nothing_foreign_is_stopped() {
    for verb in [Verb::Stop, Verb::Create] {
        let mut bench = bench(RESTART);
        let outcome = bench.play(|effect, snapshot| {
            if effect.verb() == verb {
                find(snapshot, "app-2").state = State::Exited;
                snapshot.containers.push(instance("app", 6, State::Running));
            }
            if verb == effect.verb() && verb == Verb::Stop { Answer::No(Class::Gone) } else { Answer::Obey }
        });
        assert!(matches!(failure(&outcome), Failure::Changed { .. }), "{outcome:?}");
        assert_eq!(bench.log.contains(&"Create app 3".to_owned()), verb == Verb::Create);
        assert!(
            !bench.log.iter().any(|line| line.starts_with("Start") || line == "Stop app-6"),
            "{:?}",
            bench.log
        );
    }
}

#[test]
fn containers_go_one_by_one_and_return_in_reverse() {
    let mut bench = bench("swap app=repo/app:v2,side=repo/app:v3");
    bench.dies = Some(("sha:v3", 600));
    assert!(matches!(bench.obey(), Outcome::RolledBack(_)));
    let named: Vec<_> = bench.log.iter().filter(|line| line.starts_with("Create")).collect();
    assert_eq!(
        named,
        [
            "Create app 3 of sha:v2",
            "Create side 3 of sha:v3",
            "Create side 4 of sha:v1",
            "Create app 4 of sha:v1"
        ]
    );
    assert_eq!(bench.log[..2], ["Pull repo/app:v2", "Pull repo/app:v3"]);
    let stopped: Vec<_> = bench.log.iter().filter(|line| line.starts_with("Stop")).collect();
    assert_eq!(stopped, ["Stop app-2", "Stop side-2", "Stop app-3"]);
}

#[test]
fn rolled_back_means_that_the_restarted_ones_run_too() {
    let text = r#"{"containers":[{"name":"app","image":"repo/app:v2"},{"name":"side"}]}"#;
    for lasting in [false, true] {
        let mut bench = bench(text);
        let mut refusals = 0;
        let outcome = bench.play(|effect, _| match effect {
            Effect::Create { container, .. } if container == "side" && (lasting || refusals < 5) => {
                refusals += 1;
                Answer::No(Class::Refused)
            }
            _ => Answer::Obey,
        });
        assert_eq!(matches!(outcome, Outcome::RolledBack(_)), !lasting, "{outcome:?}");
        assert_eq!(bench.snapshot.running("side").len(), usize::from(!lasting));
        assert_eq!(refusals, if lasting { 10 } else { 5 });
    }
}

#[test]
fn a_fence_outlives_the_start_by_a_moment() {
    let mut bench = bench(RESTART);
    let mut removed_at = None;
    while bench.step(&mut |_, _| Answer::Obey).is_none() {
        if removed_at.is_none() && bench.log.len() == 5 {
            removed_at = Some(bench.now);
        }
    }
    let started = bench.snapshot.running("app")[0].started_at.unwrap();
    assert!(removed_at.unwrap().duration_since(started) >= SignedDuration::from_millis(250));
}

#[test]
fn cleaning_up_ends_even_if_nothing_can_be_removed() {
    let mut bench = bench("restart app,side");
    let outcome = bench.play(|effect, _| match effect.verb() {
        Verb::Remove => Answer::No(Class::Refused),
        Verb::Start if effect.container() == "side" => Answer::No(Class::Final),
        _ => Answer::Obey,
    });
    assert!(matches!(outcome, Outcome::Failed { .. }));
    assert_eq!(bench.operation.stuck, ["app-fence-4", "side-3", "side-fence-4"]);
    let reported = "a fence of app could not be removed: the runtime said so";
    assert!(bench.operation.remarks.contains(&reported.to_owned()), "{:?}", bench.operation.remarks);
}

#[test]
fn old_instances_are_removed_only_where_no_other_program_removes_them() {
    for (owner, kept) in [(Owner::NodeRun, 2), (Owner::Nobody, 4), (Owner::Kubelet, 4)] {
        let mut bench = Bench::new(RESTART, pod(owner));
        assert_eq!(bench.obey(), Outcome::Succeeded);
        assert_eq!(bench.snapshot.instances("app").len(), kept);
        assert_eq!(bench.snapshot.instances("side").len(), 3);
    }
}

#[test]
fn the_handler_is_begun_once_and_the_stop_gets_what_it_left() {
    let mut snapshot = pod(Owner::Nobody);
    find(&mut snapshot, "app-2").has_pre_stop = true;
    for (takes, timeout) in [(0, 30), (12, 18), (300, 2)] {
        let mut bench = Bench::new(RESTART, snapshot.clone());
        bench.operation.begin(
            &Effect::PreStop { container: "app".into(), id: "app-2".into(), budget_seconds: 30 },
            at(0),
        );
        bench.now = at(takes * 1000);
        let mut stops = Vec::new();
        let outcome = bench.play(|effect, _| {
            if let Effect::Stop { timeout_seconds, .. } = effect {
                stops.push(*timeout_seconds);
            }
            Answer::Obey
        });
        assert_eq!(outcome, Outcome::Succeeded);
        assert_eq!(stops, [timeout]);
        assert!(!bench.log.iter().any(|line| line.starts_with("PreStop")));
    }
}

/// On an overloaded node an observation takes longer than a pulled image is assumed to be there.
#[test]
fn an_image_that_was_pulled_before_a_slow_observation_is_not_pulled_for_ever() {
    let mut bench = bench(SWAP);
    let mut outcome = None;
    while outcome.is_none() {
        bench.snapshot.observed_at = Some(bench.now);
        bench.now += SignedDuration::from_secs(3);
        outcome = bench.step(&mut |_, _| Answer::Obey);
    }
    assert_eq!(outcome, Some(Outcome::Succeeded), "{:?}", bench.log);
    assert!(bench.log.iter().filter(|line| line.starts_with("Pull")).count() <= 3, "{:?}", bench.log);
}

#[test]
fn the_deadline_ends_it_untouched_or_rolls_it_back() {
    // No call gets a response: nothing was touched.
    let mut bench = bench(SWAP);
    let outcome = bench.play(|_, _| Answer::No(Class::Unavailable));
    assert!(matches!(outcome, Outcome::Failed { failure: Failure::Deadline { .. }, touched: false, .. }));
    assert!(bench.now <= bench.operation.deadline_at);
    // A pull that ends too late is not followed by a stop.
    let mut bench = self::bench(SWAP);
    bench.operation.targets[0].pulled = Some(crate::operation::effect::ImageChoice {
        reference: "repo/app:v2".into(),
        id: "sha:v2".into(),
        spec_hash: None,
    });
    bench.now = bench.operation.touch_until();
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::Failed { failure: Failure::Deadline { .. }, touched: false, .. }));
    assert!(bench.log.is_empty());
    // The stop never succeeds: a restart fails, a swap stays on the previous image.
    for text in [RESTART, SWAP] {
        let mut bench = self::bench(text);
        let outcome = bench.play(|effect, _| match effect.verb() {
            Verb::Stop => Answer::No(Class::Unavailable),
            _ => Answer::Obey,
        });
        assert!(matches!(failure(&outcome), Failure::Deadline { .. }), "{outcome:?}");
        assert_eq!(matches!(outcome, Outcome::RolledBack(_)), text == SWAP);
        assert!(bench.now <= bench.operation.deadline_at + SignedDuration::from_secs(1));
    }
}

#[test]
fn a_runtime_that_says_yes_and_does_nothing_is_not_believed_for_ever() {
    for verb in [Verb::Fence, Verb::Stop, Verb::Start] {
        let mut bench = bench(SWAP);
        let mut ended = None;
        for _ in 0..200_000 {
            let undo = bench.snapshot.clone();
            let lines = bench.log.len();
            ended = bench.step(&mut |_, _| Answer::Obey);
            if bench.log.len() > lines && bench.log[lines].starts_with(&format!("{verb:?}")) {
                bench.snapshot = undo;
            }
            if ended.is_some() {
                break;
            }
        }
        assert!(ended.is_some(), "{verb:?}");
    }
}

#[test]
fn what_is_down_may_come_up_after_the_limit_but_nothing_else_is_begun() {
    let mut bench = bench("restart app,side");
    let deadline = bench.operation.deadline_at;
    while !bench.log.contains(&"Stop app-2".to_owned()) {
        assert!(bench.step(&mut |_, _| Answer::Obey).is_none());
    }
    bench.now = deadline + SignedDuration::from_secs(1);
    let outcome = bench.obey();
    assert!(matches!(failure(&outcome), Failure::Deadline { .. }), "{outcome:?}");
    assert_eq!(bench.snapshot.running("app").len(), 1);
    assert_eq!(bench.snapshot.running("side")[0].id, "side-2");
}

#[test]
fn a_pod_that_cannot_be_seen_ends_by_its_deadline() {
    let mut operation = bench(RESTART).operation;
    let late = operation.deadline_at;
    assert_eq!(unseen(&operation, at(0), "no socket"), None);
    let reported = unseen(&operation, late, "no socket").unwrap();
    assert!(failure(&reported).to_string().contains("no socket"));
    operation.withdraw(Withdrawal::Deleted);
    assert_eq!(unseen(&operation, late, "no socket"), Some(Outcome::Cancelled(Withdrawal::Deleted)));
    operation.note(Note::End(Outcome::Succeeded));
    assert_eq!(unseen(&operation, late, "no socket"), Some(Outcome::Succeeded));
}

#[test]
fn the_second_container_waits_until_the_first_is_ready_where_that_is_asked_for() {
    for each_ready in [false, true] {
        let text =
            format!(r#"{{"containers":[{{"name":"app"}},{{"name":"side"}}],"eachReady":{each_ready}}}"#);
        let mut bench = bench(&text);
        while !bench.log.iter().any(|line| line == "Stop side-2") {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
        }
        let first = bench.operation.targets[0].reached.as_ref().unwrap();
        assert_eq!(first.ready_at.is_some(), each_ready, "{:?}", bench.log);
        assert_eq!(bench.obey(), Outcome::Succeeded);
    }
}
