//! The program is killed at every possible point: the same command afterwards completes the operation, and nothing
//! is done twice.

use std::{
    fs,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use inplace::{api::status::Phase, cri::proto::v1::ContainerState};

use crate::{
    pod::{Ended, Pod, handles_sigterm},
    support::facts::{Facts, Instance},
    support::lab::{Lab, Options},
    support::wait::eventually,
};

/// Each instance of `app` writes a line when it starts, and its preStop handler writes another line. v3 exits at
/// once. The grace is longer than the handler takes on a busy machine.
const SPEC: &str = "
terminationGracePeriodSeconds: 30
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, 'cat /etc/version >>/dev/shm/starts; grep -q v3 /etc/version && exit 3; exec app']
  lifecycle: {preStop: {exec: {command: [sh, -c, 'echo stop >>/dev/shm/stops']}}}
- {name: side, image: lab/app:v1}
";

/// How many pods are tested concurrently.
const WORKERS: usize = 4;

/// The requested operation, on a pod whose `app` runs v1 or v2.
#[derive(Clone, Copy, Debug)]
enum Requested {
    Restart,
    /// A swap to v2, or back to v1.
    Swap,
    /// A swap to v3, which crashes.
    Crash,
}

impl Requested {
    fn command(self, pod: &Pod<'_>, before: &Facts, id: &str) -> Command {
        let image = match (self, before.running("app").version.as_str()) {
            (Self::Restart, _) => return pod.command("restart", &["-c", "app", "--id", id]),
            (Self::Crash, _) => {
                // On a busy machine the app crashes seconds after the runtime has reported its start.
                return pod.command("swap", &["app=lab/app:v3", "--min-ready", "20s", "--id", id]);
            }
            (Self::Swap, "v1") => "app=lab/app:v2",
            (Self::Swap, _) => "app=lab/app:v1",
        };
        pod.command("swap", &[image, "--id", id])
    }

    /// The expected phase, wherever the process is killed.
    fn phase(self) -> Phase {
        if matches!(self, Self::Crash) { Phase::RolledBack } else { Phase::Succeeded }
    }

    /// The instances that must have been started.
    fn starts(self, from: &str) -> Vec<&str> {
        match self {
            Self::Restart => vec![from],
            Self::Swap => vec![if from == "v1" { "v2" } else { "v1" }],
            Self::Crash => vec!["v3", from],
        }
    }
}

/// One pod, and the operation to test on it.
struct Case<'a> {
    pod: Pod<'a>,
    requested: Requested,
}

impl<'a> Case<'a> {
    /// Runs one round first, so that the next one has an old instance to remove.
    fn new(lab: &'a Lab, requested: Requested) -> Self {
        let case = Self { pod: Pod::run(lab, "crash", SPEC), requested };
        let before = case.before();
        case.command(&before, "first").status().unwrap();
        case.holds(&before, "first", 1..=1);
        case
    }

    /// The points at which the process can be killed: the name of each, with how many times it was passed by then.
    /// Not its number among all points: an effect that is repeated, as on a busy machine, shifts the ones after it.
    /// A pull is repeated if the stop follows late, so only its first one is certain to come again.
    fn points(&self) -> Vec<(usize, String)> {
        let trace = self.pod.state.path().join("trace");
        let before = self.before();
        self.command(&before, "trace").env("INPLACE_FAULT_TRACE", &trace).status().unwrap();
        self.holds(&before, "trace", 1..=1);
        let text = fs::read_to_string(trace).unwrap();
        let names: Vec<_> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
        let passed = |at: usize| names[..=at].iter().filter(|&&name| name == names[at]).count();
        let points = names.iter().enumerate().map(|(at, &name)| (passed(at), name.to_owned()));
        points.filter(|(passed, name)| *passed == 1 || !name.ends_with(" Pull")).collect()
    }

    /// The state before the operation, once the running `app` has written its line.
    fn before(&self) -> Facts {
        eventually("the running container's line", || Some(self.pod.facts()).filter(has_written)).settled()
    }

