//! A private node for tests: containerd and a registry of their own, made and removed by `tests/lab/lab.sh`, or by a script
//! that makes more of it.
//!
//! [`Lab::shared`] is one lab for the whole test process, for tests that only add pods of their own names. A test that
//! stops containerd, fills its disk or counts everything on the node takes one for itself with [`Lab::own`].

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

/// Where `make setup` is asked for.
const HINT: &str = "run: make setup";

/// How a lab of one's own differs from the shared one.
#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Puts containerd's root on a tmpfs of this size, as in `64m`.
    pub(crate) root_size: Option<String>,
    /// Another containerd binary.
    pub(crate) containerd: Option<PathBuf>,
}

/// A running containerd with an empty store, a registry with the images of `tests/lab/images.sh`, and a network.
#[derive(Debug)]
pub(crate) struct Lab {
    /// Everything of the lab is below this folder.
    pub(crate) dir: PathBuf,
    /// The runtime's endpoint, `unix://...`.
    pub(crate) endpoint: String,
    /// The registry's address, `127.0.0.1:PORT`.
    pub(crate) registry: String,
    /// What made it and takes it down, in `tests/lab`.
    script: &'static str,
}

impl Lab {
    /// The lab that the tests of this process share. It goes when the process has gone, however that happens.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Lab> = OnceLock::new();
        SHARED.get_or_init(|| Self::own(&Options::default()))
    }

    /// A lab for the caller alone, gone when it is dropped.
    pub(crate) fn own(options: &Options) -> Self {
        Self::made_by("lab.sh", options)
    }

    /// The same, made by another script of `tests/lab` that knows all that `lab.sh` knows.
    pub(crate) fn made_by(script: &'static str, options: &Options) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Short, because of the sockets in it.
        let name = format!("inplace-lab.{}.{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mut lab = Self {
            dir: env::temp_dir().join(name),
            endpoint: String::new(),
            registry: String::new(),
            script,
        };
        // The guard comes first, so that a test killed while the lab starts leaves nothing either.
        run(lab.script("guard").arg(process::id().to_string()));
        let mut up = lab.script("up");
        up.env_remove("LAB_ROOT_SIZE").env_remove("LAB_CONTAINERD");
        up.envs(options.root_size.as_ref().map(|size| ("LAB_ROOT_SIZE", size)));
        up.envs(options.containerd.as_ref().map(|path| ("LAB_CONTAINERD", path)));
        run(&mut up);
        lab.endpoint = setting(&lab.dir, "INPLACE_RUNTIME_ENDPOINT");
        lab.registry = setting(&lab.dir, "REGISTRY");
        lab
    }

    /// Kills containerd, and nothing else: shims and containers live on.
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

    /// Puts an OCI archive into the registry, under a name like `big:v1`.
    pub(crate) fn push(&self, archive: &Path, name: &str) {
        run(self.script("push").arg(archive).arg(name));
    }

    /// Runs `ctr` on this containerd and gives what it printed.
    pub(crate) fn ctr<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        run(self.script("ctr").args(args))
    }

    /// Runs the program under test on this runtime. `--state-dir` is the caller's business.
    pub(crate) fn inplace<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        self.inplace_command(args).output().unwrap()
    }

    /// The same, to be started by the caller: for tests that kill it, or give it more environment.
    pub(crate) fn inplace_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
        command.args(args).env("INPLACE_RUNTIME_ENDPOINT", &self.endpoint).stdin(Stdio::null());
        command
    }

    /// `lab.sh ACTION DIR`.
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

/// What the lab in `dir` tells of itself.
pub(crate) fn setting(dir: &Path, key: &str) -> String {
    let settings = fs::read_to_string(dir.join("env")).unwrap();
    let line = settings.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("the lab does not tell its {key}")).to_owned()
}

/// Runs a command to its end and gives its standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            panic!("{} is missing; {HINT}", command.get_program().display())
        }
        Err(error) => panic!("{command:?}: {error}"),
    };
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {told}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
