//! The agent as users install it: the static release binary as an image in the registry, and the shipped
//! manifests with the usual changes.
//! One thing differs from other clusters: the nodes of the lab share this machine's network with other labs, so
//! each agent listens on its own node's address.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod as Object, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::{ListParams, PostParams},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::{
    agent::{USER, get},
    cluster::{Cluster, Node, block_on},
    kinds::await_kinds,
    pod::is_ready,
    readme,
    support::facts::observe,
    support::lab::run,
    support::release::{self, POLICY_SINCE},
    support::wait::eventually,
};

/// The namespace of the agent.
pub(crate) const NAMESPACE: &str = "inplace-system";
/// The workloads of the agent and of the controller in the manifests.
pub(crate) const AGENT: &str = "daemonset/inplace-agent";
pub(crate) const CONTROLLER: &str = "deployment/inplace-controller";
/// The port on which the agent listens.
const PORT: u16 = 9464;

/// Runs the commands of the README: pushes the image into the registry, and applies `daemonset/base` with that image,
/// or `daemonset/before-1.30` if the API server has no `ValidatingAdmissionPolicy`. Every node has its agent when this
/// returns.
pub(crate) fn install(cluster: &Cluster, tag: &str) {
    let folder = cluster.lab().dir.join("install");
    fs::create_dir_all(&folder).unwrap();
    // kustomize needs a relative path from this folder to the repository.
    let up = "../".repeat(folder.canonicalize().unwrap().components().count() - 1);
    let policies = knows_policies(cluster);
    let base = file(if policies { "daemonset/base" } else { "daemonset/before-1.30" });
    let listen = format!("--listen=$(HOST_IP):{PORT}");
    let disk = cluster.lab().dir.join("root");
    let container = "/spec/template/spec/containers/0";
    let change = json!([
        {"op": "replace", "path": format!("{container}/args/4"), "value": listen},
        {"op": "add", "path": format!("{container}/env/-"), "value": host_ip()},
        {"op": "replace", "path": format!("{container}/volumeMounts/4/mountPath"), "value": disk},
        {"op": "replace", "path": "/spec/template/spec/volumes/4/hostPath/path", "value": disk},
    ]);
    let all = json!({
        "resources": [format!("{up}{}", base.strip_prefix("/").unwrap().display())],
        "patches": [{"target": {"kind": "DaemonSet"}, "patch": change.to_string()}],
    });
    fs::write(folder.join("kustomization.yaml"), all.to_string()).unwrap();
    readme::install(cluster, tag, &folder, policies);
    block_on(await_kinds(cluster.client.clone()));
    rolled_out(cluster, AGENT);
}

/// Pushes the image under another tag, and applies the chart's output over the installation: an upgrade. It has
/// only started when this returns.
pub(crate) fn upgrade_by_chart(cluster: &Cluster, tag: &str) {
    push(cluster, tag);
    let values = json!({
        "image": {"repository": cluster.image("inplace"), "tag": tag},
        "extraArgs": [format!("--listen=$(HOST_IP):{PORT}")],
        "extraEnv": [host_ip()],
    });
    let mut chart = Command::new("bash");
    let policies = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy";
    chart.env("CHART_API_VERSIONS", if knows_policies(cluster) { policies } else { "v1" });
    let reported = block_on(cluster.client.apiserver_version()).unwrap().git_version;
    // The build of Debian's source, 1.20.2, reports 0.0.0.
    let release = if release::minor(&reported) == 0 { "v1.20.2".to_owned() } else { reported };
    chart.env("CHART_KUBERNETES", release);
    chart.arg(file("tests/lab/chart.sh")).arg(file("daemonset/chart")).arg(values.to_string());
    let rendered = cluster.lab().dir.join("chart.yaml");
    fs::write(&rendered, run(&mut chart)).unwrap();
    cluster.kubectl(&["apply", "-f", rendered.to_str().unwrap()]);
}

/// Waits until the rollout of [`AGENT`] or [`CONTROLLER`] is complete. That of the agents takes one node after the other.
pub(crate) fn rolled_out(cluster: &Cluster, workload: &str) {
    cluster.kubectl(&["rollout", "status", workload, "--timeout=360s", "-n", NAMESPACE]);
}

