//! The dashboard on a real API server, with the rights of docs/dashboard.md and no others: a restart reaches the data of its
//! pod, and the dashboard writes nothing.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use inplace::api::status::Phase;
use k8s_openapi::api::core::v1::Pod as Object;
use kube::{Api, api::ListParams};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on, client},
    pod::Pod,
    support::wait::eventually_or,
};

const SPEC: &str = "
terminationGracePeriodSeconds: 2
containers: [{name: app, image: lab/app:v1, env: [{name: PASSWORD, value: hunter2}]}]
";

/// The account of the dashboard.
const ACCOUNT: &str = "inplace-dashboard";

/// A kubeconfig with the role of the documentation.
fn reader(cluster: &Cluster) -> PathBuf {
    let page = fs::read_to_string("docs/dashboard.md").unwrap();
    let block = page.split("    apiVersion: rbac").nth(1).unwrap().split("\n\n").next().unwrap();
    let role = format!("apiVersion: rbac{}", block.replace("\n    ", "\n"))
        .replace("namespace: shop", "namespace: default");
    cluster.apply(&role);
    let name = json!({"name": ACCOUNT, "namespace": "default"});
    for object in [
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": name}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": name,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": "default"}]}),
    ] {
        cluster.apply(&object.to_string());
    }
    let kubeconfig = cluster.kubeconfig_of("default", ACCOUNT);
    // Rights take effect a moment after they are written, and a dashboard leaves out what it may not list when it starts.
    let pods: Api<Object> = Api::namespaced(client(&kubeconfig), "default");
    eventually_or("the rights of the dashboard", || block_on(pods.list(&ListParams::default())).map(drop));
    kubeconfig
}

/// Starts the dashboard; returns its process and its URL.
fn start(kubeconfig: &Path) -> (Child, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.args(["dashboard", "-n", "default", "--kubeconfig"]).arg(kubeconfig).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
    (child, url.trim_end().to_owned())
}

#[test]
fn a_restart_reaches_the_page_of_a_user_who_may_only_read() {
    let cluster = Cluster::shared();
    Agent::shared();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (mut child, url) = start(&reader(cluster));
    let data = |path: &str| -> Value {
        let text = block_on(async { reqwest::get(format!("{url}api/{path}")).await?.text().await });
        serde_json::from_str(&text.unwrap()).unwrap()
    };
    let pod = Pod::run(cluster, "dashboard", SPEC);
    pod.ask("restart app", Phase::Succeeded);
    let path = format!("pod/default/{}", pod.name);
    let page = eventually_or("the restart is on the page", || {
        let page = data(&path);
        let is_there = page["view"]["operations"][0]["phase"] == "Succeeded"
            && page["view"]["events"].as_array().is_some_and(|events| !events.is_empty());
        if is_there { Ok(page) } else { Err(page) }
    });
    let app = &page["view"]["operations"][0]["containers"][0];
    assert!(app["downtimeMs"].as_i64().is_some_and(|down| (0..60_000).contains(&down)), "{page:#}");
    assert_eq!(app["spans"].as_array().unwrap().len(), 4, "{page:#}");
    assert!(!page.to_string().contains("hunter2"));
    let problems = page["problems"].to_string();
    assert!(problems.contains("you may not list nodes") && !problems.contains("events"), "{problems}");
    let overview = data("overview");
    let workloads = overview["view"]["workloads"].as_array().unwrap();
    assert!(workloads.iter().any(|row| row["name"] == format!("pod/{}", pod.name).as_str()), "{overview:#}");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let is_its =
        |write: &Value| write["user"]["username"].as_str().is_some_and(|user| user.ends_with(ACCOUNT));
    let writes: Vec<_> = cluster.writes().into_iter().filter(is_its).collect();
    assert!(writes.is_empty(), "{writes:#?}");
}
