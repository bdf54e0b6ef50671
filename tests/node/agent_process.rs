//! A node of its own with an agent on it: folders for manifests and state, the process, what it tells, and what the
//! runtime shows.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Output},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use inplace::cri::{client::Client, endpoint::Endpoint, proto::v1::ContainerState};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::lab::{Lab, Options};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Waits until `look` finds something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A lab with folders for one agent. An agent has a node for itself, so every test takes a site of its own.
pub(crate) struct Site {
    pub(crate) lab: Lab,
    pub(crate) pods: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) folder: TempDir,
}

/// One life of a container, as the runtime shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) running: bool,
    /// The label that tells the kubelet what it is.
    pub(crate) name: String,
}

impl Site {
    pub(crate) fn new() -> Self {
        let lab = Lab::own(&Options::default());
        let folder = tempfile::tempdir().unwrap();
        let (pods, state) = (folder.path().join("pods"), folder.path().join("state"));
        fs::create_dir(&pods).unwrap();
        fs::create_dir(&state).unwrap();
        Self { lab, pods, state, folder }
    }

    /// Runs a pod with one container `app` that stops at once when told to. Before the agent: it keeps commands away.
    pub(crate) fn run(&self, pod: &str) {
        self.run_app(pod, &json!({}));
    }

    /// The same, with more fields for the container.
    pub(crate) fn run_app(&self, pod: &str, fields: &Value) {
        let mut app = json!({"name": "app", "image": self.lab.image("app:v1")});
        app.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.run_spec(pod, &json!({"terminationGracePeriodSeconds": 2, "containers": [app]}));
    }

    /// Runs a pod whose uid is `uid-NAME`.
    pub(crate) fn run_spec(&self, pod: &str, spec: &Value) {
        let metadata = json!({"name": pod, "uid": format!("uid-{pod}")});
        let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
        let file = self.folder.path().join("run.yaml");
        fs::write(&file, manifest.to_string()).unwrap();
        let output = self.node(&["run", "-f", file.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Runs `inplace node ARGS` with the agent's state folder.
    pub(crate) fn node(&self, args: &[&str]) -> Output {
        self.lab.inplace_command(args_of("node", &self.state, args).as_slice()).output().unwrap()
    }

    /// Writes a file into the folder of manifests, whole at once.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let fresh = self.folder.path().join("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, self.pods.join(file)).unwrap();
    }

    /// Asks for something.
    pub(crate) fn wish(&self, pod: &str, request: &str) {
        // A JSON string is a quoted string in YAML too.
        let request = Value::from(request);
        self.write(
            &format!("{pod}.yaml"),
            &format!(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n  annotations:\n    inplace.dev/request: {request}\n"
            ),
        );
    }

    /// Asks for nothing any more; the manifest stays.
    pub(crate) fn withdraw(&self, pod: &str) {
        self.write(&format!("{pod}.yaml"), &format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n"));
    }

    /// Asks for a restart of `app` under an id.
    pub(crate) fn restart(&self, pod: &str, id: &str) {
        self.wish(pod, &json!({"id": id, "containers": [{"name": "app"}]}).to_string());
    }

    /// Waits until the agent has read the whole folder again, which it shows by answering a file that is written after
    /// all others, and has done what came of it.
    pub(crate) fn read_again(&self, agent: &Agent) {
        self.read_again_beside(agent, 0.0);
    }

    /// The same while `open` operations go on.
    pub(crate) fn read_again_beside(&self, agent: &Agent, open: f64) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let ghost = format!("ghost-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.wish(&ghost, "restart app");
        self.ended(&ghost, "text-", "Refused");
        agent.await_metric(&["inplace_open_operations"], open);
    }

    /// Where the answer for a pod is.
    pub(crate) fn answer(&self, pod: &str) -> PathBuf {
        self.state.join(format!("status/default_{pod}.json"))
    }

    /// The answer for a pod, if there is one.
    pub(crate) fn status(&self, pod: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.answer(pod)).ok()?).unwrap()
    }

    /// The answer for a pod, once it is in `phase` and `id` is part of what it answers.
    pub(crate) fn ended(&self, pod: &str, id: &str, phase: &str) -> Value {
        let mut seen = None;
        let fits = |status: &Value| status["id"].as_str().is_some_and(|told| told.contains(id));
        eventually(&format!("{pod} {id}"), || {
            seen = self.status(pod).filter(fits);
            let status = seen.clone()?;
            let terminal = !matches!(status["phase"].as_str().unwrap(), "Pending" | "Running");
            (terminal || status["phase"] == phase).then(|| {
                assert_eq!(status["phase"], phase, "{status:#}");
                status
            })
        })
    }

    /// All containers of a pod, fences too, oldest first.
    pub(crate) fn lives(&self, pod: &str) -> Vec<Life> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let containers = runtime.block_on(async {
            let client = Client::new(&Endpoint::parse(&self.lab.endpoint).unwrap(), None);
            client.containers(Some(("io.kubernetes.pod.name", pod))).await.unwrap()
        });
        let mut lives: Vec<_> = containers
            .into_iter()
            .map(|container| Life {
                attempt: container.metadata.unwrap().attempt,
                running: container.state == i32::from(ContainerState::ContainerRunning),
                name: container.labels["io.kubernetes.container.name"].clone(),
                id: container.id,
            })
            .collect();
        lives.sort_by_key(|life| life.attempt);
        lives
    }

