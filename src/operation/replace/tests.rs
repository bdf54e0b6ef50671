//! Unit tests of `replace`: lost responses, failed starts, and kubelets that act at the same time.

mod cut_off;

use super::*;
use crate::failure::Class;
use crate::operation::fence::{STAYS_AFTER_START, while_it_starts};
use crate::operation::fixtures::{
    Answer, Bench, Kubelet, at, declared, find, instance, pod, pod_in_cluster, situation_in_cluster,
};
use crate::operation::outcome::Outcome;
use crate::operation::snapshot::Owner;
use crate::operation::spec_hash;

const RESTART: &str = "restart app";
const SWAP: &str = "swap app=repo/app:v2";

fn bench(text: &str) -> Bench {
    Bench::new(text, pod(Owner::Nobody))
}

/// A kubelet could not bring the container up: it requests the name that the fence reserves.
#[test]
fn a_fence_that_cannot_be_removed_does_not_end_the_way_back() {
    for removes in [0, 1] {
        let mut bench = Bench::new(SWAP, pod(Owner::Nobody));
        let outcome = bench.play(|effect, snapshot| match effect {
            Effect::Remove { id, .. } if removes == 0 || id == "app-fence-4" => Answer::No(Class::Refused),
            Effect::Start { id, .. } if id == "app-3" => {
                find(snapshot, id).state = State::Exited;
                Answer::No(Class::Refused)
            }
            _ => Answer::Obey,
        });
        assert!(
            matches!(outcome, Outcome::RolledBack(Failure::Start { .. })),
            "{outcome:?}: {:?}",
            bench.log
        );
        let created: Vec<_> = bench.log.iter().filter(|line| line.starts_with("Create")).collect();
        assert_eq!(created, ["Create app 3 of sha:v2", "Create app 6 of sha:v1"], "{:?}", bench.log);
        let stuck: &[&str] =
            if removes == 0 { &["app-fence-4", "app-fence-5", "app-fence-7"] } else { &["app-fence-4"] };
        assert_eq!(bench.operation.stuck, stuck, "{:?}", bench.log);
    }
}

/// The previous image was removed from the node: neither a fence nor the container can be created from it.
#[test]
fn a_way_back_without_its_image_ends() {
    let mut bench = bench(SWAP);
    bench.dies = Some(("sha:v2", 100));
    let outcome = bench.play(|effect, _| match effect {
        Effect::Fence { attempt: 5, .. } | Effect::Create { attempt: 4, .. } => Answer::No(Class::Gone),
        _ => Answer::Obey,
    });
    let Outcome::Failed { failure: Failure::Exited { .. }, then: Some(then), touched: true } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(matches!(then, Failure::Create { .. }), "{then:?}: {:?}", bench.log);
}

#[test]
fn a_fence_in_the_making_is_waited_for() {
    let mut bench = Bench::new("restart app", pod(Owner::Nobody));
    let mut refused = 0;
    let outcome = bench.play(|effect, _| match effect {
        Effect::Fence { .. } if refused < 7 => {
            refused += 1;
            Answer::No(Class::NameTaken)
        }
        _ => Answer::Obey,
    });
    assert_eq!(outcome, Outcome::Succeeded);
    let mut bench = Bench::new("restart app", pod(Owner::Nobody));
    let outcome = bench.play(|_, _| Answer::No(Class::Refused));
    assert!(matches!(outcome, Outcome::Failed { failure: Failure::TestCreation { .. }, touched: false, .. }));
}

#[test]
fn a_state_that_the_runtime_cannot_tell_is_waited_out() {
    let mut bench = Bench::new("restart app", pod(Owner::Nobody));
    while bench.log.len() < 4 {
        assert!(bench.step(&mut |_, _| Answer::Obey).is_none());
    }
    find(&mut bench.snapshot, "app-3").state = State::Unknown;
    for _ in 0..20 {
        assert!(bench.step(&mut |_, _| Answer::Obey).is_none());
    }
    assert_eq!(bench.log.len(), 4);
    find(&mut bench.snapshot, "app-3").state = State::Running;
    assert_eq!(bench.obey(), Outcome::Succeeded);
}

