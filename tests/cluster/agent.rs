//! Runs the agent under test with the rights of the shipped manifests' service account, as a process on the node
//! that it serves. Also the user's part: writes requests and reads statuses.

#![expect(clippy::print_stderr, reason = "whoever reads a failed test wants the log")]

use std::{
    fs::{self, File},
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
    pod::{Pod, annotation},
    support::{
        http_client,
        wait::{WAIT_LIMIT, eventually},
    },
};

/// The user name of the agent's service account in the audit log.
pub(crate) const USER: &str = "system:serviceaccount:inplace-system:inplace-agent";

/// How an agent differs from the default of the tests.
#[derive(Debug, Default)]
pub(crate) struct Setup<'a> {
    /// More arguments for `inplace agent`.
    pub(crate) args: &'a [&'a str],
    /// Environment variables, for example for fault points.
    pub(crate) env: &'a [(&'a str, &'a str)],
}

/// An agent process, killed when dropped. Its state directory stays on the node for the next one.
pub(crate) struct Agent {
    child: Mutex<Child>,
    pid: Pid,
    port: u16,
    log: PathBuf,
}

impl Agent {
    /// The agent on the first node of [`Cluster::shared`], for the whole test process. It ends with the cluster.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Agent> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(Cluster::shared(), &[]))
    }

    /// Starts an agent on the first node, with additional arguments. Returns when the agent is ready.
    pub(crate) fn start(cluster: &Cluster, args: &[&str]) -> Self {
        Self::start_with(cluster, &Setup { args, ..Setup::default() })
    }

    /// The same with a full setup.
    pub(crate) fn start_with(cluster: &Cluster, setup: &Setup<'_>) -> Self {
        Self::start_on(cluster, &cluster.node(), setup)
    }

    /// The same on a given node.
    pub(crate) fn start_on(cluster: &Cluster, node: &Node, setup: &Setup<'_>) -> Self {
        let agent = Self::launch(cluster, node, setup);
        agent.wait_ready();
        agent
    }

    /// Starts an agent without waiting until it is ready: for tests without a runtime or an API server. It
    /// listens when this returns.
    pub(crate) fn launch(cluster: &Cluster, node: &Node, setup: &Setup<'_>) -> Self {
        let state = state(node);
        let state = state.to_str().unwrap();
        let fixed = ["agent", "--node-name", &node.name, "--state-dir", state, "--listen", "127.0.0.1:0"];
        let mut command = node.inplace(&[&fixed[..], setup.args].concat());
        command.env("KUBECONFIG", rights(cluster)).env("INPLACE_IMAGE_RESERVE", "1");
        // As a plain process the agent has no image of its own to use for the holder container.
        command.env("INPLACE_HOLDER_IMAGE", "localhost/pause:1");
        // The servers that hooks call in these tests listen on the nodes.
        command.env("INPLACE_HOOK_ALLOW", format!("{},{}", node.ip, cluster.node().ip));
        command.envs(setup.env.iter().copied());
        Self::spawn(command, node)
    }

    /// Starts a controller with this identity. It listens when this returns.
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

    /// Starts the process; its log is beside those of `node`. It listens when this returns.
    fn spawn(mut command: Command, node: &Node) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Each process has its own log file, because the listen address is read from it.
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

    /// Waits until the agent reports ready.
    pub(crate) fn wait_ready(&self) {
        eventually("the agent to be ready", || (self.get("/readyz")?.0 == 200).then_some(()));
    }

    /// Sends SIGKILL; the process has ended when this returns.
    pub(crate) fn kill(&self) {
        self.end(Signal::SIGKILL);
    }

    /// Sends SIGSTOP: the process stays, but does nothing.
    pub(crate) fn freeze(&self) {
        kill(self.pid, Signal::SIGSTOP).unwrap();
    }

    /// Sends SIGTERM, as a kubelet does; the process has ended when this returns.
    pub(crate) fn stop(&self) {
        self.end(Signal::SIGTERM);
    }

    fn end(&self, signal: Signal) {
        if !self.has_ended() {
            kill(self.pid, signal).unwrap();
            eventually("the agent to end", || self.has_ended().then_some(()));
        }
    }

    /// True when the process has ended for any reason, for example a fault point.
    pub(crate) fn has_ended(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_some()
    }

    /// Status code and body of an HTTP GET; `None` while nothing listens.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        get(("127.0.0.1", self.port), path)
    }

    /// The text of `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let (code, text) = self.get("/metrics").expect("the agent listens");
        assert_eq!(code, 200);
        text
    }

    /// The value of the one sample whose name and labels contain all `parts`; 0 when there is none yet.
    pub(crate) fn metric(&self, parts: &[&str]) -> f64 {
        let text = self.metrics();
        let samples = samples(&text, parts);
        assert!(samples.len() <= 1, "{parts:?}: {samples:?}");
        samples.iter().sum()
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The port of `/metrics`, on loopback.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

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

/// Status code and body of an HTTP GET; `None` while nothing listens.
pub(crate) fn get(address: (&str, u16), path: &str) -> Option<(u16, String)> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    http_client::get(stream, path)
}

