//! Swaps to images of a registry that requires authentication: with the right to read the pod's secrets, with
//! credentials in the runtime's configuration, and without either.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use inplace::api::status::{Phase, Step};
use serde_json::json;

use crate::{
    agent::{Agent, state},
    cluster::Cluster,
    pod::Pod,
    request::{ONE, adopted, event, spec_image, swap},
    support::wait::eventually,
};

const USER: &str = "deployer";
const PASSWORD: &str = "kept-to-itself-4711";
/// User and password as in an `auth` entry and in a header: `base64 USER:PASSWORD`.
const AUTH: &str = "ZGVwbG95ZXI6a2VwdC10by1pdHNlbGYtNDcxMQ==";
/// `htpasswd -nbB USER PASSWORD`.
const HTPASSWD: &str = "deployer:$2y$05$LabLabLabLabLabLabLabesQ1PAgD5jmS4iBK5qvaBcY234c1q0Ku";

/// A registry with the images of the cluster's, for one user. It ends when dropped, or with this process.
struct Private {
    registry: Child,
    /// `127.0.0.1:PORT`.
    address: String,
}

impl Private {
    fn open(cluster: &Cluster) -> Self {
        let dir = &cluster.lab().dir;
        let at = |name: &str| dir.join(format!("private.{name}"));
        fs::write(at("htpasswd"), format!("{HTPASSWD}\n")).unwrap();
        let config = [
            "version: 0.1".to_owned(),
            "http: {addr: '127.0.0.1:0'}".to_owned(),
            format!("storage: {{filesystem: {{rootdirectory: '{}'}}}}", dir.join("registry").display()),
            format!("auth: {{htpasswd: {{realm: lab, path: '{}'}}}}", at("htpasswd").display()),
        ];
        fs::write(at("yml"), config.join("\n")).unwrap();
        let log = File::create(at("log")).unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "docker-registry", "serve"]).arg(at("yml"));
        command.env("OTEL_TRACES_EXPORTER", "none").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let registry = command.spawn().unwrap();
        let address = eventually("the private registry", || {
            let text = fs::read_to_string(at("log")).unwrap();
            let (_, rest) = text.split_once("listening on ")?;
            let end = rest.find(|sign: char| !(sign.is_ascii_digit() || ".:".contains(sign)))?;
            Some(rest[..end].to_owned())
        });
        Self { registry, address }
    }

    fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = self.registry.kill();
        let _ = self.registry.wait();
    }
}

/// Gives the agent's account the right to read secrets, by the shipped manifest.
fn allow_secrets(cluster: &Cluster) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/pull-secrets/pull-secrets.yaml");
    cluster.kubectl(&["apply", "-f", manifest.to_str().unwrap()]);
}

/// Configures credentials in the runtime.
fn configure_runtime(cluster: &Cluster, address: &str) {
    let config = cluster.lab().dir.join("containerd.toml");
    let mut config = File::options().append(true).open(config).unwrap();
    let plugin = r#"plugins."io.containerd.grpc.v1.cri".registry.configs"#;
    write!(config, "\n[{plugin}.\"{address}\".auth]\n  username = \"{USER}\"\n  password = \"{PASSWORD}\"\n")
        .unwrap();
    cluster.stop("containerd");
    cluster.start("containerd");
}

#[test]
fn secrets_of_a_pod_are_read_only_by_an_agent_that_may() {
    let cluster = Cluster::own();
    let private = Private::open(&cluster);
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: pull}}\ntype: kubernetes.io/dockerconfigjson\nstringData:\n  \
         .dockerconfigjson: |\n    {}\n",
        json!({"auths": {&private.address: {"auth": AUTH}}})
    ));
    let debug = ["--log", "debug,inplace=trace"];
    let agent = Agent::start(&cluster, &debug);
    let spec = |image: &str| ONE.replace("lab/app:v1", image);
    let named = format!("imagePullSecrets: [{{name: pull}}]{}", spec(&private.image("app:v1")));
    let pod = Pod::run(&cluster, "private", &named);
    let before = pod.facts().settled();

    // The agent has the secret's name, but not the right to read it.
    let status = swap(&pod, &private.image("app:v2"), json!({}), Phase::Refused);
    assert_eq!((status.reason.as_str(), status.step), ("PullSecretsNeeded", Some(Step::Pull)), "{status:#?}");
    for way_out in [
        "configure credentials for that registry in the runtime",
        "onto the node first",
        "--allow-pull-secrets",
    ] {
        assert!(status.message.contains(way_out), "{}", status.message);
    }
    assert!(status.message.ends_with("Nothing was touched"), "{}", status.message);
    assert_eq!(event(&pod, "InPlaceRefused"), status.message);
    assert_eq!(pod.facts(), before);
    assert_eq!(spec_image(&pod.get(), "app"), private.image("app:v1"));
    agent.stop();

    allow_secrets(&cluster);
    let agent = Agent::start(&cluster, &[&debug[..], &["--allow-pull-secrets"]].concat());
    swap(&pod, &private.image("app:v2"), json!({}), Phase::Succeeded);
    assert_eq!(adopted(&pod, "app", &private.image("app:v2")).version, "v2");
    agent.stop();

    // The right is not needed either when the runtime has credentials for the registry.
    configure_runtime(&cluster, &private.address);
    let agent = Agent::start(&cluster, &debug);
    let plain = Pod::run(&cluster, "plain", &spec(&private.image("app:v1")));
    for pod in [&pod, &plain] {
        swap(pod, &private.image("app:v3"), json!({}), Phase::Succeeded);
        assert_eq!(adopted(pod, "app", &private.image("app:v3")).version, "v3");
    }
    agent.stop();

    let node = cluster.node();
    let mut reported: Vec<_> = files(&state(&node));
    assert!(!reported.is_empty());
    reported.extend(
        files(&node.dir.join("logs"))
            .into_iter()
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("agent"))),
    );
    let mut texts: Vec<_> =
        reported.iter().map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned()).collect();
    assert!(texts.iter().any(|text| text.contains("Pull") && text.contains("effect")), "no log to look at");
    for pod in [&pod, &plain] {
        texts.extend(pod.events().iter().map(|event| format!("{event:?}")));
        texts.extend(pod.seen().versions().map(|version| format!("{version:?}")));
    }
    for secret in [PASSWORD, AUTH, AUTH.trim_end_matches('=')] {
        assert!(texts.iter().all(|text| !text.contains(secret)), "{secret} is in one of {reported:?}");
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
