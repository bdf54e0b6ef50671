//! A runtime that is killed in the middle of an operation, or is not reachable at all.

use std::process::{Child, Command, Stdio};

use inplace::api::status::Phase;

use crate::{
    pod::{Ended, Pod},
    support::hold::Holds,
    support::lab::{Lab, Options},
    support::wait::eventually,
};

/// `app` exits one second after its stop signal, and takes two seconds to prepare.
const SPEC: &str = "
terminationGracePeriodSeconds: 5
containers:
- name: app
  image: lab/app:v1
  command:
  - sh
  - -c
  - cat /etc/version >>/dev/shm/starts; trap 'sleep 1; exit 0' TERM; while :; do sleep 3600 & wait $!; done
  lifecycle: {preStop: {exec: {command: [sh, -c, 'echo stop >>/dev/shm/stops; sleep 2']}}}
- {name: side, image: lab/app:v1}
";

/// Starts a command.
fn begin(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Starts a command, and kills the runtime while the command is held at a point. Then both continue.
fn without_runtime(pod: &Pod<'_>, verb: &str, args: &[&str], point: &str) -> Child {
    let holds = Holds::below(pod.state.path());
    holds.set(&pod.uid, point);
    let child = begin(pod.command(verb, args).env("INPLACE_FAULT_HOLD", holds.folder()));
    eventually(point, || holds.held(&pod.uid));
    pod.lab.kill_containerd();
    holds.release();
    pod.lab.start_containerd();
    child
}

#[test]
fn a_runtime_that_is_killed_anywhere_delays_and_spoils_nothing() {
    let lab = Lab::own(&Options::default());
    let pod = Pod::run(&lab, "killed", SPEC);
    let before = pod.facts().settled();
    let points =
        ["before effect Fence", "before effect PreStop", "before effect Stop", "before effect Create"];
    let more = ["after effect Create", "before effect Start", "after effect Start", "before effect Remove"];
    for (cycle, point) in (1..).zip(points.into_iter().chain(more)) {
        let child = without_runtime(&pod, "restart", &["-c", "app"], point);
        Ended::of(&child.wait_with_output().unwrap()).is(Phase::Succeeded);
        let facts = pod.facts().settled();
        assert_eq!(facts.running("app").attempt, cycle, "{point}");
        assert_eq!(facts.running("side"), before.running("side"), "{point}");
        let stops = facts.lines("stops").len();
        assert!(stops <= usize::try_from(cycle).unwrap(), "{point}: {stops}");
        assert!(facts.of("app").count() <= 2, "{point}: {facts:#?}");
    }
}

#[test]
fn a_runtime_that_is_killed_during_a_swap_and_on_the_way_back() {
    let lab = Lab::own(&Options::default());
    let pod = Pod::run(&lab, "swap", &SPEC.replace("; trap", "; grep -q v3 /etc/version && exit 3; trap"));
    let before = pod.facts().settled();
    for (cycle, (image, point, phase, attempts, version)) in [
        ("app=lab/app:v2", "before effect Pull", Phase::Succeeded, 1, "v2"),
        ("app=lab/app:v1", "after effect Stop", Phase::Succeeded, 1, "v1"),
        ("app=lab/app:v3", "before effect Fence", Phase::RolledBack, 2, "v1"),
        ("app=lab/app:v3", "after effect Start", Phase::RolledBack, 2, "v1"),
        ("app=lab/app:v3", "before effect Create", Phase::RolledBack, 2, "v1"),
    ]
    .into_iter()
    .enumerate()
    {
        let old = pod.facts().running("app").attempt;
        // On a busy machine v3 exits seconds after the runtime has reported its start.
        let min_ready = if phase == Phase::RolledBack { "20" } else { "0" };
        let child = without_runtime(&pod, "swap", &[image, "--min-ready", min_ready], point);
        Ended::of(&child.wait_with_output().unwrap()).is(phase);
        let facts = pod.facts().settled();
        let app = facts.running("app");
        assert_eq!((app.attempt - old, app.version.as_str()), (attempts, version), "{cycle} {point}");
        assert_eq!(facts.running("side"), before.running("side"), "{point}");
    }
}

#[test]
fn a_runtime_that_stays_away_ends_it_by_its_deadline_while_nothing_is_touched() {
    let lab = Lab::own(&Options::default());
    let pod = Pod::run(&lab, "away", SPEC);
    let holds = Holds::below(pod.state.path());
    holds.set(&pod.uid, "before effect Create");
    let mut restart = pod.command("restart", &["-c", "app", "--deadline", "40"]);
    let child = begin(restart.env("INPLACE_FAULT_HOLD", holds.folder()));
    eventually("the creation to be next", || holds.held(&pod.uid));
    lab.kill_containerd();
    holds.release();
    let status = Ended::of(&child.wait_with_output().unwrap()).is(Phase::Failed);
    assert_eq!(status.reason, "DeadlineExceeded", "{status:?}");
    assert!(status.message.contains("the runtime could not be reached"), "{status:?}");
    assert!(status.message.contains("were not touched"), "{status:?}");
    let took = status.finished_at.unwrap().duration_since(status.started_at.unwrap()).as_secs();
    assert!((40..120).contains(&took), "{took} s");

    // Without a runtime nothing begins, and there is an exit code for it.
    let ended = pod.operate("restart", &["-c", "app"]);
    assert_eq!(ended.exit.code(), Some(6), "{ended:?}");
    assert!(ended.reported.contains("cannot be reached"), "{ended:?}");
    assert!(ended.out.contains(r#""reason":"RuntimeAway""#), "{ended:?}");

    // What the first command has left is no obstacle.
    lab.start_containerd();
    pod.restart(&["app"]);
    let facts = pod.facts().settled();
    assert_eq!((facts.running("app").attempt, facts.running("side").attempt), (1, 0));
}