/// A killed runtime may leave a container in this state until the container is stopped.
#[test]
fn without_a_kubelet_what_stays_unclear_is_made_again_before_the_deadline() {
    for text in ["restart app", SWAP] {
        let mut bench = Bench::new(text, pod(Owner::NodeRun));
        while bench.log.last().is_none_or(|line| line != "Start app-3") {
            assert!(bench.step(&mut |_, _| Answer::Obey).is_none());
        }
        find(&mut bench.snapshot, "app-3").state = State::Unknown;
        assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
        assert_eq!(bench.log.iter().filter(|line| *line == "Remove app-3").count(), 1, "{:?}", bench.log);
        let took = bench.now.duration_since(bench.operation.begun_at);
        assert!(took < SignedDuration::from_secs(30), "{took}: {:?}", bench.log);
    }
}

#[test]
fn nothing_is_started_beside_what_may_run() {
    let mut bench = Bench::new("restart app", pod(Owner::Nobody));
    while bench.log.len() < 3 {
        assert!(bench.step(&mut |_, _| Answer::Obey).is_none());
    }
    let other = crate::operation::fixtures::instance("app", 7, State::Unknown);
    bench.snapshot.containers.push(other);
    for _ in 0..20 {
        assert!(bench.step(&mut |_, _| Answer::Obey).is_none());
    }
    assert_eq!(bench.log.last().unwrap(), "Create app 3");
    find(&mut bench.snapshot, "app-7").state = State::Exited;
    assert_eq!(bench.obey(), Outcome::Succeeded);
}

#[test]
fn a_handler_begun_on_the_way_there_is_not_begun_again_on_the_way_back() {
    let mut snapshot = pod(Owner::Nobody);
    find(&mut snapshot, "app-2").has_pre_stop = true;
    let mut bench = Bench::new(SWAP, snapshot);
    // The state of the old container is unknown when the rollback begins, and is reported again after that.
    let mut stops = 0;
    while bench.operation.targets[0].back.is_none() {
        let ended = bench.step(&mut |effect, snapshot| {
            if effect.verb() != Verb::Stop {
                return Answer::Obey;
            }
            stops += 1;
            find(snapshot, "app-2").state = if stops == 5 { State::Unknown } else { State::Running };
            Answer::No(Class::Refused)
        });
        assert!(ended.is_none());
    }
    find(&mut bench.snapshot, "app-2").state = State::Running;
    assert!(matches!(bench.obey(), Outcome::RolledBack(Failure::Stop { .. })));
    assert_eq!(bench.log.iter().filter(|line| line.starts_with("PreStop app-2")).count(), 1);
}

/// A kubelet resizes the newest container. One that never ran was not resized.
#[test]
fn the_container_after_a_rollback_has_the_limits_of_the_one_that_is_taken_back() {
    for (starts, expected) in [(true, vec![None, Some("app-3".to_owned())]), (false, vec![None, None])] {
        let mut bench = bench(SWAP);
        bench.dies = Some(("sha:v2", 100));
        let mut limits_of = Vec::new();
        let outcome = bench.play(|effect, snapshot| match effect {
            Effect::Start { id, .. } if !starts && snapshot.by_id(id).unwrap().image_id == "sha:v2" => {
                Answer::No(Class::Refused)
            }
            Effect::Create { limits, .. } => {
                limits_of.push(limits.clone());
                Answer::Obey
            }
            _ => Answer::Obey,
        });
        assert!(matches!(outcome, Outcome::RolledBack(_)), "{outcome:?}");
        assert_eq!(limits_of, expected, "{:?}", bench.log);
    }
}