    /// The one `app` that runs, after checking that it is alone and that no fence is left.
    pub(crate) fn running(&self, pod: &str) -> Life {
        let lives = self.lives(pod);
        assert!(lives.iter().all(|life| life.name != "inplace-fence"), "a fence is left: {lives:?}");
        self.running_amid(pod)
    }

    /// The one `app` that runs, after checking that it is alone, while an operation goes on.
    pub(crate) fn running_amid(&self, pod: &str) -> Life {
        let lives = self.lives(pod);
        let running: Vec<_> = lives.iter().filter(|life| life.running && life.name == "app").collect();
        assert_eq!(running.len(), 1, "{lives:?}");
        running[0].clone()
    }

    /// Starts an agent and waits until it is ready.
    pub(crate) fn agent(&self, args: &[&str]) -> Agent {
        let agent = self.spawn(args, &[]);
        eventually("the agent to be ready", || (agent.try_get("/readyz")?.0 == 200).then_some(()));
        agent
    }

    /// Starts an agent, and waits for nothing.
    pub(crate) fn spawn(&self, args: &[&str], env: &[(&str, &str)]) -> Agent {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (listen, pods) = (format!("127.0.0.1:{port}"), self.pods.to_str().unwrap());
        let mut all =
            args_of("agent", &self.state, &["--standalone", "--pods-dir", pods, "--listen", &listen]);
        all.extend(args.iter().map(ToString::to_string));
        let log = self.folder.path().join(format!("agent-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut command: Command = self.lab.inplace_command(&all);
        command.env("INPLACE_LOG", "info,inplace=debug");
        command.envs(env.iter().copied()).stderr(File::create(&log).unwrap());
        Agent { child: command.spawn().unwrap(), port, log }
    }
}

/// `--state-dir` of the caller wins.
fn args_of(role: &str, state: &std::path::Path, args: &[&str]) -> Vec<String> {
    let mut all = vec![role.to_owned()];
    if !args.contains(&"--state-dir") {
        all.extend(["--state-dir".to_owned(), state.to_str().unwrap().to_owned()]);
    }
    all.extend(args.iter().map(ToString::to_string));
    all
}

/// An agent; killed when it is dropped.
pub(crate) struct Agent {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Agent {
    /// Code and body; `None` while nobody listens.
    pub(crate) fn try_get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = self.connect()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    pub(crate) fn connect(&self) -> Option<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.port)).ok()
    }

    pub(crate) fn metrics(&self) -> String {
        let (code, text) = self.try_get("/metrics").unwrap();
        assert_eq!(code, 200);
        text
    }

    /// The value of the one sample that has all `parts` in its name and labels; 0 when there is none yet.
    pub(crate) fn metric(&self, parts: &[&str]) -> f64 {
        let text = self.metrics();
        let fits = |line: &&str| !line.starts_with('#') && parts.iter().all(|part| line.contains(part));
        let samples: Vec<_> = text.lines().filter(fits).collect();
        assert!(samples.len() <= 1, "{parts:?}: {samples:?}");
        samples.first().map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    pub(crate) fn assert_metric(&self, parts: &[&str], value: f64) {
        let found = self.metric(parts);
        assert!((found - value).abs() < f64::EPSILON, "{parts:?} is {found}, not {value}");
    }

    /// Waits until the sample has the value.
    pub(crate) fn await_metric(&self, parts: &[&str], value: f64) {
        let is = |found: f64| (found - value).abs() < f64::EPSILON;
        eventually(&format!("{parts:?} to be {value}"), || is(self.metric(parts)).then_some(()));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for the end of the process.
    pub(crate) fn end(&mut self) -> ExitStatus {
        eventually("the agent to end", || self.child.try_wait().unwrap())
    }

    /// Asks it to end and waits until it has, with exit code 0.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.end();
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{}", self.log());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}

/// A registry that takes every connection and never answers.
pub(crate) struct Blackhole {
    port: u16,
    taken: Arc<Mutex<Vec<TcpStream>>>,
}

impl Blackhole {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let streams = Arc::clone(&taken);
        // Ends with the process.
        thread::spawn(move || listener.incoming().for_each(|s| streams.lock().unwrap().push(s.unwrap())));
        Self { port, taken }
    }

    /// An image that never comes.
    pub(crate) fn image(&self) -> String {
        format!("127.0.0.1:{}/slow:v1", self.port)
    }

    /// A request that swaps `app` to an image from here.
    pub(crate) fn swap(&self, id: &str, deadline: u32) -> String {
        let image = self.image();
        json!({"id": id, "deadlineSeconds": deadline, "containers": [{"name": "app", "image": image}]})
            .to_string()
    }

    /// Pulls that are being kept waiting.
    pub(crate) fn open(&self) -> usize {
        let is_open = |stream: &&TcpStream| {
            stream.set_nonblocking(true).unwrap();
            // What the client has sent is still to be read, so its end shows only behind that.
            loop {
                match (&mut &**stream).read(&mut [0; 4096]) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
                }
            }
        };
        self.taken.lock().unwrap().iter().filter(is_open).count()
    }

    /// Waits until as many pulls are being kept waiting.
    pub(crate) fn await_open(&self, count: usize) {
        eventually(&format!("{count} pulls to hang"), || (self.open() == count).then_some(()));
    }
}

impl Drop for Blackhole {
    fn drop(&mut self) {
        for stream in self.taken.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
