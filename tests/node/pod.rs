//! A pod on a lab: created from YAML, changed through the program, observed through the runtime.
//!
//! The program runs in the lab's mount namespace, as it does on a node.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use inplace::api::status::{Phase, Status};
use tempfile::TempDir;

use crate::{
    support::facts::{Facts, observe},
    support::lab::Lab,
    support::wait::eventually,
};

/// Two containers, `app` and `side`, that exit at once on their stop signal.
pub(crate) const PAIR: &str = "
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1}
- {name: side, image: lab/app:v1}
";

/// v3 of `app` ends with an error once the file `end` exists.
pub(crate) const ENDS_WHEN_ASKED: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, 'grep -q v3 /etc/version || exec app; until test -e /dev/shm/end; do sleep 0.1; done; exit 1']
- {name: side, image: lab/app:v2}
";

/// A running pod; removed on drop.
#[derive(Debug)]
pub(crate) struct Pod<'a> {
    pub(crate) lab: &'a Lab,
    /// The program's `--state-dir`.
    pub(crate) state: TempDir,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The result of a run of the program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) exit: ExitStatus,
    pub(crate) out: String,
    pub(crate) reported: String,
}

impl<'a> Pod<'a> {
    /// Runs a pod with the given YAML `spec`; `lab/app:v1` is an image of the lab's registry.
    pub(crate) fn run(lab: &'a Lab, name: &str, spec: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut pod = Self { lab, state: tempfile::tempdir().unwrap(), name, uid: String::new() };
        let spec = pod.named(spec).replace('\n', "\n  ");
        let manifest =
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {}}}\nspec:\n  {spec}\n", pod.name);
        let file = pod.state.path().join("pod.yaml");
        fs::write(&file, manifest).unwrap();
        let mut command = pod.program(&["node", "run", "-o", "json", "-f", file.to_str().unwrap()]);
        let ended = Ended::of(&command.output().unwrap());
        assert!(ended.exit.success(), "{ended:?}");
        let answer: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
        answer["pod"]["uid"].as_str().unwrap().clone_into(&mut pod.uid);
        pod
    }

    /// The command `inplace node VERB --pod THIS ARGS`, for the caller to start.
    pub(crate) fn command(&self, verb: &str, args: &[&str]) -> Command {
        let mut all = vec!["node", verb, "-o", "json", "--pod", &self.name];
        let limit = !args.contains(&"--deadline") && verb != "rm" && verb != "ps";
        all.extend(limit.then_some(["--deadline", "300"]).iter().flatten());
        all.extend(args);
        self.program(&all)
    }

    /// Same as [`Self::command`], run to its end.
    pub(crate) fn operate(&self, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&self.command(verb, args).output().unwrap())
    }

    /// Restarts containers, which must succeed.
    pub(crate) fn restart(&self, containers: &[&str]) -> Status {
        self.operate("restart", &["-c", &containers.join(",")]).is(Phase::Succeeded)
    }

    /// Waits until `app` handles SIGTERM. Without a handler the first process of a container ignores the signal, and
    /// is killed after its grace.
    pub(crate) fn await_handler(&self) {
        let pid = self.facts().running("app").pid;
        eventually("app to handle SIGTERM", || handles_sigterm(pid).then_some(()));
    }

    /// Writes a file into the pod's shared memory.
    pub(crate) fn remember(&self, file: &str, text: &str) {
        fs::write(self.shared_file(file), text).unwrap();
    }

    /// Removes a file from the pod's shared memory.
    pub(crate) fn forget(&self, file: &str) {
        fs::remove_file(self.shared_file(file)).unwrap();
    }

    fn shared_file(&self, file: &str) -> String {
        format!("/proc/{}/root/dev/shm/{file}", self.facts().running("side").pid)
    }

    /// The present state of the pod.
    pub(crate) fn facts(&self) -> Facts {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(observe(&self.lab.endpoint, &self.uid))
    }

    /// The program on this runtime and state directory, in the lab's mount namespace. The PID stays the same:
    /// `nsenter` executes the program in place.
    pub(crate) fn program(&self, args: &[&str]) -> Command {
        let args: Vec<_> = args.iter().map(|arg| self.named(arg)).collect();
        wrapped(self.lab, self.state.path(), &args)
    }

    fn named(&self, text: &str) -> String {
        text.replace("lab/", &format!("{}/", self.lab.registry))
    }
}

/// True if a process has a handler for SIGTERM.
pub(crate) fn handles_sigterm(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    // The lowest bit is that of signal 1.
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << 14) != 0)
}

/// The start of the command line of the program under test: that of this build, or that of `INPLACE_TEST_PROGRAM`, which names
/// another one and what runs it (`make arm64`).
#[expect(clippy::disallowed_methods, reason = "a test: an environment variable is all that it has")]
fn program() -> Vec<OsString> {
    let other = env::var("INPLACE_TEST_PROGRAM").unwrap_or_default();
    let words: Vec<_> = other.split_whitespace().map(OsString::from).collect();
    if words.is_empty() { vec![env!("CARGO_BIN_EXE_inplace").into()] } else { words }
}

/// See [`Pod::program`].
pub(crate) fn wrapped(lab: &Lab, state: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let anchor = fs::read_to_string(lab.dir.join("pids/anchor")).unwrap();
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--target", anchor.trim()]).args(program()).args(args);
    command.env("INPLACE_RUNTIME_ENDPOINT", &lab.endpoint);
    command.env("INPLACE_STATE_DIR", state).env("INPLACE_IMAGE_RESERVE", "1");
    command.stdin(Stdio::null());
    command
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let ended = self.operate("rm", &[]);
        // After a failed test the pod is removed together with its lab.
        assert!(thread::panicking() || ended.exit.success(), "{ended:?}");
    }
}

impl Ended {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { exit: output.status, out: text(&output.stdout), reported: text(&output.stderr) }
    }

    /// The status that was printed, which must have this phase, with the exit code for it.
    pub(crate) fn is(&self, phase: Phase) -> Status {
        let status: Status = serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("{self:?}"));
        assert_eq!(status.phase, phase, "{self:?}");
        let code = match phase {
            Phase::Succeeded => 0,
            Phase::Failed => 1,
            Phase::Refused => 3,
            Phase::RolledBack => 4,
            Phase::Pending | Phase::Running | Phase::Cancelled => 5,
        };
        assert_eq!(self.exit.code(), Some(code), "{self:?}");
        status
    }

    pub(crate) fn was_killed(&self) -> bool {
        self.exit.signal() == Some(9)
    }
}