    /// Without output: only the resulting state matters.
    fn command(&self, before: &Facts, id: &str) -> Command {
        let mut command = self.requested.command(&self.pod, before, id);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs the command for the last time; it must end as if it had never been killed.
    fn ends(&self, before: &Facts, id: &str, stops: std::ops::RangeInclusive<usize>) {
        let mut command = self.requested.command(&self.pod, before, id);
        let ended = Ended::of(&command.output().unwrap());
        let status = ended.is(self.requested.phase());
        assert_eq!(status.id, id);
        self.holds(before, id, stops);
    }

    /// Verifies that exactly the requested operation has happened since `before`, once.
    fn holds(&self, before: &Facts, id: &str, stops: std::ops::RangeInclusive<usize>) {
        let old = before.running("app");
        let starts =
            self.requested.starts(&old.version).iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
        let since = |facts: &Facts, file: &str| {
            facts
                .lines(file)
                .iter()
                .skip(before.lines(file).len())
                .map(|&line| line.to_owned())
                .collect::<Vec<_>>()
        };
        let after = eventually("the running container's line", || Some(self.pod.facts()).filter(has_written));
        let after = after.settled();
        let started = since(&after, "starts");
        if id.starts_with("odd") {
            assert!(cut_off_once(&started, &starts), "{id}: {started:?} instead of {starts:?}: {after:#?}");
        } else {
            assert_eq!(started, starts, "{id}: {after:#?}");
        }
        let stopped = since(&after, "stops").len();
        assert!(stops.contains(&stopped), "{id}: preStop ran {stopped} times");
        let instances = u32::try_from(starts.len()).unwrap();
        let lost = || after.of("app").filter(|&instance| never_ran(instance));
        let newer = u32::try_from(lost().filter(|lost| lost.attempt > old.attempt).count()).unwrap();
        assert!(newer == 0 || newer == 1 && id.starts_with("odd"), "{id}: {after:#?}");
        assert_eq!(after.running("app").attempt, old.attempt + instances + newer, "{id}");
        assert_eq!(after.running("side"), before.running("side"), "{id}");
        assert_eq!((&after.sandbox, &after.ip), (&before.sandbox, &before.ip), "{id}");
        // The previous container is kept, and the crashed one.
        assert!(after.of("app").count() <= starts.len() + 1 + lost().count(), "{id}: {after:#?}");
    }
}

/// True for a container whose start was cancelled and which containerd then cannot remove, because its task stays created.
/// containerd 1.6 does that when the caller of the start is killed while containerd reads the process ID of the task.
fn never_ran(instance: &Instance) -> bool {
    instance.state == ContainerState::ContainerExited && instance.started_at == 0
}

/// True if the only running `app` has written its first line, and its shell has executed the program, which handles
/// SIGTERM.
fn has_written(facts: &Facts) -> bool {
    let running = facts.running("app");
    let program = fs::read_to_string(format!("/proc/{}/comm", running.pid)).unwrap_or_default();
    let is_app = program.trim() == "app" && handles_sigterm(running.pid);
    is_app && facts.lines("starts").last().copied() == Some(running.version.as_str())
}

/// A runtime whose caller is killed during a start may end the container that it starts, either before that
/// container has written its line or after it; in the second case the line appears twice. One kill interrupts one
/// start. The container that runs in the end was not interrupted.
fn cut_off_once(started: &[String], expected: &[String]) -> bool {
    let mut lines = started.to_vec();
    lines.dedup();
    !lines.is_empty() && expected.ends_with(&lines) && started.len() <= expected.len() + 1
}

/// Kills the command at each of its points, and runs it again.
fn at_every_point(requested: Requested) {
    let points = Case::new(Lab::shared(), requested).points();
    assert!(points.iter().any(|(_, name)| name == "after effect Start"), "{points:?}");
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let case = Case::new(Lab::shared(), requested);
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some((passed, name)) = points.get(at) else { break };
                    let id = format!("{}-{name}", at + 1).replace(' ', "-");
                    let before = case.before();
                    let mut command = case.command(&before, &id);
                    let killed =
                        command.env("INPLACE_FAULT_AT", format!("{passed} {name}")).output().unwrap();
                    assert!(Ended::of(&killed).was_killed(), "{id}: {killed:?}");
                    // Once the journal records that the handler has begun, the handler is not run again.
                    let unsure = ["after journal PreStop", "before effect PreStop"].contains(&name.as_str());
                    case.ends(&before, &id, if unsure { 0..=0 } else { 1..=1 });
                }
            });
        }
    });
}

#[test]
fn a_restart_killed_at_every_point() {
    at_every_point(Requested::Restart);
}

#[test]
fn a_swap_killed_at_every_point() {
    at_every_point(Requested::Swap);
}

#[test]
fn a_rollback_killed_at_every_point() {
    at_every_point(Requested::Crash);
}

/// A sequence of processes that run two effects each completes the operation. One effect would not suffice: the
/// result of a pull is journalled with the effect that follows.
#[test]
fn killed_after_every_second_effect() {
    for requested in [Requested::Restart, Requested::Swap, Requested::Crash] {
        let case = Case::new(Lab::shared(), requested);
        let before = case.before();
        let mut instances = 0;
        loop {
            let mut command = case.command(&before, "one-by-one");
            // Two effects, each with the points before and after the journal and before and after the effect.
            if !Ended::of(&command.env("INPLACE_FAULT_AT", "8").output().unwrap()).was_killed() {
                break;
            }
            instances += 1;
            assert!(instances < 30, "{requested:?} does not come to an end");
        }
        assert!(instances > 2, "{instances}");
        case.ends(&before, "one-by-one", 1..=1);
    }
}

/// Kills in the middle of calls, too.
#[test]
fn killed_at_odd_moments() {
    let lab = Lab::own(&Options::default());
    let next = AtomicUsize::new(0);
    let worker = |worker: usize| {
        let requested = [Requested::Restart, Requested::Crash][worker % 2];
        let case = Case::new(&lab, requested);
        loop {
            let cycle = next.fetch_add(1, Ordering::Relaxed);
            if cycle >= 40 {
                return case;
            }
            let before = case.before();
            let id = format!("odd-{cycle}");
            let mut child = case.command(&before, &id).spawn().unwrap();
            // Not a wait for a condition: the moment of the kill is what varies.
            thread::sleep(Duration::from_millis(u64::try_from(20 + cycle * 13).unwrap()));
            child.kill().unwrap();
            child.wait().unwrap();
            case.ends(&before, &id, 0..=1);
        }
    };
    let cases: Vec<Case<'_>> = thread::scope(|scope| {
        let worker = &worker;
        let workers: Vec<_> = (0..WORKERS).map(|index| scope.spawn(move || worker(index))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    // docs/limits.md: containerd keeps such a container, and with it the pod, until it is restarted.
    if cases.iter().any(|case| case.pod.facts().of("app").any(never_ran)) {
        lab.kill_containerd();
        lab.start_containerd();
    }
}
