//! A pod on a lab: run from YAML, changed through the program, looked at through the runtime.
//!
//! The program runs in the lab's mount namespace, as it does on a node.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use inplace::{
    api::status::{Phase, Status},
    cri::{
        client::Client,
        endpoint::Endpoint,
        proto::v1::{ContainerState, ContainerStatus},
    },
};
use tempfile::TempDir;

use crate::lab::Lab;

/// Two containers, `app` and `side`, that go at once when they are told to.
pub(crate) const PAIR: &str = "
terminationGracePeriodSeconds: 2
containers:
- {name: app, image: lab/app:v1}
- {name: side, image: lab/app:v1}
";

/// A pod that runs, and goes with the value.
#[derive(Debug)]
pub(crate) struct Pod<'a> {
    pub(crate) lab: &'a Lab,
    /// The program's `--state-dir`.
    pub(crate) state: TempDir,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) exit: ExitStatus,
    pub(crate) out: String,
    pub(crate) told: String,
}

/// What the runtime and the kernel show of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) sandbox: String,
    pub(crate) ip: String,
    /// Every container but the fences, by name and attempt.
    pub(crate) lives: Vec<Life>,
    /// The ids of the fences.
    pub(crate) fences: Vec<String>,
    /// The files in the pod's shared memory.
    pub(crate) shm: BTreeMap<String, String>,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) name: String,
    pub(crate) attempt: u32,
    pub(crate) id: String,
    pub(crate) state: ContainerState,
    pub(crate) exit_code: i32,
    /// The id of its image.
    pub(crate) image: String,
    pub(crate) log: String,
    /// Nanoseconds, by the runtime's clock; 0 for never.
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    /// Its first process; 0 when it does not run.
    pub(crate) pid: u32,
    /// When that was started, in clock ticks.
    pub(crate) ticks: u64,
    /// What its image is, from inside.
    pub(crate) version: String,
    /// Its network and its IPC namespace.
    pub(crate) namespaces: String,
}

impl<'a> Pod<'a> {
    /// Runs a pod whose `spec` is the YAML given; `lab/app:v1` is an image of the lab's registry.
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

    /// `inplace node VERB --pod THIS ARGS`, to be started by the caller.
    pub(crate) fn command(&self, verb: &str, args: &[&str]) -> Command {
        let mut all = vec!["node", verb, "-o", "json", "--pod", &self.name];
        let limit = !args.contains(&"--deadline") && verb != "rm" && verb != "ps";
        all.extend(limit.then_some(["--deadline", "90"]).iter().flatten());
        all.extend(args);
        self.program(&all)
    }

    /// The same, run to its end.
    pub(crate) fn operate(&self, verb: &str, args: &[&str]) -> Ended {
        Ended::of(&self.command(verb, args).output().unwrap())
    }

    /// Restarts containers, which must succeed.
    pub(crate) fn restart(&self, containers: &[&str]) -> Status {
        self.operate("restart", &["-c", &containers.join(",")]).is(Phase::Succeeded)
    }

    /// Puts a file into the pod's shared memory.
    pub(crate) fn remember(&self, file: &str, text: &str) {
        let path = format!("/proc/{}/root/dev/shm/{file}", self.facts().running("side").pid);
        fs::write(path, text).unwrap();
    }

