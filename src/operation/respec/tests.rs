//! Unit tests of `respec`: the kubelet makes the replacement, delays it, or is overtaken.

use super::*;
use crate::failure::Class;
use crate::operation::fixtures::{
    ALIAS, Answer, Bench, Kubelet, at, declared, find, instance, pod_in_cluster, situation_in_cluster,
};
use crate::operation::outcome::{Outcome, Withdrawal};
use crate::operation::preflight::Situation;
use crate::operation::snapshot::StartError;

/// The exit code of a container whose process was gone when containerd started.
const LOST: i32 = 255;
pub(super) const RESTART: &str = r#"{"containers":[{"name":"app"}],"engine":"Respec","deadlineSeconds":200}"#;
pub(super) const SWAP: &str = "swap app=repo/app:v2";
const PATCH: &str = "Respec app repo/app:v2";
const PATCH_BACK: &str = "Respec app repo/app:v1";
const FENCE: &str = "Fence app 4";
const UNFENCE: &str = "Remove app-fence-4";

fn older(name: &str, image: &str) -> String {
    format!("1{}", crate::operation::spec_hash::of(name, image))
}

/// A bench with a kubelet that hashes the whole container.
fn beside_an_older(kubelet: Kubelet) -> Bench {
    let mut snapshot = pod_in_cluster();
    snapshot
        .containers
        .iter_mut()
        .for_each(|instance| instance.spec_hash = older(&instance.name, "repo/app:v1"));
    let mut bench = Bench::of(SWAP, situation_in_cluster(snapshot), kubelet);
    bench.hash = older;
    bench
}

fn image_in_spec(bench: &mut Bench) -> String {
    declared(&mut bench.snapshot).image.clone()
}

#[test]
fn what_the_kubelet_does_by_itself_is_only_watched() {
    for (text, to, image) in [(SWAP, "repo/app:v2", "sha:v2"), (RESTART, ALIAS, "sha:v1")] {
        let mut bench = Bench::beside(Kubelet::Prompt, text);
        assert_eq!(bench.obey(), Outcome::Succeeded, "{text}");
        let changes: Vec<_> = bench.log.iter().filter(|line| !line.starts_with("Pull")).collect();
        assert_eq!(changes, [FENCE, &format!("Respec app {to}"), UNFENCE]);
        let running = bench.snapshot.running("app");
        assert_eq!((running.len(), running[0].attempt, running[0].image_id.as_str()), (1, 3, image));
    }
    let mut bench = beside_an_older(Kubelet::Prompt);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log, ["Pull repo/app:v2", PATCH]);
}

#[test]
fn a_kubelet_that_holds_the_container_back_is_helped_after_its_head_start() {
    let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let line = ["Pull repo/app:v2", FENCE, PATCH, "Create app 3 of sha:v2", "Start app-3", UNFENCE];
    assert_eq!(bench.log, line);
    let new = bench.snapshot.by_id("app-3").unwrap();
    assert_eq!(new.spec_hash, crate::operation::spec_hash::of("app", "repo/app:v2"));
    let down = new.started_at.unwrap().duration_since(bench.operation.targets[0].stopped_at.unwrap());
    assert!((250..350).contains(&down.as_millis()), "{down:?}");
}

#[test]
fn an_older_kubelet_is_never_helped_on_the_way_there() {
    let mut bench = beside_an_older(Kubelet::HoldingBack);
    while bench.now < at(120_000) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    assert_eq!(bench.log, ["Pull repo/app:v2", PATCH]);
    bench.kubelet = Kubelet::Prompt;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log.len(), 2);
}

#[test]
fn an_instance_that_the_kubelet_created_from_the_earlier_spec_is_not_the_new_one() {
    let mut bench = Bench::beside(Kubelet::Watching, RESTART);
    while !bench.log.iter().any(|line| line.starts_with("Respec")) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    // The container crashed, and its kubelet had not received the change yet.
    find(&mut bench.snapshot, "app-2").state = State::Exited;
    let mut again = instance("app", 3, State::Running);
    (again.started_at, again.created_at) = (Some(bench.now), bench.now);
    again.spec_hash = crate::operation::spec_hash::of("app", "repo/app:v1");
    bench.snapshot.containers.push(again);
    while bench.now < at(10_000) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    assert!(bench.operation.targets[0].reached.is_none());
    bench.kubelet = Kubelet::Prompt;
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.snapshot.running("app")[0].attempt, 4);
    // The fence reserved the name that the kubelet was to take next.
    assert_eq!(bench.log, [FENCE, &format!("Respec app {ALIAS}"), UNFENCE]);
}

