//! A lab of its own for one agent: folders for manifests and state, requests and their answers, and what the runtime
//! reports.

use std::{
    fs::{self, File},
    path::PathBuf,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use inplace::cri::{client::Client, endpoint::Endpoint, proto::v1::ContainerState};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    agent_process::Agent,
    support::{
        lab::{Lab, Options},
        wait::eventually,
    },
};

/// A lab with folders for one agent. An agent locks its node, so every test uses a site of its own.
pub(crate) struct Fixture {
    pub(crate) lab: Lab,
    pub(crate) pods: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) folder: TempDir,
}

/// One container as the runtime reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) running: bool,
    /// The container name in its label, by which a kubelet identifies it.
    pub(crate) name: String,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let lab = Lab::own(&Options::default());
        let folder = tempfile::tempdir().unwrap();
        let (pods, state) = (folder.path().join("pods"), folder.path().join("state"));
        fs::create_dir(&pods).unwrap();
        fs::create_dir(&state).unwrap();
        Self { lab, pods, state, folder }
    }

    /// Runs a pod with one container `app` that exits at once on its stop signal. To be called before the agent
    /// starts, because the agent's lock excludes commands.
    pub(crate) fn run(&self, pod: &str) {
        self.run_app(pod, &json!({}));
    }

    /// Same as [`Self::run`], with more fields for the container.
    pub(crate) fn run_app(&self, pod: &str, fields: &Value) {
        let mut app = json!({"name": "app", "image": self.lab.image("app:v1")});
        app.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        self.run_spec(pod, &json!({"terminationGracePeriodSeconds": 2, "containers": [app]}));
    }

    /// Runs a pod whose preStop handler writes `x` into `began` and waits for `go`, in the folder that is returned.
    pub(crate) fn run_gated(&self, pod: &str) -> PathBuf {
        let gate = self.folder.path().join("gate");
        fs::create_dir(&gate).unwrap();
        let handler = "printf x >>/tmp/began; until [ -e /tmp/go ]; do sleep 0.05; done";
        let app = json!({
            "name": "app",
            "image": self.lab.image("app:v1"),
            "volumeMounts": [{"name": "gate", "mountPath": "/tmp"}],
            "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", handler]}}},
        });
        let volumes = json!([{"name": "gate", "hostPath": {"path": gate}}]);
        self.run_spec(
            pod,
            &json!({"terminationGracePeriodSeconds": 120, "containers": [app], "volumes": volumes}),
        );
        gate
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

    /// Writes a file into the folder of manifests atomically.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let fresh = self.folder.path().join("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, self.pods.join(file)).unwrap();
    }

    /// Writes a request for a pod.
    pub(crate) fn ask(&self, pod: &str, request: &str) {
        // A JSON string is a quoted string in YAML too.
        let request = Value::from(request);
        self.write(
            &format!("{pod}.yaml"),
            &format!(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n  annotations:\n    inplace.dev/request: {request}\n"
            ),
        );
    }

    /// Removes the request; the manifest stays.
    pub(crate) fn withdraw(&self, pod: &str) {
        self.write(&format!("{pod}.yaml"), &format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {pod}\n"));
    }

    /// Requests a restart of `app` under an ID.
    pub(crate) fn restart(&self, pod: &str, id: &str) {
        self.ask(pod, &json!({"id": id, "containers": [{"name": "app"}]}).to_string());
    }

    /// Waits until the agent has read the whole folder again and has processed it. It shows this by answering a file
    /// that is written after all others.
    pub(crate) fn read_again(&self, agent: &Agent) {
        self.read_again_beside(agent, 0.0);
    }

    /// Same as [`Self::read_again`], while `open` operations continue.
    pub(crate) fn read_again_beside(&self, agent: &Agent, open: f64) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let ghost = format!("ghost-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.ask(&ghost, "restart app");
        self.ended(&ghost, "text-", "Refused");
        agent.await_metric(&["inplace_open_operations"], open);
    }

    /// The path of the answer for a pod.
    pub(crate) fn answer(&self, pod: &str) -> PathBuf {
        self.state.join(format!("status/default_{pod}.json"))
    }

    /// The answer for a pod, if there is one.
    pub(crate) fn status(&self, pod: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.answer(pod)).ok()?).unwrap()
    }

    /// The answer for a pod, once it has the phase `phase` and the ID `id`, or an ID that begins with it, as in `text-`.
    pub(crate) fn ended(&self, pod: &str, id: &str, phase: &str) -> Value {
        let mut seen = None;
        let is_it = |reported: &str| reported == id || (id.ends_with('-') && reported.starts_with(id));
        let fits = |status: &Value| status["id"].as_str().is_some_and(is_it);
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

    /// All containers of a pod including fences, oldest first.
    pub(crate) fn instances(&self, pod: &str) -> Vec<Instance> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let containers = runtime.block_on(async {
            let client = Client::new(&Endpoint::parse(&self.lab.endpoint).unwrap(), None);
            client.containers(Some(("io.kubernetes.pod.name", pod))).await.unwrap()
        });
        let mut instances: Vec<_> = containers
            .into_iter()
            .map(|container| Instance {
                attempt: container.metadata.unwrap().attempt,
                running: container.state == i32::from(ContainerState::ContainerRunning),
                name: container.labels["io.kubernetes.container.name"].clone(),
                id: container.id,
            })
            .collect();
        instances.sort_by_key(|instance| instance.attempt);
        instances
    }

    /// The only running `app`. Verifies that it is the only one and that no fence is left.
    pub(crate) fn running(&self, pod: &str) -> Instance {
        let instances = self.instances(pod);
        assert!(
            instances.iter().all(|instance| instance.name != "inplace-fence"),
            "a fence is left: {instances:?}"
        );
        self.running_amid(pod)
    }

    /// The only running `app` while an operation is in progress. Verifies that it is the only one.
    pub(crate) fn running_amid(&self, pod: &str) -> Instance {
        let instances = self.instances(pod);
        let running: Vec<_> =
            instances.iter().filter(|instance| instance.running && instance.name == "app").collect();
        assert_eq!(running.len(), 1, "{instances:?}");
        running[0].clone()
    }

    /// Starts an agent and waits until it is ready.
    pub(crate) fn agent(&self, args: &[&str]) -> Agent {
        let agent = self.spawn(args, &[]);
        eventually("the agent to be ready", || (agent.try_get("/readyz")?.0 == 200).then_some(()));
        agent
    }

    /// Starts an agent without waiting.
    pub(crate) fn spawn(&self, args: &[&str], env: &[(&str, &str)]) -> Agent {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let pods = self.pods.to_str().unwrap();
        let given = ["--standalone", "--pods-dir", pods, "--listen", "127.0.0.1:0"];
        let all = args_of("agent", &self.state, &[&given, args].concat());
        let log = self.folder.path().join(format!("agent-{}.log", NEXT.fetch_add(1, Ordering::Relaxed)));
        let mut command: Command = self.lab.inplace_command(&all);
        command.env("INPLACE_LOG", "info,inplace=debug");
        command.envs(env.iter().copied()).stderr(File::create(&log).unwrap());
        Agent::new(command.spawn().unwrap(), log)
    }
}

/// The caller's `--state-dir` takes precedence.
fn args_of(role: &str, state: &std::path::Path, args: &[&str]) -> Vec<String> {
    let mut all = vec![role.to_owned()];
    if !args.contains(&"--state-dir") {
        all.extend(["--state-dir".to_owned(), state.to_str().unwrap().to_owned()]);
    }
    all.extend(args.iter().map(ToString::to_string));
    all
}
