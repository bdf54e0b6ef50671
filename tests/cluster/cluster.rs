//! A Kubernetes cluster for tests: created and removed by `tests/lab/cluster.sh`, or an existing one.
//! [`Cluster::shared`] is one cluster for the whole test process, for tests that only add pods with their own
//! names. A test that stops a part of the cluster or an agent borrows one with [`Cluster::leased`]. A test that counts
//! the objects of the cluster, changes its settings or installs something cluster-wide creates its own with
//! [`Cluster::own`]. [`Cluster::any`] is for tests that only need the API server.

#[path = "cluster/create.rs"] // also where another crate includes this file
mod create;

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsStr,
    fs,
    future::Future,
    io::Write,
    iter,
    ops::Deref,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{Mutex, OnceLock},
    thread,
};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use tokio::runtime::{Builder, Handle};

use crate::support::{
    lab::{Lab, Options, run, setting},
    panics,
};

/// Environment variable with the registry, for tests on an existing cluster.
const EXISTING: &str = "INPLACE_TEST_REGISTRY";

/// A running Kubernetes, and a client with all rights in it.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The administrator's kubeconfig.
    pub(crate) kubeconfig: PathBuf,
    registry: String,
    /// `None` for an existing cluster.
    lab: Option<Lab>,
}

/// A node of a private cluster.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// The lab's folder. It contains `logs/kubelet.log`, `manifests/` for static pods, and the node's `/var/log`
    /// and `/var/lib` as `var/log` and `var/lib`.
    pub(crate) dir: PathBuf,
    /// The runtime's endpoint, `unix://...`.
    pub(crate) endpoint: String,
    pub(crate) ip: String,
    /// The cluster's folder.
    cluster: PathBuf,
}

/// The cluster of [`Cluster::leased`] that no test uses. One is kept: in minutes a second one would use as much time of the
/// processors as another start.
static FREE: Mutex<Option<Cluster>> = Mutex::new(None);

/// See [`Cluster::leased`].
pub(crate) struct Lease(Option<Cluster>);

impl Deref for Lease {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.assert_unharmed();
            FREE.lock().unwrap().get_or_insert_with(|| self.0.take().unwrap());
        }
    }
}