#[test]
fn somebody_elses_creation_is_not_removed_on_the_way_back() {
    let mut bench = Bench::new(SWAP, pod(Owner::Nobody));
    let outcome = bench.play(|effect, snapshot| match effect {
        Effect::Create { attempt: 3, .. } if snapshot.by_id("app-3").is_none() => {
            let mut theirs = crate::operation::fixtures::instance("app", 3, State::Created);
            theirs.created_at = at(100);
            snapshot.containers.push(theirs);
            Answer::No(Class::NameTaken)
        }
        _ => Answer::Obey,
    });
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Changed { .. })), "{outcome:?}");
    assert!(bench.now >= at(10_000) && !bench.log.contains(&"Remove app-3".to_owned()), "{:?}", bench.log);
    assert_eq!(bench.snapshot.running("app")[0].attempt, 4);
}

/// A kubelet that finds no earlier instance does this: it counts attempts from 0, where no fence is.
#[test]
fn nothing_is_created_or_started_beside_what_somebody_else_is_about_to_start() {
    for before in ["Create", "Start"] {
        let mut bench = bench(RESTART);
        let seen = if before == "Create" { 2 } else { 3 };
        while bench.log.len() < seen {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        bench
            .snapshot
            .containers
            .retain(|instance| instance.fence || instance.attempt >= 2 || instance.name != "app");
        let mut theirs = crate::operation::fixtures::instance("app", 0, State::Created);
        theirs.created_at = bench.now;
        bench.snapshot.containers.push(theirs);
        for _ in 0..20 {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        assert_eq!(bench.log.len(), seen, "{:?}", bench.log);
        find(&mut bench.snapshot, "app-0").state = State::Running;
        let outcome = bench.obey();
        let changed = matches!(outcome, Outcome::Failed { failure: Failure::Changed { .. }, .. });
        assert!(changed, "{outcome:?}");
        assert_eq!(bench.snapshot.running("app").len(), 1);
    }
}

/// CRI-O removes a container whose start is requested twice, and a kubelet that has lost a container creates another one.
#[test]
fn what_a_kubelet_has_created_is_started_only_where_a_clone_is_possible() {
    let of_kubelet = |bench: &mut Bench, attempt: u32, state: State| {
        let image = declared(&mut bench.snapshot).image.clone();
        let mut theirs = instance("app", attempt, state);
        (theirs.spec_hash, theirs.image) = (spec_hash::of("app", &image), image);
        theirs.created_at = bench.now;
        theirs.started_at = (state == State::Running).then_some(bench.now);
        bench.snapshot.containers.push(theirs);
    };
    for (engine, is_cloneable) in [("Stop", true), ("Respec", false), ("Respec", true)] {
        let mut situation = situation_in_cluster(pod_in_cluster());
        let why = (!is_cloneable).then(|| "field 99".to_owned());
        situation.sources.values_mut().for_each(|source| source.not_cloneable.clone_from(&why));
        let text =
            format!(r#"{{"containers":[{{"name":"app"}}],"engine":"{engine}","deadlineSeconds":200}}"#);
        let mut bench = Bench::of(&text, situation, Kubelet::HoldingBack);
        while bench.snapshot.by_id("app-2").unwrap().state == State::Running {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        of_kubelet(&mut bench, 3, State::Created);
        let (until, mut ended) = (bench.now + SignedDuration::from_secs(60), None);
        while bench.now < until && ended.is_none() {
            ended = bench.step(&mut |_, _| Answer::Obey);
        }
        let starts = engine == "Respec" && is_cloneable;
        if !starts {
            assert_eq!(ended, None, "{engine}: {:?}", bench.log);
            of_kubelet(&mut bench, 4, State::Running);
            ended = Some(bench.obey());
        }
        assert_eq!(ended, Some(Outcome::Succeeded), "{engine} {is_cloneable}: {:?}", bench.log);
        assert_eq!(bench.log.contains(&"Start app-3".to_owned()), starts, "{engine}: {:?}", bench.log);
        let running = bench.snapshot.running("app");
        assert_eq!((running.len(), running[0].attempt), (1, if starts { 3 } else { 4 }));
    }
}

#[test]
fn a_start_that_a_kubelet_has_lost_says_nothing_about_an_image_that_has_run() {
    let text = r#"{"containers":[{"name":"app"}],"engine":"Recreate"}"#;
    let mut it = Bench::beside(Kubelet::Silent, text);
    let ended = it.play(|effect, snapshot| match effect {
        // The kubelet was faster, and ended while it started its instance.
        Effect::Create { .. } if snapshot.by_id("app-3").is_none() => {
            let mut theirs = instance("app", 3, State::Exited);
            (theirs.created_at, theirs.started_at) = (at(500), None);
            (theirs.finished_at, theirs.exit_code) = (Some(at(600)), 128);
            snapshot.containers.push(theirs);
            Answer::No(Class::NameTaken)
        }
        Effect::Start { .. } => {
            declared(snapshot).container_id = Some("app-4".into());
            Answer::Obey
        }
        _ => Answer::Obey,
    });
    assert_eq!(ended, Outcome::Succeeded, "{:?}", it.log);
    assert_eq!(it.snapshot.running("app")[0].attempt, 4);
}

#[test]
fn an_instance_that_a_kubelet_numbers_anew_is_the_expected_one() {
    let mut bench = Bench::new(RESTART, pod(Owner::Kubelet));
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Create {
            // The kubelet has removed the dead container beside the fence, and has lost the attempt number.
            snapshot.containers.retain(|instance| instance.name != "app" || instance.fence);
            let (created_at, started_at) = (at(50), Some(at(60)));
            let anew = crate::operation::fixtures::instance("app", 0, State::Running);
            snapshot.containers.push(Container { created_at, started_at, ..anew });
            return Answer::No(Class::NameTaken);
        }
        Answer::Obey
    });
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(bench.log, ["Fence app 4", "Stop app-2", "Create app 3", "Remove app-fence-4"]);
}

/// The agent was away between create and start, and a kubelet collected the fence meanwhile.
#[test]
fn what_was_not_started_gives_way_to_an_instance_that_a_kubelet_created_under_the_name_of_the_fence() {
    let mut bench = Bench::new(RESTART, pod(Owner::Kubelet));
    while bench.log.last().is_none_or(|last| last != "Create app 3") {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench.snapshot.containers.retain(|instance| !instance.fence);
    let (theirs, now) = (instance("app", 4, State::Running), bench.now);
    bench.snapshot.containers.push(Container { created_at: now, started_at: Some(now), ..theirs });
    assert_eq!(bench.obey(), Outcome::Succeeded);
    assert_eq!(bench.log, ["Fence app 4", "Stop app-2", "Create app 3", "Remove app-3"]);
    let running = bench.snapshot.running("app");
    assert_eq!((running.len(), running[0].attempt), (1, 4));
}

/// The agent was away between create and start, and a kubelet removed the dead container meanwhile.
#[test]
fn what_was_not_started_gives_way_to_an_instance_that_a_kubelet_numbers_anew() {
    let mut bench = Bench::new(RESTART, pod(Owner::Kubelet));
    while bench.log.last().is_none_or(|last| last != "Create app 3") {
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
    }
    bench
        .snapshot
        .containers
        .retain(|instance| instance.name != "app" || instance.fence || instance.attempt == 3);
    let anew = instance("app", 0, State::Running);
    let now = bench.now;
    bench.snapshot.containers.push(Container { created_at: now, started_at: Some(now), ..anew });
    assert_eq!(bench.obey(), Outcome::Succeeded);
    let line = ["Fence app 4", "Stop app-2", "Create app 3", "Remove app-3", "Remove app-fence-4"];
    assert_eq!(bench.log, line);
    assert_eq!(bench.snapshot.running("app")[0].attempt, 0);
}

#[test]
fn the_fence_is_cloned_when_a_kubelet_has_removed_everything_else() {
    let mut bench = Bench::new("restart app", pod(Owner::Kubelet));
    let mut swept = false;
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Create && !swept {
            swept = true;
            snapshot.containers.retain(|instance| instance.name != "app" || instance.fence);
            return Answer::No(Class::Gone);
        }
        Answer::Obey
    });
    assert_eq!(outcome, Outcome::Succeeded);
    assert_eq!(
        bench.log,
        [
            "Fence app 4",
            "Stop app-2",
            "Create app 3",
            "Create app 3 of sha:v1",
            "Start app-3",
            "Remove app-fence-4"
        ]
    );
}

#[test]
fn a_fence_that_a_kubelet_has_collected_is_made_again_before_the_start() {
    let mut bench = Bench::new("restart app", pod(Owner::Kubelet));
    let mut swept = false;
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Start && !swept {
            swept = true;
            snapshot.containers.retain(|instance| !instance.fence);
            return Answer::No(Class::Refused);
        }
        Answer::Obey
    });
    assert_eq!(outcome, Outcome::Succeeded);
    let expected = [
        "Fence app 4",
        "Stop app-2",
        "Create app 3",
        "Start app-3",
        "Fence app 4",
        "Start app-3",
        "Remove app-fence-4",
    ];
    assert_eq!(bench.log, expected);
}