#[test]
fn where_no_process_can_hold_the_name_the_spec_is_changed_all_the_same() {
    for class in [Class::Final, Class::Refused, Class::Unavailable, Class::NameTaken] {
        let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
        let mut patched = false;
        let outcome = bench.play(|effect, _| {
            patched |= effect.verb() == Verb::Respec;
            if effect.verb() == Verb::Fence && !patched { Answer::No(class) } else { Answer::Obey }
        });
        assert_eq!(outcome, Outcome::Succeeded, "{class:?}: {:?}", bench.log);
        let line =
            ["Pull repo/app:v2", FENCE, PATCH, FENCE, "Create app 3 of sha:v2", "Start app-3", UNFENCE];
        assert_eq!(bench.log, line, "{class:?}");
    }
}

/// A change without a response may take long: the container may crash twice meanwhile.
#[test]
fn a_fence_does_not_keep_a_kubelet_from_starting_a_container_that_crashes_before_the_change() {
    let mut bench = Bench::beside(Kubelet::Prompt, SWAP);
    let mut failures = 0;
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() != Verb::Respec || failures == 3 {
            return Answer::Obey;
        }
        failures += 1;
        let id = snapshot.running("app")[0].id.clone();
        let crashed = find(snapshot, &id);
        (crashed.state, crashed.finished_at, crashed.exit_code) = (State::Exited, Some(at(failures)), 1);
        Answer::No(Class::Unavailable)
    });
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    assert_eq!(bench.snapshot.running("app")[0].attempt, 6, "{:?}", bench.log);
    assert_eq!(bench.snapshot.fences("app").count(), 0, "{:?}", bench.log);
}