impl Cluster {
    /// The cluster that the tests of this process share. It is removed when the process has ended, however it
    /// ends.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Self::own)
    }

    /// Creates a cluster for the caller alone; it is removed when dropped.
    pub(crate) fn own() -> Self {
        let lab = Lab::made_by("cluster.sh", &Options::default());
        let kubeconfig = PathBuf::from(setting(&lab.dir, "KUBECONFIG"));
        Self { client: client(&kubeconfig), kubeconfig, registry: lab.registry.clone(), lab: Some(lab) }
    }

    /// A cluster for the caller alone while the value lives; later the next caller gets the same one. For tests that
    /// kill an agent or a process of the cluster: when the test ends, all processes of the cluster run, no agent does,
    /// and no setting is changed. A cluster on which a test failed is not used again.
    pub(crate) fn leased() -> Lease {
        let free = FREE.lock().unwrap().take();
        // The one that is free at the end is removed when the process has ended, however it ends.
        Lease(Some(free.unwrap_or_else(Self::own)))
    }

    /// The existing cluster, if the environment names one; otherwise [`Cluster::shared`].
    pub(crate) fn any() -> &'static Self {
        static EXISTS: OnceLock<Option<Cluster>> = OnceLock::new();
        let exists = EXISTS.get_or_init(|| {
            let registry = environment(EXISTING)?.trim_end_matches('/').to_owned();
            let kubeconfig =
                environment("KUBECONFIG").unwrap_or_else(|| panic!("{EXISTING} without KUBECONFIG"));
            let kubeconfig = PathBuf::from(kubeconfig);
            Some(Self { client: client(&kubeconfig), kubeconfig, registry, lab: None })
        });
        exists.as_ref().unwrap_or_else(Self::shared)
    }

    /// The lab that the cluster consists of.
    pub(crate) fn lab(&self) -> &Lab {
        self.lab.as_ref().expect("this test needs a cluster of its own: Cluster::shared() or Cluster::own()")
    }

    /// The first node.
    pub(crate) fn node(&self) -> Node {
        Node::of(&self.lab().dir, &self.lab().dir)
    }

    /// Adds a second node, with its own kubelet and containerd. It is removed with the cluster.
    pub(crate) fn add_node(&self, name: &str) -> Node {
        run(self.lab().script("add-node").arg(name));
        Node::of(&self.lab().dir, &self.lab().dir.join("nodes").join(name))
    }

    /// Sends SIGKILL to a part of the control plane or of the first node: `etcd`, `kube-apiserver`,
    /// `kube-controller-manager`, `kube-scheduler`, `kubelet`, `containerd`.
    pub(crate) fn kill(&self, what: &str) {
        self.node().kill(what);
    }

    /// The same with SIGTERM; the process has ended when this returns.
    pub(crate) fn stop(&self, what: &str) {
        self.node().stop(what);
    }

    /// Starts the part again; it answers when this returns.
    pub(crate) fn start(&self, what: &str) {
        self.node().start(what);
    }

    /// The full name of an image of the registry, as in `app:v1`.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.registry)
    }

    /// Replaces each `lab/` in the text by the registry's name.
    pub(crate) fn named(&self, text: &str) -> String {
        text.replace("lab/", &format!("{}/", self.registry))
    }

    /// Asserts that no kubelet of this cluster has deleted the files that `cluster.sh` put into its working
    /// directory, and that no agent or controller that logs beside the nodes has panicked.
    pub(crate) fn assert_unharmed(&self) {
        if let Err(what) = self.harm() {
            panic!("{what}");
        }
    }

    /// The same; an error names what was deleted or who has panicked.
    pub(crate) fn harm(&self) -> Result<(), String> {
        let Some(lab) = &self.lab else { return Ok(()) };
        let others = fs::read_dir(lab.dir.join("nodes")).into_iter().flatten().flatten();
        for node in iter::once(lab.dir.clone()).chain(others.map(|node| node.path())) {
            broken_bait(&node.join("kubelet-folder")).map_or(Ok(()), Err)?;
            let panics = panics::in_folder(&node.join("logs"), "agent.");
            if !panics.is_empty() {
                return Err(panics.join("\n"));
            }
        }
        Ok(())
    }

    /// Runs `kubectl` as the administrator and returns its output; it must succeed.
    pub(crate) fn kubectl<S: AsRef<OsStr>>(&self, args: &[S]) -> String {
        run(&mut self.kubectl_command(args))
    }

    /// The answer of the API server to a GET of the path, as the administrator. It must succeed. For polls: a process of `kubectl`
    /// takes 20 times as long.
    pub(crate) fn read(&self, path: &str) -> Value {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        block_on(self.client.request(request)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// The object with this name in the list at the path, if it is there.
    pub(crate) fn find(&self, list: &str, name: &str) -> Option<Value> {
        let found = self.read(&format!("{list}?fieldSelector=metadata.name={name}"));
        found["items"].as_array().unwrap().first().cloned()
    }

    /// The events in the namespace `default` about objects with this name and for this reason.
    pub(crate) fn events(&self, name: &str, reason: &str) -> Vec<Value> {
        let about = format!("involvedObject.name={name},reason={reason}");
        let list = self.read(&format!("/api/v1/namespaces/default/events?fieldSelector={about}"));
        list["items"].as_array().unwrap().clone()
    }

    /// The pods of the namespace `default` with a label, by name.
    pub(crate) fn pods(&self, label: &str) -> BTreeMap<String, Value> {
        let list = self.read(&format!("/api/v1/namespaces/default/pods?labelSelector={label}"));
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        list["items"].as_array().unwrap().iter().map(|pod| (name(pod), pod.clone())).collect()
    }

    /// Does what `kubectl apply` does with a manifest, in which `lab/app:v1` is an image of the registry. Returns its output.
    pub(crate) fn apply(&self, manifest: &str) -> String {
        let created = block_on(create::all(&self.client, &self.named(manifest)));
        created.unwrap_or_else(|| self.try_apply(&[], manifest).unwrap_or_else(|why| panic!("{why}")))
    }

    /// `kubectl apply` with more arguments, for a manifest that may be refused. Returns the output.
    pub(crate) fn try_apply(&self, more: &[&str], manifest: &str) -> Result<String, String> {
        let mut child = self.kubectl_command(&[&["apply", "-f", "-"], more].concat());
        let mut child =
            child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(self.named(manifest).as_bytes()).unwrap();
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if status.success() { Ok(text(stdout)) } else { Err(text(stderr)) }
    }

    /// A `kubectl` command for the caller to start.
    pub(crate) fn kubectl_command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new("kubectl");
        // The default cache directory would outlive the cluster.
        let cache = self
            .lab
            .as_ref()
            .map_or_else(|| env::temp_dir().join("kubectl-cache"), |lab| lab.dir.join("kubectl"));
        command.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(cache).args(args);
        command.stdin(Stdio::null());
        command
    }

    /// A kubeconfig with the rights of a service account, as in a pod of the account. It is valid for a day: longer than any
    /// test runs.
    pub(crate) fn kubeconfig_of(&self, namespace: &str, account: &str) -> PathBuf {
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(86_400), ..TokenRequestSpec::default() },
            ..TokenRequest::default()
        };
        let answer = block_on(api.create_token_request(account, &PostParams::default(), &request)).unwrap();
        let mut config = Kubeconfig::read_from(&self.kubeconfig).unwrap();
        for user in &mut config.auth_infos {
            let token = Some(answer.status.clone().unwrap().token.into());
            user.auth_info = Some(AuthInfo { token, ..AuthInfo::default() });
        }
        let path = self.lab().dir.join(format!("{namespace}.{account}.kubeconfig"));
        fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
        path
    }

    /// The write requests to the API server so far, in order: audit events of level Metadata, without leases.
    pub(crate) fn writes(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.lab().dir.join("logs/writes.jsonl")).unwrap();
        // The last line may be incomplete.
        let mut writes: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        // A dry run changes nothing: an agent uses one to check whether it is restricted to its node.
        writes.retain(|write| !write["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=All")));
        writes
    }

    /// True for a write that took effect. One that failed, as on a busy API server, is repeated.
    pub(crate) fn is_done(write: &Value) -> bool {
        write["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300)
    }

    /// The denied write requests, without those of kubelets: a kubelet is at first denied what a pod of its own
    /// later gives it a right to.
    pub(crate) fn denied(&self) -> Vec<Value> {
        let mut writes = self.writes();
        let is_kubelet = |user: &Value| user.as_str().is_some_and(|user| user.starts_with("system:node:"));
        writes.retain(|write| {
            write["responseStatus"]["code"] == 403 && !is_kubelet(&write["user"]["username"])
        });
        writes
    }

    /// The program under test on this machine, as the administrator of this cluster.
    pub(crate) fn inplace<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
        command.args(args).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // A second panic would hide the first.
        if !thread::panicking() {
            self.assert_unharmed();
        }
    }
}