#[test]
fn what_was_made_here_gives_way_to_a_twin_that_its_kubelet_started() {
    for late in [false, true] {
        let mut bench = Bench::new("restart app", pod(Owner::Kubelet));
        let outcome = bench.play(|effect, snapshot| {
            let moment = if late { Verb::Remove } else { Verb::Start };
            if effect.verb() == moment && snapshot.by_id("app-4").is_none() {
                let twin = instance("app", 4, State::Running);
                let at = Some(at(60));
                snapshot.containers.push(Container { started_at: at, ..twin });
            }
            Answer::Obey
        });
        assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
        assert!(bench.log.contains(&"Stop app-3".to_owned()), "{:?}", bench.log);
        let reached = bench.operation.targets[0].reached.as_ref().unwrap();
        assert_eq!((reached.to.attempt, bench.snapshot.running("app").len()), (4, 1));
    }
}

/// A kubelet that observed ours before its start creates its own, and has only that one in view from then on.
#[test]
fn what_was_made_here_gives_way_to_a_twin_that_its_kubelet_is_about_to_start() {
    for starts in [true, false] {
        let mut bench = Bench::new("restart app", pod(Owner::Kubelet));
        let mut twin_at = None;
        let outcome = bench.play(|effect, snapshot| {
            match effect.verb() {
                Verb::Start if twin_at.is_none() => {
                    let twin = instance("app", 4, State::Created);
                    twin_at = Some(snapshot.by_id("app-3").unwrap().created_at);
                    snapshot.containers.push(Container { created_at: twin_at.unwrap(), ..twin });
                }
                Verb::Stop if starts && twin_at.is_some() => {
                    let twin = find(snapshot, "app-4");
                    (twin.state, twin.started_at) = (State::Running, twin_at);
                }
                _ => {}
            }
            Answer::Obey
        });
        assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
        assert!(bench.log.contains(&"Stop app-3".to_owned()), "{:?}", bench.log);
        // A kubelet that has ended since leaves the start to this program.
        assert_eq!(bench.log.contains(&"Start app-4".to_owned()), !starts, "{:?}", bench.log);
        let running = bench.snapshot.running("app");
        assert_eq!((running.len(), running[0].attempt), (1, 4));
    }
}

