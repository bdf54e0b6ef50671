//! What a restart retains, changes and leaves behind.

use std::fs;

use inplace::api::status::{Phase, Status};
use inplace::cri::proto::v1::ContainerState;

use crate::{
    pod::{PAIR, Pod},
    support::facts::Facts,
    support::lab::Lab,
    support::wait::eventually,
};

/// Everything that survives a restart of `app`.
fn kept(facts: &Facts) -> impl PartialEq + std::fmt::Debug + use<> {
    let app = facts.running("app");
    let (sandbox, ip, shm) = (facts.sandbox.clone(), facts.ip.clone(), facts.shm.clone());
    (sandbox, ip, shm, facts.running("side").clone(), app.namespaces.clone(), app.image.clone())
}

#[test]
fn all_but_the_container_is_kept() {
    let pod = Pod::run(Lab::shared(), "kept", PAIR);
    pod.await_handler();
    pod.remember("world", "12 players");
    let before = pod.facts().settled();
    assert!(!before.ip.is_empty());
    let status = pod.restart(&["app"]);
    let after = pod.facts().settled();
    assert_eq!(kept(&after), kept(&before));
    assert_eq!(after.shm["world"], "12 players");
    let (old, new) = (before.running("app"), after.running("app"));
    assert_ne!((&new.id, new.ticks), (&old.id, old.ticks));
    assert_eq!((old.attempt, new.attempt), (0, 1));
    assert_eq!((new.version.clone(), new.finished_at), ("v1".to_owned(), 0));
    check_status(&status, &before, &after);
}

/// Verifies that the report matches what the runtime shows.
fn check_status(status: &Status, before: &Facts, after: &Facts) {
    let [report] = status.containers.as_slice() else { panic!("{status:?}") };
    let (old, new) = (before.running("app"), after.running("app"));
    assert_eq!((&report.from.container_id, report.from.attempt), (&old.id, old.attempt));
    let to = report.to.as_ref().unwrap();
    assert_eq!((&to.container_id, to.attempt), (&new.id, new.attempt));
    let ended = after.of("app").find(|instance| instance.id == old.id).unwrap();
    assert_eq!((ended.state, ended.exit_code), (ContainerState::ContainerExited, 0));
    let down = (new.started_at - ended.finished_at) / 1_000_000;
    assert!((report.downtime_ms.unwrap() - down).abs() <= 1, "{report:?}, by the runtime {down} ms");
    assert!(report.ready_at > report.started_at, "{report:?}");
}

#[test]
fn ten_in_a_row_and_one_old_instance_is_left() {
    let pod = Pod::run(Lab::shared(), "ten", PAIR);
    let before = pod.facts();
    for cycle in 1..=10 {
        let status = pod.restart(&["app"]);
        let report = &status.containers[0];
        assert_eq!((report.from.attempt, report.to.as_ref().unwrap().attempt), (cycle - 1, cycle));
        assert!(report.downtime_ms.is_some(), "{status:?}");
        let facts = pod.facts().settled();
        let attempts: Vec<_> = facts.of("app").map(|instance| instance.attempt).collect();
        assert_eq!(attempts, [cycle - 1, cycle]);
        assert_eq!(kept(&facts), kept(&before));
    }
}

#[test]
fn each_instance_has_a_log_of_its_own_and_old_ones_go() {
    let spec = "
containers:
- {name: app, image: lab/app:v1, command: [sh, -c, 'echo start `cat /dev/shm/*`; exec app']}
- {name: side, image: lab/app:v1}
";
    let pod = Pod::run(Lab::shared(), "logs", spec);
    for cycle in 1..=3 {
        pod.remember("cycle", &cycle.to_string());
        pod.restart(&["app"]);
        let log = pod.facts().running("app").log.clone();
        assert!(log.ends_with(&format!("/app/{cycle}.log")), "{log}");
        let line = format!("stdout F start {cycle}\n");
        eventually(&line, || fs::read_to_string(&log).ok().filter(|text| text.ends_with(&line)));
    }
    let log = pod.facts().running("app").log.clone();
    let folder = fs::read_dir(std::path::Path::new(&log).parent().unwrap()).unwrap();
    let mut names: Vec<_> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["2.log", "3.log"]);
}