/// The values of the samples whose names and labels contain all `parts`.
pub(crate) fn samples(metrics: &str, parts: &[&str]) -> Vec<f64> {
    let fits = |line: &&str| !line.starts_with('#') && parts.iter().all(|part| line.contains(part));
    metrics.lines().filter(fits).map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

/// The `--state-dir` of the agents of a node.
pub(crate) fn state(node: &Node) -> PathBuf {
    node.dir.join("agent")
}

/// A kubeconfig with the agent's rights from the shipped manifests.
fn rights(cluster: &Cluster) -> PathBuf {
    rights_of(cluster, "inplace-agent")
}

/// A kubeconfig for a service account. Processes of one cluster with the same account share it.
fn rights_of(cluster: &Cluster, account: &'static str) -> PathBuf {
    /// Cluster, account and kubeconfig.
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

/// Installs the rights again after an uninstall, for agents and controllers that are started later.
pub(crate) fn grant(cluster: &Cluster) {
    install_rights(cluster);
    for account in ["inplace-agent", "inplace-controller"] {
        // The new file has the path of the previous one.
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
    /// Writes a request, as a line or as JSON. Returns its id.
    pub(crate) fn request(&self, text: &str) -> String {
        self.annotate(REQUEST, Some(text));
        match Request::parse(Some(text)) {
            Ok(request) => request.expect("a request").id,
            // An invalid request is written all the same; it has no id.
            Err(_) => String::new(),
        }
    }

    /// Waits until the request with this id has ended.
    pub(crate) fn answer(&self, id: &str) -> Status {
        self.answer_within(WAIT_LIMIT, id)
    }

    /// The same with another time limit.
    pub(crate) fn answer_within(&self, limit: Duration, id: &str) -> Status {
        let ended = |status: &Status| status.id == id && status.phase.is_terminal();
        let (mut last, mut parsed) = (None, 0);
        self.until(limit, &format!("request {id} has ended"), |seen| {
            last = seen.versions().skip(parsed).filter_map(status).rfind(ended);
            parsed = seen.versions().len();
            last.is_some()
        });
        last.unwrap()
    }

    /// Waits until the latest status fulfils a condition, for example that it is running.
    pub(crate) fn reported(&self, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
        let object = self.wait(what, |object| status(object).is_some_and(|status| wanted(&status)));
        status(&object).unwrap()
    }

    /// Writes a request and waits until it ends; the phase must be `phase`.
    pub(crate) fn ask(&self, text: &str, phase: Phase) -> Status {
        let status = self.answer(&self.request(text));
        let events = || self.events().into_iter().filter_map(|event| event.message).collect::<Vec<_>>();
        assert_eq!(status.phase, phase, "{self:?}, {text}: {status:#?}; events: {:#?}", events());
        status
    }
}

/// The status in a version of a pod.
pub(crate) fn status(object: &k8s_openapi::api::core::v1::Pod) -> Option<Status> {
    annotation(object, STATUS).map(|text| serde_json::from_str(text).unwrap())
}