/// In a rollback too, where the kubelet's own has the hash that the spec has again.
#[test]
fn a_rollback_gives_way_to_a_twin_that_its_kubelet_is_about_to_start() {
    let mut bench = Bench::beside(Kubelet::Watching, SWAP);
    bench.dies = Some(("sha:v2", 5));
    let mut twin_at = None;
    let outcome = bench.play(|effect, snapshot| {
        match effect {
            Effect::Respec { .. } => find(snapshot, "app-2").state = State::Exited,
            Effect::Start { id, .. } if id == "app-4" => {
                let (created_at, spec_hash) =
                    (find(snapshot, id).created_at, find(snapshot, id).spec_hash.clone());
                twin_at = Some(created_at);
                let twin = instance("app", 5, State::Created);
                snapshot.containers.push(Container { spec_hash, created_at, ..twin });
            }
            Effect::Stop { id, .. } if id == "app-4" => {
                let twin = find(snapshot, "app-5");
                (twin.state, twin.started_at) = (State::Running, twin_at);
            }
            _ => {}
        }
        Answer::Obey
    });
    assert!(matches!(outcome, Outcome::RolledBack(Failure::Exited { .. })), "{outcome:?}: {:?}", bench.log);
    let running = bench.snapshot.running("app");
    assert_eq!((running.len(), running[0].attempt, running[0].image_id.as_str()), (1, 5, "sha:v1"));
}