    /// What is to be seen of it now.
    pub(crate) fn facts(&self) -> Facts {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.look())
    }

    async fn look(&self) -> Facts {
        let client = Client::new(&Endpoint::parse(&self.lab.endpoint).unwrap(), None);
        let label = Some(("io.kubernetes.pod.uid", self.uid.as_str()));
        let [sandbox] = client.sandboxes(label).await.unwrap().try_into().unwrap();
        let answer = client.sandbox(&sandbox.id, false).await.unwrap().unwrap();
        let mut facts = Facts {
            sandbox: sandbox.id,
            ip: answer.status.unwrap().network.unwrap_or_default().ip,
            lives: Vec::new(),
            fences: Vec::new(),
            shm: BTreeMap::new(),
        };
        for container in client.containers(label).await.unwrap() {
            if container.labels["io.kubernetes.container.name"] == "inplace-fence" {
                facts.fences.push(container.id);
                continue;
            }
            // It may have been removed meanwhile.
            let Some(answer) = client.container(&container.id, true).await.unwrap() else { continue };
            let info: serde_json::Value = serde_json::from_str(&answer.info["info"]).unwrap();
            let mut life = Life::of(answer.status.unwrap(), &info);
            // One whose image was removed keeps the reference.
            if let Some(image) = client.image(&life.image, false).await.unwrap() {
                life.image = image.image.unwrap().id;
            }
            facts.lives.push(life);
        }
        facts.lives.sort_by(|a, b| (&a.name, a.attempt).cmp(&(&b.name, b.attempt)));
        if let Some(life) = facts.lives.iter().find(|life| life.pid != 0) {
            facts.shm = files(&format!("/proc/{}/root/dev/shm", life.pid));
        }
        facts
    }

    /// The program on this runtime and state directory, in the lab's mount namespace. It keeps its PID: `nsenter`
    /// becomes the program.
    pub(crate) fn program(&self, args: &[&str]) -> Command {
        let args: Vec<_> = args.iter().map(|arg| self.named(arg)).collect();
        wrapped(self.lab, self.state.path(), &args)
    }

    fn named(&self, text: &str) -> String {
        text.replace("lab/", &format!("{}/", self.lab.registry))
    }
}

/// See [`Pod::program`].
pub(crate) fn wrapped(lab: &Lab, state: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let anchor = fs::read_to_string(lab.dir.join("pids/anchor")).unwrap();
    let mut command = Command::new("nsenter");
    command.args(["--mount", "--target", anchor.trim(), env!("CARGO_BIN_EXE_inplace")]).args(args);
    command.env("INPLACE_RUNTIME_ENDPOINT", &lab.endpoint);
    command.env("INPLACE_STATE_DIR", state).env("INPLACE_IMAGE_RESERVE", "1");
    command.stdin(Stdio::null());
    command
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let ended = self.operate("rm", &[]);
        // A pod that failed its test goes with its lab.
        assert!(thread::panicking() || ended.exit.success(), "{ended:?}");
    }
}

impl Ended {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { exit: output.status, out: text(&output.stdout), told: text(&output.stderr) }
    }

    /// The status that was printed, which must be of this phase, with the exit code that belongs to it.
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

impl Facts {
    /// The one running container of that name.
    pub(crate) fn running(&self, name: &str) -> &Life {
        let running: Vec<_> = self.of(name).filter(|life| life.pid != 0).collect();
        assert_eq!(running.len(), 1, "{name}: {self:#?}");
        running[0]
    }

    /// All containers of that name.
    pub(crate) fn of(&self, name: &str) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(move |life| life.name == name)
    }

    /// Holds when one container of each name runs, and nothing half-made is left.
    pub(crate) fn settled(self) -> Self {
        for life in &self.lives {
            self.running(&life.name);
            assert_ne!(life.state, ContainerState::ContainerCreated, "{self:#?}");
        }
        assert!(self.fences.is_empty(), "{self:#?}");
        self
    }

    /// The lines of a file in the shared memory.
    pub(crate) fn lines(&self, file: &str) -> Vec<&str> {
        self.shm.get(file).map(|text| text.lines().collect()).unwrap_or_default()
    }
}

impl Life {
    fn of(status: ContainerStatus, info: &serde_json::Value) -> Self {
        let state = status.state();
        let running = state == ContainerState::ContainerRunning;
        let pid = if running { u32::try_from(info["pid"].as_u64().unwrap()).unwrap() } else { 0 };
        let namespace = |kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap_or_default();
        let version = fs::read_to_string(format!("/proc/{pid}/root/etc/version")).unwrap_or_default();
        let metadata = status.metadata.unwrap();
        Self {
            name: metadata.name,
            attempt: metadata.attempt,
            id: status.id,
            state,
            exit_code: status.exit_code,
            image: status.image_ref,
            log: status.log_path,
            started_at: status.started_at,
            finished_at: status.finished_at,
            pid,
            ticks: ticks(pid).unwrap_or_default(),
            version: version.trim().to_owned(),
            namespaces: format!("{} {}", namespace("net").display(), namespace("ipc").display()),
        }
    }
}

/// When a process was started.
fn ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

fn files(folder: &str) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let read = entries.filter_map(|entry| {
        Some((entry.file_name().into_string().ok()?, fs::read_to_string(entry.path()).ok()?))
    });
    read.collect()
}
