//! The program is killed, again and again, wherever it can be: the same command afterwards ends what was begun, and
//! nothing is done twice.

use std::{
    fs,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use inplace::api::status::Phase;

use crate::{
    facts::Facts,
    lab::Lab,
    pod::{Ended, Pod},
    site::eventually,
};

/// Each life of `app` writes a line when it starts, and its preStop handler another one. v3 ends at once.
const SPEC: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, 'cat /etc/version >>/dev/shm/starts; grep -q v3 /etc/version && exit 3; exec app']
  lifecycle: {preStop: {exec: {command: [sh, -c, 'echo stop >>/dev/shm/stops']}}}
- {name: side, image: lab/app:v1}
";

/// How many pods are worked on at once.
const WORKERS: usize = 4;

/// What is asked for, on a pod whose `app` runs v1 or v2.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Restart,
    /// To v2, or back to v1.
    Swap,
    /// To v3, which crashes.
    Crash,
}

impl Wish {
    fn command(self, pod: &Pod<'_>, before: &Facts, id: &str) -> Command {
        let image = match (self, before.running("app").version.as_str()) {
            (Self::Restart, _) => return pod.command("restart", &["-c", "app", "--id", id]),
            (Self::Crash, _) => "app=lab/app:v3",
            (Self::Swap, "v1") => "app=lab/app:v2",
            (Self::Swap, _) => "app=lab/app:v1",
        };
        pod.command("swap", &[image, "--id", id])
    }

    /// How it must end, whatever happens on the way.
    fn phase(self) -> Phase {
        if matches!(self, Self::Crash) { Phase::RolledBack } else { Phase::Succeeded }
    }

    /// The lives that must have been started.
    fn starts(self, from: &str) -> Vec<&str> {
        match self {
            Self::Restart => vec![from],
            Self::Swap => vec![if from == "v1" { "v2" } else { "v1" }],
            Self::Crash => vec!["v3", from],
        }
    }
}

/// One pod, and what is asked of it.
struct Case<'a> {
    pod: Pod<'a>,
    wish: Wish,
}

impl<'a> Case<'a> {
    /// After one round, so that there is an old life to be removed in the next.
    fn new(lab: &'a Lab, wish: Wish) -> Self {
        let case = Self { pod: Pod::run(lab, "crash", SPEC), wish };
        let before = case.before();
        case.command(&before, "first").status().unwrap();
        case.holds(&before, "first", 1..=1);
        case
    }