#[test]
fn several_go_one_after_the_other_as_they_are_named() {
    let spec = "
terminationGracePeriodSeconds: 2
containers:
- {name: a, image: lab/app:v1}
- {name: b, image: lab/app:v1}
- {name: c, image: lab/app:v1}
";
    let pod = Pod::run(Lab::shared(), "order", spec);
    let before = pod.facts();
    let status = pod.restart(&["c", "a"]);
    let names: Vec<_> = status.containers.iter().map(|report| report.name.as_str()).collect();
    assert_eq!(names, ["c", "a"]);
    let after = pod.facts().settled();
    assert_eq!(after.running("b"), before.running("b"));
    assert_eq!((after.running("a").attempt, after.running("c").attempt), (1, 1));
    let first_a = after.of("a").next().unwrap();
    assert!(after.running("c").started_at < first_a.finished_at, "{after:#?}");
}

#[test]
fn an_id_is_run_once() {
    let pod = Pod::run(Lab::shared(), "once", PAIR);
    let run = |id: &str| pod.operate("restart", &["-c", "app", "--id", id]);
    let first = run("x").is(Phase::Succeeded);
    let facts = pod.facts();
    assert_eq!(run("x").is(Phase::Succeeded), first);
    assert_eq!(pod.facts(), facts);
    run("y").is(Phase::Succeeded);
    assert_eq!(pod.facts().settled().running("app").attempt, 2);
    // An older ID is recognized too, though its status is no longer stored.
    assert_eq!(run("x").is(Phase::Refused).reason, "AlreadyEnded");
    assert_eq!(pod.facts().running("app").attempt, 2);
}

#[test]
fn a_container_that_does_not_listen_is_killed_after_its_grace() {
    let spec = "
terminationGracePeriodSeconds: 3
containers:
- {name: app, image: lab/app:stubborn}
";
    let pod = Pod::run(Lab::shared(), "stubborn", spec);
    let status = pod.restart(&["app"]);
    let facts = pod.facts().settled();
    let old = facts.of("app").next().unwrap();
    assert_eq!((old.attempt, old.exit_code), (0, 137));
    let report = &status.containers[0];
    let waited = report.stopped_at.unwrap().duration_since(status.started_at.unwrap()).as_secs();
    assert!((3..60).contains(&waited), "{waited} s");
}

#[test]
fn what_cannot_be_is_refused_and_touches_nothing() {
    let pod = Pod::run(Lab::shared(), "refused", PAIR);
    let before = pod.facts();
    for (args, reason) in [
        (&["-c", "nobody"][..], "UnknownContainer"),
        (&["-c", "app,app"], "InvalidRequest"),
        (&["-c", "app", "--deadline", "1"], "DeadlineTooShort"),
        (&["-c", "app,nobody"], "UnknownContainer"),
    ] {
        let status = pod.operate("restart", args).is(Phase::Refused);
        assert_eq!(status.reason, reason, "{status:?}");
        assert!(status.message.ends_with("Nothing was touched"), "{status:?}");
    }
    assert_eq!(pod.facts(), before);
}

#[test]
fn two_at_once_are_not_mixed() {
    let pod = Pod::run(Lab::shared(), "twice", PAIR);
    let mut children: Vec<_> = (0..2)
        .map(|_| {
            let mut command = pod.command("restart", &["-c", "app"]);
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    let codes: Vec<_> = children.iter_mut().map(|child| child.wait().unwrap().code().unwrap()).collect();
    let done = u32::try_from(codes.iter().filter(|code| **code == 0).count()).unwrap();
    assert!(done > 0 && codes.iter().all(|code| [0, 7].contains(code)), "{codes:?}");
    assert_eq!(pod.facts().settled().running("app").attempt, done);
}