/// Without a fence that runs, a kubelet collects the old instance, counts from 0 again, and starts its own while ours starts.
#[test]
fn what_was_made_here_gives_way_to_a_twin_that_its_kubelet_numbers_anew() {
    let (mut bench, mut is_there) = (Bench::new("restart app", pod(Owner::Kubelet)), false);
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() == Verb::Start && !is_there {
            is_there = true;
            snapshot.containers.retain(|instance| instance.name != "app" || instance.id == "app-3");
            let (twin, created_at) = (instance("app", 0, State::Running), at(60_000));
            snapshot.containers.push(Container { created_at, started_at: Some(created_at), ..twin });
        }
        Answer::Obey
    });
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    assert!(bench.log.contains(&"Stop app-3".to_owned()), "{:?}", bench.log);
    let running = bench.snapshot.running("app");
    assert_eq!((running.len(), running[0].attempt), (1, 0));
}

#[test]
fn while_it_starts_its_fence_is_made_again_and_nothing_else() {
    let mut bench = Bench::new(RESTART, pod(Owner::Kubelet));
    while bench.log.last().map(String::as_str) != Some("Start app-3") {
        let ended = bench.step(&mut |effect, _| {
            if effect.verb() == Verb::Start { Answer::No(Class::Refused) } else { Answer::Obey }
        });
        assert_eq!(ended, None);
    }
    let guard = |bench: &Bench| while_it_starts(&bench.operation, &bench.snapshot, "app", "app-3");
    assert_eq!(guard(&bench), None);
    bench.snapshot.containers.retain(|instance| !instance.fence);
    let again = guard(&bench).unwrap();
    assert_eq!((again.verb(), again.container()), (Verb::Fence, "app"));
    find(&mut bench.snapshot, "app-3").state = State::Running;
    assert_eq!(guard(&bench), None);
}

#[test]
fn what_is_left_of_a_creation_in_which_the_runtime_ended_is_made_again() {
    let mut bench = Bench::new(SWAP, pod(Owner::NodeRun));
    let (id, mut ended) = (bench.operation.request.id.clone(), false);
    let outcome = bench.play(|effect, snapshot| {
        if effect.verb() != Verb::Create || ended {
            return Answer::Obey;
        }
        ended = true;
        let half = crate::operation::fixtures::instance("app", 3, State::Unknown);
        let (operation, image_id) = (Some(id.clone()), "sha:v2".to_owned());
        snapshot.containers.push(Container { image_id, operation, ..half });
        Answer::No(Class::Unavailable)
    });
    assert_eq!(outcome, Outcome::Succeeded, "{:?}", bench.log);
    assert_eq!(bench.log.iter().filter(|line| *line == "Remove app-3").count(), 1, "{:?}", bench.log);
    assert_eq!(
        bench.log.iter().filter(|line| line.starts_with("Create app 3")).count(),
        2,
        "{:?}",
        bench.log
    );
}