#[test]
fn a_fence_that_does_not_run_is_not_left_beside_the_change() {
    let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
    while !bench.log.iter().any(|line| line == FENCE) {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    find(&mut bench.snapshot, "app-fence-4").state = State::Created;
    assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
    assert_eq!(bench.log[1..5], [FENCE, UNFENCE, PATCH, FENCE], "{:?}", bench.log);
}

#[test]
fn a_lost_answer_is_asked_for_again() {
    let mut bench = Bench::beside(Kubelet::Prompt, SWAP);
    let mut lost = 3;
    let outcome = bench.play(|effect, _| {
        let again = effect.verb() == Verb::Respec && lost > 0;
        lost -= i32::from(again);
        if again { Answer::Lost } else { Answer::Obey }
    });
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(bench.log.iter().filter(|line| *line == PATCH).count(), 4, "{:?}", bench.log);
}

#[test]
fn a_change_that_is_refused_leaves_everything_as_it_was() {
    for (class, tries) in [(Class::Final, 1), (Class::Gone, 1), (Class::Refused, 3)] {
        for text in [SWAP, RESTART] {
            let mut bench = Bench::beside(Kubelet::Prompt, text);
            let outcome = bench.play(|effect, _| match effect.verb() {
                Verb::Respec => Answer::No(class),
                _ => Answer::Obey,
            });
            let untouched = matches!(
                &outcome,
                Outcome::Failed { failure: Failure::Respec { .. }, then: None, touched: false }
            );
            assert!(untouched, "{class:?}: {outcome:?}");
            assert_eq!(bench.log.iter().filter(|line| line.starts_with("Respec")).count(), tries);
            assert_eq!(bench.snapshot, pod_in_cluster());
        }
    }
}

/// The admission policy admits only the images that the current request names, which is the next one by then.
#[test]
fn what_is_denied_after_the_request_was_replaced_is_left_to_the_next_one() {
    fn deny_side(effect: &Effect, _: &mut Snapshot) -> Answer {
        match effect {
            Effect::Respec { container, .. } if container == "side" => Answer::No(Class::Denied),
            _ => Answer::Obey,
        }
    }
    let denials = |bench: &Bench| bench.log.iter().filter(|line| line.starts_with("Respec side")).count();
    // The withdrawal is seen after this many denials.
    for (withdrawal, seen_after, tries) in
        [(Withdrawal::Replaced, 0, 5), (Withdrawal::Replaced, 6, 6), (Withdrawal::Deleted, 0, 8)]
    {
        let mut bench = Bench::beside(Kubelet::Prompt, "swap app=repo/app:v2,side=repo/app:v3");
        while bench.operation.targets[0].reached.is_none() || denials(&bench) < seen_after {
            assert_eq!(bench.step(&mut deny_side), None);
        }
        bench.operation.withdraw(withdrawal);
        let outcome = bench.play(deny_side);
        assert_eq!(denials(&bench), tries, "{withdrawal:?}: {:?}", bench.log);
        let status = crate::operation::report::status(&bench.operation);
        assert_eq!(status.reason, "RespecFailed", "{status:?}");
        let app = bench.snapshot.running("app");
        if withdrawal == Withdrawal::Replaced {
            let is_left = matches!(
                &outcome,
                Outcome::Failed { failure: Failure::Superseded { container, .. }, then: None, touched: true }
                    if container == "side"
            );
            assert!(is_left, "{outcome:?}");
            assert!(status.message.ends_with("the request that follows decides"), "{}", status.message);
            assert_eq!((app[0].attempt, app[0].image_id.as_str()), (3, "sha:v2"), "{:?}", bench.log);
        } else {
            assert!(matches!(outcome, Outcome::RolledBack(Failure::Respec { .. })), "{outcome:?}");
            assert_eq!((app[0].attempt, app[0].image_id.as_str()), (4, "sha:v1"), "{:?}", bench.log);
        }
        assert_eq!(bench.snapshot.running("side")[0].id, "side-2");
        assert!(bench.snapshot.containers.iter().all(|container| !container.fence), "{:?}", bench.log);
    }
}

#[test]
fn a_change_that_the_api_server_did_not_receive_touches_nothing() {
    for (lost_before, times) in [(false, 5), (false, u32::MAX), (true, u32::MAX)] {
        let mut bench = Bench::beside(Kubelet::Watching, SWAP);
        let mut asked = 0;
        let outcome = bench.play(|effect, _| {
            asked += u32::from(effect.verb() == Verb::Respec);
            match effect.verb() {
                Verb::Respec if asked == 1 && lost_before => Answer::No(Class::Unavailable),
                Verb::Respec if asked <= times => Answer::No(Class::NotSent),
                _ => Answer::Obey,
            }
        });
        assert!(asked > 5, "{asked}");
        if times == u32::MAX {
            let late = matches!(
                &outcome,
                Outcome::Failed { failure: Failure::Deadline { .. }, touched, .. } if *touched == lost_before
            );
            assert!(late || lost_before, "{outcome:?}");
            assert_eq!(bench.operation.touched(), lost_before);
        } else {
            assert_eq!(image_in_spec(&mut bench), "repo/app:v1", "it is taken back");
            assert!(bench.operation.touched());
        }
    }
}

#[test]
fn the_hash_of_what_is_no_good_is_known_the_next_time() {
    let mut bench = beside_an_older(Kubelet::Prompt);
    bench.dies = Some(("sha:v2", 100));
    while bench.operation.rollback_cause.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.dies = None;
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Exited { .. })), "{outcome:?}");
    let mut known = crate::operation::preflight::Hashes::new();
    for (container, image, hash) in bench.operation.hashes() {
        known.entry(container.into()).or_default().insert(image.into(), hash.into());
    }
    let expected = ["v1", "v2"].map(|tag| format!("repo/app:{tag}")).map(|image| {
        let hash = older("app", &image);
        (image, hash)
    });
    assert_eq!(known["app"], expected.into());

    // With the recorded hash, a replacement that the kubelet delays is created here.
    let mut snapshot = pod_in_cluster();
    snapshot
        .containers
        .iter_mut()
        .for_each(|instance| instance.spec_hash = older(&instance.name, "repo/app:v1"));
    let situation = Situation { hashes: known, ..situation_in_cluster(snapshot) };
    let mut again = Bench::of(SWAP, situation, Kubelet::HoldingBack);
    again.hash = older;
    assert_eq!(again.obey(), Outcome::Succeeded);
    assert_eq!(again.log[1..4], [FENCE, PATCH, "Create app 3 of sha:v2"]);
}