    /// The names of the points at which it can be killed.
    fn points(&self) -> Vec<String> {
        let trace = self.pod.state.path().join("trace");
        let before = self.before();
        self.command(&before, "trace").env("INPLACE_FAULT_TRACE", &trace).status().unwrap();
        self.holds(&before, "trace", 1..=1);
        let text = fs::read_to_string(trace).unwrap();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    /// What is there before, once the running `app` has written its line.
    fn before(&self) -> Facts {
        eventually("the running container's line", || Some(self.pod.facts()).filter(has_written)).settled()
    }

    /// Silent: what matters is what is found afterwards.
    fn command(&self, before: &Facts, id: &str) -> Command {
        let mut command = self.wish.command(&self.pod, before, id);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs the command for the last time; it must end as if nothing had happened.
    fn ends(&self, before: &Facts, id: &str, stops: std::ops::RangeInclusive<usize>) {
        let mut command = self.wish.command(&self.pod, before, id);
        let ended = Ended::of(&command.output().unwrap());
        let status = ended.is(self.wish.phase());
        assert_eq!(status.id, id);
        self.holds(before, id, stops);
    }

    /// Exactly what was asked for has happened since `before`, once.
    fn holds(&self, before: &Facts, id: &str, stops: std::ops::RangeInclusive<usize>) {
        let old = before.running("app");
        let starts = self.wish.starts(&old.version).iter().map(|&line| line.to_owned()).collect::<Vec<_>>();
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
        assert_eq!(after.running("app").attempt, old.attempt + instances, "{id}");
        assert_eq!(after.running("side"), before.running("side"), "{id}");
        assert_eq!((&after.sandbox, &after.ip), (&before.sandbox, &before.ip), "{id}");
        // The one before is kept, and what crashed.
        assert!(after.of("app").count() <= starts.len() + 1, "{id}: {after:#?}");
    }
}

/// The one `app` that runs is past the line that it writes first: its shell has executed the program.
fn has_written(facts: &Facts) -> bool {
    let running = facts.running("app");
    let program = fs::read_to_string(format!("/proc/{}/comm", running.pid)).unwrap_or_default();
    program.trim() == "app" && facts.lines("starts").last().copied() == Some(running.version.as_str())
}

/// A runtime whose caller is killed in the middle of a start may end the container that it starts: before that one has
/// written its line, or after it, and then the line is there twice. One kill cuts off one start. What runs in the end was
/// not cut off.
fn cut_off_once(started: &[String], expected: &[String]) -> bool {
    let mut lines = started.to_vec();
    lines.dedup();
    !lines.is_empty() && expected.ends_with(&lines) && started.len() <= expected.len() + 1
}

/// Kills the command at each of its points, and runs it again.
fn at_every_point(wish: Wish) {
    let points = Case::new(Lab::shared(), wish).points();
    assert!(points.iter().any(|point| point == "after effect Start"), "{points:?}");
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                let case = Case::new(Lab::shared(), wish);
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(name) = points.get(at) else { break };
                    let id = format!("{}-{name}", at + 1).replace(' ', "-");
                    let before = case.before();
                    let mut command = case.command(&before, &id);
                    let killed = command.env("INPLACE_FAULT_AT", (at + 1).to_string()).output().unwrap();
                    assert!(Ended::of(&killed).was_killed(), "{id}: {killed:?}");
                    // Once it is in the journal that the handler is begun, it is not begun again.
                    let unsure = ["after journal PreStop", "before effect PreStop"].contains(&name.as_str());
                    case.ends(&before, &id, if unsure { 0..=0 } else { 1..=1 });
                }
            });
        }
    });
}

#[test]
fn a_restart_killed_at_every_point() {
    at_every_point(Wish::Restart);
}

#[test]
fn a_swap_killed_at_every_point() {
    at_every_point(Wish::Swap);
}

#[test]
fn a_rollback_killed_at_every_point() {
    at_every_point(Wish::Crash);
}

/// Processes that live for two effects each come to the end. One would not do: what a pull taught is in the journal
/// with the effect that follows.
#[test]
fn killed_after_every_second_effect() {
    for wish in [Wish::Restart, Wish::Swap, Wish::Crash] {
        let case = Case::new(Lab::shared(), wish);
        let before = case.before();
        let mut instances = 0;
        loop {
            let mut command = case.command(&before, "one-by-one");
            // Twice before and after the journal, before and after the effect.
            if !Ended::of(&command.env("INPLACE_FAULT_AT", "8").output().unwrap()).was_killed() {
                break;
            }
            instances += 1;
            assert!(instances < 30, "{wish:?} does not come to an end");
        }
        assert!(instances > 2, "{instances}");
        case.ends(&before, "one-by-one", 1..=1);
    }
}

/// In the middle of calls, too.
#[test]
fn killed_at_odd_moments() {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let next = &next;
            scope.spawn(move || {
                let wish = [Wish::Restart, Wish::Crash][worker % 2];
                let case = Case::new(Lab::shared(), wish);
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= 40 {
                        break;
                    }
                    let before = case.before();
                    let id = format!("odd-{turn}");
                    let mut child = case.command(&before, &id).spawn().unwrap();
                    // Not a wait for something: the moment is what is tried.
                    thread::sleep(Duration::from_millis(u64::try_from(20 + turn * 13).unwrap()));
                    child.kill().unwrap();
                    child.wait().unwrap();
                    case.ends(&before, &id, 0..=1);
                }
            });
        }
    });
}
