//! The agent under test, as the shipped manifests have it: with the rights of its service account alone, as a process of
//! the node that it serves. And what a person does: writes a request, reads the answer.

#![expect(clippy::print_stderr, reason = "whoever reads a failed test wants the log")]

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use inplace::api::{
    annotation::{REQUEST, STATUS},
    request::Request,
    status::{Phase, Status},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    cluster::{Cluster, Node, block_on},
    kinds::{await_kinds, definitions},
    pod::{PATIENCE, Pod, annotation, eventually},
};

/// What the audit log calls whoever writes for an agent.
pub(crate) const USER: &str = "system:serviceaccount:inplace-system:inplace-agent";

/// How an agent differs from the one that most tests have.
#[derive(Debug, Default)]
pub(crate) struct Setup<'a> {
    /// More arguments for `inplace agent`.
    pub(crate) args: &'a [&'a str],
    /// Variables for its environment, the fault points' for example.
    pub(crate) env: &'a [(&'a str, &'a str)],
}

/// An agent, killed with the value. What it knows stays in the node's folder for the next one.
pub(crate) struct Agent {
    child: Mutex<Child>,
    pid: Pid,
    port: u16,
    log: PathBuf,
}

impl Agent {
    /// The agent on the first node of [`Cluster::shared`], for the whole test process. It goes with the cluster.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Agent> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(Cluster::shared(), &[]))
    }

    /// Starts an agent on the first node, with more arguments if need be. It serves its pods when this returns.
    pub(crate) fn start(cluster: &Cluster, args: &[&str]) -> Self {
        Self::start_with(cluster, &Setup { args, ..Setup::default() })
    }

    /// The same with variables in its environment.
    pub(crate) fn start_with(cluster: &Cluster, setup: &Setup<'_>) -> Self {
        Self::start_on(cluster, &cluster.node(), setup)
    }

    /// The same on another node.
    pub(crate) fn start_on(cluster: &Cluster, node: &Node, setup: &Setup<'_>) -> Self {
        let agent = Self::launch(cluster, node, setup);
        agent.wait_ready();
        agent
    }

    /// Starts one without waiting until it can work: for a runtime or an API server that is away. It listens when this
    /// returns.
    pub(crate) fn launch(cluster: &Cluster, node: &Node, setup: &Setup<'_>) -> Self {
        let state = state(node);
        let state = state.to_str().unwrap();
        let fixed = ["agent", "--node-name", &node.name, "--state-dir", state, "--listen", "127.0.0.1:0"];
        let mut command = node.inplace(&[&fixed[..], setup.args].concat());
        command.env("KUBECONFIG", rights(cluster)).env("INPLACE_IMAGE_RESERVE", "1");
        // As a process of the node it has no image of its own.
        command.env("INPLACE_HOLDER_IMAGE", "localhost/pause:1");
        // What hooks ask in these tests listens on the nodes.
        command.env("INPLACE_HOOK_ALLOW", format!("{},{}", node.ip, cluster.node().ip));
        command.envs(setup.env.iter().copied());
        Self::spawn(command, node)
    }

    /// Starts a controller, which is told from others by its name. It listens when this returns.
    pub(crate) fn controller(cluster: &Cluster, name: &str) -> Self {
        Self::controller_with(cluster, name, &[])
    }

    /// The same with more arguments.
    pub(crate) fn controller_with(cluster: &Cluster, name: &str, args: &[&str]) -> Self {
        let fixed =
            ["controller", "--namespace", "inplace-system", "--identity", name, "--listen", "127.0.0.1:0"];
        let mut command = cluster.inplace(&[&fixed[..], args].concat());
        command.env("KUBECONFIG", rights_of(cluster, "inplace-controller"));
        command.env("INPLACE_HOOK_ALLOW", &cluster.node().ip);
        Self::spawn(command, &cluster.node())
    }

    /// It listens when this returns; its log is with those of `node`.
    fn spawn(mut command: Command, node: &Node) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // One file each, so that the address in it is this agent's.
        let log = node.dir.join(format!("logs/agent.{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let file = File::create(&log).unwrap();
        let mut child = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        let port = eventually("the agent's address", || {
            let text = fs::read_to_string(&log).unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the agent ended with {status}: {text}");
            }
            let line = text.lines().find(|line| line.contains("serving /healthz"))?;
            line.split("address=127.0.0.1:").nth(1)?.trim().parse().ok()
        });
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        Self { child: Mutex::new(child), pid, port, log }
    }

    /// Waits until it says that it can work.
    pub(crate) fn wait_ready(&self) {
        eventually("the agent to be ready", || (self.get("/readyz")?.0 == 200).then_some(()));
    }

    /// `kill -9`; it is gone when this returns.
    pub(crate) fn kill(&self) {
        self.end(Signal::SIGKILL);
    }

    /// SIGSTOP: it does nothing any more, and is still there.
    pub(crate) fn freeze(&self) {
        kill(self.pid, Signal::SIGSTOP).unwrap();
    }

    /// Asks it to end, as a node does with a pod; it is gone when this returns.
    pub(crate) fn stop(&self) {
        self.end(Signal::SIGTERM);
    }

    fn end(&self, signal: Signal) {
        if !self.has_ended() {
            kill(self.pid, signal).unwrap();
            eventually("the agent to end", || self.has_ended().then_some(()));
        }
    }

    /// It is gone, for whatever reason: a fault point, say.
    pub(crate) fn has_ended(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_some()
    }

    /// Code and body of what it serves; `None` while nobody listens.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        get(("127.0.0.1", self.port), path)
    }

    /// Everything it counts, as text.
    pub(crate) fn metrics(&self) -> String {
        let (code, text) = self.get("/metrics").expect("the agent listens");
        assert_eq!(code, 200);
        text
    }

    /// The value of the one sample that has all `parts` in its name and labels; 0 when there is none yet.
    pub(crate) fn metric(&self, parts: &[&str]) -> f64 {
        let text = self.metrics();
        let samples = samples(&text, parts);
        assert!(samples.len() <= 1, "{parts:?}: {samples:?}");
        samples.iter().sum()
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw().try_into().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            let end: Vec<_> = log.lines().rev().take(60).collect();
            eprintln!("--- the end of {}, newest first:\n{}", self.log.display(), end.join("\n"));
        }
        if let Ok(child) = self.child.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Code and body of what is served at an address; `None` while nobody listens.