/// Whether the API server supports `ValidatingAdmissionPolicy`.
pub(crate) fn knows_policies(cluster: &Cluster) -> bool {
    release::minor(&block_on(cluster.client.apiserver_version()).unwrap().git_version) >= POLICY_SINCE
}

/// The agent's pod on a node: Ready, and not terminating.
pub(crate) fn agent_on(cluster: &Cluster, node: &Node) -> Object {
    let api: Api<Object> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let here = ListParams::default()
        .labels("app.kubernetes.io/component=agent")
        .fields(&format!("spec.nodeName={}", node.name));
    eventually("the node's agent", || {
        let pods = block_on(api.list(&here)).unwrap().items;
        pods.into_iter().find(|pod| is_ready(pod) && pod.metadata.deletion_timestamp.is_none())
    })
}

/// The metrics of a node's agent.
pub(crate) fn metrics(node: &Node) -> String {
    metrics_in_time(node).expect("the agent listens")
}

/// The same; `None` if the agent does not answer in time, as on a busy machine.
pub(crate) fn metrics_in_time(node: &Node) -> Option<String> {
    let (code, text) = get((&node.ip, PORT), "/metrics")?;
    assert_eq!(code, 200);
    Some(text)
}

/// The PID of the agent's process on this machine.
pub(crate) fn process(cluster: &Cluster, node: &Node) -> u32 {
    let pod = agent_on(cluster, node);
    block_on(observe(&node.endpoint, &pod.metadata.uid.unwrap())).running("agent").pid
}

/// A client with the token of the agent of that node.
pub(crate) fn with_token_of(cluster: &Cluster, node: &Node) -> Client {
    let pod = agent_on(cluster, node).metadata;
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: pod.name,
        uid: pod.uid,
    };
    let spec = TokenRequestSpec { bound_object_ref: Some(bound), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let how = PostParams::default();
    let made = accounts.create_token_request("inplace-agent", &how, &request);
    let token = block_on(made).unwrap().status.unwrap().token;
    let mut config = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    for user in &mut config.auth_infos {
        user.auth_info = Some(AuthInfo { token: Some(token.clone().into()), ..AuthInfo::default() });
    }
    block_on(async {
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap();
        Client::try_from(config).unwrap()
    })
}

/// The write requests of agents, including denied ones.
pub(crate) fn writes(cluster: &Cluster) -> Vec<Value> {
    let mut writes = cluster.writes();
    writes.retain(|write| write["user"]["username"] == USER);
    writes
}

/// Builds the image from the static release binary and pushes it with the shipped script.
fn push(cluster: &Cluster, tag: &str) {
    let mut command = Command::new("bash");
    command.arg(file("daemonset/image.sh")).arg(binary()).arg(env!("CARGO_PKG_VERSION"));
    command.env("IMAGE", cluster.image(&format!("inplace:{tag}"))).env("INSECURE_REGISTRY", "1");
    run(&mut command);
}

/// The static release binary; `make test` builds it before the tests. A binary that is older than its source is
/// an error, because it would test nothing.
pub(crate) fn binary() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let binary = target.join("x86_64-unknown-linux-musl/release/inplace");
    let Ok(built) = fs::metadata(&binary).and_then(|meta| meta.modified()) else {
        panic!("{} is missing; run: make release", binary.display())
    };
    let (changed, source) = newest(&file("src")).max(newest(&file("Cargo.lock")));
    assert!(built >= changed, "{} is older than {}; run: make release", binary.display(), source.display());
    binary
}

/// The most recent modification time at or below `path`, and the file.
fn newest(path: &Path) -> (SystemTime, PathBuf) {
    if path.is_dir() {
        let below = fs::read_dir(path).unwrap().map(|entry| newest(&entry.unwrap().path()));
        return below.max().unwrap_or((SystemTime::UNIX_EPOCH, path.to_owned()));
    }
    (fs::metadata(path).unwrap().modified().unwrap(), path.to_owned())
}

fn host_ip() -> Value {
    json!({"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}})
}

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