/// The lost response may have been a success, and the kubelet may have acted on it.
#[test]
fn a_refusal_after_a_lost_answer_does_not_make_it_untouched() {
    for dies in [false, true] {
        let mut bench = Bench::beside(Kubelet::Prompt, RESTART);
        let mut answers = 0;
        let mut world = move |effect: &Effect, _: &mut Snapshot| {
            answers += i32::from(effect.verb() == Verb::Respec);
            match (effect.verb(), answers) {
                (Verb::Respec, 1) => Answer::Lost,
                (Verb::Respec, _) => Answer::No(Class::Final),
                _ => Answer::Obey,
            }
        };
        while bench.operation.last_failure.is_none() {
            assert_eq!(bench.step(&mut world), None);
        }
        if dies {
            bench.operation.resume(bench.now);
        }
        let outcome = bench.play(&mut world);
        assert!(matches!(outcome, Outcome::Failed { touched: true, .. }), "{outcome:?}");
    }
}

#[test]
fn on_the_way_back_a_kubelet_in_back_off_is_helped_at_once() {
    let mut bench = Bench::beside(Kubelet::Prompt, SWAP);
    bench.dies = Some(("sha:v2", 100));
    while bench.operation.rollback_cause.is_none() {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    let turned = bench.now;
    bench.kubelet = Kubelet::HoldingBack;
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Exited { .. })), "{outcome:?}");
    assert_eq!(image_in_spec(&mut bench), "repo/app:v1");
    let running = bench.snapshot.running("app");
    assert_eq!((running.len(), running[0].image_id.as_str()), (1, "sha:v1"));
    assert_eq!(running[0].spec_hash, crate::operation::spec_hash::of("app", "repo/app:v1"));
    let took = running[0].started_at.unwrap().duration_since(turned).as_millis();
    assert!(took <= 500, "{took}: {:?}", bench.log);
    // The name that the kubelet takes next is free; the name after it is reserved.
    assert_eq!(bench.log[3..6], [UNFENCE, "Fence app 5", PATCH_BACK], "{:?}", bench.log);
}

#[test]
fn somebody_elses_image_is_the_later_one() {
    for (image, theirs) in [("repo/app:v3", true), ("repo/app:v1", false)] {
        let mut bench = Bench::beside(Kubelet::Watching, SWAP);
        while bench.log.last().is_none_or(|last| last != PATCH) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        image.clone_into(&mut declared(&mut bench.snapshot).image);
        let outcome = bench.obey();
        let overruled = matches!(
            &outcome,
            Outcome::Failed { failure: Failure::Overruled { image, .. }, then: None, touched: true } if image == "repo/app:v3"
        );
        assert_eq!(overruled, theirs, "{outcome:?}");
        assert_eq!(image_in_spec(&mut bench), image);
        // Data from the API server may be out of date: the previous image in the spec proves nothing.
        assert_eq!(bench.log.iter().any(|line| line == PATCH_BACK), !theirs);
    }
}

#[test]
fn a_kubelet_that_is_about_to_replace_the_container_is_waited_for() {
    for acts in [true, false] {
        let mut situation = situation_in_cluster(pod_in_cluster());
        situation.sources.values_mut().for_each(|source| source.runs_declared = false);
        let mut bench = Bench::of(SWAP, situation, Kubelet::Watching);
        while bench.now < at(1_000) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        assert_eq!(bench.log, ["Pull repo/app:v2"]);
        if acts {
            find(&mut bench.snapshot, "app-2").state = State::Exited;
            let mut theirs = instance("app", 3, State::Running);
            theirs.image_id = "sha:v3".into();
            theirs.spec_hash = crate::operation::spec_hash::of("app", "repo/app:v1");
            bench.snapshot.containers.push(theirs);
        }
        bench.kubelet = Kubelet::Prompt;
        assert_eq!(bench.obey(), Outcome::Succeeded);
        let changed_at = bench.operation.targets[0].forward.respec_at.unwrap();
        assert_eq!(changed_at < at(2_000), acts, "{changed_at}");
        let from = &bench.operation.targets[0].from;
        assert_eq!(from.attempt, if acts { 3 } else { 2 });
        assert_eq!(bench.snapshot.running("app").len(), 1);
    }
}