/// What a kubelet has deleted of the files that `cluster.sh` put into its working directory.
pub(crate) fn broken_bait(folder: &Path) -> Option<String> {
    let names: BTreeSet<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let is_whole = |file: &&str| fs::read_to_string(folder.join(file)).is_ok_and(|text| text == "bait\n");
    let broken: Vec<_> =
        ["file", "full/file", "link/file"].into_iter().filter(|file| !is_whole(file)).collect();
    let is_complete = names == BTreeSet::from(["empty", "file", "full", "link"].map(str::to_owned));
    (!is_complete || !broken.is_empty()).then(|| {
        let folder = folder.display();
        format!(
            "a kubelet has deleted files of its working directory {folder}: {names:?} are left, {broken:?} are broken"
        )
    })
}

impl Node {
    fn of(cluster: &Path, dir: &Path) -> Self {
        let [name, endpoint, ip] =
            ["NODE", "INPLACE_RUNTIME_ENDPOINT", "NODE_IP"].map(|key| setting(dir, key));
        Self { name, dir: dir.to_owned(), endpoint, ip, cluster: cluster.to_owned() }
    }

    /// Sends SIGKILL to the node's `kubelet` or `containerd`.
    pub(crate) fn kill(&self, what: &str) {
        self.part("kill", what);
    }

    /// The same with SIGTERM; the process has ended when this returns.
    pub(crate) fn stop(&self, what: &str) {
        self.part("stop", what);
    }

    /// Starts the part again; it answers when this returns.
    pub(crate) fn start(&self, what: &str) {
        self.part("start", what);
    }

    fn part(&self, action: &str, what: &str) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/cluster.sh");
        run(Command::new("bash").arg(script).arg(action).arg(&self.cluster).args([what, &self.name]));
    }

    /// The program under test as a process of the node: in its mount namespace, with the cluster administrator's
    /// `KUBECONFIG` and the node's runtime. Its PID is that of the command, because `nsenter` executes it in
    /// place.
    pub(crate) fn inplace<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let anchor = fs::read_to_string(self.dir.join("pids/anchor")).unwrap();
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", anchor.trim(), env!("CARGO_BIN_EXE_inplace")]).args(args);
        command.env("INPLACE_RUNTIME_ENDPOINT", &self.endpoint);
        command.env("KUBECONFIG", setting(&self.dir, "KUBECONFIG"));
        command.stdin(Stdio::null());
        command
    }
}

/// Runs a future to its end. Tests may call this concurrently.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    runtime().block_on(future)
}

/// The only async runtime of this process. Clients are tied to it, so it outlives each test.
pub(crate) fn runtime() -> &'static Handle {
    static RUNTIME: OnceLock<Handle> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        handle
    })
}

/// A client with the rights of a kubeconfig.
pub(crate) fn client(kubeconfig: &Path) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    block_on(async {
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    })
}

/// A setting of the tests.
#[allow(clippy::disallowed_methods, reason = "tests have no command line")]
pub(crate) fn environment(name: &str) -> Option<String> {
    env::var(name).ok()
}
