//! Unit tests of starts of a new instance that were cut off or refused.

use super::*;

/// Makes the first `times` starts end before they begin, as a runtime does when its caller is cut off.
fn cut_off(times: usize, answer: Class) -> impl FnMut(&Effect, &mut Snapshot) -> Answer {
    let mut starts = 0;
    move |effect, snapshot| {
        let Effect::Start { id, .. } = effect else { return Answer::Obey };
        starts += 1;
        if starts > times {
            return Answer::Obey;
        }
        let instance = find(snapshot, id);
        (instance.state, instance.finished_at, instance.exit_code) = (State::Exited, Some(at(0)), 128);
        Answer::No(answer)
    }
}

#[test]
fn a_start_that_was_cut_off_is_made_again_under_the_same_name() {
    for text in [RESTART, SWAP] {
        let mut it = bench(text);
        assert_eq!(it.play(cut_off(1, Class::Unavailable)), Outcome::Succeeded, "{text}");
        let again: Vec<_> = it.log.iter().skip_while(|line| *line != "Start app-3").skip(1).collect();
        let create = if text == RESTART { "Create app 3" } else { "Create app 3 of sha:v2" };
        assert_eq!(again, ["Remove app-3", create, "Start app-3", "Remove app-fence-4"]);
    }
    // The runtime died during the start, and the container that it left cannot be started.
    let mut killed = bench(RESTART);
    let (mut lost, mut left) = (0, cut_off(1, Class::Refused));
    let outcome = killed.play(|effect, snapshot| {
        lost += i32::from(effect.verb() == Verb::Start);
        if lost == 1 && effect.verb() == Verb::Start {
            Answer::No(Class::Unavailable)
        } else {
            left(effect, snapshot)
        }
    });
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(killed.log.iter().filter(|line| *line == "Start app-3").count(), 3, "{:?}", killed.log);
    // The process that requested the start is gone, and the response with it.
    let mut it = bench(RESTART);
    let mut world = cut_off(1, Class::Refused);
    while it.operation.last_failure.is_none() {
        assert_eq!(it.step(&mut world), None);
    }
    it.operation.resume(it.now);
    assert_eq!(it.obey(), Outcome::Succeeded);
}

/// containerd keeps the task of such a start, and refuses to remove its container.
#[test]
fn what_was_cut_off_and_cannot_be_removed_is_left_and_the_next_attempt_is_made() {
    for (text, owner) in
        [(RESTART, Owner::Nobody), (SWAP, Owner::Nobody), (RESTART, Owner::NodeRun), (SWAP, Owner::NodeRun)]
    {
        let mut it = Bench::new(text, pod(owner));
        let mut start = cut_off(1, Class::Unavailable);
        let outcome = it.play(|effect, snapshot| match effect {
            Effect::Remove { id, .. } if id == "app-3" => Answer::No(Class::Refused),
            _ => start(effect, snapshot),
        });
        assert_eq!(outcome, Outcome::Succeeded, "{text} {owner:?}: {:?}", it.log);
        let starts: Vec<_> = it.log.iter().filter(|line| line.starts_with("Start")).collect();
        assert_eq!(starts, ["Start app-3", "Start app-4"], "{:?}", it.log);
        assert_eq!(it.snapshot.running("app")[0].attempt, 4);
        assert_eq!(it.snapshot.fences("app").count(), 0, "{:?}", it.log);
    }
}

/// A kubelet that observes the end of the new instance collects the older ones of its name. The process that had read their
/// configuration is gone too.
#[test]
fn what_was_cut_off_is_kept_while_it_alone_has_the_configuration() {
    let mut it = bench(RESTART);
    let mut start = cut_off(1, Class::Unavailable);
    let outcome = it.play(|effect, snapshot| {
        let answer = start(effect, snapshot);
        if matches!(effect, Effect::Start { id, .. } if id == "app-3") {
            snapshot.containers.retain(|container| container.name != "app" || container.attempt >= 3);
            snapshot
                .containers
                .iter_mut()
                .filter(|container| container.fence)
                .for_each(|fence| fence.holder = true);
        }
        answer
    });
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", it.log);
    assert!(!it.log.iter().any(|line| line == "Remove app-3"), "{:?}", it.log);
    let running = it.snapshot.running("app");
    assert_eq!(
        (running.len(), running[0].attempt, running[0].image_id.as_str()),
        (1, 4, "sha:v1"),
        "{:?}",
        it.log
    );
    assert_eq!(it.snapshot.fences("app").count(), 0, "{:?}", it.log);
}

/// A kubelet that observed the created container requests the fence's name a moment after the container is gone.
#[test]
fn the_fence_outlives_what_was_created_in_vain() {
    let mut it = bench(RESTART);
    let mut never = |effect: &Effect, _: &mut Snapshot| match effect.verb() {
        Verb::Start => Answer::No(Class::Refused),
        _ => Answer::Obey,
    };
    let mut until = |it: &mut Bench, line: &str| {
        while it.log.last().is_none_or(|last| last != line) {
            assert_eq!(it.step(&mut never), None, "{:?}", it.log);
        }
        it.now
    };
    let removed = until(&mut it, "Remove app-3");
    let unfenced = until(&mut it, "Remove app-fence-4");
    assert!(unfenced.duration_since(removed) >= STAYS_AFTER_START, "{:?}", it.log);
}

#[test]
fn where_nobody_else_starts_it_a_restart_is_started_again_a_few_times() {
    for (owner, refusals, starts, outcome) in [
        (Owner::NodeRun, 1, 2, "Succeeded"),
        (Owner::NodeRun, 2, 3, "Succeeded"),
        (Owner::NodeRun, 3, 3, "Failed"),
        (Owner::Nobody, 1, 1, "Failed"),
    ] {
        let mut it = Bench::new(RESTART, pod(owner));
        let ended = it.play(cut_off(refusals, Class::Refused));
        assert_eq!(ended.phase().to_string(), outcome, "{owner:?} {refusals}: {ended:?}");
        assert_eq!(it.log.iter().filter(|line| *line == "Start app-3").count(), starts, "{:?}", it.log);
        if let Outcome::Failed { failure, .. } = &ended {
            assert!(matches!(failure, Failure::Start { .. }), "{failure:?}");
        }
    }
}

#[test]
fn a_start_that_was_refused_is_not_made_again_and_one_that_is_always_cut_off_ends() {
    let mut refused = bench(SWAP);
    let outcome = refused.play(cut_off(1, Class::Refused));
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Start { .. })), "{outcome:?}");
    for text in [RESTART, SWAP] {
        let mut never = bench(text);
        let outcome = never.play(cut_off(usize::MAX, Class::Unavailable));
        assert!(matches!(outcome, Outcome::Failed { touched: true, .. }), "{outcome:?}");
        assert!(never.now <= never.operation.deadline_at + SignedDuration::from_secs(10), "{}", never.now);
    }
}