#[test]
fn a_name_that_may_have_moved_is_asked_for_again() {
    use crate::operation::snapshot::PullPolicy;
    for (text, policy, asked) in [
        (SWAP, PullPolicy::IfNotPresent, false),
        (SWAP, PullPolicy::Always, true),
        ("swap app=repo/app:v1", PullPolicy::IfNotPresent, true),
    ] {
        let mut snapshot = pod_in_cluster();
        declared(&mut snapshot).pull_policy = policy;
        let mut bench = Bench::of(text, situation_in_cluster(snapshot), Kubelet::Prompt);
        let mut pulls = Vec::new();
        bench.play(|effect, _| {
            if let Effect::Pull { anew, .. } = effect {
                pulls.push(*anew);
            }
            Answer::Obey
        });
        assert_eq!(pulls, [asked], "{text} {policy:?}");
    }
}

#[test]
fn an_instance_that_did_not_end_stays_once_its_kubelet_can_no_longer_have_begun_to_stop_it() {
    let mut bench = Bench::beside(Kubelet::Watching, SWAP);
    let outcome = bench.obey();
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Deadline { .. })), "{outcome:?}");
    assert_eq!(bench.log, ["Pull repo/app:v2", FENCE, PATCH, PATCH_BACK, UNFENCE]);
    assert_eq!(image_in_spec(&mut bench), "repo/app:v1");
    assert_eq!(bench.snapshot.running("app")[0].id, "app-2");
    let back = bench.operation.targets[0].back.as_ref().unwrap().respec_at.unwrap();
    // Two seconds to receive the change, and thirty for a stop that had begun before.
    let waited = bench.now.duration_since(back).as_secs();
    assert!((32..36).contains(&waited), "{waited}");
    assert!(bench.now <= bench.operation.deadline_at);
}

#[test]
fn the_kubelet_that_creates_at_the_same_time_is_adopted() {
    let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Create && snapshot.by_id("app-3").is_none() {
            let mut theirs = instance("app", 3, State::Running);
            (theirs.image, theirs.image_id) = ("repo/app:v2".into(), "sha:v2".into());
            theirs.spec_hash = crate::operation::spec_hash::of("app", "repo/app:v2");
            (theirs.created_at, theirs.started_at) = (at(400), Some(at(400)));
            snapshot.containers.push(theirs);
            return Answer::No(Class::NameTaken);
        }
        Answer::Obey
    });
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(bench.log[1..], [FENCE, PATCH, "Create app 3 of sha:v2", UNFENCE]);
}

/// Attempt 3, which the kubelet created from the new spec and which was never started.
fn unstarted(state: State) -> Container {
    let mut theirs = instance("app", 3, state);
    (theirs.image, theirs.image_id) = ("repo/app:v2".into(), "sha:v2".into());
    theirs.spec_hash = crate::operation::spec_hash::of("app", "repo/app:v2");
    (theirs.created_at, theirs.started_at) = (at(400), None);
    theirs
}

#[test]
fn an_instance_of_the_kubelet_whose_start_was_lost_with_the_runtime_is_replaced() {
    for (class, next, outcome) in [
        (Class::Unavailable, Answer::Obey, "Succeeded"),
        (Class::Unavailable, Answer::No(Class::Refused), "RolledBack"),
        (Class::Refused, Answer::Obey, "RolledBack"),
    ] {
        let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
        let ended = bench.play(|effect, snapshot| match effect {
            // The kubelet has created the instance, and has not requested its start before the runtime ended.
            Effect::Create { .. } if snapshot.by_id("app-3").is_none() => {
                snapshot.containers.push(unstarted(State::Created));
                Answer::No(Class::NameTaken)
            }
            Effect::Start { id, .. } if id == "app-3" => {
                let theirs = find(snapshot, "app-3");
                (theirs.state, theirs.finished_at, theirs.exit_code) = (State::Exited, Some(at(9_000)), 128);
                Answer::No(class)
            }
            Effect::Start { id, .. }
                if id == "app-4" && !snapshot.by_id(id).unwrap().image.ends_with("v1") =>
            {
                if let Answer::No(_) = next {
                    let ours = find(snapshot, "app-4");
                    (ours.state, ours.finished_at, ours.exit_code) = (State::Exited, Some(at(10_000)), 127);
                }
                next
            }
            _ => Answer::Obey,
        });
        assert_eq!(format!("{ended:?}").split([' ', '(']).next().unwrap(), outcome, "{:?}", bench.log);
        assert_eq!(bench.log.contains(&"Create app 4 of sha:v2".to_owned()), class == Class::Unavailable);
    }
}