pub(crate) fn get(address: (&str, u16), path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// The values of the samples that have all `parts` in their name and labels.
pub(crate) fn samples(metrics: &str, parts: &[&str]) -> Vec<f64> {
    let fits = |line: &&str| !line.starts_with('#') && parts.iter().all(|part| line.contains(part));
    metrics.lines().filter(fits).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

/// The `--state-dir` of the agents of a node.
pub(crate) fn state(node: &Node) -> PathBuf {
    node.dir.join("agent")
}

/// A kubeconfig with what the shipped manifests allow an agent.
fn rights(cluster: &Cluster) -> PathBuf {
    rights_of(cluster, "inplace-agent")
}

/// The same for an account: the one of the first process of this cluster that has it, or a new one.
fn rights_of(cluster: &Cluster, account: &'static str) -> PathBuf {
    /// By cluster and account.
    static GIVEN: Mutex<Vec<(PathBuf, &str, PathBuf)>> = Mutex::new(Vec::new());
    let mut given = GIVEN.lock().unwrap();
    let fits = |(of, whose, _): &&(PathBuf, &str, PathBuf)| *of == cluster.kubeconfig && *whose == account;
    if let Some((.., rights)) = given.iter().find(fits) {
        return rights.clone();
    }
    install_rights(cluster);
    let rights = cluster.kubeconfig_of("inplace-system", account);
    given.push((cluster.kubeconfig.clone(), account, rights.clone()));
    rights
}

/// Gives agents and controllers that are started from now on their rights anew, after they were uninstalled.
pub(crate) fn grant(cluster: &Cluster) {
    install_rights(cluster);
    for account in ["inplace-agent", "inplace-controller"] {
        // It lies where the one before it lay.
        cluster.kubeconfig_of("inplace-system", account);
    }
}

fn install_rights(cluster: &Cluster) {
    let base = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/base");
    for file in ["namespace", "serviceaccount", "clusterrole", "clusterrolebinding", "controller-rbac"] {
        cluster.kubectl(&["apply", "-f", base.join(file).with_extension("yaml").to_str().unwrap()]);
    }
    cluster.kubectl(&["apply", "--server-side", "-k", &definitions()]);
    block_on(await_kinds(cluster.client.clone()));
}

impl Pod<'_> {
    /// Writes a request, as a line or as JSON; gives its id.
    pub(crate) fn request(&self, text: &str) -> String {
        self.annotate(REQUEST, Some(text));
        match Request::parse(Some(text)) {
            Ok(request) => request.expect("a request").id,
            // It is refused all the same, and has no id.
            Err(_) => String::new(),
        }
    }

    /// Waits until the request with this id has ended, for at most a minute.
    pub(crate) fn answer(&self, id: &str) -> Status {
        self.answer_within(PATIENCE, id)
    }

    /// The same with another patience.
    pub(crate) fn answer_within(&self, limit: Duration, id: &str) -> Status {
        let ended = |status: &Status| status.id == id && status.phase.is_terminal();
        let mut last = None;
        self.until(limit, &format!("request {id} has ended"), |seen| {
            last = seen.versions.iter().rev().find_map(|version| status(version).filter(ended));
            last.is_some()
        });
        last.unwrap()
    }

    /// Waits until its latest answer is as wanted: one that is under way, say.
    pub(crate) fn told(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let object = self.wait(what, |object| status(object).is_some_and(|status| wanted(&status)));
        status(&object).unwrap()
    }

    /// Asks for something and waits until it has ended, in the phase that is expected.
    pub(crate) fn ask(&self, text: &str, phase: Phase) -> Status {
        let status = self.answer(&self.request(text));
        assert_eq!(status.phase, phase, "{self:?}, {text}: {status:#?}");
        status
    }
}

/// The answer that a version of a pod shows.
pub(crate) fn status(object: &k8s_openapi::api::core::v1::Pod) -> Option<Status> {
    annotation(object, STATUS).map(|text| serde_json::from_str(text).unwrap())
}
