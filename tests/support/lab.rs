//! A private node for tests: containerd and a registry of its own, created and removed by `tests/lab/lab.sh`, or by
//! a script that extends it.
//!
//! [`Lab::shared`] is one lab for the whole test process, for tests that only add pods with their own names. A test
//! that stops containerd, fills its disk or counts everything on the node creates a lab of its own with
//! [`Lab::own`].

use std::{
    env,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{self, Command, Output, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::support::panics;

/// The advice if a program is missing.
const HINT: &str = "run: make setup";

/// How a private lab differs from the shared one.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Puts containerd's root on a tmpfs of this size, such as `64m`.
    pub(crate) root_size: Option<String>,
}

/// A running containerd with an empty store, a registry with the images of `tests/lab/images.sh`, and a network.
#[derive(Debug)]
pub(crate) struct Lab {
    /// The folder of the lab; all its files are below it.
    pub(crate) dir: PathBuf,
    /// The runtime's endpoint, `unix://...`.
    pub(crate) endpoint: String,
    /// The registry's address, `127.0.0.1:PORT`.
    pub(crate) registry: String,
    /// The script in `tests/lab` that creates and removes the lab.
    script: &'static str,
}

impl Lab {
    /// The lab that the tests of this process share. It is removed when the process has ended, however that happens.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Lab> = OnceLock::new();
        SHARED.get_or_init(|| Self::own(&Options::default()))
    }

    /// A lab for the caller alone; removed on drop.
    pub(crate) fn own(options: &Options) -> Self {
        Self::made_by("lab.sh", options)
    }

    /// Same as [`Self::own`], created by another script of `tests/lab` that supports all actions of `lab.sh`.
    pub(crate) fn made_by(script: &'static str, options: &Options) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The tests of a lab take minutes.
        panics::print_at_once();
        // Short, because socket paths are below it.
        let name = format!("inplace-lab.{}.{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut lab = Self {
            dir: env::temp_dir().join(name),
            endpoint: String::new(),
            registry: String::new(),
            script,
        };
        // The guard starts first, so that a test killed during the start of the lab leaves nothing behind either.
        run(lab.script("guard").arg(process::id().to_string()));
        let mut up = lab.script("up");
        up.env_remove("LAB_ROOT_SIZE");
        up.envs(options.root_size.as_ref().map(|size| ("LAB_ROOT_SIZE", size)));
        run(&mut up);
        lab.endpoint = setting(&lab.dir, "INPLACE_RUNTIME_ENDPOINT");
        lab.registry = setting(&lab.dir, "REGISTRY");
        lab
    }

    /// Kills containerd only: shims and containers keep running.
    pub(crate) fn kill_containerd(&self) {
        run(&mut self.script("kill-containerd"));
    }

    /// Starts containerd again; it answers when this returns.
    pub(crate) fn start_containerd(&self) {
        run(&mut self.script("start-containerd"));
    }

    /// The full name of an image: `app:v1` is `127.0.0.1:PORT/app:v1`.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.registry)
    }

    /// The same image by its digest: `127.0.0.1:PORT/app@sha256:...`.
    pub(crate) fn digest(&self, name: &str) -> String {
        let digests = fs::read_to_string(self.dir.join("digests")).unwrap();
        let digest = digests.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let repository = name.split(':').next().unwrap_or(name);
        format!(
            "{}/{repository}@{}",
            self.registry,
            digest.unwrap_or_else(|| panic!("there is no image {name}"))
        )
    }

    /// Pushes an OCI archive to the registry, under a name such as `big:v1`.
    pub(crate) fn push(&self, archive: &Path, name: &str) {
        run(self.script("push").arg(archive).arg(name));
    }

    /// Runs `ctr` on this containerd and returns its output.
    pub(crate) fn ctr<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        run(self.script("ctr").args(args))
    }

    /// Runs the program under test on this runtime. The caller passes `--state-dir`.
    pub(crate) fn inplace<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        self.inplace_command(args).output().unwrap()
    }

    /// Same as [`Self::inplace`], but the caller starts it: for tests that kill it, or set more environment
    /// variables.
    pub(crate) fn inplace_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
        command.args(args).env("INPLACE_RUNTIME_ENDPOINT", &self.endpoint).stdin(Stdio::null());
        command
    }

    /// The command `SCRIPT ACTION DIR` of the lab's script.
    pub(crate) fn script(&self, action: &str) -> Command {
        let mut command = Command::new("bash");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab").join(self.script));
        command.arg(action).arg(&self.dir);
        command
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let done = self.script("down").status();
        // A panic in a drop during a panic would hide the first one.
        assert!(
            std::thread::panicking() || done.is_ok_and(|status| status.success()),
            "the lab did not go down"
        );
    }
}

/// A value from the settings file of the lab in `dir`.
pub(crate) fn setting(dir: &Path, key: &str) -> String {
    let settings = fs::read_to_string(dir.join("env")).unwrap();
    let line = settings.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("the lab does not tell its {key}")).to_owned()
}

/// Runs a command to its end and returns its standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            panic!("{} is missing; {HINT}", command.get_program().display())
        }
        Err(error) => panic!("{command:?}: {error}"),
    };
    let reported = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {reported}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