#[test]
fn the_end_of_an_instance_whose_start_was_lost_says_nothing_about_the_image() {
    for (code, canceled, outcome) in [
        (LOST, None, "Succeeded"),
        (128, Some(true), "Succeeded"),
        (128, Some(false), "RolledBack"),
        (128, None, "RolledBack"),
    ] {
        let mut bench = Bench::beside(Kubelet::HoldingBack, SWAP);
        let ended = bench.play(|effect, snapshot| match effect {
            Effect::Create { .. } if snapshot.by_id("app-3").is_none() => {
                let mut theirs = unstarted(State::Exited);
                (theirs.finished_at, theirs.exit_code) = (Some(at(500)), code);
                let message = || "no such file: app".to_owned();
                theirs.start_error = canceled.map(|canceled| StartError { message: message(), canceled });
                snapshot.containers.push(theirs);
                Answer::No(Class::NameTaken)
            }
            _ => Answer::Obey,
        });
        let ended = format!("{ended:?}");
        assert_eq!(ended.split([' ', '(']).next().unwrap(), outcome, "{:?}", bench.log);
        assert_eq!(ended.contains("no such file: app"), canceled == Some(false), "{ended}");
    }
}

#[test]
fn a_stop_leaves_the_start_to_the_kubelet() {
    let text = r#"{"containers":[{"name":"app"}],"engine":"Stop","deadlineSeconds":200}"#;
    let mut bench = Bench::beside(Kubelet::Prompt, text);
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log, ["Stop app-2"]);
    assert_eq!(bench.snapshot.running("app")[0].attempt, 3);
    // A kubelet that delays the container is waited for until the deadline.
    let mut held = Bench::beside(Kubelet::HoldingBack, text);
    while held.now < at(150_000) {
        assert_eq!(held.step(&mut |_, _| Answer::Obey), None);
    }
    held.kubelet = Kubelet::Prompt;
    assert_eq!(held.obey(), Outcome::Succeeded);
    let mut never = Bench::beside(Kubelet::HoldingBack, text);
    let outcome = never.obey();
    assert!(matches!(outcome, Outcome::Failed { failure: Failure::Deadline { .. }, touched: true, .. }));
    assert_eq!(never.log, ["Stop app-2"]);
    assert!(never.now <= never.operation.deadline_at + SignedDuration::from_secs(1));
}

/// A kubelet that had begun to stop the old instance does so until its grace period is over.
#[test]
fn on_the_way_back_the_old_instance_is_spared_only_if_it_was_seen_to_run_long_enough() {
    let mut bench = beside_an_older(Kubelet::Silent);
    let until = |bench: &mut Bench, effect: &str| {
        while !bench.log.iter().any(|done| done == effect) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
        }
    };
    until(&mut bench, PATCH);
    let failure = crate::operation::outcome::Failure::NotReady { container: "app".into(), seconds: 1 };
    bench.operation.note(Note::RollBack(failure));
    until(&mut bench, PATCH_BACK);
    let grace = SignedDuration::from_secs(30);
    let received_by = later(later(bench.now, SPEC_RECEIVED_WITHIN), grace);
    let second = SignedDuration::from_secs(1);
    let is_spared = |observed_at| {
        let snapshot = Snapshot { observed_at: Some(observed_at), ..bench.snapshot.clone() };
        let target = &bench.operation.targets[0];
        !matches!(
            respec(
                &bench.operation,
                target,
                target.change.as_ref().unwrap(),
                &snapshot,
                later(received_by, second)
            ),
            Progress::Next(Next::Wait(_))
        )
    };
    assert!(!is_spared(later(received_by, -second)));
    assert!(is_spared(later(received_by, second)));
}
