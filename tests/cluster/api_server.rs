//! Runs etcd and a kube-apiserver alone, on loopback, for tests that need admission and RBAC but no node.
//! Both end with this process, however it ends.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::kinds::await_kinds;
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::wait::eventually_async;

/// Time limit of a start on a busy machine.
const START: Duration = Duration::from_secs(120);
const ADMIN: &str = "the-admin";

pub(crate) struct ApiServer {
    parts: Vec<Child>,
    url: String,
    folder: TempDir,
}

impl ApiServer {
    /// Starts both and waits until the API server is ready.
    pub(crate) async fn start() -> Self {
        Self::with_plugins("NodeRestriction,OwnerReferencesPermissionEnforcement").await
    }

    /// The same without the admission plugin that denies owner references, which acts before the policies.
    pub(crate) async fn for_policies() -> Self {
        Self::with_plugins("NodeRestriction").await
    }

    async fn with_plugins(plugins: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let [client, peer, secure] = [(); 3].map(|()| free_port());
        run("openssl", &["genrsa", "-out", &at("sa.key"), "2048"]);
        run("openssl", &["rsa", "-in", &at("sa.key"), "-pubout", "-out", &at("sa.pub")]);
        fs::write(at("tokens.csv"), format!("{ADMIN},admin,admin,system:masters\n")).unwrap();
        let etcd = [
            format!("--data-dir={}", at("etcd")),
            format!("--listen-client-urls=http://127.0.0.1:{client}"),
            format!("--advertise-client-urls=http://127.0.0.1:{client}"),
            format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        let api = [
            format!("--etcd-servers=http://127.0.0.1:{client}"),
            format!("--secure-port={secure}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--cert-dir={}", at("certificates")),
            format!("--token-auth-file={}", at("tokens.csv")),
            format!("--service-account-key-file={}", at("sa.pub")),
            format!("--service-account-signing-key-file={}", at("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            format!("--enable-admission-plugins={plugins}"),
        ];
        let parts = vec![
            spawn(Path::new("etcd"), &etcd, folder.path()),
            spawn(&binaries().join("kube-apiserver"), &api, folder.path()),
        ];
        let mut server = Self { parts, url: format!("https://127.0.0.1:{secure}"), folder };
        server.wait().await;
        server
    }

    async fn wait(&mut self) {
        let admin = self.admin().await;
        eventually_async(START, "an API server", async || {
            for at in 0..self.parts.len() {
                if let Some(status) = self.parts[at].try_wait().unwrap() {
                    panic!("a part ended: {status}\n{}", self.logs());
                }
            }
            let request = axum::http::Request::get("/readyz").body(Vec::new()).unwrap();
            let ready = admin.request_text(request).await;
            ready.map(drop).map_err(|error| format!("{error}\n{}", self.logs()))
        })
        .await;
    }

    /// The process of kube-apiserver.
    pub(crate) fn process(&self) -> Process {
        Process(self.parts[1].id())
    }

    fn logs(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default();
            text.lines().rev().take(10).collect::<Vec<_>>().join("\n")
        };
        format!("{}\n{}", tail("etcd"), tail("kube-apiserver"))
    }

    /// A client with all rights.
    pub(crate) async fn admin(&self) -> Client {
        self.client(ADMIN).await
    }

    /// A client that authenticates with `token`.
    pub(crate) async fn client(&self, token: &str) -> Client {
        let config: Kubeconfig = serde_json::from_value(self.config(token)).unwrap();
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    }

    fn config(&self, token: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config",
            "clusters": [{"name": "own", "cluster": {"server": self.url, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "own", "user": {"token": token}}],
            "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}],
            "current-context": "own",
        })
    }

    /// Writes a kubeconfig that authenticates with `token`.
    pub(crate) fn kubeconfig_of(&self, token: &str) -> PathBuf {
        let path = self.folder.path().join(format!("{token:.8}.kubeconfig"));
        fs::write(&path, self.config(token).to_string()).unwrap();
        path
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of(ADMIN)
    }

    /// Installs this project's CRDs; they are served when this returns.
    pub(crate) async fn know_our_kinds(&self) {
        self.apply("daemonset/crds");
        await_kinds(self.admin().await).await;
    }

    /// Runs `kubectl` as the administrator, with `input` on its standard input.
    pub(crate) fn kubectl(&self, args: &[&str], input: &str) -> Output {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command.arg("--cache-dir").arg(self.folder.path().join("kubectl")).args(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// `kubectl apply -k FOLDER`. The base is replaced by the variant for this API server's version
    /// ([`Self::base`]).
    pub(crate) fn apply(&self, folder: &str) {
        let folder = if folder == "daemonset/base" { self.base() } else { folder };
        let server = format!("--server={}", self.url);
        let token = format!("--token={ADMIN}");
        // What is cached elsewhere may be of another server that had the same port.
        let cache = format!("--cache-dir={}", self.folder.path().join("kubectl").display());
        run("kubectl", &[&server, &token, &cache, "--insecure-skip-tls-verify", "apply", "-k", folder]);
    }

    /// The manifests to install on an API server of this version.
    pub(crate) fn base(&self) -> &'static str {
        let known = self.kubectl(&["get", "--raw", "/apis/admissionregistration.k8s.io/v1"], "");
        assert!(known.status.success(), "{}", String::from_utf8_lossy(&known.stderr));
        let known = String::from_utf8(known.stdout).unwrap().contains("\"validatingadmissionpolicies\"");
        if known { "daemonset/base" } else { "daemonset/before-1.30" }
    }

    /// A token of a service account that is not bound to a pod.
    pub(crate) fn token_of(&self, namespace: &str, account: &str) -> String {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
        let output = self.kubectl(&["create", "--raw", &path, "-f", "-"], &request.to_string());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let made: Value = serde_json::from_slice(&output.stdout).unwrap();
        made["status"]["token"].as_str().unwrap().to_owned()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        for part in self.parts.iter_mut().rev() {
            let _ = part.kill();
            let _ = part.wait();
        }
    }
}

/// The folder of the Kubernetes binaries.
fn binaries() -> PathBuf {
    let found = Command::new("bash").arg("tests/lab/kube.sh").stderr(Stdio::inherit()).output().unwrap();
    assert!(found.status.success(), "tests/lab/kube.sh has no Kubernetes to give");
    PathBuf::from(String::from_utf8(found.stdout).unwrap().trim())
}

/// Starts a process that is killed when this process ends; it logs into `folder`.
fn spawn(program: &Path, args: &[String], folder: &Path) -> Child {
    let name = program.file_name().unwrap().to_str().unwrap();
    let log = File::create(folder.join(format!("{name}.log"))).unwrap();
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn run(program: &str, args: &[&str]) {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}
