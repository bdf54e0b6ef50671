//! Unit tests of `respec` beside a kubelet that receives the change of the spec late.

use super::tests::{RESTART, SWAP};
use super::*;
use crate::failure::Class;
use crate::operation::fixtures::{Answer, Bench, Kubelet, find};
use crate::operation::outcome::Outcome;

/// Ends an instance.
fn end(snapshot: &mut Snapshot, id: &str, at: Timestamp, code: i32) {
    let instance = find(snapshot, id);
    (instance.state, instance.finished_at, instance.exit_code) = (State::Exited, Some(at), code);
}

/// Ends the instance that replaces `app-2`. False while there is none.
fn stops_new(bench: &mut Bench, code: i32) -> bool {
    let new = bench.snapshot.running("app").first().map(|instance| instance.id.clone());
    let Some(id) = new.filter(|id| id != "app-2") else { return false };
    end(&mut bench.snapshot, &id, bench.now, code);
    true
}

/// A kubelet works with the old spec and stops what was created from the new one.
#[test]
fn what_a_late_kubelet_ends_is_made_again_once() {
    for (times, remade) in [(1, false), (1, true), (2, false)] {
        let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
        let mut left = times;
        let outcome = loop {
            if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
                break outcome;
            }
            if left > 0 && stops_new(&mut bench, 0) {
                left -= 1;
                bench.kubelet = if remade { Kubelet::Prompt } else { Kubelet::HoldingBack };
            }
        };
        if times == 1 {
            assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
            let running = bench.snapshot.running("app");
            assert_eq!((running.len(), running[0].attempt, running[0].image_id.as_str()), (1, 4, "sha:v2"));
            assert_eq!(running[0].operation.is_none(), remade);
        } else {
            assert!(matches!(outcome, Outcome::RolledBack(Failure::Exited { .. })), "{outcome:?}");
        }
    }
}

/// What a late kubelet stops is made again once, also if it was created late, and a restart with any exit code.
#[test]
fn a_stop_by_a_late_kubelet_is_not_a_failure() {
    for (text, was_down, code, is_failure) in [
        (SWAP, true, 143, false),
        (SWAP, false, 130, true),
        (RESTART, false, 130, false),
        (RESTART, true, 143, false),
    ] {
        let mut bench = Bench::beside(Kubelet::HoldingBack, text);
        let (mut now, mut left) = (bench.now, 1);
        let outcome = loop {
            let ended = bench.step(&mut |effect, snapshot| {
                if was_down && effect.verb() == Verb::Fence && left == 1 {
                    end(snapshot, "app-2", now, 1);
                }
                Answer::Obey
            });
            now = bench.now;
            if let Some(outcome) = ended {
                break outcome;
            }
            if left > 0 && stops_new(&mut bench, code) {
                left = 0;
            }
        };
        let failed = matches!(outcome, Outcome::RolledBack(Failure::Exited { .. }));
        assert_eq!(failed, is_failure, "{text} {was_down} {code}: {outcome:?}: {:?}", bench.log);
        assert!(failed || outcome == Outcome::Succeeded, "{text} {was_down} {code}: {outcome:?}");
    }
}

/// Its exit code is that of no stop, so no kubelet has stopped it.
#[test]
fn an_image_that_fails_at_once_is_created_once_and_taken_back_at_once() {
    let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
    bench.dies = Some(("sha:v2", 5));
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Exited { code: 3, .. })), "{outcome:?}");
    assert_eq!(bench.log.iter().filter(|line| line.starts_with("Create app")).count(), 2, "{:?}", bench.log);
    let failed_at = bench.snapshot.by_id("app-3").unwrap().finished_at.unwrap();
    let took = bench.snapshot.running("app")[0].started_at.unwrap().duration_since(failed_at);
    assert!(took.as_millis() < 200, "{took:?}: {:?}", bench.log);
}

/// Of a container that was down at the change, nothing shows that the kubelet has received the change: it would stop what
/// is created here.
#[test]
fn a_kubelet_has_longer_to_start_a_container_that_was_down_before_the_change() {
    let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
    let mut now = bench.now;
    let outcome = loop {
        let ended = bench.step(&mut |effect, snapshot| {
            if effect.verb() == Verb::Fence {
                end(snapshot, "app-2", now, 1);
            }
            Answer::Obey
        });
        now = bench.now;
        if let Some(outcome) = ended {
            break outcome;
        }
    };
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    let changed_at = bench.operation.targets[0].replacement().respec_at.unwrap();
    let new = bench.snapshot.running("app")[0];
    let waited = new.started_at.unwrap().duration_since(changed_at);
    assert!((2000..2100).contains(&waited.as_millis()), "{waited:?}: {:?}", bench.log);
}

/// A change that was refused touched nothing: only the last one counts.
#[test]
fn a_container_that_crashes_after_a_refused_change_was_down_before_the_change() {
    let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
    let mut now = bench.now;
    let mut refused = false;
    let outcome = loop {
        let ended = bench.step(&mut |effect, snapshot| {
            if effect.verb() != Verb::Respec || refused {
                return Answer::Obey;
            }
            refused = true;
            end(snapshot, "app-2", now + SignedDuration::from_millis(20), 1);
            Answer::No(Class::NotSent)
        });
        now = bench.now;
        if let Some(outcome) = ended {
            break outcome;
        }
    };
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    let changed_at = bench.operation.targets[0].replacement().respec_at.unwrap();
    let waited = bench.snapshot.running("app")[0].started_at.unwrap().duration_since(changed_at);
    assert!(waited.as_millis() >= 2000, "{waited:?}: {:?}", bench.log);
}

/// The API server was away, and the kubelet's watch resumes later than the agent's.
#[test]
fn a_rollback_waits_for_a_kubelet_that_observes_the_change_late() {
    let mut bench = Bench::beside(Kubelet::Prompt, SWAP);
    bench.dies = Some(("sha:v2", 100));
    while bench.operation.rollback_cause.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.kubelet = Kubelet::Watching;
    let observes_at = bench.now + SignedDuration::from_secs(30);
    let mut ended = 0;
    let outcome = loop {
        if let Some(outcome) = bench.step(&mut |_, _| Answer::Obey) {
            break outcome;
        }
        let now = bench.now;
        let ours = bench
            .snapshot
            .running("app")
            .first()
            .map(|instance| (instance.id.clone(), instance.started_at.unwrap()));
        match ours {
            Some((id, started))
                if now < observes_at && now > later(started, SignedDuration::from_millis(500)) =>
            {
                end(&mut bench.snapshot, &id, now, 0);
                ended += 1;
            }
            _ if now >= observes_at => bench.kubelet = Kubelet::Prompt,
            _ => {}
        }
    };
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Exited { .. })), "{outcome:?}, {:?}", bench.log);
    assert_eq!(bench.snapshot.running("app")[0].image_id, "sha:v1");
    assert!((3..=6).contains(&ended), "{ended}: {:?}", bench.log);
    assert!(bench.snapshot.fences("app").next().is_none());
}
